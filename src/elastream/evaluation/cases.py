"""Parallel execution of an experiment's cases or a comparison's policies.

Workers are forks, so that nothing must be pickled.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import wait as wait_for_any
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

# seconds between looks at the workers' progress; least seconds between a worker's reports
LOOK, TELL = 0.5, 0.2


C = TypeVar("C")
R = TypeVar("R")
# receives a case's progress, in a unit of its own
Tell = Callable[[float], None]

# workers inherit it; set before forking
_inherited: dict[str, Any] = {}


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_beside(
    run: Callable[[C, Tell], R],
    cases: Sequence[C],
    workers: int,
    follow: Callable[[Sequence[float], Sequence[bool]], None] = lambda *_: None,
    ended: Callable[[int, R], None] = lambda *_: None,
) -> list[R]:
    """Run all `cases` on up to `workers` processes; return their results in order.

    The first error or interrupt ends all cases and is raised.

    Args:
        follow: Receives each case's progress, and whether it is done.
        ended: Receives number and result of each finished case.
    """
    progress, done = [0.0] * len(cases), [False] * len(cases)
    if min(workers, len(cases)) < 2 or sys.platform == "win32" or sys.platform == "darwin":
        results = []
        for number, case in enumerate(cases):

            def tell(far: float, number: int = number) -> None:
                progress[number] = far
                follow(progress, done)

            results.append(run(case, sparing(tell)))
            ended(number, results[-1])
            done[number] = True
            follow(progress, done)
        return results
    forked = multiprocessing.get_context("fork")
    others = set(multiprocessing.active_children())
    reports = forked.SimpleQueue()
    _inherited.update(run=run, cases=cases, reports=reports)
    pool = ProcessPoolExecutor(min(workers, len(cases)), mp_context=forked, initializer=_as_worker)
    try:
        futures = [pool.submit(_run_inherited, number) for number in range(len(cases))]
        waiting: set[Future[R]] = set(futures)
        numbers = {future: number for number, future in enumerate(futures)}
        while waiting:
            new, waiting = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
            for future in new:
                ended(numbers[future], future.result())  # raises what the case raised
            while not reports.empty():
                number, far = reports.get()
                progress[number] = far
            done = [future.done() for future in futures]
            follow(progress, done)
        return [future.result() for future in futures]
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        _inherited.clear()


def sparing(tell: Tell) -> Tell:
    """Return `tell`, called at most every TELL seconds."""
    last = -TELL

    def now_and_then(far: float) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL:
            last = time.monotonic()
            tell(far)

    return now_and_then


def _as_worker() -> None:
    """Leave interrupts to the parent process; exit when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threadpool_limits(1)  # there is a worker for every core: threads of its own only wait for those of the others
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow_the_parent() -> None:
            wait_for_any([parent.sentinel])
            os._exit(1)

        threading.Thread(target=follow_the_parent, daemon=True).start()


def _run_inherited(number: int) -> Any:
    reports = _inherited["reports"]
    return _inherited["run"](_inherited["cases"][number], sparing(lambda far: reports.put((number, far))))
