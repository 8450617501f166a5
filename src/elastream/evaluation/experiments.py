"""Experiments of other distributions, found as entry points. `elastream-papers` brings those of the papers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from elastream.evaluation.findings import Findings

Progress: TypeAlias = Callable[[str, int, int], None]
"""Receives (description, runs done, all runs)."""


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Options that every experiment has.

    quick: run the smallest part only. sensitivity: also halve and double every assumption. workers: processes for simulated
    cases. resume: file of results that are kept as they come, and reused. say: receives remarks on the run.
    """

    quick: bool = False
    sensitivity: bool = False
    workers: int = 2
    progress: Progress = lambda *_: None
    resume: Path | None = None
    say: Callable[[str], None] = lambda _: None


class Experiment(Protocol):
    """An evaluation that `elastream experiment NAME` repeats."""

    @property
    def plants(self) -> Sequence[str]:
        """Plants that it runs on, the default first."""
        ...

    def options(self, plant: str) -> Collection[str]:
        """Return the names of the options that this experiment alone has on `plant`."""
        ...

    def run(self, plant: str, options: ExperimentOptions, more: Mapping[str, Any]) -> Findings:
        """Run it on `plant`. more: options of its own by name."""
        ...


def installed() -> dict[str, EntryPoint]:
    """Return the entry points of all installed experiments by name; each loads an `Experiment`."""
    return {each.name: each for each in entry_points(group="elastream.experiments")}
