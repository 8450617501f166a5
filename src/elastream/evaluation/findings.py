"""Findings of an experiment: its figures, those of the paper, and bars that are held, missed or undecided.

Every experiment returns `Findings`, so that all are printed, saved and judged in the same way.
`elastream.evaluation.page` renders them.
"""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from time import strftime
from typing import Any

from elastream.evaluation.page import Page, Table


@dataclass(frozen=True, slots=True)
class Check:
    """One bar. holds: whether `value` is within `bound`; None: undecided. source: origin of the bar."""

    name: str
    value: float | str
    bound: str
    holds: bool | None
    source: str

    @property
    def missed(self) -> bool:
        """Whether the bar is missed; an undecided bar is not."""
        return self.holds is False

    @property
    def verdict(self) -> str:
        """ "held", "missed" or "undecided"."""
        return "undecided" if self.holds is None else "held" if self.holds else "missed"

    @classmethod
    def at_least(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        """A check that `value` is at least `bar`. digits: decimals shown."""
        return cls(name, round(value, digits), f">= {bar:g}", value >= bar, source)

    @classmethod
    def at_most(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        """A check that `value` is at most `bar`. digits: decimals shown."""
        return cls(name, round(value, digits), f"<= {bar:g}", value <= bar, source)


@dataclass(frozen=True)
class Findings:
    """Figures by name (nested, JSON-ready), the paper's under the same names, checks, and the page that shows it all.

    verdict: explanation of missed checks; empty if none is missed or the cause is unknown.
    """

    figures: Mapping[str, Any]
    paper: Mapping[str, Any]
    checks: tuple[Check, ...]
    page: Page
    environment: Mapping[str, Any] = field(default_factory=dict)
    verdict: str = ""

    @property
    def holds(self) -> bool:
        """Whether no bar is missed."""
        return not any(check.missed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The findings as JSON-ready dict, see `as_json`."""
        return as_json(self.figures, self.paper, self.checks, self.environment, self.verdict)


def as_json(
    figures: Mapping[str, Any],
    paper: Mapping[str, Any],
    checks: Sequence[Check],
    environment: Mapping[str, Any],
    summary: str = "",
) -> dict[str, Any]:
    """Content of the `--json` file of experiments and benchmarks; summary: conclusion in words."""
    bars = [
        {"name": c.name, "value": _written(c.value), "bound": c.bound, "verdict": c.verdict, "source": c.source}
        for c in checks
    ]
    return {"figures": figures, "paper": paper, "checks": bars, "summary": summary, "environment": dict(environment)}


def _written(value: float | str) -> float | str:
    """A value as JSON can hold it: one that never came is infinite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def counted(checks: Sequence[Check]) -> str:
    undecided = sum(check.holds is None for check in checks)
    held = f"{sum(check.verdict == 'held' for check in checks)} of {len(checks)} bars are held"
    return f"{held}, {undecided} undecided" if undecided else held


def check_table(checks: Sequence[Check], plant: str = "simulated") -> Table:
    """A table of the bars with values and verdicts; plant: origin of the figures."""
    return Table(
        f"Bars, on {plant} figures",
        ("bar", "value", "bound", "verdict", "source"),
        tuple((c.name, str(c.value), c.bound, c.verdict, c.source) for c in checks),
        tuple(c.holds for c in checks),
    )


def environment(**more: Any) -> dict[str, Any]:
    """Conditions of figures besides the code: date, machine, interpreter, libraries; more: others, such as `plant`."""
    return {
        "date": strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        **more,
    }
