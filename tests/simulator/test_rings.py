"""Rings, uneven parts of the keys, and copies of state in the simulated plant of fused stages."""

import numpy as np
import pytest
from test_microbatches import ONE

from elastream.core.action import MoveTask, SetParallelism, SetTokens, Status
from elastream.core.metrics import Metric
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.policies.ring.policy import RingBalance
from elastream.simulator import Emissions, Settings, make_plant
from support.policy_run import driven

P = 16


def plant(hosts=2, rate=300, seconds=300, fused=True, rates=None, **given):
    flow = Dataflow("words")
    words = flow.source(None).map([Alternate("parse", str.lower, cost=0.0005)], returns="word string", name="parse")
    words.key_by("word").count(name="count").sink(None)
    costing = {"count": Settings().service("count").costing(0.002)}
    settings = Settings(
        monitor=1.0, batch_interval=0.8, state_partitions=P, host_start_spread=0.0, services=costing, **given
    )
    return make_plant(
        lay_out(flow.graph, chained=fused),
        host_types=[ONE],
        loads={"source": Emissions.every(1.0, rates or [rate] * seconds, spread=True)},
        settings=settings,
        hosts=hosts,
        max_hosts=10,
        target_latency=2.0,
    )


def ring(simulated, **tokens):
    outcome = simulated.apply(SetTokens("count", tuple(tokens.items())))
    assert outcome.succeeded, outcome
    return outcome


def cpu(simulated, host):
    return simulated.observe().hosts.value(host, Metric.CPU)


def test_the_host_of_heavy_partitions_is_busy_and_its_tasks_show_it():
    weights = np.ones(P)
    weights[2] = 17.0
    skewed = plant(shares={"count": weights})
    ring(skewed, h1=0.0, h2=0.5)
    skewed.advance(60.0)
    seen = skewed.observe()
    assert cpu(skewed, "h1") > 1.5 * cpu(skewed, "h2")
    busy = dict(zip([task.index for task in seen.tasks.tasks], seen.tasks.column(Metric.BUSY_CORES), strict=True))
    assert busy[2] == pytest.approx(17 * busy[3])


def test_parts_of_the_keys_change_as_their_rows_say():
    first, second = np.ones(P), np.ones(P)
    first[0], second[P - 1] = 20.0, 20.0
    moving = plant(shares={"count": np.array([first, second])}, share_interval=60.0)
    ring(moving, h1=0.0, h2=0.5)
    moving.advance(50.0)
    assert cpu(moving, "h1") > cpu(moving, "h2")
    moving.advance(110.0)
    assert cpu(moving, "h1") < cpu(moving, "h2")


def test_a_move_of_a_single_task_ends_the_ring():
    simulated = plant()
    ring(simulated, h1=0.0, h2=0.5)
    assert simulated.observe().rings == {"count": Ring({"h1": 0.0, "h2": 0.5})}
    assert simulated.apply(MoveTask(TaskId("count", 0), "h2")).status is Status.ACCEPTED
    assert simulated.observe().rings == {}


def test_each_partition_has_copies_on_the_next_hosts_of_its_ring():
    simulated = plant(hosts=3, replicas=1)
    ring(simulated, h1=0.0, h2=0.25, h3=0.5)
    simulated.advance(30.0)
    seen = simulated.observe()
    standby, after = seen.standby, {"h1": "h2", "h2": "h3", "h3": "h1"}
    assert len(standby) == P
    for task, host in zip(standby.task.tolist(), standby.host.tolist(), strict=True):
        assert seen.hosts.ids[host] == after[seen.hosts.ids[seen.tasks.host[task]]]
    assert (standby.lag == 0).all()
    assert len(plant(replicas=0).observe().standby) == 0


def test_a_host_that_held_copies_takes_over_without_loading_state():
    durations = []
    for replicas in (0, 1):
        simulated = plant(hosts=3, rate=100, replicas=replicas, state_load=0.5, replica_work=0.0)
        ring(simulated, h1=0.0, h2=0.33, h3=0.66)
        simulated.advance(60.0)
        simulated.lose(simulated.pool.rows["h1"])
        before = simulated.network.segments["source"].log.shape[0]
        simulated.advance(75.0)
        durations.append(simulated.network.segments["source"].log[before:, 1])
    cold, warm = durations
    assert cold[0] == pytest.approx(warm[0] + 6 * 0.5, abs=0.1), "six partitions are loaded, once"
    assert max(warm) < 0.8
    assert cold[-1] == pytest.approx(warm[-1], abs=0.1)


def test_copies_cost_their_hosts_work():
    uses = []
    for replicas in (0, 1, 2):
        simulated = plant(hosts=3, rate=200, replicas=replicas)
        simulated.advance(60.0)
        uses.append(sum(cpu(simulated, host) for host in ("h1", "h2", "h3")))
    counted = 200 * 0.002 * Settings().replica_work
    assert np.diff(uses) == pytest.approx([counted] * 2, rel=0.2)


def test_unchained_operators_keep_no_replicas_and_too_many_are_refused():
    with pytest.raises(InputError, match="simulate it fused"):
        plant(fused=False, replicas=1)
    with pytest.raises(InputError, match="at most 10 may be leased"):
        plant(replicas=10)


@pytest.mark.parametrize("cut", ["half", "load"])
def test_a_skew_is_balanced_and_then_nothing_moves_any_more(cut):
    weights = np.ones((2, P))
    weights[1, 2:5] = 6.0
    simulated = plant(hosts=3, rate=520, seconds=300, shares={"count": weights}, share_interval=100.0)
    rounds = driven(simulated, RingBalance(cut=cut), range(2, 200, 2))
    changes = [seen.time for seen, plan in rounds for action in plan.actions if isinstance(action, SetTokens)]
    assert changes, "nothing was balanced"
    assert all(time < 180.0 for time in changes), changes
    levels = [cpu(simulated, host) for host in simulated.observe().usable]
    assert max(levels) < 0.95
    assert simulated.observe().operators.value("source", Metric.BACKLOG) < 2 * 520


def test_noise_about_a_load_that_hosts_can_do_changes_nothing():
    draws = np.random.default_rng(1)
    rates = np.maximum(0, draws.normal(450, 120, 200)).astype(int).tolist()
    simulated = plant(hosts=3, rates=rates)
    rounds = driven(simulated, RingBalance(), range(2, 200, 2))
    changes = [action for _, plan in rounds for action in plan.actions if not isinstance(action, SetParallelism)]
    assert len(changes) == 1, changes
