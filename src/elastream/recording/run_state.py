"""State of a run from its folder, and requests to end it, for other processes."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elastream.core.observation import Observation
from elastream.errors import ElastreamError
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, read_manifest
from elastream.recording.observer import Ending, Observer
from elastream.recording.recorder import Recording
from elastream.systems import lock


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run.

    Attributes:
        state: "starting", "running" or "paused" while a process drives it; "asleep" between bounded runs; "finished",
            "stopped" or "failed" as recorded; "died" without an end; "void" if it never began.
        recording: Header and ending; None before the first observation.
    """

    manifest: Manifest
    state: str
    driver: int | None = None
    recording: Recording | None = None

    @property
    def live(self) -> bool:
        return self.driver is not None


def driver_of(directory: RunDirectory) -> int | None:
    """Return the process that drives a run, or that will when it wakes, or None."""
    driver = holder_of(directory.lock)
    return holder_of(directory.controller_lock) if driver is None else driver


def holder_of(path: Path) -> int | None:
    """Return the process that has locked the file `path`, 0 if its id is unknown, or None."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        lock(file, wait=False, shared=True)
    except OSError:
        text = os.read(file, 20).decode(errors="replace").strip()
        return int(text) if text.isdecimal() else 0
    finally:
        os.close(file)
    return None


def state_of(directory: RunDirectory) -> RunState:
    """Return the state of the run in `directory`. Raises InputError if it is no run's folder."""
    try:
        outline = Recording.outline(directory.root)
    except ElastreamError:  # nothing is recorded yet
        outline = None
    return state_with(directory, outline)


def state_with(directory: RunDirectory, outline: Recording | None) -> RunState:
    """Return the state of a run by its recording, None before the first observation. Raises what `state_of` raises."""
    manifest, driver = read_manifest(directory), driver_of(directory)
    if driver is not None and holder_of(directory.lock) is None:
        state = "asleep"
    elif driver is not None:
        state = "starting" if outline is None else "paused" if directory.is_paused else "running"
    elif outline is not None and outline.ending is not None:
        state = outline.ending.status
    else:
        state = "died" if manifest.identity else "void"
    return RunState(manifest, state, driver, outline)


class StopRequests(Observer):
    """Observer that ends the run of `directory` at the request of `elastream stop`."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self.stop: Callable[[str], object] = lambda reason: None

    def observed(self, observation: Observation) -> None:
        if self._directory.stop_requested:
            self.stop("elastream stop")

    def ended(self, ending: Ending) -> None:
        if holder_of(self._directory.controller_lock) is None:  # a controller may not have seen it yet
            self._directory.stop_request.unlink(missing_ok=True)
