"""What an experiment has come to: figures, the paper's beside them, and bars that are held, missed or undecided.

Every experiment ends in an `Findings`, so that all of them print, save and fail alike. How it is laid out as a page is
`elastream.experiments.page`.
"""

import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from time import strftime
from typing import Any

from elastream.experiments.page import Page, Table

__all__ = ["CHANCE", "Check", "Findings", "as_json", "check_table", "counted", "environment"]

CHANCE = 0.05
"""How likely a bar may be called held, or missed, by chance where runs scatter."""


@dataclass(frozen=True, slots=True)
class Check:
    """One bar: `holds` says whether `value` is within `bound`, None where runs cannot tell; `source`: where it is from."""

    name: str
    value: float | str
    bound: str
    holds: bool | None
    source: str

    @property
    def missed(self) -> bool:
        """Whether the bar is missed; an undecided one is not."""
        return self.holds is False

    @property
    def verdict(self) -> str:
        """held, missed or undecided."""
        return "undecided" if self.holds is None else "held" if self.holds else "missed"

    @classmethod
    def at_least(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        """That `value` reaches `bar`; it is shown with so many decimals."""
        return cls(name, round(value, digits), f">= {bar:g}", value >= bar, source)

    @classmethod
    def at_most(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        """That `value` does not exceed `bar`; it is shown with so many decimals."""
        return cls(name, round(value, digits), f"<= {bar:g}", value <= bar, source)

    @classmethod
    def median_at_least(cls, name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> "Check":
        """That the median of what `runs` are drawn from reaches `bar`, by a sign test: fewer than five never decide it."""
        held = sum(run >= bar for run in runs)
        return cls(name, round(statistics.median(runs), digits), f">= {bar:g}", _decided(held, len(runs)), source)

    @classmethod
    def median_at_most(cls, name: str, runs: Sequence[float], bar: float, source: str, digits: int = 4) -> "Check":
        """That the median of what `runs` are drawn from does not exceed `bar`, by a sign test: see `median_at_least`."""
        held = sum(run <= bar for run in runs)
        return cls(name, round(statistics.median(runs), digits), f"<= {bar:g}", _decided(held, len(runs)), source)


def _decided(held: int, runs: int) -> bool | None:
    """Whether a bar is held that `held` of `runs` runs are within: each is as likely within as beyond at the bar itself."""

    def chance(least: int) -> float:
        """Of as many within, or more, where one is as likely as the other."""
        return float(sum(math.comb(runs, number) for number in range(least, runs + 1)) / 2**runs)

    if chance(held) <= CHANCE:
        return True
    return False if chance(runs - held) <= CHANCE else None


@dataclass(frozen=True)
class Findings:
    """Figures by name (nested, JSON-ready), the paper's under the same names, checks, and the page that shows it all.

    verdict: what missed checks hang on, in words; empty where none is missed or nothing is known about it.
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
        """JSON-ready."""
        return as_json(self.figures, self.paper, self.checks, self.environment, self.verdict)


def as_json(
    figures: Mapping[str, Any],
    paper: Mapping[str, Any],
    checks: Sequence[Check],
    environment: Mapping[str, Any],
    summary: str = "",
) -> dict[str, Any]:
    """What `--json` writes, of experiments and benchmarks; `summary`: what they come to, in words."""
    bars = [{"name": c.name, "value": c.value, "bound": c.bound, "verdict": c.verdict, "source": c.source} for c in checks]
    return {"figures": figures, "paper": paper, "checks": bars, "summary": summary, "environment": dict(environment)}


def counted(checks: Sequence[Check]) -> str:
    """How many bars are held, in words."""
    undecided = sum(check.holds is None for check in checks)
    held = f"{sum(check.verdict == 'held' for check in checks)} of {len(checks)} bars are held"
    return f"{held}, {undecided} undecided" if undecided else held


def check_table(checks: Sequence[Check], plant: str = "simulated") -> Table:
    """The bars, each with its value; `plant`: what the figures are from."""
    return Table(
        f"Bars, on {plant} figures",
        ("bar", "value", "bound", "verdict", "source"),
        tuple((c.name, str(c.value), c.bound, c.verdict, c.source) for c in checks),
        tuple(c.holds for c in checks),
    )


def environment(**more: Any) -> dict[str, Any]:
    """What a figure depends on besides the code: day, machine, interpreter, libraries; simulated ones say so in `plant`."""
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
