"""A recorded run gives the simulator's constants, and its replay is close to it: from simulated runs, whose constants are
known, and from one that ran on Spark (`data/word_count.jsonl.gz`: the demo, on two cores shared with other programs).
"""

import gzip
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_microbatches import ONE, plant

from elastream.core.action import LeaseHost, SwitchAlternate
from elastream.core.decision import Decision
from elastream.core.observation import MicroBatch
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.evaluation.drift import calibration_of
from elastream.recording.observer import Ending, describe_run
from elastream.recording.recorder import Collector, Recording
from elastream.simulator import Emissions, Settings, calibrate, drift_of, figures_of, make_plant, recorded_plant, replay

DATA = Path(__file__).parent / "data" / "word_count.jsonl.gz"


def started(reality):
    collector = Collector()
    collector.started(describe_run(reality.context, policy="none", plant="simulated", started=0.0))
    return collector


def recorded(reality, until=240.0, leases=()):
    """A recording of a plant that leases hosts at the times `leases`."""
    collector = started(reality)
    for second in range(1, int(until) + 1):
        reality.advance(float(second))
        collector.observed(reality.observe())
        if second in leases:
            assert reality.apply(LeaseHost(f"h{second}", "one")).succeeded
    collector.ended(Ending("finished", until, ledger=tuple(reality.ledger)))
    return collector.recording


def replayed(recording, layout, calibration, seed=0):
    simulated = recorded_plant(recording, layout, calibration, seed=seed)
    collector = started(simulated)
    replay(recording, simulated, calibration.origin, collector.observed)
    collector.ended(Ending("finished", simulated.time, ledger=tuple(simulated.ledger)))
    return collector.recording


