"""OTD's bars: the paper's own results on its cluster, each by the interval of what was drawn."""

from collections.abc import Callable, Sequence

import numpy as np

from elastream.experiments.findings import Check
from elastream.experiments.intervals import MeanInterval
from elastream.experiments.otd.experiment import LATE, MAIN, POLICIES, STRATA, OtdRun

LESS_TRAFFIC, MORE_CPU, KEPT_CPU = 0.88, 0.51, 0.47
"""The paper's own results, sections 5.3.1 and 5.3.2; 75 % is 47 % above 51 %."""
MORE_ANSWERS, LESS_DELAY, LEFT_TRAFFIC = 0.19, 0.14, 0.20
"""Of Figures 13(a), 13(b) and 12(c)."""


def mean_of(runs: list[OtdRun]) -> dict[str, float]:
    """Means of the runs' figures, over seeds."""
    return {name: float(np.mean([run.metrics[name] for run in runs])) for name in runs[0].metrics}


METRICS = ("CPU use of workers, settled", "CPU use of workers, mean", "traffic between nodes, at the end")


def by_policy(runs: Sequence[OtdRun], application: str) -> dict[str, list[OtdRun]]:
    """The runs of an application by policy, in the order of their seeds."""
    mine = sorted((run for run in runs if run.case.application == application), key=lambda run: run.case.seed)
    return {policy: [run for run in mine if run.case.policy == policy] for policy in POLICIES}


def gain(runs: Sequence[OtdRun], metric: str, policy: str = "otd", application: str = "computation") -> MeanInterval:
    """By how much the mean of `metric` under `policy` is above the even deployment's, as a part of that, with its interval.

    A ratio of two means over the same draws: its interval is that of the differences from it (linearised), over the mean
    of the even deployment. Differences are means of the blocks whose draws are stratified together: only these are
    independent.
    """
    found = by_policy(runs, application)
    ours, even = ([run.metrics[metric] for run in found[name]] for name in (policy, "even"))
    ratio, base = float(np.mean(ours) / np.mean(even)), float(np.mean(even))
    blocks: dict[int, list[float]] = {}
    for run, a, b in zip(found["even"], ours, even, strict=True):
        blocks.setdefault((run.case.seed - 1) // STRATA, []).append((a - ratio * b) / base)
    off = MeanInterval.of([float(np.mean(each)) for each in blocks.values()])
    return MeanInterval(ratio - 1, ratio - 1 + off.low - off.mean, ratio - 1 + off.high - off.mean, len(ours))


def bars(runs: Sequence[OtdRun], named: str = "") -> tuple[Check, ...]:
    """The paper's headline results on `MAIN`, each by the interval of its runs. named: added to their names."""

    def check(what: str, found: MeanInterval, bar: float, source: str) -> Check:
        return Check(f"{what}{named}", found.shown(3), f">= {bar:g}", found.at_least(bar), source)

    light, heavy = (f"{application}-intensive, {MAIN.name}" for application in ("communication", "computation"))
    found: list[Check] = []
    if by_policy(runs, "communication")["otd"]:
        found = [
            check(
                f"{light}: traffic between nodes below the even deployment's",
                _beside(runs, lambda ours, even: 1 - ours.remote_end / even.remote_end),
                LESS_TRAFFIC,
                "our bar; paper, section 5.3.2: 88 %",
            ),
            check(
                f"{light}: throughput after {LATE:g} s above the even deployment's",
                _beside(runs, lambda ours, even: ours.late / even.late - 1),
                MORE_ANSWERS,
                "our bar; paper, section 5.3.2, Figure 13(a): 19 %",
            ),
            check(
                f"{light}: time to an answer after {LATE:g} s below the even deployment's",
                _beside(runs, lambda ours, even: 1 - ours.answer / even.answer),
                LESS_DELAY,
                "our bar; paper, section 5.3.2, Figure 13(b): 14 %",
            ),
        ]
    settled, kept = (gain(runs, metric) for metric in METRICS[:2])
    left = MeanInterval.of([run.remote_end for run in by_policy(runs, "computation")["otd"]])
    return (
        *found,
        check(
            f"{heavy}: CPU use above the even deployment's, where both have settled",
            settled,
            MORE_CPU,
            "our bar; paper, section 5.3.1: from 51 to 77 % in 50 s",
        ),
        check(
            f"{heavy}: CPU use above the even deployment's, mean with all changes",
            kept,
            KEPT_CPU,
            "paper, section 5.3.1: kept at 75 % as the load changes",
        ),
        Check(
            f"{heavy}: traffic between nodes, at the end{named}",
            left.shown(3),
            f"<= {LEFT_TRAFFIC:g}",
            left.at_most(LEFT_TRAFFIC),
            "our bar; paper, section 5.3.1, Figure 12(c): below 20 % after 250 s",
        ),
    )


def _beside(runs: Sequence[OtdRun], figure: Callable[[OtdRun, OtdRun], float]) -> MeanInterval:
    """`figure` of OTD's run and the even deployment's, over draws of the communication-intensive application."""
    found = by_policy(runs, "communication")
    return MeanInterval.of([figure(ours, even) for ours, even in zip(found["otd"], found["even"], strict=True)])
