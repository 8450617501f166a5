"""Measures the speed of a host's cores and the memory of its Python workers, in a process beside them.

It times a fixed piece of work in CPU seconds; time withheld by a quota or a hypervisor is reported separately.
"""

import contextlib
import json
import math
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from elastream.clouds.local.confinement import cores_allowed, megabytes, memory_allowed, own_groups
from elastream.clouds.local.processes import end_with_parent

# Environment variables: the folder of readings, and the id of the executor that this process belongs to.
FOLDER_VARIABLE, EXECUTOR_VARIABLE = "ELASTREAM_PROBES", "ELASTREAM_EXECUTOR"
PERIOD_S = 5.0
# Probing may use this share of the host's cores. After a more expensive reading the next comes later.
MAX_CPU_SHARE = 0.001
# The fastest repetition counts: other processes only ever add time.
REPETITIONS = 5
# The kernel's maximum: workers that want the core get it first.
NICENESS = 19
WORK_ROUNDS = 4_000
# WORK_ROUNDS and WORK_NUMBERS take a third of a millisecond on two shared cores of 2026.
WORK_NUMBERS = 4_096
# Below this many demanded ticks (10 ms) between two readings, stolen time is noise.
MIN_TICKS = 20


@dataclass(frozen=True, slots=True)
class SpeedReading:
    piece: float  # CPU time of the work (seconds)
    cores: float  # cores that quotas and the CPU set allow
    kept: float = 1.0  # share of the demanded CPU time that no hypervisor stole
    python: float | None = None  # memory of the Python workers (MB)
    limit: float | None = None  # memory that control groups allow (MB); None without a limit


def file_of(folder: Path, executor: str) -> Path:
    return folder / f"{executor}.json"


def name_executor() -> None:
    """Store the id of this process's executor in the environment."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # not an executor, or no /proc
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        os.environ[EXECUTOR_VARIABLE] = words[words.index(b"--executor-id") + 1].decode()


def begin() -> None:
    """Fork the probe, which ends with the calling process. Needs a folder and an executor."""
    folder, executor, parent = os.environ.get(FOLDER_VARIABLE), os.environ.get(EXECUTOR_VARIABLE), os.getpid()
    if not folder or not executor or os.fork():
        return
    try:
        end_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.closerange(3, 65_536)  # the daemon's pipes and sockets, which must close with it
        os.nice(NICENESS)
        _probe(file_of(Path(folder), executor), parent)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(0)


def _probe(file: Path, parent: int) -> None:
    groups, before = own_groups(), machine_ticks()
    while os.getppid() == parent:
        began, ticks = time.process_time(), machine_ticks()
        cores = min(float(len(os.sched_getaffinity(0))), cores_allowed(groups))
        allowed = memory_allowed(own_groups("memory")) / 1e6  # a pod may be resized in place
        limit = allowed if allowed < math.inf else None
        _write(file, SpeedReading(timed(), cores, share_received(before, ticks), megabytes_below(parent), limit))
        before = ticks
        time.sleep(pause(time.process_time() - began, cores))


def megabytes_below(process: int) -> float:
    """Return the memory of `process` and its children (MB), shared pages in equal parts."""
    children: list[int] = []
    with contextlib.suppress(OSError):  # it ends, or this kernel lists none
        children = [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return sum(megabytes(each) for each in (process, *children) if each != os.getpid())


def pause(spent: float, cores: float) -> float:
    """Return the seconds until the next reading, after one of `spent` CPU seconds."""
    return max(PERIOD_S, spent / MAX_CPU_SHARE / cores)


def timed() -> float:
    """Return the CPU seconds that the work takes."""
    import numpy as np  # not at the top: the daemon imports this before a fork with NumPy may take over

    numbers, durations = np.random.default_rng(1).random(WORK_NUMBERS), []
    for _ in range(REPETITIONS):
        began = time.thread_time()
        total = 0
        for number in range(WORK_ROUNDS):
            total += number * number % 7
        np.sort(numbers)
        durations.append(time.thread_time() - began)
    return min(durations)


def machine_ticks() -> tuple[int, int]:
    """Return the ticks that this machine worked, and those a hypervisor stole."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    except (OSError, ValueError):  # no /proc
        return 0, 0
    return user + nice + system + irq + softirq, steal


def share_received(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the share of demanded ticks that were not stolen; 1 for few."""
    worked, stolen = after[0] - before[0], after[1] - before[1]
    return worked / (worked + stolen) if worked + stolen >= MIN_TICKS else 1.0


def _write(file: Path, reading: SpeedReading) -> None:
    new = file.with_suffix(".new")
    with contextlib.suppress(OSError):  # without a folder or space the speed is unknown
        new.write_text(json.dumps(asdict(reading)))
        new.replace(file)
