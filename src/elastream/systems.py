"""Operating systems: everything works on Linux, and elsewhere what needs no processes of Linux.

system   works                                          tried Linux    everything                                     yes
macOS    simulate, check, report, runs in process       no Windows  simulate, check, report                        no
"""

import sys
from collections.abc import Collection
from typing import Protocol

from elastream.errors import EnvironmentProblem

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAMES = {"darwin": "macOS", "win32": "Windows"}
WORKING = {
    "darwin": "simulate, check, report and run(flow) in this process work here",
    "win32": "simulate, check and report work here",
}


class HasDescriptor(Protocol):
    """An open file."""

    def fileno(self) -> int: ...


def check_system(what: str, *, also: Collection[str] = (), system: str = sys.platform) -> None:
    """Raise EnvironmentProblem unless `what` works on this system: on Linux, and on systems in `also`."""
    if system.startswith("linux") or system in also:
        return
    others = "".join(f" or {NAMES[each]}" for each in also)
    works = WORKING.get(system, WORKING["win32"])
    raise EnvironmentProblem(f"{what} needs Linux{others}, and this is {NAMES.get(system, system)}: {works}")


def lock(file: int | HasDescriptor, *, wait: bool = True, shared: bool = False) -> None:
    """Lock a file until it is closed; `shared`: only against exclusive locks.

    Raises:
        OSError: It is locked, and `wait` is false.
        EnvironmentProblem: This system has no such locks.
    """
    if fcntl is None:
        check_system("a lock of a run's files", also=("darwin",))
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def unlock(file: int | HasDescriptor) -> None:
    fcntl.flock(file, fcntl.LOCK_UN)
