"""Runs of an experiment, on several processes, in the order asked for."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

__all__ = ["run_all"]

C = TypeVar("C")
R = TypeVar("R")


def run_all(
    run: Callable[[C], R], cases: Sequence[C], workers: int, progress: Callable[[C, int, int], None]
) -> tuple[list[R], float]:
    """(what `run` gives for each case, seconds in all). progress: called with (case, how many are done, of how many)."""
    begun = time.monotonic()
    found = []
    if workers == 1:
        for case in cases:
            found.append(run(case))
            progress(case, len(found), len(cases))
    else:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context()) as pool:
            for case, result in zip(cases, pool.map(run, cases), strict=True):
                found.append(result)
                progress(case, len(found), len(cases))
    return found, time.monotonic() - begun
