"""Queues behave as queueing theory says, and what happens to each item is exact."""

import math
from dataclasses import replace

import numpy as np
import pytest

from elastream.core.action import SetParallelism, SwitchAlternate
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.core.qos import waiting_time
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.loads.speeds import SpeedTrace
from elastream.simulator import Distribution, Emissions, Service, Settings, Travel, make_plant
from elastream.simulator.cohorts import judge
from support.simulated_plants import Queues, chain, one_queue, operator, queueing, run_out, travelling

EXPONENTIAL = Settings(monitor=5000.0, services={"work": Service(Distribution.EXPONENTIAL)}, latency=0.0)
DETERMINISTIC = Settings(services={"work": Service(Distribution.DETERMINISTIC)}, latency=0.0)


def poisson(rate: float, count: int, seed: int = 7):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


@pytest.mark.parametrize(
    ("load", "instances", "settings", "variation"),
    [(0.5, 1, EXPONENTIAL, 1.0), (0.8, 1, replace(DETERMINISTIC, monitor=5000.0), 0.0), (9.0, 10, EXPONENTIAL, 1.0)],
    ids=["M/M/1", "M/D/1", "M/M/10"],
)
def test_instances_wait_as_long_as_theory_says(load, instances, settings, variation):
    plant = run_out(one_queue(poisson(load, 100_000), 1.0, instances, settings=settings, limit=2.0), step=50_000)
    waited = plant.result().operators["work"].mean_duration - 1.0
    # 100,000 correlated waits: at a load of 0.8 the standard error is about 3 % of the mean.
    assert waited == pytest.approx(waiting_time(load, 1.0, instances, variation), rel=0.1)
    if load == 0.5:  # durations of M/M/1 are exponential with mean 1 / (1 - load)
        assert plant.result().compliance(1.0) == pytest.approx(1 - math.exp(-2.0 * 0.5), abs=0.015)


def test_items_are_served_in_order_by_the_instance_that_is_free_first():
    plant = one_queue([0.0, 0.0, 0.0, 0.0, 0.5], 1.0, 2, settings=DETERMINISTIC, limit=1.0)
    plant.advance(10.0)
    # Durations: 1, 1, 2, 2 and 3 - 0.5.
    assert plant.result().operators["work"].mean_duration == pytest.approx((1 + 1 + 2 + 2 + 2.5) / 5)
    assert plant.result().operators["work"].within == {1.0: 2.0, 2.0: 4.0, 5.0: 5.0}


@pytest.mark.parametrize("queues", Queues)
def test_how_time_is_cut_does_not_change_what_happens(queues):
    given = queueing(queues, services={"work": Service()})
    whole, cut = (one_queue(np.arange(2000) * 0.05, 0.2, 5, limit=0.2, **given) for _ in range(2))
    whole.advance(90.0)
    for time in np.arange(1, 91):
        cut.advance(float(time))
    if queues is Queues.ITEMS:
        one, other = (plant.result().operators["work"] for plant in (whole, cut))
        assert one.within == other.within
        assert one.mean_duration == pytest.approx(other.mean_duration, rel=1e-12)
    else:
        assert whole.result().compliance(1) == pytest.approx(cut.result().compliance(1), abs=0.01)


@pytest.mark.parametrize("queues", Queues)
def test_a_faster_host_serves_faster(queues):
    plant = make_plant(
        chain(operator("work", 1.0, limit=1.0)),
        host_types=[HostType("fast", cores=1, speed=4.0)],
        loads={"source": Emissions.every(1.0, [1] * 100)},
        **queueing(queues, services={"work": Service(Distribution.DETERMINISTIC)}),
    )
    plant.advance(90.0)
    assert plant.result().operators["work"].mean_duration == pytest.approx(0.25, rel=0.01)


def test_a_host_that_slows_down_serves_at_its_new_speed():
    trace = SpeedTrace(np.array([[1.0, 0.5]]), 60.0)
    settings = Settings(services={"work": Service(Distribution.DETERMINISTIC)}, speed_trace=trace)
    plant = one_queue(np.arange(0.0, 120.0, 5.0), 1.0, settings=settings, limit=1.5)
    plant.advance(60.0)
    assert plant.observe().operators.value("work", Metric.DURATION) == pytest.approx(1.0)
    plant.advance(121.0)
    assert plant.observe().operators.value("work", Metric.DURATION) == pytest.approx(2.0)


@pytest.mark.parametrize("queues", Queues)
@pytest.mark.parametrize(("selectivity", "expected"), [(3.0, 3000), (1 / 50, 20), (0.0, 0)])
def test_selectivity_decides_how_many_items_leave(queues, selectivity, expected):
    plant = make_plant(
        chain(operator("work", 0.001, selectivity=selectivity)),
        host_types=[HostType("one", cores=1)],
        loads={"source": Emissions.every(0.01, [1] * 1000)},
        **queueing(queues),
    )
    plant.advance(60.0)
    assert plant.result().committed == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("travel", [Travel.SINGLE, Travel.COHORTS])
