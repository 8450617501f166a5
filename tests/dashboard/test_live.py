"""The live view shows what was observed, a dash for what was not, and fits the terminal it has."""

import io
import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from elastream.core.action import LeaseHost, MoveTask, Outcome, Status
from elastream.core.alarm import Alarm
from elastream.core.decision import Decision, Proposal
from elastream.core.frames import Frame
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.task_id import TaskId
from elastream.dashboard.live import (
    MAX_DECISIONS,
    LiveView,
    PlainView,
    Screen,
    StartProgress,
    remember,
    sparkline,
    summary_of,
    view_for,
)
from elastream.recording.observer import Header
from support.example_run import (
    example_context,
    example_ending,
    example_events,
    example_header,
    lacking_decisions,
    play,
    ringed_events,
)

TAKE, GIVE_BACK = "\x1b[?1049h", "\x1b[?1049l"
"""What a terminal is sent to switch to its alternate screen, and back."""
SIZES = [(200, 60), (110, 30), (80, 24), (60, 20), (40, 12), (24, 8), (10, 3)]


def terminal(width: int = 100, height: int = 30) -> Console:
    return Console(record=True, width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None)


def shown(view: Screen, width: int = 100, height: int = 30) -> str:
    """The screen as text, as it would be on a terminal of that size."""
    console = terminal(width, height)
    view._console = console
    console.print(view.screen())
    return console.export_text()


def follow(view: Screen, events: Iterable[Decision | Observation], until: float = math.inf) -> Screen:
    """Show a run up to a time."""
    view.started(example_header())
    for event in takewhile(lambda each: each.time <= until, events):
        view.observed(event) if isinstance(event, Observation) else view.decided(event)
    return view


def watched(until: float = 130.0) -> Screen:
    return follow(Screen(terminal()), example_events(), until)


def first_observation() -> Observation:
    return next(event for event in example_events() if isinstance(event, Observation))


@pytest.fixture(scope="module")
def view() -> Screen:
    return watched()


def test_the_screen_shows_the_figures_that_people_ask_for(view: Screen) -> None:
    screen = shown(view)
    for line in (
        r"word_count simulated   threshold   2:10",
        r"rate in\s+161/s\s+▁",
        r"processed\s+161/s",
        r"backlog\s+0",
        r"hosts\s+5 leased, 5 ready\s+▂",
        r"cost so far\s+0\.2\d\s+fixed at the peak 0\.\d\d( ± [\d.]+)? \(\d+ hosts\)",
        r"\s+best constant 0\.\d\d( ± [\d.]+)? \(\d+ hosts\)",
        r"in time\s+99% of the time",
        r"latency\s+p50 \d+ ms   p99 \d\.\d s   target 2\.0 s",
        r"words\s+161/s\s+\d+ ms\s+\d+ ms\s+50 ms",
        r"2:10  drain h5 \(4 hosts are enough for 161/s\)",
    ):
        assert re.search(line, screen), line


def test_what_is_unknown_is_a_dash_and_never_zero() -> None:
    context = example_context()
    view = LiveView(terminal())
    view.observed(Observation(3.0, context, Frame(context.graph.order)))
    screen = shown(view)
    for line in (
        r"rate in\s+–",
        r"processed\s+–",
        r"backlog\s+–",
        r"cost so far\s+–",
        r"latency\s+p50 –   p99 –",
        r"words\s+–\s+–\s+–\s+50 ms\s+–",
    ):
        assert re.search(line, screen), line


def test_a_latency_that_was_measured_as_zero_is_zero() -> None:
    context = example_context()
    view = LiveView(terminal())
    frame = Frame(("word_count",), {Metric.LATENCY_P50: np.zeros(1)})
    view.observed(Observation(3.0, context, Frame(context.graph.order), frame))
    assert re.search(r"latency\s+p50 0 ms   p99 –", shown(view))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_screen_fits_the_terminal(view: LiveView, width: int, height: int) -> None:
    lines = shown(view, width, height).splitlines()
    assert max(map(len, lines)) <= width
    if height >= 20:
        assert len(lines) <= height


@pytest.mark.parametrize(("width", "height"), [(100, 30), (24, 8)])
def test_the_terminal_is_taken_once_and_given_back_at_the_end(width: int, height: int) -> None:
    written = io.StringIO()
    view = LiveView(Console(width=width, height=height, file=written, force_terminal=True, legacy_windows=False))
    follow(view, islice(example_events(), 20))
    assert written.getvalue().count(TAKE) == 1
    assert GIVE_BACK not in written.getvalue()
    view.ended(example_ending())
    assert written.getvalue().count(TAKE) == written.getvalue().count(GIVE_BACK) == 1


def test_a_view_of_a_run_that_never_started_can_be_closed() -> None:
    console = terminal()
    LiveView(console).close()
    assert console.export_text() == ""


