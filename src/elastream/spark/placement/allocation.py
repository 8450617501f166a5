"""The allocation plan: the planned host of each task, in an append-only file (N-Storm, section 3.1).

The planner writes versions, the reconciler reads the newest, and neither waits.
"""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import MappingProxyType

from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import create_private
from elastream.recording.formats import marked, unmarked
from elastream.recording.lines import line, replace_whole, write_whole
from elastream.systems import lock, unlock

# A longer file is rewritten if the newest version takes less than 1 / REWRITE_RATIO of it.
REWRITE_BYTES, REWRITE_RATIO = 250_000, 10


@dataclass(frozen=True, slots=True)
class Allocation:
    """One version of the plan: host of each placed task, time of writing (epoch seconds), reason. Version 0 is empty."""

    version: int
    hosts: Mapping[TaskId, str]
    written: float = 0.0
    why: str = ""


EMPTY = Allocation(0, MappingProxyType({}))


class AllocationStore:
    """The versions of a plan in the file `path`, one JSON line of changes each. Thread-safe, also across processes.

    A torn last line is cut off. Raises EnvironmentProblem if the file cannot be written, InputError if it is damaged.
    """

    def __init__(self, path: Path | str, *, max_bytes: int = REWRITE_BYTES) -> None:
        self.path, self._max_bytes = Path(path), max_bytes
        self._lock = threading.Lock()
        self.latest = EMPTY  # the newest version written or read by this object
        self.bytes_written = self.bytes_read = 0
        with self._explained():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        with self._locked():
            self._read_new()
            self._file.truncate(self._bytes_processed)

    def refresh(self) -> Allocation:
        """Read the newest version from the file; costs one stat call if there is none."""
        with self._lock, self._explained():
            self._read_new()
            return self.latest

    def publish(self, hosts: Mapping[TaskId, str | None], *, at: float, why: str = "") -> Allocation:
        """Write changed hosts of tasks (None: no planned host) as a new version; return it once it is on disk."""
        with self._lock, self._locked():
            self._read_new()
            changed = {task: host for task, host in hosts.items() if self.latest.hosts.get(task) != host}
            if not changed:
                return self.latest
            entry = {
                "version": self.latest.version + 1,
                "written": at,
                "why": why,
                "hosts": [[task.operator, task.index, host] for task, host in changed.items()],
            }
            content = line(entry if self._bytes_processed else marked(entry))
            try:
                write_whole(self._file, content)
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._bytes_processed)  # a partial line would corrupt the next one
                raise
            self.bytes_written += len(content)
            self._bytes_processed += len(content)
            self.latest = self._after(entry)
            if self._bytes_processed > self._max_bytes:
                self._rewrite()
            return self.latest

    def close(self) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._explained():
            lock(self._file)
            while self._reopened():
                lock(self._file)
            try:
                yield
            finally:
                unlock(self._file)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise EnvironmentProblem(f"the allocation plan {self.path} cannot be written: {why}") from error

    def _reopened(self) -> bool:
        if os.stat(self.path).st_ino == os.fstat(self._file.fileno()).st_ino:
            return False
        self._file.close()
        self._open()
        return True

    def _open(self) -> None:
        self._file: FileIO = create_private(self.path).open("ab+", buffering=0)
        self._bytes_processed, self.latest = 0, EMPTY

    def _rewrite(self) -> None:
        latest = self.latest
        hosts = [[task.operator, task.index, host] for task, host in latest.hosts.items()]
        whole = {"version": latest.version, "whole": True, "written": latest.written, "why": latest.why, "hosts": hosts}
        content = line(marked(whole))
        if len(content) * REWRITE_RATIO < self._bytes_processed:
            replace_whole(self.path, content)
            self._file.close()
            self._open()
            self._bytes_processed, self.latest = len(content), latest

    def _read_new(self) -> None:
        self._reopened()
        if os.fstat(self._file.fileno()).st_size <= self._bytes_processed:
            return
        self._file.seek(self._bytes_processed)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.bytes_read += len(content)
        for each in whole.splitlines(keepends=True):
            try:
                fields = json.loads(each)
                self.latest = self._after(fields if self._bytes_processed else unmarked(fields, self.path))
            except (ValueError, TypeError, KeyError) as error:
                number = self.latest.version + 1
                raise InputError(f"{self.path}, line {number}: not a version of an allocation plan ({error})") from error
            self._bytes_processed += len(each)

    def _after(self, entry: Mapping[str, object]) -> Allocation:
        version, changes = int(str(entry["version"])), entry["hosts"]
        if version != self.latest.version + 1 and not (self.latest is EMPTY and entry.get("whole")):
            raise ValueError(f"version {version} follows version {self.latest.version}")
        if not isinstance(changes, list):
            raise TypeError("hosts is not a list")
        hosts = dict(self.latest.hosts)
        hosts |= {TaskId(operator, index): host for operator, index, host in changes}
        hosts = {task: host for task, host in hosts.items() if host is not None}
        return Allocation(version, MappingProxyType(hosts), float(str(entry["written"])), str(entry["why"]))


class InMemoryPlan:
    """A plan in memory, for hosts whose names are not valid in another process."""

    def __init__(self) -> None:
        self.latest = EMPTY

    def refresh(self) -> Allocation:
        return self.latest

    def publish(self, hosts: Mapping[TaskId, str | None], *, at: float, why: str = "") -> Allocation:
        placed = {task: host for task, host in {**self.latest.hosts, **hosts}.items() if host is not None}
        if placed != self.latest.hosts:
            self.latest = Allocation(self.latest.version + 1, MappingProxyType(placed), at, why)
        return self.latest
