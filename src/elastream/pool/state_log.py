"""Journal of a manager: tables that survive its process. A change is one line, on disk before it is sent or acted on."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from elastream.errors import InputError
from elastream.recording.directory import create_private
from elastream.recording.lines import JournalProblem, Lines
from elastream.systems import lock

MAX_LINES = 1_000  # the file is then compacted to the current state, whose size does not grow with time


class StateLog:
    """Tables of JSON-like values for `manager`, in the file `path` or in memory (None).

    Raises:
        JournalProblem: The file cannot be written, or another process has it.
        InputError: The file is another manager's, or damaged beyond a torn last line.
    """

    def __init__(self, path: Path | str | None, manager: str, *, max_lines: int = MAX_LINES) -> None:
        self.manager, self._max_lines = manager, max_lines
        self.read: dict[str, dict[str, Any]] = {}  # the tables as an earlier process left them, as JSON has them
        self._baseline: dict[str, dict[str, Any]] = {}
        self._lines: Lines | None = None
        if path is None:
            return
        path = Path(path)
        self._lock = _locked(path, manager)
        self._lines = Lines(path, "the journal")
        self._replay(self._lines)
        if self._lines.count == 0:
            self._append({"manager": manager})

    def commit(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the differences from the last commit as one line, if there are any."""
        put: dict[str, dict[str, Any]] = {}
        removed: dict[str, list[str]] = {}
        for name, table in tables.items():
            before = self._baseline.get(name, {})
            if changed := {key: value for key, value in table.items() if key not in before or before[key] != value}:
                put[name] = changed
            if removed_keys := [key for key in before if key not in table]:
                removed[name] = removed_keys
        if put or removed:
            self._append({"put": put, "gone": removed})
        self._baseline = {name: dict(table) for name, table in tables.items()}
        if self._lines is not None and self._lines.count > self._max_lines:
            self._lines.replace([{"manager": self.manager}, plain({"put": self._baseline, "gone": {}})])

    def set_baseline(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self._baseline = {name: dict(table) for name, table in tables.items()}

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lock.close()

    def _append(self, fields: Mapping[str, Any]) -> None:
        if self._lines is not None:
            self._lines.append(plain(fields))

    def _replay(self, lines: Lines) -> None:
        for number, entry in enumerate(lines.read(), start=1):
            if number == 1 and entry != {"manager": self.manager}:
                raise InputError(f"{lines.path} is not the journal of the {self.manager}: its first line names another")
            try:
                for name, table in entry.get("put", {}).items():
                    self.read.setdefault(name, {}).update(table)
                for name, keys in entry.get("gone", {}).items():
                    for key in keys:
                        del self.read[name][key]
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise InputError(f"{lines.path}, line {number}: not an entry of a manager's journal ({error})") from error


def steady_clock(
    wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Return a clock of epoch seconds that ignores later changes of the machine's clock.

    A clock set forward must not make members silent or orders overdue.
    """
    zero = wall() - monotonic()
    return lambda: zero + monotonic()


def plain(value: Any) -> Any:
    """Return `value` as JSON types; infinite numbers become text."""
    return from_json(to_json(value, inf_nan_mode="strings"))


def _locked(path: Path, manager: str) -> Any:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = create_private(path.with_name(path.name + ".lock")).open("wb")
    except OSError as error:
        raise JournalProblem(f"the journal {path} cannot be written: {error.strerror or error}") from error
    try:
        lock(file, wait=False)
    except OSError:
        file.close()
        raise JournalProblem(f"another process runs the {manager} with the journal {path}") from None
    return file
