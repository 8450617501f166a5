"""Holds a host to the cores that it was leased with, by a control group.

Knows the two generations of control groups, and nothing of Spark. Which of them this machine allows is found by trying;
where there is none a sentence says so and the host goes on without it. Runs inside the supervisor, so it imports nothing
heavy.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

__all__ = ["CgroupV1", "CgroupV2", "Cgroups", "find_cgroups", "kill", "mounted_cgroups", "quota"]

PERIOD = 100_000
"""Microseconds of a quota's accounting period: the kernel's default, under which containers run elsewhere too."""

STARTING_WEIGHT = 0.1
"""Share of a machine that is short of CPU which a host without a quota gets against one with: a host that starts may take
all that is idle, and must not slow those that work."""


def quota(cores: float) -> int:
    """Microseconds of CPU that `cores` cores give in each `PERIOD`; the kernel takes no less than 1,000."""
    return max(1000, round(cores * PERIOD))


class Cgroups(Protocol):
    """A place in which a control group can be made for each host; groups are called by name."""

    @property
    def version(self) -> int:
        """1 or 2."""
        ...

    def create(self, name: str) -> None:
        """Make the group, without a quota."""
        ...

    def join(self, name: str) -> None:
        """Put the calling process, and all it starts from now on, into the group."""
        ...

    def limit(self, name: str, cores: float | None) -> None:
        """Give the group that much CPU time per wall time from now on; None lifts the quota."""
        ...

    def cpu_seconds(self, name: str) -> float:
        """CPU time that the group has used, processes that are gone included."""
        ...

    def members(self, name: str) -> set[int]:
        """Ids of the processes in the group; none where there is no such group."""
        ...

    def remove(self, name: str) -> bool:
        """Remove the group; False where something still lives in it."""
        ...


@dataclass(frozen=True, slots=True)
class CgroupV1:
    """Version 1: the controllers `cpu` (quota) and `cpuacct` (time used) are two trees, or one mounted twice."""

    cpu: Path
    cpuacct: Path

    @property
    def version(self) -> int:
        """1."""
        return 1

    def create(self, name: str) -> None:
        """Make the group, without a quota."""
        for tree in (self.cpu, self.cpuacct):
            (tree / name).mkdir(exist_ok=True)
        (self.cpu / name / "cpu.cfs_period_us").write_text(f"{PERIOD}")

    def join(self, name: str) -> None:
        """Put the calling process, and all it starts from now on, into the group."""
        for tree in (self.cpu, self.cpuacct):
            (tree / name / "cgroup.procs").write_text("0")

    def limit(self, name: str, cores: float | None) -> None:
        """Set `cpu.cfs_quota_us`; -1 lifts it, at a low weight."""
        (self.cpu / name / "cpu.cfs_quota_us").write_text("-1" if cores is None else f"{quota(cores)}")
        (self.cpu / name / "cpu.shares").write_text(f"{round(1024 * (STARTING_WEIGHT if cores is None else 1.0))}")

    def cpu_seconds(self, name: str) -> float:
        """`cpuacct.usage`, which is in nanoseconds."""
        return int((self.cpuacct / name / "cpuacct.usage").read_text()) / 1e9

    def members(self, name: str) -> set[int]:
        """Ids of the processes in the group."""
        return _members(self.cpu / name) | _members(self.cpuacct / name)

    def remove(self, name: str) -> bool:
        """Remove the group in both trees."""
        quota_gone, account_gone = _remove(self.cpu / name), _remove(self.cpuacct / name)
        return quota_gone and account_gone


@dataclass(frozen=True, slots=True)
class CgroupV2:
    """Version 2: one tree; `root` is a group that hands the controller `cpu` on to its children."""

    root: Path

    @property
    def version(self) -> int:
        """2."""
        return 2

    def create(self, name: str) -> None:
        """Make the group; a new one has no quota."""
        (self.root / name).mkdir(exist_ok=True)

    def join(self, name: str) -> None:
        """Put the calling process, and all it starts from now on, into the group."""
        (self.root / name / "cgroup.procs").write_text("0")

    def limit(self, name: str, cores: float | None) -> None:
        """Set `cpu.max`, which holds the quota and its period; without one, a low weight."""
        (self.root / name / "cpu.max").write_text(f"{'max' if cores is None else quota(cores)} {PERIOD}")
        (self.root / name / "cpu.weight").write_text(f"{round(100 * (STARTING_WEIGHT if cores is None else 1.0))}")

    def cpu_seconds(self, name: str) -> float:
        """`usage_usec` of `cpu.stat`."""
        fields = dict(line.split() for line in (self.root / name / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def members(self, name: str) -> set[int]:
        """Ids of the processes in the group."""
        return _members(self.root / name)

    def remove(self, name: str) -> bool:
        """Remove the group."""
        return _remove(self.root / name)


def mounted_cgroups(mountinfo: str, own: str) -> Iterator[Cgroups]:
    """Places where groups might be made, best first, by the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.

    Version 1 has one: below the group this process is in. Version 2 lets no group that holds processes hand controllers
    on, so there every group above the own one is a candidate, the nearest first.
    """
    groups: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    trees: dict[str, Path] = {}
    tops: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(maxsplit=2)
        mounted_root, top = fields[3], Path(fields[4])
        for controller in [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []:
            if controller in groups and controller not in trees:
                # A container sees its own group as the root of the mount; the path then starts with that root.
                inside = os.path.relpath(groups[controller], mounted_root)
                trees[controller] = top if inside == "." or inside.startswith("..") else top / inside
                tops[controller] = top
    if "cpu" in trees and "cpuacct" in trees:
        yield CgroupV1(trees["cpu"], trees["cpuacct"])
    elif "" in trees:
        root = trees[""]
        while root != tops[""]:
            yield CgroupV2(root := root.parent)
        if trees[""] == tops[""]:
            yield CgroupV2(root)


def find_cgroups(name: str, candidates: Iterator[Cgroups] | None = None) -> tuple[Cgroups | None, str]:
    """The place in which groups with a quota can be made and joined, found by making one called `name`; else why not."""
    if candidates is None:
        try:
            texts = Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
        except OSError as error:
            return None, f"this system has no control groups ({error.strerror})"
        candidates = mounted_cgroups(*texts)
    reason = "no control group with a CPU quota is mounted"
    for cgroups in candidates:
        try:
            if isinstance(cgroups, CgroupV2):
                _hand_on_cpu(cgroups.root)
            cgroups.create(name)
            try:
                cgroups.limit(name, 0.01)  # the least there is: version 1 refuses more than a group above may use
                cgroups.limit(name, None)
                cgroups.cpu_seconds(name)
                _in_a_child(partial(cgroups.join, name))
            finally:
                cgroups.remove(name)
        except OSError as error:
            reason = f"{error.filename} cannot be written ({error.strerror})"
        else:
            return cgroups, ""
    return None, reason


def _hand_on_cpu(root: Path) -> None:
    control = root / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")


def _in_a_child(action: Callable[[], None]) -> None:
    """Do `action` in a process of its own; raises the OSError that it ended with."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            action()
        except OSError as error:
            status = error.errno or 1
        os._exit(status)
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, os.strerror(code), "a control group")


def _members(group: Path) -> set[int]:
    try:
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split()} - {0}
    except OSError:
        return set()


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def kill(pids: set[int]) -> None:
    """SIGKILL to each; one that is gone already is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
