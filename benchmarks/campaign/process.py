"""Processes under one simulated clock, their disk and their providers.

A strand is a thread. One strand runs at a time, until it sleeps, so that a seed always gives the same run. All durable
writes go through `recording.lines.WRITE`. A process that dies in a write leaves nothing of it (before), a part (inside) or
all of it (after). A full disk accepts a few more bytes, then none until it has room again.
"""

import errno
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from io import FileIO
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JError

from campaign.history import Call, History
from elastream.clouds.provider import HostStatus, HostUsage, Provider, RunState
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem

ERRORS: Mapping[str, type[Exception]] = {
    each.__name__: each
    for each in (EnvironmentProblem, OSError, TimeoutError, RuntimeError, KeyError, ValueError, Py4JError)
}


def raised(how: str) -> Exception:
    return ERRORS[how.split()[0]]("as meant")


class Killed(BaseException):
    """Raised in a killed process; no handler of errors may catch it."""


class Writer(Protocol):
    """The process that writes.

    dies: "before", "inside" or "after", if it is to die in its next write. room: bytes that the disk still accepts.
    """

    dies: str
    room: float

    def die(self) -> None:
        """Never returns: raises Killed, and is dead."""

    def works(self) -> None:
        """Raises Killed where it is dead already."""


class Disk:
    """Writes of the processes whose folders are in `writers`, by the beginning of their paths."""

    def __init__(self) -> None:
        self.writers: dict[str, Writer] = {}
        self.writes = 0

    def write(self, file: FileIO, content: bytes) -> int:
        name = os.fspath(file.name) if not isinstance(file.name, int) else ""
        writer = next((each for folder, each in self.writers.items() if str(name).startswith(folder)), None)
        if writer is None:
            return file.write(content)
        writer.works()
        self.writes += 1
        if (dies := writer.dies) == "before":
            writer.die()
        if dies == "inside":
            file.write(content[: len(content) // 2])
            writer.die()
        if writer.room < len(content):
            taken, writer.room = int(writer.room), 0.0
            if taken:
                return file.write(content[:taken])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        writer.room -= len(content)
        written = file.write(content)
        if dies == "after":
            writer.die()
        return written


R = TypeVar("R")

ABSURD: Mapping[str, float | None] = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "negative": -500.0, "none": None, "huge": 1e18,
}  # fmt: skip


class Strand(threading.Thread):
    """Runs `program` in turn with the world: `step` runs it until it sleeps, dies or ends."""

    def __init__(self, program: Callable[["Strand"], None]) -> None:
        super().__init__(daemon=True)
        self._program = program
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self.wakes, self.over, self._ending = 0.0, False, False
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._ending:
                self._program(self)
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._back.release()

    def step(self) -> None:
        self._go.release()
        self._back.acquire()

    def sleep(self, until: float) -> None:
        """Pause the program until second `until` of the world. Raises Killed if the process dies meanwhile."""
        self.wakes = until
        self._back.release()
        self._go.acquire()
        if self._ending:
            raise Killed

    def end(self) -> None:
        if not self.over:
            self._ending = True
            self.step()


class Process:
    """A process that dies as its faults say: in a write, in its next call (`calls_die`), or at once."""

    def __init__(self, name: str, now: Callable[[], float], history: History) -> None:
        self.name, self.now, self.history = name, now, history
        self.alive = False
        self.starts_at = 0.0
        self.strand: Strand | None = None
        self.dies, self.room = "", math.inf
        self.calls_die = ""
        self.call_errors: list[str] = []
        self.measures: Mapping[str, HostUsage] | None = None
        self.stale_until = self.absurd_until = -math.inf
        self.absurd = "nan"
        self.lost_until = self.unanswered_until = self.doubled_until = -math.inf

    def die(self) -> None:
        """Mark the process as dead, and raise Killed to unwind it."""
        self.alive = False
        self.dies = self.calls_die = ""
        raise Killed

    def works(self) -> None:
        """Raise Killed if the process is dead, so that unwinding code has no effect."""
        if not self.alive:
            raise Killed

    def releases(self, hosts: Collection[str]) -> None:
        """Do nothing: a driver notes what it cuts off."""


class FaultyProvider(Provider):
    """The `provider` of `process`. It records calls, makes them fail by the schedule, and may kill the process in one."""

    def __init__(self, provider: Provider, process: Process) -> None:
        self.provider, self._process, self.terms = provider, process, provider.terms

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        self._do("lease", tuple(hosts), lambda: self.provider.lease(hosts))

    def release(self, hosts: Collection[str]) -> None:
        if hosts:
            self._process.releases(hosts)
            self._do("release", tuple(hosts), lambda: self.provider.release(hosts))

    def hosts(self) -> Mapping[str, HostStatus]:
        self._process.works()
        return self.provider.hosts()

    def measure(self) -> Mapping[str, HostUsage]:
        process = self._process
        process.works()
        found = self.provider.measure()
        if process.now() < process.stale_until:
            found = process.measures = process.measures or found
        else:
            process.measures = None
        if process.now() < process.absurd_until:
            value = ABSURD[process.absurd]
            found = {host: replace(each, cpu_seconds=value, memory=value) for host, each in found.items()}
        return found

    def report(self, state: RunState) -> None:
        self._process.works()
        self.provider.report(state)

    def owed(self) -> float | None:
        return self.provider.owed()

    def close(self) -> None:
        self._process.works()
        self.provider.close()

    def _do(self, what: str, hosts: tuple[str, ...], do: Callable[[], Any]) -> None:
        process = self._process
        process.works()
        how, when = (*process.call_errors.pop(0).split(), "")[:2] if process.call_errors else ("", "")
        if process.calls_die == "before":
            process.die()
        if when == "before":
            self._note(what, hosts, "fail", how)
            raise raised(how)
        try:
            do()
        except CloudError as error:
            self._note(what, hosts, "fail", str(error))
            raise
        except BaseException as error:
            self._note(what, hosts, "unknown", str(error))
            raise
        if process.calls_die == "after":
            self._note(what, hosts, "unknown", "its process died")
            process.die()
        if when == "after":
            self._note(what, hosts, "unknown", how)
            raise raised(how)
        self._note(what, hosts, "ok")

    def _note(self, what: str, hosts: tuple[str, ...], ended: str, why: str = "") -> None:
        process = self._process
        process.history.calls.append(Call(process.now(), process.name, what, hosts, ended, why))
