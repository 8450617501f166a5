"""The allocation plan: which host each task shall be on, in a file that is only ever added to.

Tasks and resources are decoupled as in N-Storm (section 3.1): whoever plans writes a new version here, whoever runs tasks
reads the newest one each period, and neither waits for the other. A version is on disk before it counts, so that a driver
that starts again finds what the last one wanted.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from elastream.model.action import TaskId
from elastream.model.errors import EnvironmentProblem, InputError

__all__ = ["Allocation", "AllocationStore", "VolatilePlan"]

NOTHING: Mapping[TaskId, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Allocation:
    """One version of the plan: the host of each task that it places, when it was written (epoch seconds), and why.

    Version 0 is the empty plan that everything begins with.
    """

    version: int
    hosts: Mapping[TaskId, str]
    written: float = 0.0
    why: str = ""


EMPTY = Allocation(0, NOTHING)


class AllocationStore:
    """The versions of a plan in the file `path`, one JSON line a version: what it changes, not all that it says.

    Thread-safe. A torn last line, which a crash leaves, is cut off. Other processes may read and write the same plan:
    `refresh` takes over what they have added. Raises EnvironmentProblem where the file cannot be written, and InputError,
    naming the line, where it is damaged elsewhere.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._latest = EMPTY
        self._read = 0
        self.bytes_written = 0
        self.bytes_read = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+", buffering=0)
            with self._alone():
                self._take_over()
                self._file.truncate(self._read)
        except OSError as error:
            raise self._problem(error) from error

    @property
    def latest(self) -> Allocation:
        """The newest version that was written or read here."""
        return self._latest

    def refresh(self) -> Allocation:
        """The newest version in the file, whoever wrote it; asks for the file's size where nothing is new."""
        try:
            with self._lock:
                self._take_over()
                return self._latest
        except OSError as error:
            raise self._problem(error) from error

    def publish(self, hosts: Mapping[TaskId, str | None], *, at: float, why: str = "") -> Allocation:
        """A new version that places the tasks of `hosts` there, None for nowhere in particular; others stay as they were.

        On disk when this returns. Where nothing changes, nothing is written and the newest version is returned.
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
            line = (json.dumps(entry, separators=(",", ":")) + "\n").encode()
            left = line
            try:
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._read)  # what was written of the line would spoil the next one
                raise
            self.bytes_written += len(line)
            self._read += len(line)
            self._latest = self._after(entry)
            return self._latest

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._file.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """While inside, no other process writes; raises EnvironmentProblem for what the file system refuses."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            raise self._problem(error) from error

    def _take_over(self) -> None:
        """Read the whole lines that were added since the last time."""
        if os.fstat(self._file.fileno()).st_size <= self._read:
            return
        self._file.seek(self._read)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.bytes_read += len(content)
        for line in whole.splitlines(keepends=True):
            try:
                self._latest = self._after(json.loads(line))
            except (ValueError, TypeError, KeyError) as error:
                number = self._latest.version + 1
                raise InputError(f"{self.path}, line {number}: not a version of an allocation plan ({error})") from error
            self._read += len(line)

    def _after(self, entry: Mapping[str, object]) -> Allocation:
        version, changes = int(str(entry["version"])), entry["hosts"]
        if version != self._latest.version + 1:
            raise ValueError(f"version {version} follows version {self._latest.version}")
        if not isinstance(changes, list):
            raise TypeError("hosts is no list")
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
    """A plan that lives as long as this process: for hosts whose names mean nothing to the next one."""

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
