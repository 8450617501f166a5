"""Experiments: our own, and those of other distributions, discovered as entry points, such as `elastream-papers`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from elastream.evaluation.findings import Findings

# receives (description, finished runs, all runs)
Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """Options of every experiment.

    Attributes:
        sensitivity: Also vary every assumption, for curves of the bars over it.
    """

    quick: bool = False
    sensitivity: bool = False
    workers: int = 2
    progress: Progress = lambda *_: None
    resume: Path | None = None
    say: Callable[[str], None] = lambda _: None


class Experiment(Protocol):
    """Evaluation that `elastream experiment NAME` repeats."""

    @property
    def plants(self) -> Sequence[str]: ...

    def options(self, plant: str) -> Collection[str]: ...

    def run(self, plant: str, options: ExperimentOptions, more: Mapping[str, Any]) -> Findings: ...


GROUP = "elastream.experiments"
OWN = EntryPoint("policies", "elastream.evaluation.policies.experiment:POLICIES", GROUP)


def installed() -> dict[str, EntryPoint]:
    return {each.name: each for each in (OWN, *entry_points(group=GROUP))}
