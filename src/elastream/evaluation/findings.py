"""Findings of an experiment: its figures, the paper's, and bars that are held, missed or undecided."""

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
    """One bar: `value` against `bound`; `holds` None: undecided.

    refuted: Reason why no system can hold the bar; empty if one could.
    """

    name: str
    value: float | str
    bound: str
    holds: bool | None
    source: str
    refuted: str = ""

    @property
    def missed(self) -> bool:
        return self.holds is False and not self.refuted

    @property
    def verdict(self) -> str:
        if self.refuted:
            return "refuted"
        return "undecided" if self.holds is None else "held" if self.holds else "missed"

    @classmethod
    def at_least(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        return cls(name, round(value, digits), f">= {bar:g}", value >= bar, source)

    @classmethod
    def at_most(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        return cls(name, round(value, digits), f"<= {bar:g}", value <= bar, source)


@dataclass(frozen=True)
class Findings:
    """Figures by name (JSON-ready), the paper's, checks, page, and the `verdict` on missed checks."""

    figures: Mapping[str, Any]
    paper: Mapping[str, Any]
    checks: tuple[Check, ...]
    page: Page
    environment: Mapping[str, Any] = field(default_factory=dict)
    verdict: str = ""

    @property
    def holds(self) -> bool:
        return not any(check.missed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        return as_json(self.figures, self.paper, self.checks, self.environment, self.verdict)


def as_json(
    figures: Mapping[str, Any],
    paper: Mapping[str, Any],
    checks: Sequence[Check],
    environment: Mapping[str, Any],
    summary: str = "",
) -> dict[str, Any]:
    bars = [
        {"name": c.name, "value": _written(c.value), "bound": c.bound, "verdict": c.verdict, "source": c.source}
        for c in checks
    ]
    return {"figures": figures, "paper": paper, "checks": bars, "summary": summary, "environment": dict(environment)}


def _written(value: float | str) -> float | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def counted(checks: Sequence[Check]) -> str:
    number = {word: sum(check.verdict == word for check in checks) for word in ("held", "undecided", "refuted")}
    count = f"{number.pop('held')} of {len(checks)} bars are held"
    return ", ".join([count, *(f"{each} {word}" for word, each in number.items() if each)])


def check_table(checks: Sequence[Check], plant: str = "simulated") -> Table:
    return Table(
        f"Bars, on {plant} figures",
        ("bar", "value", "bound", "verdict", "source"),
        tuple((c.name, str(c.value), c.bound, c.verdict, c.source) for c in checks),
        tuple(c.holds for c in checks),
    )


def environment(**more: Any) -> dict[str, Any]:
    """Return date, machine and versions."""
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
