"""Page of the VISP experiment: Tables 3 to 6 next to the paper's, plots as in Figures 8 to 11, bars, sensitivity.

Simulated figures and the paper's never share a column. `experiment` computes the figures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import fmean

from elastream.experiments.assumptions import assumption_table, scaled, variations
from elastream.experiments.cases import ExperimentOptions, run_all
from elastream.experiments.findings import Check, Findings, check_table, counted, environment
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, comparison_table, hosts_plot, load_line
from elastream.experiments.visp.experiment import (
    BTUS,
    COLUMNS,
    LEVELS,
    SEEDS,
    Figures,
    Statistic,
    VispRun,
    bars,
    cases,
    make,
    run_case,
    tabulate,
)
from elastream.experiments.visp.manufacturing import BTU_PRICES, MONITORING, PROVISIONING, RUN_SECONDS, VispAssumptions
from elastream.experiments.visp.paper import TABLES
from elastream.planning.policies.btu import Btu

FIGURES: Mapping[str, str] = {"stepwise": "8", "two-level": "9", "walk 1": "10", "walk 2": "11"}
"""The paper's figure of each pattern."""


@dataclass(frozen=True, slots=True)
class VispVariation:
    """Results of the bars with one assumption multiplied."""

    assumption: str
    factor: float
    checks: tuple[Check, ...]

    @property
    def name(self) -> str:
        return f"{self.assumption} x {self.factor:g}"


def outcome(runs: Sequence[VispRun], seconds: float, varied: Sequence[VispVariation] = ()) -> Findings:
    """The findings of the runs: figures, the paper's under the same names, bars and the page."""
    figures = tabulate(runs)
    checks = bars(figures)
    about = environment(plant="simulated", runs=len(runs), seconds=round(seconds, 1))
    return Findings(
        {
            "tables": {
                pattern: {column: {m: _json(s) for m, s in metrics.items()} for column, metrics in columns.items()}
                for pattern, columns in figures.items()
            },
            "sensitivity": [
                {"assumption": v.assumption, "factor": v.factor, "missed": [c.name for c in v.checks if c.missed]}
                for v in varied
            ],
            "seconds": round(seconds, 2),
        },
        {
            pattern: {column: {m: _json(s) for m, s in metrics.items()} for column, metrics in printed(pattern).items()}
            for pattern in figures
        },
        checks,
        _page(runs, figures, checks, varied),
        about,
        verdict(figures, checks, varied),
    )


def run_visp(options: ExperimentOptions) -> Findings:
    """Run the whole experiment: 48 runs, or with `quick` the four of the stepwise pattern and one seed.

    sensitivity: also all runs of the stepwise pattern with every assumption halved and doubled, and with the 200 ms that
    published versions of O2 and O6 wait.
    """
    wanted = cases(("stepwise",), (1,)) if options.quick else cases()
    given = VispAssumptions()
    changes = {**variations(given), ("light_work", 10.0): scaled(given, "light_work", 10.0)} if options.sensitivity else {}
    # One batch, so that workers are not idle between two variations.
    batches = [wanted, *(cases(("stepwise",), (1,) if options.quick else SEEDS, varied) for varied in changes.values())]
    found, seconds = run_all(
        run_case,
        [case for batch in batches for case in batch],
        options,
        lambda case, done, of: options.progress(f"{case.pattern}, {case.name}, seed {case.seed}", done, of),
        warm=lambda case: make(case).advance(MONITORING),
    )
    results = iter(found)
    runs, *others = ([next(results) for _ in batch] for batch in batches)
    varied = [
        VispVariation(name, factor, bars(tabulate(mine))) for (name, factor), mine in zip(changes, others, strict=True)
    ]
    return outcome(runs, seconds, varied)


def printed(pattern: str) -> dict[str, dict[str, Statistic]]:
    """The paper's figures of a pattern, by column and metric."""
    return {column: {metric: row[column] for metric, row in TABLES[pattern].rows.items()} for column in COLUMNS}


def verdict(figures: Figures, checks: Sequence[Check], varied: Sequence[VispVariation] = ()) -> str:
    """Explanation of the missed bars, from the figures; empty if none is missed."""
    missed = [check for check in checks if check.missed]
    if not missed:
        return ""
    said = []
    kinds = {kind: [check for check in missed if kind in kinds_missed(check)] for kind in Topic}
    if found := kinds[Topic.POLICIES]:
        said.append(f"{_are(found)} about the BTU policy against the baseline: {found[0].name} is {found[0].value}.")
    if found := kinds[Topic.EARLY]:
        said.append(
            f"{_are(found)} about hosts that BTU10 gave back early, {found[0].value} a run: plans are {PROVISIONING:.0f} s "
            f"apart, more than the last 5 % of ten minutes, so the last plan before the end of a BTU comes before them."
        )
    if found := kinds[Topic.AMONG]:
        gaps = [gap for columns in figures.values() for level in LEVELS for gap in _steps(columns, f"{level} compliance")]
        hosts = fmean(columns[f"btu {minutes}"]["hosts (mean)"].mean for columns in figures.values() for minutes in BTUS)
        bill = fmean(paper_hosts(pattern, minutes) for pattern in figures for minutes in BTUS)
        said.append(
            f"{_are(found)} about BTU10, BTU30 and BTU60 among each other. From one to the next, compliance changes by "
            f"{100 * min(gaps):+.2f} to {100 * max(gaps):+.2f} points. The dataflow fills {hosts:.1f} hosts on average, "
            f"where the paper's bill means {bill:.1f}."
        )
        share = Btu().release_share
        if hosts < 1 / share:
            said.append(
                f"On so few hosts each holds more than the {share:.0%} of an operator's instances that may be given up "
                "with one, so a host can hardly be emptied when its BTU ends: its length has little to act on."
            )
    if varied:
        said.append(_hangs_on(varied))
    return " ".join(said)


