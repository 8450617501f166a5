import json
from dataclasses import replace

import pytest

from elastream.core.observation import MicroBatch, Observation
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.formats import FORMAT
from elastream.recording.guard_log import GuardLog
from elastream.recording.lines import Lines
from elastream.recording.manifest import MAX_RESUMPTIONS, Manifest, read_manifest, run_id, run_lock, write_manifest
from elastream.recording.observer import Ending
from elastream.recording.parts import last_time, whole_length
from elastream.recording.recorder import Recorder, Recording
from elastream.report.summary import summarise
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.worker.composition import read_request
from support.example_run import example_events, example_header, play


def test_what_a_run_is_reads_as_it_was_written(tmp_path):
    directory = RunDirectory(tmp_path)
    assert run_id(directory) == ""
    manifest = Manifest("words", 1e9, identity={"the dataflow": "words"}, program={"file": "words.py"}).after({"time": 4.0})
    write_manifest(directory, manifest)
    assert read_manifest(directory) == manifest
    assert run_id(directory) == manifest.id
    assert Manifest("words", 1e9).id != manifest.id


def test_one_process_holds_a_folder_and_the_next_may_as_soon_as_it_is_gone(tmp_path):
    directory = RunDirectory(tmp_path)
    held = pytest.raises(EnvironmentProblem, match=r"is held by another process \(\d+\)")
    with run_lock(directory), held, run_lock(directory):
        pass
    with run_lock(directory):
        pass


@pytest.mark.parametrize("content", ["", "[]", '{"flow": "words"}', '{"flow": "w", "started": 1, "more": 2}', "\x00"])
def test_a_damaged_manifest_is_named(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run.json does not describe a run"):
        read_manifest(RunDirectory(tmp_path))


def test_newer_formats_are_refused_and_files_without_one_are_read(tmp_path):
    newer, refused = FORMAT + 1, rf"has format {FORMAT + 1}: a newer Elastream wrote it"
    directory = RunDirectory(tmp_path)
    (tmp_path / "control").mkdir()
    directory.manifest.write_text(json.dumps({"format": newer}))
    directory.journal.write_text(json.dumps({"format": newer}) + "\n")
    directory.allocation.write_text(json.dumps({"format": newer}) + "\n")
    directory.composition_request.write_text(json.dumps({"format": newer}))
    directory.recording.write_text(json.dumps({"kind": "start", "format": newer, "flow": "f", "policy": "p"}) + "\n")
    directory.guards.write_text(json.dumps({"format": newer}) + "\n")
    for read in (
        lambda: read_manifest(directory),
        Lines(directory.journal, "the journal").read,
        lambda: AllocationStore(directory.allocation),
        lambda: read_request(directory.composition_request),
        lambda: Recording.read(directory.recording),
    ):
        with pytest.raises(InputError, match=refused):
            read()
    (said,) = GuardLog(directory.guards).newer()
    assert "a newer Elastream wrote it" in str(said)
    directory.journal.write_text('{"number": 1}\n{"number": 2}\n')
    assert Lines(directory.journal, "the journal").read() == [{"number": 1}, {"number": 2}]


def test_the_first_line_of_a_log_carries_the_format(tmp_path):
    lines = Lines(tmp_path / "log", "the log")
    lines.append({"number": 1})
    lines.append({"number": 2})
    lines.close()
    written = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert written == [{"format": FORMAT, "number": 1}, {"number": 2}]
    assert Lines(tmp_path / "log", "the log").read() == [{"number": 1}, {"number": 2}]


def test_last_time_of_a_recording_is_read_however_long_its_lines(tmp_path):
    path = tmp_path / "recording.jsonl"
    assert last_time(path) == 0.0
    path.write_text('{"kind":"start"}\n')
    assert last_time(path) == 0.0
    long = "x" * 300_000
    path.write_text(f'{{"time": 4.5, "note": "{long}"}}\n' + '{"kind":"start"}\n' * 20 + '{"time": 9')
    assert last_time(path) == 4.5
    assert whole_length(path) == path.stat().st_size - len('{"time": 9')


def test_records_of_a_resumed_run_are_those_of_all_its_drivers(tmp_path):
    """The last one knows what earlier ones read only of sources whose offsets count records."""
    batches = iter(range(1000))

    def events():
        for event in example_events():
            if isinstance(event, Observation):
                event = replace(
                    event, batches=(MicroBatch("lines", event.time - 1, 0.5, 10.0, number=float(next(batches))),)
                )
            yield event

    def drive(recorder, header, ending=None):
        recorder.started(header)
        for event in events():
            (recorder.observed if isinstance(event, Observation) else recorder.decided)(event)
        if ending is not None:
            recorder.ended(ending)

    drive(Recorder(tmp_path), example_header())
    first = summarise(Recording.read(tmp_path))  # it was killed, and nothing tells its records but its batches
    assert first.records == 10 * len(Recording.read(tmp_path).times)
    later = replace(example_header(), resumed=({"time": 200.0, "seen": 180.0, "adopted": [], "gone": []},))
    drive(Recorder(tmp_path, resumed=True), later, Ending("finished", 400.0, facts={"records": 40}))
    assert summarise(Recording.read(tmp_path)).records == 2 * first.records


def test_resumed_recording_keeps_its_content_and_counts_rounds_on(tmp_path):
    play(Recorder(tmp_path / "recording.jsonl"))
    first = Recording.read(tmp_path)
    with (tmp_path / "recording.jsonl").open("a") as file:
        file.write('{"kind":"observ')  # torn
    again = Recorder(tmp_path / "recording.jsonl", resumed=True)
    again.started(replace(example_header(), resumed=({"time": 200.0, "seen": 180.0, "adopted": [], "gone": ["h1"]},)))
    for event in example_events():
        (again.observed if isinstance(event, Observation) else again.decided)(event)  # type: ignore[operator]
    both = Recording.read(tmp_path)
    assert both.ending is None
    assert first.ending is not None
    assert len(both.times) == 2 * len(first.times)
    assert [each.round for each in both.decisions] == list(range(1, 2 * len(first.decisions) + 1))
    assert replace(both.header, resumed=()) == first.header


def test_run_that_resumes_all_day_keeps_its_newest_resumptions_only(tmp_path):
    manifest = Manifest("words", 1e9)
    for number in range(2 * MAX_RESUMPTIONS):
        manifest = manifest.after({"time": float(number), "seen": 0.0})
    assert [note["time"] for note in manifest.resumed] == [float(MAX_RESUMPTIONS + n) for n in range(MAX_RESUMPTIONS)]
    play(Recorder(tmp_path / "recording.jsonl"))
    for again in (manifest, manifest.after({"time": 1e6, "seen": 0.0})):  # as many notes as before
        recorder = Recorder(tmp_path / "recording.jsonl", resumed=True)
        recorder.started(replace(example_header(), resumed=again.resumed))
        assert Recording.read(tmp_path).ending is None
        recorder.ended(Ending("stopped", 400.0))
