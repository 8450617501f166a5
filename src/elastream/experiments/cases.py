"""Executes the cases of an experiment in several processes; results keep the order of the cases."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class ExperimentOptions:
    """What is wanted of an experiment. quick: its smallest part. sensitivity: also every assumption halved and doubled.

    workers: processes for simulated cases. progress: called with (description, runs done, all runs). An experiment on Spark
    has no assumptions and runs its cases one after the other.
    """

    quick: bool = False
    sensitivity: bool = False
    workers: int = 2
    progress: Callable[[str, int, int], None] = lambda *_: None


C = TypeVar("C")
R = TypeVar("R")


def run_all(
    run: Callable[[C], R],
    cases: Sequence[C],
    workers: int,
    progress: Callable[[C, int, int], None],
    warm: Callable[[C], object] = lambda _: None,
) -> tuple[list[R], float]:
    """Run all `cases`; returns (results in order, total seconds). progress: called with (case, cases done, all cases).

    warm: called with the first case beforehand, to load the compiled loops that forked workers then inherit.
    """
    begun = time.monotonic()
    warm(cases[0])
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