def test_a_view_closed_early_paints_no_more() -> None:
    console = terminal()
    view = LiveView(console)
    view.started(example_header())
    view.close()
    before = console.file.getvalue()  # type: ignore[attr-defined]
    view.observed(first_observation())
    view.ended(example_ending())
    assert console.file.getvalue() == before  # type: ignore[attr-defined]


def lines_of_a_run(**changes: bool) -> list[str]:
    console = Console(record=True, width=20, file=io.StringIO())
    play(PlainView(console), **changes)  # type: ignore[arg-type]
    return console.export_text().splitlines()


def test_without_a_terminal_there_is_a_line_every_ten_seconds() -> None:
    times = [line.split()[0] for line in lines_of_a_run() if " rate in " in line]
    assert times[:4] == ["0:01", "0:11", "0:21", "0:31"]
    assert len(times) == 18


def test_without_a_terminal_every_acting_decision_has_one_line() -> None:
    lines = lines_of_a_run()
    acting = {e.round: e for e in example_events() if isinstance(e, Decision) and e.outcomes}
    for decision in acting.values():
        assert [line for line in lines if decision.headline() in line] != []
    assert sum("  lease h2" in line for line in lines) == 1


def test_without_a_terminal_the_same_refusal_is_reported_once() -> None:
    assert sum("lease h7 (small): refused" in line for line in lines_of_a_run()) == 1


def test_without_a_terminal_an_unknown_latency_is_a_dash() -> None:
    lines = lines_of_a_run()
    assert "p99 –  in time –" in lines[1]
    assert lines[0] == "word_count (simulated): started with policy threshold"
    assert lines[-1].split() == ["3:01", "finished"]


def test_the_view_is_a_screen_on_a_terminal_and_lines_elsewhere() -> None:
    assert isinstance(view_for(terminal()), LiveView)
    assert isinstance(view_for(Console(file=io.StringIO())), PlainView)


def test_many_moves_of_a_round_are_reported_together() -> None:
    moves = tuple(Outcome(MoveTask(TaskId("count", n), f"h{n % 2}", why="even load"), Status.DONE) for n in range(9))
    refused = (Proposal(LeaseHost("h9", "small"), "i", "too many"),)
    assert summary_of(Decision(1, 1.0, "p", outcomes=moves)) == "move 9 tasks to h0, h1 (even load)"
    lease = Outcome(LeaseHost("h3", "small", why="load"), Status.ACCEPTED)
    both = Decision(1, 1.0, "p", outcomes=(*moves, lease), proposals=refused)
    noted = Decision(1, 1.0, "p", outcomes=(lease,), note="all full")
    assert summary_of(noted) == "lease h3 (small) (load); all full"
    assert summary_of(both) == (
        "move 9 tasks to h0, h1 (even load); lease h3 (small) (load); lease h9 (small): refused, too many"
    )


def test_rounds_with_only_a_note_take_one_line_and_keep_decisions() -> None:
    kept: deque[Decision] = deque(maxlen=MAX_DECISIONS)
    remember(kept, Decision(1, 1.0, "p", outcomes=(Outcome(LeaseHost("h2", "small"), Status.DONE),)))
    for number in range(2, 20):
        remember(kept, Decision(number, float(number), "p", note=f"{number} rounds were skipped"))
    assert [decision.round for decision in kept] == [1, 19]


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        (
            {1: "22.3k/s are too many for h1", 2: "980/s are too many for h1", 3: "5/s are too many for h2"},
            ["0:01 22.3k/s are too many for h1", "0:03 5/s are too many for h2"],
        ),
        (
            {
                1: "5 are too many",
                3: "4 are too few",
                5: "7 are too many",
                7: "7 are too many; 4 are too few",
                80: "4 are too few",
            },
            ["0:01 5 are too many", "0:03 4 are too few", "1:20 4 are too few"],
        ),
    ],
    ids=["of other figures", "again within a minute"],
)
def test_a_note_that_says_the_same_is_one_line(notes: dict[int, str], said: list[str]) -> None:
    plain = io.StringIO()
    lines = PlainView(Console(file=plain, width=100))
    for time, note in notes.items():
        lines.decided(Decision(time, float(time), "p", note=note))
    assert [" ".join(line.split()) for line in plain.getvalue().splitlines()] == said


def test_a_lacking_metric_is_shown_from_the_third_round_on(view: Screen) -> None:
    plain = io.StringIO()
    lines = PlainView(Console(file=plain, width=100))
    for seen in (view, lines):
        for decision in (replace(each, round=each.round + 1000) for each in lacking_decisions()):
            seen.decided(decision)
    assert "cannot size: processed rate of 'lines' unknown for 60 s" in shown(view)
    assert [line.strip() for line in plain.getvalue().splitlines()] == [
        "0:45  cannot size: processed rate of 'lines' unknown for 30 s"
    ]


