"""CPU limits (cgroups, version 1 or 2) and processes of a host. Runs in the supervisor and imports little."""

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeAlias

NO_MEMORY_LIMIT = 2.0**60  # bytes; version 1 writes "no limit" as a number near 2^63
PERIOD = 100_000  # accounting period of a quota (microseconds): the kernel's default


def quota(cores: float) -> int:
    """Return the CPU microseconds of `cores` per `PERIOD`, at least the kernel's minimum of 1,000."""
    return max(1000, round(cores * PERIOD))


@dataclass(frozen=True, slots=True)
class CgroupV1:
    """Version 1: the controllers `cpu` (quota) and `cpuacct` (CPU time) are two trees, or one mounted twice."""

    cpu: Path
    cpuacct: Path
    version: ClassVar[int] = 1

    def create(self, name: str) -> None:
        for tree in (self.cpu, self.cpuacct):
            (tree / name).mkdir(exist_ok=True)
        (self.cpu / name / "cpu.cfs_period_us").write_text(f"{PERIOD}")

    def join(self, name: str) -> None:
        for tree in (self.cpu, self.cpuacct):
            (tree / name / "cgroup.procs").write_text("0")

    def limit(self, name: str, cores: float | None, weight: float = 1.0) -> None:
        """Set the quota (None lifts it) and the relative weight."""
        (self.cpu / name / "cpu.cfs_quota_us").write_text("-1" if cores is None else f"{quota(cores)}")
        (self.cpu / name / "cpu.shares").write_text(f"{round(1024 * weight)}")

    def cpu_seconds(self, name: str) -> float:
        return int((self.cpuacct / name / "cpuacct.usage").read_text()) / 1e9

    def members(self, name: str) -> set[int]:
        return _members(self.cpu / name) | _members(self.cpuacct / name)

    def remove(self, name: str) -> bool:
        quota_gone, account_gone = _remove(self.cpu / name), _remove(self.cpuacct / name)
        return quota_gone and account_gone


@dataclass(frozen=True, slots=True)
class CgroupV2:
    """Version 2: one tree; `root` delegates the controller `cpu` to its children."""

    root: Path
    version: ClassVar[int] = 2

    def create(self, name: str) -> None:
        (self.root / name).mkdir(exist_ok=True)

    def join(self, name: str) -> None:
        (self.root / name / "cgroup.procs").write_text("0")

    def limit(self, name: str, cores: float | None, weight: float = 1.0) -> None:
        (self.root / name / "cpu.max").write_text(f"{'max' if cores is None else quota(cores)} {PERIOD}")
        (self.root / name / "cpu.weight").write_text(f"{round(100 * weight)}")

    def cpu_seconds(self, name: str) -> float:
        fields = dict(line.split() for line in (self.root / name / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def members(self, name: str) -> set[int]:
        return _members(self.root / name)

    def remove(self, name: str) -> bool:
        return _remove(self.root / name)


Cgroups: TypeAlias = CgroupV1 | CgroupV2  # parent of the hosts' groups, which are identified by name


def group_of(run: str, host: str) -> str:
    return f"elastream-{run}-{host}"


def mounted_cgroups(mountinfo: str, own: str) -> Iterator[Cgroups]:
    """Yield candidate parents for groups, best first.

    In version 2 every ancestor, as a group with processes cannot delegate.
    """
    trees, tops = _mounted(mountinfo, own)
    if "cpu" in trees and "cpuacct" in trees:
        yield CgroupV1(trees["cpu"], trees["cpuacct"])
    elif "" in trees:
        root = trees[""]
        while root != tops[""]:
            yield CgroupV2(root := root.parent)
        if trees[""] == tops[""]:
            yield CgroupV2(root)


def _mounted(mountinfo: str, own: str) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return this process's group and its tree's root, by controller; "" is version 2."""
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
    return trees, tops


def own_groups(of: str = "cpu") -> tuple[Path, ...]:
    """Return the visible control groups whose limits apply to this process. `of`: "cpu" or "memory"."""
    try:
        trees, tops = _mounted(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    except OSError:  # no such system
        return ()
    controller = of if of in trees else ""
    if controller not in trees:
        return ()
    groups_ = [trees[controller]]
    while groups_[-1] != tops[controller]:
        groups_.append(groups_[-1].parent)
    return tuple(groups_)


def cores_allowed(groups: Iterable[Path]) -> float:
    return min(map(_quota_of, groups), default=math.inf)


def _quota_of(group: Path) -> float:
    for file, period in (("cpu.max", None), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            words = (group / file).read_text().split()
            each = float(words[1] if period is None else (group / period).read_text())
            return math.inf if words[0] in ("max", "-1") else float(words[0]) / each
        except (OSError, ValueError, IndexError):  # of the other version, or the root, which has none
            continue
    return math.inf


def memory_allowed(groups: Iterable[Path]) -> float:
    """Return the bytes that `groups` allow; inf without a limit."""
    return min(map(_memory_of, groups), default=math.inf)


def _memory_of(group: Path) -> float:
    for file in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # of the other version, or "max"
            allowed = float((group / file).read_text())
            return allowed if allowed < NO_MEMORY_LIMIT else math.inf
    return math.inf


def find_cgroups(name: str, candidates: Iterator[Cgroups] | None = None) -> tuple[Cgroups | None, str]:
    """Return (usable parent of groups, "") or (None, reason); tests a group called `name`."""
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
                _delegate_cpu(cgroups.root)
            cgroups.create(name)
            try:
                cgroups.limit(name, 0.01)  # the minimum: version 1 rejects more than the parent group's quota
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


def _delegate_cpu(root: Path) -> None:
    control = root / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")


def _in_a_child(action: Callable[[], None]) -> None:
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
    except OSError:  # the group is gone, and so are its processes
        return set()


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # no cgroup that can be written
        return False
    return True


def kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself meanwhile
            os.kill(pid, signal.SIGKILL)


TAG = "ELASTREAM_HOST"  # every process of a host has this environment variable: `<run>/<host>`


def tagged(run: str) -> dict[int, str]:
    """Return the host of every living process of the cluster `run`, by process id."""
    hosts = {}
    mark = f"{TAG}={run}/".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/environ", "rb") as environment:  # it ended
                for variable in environment.read().split(b"\0"):
                    if variable.startswith(mark):
                        hosts[int(entry.name)] = variable.removeprefix(mark).decode()
    return hosts


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of children it has waited for; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    """Return a process's proportional set size; 0 if it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:  # it ended meanwhile
        pass
    return 0.0
