"""A notebook is shown a run's figures, whatever little of it was recorded."""

from itertools import islice
from pathlib import Path

import pytest

from elastream.core.observation import Observation
from elastream.recording.observer import Ending
from elastream.recording.recorder import Collector, Recording
from elastream.report.fragment import fragment
from elastream.report.page import render
from elastream.report.summary import summarise
from support.example_run import example_events, example_header

REPORT = Path("runs/a <b>/report.html")


def recorded(events: int, target_latency: float | None = 2.0) -> Recording:
    collector = Collector()
    collector.started(example_header(target_latency=target_latency))
    for event in islice(example_events(target_latency), events):
        collector.observed(event) if isinstance(event, Observation) else collector.decided(event)
    collector.ended(Ending("stopped", float(events), "by <hand>"))
    return collector.recording


@pytest.mark.parametrize("target_latency", [2.0, None])
@pytest.mark.parametrize("events", [0, 1, 2, 5, 60])
def test_a_run_of_any_length_with_and_without_a_target_is_shown(events: int, target_latency: float | None) -> None:
    recording = recorded(events, target_latency)
    text = fragment(recording, summarise(recording), REPORT)
    assert "word_count (simulated) stopped" in text
    assert "by &lt;hand&gt;" in text
    assert "a &lt;b&gt;/report.html" in text
    assert ("no target latency" in text) is (target_latency is None)
    assert "nan" not in text
    assert "</html>" in render(recording)


def test_nothing_that_reached_a_sink_is_said_so() -> None:
    recording = recorded(5)
    assert "no latency was measured" in fragment(recording, summarise(recording), REPORT)
