"""The VISP experiment as people read it: Tables 3 to 6 beside the paper's, plots like Figures 8 to 11, bars, sensitivity.

Simulated figures and the paper's never share a column. What is computed is computed in `visp`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastream.experiments.manufacturing import Assumptions
from elastream.experiments.outcome import Check, Outcome, environment
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, line
from elastream.experiments.visp import COLUMNS, Figures, Run, Statistic, bars, cases, run_cases, tabulate
from elastream.experiments.visp_paper import TABLES, Printed

__all__ = ["Variation", "check_table", "comparison", "outcome", "run_visp", "sensitivity_table", "variations", "verdict"]

FIGURES: Mapping[str, str] = {"stepwise": "8", "two-level": "9", "walk 1": "10", "walk 2": "11"}
"""The paper's figure of each pattern."""


@dataclass(frozen=True, slots=True)
class Variation:
    """What became of the bars with one assumption multiplied."""

    assumption: str
    factor: float
    checks: tuple[Check, ...]


def outcome(runs: Sequence[Run], seconds: float, varied: Sequence[Variation] = ()) -> Outcome:
    """All that the runs say: figures, the paper's under the same names, bars and the page."""
    figures = tabulate(runs)
    checks = bars(figures)
    about = environment(plant="simulated", runs=len(runs), seconds=round(seconds, 1))
    return Outcome(
        {
            "tables": {
                pattern: {column: {m: _json(s) for m, s in metrics.items()} for column, metrics in columns.items()}
                for pattern, columns in figures.items()
            },
            "sensitivity": [
                {"assumption": v.assumption, "factor": v.factor, "missed": [c.name for c in v.checks if not c.holds]}
                for v in varied
            ],
            "seconds": round(seconds, 2),
        },
        {
            pattern: {
                column: {metric: _json(printed) for metric, row in TABLES[pattern].rows.items() if (printed := row[column])}
                for column in COLUMNS
            }
            for pattern in figures
        },
        checks,
        _page(runs, figures, checks, varied),
        about,
        verdict(checks),
    )


def run_visp(*, quick: bool = False, sensitivity: bool = False, workers: int = 2, progress: object = None) -> Outcome:
    """The whole experiment: 48 runs, or with `quick` the four of the stepwise pattern and one seed.

    sensitivity: also one run of each provisioning approach on that pattern with every assumption halved and doubled.

    progress: called with (name of what is done, runs done, runs in all).
    """
    told = progress if callable(progress) else lambda *_: None
    wanted = cases(("stepwise",), (1,)) if quick else cases()
    changes = variations() if sensitivity else []
    total = len(wanted) + 4 * len(changes)
    done = 0

    def tell(run: Run) -> None:
        nonlocal done
        done += 1
        told(f"{run.case.pattern}, {run.case.name}, seed {run.case.seed}", done, total)

    runs, seconds = run_cases(wanted, workers, tell)
    varied = []
    if changes:
        # One batch, so that the workers are never idle between two variations.
        batches = [cases(("stepwise",), (1,), Assumptions().scaled(name, factor)) for name, factor in changes]
        found, _ = run_cases([case for batch in batches for case in batch], workers, tell)
        size = len(batches[0])
        varied = [
            Variation(name, factor, bars(tabulate(found[k * size : (k + 1) * size])))
            for k, (name, factor) in enumerate(changes)
        ]
    return outcome(runs, seconds, varied)


def variations() -> list[tuple[str, float]]:
    """Every assumption, halved and doubled."""
    return [(name, factor) for name, *_ in Assumptions().listed() for factor in (0.5, 2.0)]


def comparison(pattern: str, columns: Mapping[str, Mapping[str, Statistic]]) -> Table:
    """One of Tables 3 to 6: per metric a row of ours (simulated), and under it the paper's where it gives one."""
    paper = TABLES[pattern]
    rows: list[tuple[str, ...]] = []
    for metric in next(iter(columns.values())):
        rows.append((f"{metric} (simulated)", *(_text(metric, columns[column][metric]) for column in COLUMNS)))
        if metric in paper.rows:
            rows.append((f"   paper, {paper.name}", *(_text(metric, paper.rows[metric][column]) for column in COLUMNS)))
    return Table(
        f"{pattern}: simulated beside the paper's {paper.name}, mean (σ) over the seeds", ("", *COLUMNS), tuple(rows)
    )