def test_a_decision_repeated_with_its_actual_takes_its_own_place() -> None:
    kept: deque[Decision] = deque(maxlen=MAX_DECISIONS)
    outcome = Outcome(LeaseHost("h2", "small"), Status.DONE)
    first = Decision(1, 1.0, "p", outcomes=(outcome,))
    second = replace(first, round=2, outcomes=(Outcome(LeaseHost("h3", "small"), Status.DONE),))
    again = first.with_actual({"x": 1.0})
    quiet = replace(first, round=3, outcomes=())
    for decision in (first, again, second, again, quiet):
        remember(kept, decision)
    assert [decision.round for decision in kept] == [1, 2]
    assert kept[0].actual == {"x": 1.0}


@given(st.lists(st.floats(0, 1e9) | st.just(math.nan), max_size=400), st.integers(0, 80))
def test_a_sparkline_is_never_wider_than_asked_and_keeps_the_peak(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) <= width
    known = [value for value in values if not math.isnan(value)]
    if width and known and max(known) > 0:
        assert "█" in line


def test_a_sparkline_leaves_unknown_values_blank() -> None:
    assert sparkline([1.0, math.nan, 8.0], 10) == "▁ █"
    assert sparkline([math.nan], 10) == ""
    assert sparkline([0.0, 0.0], 10) == "▁▁"


def test_a_run_with_no_name_or_observation_yet_has_a_screen() -> None:
    view = LiveView(terminal())
    assert "waiting for the first observation" in shown(view)
    view.started(Header("f", "p", plant="spark"))
    view.close()
    assert "simulated" not in shown(view)


STANDING = tuple(Alarm(f"thread {n}", "thread died: KeyError: 'x'", 60.0 + n) for n in range(5))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_standing_alarms_are_shown_first_and_the_screen_still_fits(width: int, height: int) -> None:
    view = watched()
    assert view._observation is not None
    view.observed(replace(view._observation, alarms=STANDING))
    screen = shown(view, width, height)
    assert all(len(line) <= width for line in screen.splitlines())
    if width >= 60:
        assert "ALARM since 1:00  thread 0: thread died: KeyError: 'x'" in screen
        assert "and 3 more alarms" in screen


def test_without_a_terminal_an_alarm_is_one_line_and_its_end_another() -> None:
    console = terminal()
    view = PlainView(console)
    first = first_observation()
    for time, alarms in enumerate([(), STANDING[:1], STANDING[:1], ()]):
        view.observed(replace(first, time=float(time), alarms=alarms))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[1:] == ["0:01 ALARM thread 0: thread died: KeyError: 'x'", "0:03 alarm cleared thread 0"]


def test_a_runs_length_counts_from_its_first_observation():
    screen = Screen(terminal(), length=50.0)
    screen.started(replace(example_header(), plant="spark"))
    screen.observed(replace(first_observation(), time=30.0))
    assert "0:30 of 1:20" in shown(screen)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_figures_and_what_stands_beside_them_are_whole_on_usual_terminals(width: int) -> None:
    screen = watched()
    screen._figures_so_far._in_time.judged, screen._figures_so_far._in_time.within = 100.0, 63.0
    text = shown(screen, width)
    assert re.search(r"in time\s+63% of the records\s+99% of the time", text)
    assert "cost so far" in text
    assert re.search(r"fixed at the peak \S+( ± \S+)? \(\d+ hosts\)", text)


def test_rings_are_lines_of_who_owns_how_much_and_who_keeps_copies() -> None:
    seen = [event for event in ringed_events() if isinstance(event, Observation) and event.time <= 90.0]
    view, last = follow(Screen(terminal()), seen), seen[-1]
    screen = shown(view)
    first, second = last.rings["count"].nodes[:2]
    share = len(last.rings["count"].partitions(first, 8)) / 8
    assert f"ring count  {first} {share:.0%} (on {second})" in screen.replace("\u202f", "")
    assert "copies of 8 of 8 state partitions, 0 checkpoints behind at most" in screen
    assert "ring count" not in shown(watched(90.0))


def test_a_start_is_a_line_when_it_changes_and_every_ten_seconds():
    console, now = Console(file=io.StringIO(), record=True, width=80), [0.0]
    start = StartProgress(console, lambda: now[0])
    for second in range(13):
        now[0] = float(second)
        start.show("words", "starting Spark" if second < 12 else "host h1 is starting")
    start.close()
    assert console.export_text().splitlines() == [
        "words: starting Spark",
        "words: starting Spark (10 s)",
        "words: host h1 is starting",
    ]


def test_a_start_leaves_no_line_on_a_terminal():
    console = terminal(60)
    start = StartProgress(console)
    start.show("words", "starting Spark")
    start.close()
    start.close()
    assert "words: starting Spark" in console.file.getvalue()
    assert console.file.getvalue().endswith("\x1b[2K")
