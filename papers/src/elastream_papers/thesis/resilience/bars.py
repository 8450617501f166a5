"""Bars of chapter 6's simulated runs."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from elastream.evaluation.checks import median_at_least, median_at_most
from elastream.evaluation.findings import Check
from elastream_papers.thesis.lookahead.bars import ranked
from elastream_papers.thesis.reactive.bars import straightness
from elastream_papers.thesis.resilience.experiment import ResilienceCase, ResilienceRun
from elastream_papers.thesis.resilience.reducers import Protection

# Bars reach to both sides of a printed value.
# Fig. 6.10, p. 147: throughput lost from r = 0 to 2, "around 15 %"; r = 1 over external state, "around 2.8x"; R^2 of a line
DROP, GAIN, STRAIGHT = (0.10, 0.15), (2.3, 3.3), 0.98
BALANCED = (100.0, 300.0)  # Fig. 6.11(a), p. 149: seconds from the skew (500 s) until stable (700 s)
REACTION = (1.5, 3.0)  # Fig. 6.11(b), p. 149: seconds
MOVED = (0.010, 0.500)  # Fig. 6.11(c), p. 150: seconds
DELTA, AT_INTERVAL = (0.05, 0.07), 2.0  # Fig. 6.12, p. 150: part of the state in a checkpoint every 2 s, "around 7 %"
RECOVERED = (0.7, 1.5)  # p. 121: seconds, for one or several failures at once
# seconds a failure that the slope's upper confidence limit stays below: Fig. 6.13(b) calls 1,200 to 1,500 ms for 3 to 6
# failures stable; the power is the chance to hold if no failure adds anything
RISE = 0.1
DELTA_RATE = 6_000.0  # messages/s, not printed: where Fig. 6.13(a)'s axis ends
SURE = 1.645  # standard errors: one-sided, 5 %


@dataclass(frozen=True)
class ResilienceResults:
    """All runs of one set of assumptions."""

    runs: Sequence[ResilienceRun]

    def of(self, part: str, **which: object) -> list[ResilienceRun]:
        """Return runs of a part whose cases have these values."""
        return [
            run
            for run in self.runs
            if run.case.part == part and all(getattr(run.case, name) == value for name, value in which.items())
        ]

    def values(self, part: str, figure: str, **which: object) -> list[float]:
        """Return a figure of each of them."""
        return [run.figures[figure] for run in self.of(part, **which)]

    def axis(self, part: str, name: str) -> tuple[float, ...]:
        """Return ascending values of a property of a part's cases."""
        return tuple(sorted({getattr(run.case, name) for run in self.of(part)}))

    def peak(
        self, hosts: float, replicas: int, protection: Protection = Protection.PEERS, figure: str = "throughput"
    ) -> float:
        """Return a mean figure of these runs, by default peak throughput (messages/s)."""
        return float(np.mean(self.values("peak", figure, hosts=hosts, replicas=replicas, protection=protection)))

    @cached_property
    def sizes(self) -> tuple[float, ...]:
        return self.axis("peak", "hosts")


def bars(results: ResilienceResults) -> tuple[Check, ...]:
    """Return the bars."""
    parts: dict[str, Callable[[ResilienceResults], Iterator[Check]]] = {
        "peak": _peaks, "balance": _balanced, "growth": _growth, "move": _moved, "delta": _deltas, "recovery": _recovered,
    }  # fmt: skip
    return tuple(check for part, judge in parts.items() if results.of(part) for check in judge(results))


def _peaks(results: ResilienceResults) -> Iterator[Check]:
    source = "Fig. 6.10, p. 147"
    drops = [lost(results, hosts) for hosts in results.sizes]
    yield _between(
        "sustained throughput lost from r = 0 to r = 2, least and most by hosts", min(drops), max(drops), DROP, source
    )
    gains = [results.peak(n, 1) / results.peak(n, 0, Protection.EXTERNAL) for n in results.sizes]
    yield _between("r = 1 over external state, least and most by hosts", min(gains), max(gains), GAIN, source)
    fit = straightness(results.sizes, [results.peak(n, 1) for n in results.sizes])
    yield Check.at_least("R^2 of a line through r = 1 by hosts", fit, STRAIGHT, source)
    few, many = results.sizes[0], results.sizes[-1]
    growth = results.peak(many, 0, Protection.EXTERNAL) / results.peak(few, 0, Protection.EXTERNAL) / (many / few)
    yield Check(
        f"external state flattens: growth from {few:g} to {many:g} hosts over that of the hosts", round(growth, 3), "< 1",
        growth < 1, source,
    )  # fmt: skip


def lost(results: ResilienceResults, hosts: float, figure: str = "sustained") -> float:
    """Return the part of the throughput that r = 2 loses: by default of that up to which no queue grows."""
    return 1 - results.peak(hosts, 2, figure=figure) / results.peak(hosts, 0, figure=figure)


def _between(name: str, least: float, most: float, bounds: tuple[float, float], source: str) -> Check:
    """Return a check that the range from `least` to `most` lies in `bounds`."""
    low, high = bounds
    return Check(name, f"{least:.3f} / {most:.3f}", f"{low:g} to {high:g}", low <= least and most <= high, source)


def _balanced(results: ResilienceResults) -> Iterator[Check]:
    source = "Fig. 6.11(a), p. 149"
    took = results.values("balance", "balanced")
    yield _within("balance: seconds from the skew until no queue is long", took, *BALANCED, source, digits=1)


