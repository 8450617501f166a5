"""A long recording forgets details and no figures: whatever its parts, and whatever is left of them."""

import gzip
import io
import json
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from elastream.core.metrics import Metric
from elastream.dashboard.summary import print_summary
from elastream.errors import InputError
from elastream.recording.parts import Keep, files_of, last_time
from elastream.recording.recorder import Recorder, Recording
from elastream.report.page import render
from elastream.report.summary import Summary, summarise
from elastream.report.tally import Totals, retention_of, tally_of
from support.example_run import play
from support.property_examples import examples

WHOLE = ("latency_p50", "latency_p99")  # told apart by steps of 2 % once details are forgotten


def recorded(folder: Path, *, part: int, seconds: float = 1e9, end: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    play(Recorder(folder, keep=Keep(seconds, retention_of(seconds).summed, part)), end=end)
    return folder


LEDGER = {"host_seconds", "cost", "static_cost", "leases", "releases", "lost"}
"""What comes from the ledger, which a run that died does not have."""


def alike(one: Summary, other: Summary) -> None:
    for each in fields(Summary):
        if one.status == "died" and each.name in LEDGER:
            continue
        mine, theirs = getattr(one, each.name), getattr(other, each.name)
        if isinstance(mine, float):
            assert mine == pytest.approx(theirs, rel=0.03 if each.name in WHOLE else 1e-9, nan_ok=True), each.name
        else:
            assert mine == theirs, each.name


@settings(max_examples=examples(12))
@given(part=st.integers(20_000, 400_000), left=st.integers(1, 6), end=st.booleans())
def test_figures_are_those_of_the_whole_run_however_much_of_it_is_left(tmp_path_factory, part, left, end):
    folder = recorded(tmp_path_factory.mktemp("run"), part=part, end=end)
    whole = recorded(tmp_path_factory.mktemp("whole"), part=10**9, end=end)
    alike(summarise(Recording.read(folder)), summarise(Recording.read(whole)))
    for gone in files_of(folder / "recording.jsonl")[:-left]:
        gone.unlink()
    alike(summarise(Recording.read(folder)), summarise(Recording.read(whole)))


def test_a_part_spans_no_more_time_than_is_kept_however_little_it_has(tmp_path):
    folder = recorded(tmp_path, part=10**9, seconds=20.0)
    found = Recording.read(folder)
    assert 20 <= found.end - found.forgotten <= 41
    alike(summarise(found), summarise(Recording.read(recorded(tmp_path / "whole", part=10**9))))


def test_details_stay_for_their_retention_and_reports_say_so(tmp_path):
    everything = recorded(tmp_path / "all", part=30_000)
    folder = recorded(tmp_path / "some", part=30_000, seconds=40.0)
    found, whole = Recording.read(folder), Recording.read(everything)
    assert whole.forgotten == 0
    assert whole.times.tolist() == sorted(set(whole.times.tolist()))  # nothing twice, nothing lost
    assert len(whole.decisions) == len({each.round for each in whole.decisions})
    assert 30 < whole.end - found.forgotten < 60
    assert found.times.tolist() == [time for time in whole.times.tolist() if time > found.forgotten]
    last = len(found.times)
    assert found.application(Metric.THROUGHPUT).tolist() == whole.application(Metric.THROUGHPUT).tolist()[-last:]
    assert "of the time before only the figures are kept" in render(found)
    assert "of the time before" not in render(whole)
    console = Console(record=True, width=120, file=io.StringIO())
    print_summary(found, console)
    assert "of the time before only the figures are kept" in console.export_text()


def test_earlier_parts_are_compressed_and_a_header_begins_each(tmp_path):
    *parts, last = files_of(recorded(tmp_path, part=30_000) / "recording.jsonl")
    assert parts
    assert all(each.suffix == ".gz" for each in parts)
    for each in parts:
        assert json.loads(gzip.decompress(each.read_bytes()).splitlines()[0])["kind"] == "start"
    assert last_time(last) == Recording.read(tmp_path).end


def test_resumed_run_goes_on_after_its_parts_and_a_new_one_without(tmp_path):
    recorded(tmp_path, part=30_000, end=False)
    before = Recording.outline(tmp_path).header.before
    again = Recorder(tmp_path, resumed=True, keep=Keep(1e9, retention_of(1e9).summed, 10**9))
    again.started(Recording.outline(tmp_path).header)
    assert Recording.outline(tmp_path).header.before == before
    assert Recording.read(tmp_path).forgotten == 0
    Recorder(tmp_path)
    assert files_of(tmp_path / "recording.jsonl") == [tmp_path / "recording.jsonl"]


def test_a_part_that_cannot_be_summed_up_is_not_forgotten(tmp_path, caplog):
    def fails(recording):
        raise InputError("as meant")

    play(Recorder(tmp_path, keep=Keep(1.0, fails, 30_000)))
    assert files_of(tmp_path / "recording.jsonl") == [tmp_path / "recording.jsonl"]
    assert "goes on in the same file" in caplog.text


def test_a_tally_is_of_bounded_size_and_survives_its_file(tmp_path):
    recording = Recording.read(recorded(tmp_path, part=10**9))
    written = json.loads(json.dumps(tally_of(recording).to_json()))
    again = Totals.of_json(written, recording.header.target_latency)
    assert again.to_json() == written
    assert len(written["latencies"][0]) < len(recording.times)
