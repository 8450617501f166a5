"""Computes the overall equipment effectiveness (OEE) of machines, and writes PDF reports of it.

The formulas are Eq. (2) to (5) of "Cost-efficient enactment of stream processing topologies" (Hochreiner et al., PeerJ CS
2017), after Nakajima. A figure with an unknown input is None.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fpdf import FPDF

__all__ = ["availability", "mean", "oee", "performance", "quality", "write_report"]

Figure = float | None


def performance(produced: float | None, ideal_production_time: float, reporting_cycle: float) -> Figure:
    """Items produced times the ideal seconds per item, over the seconds of the cycle (Eq. 2)."""
    if produced is None or not reporting_cycle > 0:
        return None
    return produced * ideal_production_time / reporting_cycle


def availability(total: float | None, scheduled_downtime: float | None, unscheduled_downtime: float | None) -> Figure:
    """Fraction of the time since the start in which the machine was up (Eq. 3)."""
    if total is None or scheduled_downtime is None or unscheduled_downtime is None or not total > 0:
        return None
    return (total - scheduled_downtime - unscheduled_downtime) / total


def quality(total_produced: float | None, total_defective: float | None) -> Figure:
    """Fraction of all items since the start without defect (Eq. 4); None before the first item."""
    if total_produced is None or total_defective is None or not total_produced > 0:
        return None
    return (total_produced - total_defective) / total_produced


def oee(availability: Figure, performance: Figure, quality: Figure) -> Figure:
    """Product of the three figures (Eq. 5)."""
    if availability is None or performance is None or quality is None:
        return None
    return availability * performance * quality


def mean(figures: Sequence[Figure]) -> Figure:
    """Mean of the known figures; None without any."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else None


FIGURES = ("availability", "performance", "quality", "oee")
HEADS = (*FIGURES[:-1], "OEE")


def write_report(path: Path, title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a PDF to `path` atomically: a table of the machines' means, and one of all `rows`.

    A row has `machine`, `cycle` and the four figures, None if unknown.
    """
    from fpdf import FPDF  # imported on use: only hosts that write reports need it

    page = FPDF()
    page.add_page()
    page.set_font("helvetica", "B", 16)
    page.cell(0, 10, title, new_x="LMARGIN", new_y="NEXT")
    machines = sorted({str(row["machine"]) for row in rows})
    means = [
        [machine, *(written(mean([_figure(row[name]) for row in rows if row["machine"] == machine])) for name in FIGURES)]
        for machine in machines
    ]
    overall = ["all", *(written(mean([_figure(row[name]) for row in rows])) for name in FIGURES)]
    _table(page, f"{len(machines)} machines, means", ["machine", *HEADS], [*means, overall])
    each = [[str(row["machine"]), str(row["cycle"]), *(written(_figure(row[name])) for name in FIGURES)] for row in rows]
    _table(page, f"{len(rows)} readings", ["machine", "cycle", *HEADS], each)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    page.output(str(temporary))
    os.replace(temporary, path)


def written(figure: Figure) -> str:
    """A figure as text: `"93.1 %"`, or a dash if unknown."""
    return "-" if figure is None else f"{100 * figure:.1f} %"


def _figure(value: object) -> Figure:
    assert value is None or isinstance(value, float | int)
    return value


def _table(page: "FPDF", title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    page.set_font("helvetica", "B", 11)
    page.cell(0, 10, title, new_x="LMARGIN", new_y="NEXT")
    page.set_font("helvetica", "", 9)
    with page.table(text_align="RIGHT", line_height=5) as table:
        for row in (head, *rows):
            table.row(row)
