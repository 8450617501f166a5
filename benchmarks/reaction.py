"""Time from a step of the load until latency is back within its service level. At most 20 minutes; --quick 4.

Warmed and cold executors in turn. Split into detect (the first observation that shows it), decide (the first lease), lease
(a host spawned), executor ready (registered, and warm if it is warmed), state moved, recovered. Of several hosts the last
counts.
"""

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Sequence

from _cluster import HOST, word_count
from _common import Report, in_random_order, main

from elastream.control.loop import Loop
from elastream.core.action import LeaseHost
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.loads import steps
from elastream.policies.threshold import Threshold
from elastream.recording.observer import Observer
from elastream.recording.recorder import Collector

LOW, HIGH = 1000, 8000
BEFORE, AFTER, LEAD = 25.0, 90.0, 5.0
"""Seconds of the low and, at most, of the high load, and how long before the step the policy takes over."""
HELD = 5.0  # seconds that latency must stay within its level to count as recovered
PARTS = ("detect", "decide", "lease", "executor ready", "state moved", "recovered")
BARS = {"warmed": 20.0, "cold": 35.0}


def recovered(kept: Sequence[tuple[float, bool]], step: float) -> float:
    """Return when latency was back within its level for HELD seconds; `step` if it never left, NaN if it never returned."""
    left = next((time for time, fine in kept if not fine), None)
    if left is None:
        return step
    for at, (since, fine) in enumerate(kept):
        until = next((time for time, still in kept[at:] if not still), kept[-1][0])
        if fine and since > left and until - since >= HELD:
            return since
    return float("nan")


def one_run(warm: bool) -> dict[str, float]:
    load = steps((LOW, BEFORE), (HIGH, AFTER))
    with word_count(load, hosts=1, max_hosts=4, warm_up=warm) as bench:
        plant, seen = bench.plant, Collector()
        bench.steady(3)
        # The policy would react to the latencies of the start, so it takes over shortly before the step.
        began = plant.queries.telemetry.load_started("source")
        assert began is not None
        bench.observe_until(lambda: time.time() >= began + BEFORE - LEAD, BEFORE + 60, "the load ran")
        step = began - plant.clock.epoch + BEFORE
        over = _Over(step)
        loop = Loop(plant, Threshold(), monitor=0.5, period=1.0, observers=[seen, over], limit=step + AFTER)
        over.loop = loop
        loop.run()
        target = plant.context.target_latency
        recording = seen.recording
        leased = sorted(
            {
                outcome.action.host: decision.time
                for decision in recording.decisions
                for outcome in decision.outcomes
                if isinstance(outcome.action, LeaseHost) and outcome.succeeded and decision.time >= step - 1
            }.items(),
            key=lambda pair: pair[1],
        )
        times = recording.times
        rate, latency = recording.application(Metric.ARRIVAL_RATE), recording.application(Metric.LATENCY_P99)
        kept = [(time, value <= target) for time, value in zip(times, latency, strict=True) if time > step]
        parts = {
            "detect": next((t for t, r in zip(times, rate, strict=True) if r > (LOW + HIGH) / 2), float("nan")),
            "decide": leased[0][1] if leased else float("nan"),
            "recovered": recovered(kept, step),
        }
        milestones = [plant.hosts.milestones(host) for host, _ in leased]
        for name, key in (("lease", "spawned"), ("executor ready", "warm")):
            parts[name] = max((each[key] for each in milestones if key in each), default=float("nan"))
        parts["state moved"] = max((move.history[-1][0] for move in plant.placing.landed), default=math.nan)
        return {name: round(float(parts[name] - step), 2) for name in PARTS}


class _Over(Observer):
    """An observer that ends the run HELD seconds after latency is back within its level, if the step pushed it out."""

    def __init__(self, step: float) -> None:
        self.loop: Loop | None = None
        self._step, self._left, self._since = step, False, math.inf

    def observed(self, observation: Observation) -> None:
        target, latency = observation.context.target_latency, observation.latency(Metric.LATENCY_P99).value
        if observation.time <= self._step or latency is None or target is None:
            return
        self._left = self._left or latency > target
        self._since = min(self._since, observation.time) if latency <= target else math.inf
        if self._left and observation.time - self._since > HELD + 1.0 and not observation.coming and self.loop is not None:
            self.loop.stop("the step is answered")


def measure(arguments: argparse.Namespace) -> Report:
    runs = in_random_order(list(BARS), arguments.rounds, lambda name: one_run(warm=name == "warmed"))
    report = Report()
    for name, part in itertools.product(BARS, PARTS):
        values = [run[part] for run in runs[name]]
        report.figures[f"{name}: {part}, s after the step"] = {"median": middle(values), "runs": values}
    for name, bar in BARS.items():
        # A run that did not recover during the load took longer than the load.
        values = [AFTER if math.isnan(run["recovered"]) else run["recovered"] for run in runs[name]]
        what = f"seconds from a load step until latency is within its service level, {name} executors"
        report.median_at_most(what, values, bar)
    report.environment["hosts"] = f"{HOST.cores:g} core each; load {LOW}/s to {HIGH}/s"
    return report


def middle(values: Sequence[float]) -> float:
    return statistics.median([value for value in values if not math.isnan(value)] or [math.nan])


if __name__ == "__main__":
    main("reaction", __doc__, measure, rounds=5)