def changing(**settings):
    """Two hosts under a load that goes up and down."""
    given = Settings(monitor=1.0, batch_overhead=0.05, state_partitions=8, host_start_spread=0.0, **settings)
    reality = plant(hosts=2, settings=given)
    rates = [60 + 40 * (second // 40 % 2) for second in range(240)]
    reality.network.sources["source"].load = Emissions.every(1.0, rates, spread=True)
    return reality


def test_a_replay_drifts_little_from_the_run_it_was_calibrated_with():
    reality = changing()
    recording = recorded(reality)
    layout = reality.context.layout
    calibration = calibrate(recording, layout, [ONE], Settings(batch_overhead=0.4, state_partitions=8))
    assert calibration.settings.batch_overhead == pytest.approx(0.05, rel=0.05)
    simulated = replayed(recording, layout, calibration)
    drifts = {drift.metric: drift.relative for drift in drift_of(recording, simulated, ["source"])}
    assert drifts["latency p50"] == pytest.approx(0, abs=0.1)
    assert drifts["batch, mean"] == pytest.approx(0, abs=0.05)
    assert drifts["host time"] == pytest.approx(0, abs=0.01)
    assert drifts["records"] == pytest.approx(0, abs=0.01)


def test_the_cost_of_records_is_found_in_what_hosts_work():
    reality = changing()
    found = calibrate(recorded(reality), reality.context.layout, [ONE])
    cost = {constant.name: constant.value for constant in found.constants}
    assert cost["a record from the source"] == pytest.approx(0.003, rel=0.1)
    assert cost["cores that tasks get"] == pytest.approx(1.0, abs=0.1)


def test_each_alternate_that_ran_gets_the_cost_that_was_its_own():
    flow = Dataflow("switching")
    alternates = [
        Alternate("exact", str.lower, cost=0.004),
        Alternate("quick", str.lower, cost=0.001),
        Alternate("never", str),
    ]
    flow.source(None).map(alternates, returns="word string", name="parse").sink(None)
    reality = make_plant(
        lay_out(flow.graph),
        host_types=[ONE],
        loads={"source": Emissions.every(1.0, [60 + 40 * (second // 20 % 2) for second in range(240)], spread=True)},
        settings=Settings(monitor=1.0, batch_overhead=0.05),
    )
    collector = started(reality)
    for second in range(1, 241):
        reality.advance(float(second))
        if second == 160:
            (outcome,) = reality.switch([SwitchAlternate("parse", "quick")])
            assert outcome.succeeded
        collector.observed(reality.observe())
    collector.ended(Ending("finished", 240.0, ledger=tuple(reality.ledger)))
    recording = collector.recording
    for number in range(len(recording.times)):  # as the meter on Spark, which tells it of operators inside a stage
        told = {"processed_rate": [80.0], "emitted_rate": [80.0], "service_time": [0.004 if number < 160 else 0.001]}
        recording.series.operators.add(number, ["parse"], told)
    found = calibrate(recording, reality.context.layout, [ONE]).settings.services["parse"]
    assert set(found.alternates) == {"exact", "quick"}
    assert found.alternates["quick"][0] == pytest.approx(found.alternates["exact"][0] / 4)
    assert found.alternates["exact"][0] == pytest.approx(0.004, rel=0.2)
    assert found.alternates["exact"][1] == pytest.approx(1.0)


def test_what_starting_hosts_cost_batches_is_found():
    reality = changing(start_delay=0.4)
    found = calibrate(recorded(reality, leases=(60, 120)), reality.context.layout, [ONE])
    assert found.settings.start_delay == pytest.approx(0.4, rel=0.1)
    assert found.host_types[0].start == pytest.approx(ONE.start)
    assert calibrate(recorded(changing(), leases=(60,)), reality.context.layout, [ONE]).settings.start_delay < 0.02


def test_calibration_measures_how_much_longer_concurrent_starts_take():
    reality = changing(host_start_queue=3.0)
    recording = recorded(reality, leases=(100, 101, 102, 180))
    took = [lease.ready_at() - lease.since for lease in recording.hosts[-4:]]
    assert took == pytest.approx([ONE.start, ONE.start + 3, ONE.start + 6, ONE.start])
    found = calibrate(recording, reality.context.layout, [ONE])
    assert found.settings.host_start_queue == pytest.approx(3.0)
    assert found.host_types[0].start == pytest.approx(ONE.start)


def test_what_a_recording_does_not_show_is_named_or_refused():
    reality = plant(hosts=1)
    unknown = calibrate(recorded(reality, 30.0), reality.context.layout, [ONE]).unknown
    assert "how long a one host takes until it starts" in unknown
    assert "by how much batches last longer while hosts start" in unknown
    reality = changing(batch_interval=1.0)
    with pytest.raises(InputError, match="has 4 non-empty micro-batches; calibration needs at least 10"):
        calibrate(recorded(reality, 5.0), reality.context.layout, [ONE])


def test_a_dataflow_of_several_queries_is_refused():
    reality = changing()
    layout = reality.context.layout
    two = replace(layout, segments=layout.segments * 2)
    with pytest.raises(InputError, match="ran as 2 queries"):
        calibrate(recorded(reality), two, [ONE])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The run on Spark."""
    file = tmp_path_factory.mktemp("run") / "recording.jsonl"
    file.write_bytes(gzip.decompress(DATA.read_bytes()))
    return Recording.read(file)


def test_the_load_of_a_real_run_is_found_to_the_record(measured):
    found, layout = calibration_of(measured, "the run")
    load = found.loads["source"]
    assert load.total == sum(batch.records for batch in measured.batches) == 3_085_000
    due = np.cumsum(load.counts)
    for number, batch in enumerate(measured.batches):
        if batch.records:
            so_far = sum(each.records for each in measured.batches[: number + 1])
            moment = batch.end - batch.newest - found.origin
            assert np.interp(moment, load.times + load.span, due) == pytest.approx(so_far, abs=100 + 0.05 * batch.records)
    assert layout == lay_out(layout.graph)


def test_the_constants_of_a_real_run_are_what_its_batches_show(measured):
    found, _ = calibration_of(measured, "the run")
    settings, kind = found.settings, found.host_types[0]
    assert settings.batch_interval == pytest.approx(1.2)
    assert settings.state_partitions == 4
    # Batches of 1,200 records took 0.3 to 0.5 s on two hosts and on one, those of 55,000 about a second on four.
    assert 0.3 < 2 * settings.batch_overhead + settings.batch_work / 2 / (0.5 * settings.delivered) < 0.5
    each = sum(
        settings.service(o).cost * n
        for o, n in (("split_words", 1.0), ("count", settings.services["split_words"].selectivity))
    )
    assert each / settings.delivered == pytest.approx(2e-5, rel=0.2)
    # Three hosts started at once, on two cores.
    assert kind.start == pytest.approx(30.0, abs=1.0)
    assert settings.start_delay > 0.3
    assert found.unknown == ()
    assert found.separable


def test_batches_of_one_size_do_not_separate_fixed_and_record_cost():
    reality = plant(hosts=2, settings=Settings(monitor=1.0, batch_interval=1.0, state_partitions=8))
    reality.network.sources["source"].load = Emissions.every(1.0, [60] * 120, spread=True)
    found = calibrate(recorded(reality, 120.0), reality.context.layout, [ONE])
    assert not found.separable
    assert any("of about the same size" in each for each in found.unknown)
    assert found.settings.batch_work == 0.0
    assert calibrate(recorded(changing()), changing().context.layout, [ONE]).separable


def test_a_real_run_is_simulated_within_chance(measured):
    found, layout = calibration_of(measured, "the run")
    runs = [
        drift_of(measured, replayed(measured, layout, found, seed), ["source"], origin=found.origin) for seed in range(9)
    ]
    middle = {each[0].metric: float(np.median([d.relative for d in each])) for each in zip(*runs, strict=True)}
    assert abs(middle["latency p50"]) < 0.2
    assert abs(middle["host time"]) < 0.02
    assert abs(middle["records"]) < 0.001
    assert abs(middle["batch, mean"]) < 0.2


def test_a_replay_makes_the_switches_of_a_plan_one_composition():
    flow = Dataflow("two")
    both = [Alternate("a", str.lower, cost=0.002), Alternate("b", str.lower, cost=0.001)]
    flow.source(None).map(both, returns="v string", name="one").map(both, returns="v string", name="other").sink(None)

    def two():
        return make_plant(
            lay_out(flow.graph), host_types=[ONE], loads={"source": Emissions.every(1.0, [50] * 60, spread=True)}
        )

    reality = two()
    collector = started(reality)
    plan = (SwitchAlternate("one", "b"), SwitchAlternate("other", "b"))
    for second in range(1, 31):
        reality.advance(float(second))
        collector.observed(reality.observe())
        if second == 10:
            collector.decided(Decision(1, 10.0, "test", outcomes=reality.switch(plan)))
    collector.ended(Ending("finished", 30.0, ledger=tuple(reality.ledger)))
    again = two()
    before = again.composition.version
    replay(collector.recording, again, 0.0)
    assert again.composition.version == before + 1
    assert again.composition.alternates == {"one": "b", "other": "b"}


def test_the_mean_backlog_is_what_batches_say_their_records_had_waited():
    batches = [MicroBatch("source", 10.0, 1.0, 100.0, 3.0, 1.0), MicroBatch("source", 12.0, 0.5, 200.0, 1.5, 0.5)]
    run = SimpleNamespace(batches=batches, hosts=(), end=12.5)
    backlog = {name: value for name, _, value in figures_of(run, ["source"], begins=2.5)}["backlog, mean"]
    # Due from 8 to 10 and taken at 10, then due from 11 to 12 and taken at 12: 100 and 100 record-seconds in 10 s.
    assert backlog == pytest.approx(20.0)
