"""Bars of chapter 5's Figures 5.3 to 5.5, on the runs of `experiment`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from elastream.evaluation.findings import Check
from elastream_papers.thesis.lookahead.experiment import (
    CE,
    FIGURE_5_5,
    POLICIES,
    REACTIVE,
    TARGET,
    TOLERANCE,
    LookaheadRun,
)

PLASTICC = "plasticc"
GAIN = 0.20  # p. 100: "an improvement of up to 20% in the overall profit as compared to the reactive adaptation algorithm"
LEAST = TARGET - TOLERANCE  # throughput (Eq. 4.4) that a run keeps; only such runs' profits are comparable (p. 111)
LARGE = 0.10  # error above which Fig. 5.4's curves first rise, then fall
SMALL = 0.05  # small errors (Fig. 5.5: PLAStiCC leads at 0 and 5 %)
# Spearman's rank correlation that is significant for so many points: one-sided, 5 %
CRITICAL: Mapping[int, float] = {3: 1.0, 4: 1.0, 5: 0.9, 6: 0.829}


@dataclass(frozen=True)
class LookaheadResults:
    """All runs of one set of assumptions."""

    runs: Sequence[LookaheadRun]

    @cached_property
    def horizons(self) -> tuple[int, ...]:
        """Return minutes ahead of PLAStiCC under the perfect oracle."""
        return tuple(
            sorted({r.case.horizon for r in self.runs if r.case.policy == PLASTICC and r.case.forecast.by == "oracle"})
        )

    @cached_property
    def errors(self) -> tuple[float, ...]:
        return tuple(sorted({r.case.forecast.error for r in self.runs if r.case.forecast.bias == 0.0}))

    @cached_property
    def biases(self) -> tuple[float, ...]:
        """Return biases of oracles, none first."""
        return tuple(dict.fromkeys(run.case.forecast.bias for run in self.runs))

    def of(
        self, policy: str, horizon: int, error: float = 0.0, bias: float = 0.0, by: str = "oracle"
    ) -> list[LookaheadRun]:
        """Return runs by seed; those of reactive policies at any horizon."""
        return [
            run
            for run in self.runs
            if run.case.policy == policy
            and (
                policy in REACTIVE
                or (run.case.horizon, run.case.forecast.error, run.case.forecast.bias, run.case.forecast.by)
                == (horizon, error, bias, by)
            )
        ]

    def mean(
        self, figure: str, policy: str, horizon: int, error: float = 0.0, bias: float = 0.0, by: str = "oracle"
    ) -> float:
        """Return the mean of a figure over these runs; NaN without any."""
        found = [getattr(run, figure) for run in self.of(policy, horizon, error, bias, by)]
        return float(np.mean(found)) if found else float("nan")


def bars(results: LookaheadResults) -> tuple[Check, ...]:
    """Return the bars."""
    parts: tuple[Callable[[LookaheadResults], Iterator[Check]], ...] = (
        _throughput_bars,
        _profits,
        _stability,
        _errors,
        _biases,
    )
    return tuple(check for part in parts for check in part(results))


def ranked(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if one side is constant."""
    ranks = [
        np.array([np.mean(np.flatnonzero(np.sort(each) == value)) for value in each]) for each in map(np.asarray, (x, y))
    ]
    spread = [float(np.std(each)) for each in ranks]
    if min(spread) == 0:
        return 0.0
    return float(np.mean((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())) / (spread[0] * spread[1]))


def _throughput_bars(results: LookaheadResults) -> Iterator[Check]:
    found = {(p, h): results.mean("waited", p, h) for p in POLICIES for h in results.horizons}
    for name, policies in (("PLAStiCC", POLICIES[:1]), ("the others", POLICIES[1:])):
        policy, horizon = min((each for each in found if each[0] in policies), key=found.__getitem__)
        yield Check.at_least(
            f"{name}: least throughput over a run (Eq. 4.4), {policy.upper()} at {horizon} min",
            found[policy, horizon],
            LEAST,
            "Fig. 5.3(a)",
        )


