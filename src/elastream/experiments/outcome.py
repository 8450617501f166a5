"""What an experiment has come to: figures, the paper's beside them, and checks that hold or do not.

Every experiment ends in an `Outcome`, so that all of them print, save and fail alike. How it is laid out as a page is
`elastream.experiments.page`.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from elastream.experiments.page import Page, Table

__all__ = ["Check", "Outcome", "check_table", "environment"]


@dataclass(frozen=True, slots=True)
class Check:
    """One bar: `holds` says whether `value` is within `bound`; `source` where the bar comes from."""

    name: str
    value: float | str
    bound: str
    holds: bool
    source: str

    @classmethod
    def at_least(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        """That `value` reaches `bar`; it is shown with so many decimals."""
        return cls(name, round(value, digits), f">= {bar:g}", value >= bar, source)

    @classmethod
    def at_most(cls, name: str, value: float, bar: float, source: str, digits: int = 4) -> "Check":
        """That `value` does not exceed `bar`, likewise."""
        return cls(name, round(value, digits), f"<= {bar:g}", value <= bar, source)


@dataclass(frozen=True)
class Outcome:
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
        """Whether every check does."""
        return all(check.holds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; see DESIGN, "What every experiment and benchmark prints"."""
        checks = [
            {"name": c.name, "value": c.value, "bound": c.bound, "holds": c.holds, "source": c.source} for c in self.checks
        ]
        return {
            "figures": self.figures,
            "paper": self.paper,
            "checks": checks,
            "verdict": self.verdict,
            "environment": dict(self.environment),
        }


def check_table(checks: Sequence[Check], plant: str = "simulated") -> Table:
    """The bars, each with its value; `plant`: what the figures are from."""
    return Table(
        f"Bars, on {plant} figures",
        ("bar", "value", "bound", "holds", "source"),
        tuple((c.name, str(c.value), c.bound, "yes" if c.holds else "MISSED", c.source) for c in checks),
        tuple(c.holds for c in checks),
    )


def environment(**more: Any) -> dict[str, Any]:
    """What a figure depends on besides the code: interpreter, libraries, machine; simulated figures say so in `plant`."""
    return {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        **more,
    }
