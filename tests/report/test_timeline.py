"""The figure of a report holds what the recording holds, and every decision that did or wanted something."""

import math
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import LeaseHost, MoveTask, Outcome, ReleaseHost, Status, SwitchAlternate
from elastream.core.decision import Decision, Proposal
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.task_id import TaskId
from elastream.recording.observer import Ending, Header
from elastream.recording.recorder import Collector, Recording
from elastream.report.plots import Plot, plot_html
from elastream.report.timeline import Timeline, timeline
from support.example_run import example_events, example_header, example_recording
from support.property_examples import examples


@pytest.fixture(scope="module")
def recording() -> Recording:
    return example_recording()


@pytest.fixture(scope="module")
def figure(recording: Recording) -> Timeline:
    return timeline(recording)


def curve(figure: Timeline, name: str) -> list[float]:
    (values,) = [line.y for plot in figure.plots for line in plot.lines if line.name == name]
    return list(values)


def latency(recording: Recording) -> Plot:
    (plot,) = [plot for plot in timeline(recording).plots if plot.caption == "Latency, s"]
    return plot


def test_every_curve_is_the_recorded_series(recording: Recording, figure: Timeline) -> None:
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
        assert curve(figure, name) == pytest.approx(values.tolist(), nan_ok=True), name


def test_planned_load_stands_at_the_times_it_was_planned_for(recording: Recording) -> None:
    first, *others = recording.decisions
    told = replace(first, predicted={"expected_arrival_rate": 700.0, "expected_in": 5.0})
    late = replace(first, time=recording.times[-1], predicted={"expected_arrival_rate": 1.0, "expected_in": 5.0})
    shown = timeline(replace(recording, decisions=(told, *others, late)))
    (line,) = [line for plot in shown.plots for line in plot.lines if line.name == "planned for"]
    assert (list(line.x), list(line.y)) == ([first.time + 5.0], [700.0])


def test_all_curves_stand_on_one_time_axis(recording: Recording, figure: Timeline) -> None:
    assert {plot.span for plot in figure.plots} == {(0.0, figure.end)}
    for plot in figure.plots:
        for line in plot.lines:
            assert list(line.x) == recording.times.tolist()


def test_what_was_never_measured_is_unknown_and_not_zero(figure: Timeline) -> None:
    p99 = curve(figure, "p99")
    assert all(map(math.isnan, p99[:5]))
    assert 0 not in p99


def with_memory(observation: Observation) -> Observation:
    hosts = observation.hosts
    columns = {metric: hosts.column(metric) for metric in hosts.metrics}
    memory = {Metric.HEAP: [350.0] * len(hosts), Metric.HEAP_LIMIT: [700.0] * len(hosts)}
    memory[Metric.PYTHON_MEMORY] = [40.0 if observation.time > 10 else math.nan] * len(hosts)
    return replace(observation, hosts=Frame(hosts.ids, {**columns, **memory}))


def test_fullest_heap_and_memory_outside_heaps_are_drawn() -> None:
    collector, hosts = Collector(), []
    collector.started(example_header())
    for event in example_events():
        if isinstance(event, Observation):
            collector.observed(with_memory(event))
            hosts.append(len(event.hosts) if event.time > 10 else math.nan)
    figure = timeline(collector.recording)
    values = curve(figure, "heap")
    assert {value for value in values if not math.isnan(value)} == {0.5}
    assert curve(figure, "Python workers") == pytest.approx([40.0 * count for count in hosts], nan_ok=True)
    assert "copies of state" not in [line.name for plot in figure.plots for line in plot.lines]


def test_the_target_latency_is_drawn_where_there_is_one() -> None:
    plot, without = latency(example_recording()), latency(example_recording(target_latency=None))
    assert (plot.level, without.level) == (("target 2 s", 2.0), None)
    assert ["level" in plot_html(each) for each in (plot, without)] == [True, False]


def test_every_decision_that_acted_or_was_refused_is_marked_at_its_time(recording: Recording, figure: Timeline) -> None:
    marked = {(mark.round, mark.time) for lane in figure.lanes for mark in lane.marks}
    assert marked == {(d.round, d.time) for d in recording.decisions if d.proposals or d.outcomes}


def test_hovering_a_mark_says_what_was_done_and_why() -> None:
    lease = Outcome(LeaseHost("h2", "small", why="load > 70% & rising"), Status.ACCEPTED)
    move = Outcome(MoveTask(TaskId("count", 3), "h2", why="h2 is empty"), Status.DONE)
    switch = Outcome(SwitchAlternate("detect", "coarse", why="it is cheaper"), Status.DONE)
    failed = Outcome(ReleaseHost("h1", why="idle"), Status.FAILED, "it does not answer")
    refused = Proposal(LeaseHost("h3", "small"), "infrastructure", "the most hosts allowed")
    decision = Decision(7, 61.0, "p", {"utilisation": 0.75, "backlog": math.nan}, (refused,), (lease, move, switch, failed))
    lanes = timeline(Recording(Header("f", "p"), decisions=(decision,))).lanes
    texts = {lane.name: [mark.text for mark in lane.marks] for lane in lanes}
    head, seen = "round 7 at 1:01", "seen: utilisation 75%, backlog –"
    assert texts["hosts"] == [f"{head}\nlease h2 (small) - load > 70% & rising\n{seen}"]
    assert texts["tasks"] == [f"{head}\nmove count#3 to h2 - h2 is empty\n{seen}"]
    assert texts["dataflow"] == [f"{head}\nrun detect as coarse - it is cheaper\n{seen}"]
    not_done = "release h1 - idle: failed, it does not answer\nlease h3 (small): refused, the most hosts allowed"
    assert texts["not done"] == [f"{head}\n{not_done}\n{seen}"]


@settings(max_examples=examples(30))
@given(kept=st.integers(0, 60))
def test_a_run_that_died_at_any_moment_can_be_drawn(kept: int) -> None:
    collector = Collector()
    collector.started(example_header())
    seen = 0
    for event in islice(example_events(), kept):
        collector.observed(event) if isinstance(event, Observation) else collector.decided(event)
        seen += isinstance(event, Observation)
    plots = timeline(collector.recording).plots
    assert all(len(line.y) == seen for plot in plots for line in plot.lines)
    assert bool(plots) == (seen > 0)
    assert "nan" not in "".join(map(plot_html, plots))


def test_a_lost_host_is_marked_when_it_was_lost() -> None:
    lease = Lease("h<1>", HostType("small", cores=1.0), 0.0).to(HostState.STARTING, 1.0).to(HostState.RUNNING, 9.0)
    ending = Ending("finished", 90.0, "", (lease.to(HostState.LOST, 61.0), Lease("h2", lease.type, 2.0)), {})
    figure = timeline(Recording(Header("f", "p"), ending=ending))
    ((lost,),) = [lane.marks for lane in figure.lanes]
    assert (lost.lane, lost.text, lost.time) == ("hosts", "h<1> was lost at 1:01", 61.0)