def check_table(checks: Sequence[Check]) -> Table:
    """The bars, each with its value."""
    return Table(
        "Bars, on simulated figures",
        ("bar", "value", "bound", "holds", "source"),
        tuple((c.name, str(c.value), c.bound, "yes" if c.holds else "MISSED", c.source) for c in checks),
        tuple(c.holds for c in checks),
    )


def verdict(checks: Sequence[Check]) -> str:
    """What missed bars hang on, in words; empty where none is missed."""
    missed = [check for check in checks if not check.holds]
    if not missed:
        return ""
    between_btus = [check for check in missed if "orders" in check.name or "grows" in check.name]
    if len(between_btus) < len(missed):
        return "Bars are missed that compare the two policies: see the sensitivity of the bars."
    return (
        "Those missed compare BTU10, BTU30 and BTU60 with each other. They hang on the assumed work an item and number of "
        "machines: with these the dataflow needs about three hosts, where the paper's bill means six to eight; operator O1 "
        "fills them, so that a host can hardly ever be emptied when its BTU ends, and the length of the BTU has little to "
        "act on. With twice the machines the order of the three shows (see the sensitivity of the bars)."
    )


def sensitivity_table(varied: Sequence[Variation]) -> Table:
    """Which bars are missed with which assumption halved or doubled; stepwise pattern, one seed."""
    rows = []
    for variation in varied:
        missed = [check.name.removeprefix("stepwise: ") for check in variation.checks if not check.holds]
        rows.append((f"{variation.assumption} x {variation.factor:g}", str(len(missed)), "; ".join(missed) or "none"))
    return Table(
        "Every assumption halved and doubled (stepwise pattern, seed 1)",
        ("assumption", "missed", "bars missed"),
        tuple(rows),
    )


def assumption_table() -> Table:
    """What the paper leaves open, and what is assumed."""
    return Table(
        "Assumptions",
        ("assumption", "value", "unit", "why"),
        tuple((name, f"{value:g}", unit, why) for name, value, unit, why in Assumptions().listed()),
    )


def _page(runs: Sequence[Run], figures: Figures, checks: Sequence[Check], varied: Sequence[Variation]) -> Page:
    missed = [check for check in checks if not check.holds]
    blocks: list[Block] = [
        Prose(
            "Cost-efficient enactment of stream processing topologies (Hochreiner et al., PeerJ CS 2017), reproduced on "
            "the simulated plant. Every figure that is not marked as the paper's is simulated. Durations are per operator "
            "and contain messaging, as the paper's do."
        ),
        Prose(f"{len(checks) - len(missed)} of {len(checks)} bars hold. {verdict(checks)}"),
        check_table(checks),
    ]
    for pattern, columns in figures.items():
        blocks += [Heading(pattern), comparison(pattern, columns)]
        blocks += [_plot(run) for run in runs if run.case.pattern == pattern and run.case.seed == runs[0].case.seed]
    blocks += [Heading("What is assumed"), assumption_table()]
    if varied:
        blocks += [Heading("What depends on it"), sensitivity_table(varied)]
    return Page("VISP: provisioning by billing time unit (simulated)", tuple(blocks))


def _plot(run: Run) -> Plot:
    minutes, offered, instances, hosts = (list(column) for column in zip(*run.series, strict=True))
    return Plot(
        f"{run.case.pattern}, {run.case.name} (simulated; compare Figure {FIGURES[run.case.pattern]})",
        "minutes",
        "instances, hosts",
        (
            line("data volume", minutes, offered, colour=5, axis=2, steps=True, fill=True, dash="dot"),
            line("operator instances", minutes, instances, colour=0, steps=True),
            line("hosts", minutes, hosts, colour=1, steps=True),
        ),
        "items/s",
    )


def _text(metric: str, value: Statistic | Printed) -> str:
    if math.isnan(value.mean):
        return "-"
    if "compliance" in metric:
        return f"{value.mean:.1%} ({value.deviation:.1%})"
    if metric == "items":
        return f"{value.mean:,.0f}"
    return f"{value.mean:.2f} ({value.deviation:.2f})"


def _json(value: Statistic | Printed) -> dict[str, float | None]:
    return {
        "mean": None if math.isnan(value.mean) else value.mean,
        "deviation": None if math.isnan(value.deviation) else value.deviation,
    }
