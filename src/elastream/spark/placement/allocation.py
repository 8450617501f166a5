"""The allocation plan: the planned host of each task, in an append-only file.

Tasks and resources are decoupled as in N-Storm (section 3.1): the planner writes new versions, the reconciler reads the
newest one each period, and neither waits for the other. A version is on disk before it takes effect, so that a restarted
driver finds it.
"""

import contextlib
import fcntl
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

LONGEST, SPARSE = 250_000, 10
"""Bytes beyond which the file is written anew, where the newest version takes less than one in SPARSE of them."""
NOTHING: Mapping[TaskId, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Allocation:
    """One version of the plan: host of each placed task, time of writing (epoch seconds), and reason.

    Version 0 is the empty initial plan.
    """

    version: int
    hosts: Mapping[TaskId, str]
    written: float = 0.0
    why: str = ""


EMPTY = Allocation(0, NOTHING)


class AllocationStore:
    """The versions of a plan in the file `path`, one JSON line per version with its changes; a long file is written anew,
    and begins with all of the newest version.

    Thread-safe. A torn last line, left by a crash, is cut off. Other processes may read and write the same plan; `refresh`
    reads their versions. Raises EnvironmentProblem if the file cannot be written, and InputError with the line number if it
    is damaged elsewhere.
    """

    def __init__(self, path: Path | str, *, max_bytes: int = LONGEST) -> None:
        self.path, self._max_bytes = Path(path), max_bytes
        self._lock = threading.Lock()
        self._latest = EMPTY
        self.bytes_written = 0
        self.bytes_read = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            with self._alone():
                self._take_over()
                self._file.truncate(self._read)
        except OSError as error:
            raise self._problem(error) from error

    @property
    def latest(self) -> Allocation:
        """The newest version written or read by this object."""
        return self._latest

    def refresh(self) -> Allocation:
        """Read the newest version from the file, also of other processes; costs one stat call if there is none."""
        try:
            with self._lock:
                self._take_over()
                return self._latest
        except OSError as error:
            raise self._problem(error) from error

    def publish(self, hosts: Mapping[TaskId, str | None], *, at: float, why: str = "") -> Allocation:
        """Write a new version with the hosts of some tasks (None: no planned host); other tasks are unchanged.

        The version is on disk when this returns. Without a change, nothing is written and the newest version is returned.
        """
        with self._lock, self._alone():
            self._take_over()
            changed = {task: host for task, host in hosts.items() if self._latest.hosts.get(task) != host}
            if not changed:
                return self._latest
            entry = {
                "version": self._latest.version + 1,
                "written": at,
                "why": why,
                "hosts": [[task.operator, task.index, host] for task, host in changed.items()],
            }
            content = line(entry if self._read else marked(entry))
            try:
                write_whole(self._file, content)
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._read)  # a partial line would corrupt the next one
                raise
            self.bytes_written += len(content)
            self._read += len(content)
            self._latest = self._after(entry)
            if self._read > self._max_bytes:
                self._write_anew()
            return self._latest

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the file's lock against other writers. Raises EnvironmentProblem for errors of the file system."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            while self._reopened():
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            raise self._problem(error) from error

    def _reopened(self) -> bool:
        """Whether another process has written the file anew, which is then read from its beginning."""
        if os.stat(self.path).st_ino == os.fstat(self._file.fileno()).st_ino:
            return False
        self._file.close()
        self._open()
        return True

    def _open(self) -> None:
        self._file: FileIO = create_private(self.path).open("ab+", buffering=0)
        self._read, self._latest = 0, EMPTY

    def _write_anew(self) -> None:
        """Let the file begin with the newest version."""
        latest = self._latest
        hosts = [[task.operator, task.index, host] for task, host in latest.hosts.items()]
        whole = {"version": latest.version, "whole": True, "written": latest.written, "why": latest.why, "hosts": hosts}
        content = line(marked(whole))
        if len(content) * SPARSE < self._read:
            replace_whole(self.path, content)
            self._file.close()
            self._open()
            self._read, self._latest = len(content), latest

    def _take_over(self) -> None:
        """Read the complete lines appended since the last call."""
        self._reopened()
        if os.fstat(self._file.fileno()).st_size <= self._read:
            return
        self._file.seek(self._read)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.bytes_read += len(content)
        for each in whole.splitlines(keepends=True):
            try:
                fields = json.loads(each)
                self._latest = self._after(fields if self._read else unmarked(fields, self.path))
            except (ValueError, TypeError, KeyError) as error:
                number = self._latest.version + 1
                raise InputError(f"{self.path}, line {number}: not a version of an allocation plan ({error})") from error
            self._read += len(each)

    def _after(self, entry: Mapping[str, object]) -> Allocation:
        version, changes = int(str(entry["version"])), entry["hosts"]
        if version != self._latest.version + 1 and not (self._latest is EMPTY and entry.get("whole")):
            raise ValueError(f"version {version} follows version {self._latest.version}")
        if not isinstance(changes, list):
            raise TypeError("hosts is not a list")
        hosts = dict(self._latest.hosts)
        for operator, index, host in changes:
            if host is None:
                hosts.pop(TaskId(operator, index), None)
            else:
                hosts[TaskId(operator, index)] = host
        return Allocation(version, MappingProxyType(hosts), float(str(entry["written"])), str(entry["why"]))

    def _problem(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"the allocation plan {self.path} cannot be written: {error.strerror or error}")


class VolatilePlan:
    """A plan in memory, for hosts whose names are not valid in another process."""

    def __init__(self) -> None:
        self.latest = EMPTY

    def refresh(self) -> Allocation:
        """The newest version."""
        return self.latest

    def publish(self, hosts: Mapping[TaskId, str | None], *, at: float, why: str = "") -> Allocation:
        """As `AllocationStore.publish`."""
        placed = {task: host for task, host in {**self.latest.hosts, **hosts}.items() if host is not None}
        if placed != self.latest.hosts:
            self.latest = Allocation(self.latest.version + 1, MappingProxyType(placed), at, why)
        return self.latest
