"""Instances with queues of their own, on hosts whose cores and links they share."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import MoveTask
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.dataflow.operators import Alternate, Operator
from elastream.errors import InputError
from elastream.simulator import Emissions, HostFailure, make_plant
from elastream_papers.tasks import TaskNetwork, TaskSettings
from support.property_examples import examples
from support.simulated_plants import chain


def step(name, cost, selectivity=1.0, size=None) -> Operator:
    return Operator(name, alternates=(Alternate(name, cost=cost, selectivity=selectivity),), record_bytes=size)


def plant(*operators, hosts=2, rate=100, seconds=60, parallelism=None, bandwidth=None, cores=1.0, **constants):
    return make_plant(
        chain(*operators),
        host_types=[HostType("host", cores=cores, bandwidth=bandwidth)],
        hosts=hosts,
        loads={"source": Emissions.every(1.0, [rate] * seconds, spread=True)},
        parallelism=parallelism,
        network=TaskNetwork,
        settings=TaskSettings(monitor=5.0, start_cached=0.0, latency=0.0, **constants),
    )


def cpu(plant):
    return plant.observe().hosts.column(Metric.CPU)


@pytest.mark.parametrize(
    ("weights", "busy"),
    [({}, [0.2, 0.2]), ({"shares": {"work": (3.0, 1.0)}}, [0.3, 0.1]), ({"efforts": {"work": (2.0, 0.5)}}, [0.4, 0.1])],
    ids=["as given", "heavier keys", "dearer records"],
)
def test_a_host_works_what_keys_and_records_give_its_instances(weights, busy):
    p = plant(step("work", 0.004), parallelism={"work": 2}, **weights)
    p.advance(20.0)
    assert cpu(p) == pytest.approx(busy, rel=0.02)
    assert p.observe().tasks.column(Metric.BUSY_CORES) == pytest.approx(busy, rel=0.02)


def test_instances_on_one_host_share_its_core_and_one_alone_has_it():
    together = plant(step("work", 0.015), hosts=1, parallelism={"work": 2}, seconds=20)
    apart = plant(step("work", 0.015), hosts=2, parallelism={"work": 2}, seconds=20)
    for p in (together, apart):
        p.advance(20.0)
    assert together.result().committed == pytest.approx(20 / 0.015, rel=0.02)
    assert apart.result().committed == pytest.approx(2000, rel=0.02)


def test_with_bounded_flight_the_fullest_host_sets_the_pace():
    p = plant(step("work", 0.01), rate=1000, parallelism={"work": 2}, shares={"work": (3.0, 1.0)}, pending=100)
    p.advance(30.0)
    assert p.observe().application.value("chain", Metric.THROUGHPUT) == pytest.approx(100 / 0.75, rel=0.05)
    assert cpu(p) == pytest.approx([1.0, 1 / 3], rel=0.05)


def test_a_task_that_moves_takes_its_queue_along():
    p = plant(step("work", 0.02), hosts=2)
    p.advance(20.0)
    waiting = p.observe().tasks.column(Metric.BACKLOG)[0]
    assert waiting == pytest.approx(1000, rel=0.05)
    p.apply(MoveTask(TaskId("work", 0), "h2"))
    after = p.observe()
    assert after.tasks.host.tolist() == [1]
    assert after.tasks.column(Metric.BACKLOG)[0] == waiting


@given(
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4),
    st.floats(0.0005, 0.02),
    st.sampled_from([math.inf, 50.0]),
    st.sampled_from([(), (HostFailure(7.0),)]),
)
@settings(max_examples=examples(25))
def test_no_record_is_lost_or_made_up(weights, cost, pending, faults):
    p = plant(
        step("first", cost, 2.0), step("second", cost / 4), hosts=3, seconds=10, faults=faults, pending=pending,
        parallelism={"first": len(weights), "second": 2}, shares={"first": weights},
    )  # fmt: skip
    for moment in (3.0, 12.0):
        p.advance(moment)
        p.apply(MoveTask(TaskId("first", 0), "h3"))
    p.advance(20.0)
    operators = p.result().operators
    source = p.network.sources["source"]
    assert source.emitted == pytest.approx(operators["first"].done + operators["first"].queued, rel=1e-6)
    assert 2 * operators["first"].done == pytest.approx(operators["second"].done + operators["second"].queued, rel=1e-6)
    assert p.result().committed == pytest.approx(operators["second"].done, rel=1e-6)
    assert (cpu(p)[~(cpu(p) != cpu(p))] <= 1.0).all()


def test_clients_of_a_host_that_is_full_wait_in_its_queue():
    closed = plant(step("work", 0.02), hosts=1, pending=10.0, turnaround=0.1, rate=1000)
    closed.advance(20.0)
    assert closed.result().committed == pytest.approx(20 / 0.02, rel=0.02)
    queued = closed.observe().operators.value("work", Metric.BACKLOG)
    assert queued == pytest.approx(10 - 50 * 0.1, rel=0.1)


@pytest.mark.parametrize(("regions", "expected"), [(("a", "a"), 1000), (("a", "b"), 200)])
def test_a_machines_link_carries_only_what_leaves_it(regions, expected):
    kinds = [HostType(f"{name}{number}", cores=1.0, region=name) for number, name in enumerate(regions)]
    split = make_plant(
        chain(step("first", 1e-5, size=100.0), step("second", 1e-5)),
        host_types=kinds,
        hosts=[kind.name for kind in kinds],
        loads={"source": Emissions.every(1.0, [1000] * 60, spread=True)},
        network=TaskNetwork,
        settings=TaskSettings(monitor=5.0, start_cached=0.0, latency=0.0, machine_link=20_000.0, pending=100.0),
    )
    split.advance(20.0)
    assert split.result().committed == pytest.approx(20 * expected, rel=0.05)


@pytest.mark.parametrize("wrong", [{"joins": frozenset({"join"})}, {"machine_link": 0.0}])
def test_settings_that_tasks_cannot_have_are_refused(wrong):
    with pytest.raises(InputError, match=r"join|above 0"):
        TaskSettings(**wrong)
