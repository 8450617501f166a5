"""How long a step of the load takes to be answered, from the step until latency is back within its service level.

    python benchmarks/reaction.py [--quick] [--json FILE]

Split into what happens in between: detect (the first observation that shows it), decide (the first lease asked for),
lease (a host spawned), executor ready (registered, and warm where it is warmed), state moved, recovered. Of several hosts
the last counts.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence

from _cluster import HOST, word_count
from _common import Report, main, progress

from elastream.control.loop import Loop
from elastream.model.action import LeaseHost
from elastream.model.observation import Metric
from elastream.planning.policies.threshold import Threshold
from elastream.recording.recorder import Collector
from elastream.workload import steps

LOW, HIGH = 1000, 8000
BEFORE, AFTER, LEAD = 40.0, 75.0, 5.0
"""Seconds of the low and of the high load, and how long before the step the policy takes over."""
HELD = 5.0
"""Seconds that latency must stay within its level to count as recovered."""
PARTS = ("detect", "decide", "lease", "executor ready", "state moved", "recovered")


def recovered(kept: Sequence[tuple[float, bool]], step: float) -> float:
    """When latency was back within its level for at least HELD seconds: `step` where it never left, NaN where never."""
    left = next((time for time, fine in kept if not fine), None)
    if left is None:
        return step
    for at, (since, fine) in enumerate(kept):
        until = next((time for time, still in kept[at:] if not still), kept[-1][0])
        if fine and since > left and until - since >= HELD:
            return since
    return float("nan")


def one_run(warm: bool) -> dict[str, float]:
    """Seconds from the step until each part was done; NaN for what never came."""
    load = steps((LOW, BEFORE), (HIGH, AFTER))
    with word_count(load, hosts=1, max_hosts=4, warm=warm) as bench:
        plant, seen = bench.plant, Collector()
        bench.steady(3)
        # A start has latencies of its own, which the policy would answer: it takes over shortly before the step.
        until = plant.queries.telemetry.load_started("source") + BEFORE - LEAD
        bench.observe_until(lambda: time.time() >= until, BEFORE + 60, "the load ran")
        loop = Loop(plant, Threshold(), monitor=0.5, period=1.0, observers=[seen], limit=LEAD + AFTER + 90)
        loop.run()
        started = plant.queries.telemetry.load_started("source") - plant.clock.epoch
        step = started + BEFORE
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
        parts["state moved"] = max((move.landed_at for move in plant.placing.landed), default=float("nan"))
        return {name: round(parts[name] - step, 2) for name in PARTS}


def measure(arguments: argparse.Namespace) -> Report:
    rounds = 1 if arguments.quick else 3
    runs: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number, warm in itertools.product(range(rounds), (True, False)):
        runs[warm].append(one_run(warm))
        progress(f"round {number + 1} of {rounds}, {'warmed' if warm else 'cold'}: {runs[warm][-1]}")
    report = Report()
    report.figures = {
        name: {part: statistics.median(run[part] for run in runs[warm]) for part in PARTS}
        for name, warm in (("warmed", True), ("cold", False))
    } | {"runs": {"warmed": runs[True], "cold": runs[False]}}
    report.environment["hosts"] = f"{HOST.cores:g} core each; load {LOW}/s to {HIGH}/s"
    return report


def line(report: Report) -> str:
    def side(name: str) -> str:
        return ", ".join(f"{part} {report.figures[name][part]:.1f}" for part in PARTS)

    return f"seconds after a load step: warmed ({side('warmed')}); cold ({side('cold')})"


if __name__ == "__main__":
    main("reaction", __doc__.splitlines()[0], measure, line)
