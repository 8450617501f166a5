"""How tests wait: for as long as something gets on, and then for seconds that the machine had for them.

A fixed time-out fails on a busy machine although nothing is wrong. Here a second counts only as far as the processes that
are waited for got the cores that they wanted, and every progress begins the wait anew.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

__all__ = ["PATIENCE", "Patience", "ended", "observed", "wait_until"]

PATIENCE = 120.0
"""Seconds without progress after which what is waited for is held to hang; on a free machine no step takes half of that."""
LOOK = 0.05
WEIGH = 1.0
"""Seconds between two looks at what is waited for, and between two at how busy the machine is."""


class Patience:
    """Tells whether the processes below `pid` (this one by default) have had `seconds` of the machine without progress."""

    def __init__(self, seconds: float = PATIENCE, pid: int | None = None) -> None:
        self._seconds, self._pid = seconds, pid or os.getpid()
        self._spent, self._seen = 0.0, object()
        self._at, self._before = time.monotonic(), scheduled(self._pid)

    def over(self, progress: object = None) -> bool:
        """Whether it is over. progress: anything that is another value when something got on."""
        if (passed := time.monotonic() - self._at) >= WEIGH:
            now = scheduled(self._pid)
            self._spent += passed * share(self._before, now)
            self._at, self._before = time.monotonic(), now
        if progress != self._seen:
            self._seen, self._spent = progress, 0.0
        return self._spent > self._seconds


Scheduled = dict[str, tuple[int, int]]
"""Per thread: how long it ran, and how long it waited for a core; both in nanoseconds."""


def share(before: Scheduled, after: Scheduled) -> float:
    """Part of the time that threads wanted a core in which they had one; 1 where none wanted any."""
    ran = waited = 0
    for thread, (run, wait) in after.items():
        run_before, wait_before = before.get(thread, (0, 0))
        ran, waited = ran + run - run_before, waited + wait - wait_before
    return ran / (ran + waited) if ran + waited > 0 else 1.0


def scheduled(pid: int) -> Scheduled:
    """What the kernel says of every thread of the process and of those below it; nothing where it says nothing."""
    try:
        process = psutil.Process(pid)
        pids = [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return {}
    found: Scheduled = {}
    for each in pids:
        try:
            for thread in Path(f"/proc/{each}/task").iterdir():
                ran, waited, _ = (thread / "schedstat").read_text().split()
                found[thread.name] = int(ran), int(waited)
        except OSError:
            continue  # it ended meanwhile, or this kernel keeps no such statistics: its seconds count in full
    return found


def wait_until(
    holds: Callable[[], Any],
    *,
    patience: float = PATIENCE,
    progress: Callable[[], object] = lambda: None,
    otherwise: Callable[[], object] = lambda: "it did not come about",
    look: float = LOOK,
) -> Any:
    """Wait until `holds`, called every `look` seconds, is true; AssertionError with `otherwise` where it hangs."""
    waiting = Patience(patience)
    while not (found := holds()):
        assert not waiting.over(progress()), otherwise()
        time.sleep(look)
    return found


def observed(plant: Any, condition: Callable[[Any], Any], look: float = 0.2) -> Any:
    """Return the first observation of `plant` that meets `condition`; fail with the last one."""
    seen = None

    def holds() -> Any:
        nonlocal seen
        seen = plant.observe()
        return condition(seen)

    wait_until(holds, look=look, otherwise=lambda: f"never came true: {seen}")
    return seen


def ended(
    process: subprocess.Popen[str], *, patience: float = PATIENCE, progress: Callable[[], object] = lambda: None
) -> tuple[str, str]:
    """What the process wrote to its pipes until it ended; where it hangs, it is killed and an AssertionError shows them."""
    waiting = Patience(patience, process.pid)
    while True:
        try:
            return process.communicate(timeout=WEIGH)
        except subprocess.TimeoutExpired:
            if waiting.over(progress()):
                process.kill()
                raise AssertionError(f"the process hangs: {process.communicate()}") from None