class Topic(Enum):
    """The claim that a bar tests."""

    POLICIES = "the BTU policy against the baseline"
    EARLY = "early releases by the BTU policy"
    AMONG = "BTU10, BTU30 and BTU60 among each other"


def kinds_missed(check: Check) -> set[Topic]:
    """Which claims a missed bar contradicts; the order of all four makes two. None for a bar that holds."""
    if not check.missed:
        return set()
    if "early host releases of BTU" in check.name:
        return {Topic.EARLY}
    if "orders threshold" in check.name:
        threshold, *btus = (float(part.rstrip("%")) for part in str(check.value).split(" / "))
        beaten, mixed = threshold >= min(btus), btus != sorted(btus)
        # A tie in the shown digits is between BTUs: the baseline is far off or better.
        return {*([Topic.POLICIES] if beaten else []), *([Topic.AMONG] if mixed or not beaten else [])}
    return {Topic.AMONG if "as the BTU grows" in check.name else Topic.POLICIES}


def paper_hosts(pattern: str, minutes: int) -> float:
    """Mean number of hosts of the BTU policy, derived from the paper's resource cost."""
    cost = TABLES[pattern].rows["resource cost"][f"btu {minutes}"].mean
    return cost / BTU_PRICES[minutes] * minutes * 60 / RUN_SECONDS


def _are(checks: Sequence[Check]) -> str:
    return f"{len(checks)} of the missed bars {'is' if len(checks) == 1 else 'are'}"


def _steps(columns: Mapping[str, Mapping[str, Statistic]], metric: str) -> list[float]:
    """Changes of a metric from one BTU to the next longer one."""
    return [columns[f"btu {b}"][metric].mean - columns[f"btu {a}"][metric].mean for a, b in pairwise(BTUS)]


def _hangs_on(varied: Sequence[VispVariation]) -> str:
    """Assumptions under which each kind of bar holds, from the variations."""
    said = []
    for kind in Topic:
        by_missed: dict[bool, list[str]] = {True: [], False: []}
        for each in varied:
            by_missed[any(kind in kinds_missed(check) for check in each.checks)].append(each.name)
        if not by_missed[True]:
            said.append(f"Bars about {kind.value} hold whatever is assumed.")
        elif len(by_missed[False]) > len(by_missed[True]):
            said.append(f"Bars about {kind.value} all hold but with {', '.join(by_missed[True])}.")
        else:
            said.append(f"Bars about {kind.value} all hold with {', '.join(by_missed[False]) or 'none of the variations'}.")
    return "On the stepwise pattern: " + " ".join(said)


def sensitivity_table(varied: Sequence[VispVariation]) -> Table:
    """Which bars are missed with which assumption multiplied; stepwise pattern, all seeds."""
    rows = []
    for variation in varied:
        missed = [check.name.removeprefix("stepwise: ") for check in variation.checks if check.missed]
        rows.append((variation.name, str(len(missed)), "; ".join(missed) or "none"))
    return Table(
        "Every assumption halved and doubled, and light work as some published versions have it (stepwise pattern)",
        ("assumption", "missed", "bars missed"),
        tuple(rows),
    )


def _page(runs: Sequence[VispRun], figures: Figures, checks: Sequence[Check], varied: Sequence[VispVariation]) -> Page:
    blocks: list[Block] = [
        Prose(
            "Cost-efficient enactment of stream processing topologies (Hochreiner et al., PeerJ CS 2017), reproduced on "
            "the simulated plant. Every figure that is not marked as the paper's is simulated. Durations are per operator "
            "and contain messaging, as the paper's do."
        ),
        Prose(f"{counted(checks)}. {verdict(figures, checks, varied)}"),
        check_table(checks),
    ]
    for pattern, columns in figures.items():
        name = TABLES[pattern].name
        caption = f"{pattern}: simulated beside the paper's {name}, mean (σ) over the seeds"
        blocks += [Heading(pattern), comparison_table(caption, columns, printed(pattern), name, _text)]
        blocks += [_plot(run) for run in runs if run.case.pattern == pattern and run.case.seed == runs[0].case.seed]
    blocks += [Heading("What is assumed"), assumption_table(VispAssumptions())]
    if varied:
        blocks += [Heading("What depends on it"), sensitivity_table(varied)]
    return Page("VISP: provisioning by billing time unit (simulated)", tuple(blocks))


def _plot(run: VispRun) -> Plot:
    minutes, offered, instances, hosts = (list(column) for column in zip(*run.series, strict=True))
    return hosts_plot(
        f"{run.case.pattern}, {run.case.name} (simulated; compare Figure {FIGURES[run.case.pattern]})",
        "minutes",
        minutes,
        load_line("data volume", minutes, offered, steps=True),
        "items/s",
        instances,
        hosts,
        "operator instances",
    )


def _text(metric: str, value: Statistic) -> str:
    if math.isnan(value.mean):
        return "-"
    if "compliance" in metric:
        return f"{value.mean:.1%} ({value.deviation:.1%})"
    if metric == "items":
        return f"{value.mean:,.0f}"
    return f"{value.mean:.2f} ({value.deviation:.2f})"


def _json(value: Statistic) -> dict[str, float | None]:
    return {
        "mean": None if math.isnan(value.mean) else value.mean,
        "deviation": None if math.isnan(value.deviation) else value.deviation,
    }
