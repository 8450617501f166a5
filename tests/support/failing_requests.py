"""A request of a composition whose write fails once."""

from pathlib import Path

import pytest

from elastream.errors import EnvironmentProblem
from elastream.spark.queries import switching
from elastream.spark.worker.composition import CompositionRequest


def break_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next request raise EnvironmentProblem after it has been written."""
    write, broken = switching.write_request, [True]

    def breaks(path: Path, wanted: CompositionRequest) -> None:
        write(path, wanted)
        if broken:
            broken.clear()
            raise EnvironmentProblem("the disk is full")

    monkeypatch.setattr(switching, "write_request", breaks)
