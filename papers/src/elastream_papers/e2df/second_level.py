"""E2DF's second level where it matters: hosts start slowly and few are spare.

The paper's set-up (C_r = 5, hosts that start at once) holds no operator up. Here hosts start in a minute. Region managers
are compared with all hosts under the application manager alone, as in the paper, and with the fewest fixed hosts that are
as fast, which nobody knows beforehand. C_r and this number are chosen on seeds of their own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from elastream.evaluation.cases import run_all
from elastream.evaluation.checks import mean_at_least, mean_at_most
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check
from elastream.evaluation.page import Table
from elastream_papers.e2df.experiment import FIRST_HOSTS, STATIC_HOSTS, E2dfAssumptions, E2dfCase, E2dfRun, run_case

START = 60.0  # seconds until a host is up: a virtual machine instead of a container
SPARES = (1, 2, 3, FIRST_HOSTS)  # C_r; the last is the paper's. With 0 no region manager ever leases a host
# fixed numbers of hosts under the application manager alone
FLEETS = (6, 7, 8, 9, 10, 12, STATIC_HOSTS)
EQUAL = 0.05  # relative difference up to which mean latencies count as equal
TUNED, JUDGED = (101, 102, 103), (1, 2, 3, 4, 5, 6)  # seeds to choose C_r and fleet, and to judge both
QUICK_TUNED, QUICK_JUDGED = TUNED[:1], JUDGED[:2]


@dataclass(frozen=True)
class SecondLevel:
    """Runs of the choice and of the judgement. spare, fleet: the chosen C_r and fixed number of hosts."""

    tuned: Sequence[E2dfRun]
    judged: Sequence[E2dfRun]
    spare: int
    fleet: int

    @property
    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Mean latency and hosts of the tried C_r and fleets."""
        return {
            _name(case): {
                "mean latency (ms)": 1e3 * fmean(run.latency for run in runs),
                "hosts that are up (mean)": fmean(run.running for run in runs),
            }
            for case, runs in _by_setting(self.tuned).items()
        }

    def table(self) -> Table:
        """Return a row for each tried C_r and fixed number of hosts."""
        return Table(
            f"Hosts that start in {START:g} s: region managers by C_r, and fixed numbers of hosts",
            ("", "mean latency, ms", "hosts that are up"),
            tuple((name, *(f"{value:.2f}" for value in figures.values())) for name, figures in self.figures.items()),
        )

    def bars(self) -> tuple[Check, ...]:
        """Return the checks of host time and latency, on seeds that chose nothing."""
        settings = {(case.scenario, case.hosts): runs for case, runs in _by_setting(self.judged).items()}
        elastic, all_hosts, fewest = (
            settings[setting]
            for setting in (("both levels", STATIC_HOSTS), ("application", STATIC_HOSTS), ("application", self.fleet))
        )

        def saved(others: Sequence[E2dfRun]) -> list[float]:
            return [1 - mine.running / other.running for mine, other in zip(elastic, others, strict=True)]

        name = f"second level, hosts start in {START:g} s, C_r = {self.spare}"
        return (
            mean_at_least(
                f"{name}: host time saved of the application level's", saved(all_hosts), 0.0,
                "section 5",
            ),
            mean_at_most(
                f"{name}: latency over the application level's",
                [mine.latency / other.latency for mine, other in zip(elastic, all_hosts, strict=True)], 1 + EQUAL,
                "section 5",
            ),
            mean_at_least(f"{name}: host time saved of {self.fleet} fixed hosts, as fast", saved(fewest), 0.0, "ours"),
        )  # fmt: skip


def run_second_level(assumptions: E2dfAssumptions, options: ExperimentOptions) -> tuple[SecondLevel, float]:
    """Choose C_r and the fixed hosts on some seeds, then run both on others; return the runs and CPU seconds."""
    tuned, judged = (QUICK_TUNED, QUICK_JUDGED) if options.quick else (TUNED, JUDGED)
    settings = [("both levels", STATIC_HOSTS, spare) for spare in SPARES]
    settings += [("application", hosts, FIRST_HOSTS) for hosts in FLEETS]
    first, seconds = run_all(
        run_case, list(_cases(settings, tuned, assumptions)), options, lambda _: "second level, choice"
    )
    spare, fleet = chosen(first)
    last = [("both levels", STATIC_HOSTS, spare), *(("application", hosts, FIRST_HOSTS) for hosts in {fleet, STATIC_HOSTS})]
    second, more = run_all(run_case, list(_cases(last, judged, assumptions)), options, lambda _: "second level")
    return SecondLevel(first, second, spare, fleet), seconds + more


def chosen(runs: Sequence[E2dfRun]) -> tuple[int, int]:
    """Return the least C_r and the fewest fixed hosts whose mean latency equals that of all hosts."""
    latency = {case: fmean(run.latency for run in mine) for case, mine in _by_setting(runs).items()}
    most = (1 + EQUAL) * next(latency[c] for c in latency if c.scenario == "application" and c.hosts == STATIC_HOSTS)
    equal = [case for case, value in latency.items() if value <= most]
    spares = [case.spare for case in equal if case.scenario == "both levels"]
    return min(spares, default=SPARES[-1]), min(case.hosts for case in equal if case.scenario == "application")


def _cases(
    settings: Iterable[tuple[str, int, int]], seeds: Sequence[int], assumptions: E2dfAssumptions
) -> Iterable[E2dfCase]:
    """Return the cases of all seeds. The paper does not say how fast the load rises: each seed draws it, within a half."""
    for scenario, hosts, spare in settings:
        for seed in seeds:
            rise = assumptions.rise * float(np.random.default_rng([seed, 20]).uniform(0.5, 1.5))
            yield E2dfCase(scenario, replace(assumptions, host_start=START, rise=rise), seed, hosts, spare)


def _by_setting(runs: Iterable[E2dfRun]) -> dict[E2dfCase, list[E2dfRun]]:
    """Return the runs by their case without seed and assumptions, in order of seeds."""
    found: dict[E2dfCase, list[E2dfRun]] = {}
    for run in sorted(runs, key=lambda run: run.case.seed):
        found.setdefault(replace(run.case, seed=0, assumptions=E2dfAssumptions()), []).append(run)
    return found


def _name(case: E2dfCase) -> str:
    return f"both levels, C_r = {case.spare}" if case.scenario == "both levels" else f"application, {case.hosts} hosts"