def _within(name: str, values: Sequence[float], low: float, high: float, source: str, digits: int = 3) -> Check:
    """Return a check that the population median of `values` lies in [low, high], by two sign tests."""
    sides = (median_at_least(name, values, low, source), median_at_most(name, values, high, source))
    missed = any(side.holds is False for side in sides)
    holds = False if missed else None if any(side.holds is None for side in sides) else True
    return Check(name, round(float(np.median(values)), digits), f"{low:g} to {high:g}", holds, source)


def _growth(results: ResilienceResults) -> Iterator[Check]:
    values = [value for run in results.of("growth") for value in run.series["reactions"].tolist() if value == value]
    yield _within("scale-out: seconds from a long queue to a restored host, median", values, *REACTION, "Fig. 6.11(b)")
    yield Check(
        "scale-out: tuples lost", sum(results.values("growth", "lacking")), "0", _none(results, "growth"), "6.3: D1, D2"
    )


def _none(results: ResilienceResults, part: str) -> bool:
    return not any(results.values(part, "lacking"))


def _moved(results: ResilienceResults) -> Iterator[Check]:
    source = "Fig. 6.11(c), p. 150"
    rates, intervals = results.axis("move", "rate"), results.axis("move", "checkpoint")
    middle = {
        (rate, every): float(np.median(results.values("move", "latency", rate=rate, checkpoint=every)))
        for rate in rates
        for every in intervals
    }
    low, high = MOVED
    least, most = min(middle, key=middle.__getitem__), max(middle, key=middle.__getitem__)
    yield Check.at_least(f"moved interval: s, the least median, {_case_text(*least)}", middle[least], low, source)
    yield Check.at_most(f"moved interval: s, the largest median, {_case_text(*most)}", middle[most], high, source)
    for name, lines in (
        ("interval", [(intervals, [middle[rate, every] for every in intervals]) for rate in rates]),
        ("rate", [(rates, [middle[rate, every] for rate in rates]) for every in intervals]),
    ):
        rises = min(ranked(x, y) for x, y in lines)
        yield Check.at_least(f"moved interval: grows with the {name}, least rank correlation", rises, 0.8, source, digits=2)


def _case_text(rate: float, every: float) -> str:
    return f"{rate:g}/s, every {every:g} s"


def _deltas(results: ResilienceResults) -> Iterator[Check]:
    source = "Fig. 6.12, p. 150"
    intervals = results.axis("delta", "checkpoint")
    ratio = {
        every: float(np.mean(results.values("delta", "ratio", checkpoint=every, rate=DELTA_RATE))) for every in intervals
    }
    yield Check(
        f"checkpoint over state at {AT_INTERVAL:g} s", round(ratio[AT_INTERVAL], 4), f"{DELTA[0]:g} to {DELTA[1]:g}",
        DELTA[0] <= ratio[AT_INTERVAL] <= DELTA[1], source,
    )  # fmt: skip
    rises = all(ratio[a] < ratio[b] for a, b in itertools.pairwise(intervals))
    yield Check(
        "checkpoint over state grows with the interval", " / ".join(f"{ratio[every]:.3f}" for every in intervals),
        "ascending", rises, source,
    )  # fmt: skip


def _recovered(results: ResilienceResults) -> Iterator[Check]:
    source = "p. 121; Fig. 6.13(b)"
    timed = replace(results, runs=[run for run in results.of("recovery", together=True) if is_timed(run.case)])
    numbers = sorted({run.case.failures for run in timed.runs})
    middle = {m: float(np.median(timed.values("recovery", "recovery", failures=m))) for m in numbers}
    worst = max(middle, key=middle.__getitem__)
    values = timed.values("recovery", "recovery", failures=worst)
    yield _within(f"recovery from {worst} failures, the slowest: s, median", values, *RECOVERED, source)
    slope, error = risen([(run.case.failures, run.figures["recovery"]) for run in timed.runs])
    power = NormalDist().cdf(RISE / error - SURE) if error > 0 else 1.0
    yield Check(
        f"recovery: slope over {numbers[0]} to {numbers[-1]} failures, ms each",
        f"{1e3 * slope:.0f} +- {1e3 * error:.0f}, power {power:.2f}",
        f"< {1e3 * RISE:g}",
        slope + SURE * error < RISE,
        "Fig. 6.13(b): 1,200 to 1,500 ms for 3 to 6 failures",
    )
    kept = [run for run in results.of("recovery") if not run.case.in_a_row]
    lacking = sum(run.figures["lacking"] for run in kept)
    most = max(kept, key=lambda run: run.case.failures / run.case.hosts).case
    yield Check(
        f"D1, D2: tuples lost, up to {most.failures} of {most.hosts} hosts with r = {most.replicas}", lacking, "0",
        lacking == 0 and all(run.figures["left over"] == 0 for run in kept), "6.6: n r / (r + 1)",
    )  # fmt: skip
    beyond = [run for run in results.of("recovery") if run.case.in_a_row]
    if beyond:
        least = min(run.figures["lacking"] for run in beyond)
        yield Check("r + 1 in a row: tuples counted as lost, the least", least, "> 0", least > 0, "6.6")


def is_timed(case: ResilienceCase) -> bool:
    """Return True if a recovery is of Fig. 6.13(b), not a test of survival."""
    return not case.in_a_row and case.replicas == 1 and case.failures <= case.hosts // 2 and case.rate == TIMED_RATE


TIMED_RATE = 15_000.0  # messages/s of Fig. 6.13(b)


def risen(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (slope of the line through the points, standard error); 0 and NaN for fewer than three."""
    x, y = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    spread = float(((x - x.mean()) ** 2).sum())
    if x.size < 3 or spread == 0:
        return 0.0, float("nan")
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    rest = y - y.mean() - slope * (x - x.mean())
    return slope, float(np.sqrt((rest**2).sum() / (x.size - 2) / spread))