def _profits(results: LookaheadResults) -> Iterator[Check]:
    source = "Fig. 5.3(b)"

    def profit(policy: str, horizon: int) -> float:
        """Return the profit of a policy, -inf if it misses the throughput: such profits are not comparable (p. 111)."""
        kept = results.mean("waited", policy, horizon) >= LEAST
        return results.mean("profit", policy, horizon) if kept else -np.inf

    lead = {h: results.mean("profit", PLASTICC, h) - max(profit(p, h) for p in POLICIES[1:]) for h in results.horizons}
    worst = min(lead, key=lead.__getitem__)
    yield Check(
        f"PLAStiCC: profit above the best of the others that keep the throughput, the least, at {worst} min",
        round(lead[worst], 4), "> 0", lead[worst] > 0, source,
    )  # fmt: skip
    last = results.horizons[-1]
    yield Check.at_least(
        f"PLAStiCC: profit above CAF's, part of it, at {last} min", _gain(results, "caf", last), GAIN, "p. 100: up to 20 %"
    )
    over = {h: _gain(results, CE, h) for h in results.horizons}
    worst = min(over, key=over.__getitem__)
    yield Check(
        f"PLAStiCC: profit above that of ce without forecasts, part of it, the least, at {worst} min",
        round(over[worst], 4), "> 0", over[worst] > 0, "ours",
    )  # fmt: skip
    profits = [results.mean("profit", PLASTICC, h) for h in results.horizons]
    yield _rises("PLAStiCC: profit grows with the horizon, rank correlation", results.horizons, profits, source)


def _gain(results: LookaheadResults, policy: str, horizon: int) -> float:
    other, own = results.mean("profit", policy, horizon), results.mean("profit", PLASTICC, horizon)
    return (own - other) / abs(other) if other else float("nan")


def _rises(name: str, x: Sequence[float], y: Sequence[float], source: str) -> Check:
    return Check.at_least(name, ranked(x, y), CRITICAL.get(len(x), 1.0), source, digits=3)


def _stability(results: LookaheadResults) -> Iterator[Check]:
    lead = {
        h: results.mean("unstable", PLASTICC, h) - min(results.mean("unstable", p, h) for p in POLICIES[1:])
        for h in results.horizons
    }
    worst = max(lead, key=lead.__getitem__)
    yield Check(
        f"PLAStiCC: chi below the lowest of the others, at {worst} min", round(lead[worst], 2), "< 0", lead[worst] < 0,
        "Fig. 5.3(c): lowest at every horizon",
    )  # fmt: skip


def _errors(results: LookaheadResults) -> Iterator[Check]:
    profits = [float(np.mean([results.mean("profit", PLASTICC, h, e) for h in results.horizons])) for e in results.errors]
    falls = [-profit for profit in profits]
    yield _rises(
        "PLAStiCC: profit falls with the error, mean of the horizons, rank correlation", results.errors, falls, "Fig. 5.4"
    )
    large = [error for error in results.errors if error > LARGE]
    if large and len(results.horizons) > 2:
        best = {e: max(results.horizons, key=lambda h: results.mean("profit", PLASTICC, h, e)) for e in large}
        inner = results.horizons[1:-1]
        yield Check(
            f"PLAStiCC: horizon of the highest profit, min, errors above {LARGE:.0%}", " / ".join(map(str, best.values())),
            f"{inner[0]} to {inner[-1]}", all(h in inner for h in best.values()), "Fig. 5.4: rises, then falls",
        )  # fmt: skip


def _biases(results: LookaheadResults) -> Iterator[Check]:
    source = f"Fig. 5.5, {FIGURE_5_5} min"

    def profit(policy: str, error: float, bias: float) -> float:
        return results.mean("profit", policy, FIGURE_5_5, error, bias)

    others = ("wpa", "wpo", "wpp")
    pairs = [(error, bias) for error in results.errors for bias in results.biases]
    small = [each for each in pairs if each[0] <= SMALL]
    lead = {each: profit(PLASTICC, *each) - max(profit(p, *each) for p in others) for each in small}
    worst = min(lead, key=lead.__getitem__)
    yield Check(
        f"PLAStiCC above WPA, WPO and WPP at small errors, the least, {_case_text(worst)}", round(lead[worst], 4), "> 0",
        lead[worst] > 0, source,
    )  # fmt: skip
    spread = {
        p: max(np.ptp([profit(p, error, bias) for error in results.errors]) for bias in results.biases)
        for p in (PLASTICC, "wpa")
    }
    yield Check(
        "WPA is flat: its profit changes less with the error than PLAStiCC's",
        f"{spread['wpa']:.4f} / {spread[PLASTICC]:.4f}",
        "ascending",
        bool(spread["wpa"] < spread[PLASTICC]),
        source,
    )
    under = float(np.mean([profit("wpo", error, -0.05) - profit("wpa", error, -0.05) for error in results.errors]))
    yield Check("WPO above WPA under a bias of -5 %, mean of the errors", round(under, 4), "> 0", under > 0, source)
    behind = {each: min(profit(p, *each) for p in (PLASTICC, "wpa", "wpo")) - profit("wpp", *each) for each in pairs}
    worst = min(behind, key=behind.__getitem__)
    yield Check(
        f"WPP below all others, the least, {_case_text(worst)}", round(behind[worst], 4), "> 0", behind[worst] > 0, source
    )


def _case_text(case: tuple[float, float]) -> str:
    return f"error {case[0]:.0%}, bias {case[1]:+.0%}"