def test_a_join_waits_for_one_item_of_each_input(travel):
    join = operator("join", 0.1, selectivity=0.5)
    graph = Graph(
        "join",
        (Operator("left", Kind.SOURCE), Operator("right", Kind.SOURCE), join, Operator("sink", Kind.SINK)),
        (Edge("left", "join"), Edge("right", "join"), Edge("join", "sink")),
    )
    plant = make_plant(
        lay_out(graph, chained=False),
        host_types=[HostType("one", cores=1)],
        loads={"left": Emissions.at([1.0, 2.0, 3.0]), "right": Emissions.at([10.0, 20.0])},
        settings=Settings(joins=frozenset({"join"}), **travelling(travel)),
    )
    plant.advance(15.0)
    assert plant.result().committed == pytest.approx(1)
    assert plant.result().operators["join"].queued == pytest.approx(2)
    plant.advance(45.0)
    assert plant.result().committed == pytest.approx(2)
    assert plant.finished, "the third left item has no partner to come"


def test_where_few_items_come_cohorts_are_taken_apart_and_none_is_lost():
    plant = make_plant(
        chain(operator("many", 0.001, selectivity=1 / 300), operator("few", 0.5)),
        host_types=[HostType("four", cores=4)],
        loads={"source": Emissions.every(15.0, [7000] * 4, spread=True)},
        settings=Settings(travel=Travel.COHORTS),
        parallelism={"many": 1},
    )
    assert plant.network.crowded == {"source", "many"}
    run_out(plant)
    done = plant.result().operators
    assert done["many"].done == pytest.approx(28_000)
    assert done["few"].arrived == done["few"].done == 28_000 // 300


def test_a_round_robin_edge_deals_items_and_a_duplicating_one_copies_them():
    def counts(delivery):
        targets = [operator(name, 0.001) for name in "ab"]
        graph = Graph(
            "fan",
            (Operator("source", Kind.SOURCE), operator("split", 0.001), *targets, Operator("sink", Kind.SINK)),
            (
                Edge("source", "split"), Edge("split", "a", delivery), Edge("split", "b", delivery),
                Edge("a", "sink"), Edge("b", "sink"),
            ),
        )  # fmt: skip
        plant = make_plant(
            lay_out(graph, chained=False),
            host_types=[HostType("four", cores=4)],
            loads={"source": Emissions.every(0.1, [1] * 101)},
        )
        plant.advance(30.0)
        return [plant.result().operators[name].done for name in "ab"]

    assert counts(Delivery.ROUND_ROBIN) == [51, 50]
    assert counts(Delivery.DUPLICATE) == [101, 101]


def test_an_alternates_cost_and_selectivity_apply_from_the_next_item():
    work = Operator("work", Kind.TRANSFORM, (Alternate("good", cost=0.5), Alternate("quick", cost=0.1, selectivity=0.0)))
    plant = make_plant(
        chain(work), host_types=[HostType("one", cores=1)], loads={"source": Emissions.every(1.0, [1] * 20)},
        settings=DETERMINISTIC,
    )  # fmt: skip
    plant.advance(10.0)
    plant.apply(SwitchAlternate("work", "quick"))
    plant.advance(30.0)
    assert plant.result().committed == 10
    assert plant.result().operators["work"].mean_duration == pytest.approx(0.3)


def test_an_instance_that_is_taken_away_finishes_what_it_has_in_hand():
    plant = one_queue([0.0, 0.0], 10.0, 2, settings=DETERMINISTIC)
    plant.advance(5.0)
    plant.apply(SetParallelism("work", 1, without=(TaskId("work", 0),)))
    plant.advance(11.0)
    assert plant.result().operators["work"].done == 2
    assert plant.observe().tasks.tasks == (TaskId("work", 1),)


def test_items_over_a_slow_link_arrive_at_the_pace_of_the_link():
    source = operator("first", 0.01)
    kind = HostType("thin", cores=1, bandwidth=1000.0)
    plant = make_plant(
        chain(source, operator("second", 0.01)),
        host_types=[kind], hosts=2, loads={"source": Emissions.every(0.1, [1] * 600)},
        settings=Settings(record_bytes={"first": 500.0}),
    )  # fmt: skip
    plant.advance(60.0)
    # 500 bytes an item over 1000 bytes/s: two of the ten items a second.
    assert plant.result().operators["second"].done == pytest.approx(120, abs=3)


def test_a_slot_without_items_has_no_duration():
    starts = np.array([[1.0, 0.0, 0.0], [2.0, 0.5, 4.0]])
    none = np.zeros(0)
    items, total, *_, durations, weights = judge(starts, 0.1, np.zeros(1), none, 1.0, np.ones(1), 0, 0.0, none)
    assert (items, total) == (4.0, pytest.approx(6.4))
    assert np.isfinite(durations).all()
    assert weights.tolist() == [0.0, 4.0]
