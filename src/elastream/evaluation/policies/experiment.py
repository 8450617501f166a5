"""The experiment `policies`, as `elastream experiment` runs it: bars and tables.

One cell can miss a bar about any load; the whole grid holds it. The confidence interval over loads and seeds decides a bar
about a mean.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from elastream.core.wording import UNKNOWN
from elastream.errors import InputError
from elastream.evaluation.cases import run_all
from elastream.evaluation.checks import MeanInterval
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings, check_table, environment
from elastream.evaluation.page import Page, Prose, Table
from elastream.evaluation.policies.cells import ARMS, IN_TIME, OURS, RIVALS, Case, Cell, gathered, grid, run_case, short
from elastream.evaluation.policies.loads import LONG_NOISE, NOISE, ONE_BURST, ONE_STEP, recorded_loads

Row: TypeAlias = Mapping[str, Any]
Figure: TypeAlias = Callable[[Row], float | None]

# A load counts for the bar of records in time if a constant fleet of this multiple of its fill can serve it.
SERVABLE = 4.0
OVER_BOUND, OVER_CONSTANT, OVER_RIVAL_MEAN, OVER_RIVAL, LATE_OVER_BEST = 1.25, 1.03, 0.85, 1.02, 1.2
# Target latency of the bar on recorded loads (seconds).
BOUND_TARGET_S = 30.0


def ours(row: Row) -> Row:
    figures: Row = row["policies"][OURS]
    return figures


def time_if_servable(row: Row) -> float | None:
    """Return the part in time; None for a load that no constant fleet of moderate size serves."""
    constant = row.get("constant")
    servable = constant is not None and constant["hosts"] <= SERVABLE * row["fill"]
    return float(ours(row)["in time"]) if servable else None


def over_bound(row: Row) -> float | None:
    """Return the cost over the clairvoyant bound on a recorded load at the target latency of the bar."""
    return row.get("over bound") if row["hours"] == 0 and row["target"] == BOUND_TARGET_S else None


def over_constant(row: Row) -> float | None:
    constant = row.get("constant")
    return None if constant is None else float(ours(row)["cost"] / constant["cost"])


def cheapest_rival(row: Row) -> str | None:
    figures = row["policies"]
    meeting = [name for name in RIVALS if name in figures and figures[name]["in time"] >= IN_TIME]
    return min(meeting, key=lambda name: float(figures[name]["cost"]), default=None)


def over_rival(row: Row) -> float | None:
    rival = cheapest_rival(row)
    return None if rival is None else float(ours(row)["cost"] / row["policies"][rival]["cost"])


def late_over_best(row: Row) -> float | None:
    figures = ours(row)
    return figures["late until, s"] / figures["at best, s"] if row["load"] == ONE_BURST else None


def checks_of(rows: Sequence[Row], *, whole: bool) -> tuple[Check, ...]:
    def of_load(load: str, name: str) -> Figure:
        return lambda row: ours(row)[name] if row["load"] == load else None

    def most(name: str, figure: Figure, bar: float) -> Check:
        return _any(name, rows, figure, bar, whole=whole)

    noise = LONG_NOISE if whole else NOISE
    return (
        _any("in time after the first hour, any load", rows, time_if_servable, IN_TIME, whole=whole, least=True),
        _mean("cost over the bound, mean of recorded loads at 30 s", rows, over_bound, OVER_BOUND),
        _mean("cost over the best constant fleet, mean", rows, over_constant, 1.0),
        most("cost over the best constant fleet, any load", over_constant, OVER_CONSTANT),
        _mean("cost over the cheapest rival in time, mean", rows, over_rival, OVER_RIVAL_MEAN),
        most("cost over the cheapest rival in time, any load", over_rival, OVER_RIVAL),
        most("one step: rounds with leases", of_load(ONE_STEP, "rounds up"), 1),
        most("one step: rounds with releases", of_load(ONE_STEP, "rounds down"), 1),
        most(f"{noise}: leases after the first hour", of_load(noise, "leases after the first hour"), 0),
        most("tenfold burst: seconds late over the fewest possible", late_over_best, LATE_OVER_BEST),
    )


def _any(name: str, rows: Iterable[Row], figure: Figure, bar: float, *, whole: bool, least: bool = False) -> Check:
    cells = [(value, row) for row in rows if (value := figure(row)) is not None]
    bound = f"{'>=' if least else '<='} {bar:g}"
    if not cells:
        return Check(name, UNKNOWN, bound, None, "no such cell ran")
    value, row = (min if least else max)(cells, key=lambda cell: cell[0])
    within = sum(each >= bar if least else each <= bar for each, _ in cells)
    holds = False if within < len(cells) else True if whole else None
    return Check(name, round(value, 4), bound, holds, f"{within} of {len(cells)} cells; worst: {label(row)}")


def _mean(name: str, rows: Iterable[Row], figure: Figure, bar: float) -> Check:
    by_load: dict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if (value := figure(row)) is not None:
            by_load[row["load"], row["seed"]].append(value)
    interval = MeanInterval.of([statistics.fmean(values) for values in by_load.values()])
    count = f"{sum(map(len, by_load.values()))} cells of {len(by_load)} loads"
    if not by_load:
        return Check(name, UNKNOWN, f"<= {bar:g}", None, "no such cell ran")
    return Check(name, interval.shown(3), f"<= {bar:g}", interval.at_most(bar), count)


def label(row: Row) -> str:
    return str(Cell(**{each.name: row[each.name] for each in fields(Cell)}))


def page_of(rows: Sequence[Row], checks: Sequence[Check]) -> Page:
    prose = Prose(
        "Policies on loads without notice, simulated. Costs are over those of the best constant fleet in hindsight, as "
        "means of all cells; records in time are those after the first hour."
    )
    return Page("Policies", (prose, check_table(checks), _by_policy(rows), _by_load(rows)))


def _by_policy(rows: Sequence[Row]) -> Table:
    lines = []
    for arm in ARMS:
        cells = [(row["policies"][arm], row) for row in rows if arm in row["policies"]]
        meets = sum(figures["in time"] >= IN_TIME for figures, _ in cells)
        ratios = [figures["cost"] / row["constant"]["cost"] for figures, row in cells if row.get("constant")]
        lines.append(
            (arm, f"{meets} of {len(cells)}", _least(figures["in time"] for figures, _ in cells), _mean_of(ratios))
        )
    header = ("policy", "cells that meet the target", "in time, least", "cost over constant, mean")
    return Table("By policy", header, tuple(lines))


def _by_load(rows: Sequence[Row]) -> Table:
    lines = []
    for load in dict.fromkeys(row["load"] for row in rows):
        cells = [row for row in rows if row["load"] == load]
        rivals = {name for row in cells if (name := cheapest_rival(row)) is not None}
        lines.append(
            (
                short(load),
                str(len(cells)),
                _mean_of([row["fill"] for row in cells]),
                _mean_of([row["constant"]["hosts"] for row in cells if row.get("constant")]),
                _least(ours(row)["in time"] for row in cells),
                *(_mean_of([figure(row) for row in cells]) for figure in (over_constant, over_rival)),
                _mean_of([row.get("over bound") for row in cells]),
                ", ".join(sorted(rivals)) or UNKNOWN,
            )
        )
    header = (
        "load", "cells", "fill", "constant", f"in time, least ({OURS})", "over constant", "over rival", "over bound",
        "cheapest rivals",
    )  # fmt: skip
    return Table("By load", header, tuple(lines))


def _mean_of(values: Iterable[float | None]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return f"{statistics.fmean(finite):.2f}" if finite else UNKNOWN


def _least(values: Iterable[float]) -> str:
    return f"{min(values, default=math.nan):.1%}"


# Recorded rates beside a checkout of the repository.
RATES = "../shared/data/rates"


@dataclass(frozen=True)
class Policies:
    plants: Sequence[str] = ("simulated",)

    def options(self, plant: str) -> Collection[str]:
        return {"rates", "cells"}

    def run(self, plant: str, options: ExperimentOptions, more: Mapping[str, Any]) -> Findings:
        if options.sensitivity:
            raise InputError("policies has no --sensitivity: its grid varies loads, prices, targets and host starts")
        places, sample = more.get("rates"), more.get("cells")
        if places is None:
            places = (RATES,) if Path(RATES).is_dir() and not options.quick else ()
        cells = grid(recorded_loads(places), quick=options.quick, sample=sample)
        cases = sorted((Case(cell, arm) for cell in cells for arm in cell.arms), key=lambda case: case.arm != OURS)
        results, seconds = run_all(run_case, cases, options, str)
        rows = gathered(cells, dict(zip(cases, results, strict=True)))
        checks = checks_of(rows, whole=not options.quick and sample is None)
        figures = {"cells": rows, "seconds": round(seconds, 1)}
        return Findings(figures, {}, checks, page_of(rows, checks), environment(plant="simulated"))


POLICIES = Policies()
