"""Findings of an experiment: figures, bars and sections of its page."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, TypeVar

from elastream.evaluation.findings import Check, Findings, check_table, counted, environment
from elastream.evaluation.page import Block, Heading, Page, Prose, Table
from elastream.report.plots import Curve, Plot

Sections = Mapping[str, Iterable[Block]]  # blocks by heading; those under "" come first, without heading
NOTHING: Mapping[str, Any] = MappingProxyType({})

V = TypeVar("V")


def comparison_table(
    caption: str,
    ours: Mapping[str, Mapping[str, V]],
    paper: Mapping[str, Mapping[str, V]],
    source: str,
    text: Callable[[str, V], str],
    plant: str = "simulated",
) -> Table:
    """Return two rows per metric, ours and the paper's."""
    rows: list[tuple[str, ...]] = []
    for metric in next(iter(ours.values())):
        rows.append((f"{metric} ({plant})", *(text(metric, figures[metric]) for figures in ours.values())))
        printed = [paper.get(column, {}).get(metric) for column in ours]
        if any(value is not None for value in printed):
            rows.append((f"   paper, {source}", *("-" if value is None else text(metric, value) for value in printed)))
    return Table(caption, ("", *ours), tuple(rows))


def report(  # noqa: PLR0913
    title: str,
    about: str | Sequence[str],
    figures: Mapping[str, Any],
    checks: Sequence[Check],
    sections: Sections,
    seconds: float,
    *,
    paper: Mapping[str, Any] = NOTHING,
    verdict: str = "",
    plant: str = "simulated",
    **more: Any,
) -> Findings:
    """Return the findings: JSON, page and verdict.

    Args:
        about: paragraphs on what was run and how figures are to be read.
        sections: what the page shows below the bars; a heading without blocks is left out.
        paper: the paper's figures, under the names of ours.
        verdict: conclusion in sentences.
        plant: "simulated", "spark", or a kind of data such as "synthetic".
        more: further conditions of the figures, such as `runs` or `hosts`.
    """
    on_spark = plant == "spark"
    shown: list[Block] = [Prose(each) for each in ((about,) if isinstance(about, str) else about)]
    shown += [Prose(f"{counted(checks)}. {verdict}".rstrip()), check_table(checks, "Spark" if on_spark else plant)]
    for heading, blocks in sections.items():
        below = list(blocks)
        shown += [*([Heading(heading)] if heading and below else []), *below]
    spark = {"plant": plant, "spark": version("pyspark")} if on_spark else {"plant": "simulated"}
    about_run = environment(**spark, **more, seconds=round(seconds, 1))
    all_figures = {**figures, "seconds": round(seconds, 1 if on_spark else 2)}
    return Findings(all_figures, paper, tuple(checks), Page(title, tuple(shown)), about_run, verdict)


def by_verdict(checks: Sequence[Check], **said: str) -> str:
    """Return the names of the checks by verdict, after its phrase: `missed="Missed"`."""
    sentences = []
    for verdict, phrase in said.items():
        if names := [check.name for check in checks if check.verdict == verdict]:
            sentences.append(f"{phrase}: {'; '.join(names)}.")
    return " ".join(sentences)


def curves(
    caption: str, x: str, y: str, points: Mapping[str, Iterable[tuple[float, float]]], dashes: Sequence[str] = ()
) -> Plot:
    """Return a plot with a curve per name; each has the next colour, and its dash if given."""
    lines = []
    for number, (name, pairs) in enumerate(points.items()):
        known = list(pairs)
        dash = dashes[number] if dashes else "solid"
        lines.append(Curve(name, [a for a, _ in known], [b for _, b in known], colour=number, dash=dash))
    return Plot(caption, x, y, tuple(lines))


def rounded(value: float, digits: int = 5) -> float | None:
    """Return `value` rounded for JSON; None if unknown."""
    return round(value, digits) if math.isfinite(value) else None
