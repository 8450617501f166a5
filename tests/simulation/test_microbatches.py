"""Fused dataflows work in micro-batches, and a recorded run can be played through the simulator again."""

import math
from dataclasses import replace

import numpy as np
import pytest
from simulation_cases import SMALL
from test_simulated_plant_conforms import BIG, words

from conformance.suite import PlantCase, conformance_suite
from elastream.control.recording import Collector, Ending, describe_run
from elastream.model.action import LeaseHost, MoveTask, SetParallelism, Status, TaskId
from elastream.model.cloud import HostType
from elastream.model.errors import InputError
from elastream.model.flow import Dataflow
from elastream.model.graph import Alternate
from elastream.model.observation import Metric
from elastream.model.stages import lay_out
from elastream.simulation import Emissions, Fault, Settings, calibrate, drift_of, make_plant, replay

ONE = HostType("one", cores=1.0, start=8.0, stop=2.0)


def plant(hosts=1, rate=100, seconds=600, faults=(), cost=0.002, kind=ONE, keyed=True):
    flow = Dataflow("fused")
    parsed = flow.source(None).map(
        [Alternate("parse", str.lower, cost=cost)], returns="word string", name="parse", max_duration="3s"
    )
    (parsed.key_by("word").count() if keyed else parsed).sink(None)
    settings = Settings(monitor=1.0, batch_overhead=0.05, state_partitions=8, faults=faults, host_start_spread=0.0)
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
    )


TestFused = conformance_suite(PlantCase("fused", conforming, settle=60.0))


def test_a_batch_lasts_for_an_overhead_a_stage_and_for_its_work():
    busy = plant()
    busy.advance(60.0)
    observation = busy.observe()
    # Two stages, 50 ms each; 3 ms of work a record on one core. At 100 records/s: d = 0.1 + 0.3 d.
    assert observation.application.value("fused", Metric.BATCH_DURATION) == pytest.approx(0.1 / 0.7, rel=0.1)
    assert observation.hosts.value("h1", Metric.CPU) == pytest.approx(0.3, abs=0.03)
    assert observation.application.value("fused", Metric.THROUGHPUT) == pytest.approx(100, rel=0.05)


def test_what_exceeds_the_hosts_queues_at_the_source_and_more_hosts_work_it_off():
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
    faulty = plant(hosts=2, seconds=60, faults=(Fault(20.1, "h1"),))
    faulty.advance(200.0)
    assert faulty.finished
    assert faulty.result().committed == pytest.approx(6000)


def recorded(reality, until=240.0):
    """A recording of a plant that leases a second host halfway."""
    collector = Collector()
    collector.started(describe_run(reality.context, policy="none", plant="simulated", started=0.0))
    for second in range(1, int(until) + 1):
        reality.advance(float(second))
        collector.observed(reality.observe())
    collector.ended(Ending("finished", until, ledger=tuple(reality.ledger)))
    return collector.recording


def test_a_calibrated_replay_drifts_little_from_the_run_it_was_made_from():
    rates = [60 + 40 * (second // 40 % 2) for second in range(240)]
    reality = plant(hosts=2)
    reality.network.sources["source"].load = Emissions.every(1.0, rates, spread=True)
    recording = recorded(reality)
    layout = reality.context.layout
    wrong = Settings(batch_overhead=0.4, state_partitions=8)
    calibration = calibrate(recording, layout, [ONE], wrong)
    assert calibration.settings.batch_overhead == pytest.approx(0.05, rel=0.2)
    drifts = {drift.metric: drift for drift in drift_of(recording, replay(recording, layout, calibration))}
    assert drifts["latency p50"].relative == pytest.approx(0, abs=0.2)
    assert drifts["host time"].relative == pytest.approx(0, abs=0.01)
    assert drifts["records"].relative == pytest.approx(0, abs=0.02)
    assert drifts["batch, mean"].relative == pytest.approx(0, abs=0.2)


def test_what_a_recording_does_not_show_is_named():
    reality = plant(hosts=1)
    calibration = calibrate(recorded(reality, 30.0), reality.context.layout, [ONE])
    assert "the start-up of a one host" in calibration.unknown


def test_a_recording_that_is_too_short_is_refused():
    reality = plant()
    with pytest.raises(InputError, match="2 observations is too short"):
        calibrate(recorded(reality, 2.0), reality.context.layout, [ONE])


def test_a_run_is_the_same_however_time_is_cut():
    whole, cut = plant(), plant()
    whole.advance(30.0)
    for time in np.arange(0.3, 30.01, 0.3):
        cut.advance(float(time))
    cut.advance(30.0)
    assert cut.result().committed == pytest.approx(whole.result().committed, rel=0.02)
