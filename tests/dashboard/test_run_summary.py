"""The summary at the end of a run: its figures on one screen, the report's path last."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from elastream.dashboard.summary import print_summary
from elastream.recording.observer import Ending
from elastream.recording.recorder import Collector, Recording
from example_run import example_header, example_recording


def printed(recording: Recording, report: Path | None = None, width: int = 80) -> list[str]:
    console = Console(record=True, width=width, file=io.StringIO())
    print_summary(recording, console, report)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_summary_says_how_it_ended_and_what_it_cost() -> None:
    lines = printed(example_recording())
    assert "word_count (simulated) finished after 3.0 min" in lines
    text = "\n".join(lines)
    assert "39,810 in 211 micro-batches" in text
    assert "6 at most, 6 leased, 6 given back" in text
    assert "counts checked  equal to a batch count" in text


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_path_of_the_report_is_whole_and_last(width: int) -> None:
    path = Path("runs/word_count-20260101-000000/with a rather long name/report.html")
    assert printed(example_recording(), path, width)[-1] == f"report  {path}"


def test_a_run_on_spark_does_not_say_simulated() -> None:
    assert not any("simulated" in line for line in printed(example_recording(plant="spark")))


def test_a_failed_run_says_why_and_shows_unknown_figures_as_dashes() -> None:
    collector = Collector()
    collector.started(example_header(plant="spark"))
    collector.ended(Ending("failed", 4.0, "the disk is full"))
    lines = printed(collector.recording)
    assert "word_count failed after 4.0 s: the disk is full" in lines
    assert "latency       p50 –, p99 –" in lines


def test_it_fits_on_one_screen() -> None:
    assert len(printed(example_recording(), Path("report.html"))) <= 24
