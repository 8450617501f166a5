"""Overall equipment effectiveness (OEE) of machines: its formulas, and the report of it as PDF.

The formulas are Eq. (2) to (5) of "Cost-efficient enactment of stream processing topologies" (Hochreiner et al., PeerJ CS
2017), after Nakajima. A figure that cannot be computed is None: neither is an unknown input 0, nor its ratio.
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
    """Items of a cycle times the seconds each takes ideally, over the seconds of the cycle (Eq. 2)."""
    if produced is None or not reporting_cycle > 0:
        return None
    return produced * ideal_production_time / reporting_cycle


def availability(total: float | None, scheduled_downtime: float | None, unscheduled_downtime: float | None) -> Figure:
    """Share of all seconds since the start in which a machine was up (Eq. 3)."""
    if total is None or scheduled_downtime is None or unscheduled_downtime is None or not total > 0:
        return None
    return (total - scheduled_downtime - unscheduled_downtime) / total


def quality(total_produced: float | None, total_defective: float | None) -> Figure:
    """Share of all goods since the start that are in order (Eq. 4); None before the first one."""
    if total_produced is None or total_defective is None or not total_produced > 0:
        return None
    return (total_produced - total_defective) / total_produced


def oee(availability: Figure, performance: Figure, quality: Figure) -> Figure:
    """The product of the three (Eq. 5)."""
    if availability is None or performance is None or quality is None:
        return None
    return availability * performance * quality


def mean(figures: Sequence[Figure]) -> Figure:
    """Mean of the known ones."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) / len(known) if known else None


FIGURES = ("availability", "performance", "quality", "oee")
HEADS = (*FIGURES[:-1], "OEE")


def write_report(path: Path, title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Write a PDF at `path`, whole or not at all: a table of the machines' means, and one of all `rows`.

    A row has `machine`, `cycle` and the four figures, each None where unknown.
    """
    from fpdf import FPDF  # where no report is written, it is not needed

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
    """A figure as people read it: `"93.1 %"`, or a dash where it is unknown."""
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
