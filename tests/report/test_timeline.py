"""The figure of a report holds what the recording holds, and every decision that did or wanted something."""

import math
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import LeaseHost, MoveTask, Outcome, ReleaseHost, Status, SwitchAlternate
from elastream.core.decision import Decision, Proposal
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.task_id import TaskId
from elastream.recording.observer import Ending, Header
from elastream.recording.recorder import Collector, Recording
from elastream.report.drawing import ORIGIN
from elastream.report.timeline import timeline
from support.example_run import example_events, example_header, example_recording
from support.property_examples import examples


@pytest.fixture(scope="module")
def recording() -> Recording:
    return example_recording()


@pytest.fixture(scope="module")
def figure(recording: Recording) -> dict[str, Any]:
    return timeline(recording)


def curve(figure: dict[str, Any], name: str) -> list[float]:
    (found,) = [trace for trace in figure["data"] if trace["name"] == name]
    return [math.nan if value is None else value for value in found["y"]]


def test_every_curve_is_the_recorded_series(recording: Recording, figure: dict[str, Any]) -> None:
    counts = recording.host_count()
    expected = {
        "offered": recording.application(Metric.ARRIVAL_RATE),
        "processed": recording.application(Metric.THROUGHPUT),
        "waiting": recording.application(Metric.BACKLOG),
        "p50": recording.application(Metric.LATENCY_P50),
        "p99": recording.application(Metric.LATENCY_P99),
        "lines": recording.parallelism("lines"),
        "count": recording.parallelism("count"),
        "ready": counts[HostState.RUNNING],
        "leased": sum(counts.values()),
        "paid": recording.cost(),
    }
    for name, values in expected.items():
        assert curve(figure, name) == pytest.approx(values.tolist(), rel=1e-5, nan_ok=True), name


def test_all_curves_stand_on_one_time_axis(recording: Recording, figure: dict[str, Any]) -> None:
    lines = [trace for trace in figure["data"] if trace["mode"] == "lines"]
    assert {trace["xaxis"] for trace in lines} == {"x"}
    for trace in lines:
        assert [(x - ORIGIN) / 1000 for x in trace["x"]] == recording.times.tolist()


def test_what_was_never_measured_is_null_and_not_zero(figure: dict[str, Any]) -> None:
    (p99,) = [trace for trace in figure["data"] if trace["name"] == "p99"]
    assert p99["y"][:5] == [None] * 5
    assert 0 not in p99["y"]


def test_the_target_latency_is_drawn_where_there_is_one() -> None:
    dashed = [s["y0"] for s in timeline(example_recording())["layout"]["shapes"] if s["line"]["dash"] == "dash"]
    assert dashed == [2.0]
    without = timeline(example_recording(target_latency=None))["layout"]["shapes"]
    assert [s for s in without if s["line"]["dash"] == "dash"] == []


def test_every_decision_that_acted_or_was_refused_is_marked_at_its_time(
    recording: Recording, figure: dict[str, Any]
) -> None:
    marked = {
        (round_, (x - ORIGIN) / 1000)
        for trace in figure["data"]
        if trace["mode"] == "markers"
        for round_, x in zip(trace["customdata"], trace["x"], strict=True)
    }
    assert marked == {(d.round, d.time) for d in recording.decisions if d.proposals or d.outcomes}


def test_hovering_a_mark_says_what_was_done_and_why() -> None:
    lease = Outcome(LeaseHost("h2", "small", why="load > 70% & rising"), Status.ACCEPTED)
    move = Outcome(MoveTask(TaskId("count", 3), "h2", why="h2 is empty"), Status.DONE)
    switch = Outcome(SwitchAlternate("detect", "coarse", why="it is cheaper"), Status.DONE)
    failed = Outcome(ReleaseHost("h1", why="idle"), Status.FAILED, "it does not answer")
    refused = Proposal(LeaseHost("h3", "small"), "infrastructure", "the most hosts allowed")
    decision = Decision(7, 61.0, "p", {"utilisation": 0.75, "backlog": math.nan}, (refused,), (lease, move, switch, failed))
    marks = timeline(Recording(Header("f", "p"), decisions=(decision,)))["data"]
    texts = {trace["name"]: trace["text"] for trace in marks}
    head, seen = "<b>round 7 at 1:01</b>", "<i>seen: utilisation 75%, backlog –</i>"
    assert texts["hosts"] == [f"{head}<br>lease h2 (small) - load &gt; 70% &amp; rising<br>{seen}"]
    assert texts["tasks"] == [f"{head}<br>move count#3 to h2 - h2 is empty<br>{seen}"]
    assert texts["dataflow"] == [f"{head}<br>run detect as coarse - it is cheaper<br>{seen}"]
    not_done = "release h1 - idle: failed, it does not answer<br>lease h3 (small): refused, the most hosts allowed"
    assert texts["not done"] == [f"{head}<br>{not_done}<br>{seen}"]


@settings(max_examples=examples(30))
@given(kept=st.integers(0, 60))
def test_a_run_that_died_at_any_moment_can_be_drawn(kept: int) -> None:
    collector = Collector()
    collector.started(example_header())
    seen = 0
    for event in islice(example_events(), kept):
        collector.observed(event) if isinstance(event, Observation) else collector.decided(event)
        seen += isinstance(event, Observation)
    drawn = [trace for trace in timeline(collector.recording)["data"] if trace["mode"] == "lines"]
    assert all(len(trace["y"]) == seen for trace in drawn)
    assert bool(drawn) == (seen > 0)


def test_a_lost_host_is_marked_when_it_was_lost() -> None:
    lease = Lease("h<1>", HostType("small", cores=1.0), 0.0).to(HostState.STARTING, 1.0).to(HostState.RUNNING, 9.0)
    ending = Ending("finished", 90.0, "", (lease.to(HostState.LOST, 61.0), Lease("h2", lease.type, 2.0)), {})
    figure = timeline(Recording(Header("f", "p"), ending=ending))
    (marks,) = figure["data"]
    assert (marks["name"], marks["text"], marks["x"]) == (
        "hosts", ["<b>h&lt;1&gt; was lost at 1:01</b>"], [ORIGIN + 61_000],
    )  # fmt: skip
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [ORIGIN + 61_000]
