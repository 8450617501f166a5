"""How the bars of an experiment change with each of its assumptions, as curves and verdicts."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from elastream.evaluation.findings import Check
from elastream.evaluation.page import Block, Prose, Table
from elastream_papers.harness.report import curves

Varied: TypeAlias = Mapping[tuple[str, float], Sequence[Check]]  # bars by assumption and factor
# by assumption, bar and factor: value and verdict
Turned: TypeAlias = Mapping[str, Mapping[str, Mapping[str, tuple[str, str]]]]


def turned(base: Sequence[Check], varied: Varied) -> Turned:
    """Return by assumption the curves of the bars whose verdict it turns, which may be none.

    base: bars at the assumed values, of the same runs. Bars are matched by position, as names may contain results.
    """
    found: dict[str, dict[str, dict[str, tuple[str, str]]]] = {}
    for assumption in dict.fromkeys(name for name, _ in varied):
        curve = {1.0: base} | {factor: checks for (name, factor), checks in varied.items() if name == assumption}
        found[assumption] = {
            bar.name: {f"{factor:g}": (str(curve[factor][n].value), curve[factor][n].verdict) for factor in sorted(curve)}
            for n, bar in enumerate(base)
            if len({checks[n].verdict for checks in curve.values()}) > 1
        }
    return found


def sensitivity(base: Sequence[Check], varied: Varied) -> list[Block]:
    """Return a plot and a table of the verdicts that an assumption turns; empty without variations."""
    if not varied:
        return []
    turns = turned(base, varied)
    steady = [name for name, bars in turns.items() if not bars]
    blocks: list[Block] = [Prose(f"No verdict hangs on: {', '.join(steady)}.")] if steady else []
    if len(steady) == len(turns):
        return blocks
    points = {
        name: [
            (1.0, _count_held(base)),
            *((factor, _count_held(checks)) for (each, factor), checks in varied.items() if each == name),
        ]
        for name, bars in turns.items()
        if bars
    }
    factors = sorted({factor for line in points.values() for factor, _ in line})
    rows = tuple(
        (assumption, bar, *(": ".join(curve.get(f"{factor:g}", ("-", "-"))[::-1]) for factor in factors))
        for assumption, bars in turns.items()
        for bar, curve in bars.items()
    )
    lines = {name: sorted(line) for name, line in points.items()}
    return [
        curves(f"Bars held, of {len(base)}, over each assumption that turns a verdict", "factor", "bars held", lines),
        Table("Verdicts that an assumption turns", ("assumption", "bar", *(f"x {f:g}" for f in factors)), rows),
        *blocks,
    ]


def _count_held(checks: Sequence[Check]) -> float:
    return float(sum(check.verdict == "held" for check in checks))
