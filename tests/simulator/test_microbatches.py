"""Fused dataflows work in micro-batches, as on Spark."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_simulated_plant_conforms import BIG, words

from conformance.suite import PlantCase, conformance_suite
from elastream.core.action import LeaseHost, MoveTask, ReleaseHost, SetParallelism, Status
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.core.promises import PlantKind
from elastream.core.task_id import TaskId
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, HostFailure, Settings, SimulatedPlant, make_plant
from support.simulated_plants import SMALL

ONE = HostType("one", cores=1.0, start=8.0, stop=2.0)


def plant(hosts=1, rate=100, seconds=600, faults=(), cost=0.002, kind=ONE, keyed=True, settings=None):
    flow = Dataflow("fused")
    parsed = flow.source(None).map(
        [Alternate("parse", str.lower, cost=cost)], returns="word string", name="parse", max_duration="3s"
    )
    (parsed.key_by("word").count() if keyed else parsed).sink(None)
    settings = settings or Settings(
        monitor=1.0, batch_overhead=0.05, state_partitions=8, faults=faults, host_start_spread=0.0
    )
    settings = replace(settings, services={"count": settings.service("count").costing(0.001)})
    return make_plant(
        lay_out(flow.graph),
        host_types=[kind],
        loads={"source": Emissions.every(1.0, [rate] * seconds, spread=True)},
        settings=settings,
        hosts=hosts,
        parallelism={"source": 4},
        target_latency=3.0,
    )


def conforming():
    return make_plant(
        lay_out(words().graph),
        host_types=[BIG, SMALL],
        loads={"source": Emissions.every(1.0, [20] * 600, spread=True)},
        settings=Settings(monitor=1.0, services={"count": Settings().service("count").costing(0.002)}),
        hosts=2,
        max_hosts=20,
        target_latency=2.0,
    )


def lose(fused: SimulatedPlant, host: str) -> None:
    fused.lose(fused.pool.rows[host])


TestFused = conformance_suite(PlantCase("fused", conforming, PlantKind.CHAINED, settle=60.0, lose=lose))


def test_a_batch_lasts_for_an_overhead_a_stage_and_for_its_work():
    busy = plant()
    busy.advance(60.0)
    observation = busy.observe()
    # Two stages, 50 ms each; 3 ms of work a record on one core. At 100 records/s: d = 0.1 + 0.3 d.
    assert observation.application.value("fused", Metric.BATCH_DURATION) == pytest.approx(0.1 / 0.7, rel=0.1)
    assert observation.hosts.value("h1", Metric.CPU) == pytest.approx(0.3, abs=0.03)
    assert observation.application.value("fused", Metric.THROUGHPUT) == pytest.approx(100, rel=0.05)


def test_excess_load_queues_at_the_source_and_more_hosts_serve_it():
    slow = plant(rate=500, seconds=120)
    slow.advance(60.0)
    # At most about 1 / 3 ms = 333 records/s; the rest is due and not taken.
    assert slow.observe().operators.value("source", Metric.BACKLOG) == pytest.approx(60 * (500 - 300), rel=0.25)
    assert math.isnan(slow.observe().operators.value("count", Metric.BACKLOG))
    for number in (2, 3):
        assert slow.apply(LeaseHost(f"h{number}", "one")).succeeded
    slow.advance(70.0)
    for index in range(1, 7):
        assert slow.apply(MoveTask(TaskId("count", index), f"h{2 + index % 2}")).succeeded
    slow.advance(250.0)
    assert slow.finished
    assert slow.result().committed == pytest.approx(60000)


def test_only_stages_without_state_can_change_their_width():
    fused = plant()
    assert fused.context.scalable == {"source"}
    assert fused.apply(SetParallelism("count", 3)).status is Status.REFUSED
    assert fused.apply(SetParallelism("source", 2)).succeeded
    assert {task.operator for task in fused.observe().tasks.tasks} == {"count"}
    assert len(fused.observe().tasks) == 8


def test_a_batch_whose_host_is_lost_is_done_again_and_counted_once():
    faulty = plant(hosts=2, seconds=60, faults=(HostFailure(20.1, "h1"),))
    faulty.advance(200.0)
    assert faulty.finished
    assert faulty.result().committed == pytest.approx(6000)


def test_a_released_host_is_paid_until_the_batch_that_counts_on_it_ends():
    busy = plant(hosts=2, rate=1000, seconds=1, cost=0.02, keyed=False, settings=Settings(monitor=1.0, batch_seconds=20.0))
    busy.advance(3.0)
    (segment,) = busy.network.segments.values()
    ends = segment.works_until(0)
    assert ends > 3.0 + ONE.stop
    assert busy.apply(ReleaseHost("h2")).status is Status.ACCEPTED
    busy.advance(20.0)
    assert busy.ledger[1].until == ends


def test_a_batch_begins_at_its_trigger_and_a_missed_one_follows():
    settings = Settings(monitor=1.0, batch_overhead=0.05, batch_interval=1.2, batch_seconds=1.2, state_partitions=8)
    steady = plant(settings=settings)
    steady.advance(30.0)
    starts = [batch.start for batch in steady.network.segments["source"].recent]
    assert np.diff(starts) == pytest.approx(1.2)
    slow = plant(settings=replace(settings, batch_overhead=0.75))
    slow.advance(30.0)
    batches = list(slow.network.segments["source"].recent)
    assert [b.start for b in batches[1:]] == pytest.approx([b.end for b in batches[:-1]])


def test_a_governor_with_rare_batches_lets_them_take_all_records():
    """Two fifths of what a host can do, in batches every four seconds: once a stop had made the governor measure, its aim
    of batches of a second let less in than came.
    """
    settings = Settings(monitor=1.0, batch_overhead=0.05, batch_interval=4.0, state_partitions=8)
    faulty = plant(rate=130, settings=replace(settings, faults=(HostFailure(60.0, "h1"), HostFailure(60.0, "h2"))), hosts=2)
    faulty.apply(LeaseHost("h3", "one"))
    faulty.advance(500.0)
    took = [batch.records for batch in list(faulty.network.segments["source"].recent)[-10:]]
    assert np.mean(took) == pytest.approx(4.0 * 130, rel=0.05)


def test_a_host_that_starts_makes_batches_longer_by_what_it_takes():
    settings = Settings(monitor=1.0, batch_overhead=0.05, state_partitions=8, start_delay=0.5, host_start_spread=0.0)
    shared = plant(settings=settings)
    shared.advance(20.0)
    assert shared.apply(LeaseHost("h2", "one")).succeeded
    shared.advance(27.0)
    recent = shared.network.segments["source"].recent
    before, after = ([b for b in recent if low < b.start < high] for low, high in ((10, 19), (22, 27)))
    lasts = [np.mean([b.seconds - 0.003 * b.records for b in part]) for part in (before, after)]
    assert lasts[1] - lasts[0] == pytest.approx(0.5, abs=0.01)


def test_each_host_takes_one_moved_partition_a_batch_and_loads_its_state():
    moving = plant(hosts=2, settings=Settings(monitor=1.0, batch_overhead=0.05, state_partitions=8, state_load=1.0))
    moving.advance(20.0)
    tasks = moving.observe().tasks
    there = [task.index for task, host in zip(tasks.tasks, tasks.host, strict=True) if host == 0][:3]
    for index in there:
        assert moving.apply(MoveTask(TaskId("count", index), "h2")).succeeded
    moving.advance(30.0)
    batches = [b for b in moving.network.segments["source"].recent if b.start > 19.0]
    assert sum(b.seconds > 1.0 for b in batches) == 3


@given(speed=st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0]), apart=st.booleans())
def test_busy_cores_are_cores_of_hosts_at_any_speed(speed, apart):
    flow = Dataflow("speed")
    flow.source(None).map([Alternate("work", str.lower, cost=0.002)], returns="word string", name="work").sink(None)
    plant = make_plant(
        lay_out(flow.graph, chained=not apart),
        host_types=[HostType("one", cores=4.0, speed=speed)],
        loads={"source": Emissions.every(1.0, [100] * 60, spread=True)},
        settings=Settings(monitor=1.0, variation=0.0),
        parallelism={} if apart else {"source": 4},
    )
    plant.advance(30.0)
    seen = plant.observe()
    (name,) = ["work"] if apart else ["source"]
    busy = seen.operators.value(name, Metric.BUSY_CORES)
    assert busy == pytest.approx(100 * 0.002 / speed, rel=0.1)
    assert seen.operators.value(name, Metric.SERVICE_TIME) * speed == pytest.approx(0.002, rel=0.05)
    assert seen.hosts.value("h1", Metric.CPU) * 4.0 == pytest.approx(busy, rel=0.15)
    assert busy * seen.mean_speed == pytest.approx(0.2, rel=0.1)
