"""Measures from inside how fast a host's cores are, in a process beside the Python workers of its executor.

The daemon that forks workers forks it, so that no task waits for it. Every few seconds it does a fixed piece of work of the
kind that workers do, and times it in CPU seconds: a slow core takes more of them, whatever else runs. What a quota or a
hypervisor keeps back takes none; the kernel tells of it. A file per executor has the newest reading, which
`telemetry.speeds` makes speeds of.
"""

import contextlib
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from elastream.clouds.local.confinement import cores_allowed, own_groups
from elastream.clouds.local.processes import end_with_parent

FOLDER, EXECUTOR = "ELASTREAM_PROBES", "ELASTREAM_EXECUTOR"
"""Environment variables: the folder of readings, and the id of the executor that this process belongs to."""
PERIOD = 5.0
"""Seconds between two readings, at least."""
SHARE = 0.001
"""Of a host's cores, what probing may use: after a reading that took more, the next comes later."""
PIECES = 5
"""Times that the work is done for a reading, the fastest of which counts: what else runs only ever adds to one."""
NICENESS = 19
"""The kernel's greatest: workers that want the core get it first."""
ROUNDS = 4_000
NUMBERS = 4_096
"""The work: rounds of Python, and numbers that NumPy sorts; a third of a millisecond on two shared cores of 2026."""
LEAST_TICKS = 20
"""Clock ticks (10 ms each) that a machine must have wanted between two readings for what it did not get to say anything."""


@dataclass(frozen=True, slots=True)
class SpeedReading:
    """What a probe found. piece: CPU seconds of the work. cores: that this process's quotas and CPU set leave it.

    kept: part of the CPU time that the machine wanted since the reading before and got; a hypervisor stole the rest.
    """

    piece: float
    cores: float
    kept: float = 1.0


def file_of(folder: Path, executor: str) -> Path:
    """Where the newest reading of an executor is."""
    return folder / f"{executor}.json"


def name_executor() -> None:
    """Note in the environment to which executor the calling process belongs, a child of its JVM."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # no executor's, or no such system
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
        os.environ[EXECUTOR] = words[words.index(b"--executor-id") + 1].decode()


def begin() -> None:
    """Fork the process that probes; nothing where no folder or no executor is known. It ends with the calling process."""
    folder, executor, parent = os.environ.get(FOLDER), os.environ.get(EXECUTOR), os.getpid()
    if not folder or not executor or os.fork():
        return
    try:
        end_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.closerange(3, 65_536)  # pipes and sockets of the daemon's, which must close when it ends
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
        _write(file, SpeedReading(timed(), cores, kept(before, ticks)))
        before = ticks
        time.sleep(pause(time.process_time() - began, cores))


def pause(spent: float, cores: float) -> float:
    """Seconds until the next reading after one that took `spent` CPU seconds of a host with these cores."""
    return max(PERIOD, spent / SHARE / cores)


def timed() -> float:
    """CPU seconds that the work takes."""
    import numpy as np  # the daemon reads this module before it knows whether a fork that has NumPy takes its place

    numbers, taken = np.random.default_rng(1).random(NUMBERS), []
    for _ in range(PIECES):
        began = time.thread_time()
        total = 0
        for number in range(ROUNDS):
            total += number * number % 7
        np.sort(numbers)
        taken.append(time.thread_time() - began)
    return min(taken)


def machine_ticks() -> tuple[int, int]:
    """(Ticks that this machine's cores have worked, ticks that a hypervisor has stolen of them) since it started."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    except (OSError, ValueError):  # no such system
        return 0, 0
    return user + nice + system + irq + softirq, steal


def kept(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Part of the CPU time wanted between two `machine_ticks` that the machine got; 1 where it wanted little."""
    worked, stolen = after[0] - before[0], after[1] - before[1]
    return worked / (worked + stolen) if worked + stolen >= LEAST_TICKS else 1.0


def _write(file: Path, reading: SpeedReading) -> None:
    new = file.with_suffix(".new")
    with contextlib.suppress(OSError):  # the run's folder is gone, or full: the speed is unknown then
        new.write_text(json.dumps(asdict(reading)))
        os.replace(new, file)
