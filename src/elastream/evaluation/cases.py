"""Execution of cases in several processes; reuses stored results."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from typing import TypeVar

from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.keeping import KeptResults
from elastream.evaluation.trials import run_beside

C = TypeVar("C")
R = TypeVar("R")


def run_all(
    run: Callable[[C], R],
    cases: Sequence[C],
    options: ExperimentOptions,
    label: Callable[[C], str],
    warm: Callable[[C], object] = lambda _: None,
) -> tuple[list[R], float]:
    """Run all `cases` without stored results; return all results in order, and the seconds that this took."""
    begun = time.monotonic()
    with nullcontext() if options.resume is None else closing(KeptResults(options.resume, run)) as keep:
        results = {} if keep is None else {n: keep.of(run, case) for n, case in enumerate(cases) if keep.has(run, case)}
        if results:
            options.say(f"{len(results):,} results taken from {options.resume}")
        left = [number for number in range(len(cases)) if number not in results]

        def ended(number: int, result: R) -> None:
            case = cases[left[number]]
            results[left[number]] = result
            if keep is not None:
                keep.add(run, case, result)
            options.progress(label(case), len(results), len(cases))

        if left:
            warm(cases[left[0]])
            run_beside(lambda case, _: run(case), [cases[number] for number in left], options.workers, ended=ended)
    return [results[number] for number in range(len(cases))], time.monotonic() - begun
