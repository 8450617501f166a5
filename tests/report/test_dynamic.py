"""What the report says of alternates and branches, and the live view of guards."""

import io
import math
from typing import Any

from rich.console import Console

from elastream.control.guarding import GuardExtension
from elastream.control.loop import Loop
from elastream.core.plant import Plan
from elastream.dashboard.live import PlainView, Screen
from elastream.dataflow.signals import SignalReading
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Collector
from elastream.report.page import SelectionShares, render, selections_of
from support.fake_plant import FakePlant

GUARDS = "signals: {error: number}\nguards: {words: {split: {when: error < 0.3}, split_fast: {when: error >= 0.3}}}\n"


class Rising:
    """An error that is known from the second second on, and high from the sixth."""

    def __init__(self, plant: FakePlant) -> None:
        self.plant = plant

    def follow(self, signals: Any) -> None:
        pass

    def newest(self) -> dict[str, SignalReading]:
        now = self.plant.clock.now()
        return {} if now < 2.0 else {"error": SignalReading(0.1 if now < 6.0 else 0.9, now)}

    def close(self) -> None:
        pass


class Idle:
    """A policy that does nothing."""

    name = "idle"

    def plan(self, observation: Any, memory: Any = None) -> Plan:
        return Plan()


def watched(*observers: Any) -> None:
    """Ten seconds of a run whose guards wait for a signal, and then switch."""
    plant, versions = FakePlant(), GuardLog()
    versions.append(GUARDS, "g.yaml", "test")
    Loop(plant, Idle(), limit=10.0, observers=observers, extensions=[GuardExtension(versions, Rising(plant))]).run()


def test_report_says_how_long_each_alternate_ran_or_none_was_allowed() -> None:
    collector = Collector()
    watched(collector)
    words, where = selections_of(collector.recording)
    shares = (("split", 0.7), ("split_fast", 0.3))
    assert words == SelectionShares("words", shares, 1, 0.2), "the switch of 6 s is seen at 7 s"
    assert (where.element, where.shares, where.switches, math.isnan(where.closed)) == ("where", (("table", 1.0),), 0, True)
    page = render(collector.recording)
    assert "<h2>Alternates and branches</h2>" in page
    assert "<td>split 70%, split_fast 30%</td>" in page


def test_lines_say_when_nothing_is_allowed_and_a_screen_what_runs() -> None:
    lines, screen = io.StringIO(), Console(file=io.StringIO(), width=100, height=40)
    view, shown = PlainView(Console(file=lines, width=200)), Screen(screen)
    texts = []

    class Keep(Collector):
        def observed(self, observation: Any) -> None:
            screen.print(shown.screen())
            texts.append(screen.file.getvalue())  # type: ignore[attr-defined]

    watched(view, shown, Keep())
    said = "guards  words: no guard of words is active: the running variant stays; the guard of split is unknown (error)"
    assert lines.getvalue().count(said) == 1
    assert "guards: no guard of words is active" in texts[0]
    assert "words as split " in texts[-1]
    assert "words as split_fast" in texts[-1]
    assert "count to table" in texts[-1]
