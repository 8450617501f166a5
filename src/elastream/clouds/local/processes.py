"""What this machine knows of processes: whose host they belong to, what CPU time they took and what memory they hold."""

import contextlib
import os
from pathlib import Path

__all__ = ["TAG", "cpu_seconds", "megabytes", "tagged"]

TAG = "ELASTREAM_HOST"
"""Environment variable that every process of a host carries: `<run>/<host>`."""


def tagged(run: str) -> dict[int, str]:
    """Process id -> host of every living process whose environment carries `run`, wherever it hangs in the tree."""
    found = {}
    mark = f"{TAG}={run}/".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/environ", "rb") as environment:
                for variable in environment.read().split(b"\0"):
                    if variable.startswith(mark):
                        found[int(entry.name)] = variable.removeprefix(mark).decode()
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that it has waited for; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    """Proportional set size of a process in megabytes; 0 where it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    return 0.0
