"""A recorded run beside its simulation: what is said where they agree and where they do not."""

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from elastream.errors import InputError
from elastream.evaluation.drift import JUDGED, replayed
from elastream.recording.recorder import Recording

DATA = Path(__file__).parent.parent / "simulator" / "data" / "word_count.jsonl.gz"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    file = tmp_path_factory.mktemp("run") / "recording.jsonl"
    file.write_bytes(gzip.decompress(DATA.read_bytes()))
    return Recording.read(file)


@pytest.fixture(scope="module")
def found(measured):
    return replayed(measured, {}, runs=2)


def drifting(found, metric, factor):
    """The same, with a simulated figure `factor` times the measured one."""
    way = found.ways[0]
    drifts = tuple(
        tuple(
            replace(d, simulated=d.measured * factor) if d.metric == metric else replace(d, simulated=d.measured)
            for d in run
        )
        for run in way.drifts
    )
    return replace(found, ways=(replace(way, drifts=drifts),))


@pytest.mark.parametrize("metric", JUDGED)
@pytest.mark.parametrize("factor", [0.79, 1.21])
def test_a_judged_figure_beyond_the_bound_is_named(found, metric, factor):
    assert "all within 20%" in drifting(found, metric, 1.19).verdict
    apart = drifting(found, metric, factor)
    assert [check.name for check in apart.checks if check.missed] == [f"drift of {metric}"]
    assert f"{metric} differ by more than 20%" in apart.verdict
    assert apart.evidence in apart.verdict


def test_a_difference_in_backlog_is_placed_in_a_phase_of_the_run(found):
    assert "Most of the difference in backlog arises with hosts" in drifting(found, "backlog, mean", 2.0).verdict
    measured_parts = [measured.backlog for measured, _ in found._phases.values()]
    assert sum(measured_parts) > 0
    assert sum(measured.batches for measured, _ in found._phases.values()) == 92


def test_the_same_seed_gives_the_same_simulation(measured, found):
    again = replayed(measured, {}, runs=2)
    assert [way.drifts for way in again.ways] == [way.drifts for way in found.ways]


def test_a_run_is_replayed_with_what_was_measured_of_another(measured, found):
    other = {"batch seconds": 2.4}
    header = replace(measured.header, environment={**measured.header.environment, **other})
    types = tuple({**each, "cores": 1.0, "name": "other"} for each in header.host_types)
    replaying = replayed(replace(measured, header=replace(header, host_types=types)), {}, runs=1, source=measured)
    settings, (kind,) = replaying.calibration.settings, replaying.calibration.host_types
    assert (settings.batch_interval, kind.cores) == (2.4, 1.0)
    assert settings.batch_overhead == found.calibration.settings.batch_overhead
    assert kind.start == found.calibration.host_types[0].start
    assert "another run" in replaying.outcome().page.blocks[1].text


def test_a_run_of_another_dataflow_is_refused(measured):
    operators = tuple(each | {"max_duration": 9.0} for each in measured.header.operators)
    other = replace(measured, header=replace(measured.header, operators=operators))
    with pytest.raises(InputError, match="is not of the dataflow that the simulator is calibrated with: 'word_count'"):
        replayed(measured, {}, runs=1, source=other)
