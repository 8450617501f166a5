"""A run's folder, or its recording, as a source of advice."""

from dataclasses import replace

import pytest

from elastream.advice.advice import advise
from elastream.advice.sources import read_source
from elastream.core.alarm import Alarm
from elastream.core.observation import MicroBatch, Observation
from elastream.errors import InputError
from elastream.recording.recorder import Recorder
from support.example_run import example_ending, example_events, example_header
from support.page_runs import ended_run, new_run

LATE = "main is late because of its trigger: batches start every 9 s"


def run_of(root, *, note="", alarm=None, ending=None):
    """Return the folder of a run with a batch of varied size every second, and decisions with a note."""
    directory = new_run(root)
    recorder = Recorder(directory.recording)
    recorder.started(example_header())
    for event in example_events():
        if isinstance(event, Observation):
            rows = 20.0 + 10 * (round(event.time) % 5)
            batch = MicroBatch("main", event.time - 0.6, 0.2 + rows / 200, rows, 1.4, 0.4, round(event.time))
            recorder.observed(replace(event, batches=(batch,), alarms=() if alarm is None else (alarm,)))
        else:
            recorder.decided(replace(event, note=note))
    recorder.ended(ending or example_ending())
    return directory


def test_recording_gives_batches_hosts_and_the_target_of_the_run(tmp_path):
    directory = run_of(tmp_path / "run")
    for source in (directory.root, directory.recording):
        advice = advise(str(source))
        (query,) = advice.application.queries.values()
        assert (query.name, len(query.batches), advice.target, advice.assumed) == ("main", 180, 2.0, False)
    batch = query.batches[5]
    assert batch.last - batch.first == pytest.approx(1.0)
    assert advice.application.executors.keys() >= {"h1", "h2"}
    assert advice.sizing.fixed is not None
    assert any("a recording has none of them" in each for each in advice.unknown)
    assert advice.findings == ()


def test_what_the_run_said_of_its_lateness_is_a_finding(tmp_path):
    advice = advise(str(run_of(tmp_path / "run", note=f"{LATE}; other").root))
    assert any(LATE in each.evidence for each in advice.findings)


def test_standing_alarm_and_failure_are_findings(tmp_path):
    ending = replace(example_ending(), status="failed", reason="disk full")
    advice = advise(str(run_of(tmp_path / "run", alarm=Alarm("cloud", "no quota", 1.0), ending=ending).root))
    assert {each.kind for each in advice.findings} == {"failure", "remark"}


def test_recording_without_batches_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no micro-batches"):
        read_source(str(ended_run(tmp_path / "run").root))


def test_damaged_recording_is_one_sentence(tmp_path):
    directory = run_of(tmp_path / "run")
    directory.recording.write_text(directory.recording.read_text().replace('"observation"', '"nonsense"', 1))
    with pytest.raises(InputError, match="line 2: not an entry of a recording"):
        read_source(str(directory.root))
