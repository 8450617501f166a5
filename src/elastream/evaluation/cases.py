"""Executes the cases of an experiment, or the policies of a comparison, in several processes; results keep their order.

Workers are forks: they inherit the compiled loops and what is to be run, so that nothing a user wrote has to be pickled.
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

LOOK, TELL = 0.5, 0.2
"""Seconds between two looks at how far workers are, and least seconds between two reports of a worker."""


C = TypeVar("C")
R = TypeVar("R")
Tell = Callable[[float], None]
"""Called by a running case with how far it is, in a unit of its own."""

_inherited: dict[str, Any] = {}
"""What workers run and report to; set before they are forked."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_beside(
    run: Callable[[C, Tell], R],
    cases: Sequence[C],
    workers: int,
    follow: Callable[[Sequence[float], Sequence[bool]], None] = lambda *_: None,
    ended: Callable[[int, R], None] = lambda *_: None,
) -> list[R]:
    """Run all `cases` side by side on up to `workers` processes; returns their results in order.

    follow: called from time to time with how far each case said it is (0 before it says anything) and whether it is done.
    ended: called with the number of a case and its result when it is done.
    The first case that raises ends the others, and so does an interrupt; what it raised is raised. Where no process can be
    forked the cases run one after the other.
    """
    told, done = [0.0] * len(cases), [False] * len(cases)
    if min(workers, len(cases)) < 2 or sys.platform == "win32" or sys.platform == "darwin":
        found = []
        for number, case in enumerate(cases):

            def tell(far: float, number: int = number) -> None:
                told[number] = far
                follow(told, done)

            found.append(run(case, sparing(tell)))
            ended(number, found[-1])
            done[number] = True
            follow(told, done)
        return found
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
                told[number] = far
            done = [future.done() for future in futures]
            follow(told, done)
        return [future.result() for future in futures]
    except BaseException:
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        _inherited.clear()


def sparing(tell: Tell) -> Tell:
    """`tell` at most every TELL seconds."""
    last = -TELL

    def now_and_then(far: float) -> None:
        nonlocal last
        if time.monotonic() - last >= TELL:
            last = time.monotonic()
            tell(far)

    return now_and_then


def _as_worker() -> None:
    """The parent ends workers where an interrupt ends it, and they end themselves where it is gone."""
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
