"""Hosts, instances and money: what actions do to them, and what always holds."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from elastream.core.action import CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetParallelism, Status
from elastream.core.hosts import Billing, HostState, HostType, total_cost
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.errors import CloudError, DataflowError, InputError
from elastream.simulator import Emissions, HostFailure, Service, Settings, make_plant
from elastream.simulator.settings import Distribution
from support.property_examples import examples
from support.simulated_plants import SMALL, VM, Queues, chain, one_queue, operator, queueing

PLAIN = Settings(services={"work": Service(Distribution.DETERMINISTIC)}, host_start_spread=0.0, monitor=5.0)


def two_operators(hosts=1, queues=Queues.ITEMS, faults=(), count=2000, max_hosts=6):
    return make_plant(
        chain(operator("first", 0.3, 0.4, memory=300, image=28), operator("second", 0.2, 0.3, memory=250, image=28)),
        host_types=[SMALL],
        loads={"source": Emissions.every(0.1, [1] * count)},
        **queueing(queues, monitor=5.0, faults=faults),
        hosts=hosts,
        max_hosts=max_hosts,
    )


def test_a_leased_host_costs_from_the_request_and_takes_tasks_later():
    plant = one_queue([0.0], 1.0, settings=PLAIN)
    plant.advance(5.0)
    assert plant.apply(LeaseHost("h2", "big")).status is Status.ACCEPTED
    plant.apply(SetParallelism("work", 2, on=("h2",)))
    assert plant.network.stations[0].crew.free.tolist() == [1.0, 40.0]
    plant.advance(34.9)
    assert plant.observe().coming == ("h2",)
    plant.advance(35.0)
    assert plant.observe().usable == ("h1", "h2")
    assert plant.ledger[1].since == 5.0


def test_an_instance_starts_sooner_where_its_image_is_cached():
    layout = chain(operator("work", 1.0, memory=10, image=140))
    kind = HostType("one", cores=4)
    plant = make_plant(
        layout, host_types=[kind], hosts=2, loads={"source": Emissions.every(0.1, [1] * 600)}, settings=PLAIN
    )
    assert plant.observe().images == {"h1": {"work"}, "h2": frozenset()}
    plant.apply(SetParallelism("work", 2, on=("h1",)))
    plant.apply(SetParallelism("work", 3, on=("h2",)))
    # 5 s with the image there; 140 MB at 14 MB/s more without.
    assert plant.network.stations[0].crew.free.tolist() == [0.0, 5.0, 15.0]


def test_a_placement_that_does_not_fit_is_refused_with_its_reason():
    plant = two_operators()
    before = plant.observe()
    outcome = plant.apply(SetParallelism("first", 4))
    assert outcome.status is Status.REFUSED
    assert "no host has room for another instance of first" in outcome.reason
    assert plant.observe().hosts.value("h1", Metric.MEMORY) == before.hosts.value("h1", Metric.MEMORY)


def test_the_only_host_that_could_hold_its_tasks_is_not_released():
    plant = two_operators()
    assert plant.apply(ReleaseHost("h1")).status is Status.REFUSED
    plant.apply(LeaseHost("h2", "small"))
    plant.advance(10.0)
    assert plant.apply(ReleaseHost("h1")).status is Status.ACCEPTED
    assert plant.migrations == 2


def test_a_release_before_the_last_twentieth_of_the_unit_is_early():
    def released_at(time):
        plant = one_queue([0.0], 1.0, settings=PLAIN)
        plant.apply(LeaseHost("h2", "big"))
        plant.advance(time)
        plant.apply(ReleaseHost("h2"))
        return plant.result().early_releases

    assert released_at(0.95 * 3600 - 1) == 1
    assert released_at(0.95 * 3600 + 1) == 0


def test_prolongings_are_units_paid_after_the_first():
    kind = HostType("ten", cores=4, billing=Billing(600), price=1.0)
    plant = make_plant(chain(operator("work", 1)), host_types=[kind], hosts=2, loads={"source": Emissions.at([0.0])})
    plant.advance(1700.0)
    assert (plant.result().leases, plant.result().prolongings, plant.result().cost) == (2, 4, 6.0)


def test_a_lost_host_loses_no_item_and_its_instances_start_elsewhere():
    plant = two_operators(hosts=2, faults=(HostFailure(20.03, "h1"),), count=300)
    plant.advance(20.0)
    held = set(plant.observe().tasks.tasks)
    plant.advance(21.0)
    observation = plant.observe()
    assert set(observation.leases) == {"h2"}
    assert set(observation.tasks.tasks) == held
    assert plant.ledger[0].state is HostState.LOST
    plant.advance(400.0)
    assert plant.result().committed == 300
    plant = two_operators(hosts=1, faults=(HostFailure(20.0),), count=300)
    plant.advance(25.0)
    assert not plant.observe().leases, "the oldest host where none is named"
    assert not len(plant.observe().tasks)
    plant.apply(LeaseHost("h2", "small"))
    plant.advance(500.0)
    assert plant.result().committed == 300


def test_host_with_a_notice_is_emptied_and_released_before_it_goes():
    plant = two_operators(hosts=2, faults=(HostFailure(60.0, "h1", notice=30.0),), count=300)
    plant.advance(29.0)
    held = set(plant.observe().tasks.tasks)
    plant.advance(31.0)
    lease = plant.ledger[0]
    assert (lease.state, lease.note) == (HostState.RELEASING, "it is taken away at 60 s")
    assert set(plant.observe().tasks.tasks) == held
    plant.advance(70.0)
    assert plant.ledger[0].state is HostState.RELEASED
    assert set(plant.observe().leases) == {"h2"}


def test_host_whose_work_fits_nowhere_drains_until_another_comes():
    plant = two_operators(hosts=1, faults=(HostFailure(60.0, notice=40.0),), count=300)
    plant.advance(21.0)
    observation = plant.observe()
    assert (observation.leases["h1"].state, observation.usable) == (HostState.DRAINING, ())
    plant.apply(LeaseHost("h2", "small"))
    plant.advance(59.0)
    assert plant.ledger[0].state in (HostState.RELEASING, HostState.RELEASED)
    plant.advance(400.0)
    assert plant.result().committed == 300


def test_host_that_cannot_be_emptied_is_lost_at_its_deadline():
    plant = two_operators(hosts=1, faults=(HostFailure(60.0, notice=30.0), HostFailure(61.0)), count=300)
    plant.apply(CancelDrain("h1"))
    plant.advance(59.9)
    assert plant.ledger[0].state is HostState.DRAINING
    plant.advance(62.0)
    assert plant.ledger[0].state is HostState.LOST


def test_a_move_costs_the_start_of_the_instance_on_the_other_host():
    plant = one_queue(np.arange(0, 100, 0.5), 0.4, settings=PLAIN, hosts=2, limit=1.0)
    plant.advance(50.0)
    assert plant.apply(MoveTask(TaskId("work", 0), "h2")).status is Status.ACCEPTED
    plant.advance(60.0)
    assert plant.observe().operators.value("work", Metric.DURATION) > 4.0
    assert plant.result().migrations == 1


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: make_plant(chain(operator("w", 1, 9.0)), host_types=[VM], loads={}), DataflowError, "has no load"),
        (
            lambda: make_plant(chain(operator("w", 1, 9.0)), host_types=[VM], loads={"source": Emissions.at([])}),
            CloudError,
            "operator 'w' needs 9 cores",
        ),
        (lambda: two_operators(hosts=0), CloudError, "no host has room"),
        (lambda: Emissions.every(1.0, [1, -1]), InputError, "negative count"),
        (lambda: Emissions.every(1.0, [1, math.nan]), InputError, "interval 1 is unknown"),
        (lambda: Emissions.every(0.0, [1]), InputError, "must be above 0"),
        (lambda: Billing(0), CloudError, "billing time unit of 0"),
        (lambda: Settings(monitor=0.0), InputError, "monitor is 0"),
        (lambda: make_plant(chain(operator("w", 1)), host_types=[], loads={}), CloudError, "no host type"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(build, error, words):
    with pytest.raises(error, match=words):
        build()


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.5, 3.0, 4.0]), st.integers(0, 7000)), min_size=1, max_size=8
    ),
    st.sampled_from(Queues),
)
@example([(1.0, 0), (3.0, 0), (3.0, 0), (0.25, 0)], Queues.ITEMS)
def test_chosen_first_hosts_get_one_instance_of_every_operator(needs, queues):
    operators = [operator(f"o{number}", 0.1, cores, memory=memory) for number, (cores, memory) in enumerate(needs)]
    plant = make_plant(
        chain(*operators),
        host_types=[VM],
        loads={"source": Emissions.every(1.0, [1])},
        **queueing(queues),
    )
    assert all((station.crew.host >= 0).all() for station in plant.network.stations)
    hosts = len(plant.pool)
    assert (plant.pool.used_cores[:hosts] <= plant.pool.cores[:hosts] + 1e-9).all()
    assert (plant.pool.used_memory[:hosts] <= plant.pool.memory[:hosts] + 1e-9).all()


def any_step():
    hosts = st.sampled_from(["h1", "h2", "h3", "h4"])
    names = st.sampled_from(["first", "second"])
    return st.one_of(
        st.builds(LeaseHost, hosts, st.just("small")),
        st.builds(ReleaseHost, hosts),
        st.builds(DrainHost, hosts),
        st.builds(SetParallelism, names, st.integers(1, 5), st.lists(hosts, max_size=2).map(tuple)),
        st.builds(MoveTask, st.builds(TaskId, names, st.integers(0, 4)), hosts),
        st.floats(0.1, 20.0),
    )


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(any_step(), max_size=25),
    queues=st.sampled_from(Queues),
    fault=st.none() | st.floats(0.5, 60.0),
)
def test_whatever_is_done_items_money_and_room_add_up(steps, queues, fault):
    plant = two_operators(2, queues, () if fault is None else (HostFailure(fault),), count=300)
    for step in steps:
        if isinstance(step, float):
            plant.advance(plant.time + step)
        else:
            plant.apply(step)
        check(plant)
    plant.advance(plant.time + 30.0)
    check(plant)


def check(plant):
    now, observation, result = plant.time, plant.observe(), plant.result()
    assert result.cost == pytest.approx(total_cost(plant.ledger, now))
    offered = sum(source.offered for source in plant.network.sources.values())
    arrived = {"first": offered, "second": result.operators["first"].emitted}
    for name, each in result.operators.items():
        station = plant.network.by_name[name]
        underway = sum(flow.total for flows in station.inbox for flow in flows)
        assert each.arrived + underway == pytest.approx(arrived[name], abs=1e-6)
        assert each.done + each.queued + each.in_service == pytest.approx(each.arrived, abs=1e-6)
        assert all(within <= each.judged + 1e-6 for within in each.within.values())
    assert result.committed == pytest.approx(result.operators["second"].emitted)
    held = {host: [] for host in observation.leases}
    for task, row in zip(observation.tasks.tasks, observation.tasks.host.tolist(), strict=True):
        held[observation.hosts.ids[row]].append(observation.context.graph.operator(task.operator))
    for host, operators in held.items():
        lease = observation.leases[host]
        assert not operators or (lease.active and lease.cost(now) > 0), "an unpaid host holds an instance"
        if not plant.network.per_task:  # there hosts are shared, and nobody reserves a core
            assert sum(o.cores for o in operators) <= lease.type.cores + 1e-6
        assert sum(o.memory for o in operators) <= lease.type.memory + 1e-6
        assert observation.hosts.value(host, Metric.TASKS) == len(operators)
        assert observation.hosts.value(host, Metric.MEMORY) == pytest.approx(sum(o.memory for o in operators))
