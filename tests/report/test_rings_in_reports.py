"""The report shows who owned which interval of a ring, who kept copies of it, and how far these were behind."""

from itertools import pairwise

import numpy as np
import pytest

from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.recording.recorder import Collector, Recorder, Recording
from elastream.report.page import render
from elastream.report.rings import rings_over_time, state_at_the_end
from elastream.report.timeline import timeline
from support.example_run import example_ending, example_header, ringed_events


@pytest.fixture(scope="module")
def recording() -> Recording:
    collector = Collector()
    collector.started(example_header())
    for event in ringed_events():
        if isinstance(event, Observation):
            collector.observed(event)
        else:
            collector.decided(event)
    collector.ended(example_ending())
    return collector.recording


def test_intervals_are_those_of_the_rings_that_were_observed(recording: Recording) -> None:
    (bands,) = rings_over_time(recording)
    for event in ringed_events():
        if not isinstance(event, Observation):
            continue
        now = {each.host: each for each in bands.intervals if each.since <= event.time < each.until}
        ring = event.rings["count"]
        assert set(now) == set(ring)
        for host, interval in now.items():
            begin, end = ring.interval(host)
            assert sum(high - low for low, high in interval.parts) == pytest.approx((end - begin) % 1.0 or 1.0)
            assert interval.keepers == ring.successors(host, 1)


def test_copies_are_recorded_when_they_change_and_their_lag_always(tmp_path) -> None:
    recorder = Recorder(tmp_path)
    recorder.started(example_header())
    seen = [event for event in ringed_events() if isinstance(event, Observation)]
    for observation in seen:
        recorder.observed(observation)
    series = Recording.read(tmp_path).series
    behind = series.behind.column("count", Metric.STANDBY_LAG.value, len(seen))
    expected = [each.tasks.column(Metric.STANDBY_LAG).max() for each in seen]
    assert behind == pytest.approx(np.array(expected), nan_ok=True)
    changes = [each.rings["count"] for each in seen]
    assert len(series.replicas) == sum(a != b for a, b in pairwise(changes))
    assert [why for _, why in series.lacking][:2] == ["no other host is there", ""]


def test_page_shows_the_ring_the_lag_and_who_has_what_at_the_end(recording: Recording) -> None:
    titles = [plot.caption for plot in timeline(recording).plots]
    assert any("Ring of count" in title for title in titles)
    assert any("Copies of state behind" in title for title in titles)
    state = state_at_the_end(recording)
    assert sum(each.owned for each in state) == 8
    page = render(recording)
    assert "State on hosts" in page
    for each in state:
        assert f"{each.owned} of 8" in page
    assert "no other host is there" in page


def test_of_a_run_without_rings_and_copies_nothing_is_shown() -> None:
    collector = Collector()
    collector.started(example_header())
    assert rings_over_time(collector.recording) == state_at_the_end(collector.recording) == ()
