"""The summary at the end of a run: its figures on one screen, the report's path last."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from elastream.dashboard.live import PlainView, Screen
from elastream.dashboard.summary import print_summary
from elastream.recording.observer import Ending
from elastream.recording.recorder import Collector, Recording
from support.example_run import example_header, example_recording


def printed(recording: Recording, report: Path | None = None, width: int = 80) -> list[str]:
    console = Console(record=True, width=width, file=io.StringIO())
    print_summary(recording, console, report)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_summary_says_how_it_ended_and_what_it_cost() -> None:
    lines = printed(example_recording())
    assert "word_count (simulated) finished after 3.0 min" in lines
    text = "\n".join(lines)
    assert "39,810 in 211 micro-batches" in text
    assert "6 at most, 6 leased, 6 released" in text
    assert "counts checked  equal to a batch count" in text


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_path_of_the_report_is_whole_and_last(width: int) -> None:
    path = Path("runs/word_count-20260101-000000/with a rather long name/report.html")
    assert printed(example_recording(), path, width)[-1] == f"report  {path}"


def test_a_failed_run_says_why_and_shows_unknown_figures_as_dashes() -> None:
    collector = Collector()
    collector.started(example_header(plant="spark"))
    collector.ended(Ending("failed", 4.0, "the disk is full"))
    lines = printed(collector.recording)
    assert "word_count failed after 4.0 s: the disk is full" in lines
    assert "latency       p50 –, p99 –" in lines


def test_it_fits_on_one_screen() -> None:
    assert len(printed(example_recording(), Path("report.html"))) <= 24


NOTES = (
    {"time": 46.0, "seen": 34.0, "adopted": [], "gone": ["h1"], "batches": {"lines": 17}},
    {"time": 83.0, "seen": 80.5, "adopted": ["h2", "h3"], "gone": [], "batches": {"lines": 30, "counts": 12}},
)
RESUMED = (
    "at 0:46, 12.0 s after its driver was last seen, behind batch 17; h1 gone",
    "at 1:23, 2.5 s after its driver was last seen, behind batch 30 of lines, 12 of counts; h2, h3 adopted",
)


def test_each_time_that_a_run_went_on_is_said_with_the_gap_and_from_where() -> None:
    collector = Collector()
    collector.started(replace(example_header(plant="spark"), resumed=NOTES))
    collector.ended(Ending("stopped", 90.0))
    text = "\n".join(printed(collector.recording, width=200))
    assert [line.split("  ", 1)[1].strip() for line in text.splitlines() if line.startswith("resumed")] == [*RESUMED]
    shown = io.StringIO()
    PlainView(Console(file=shown, width=200)).started(collector.recording.header)
    assert f"word_count: resumed {RESUMED[1]}" in shown.getvalue()
    screen = Screen(Console(record=True, width=200, height=40, file=io.StringIO()))
    screen.started(collector.recording.header)
    assert RESUMED[1] in str(screen._head(None))
