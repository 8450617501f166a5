"""Cases run side by side: in order, with what they raise, and until an interrupt."""

import multiprocessing

import pytest

from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.trials import run_beside


def test_results_keep_the_order_of_the_cases_however_many_run_at_once():
    wanted = [case * case for case in range(7)]
    for workers in (1, 2, 5):
        # A function that cannot be pickled, as a policy of a user's file cannot.
        assert run_beside(lambda case, _: case * case, range(7), workers, lambda *_: None) == wanted


def test_every_case_is_reported_once_when_it_is_done():
    reports = []
    options = ExperimentOptions(workers=2, progress=lambda *report: reports.append(report))
    results, _ = run_all(lambda case: -case, [3, 1, 2], options, str)
    assert results == [-3, -1, -2]
    assert sorted(case for case, _, _ in reports) == ["1", "2", "3"]
    assert [(done, of) for _, done, of in reports] == [(1, 3), (2, 3), (3, 3)]


def test_how_far_cases_are_is_told():
    seen = []

    def run(case, tell):
        tell(float(case))
        return case

    run_beside(run, [4, 5], 2, lambda told, done: seen.append((tuple(told), tuple(done))))
    assert seen[-1] == ((4.0, 5.0), (True, True))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_case_that_raises_ends_the_others(workers):
    def run(case, _):
        if case == 0:
            raise ValueError("no good")
        multiprocessing.Event().wait()  # for ever

    with pytest.raises(ValueError, match="no good"):
        run_beside(run, range(2), workers, lambda *_: None)
    assert not multiprocessing.active_children()


def test_an_interrupt_ends_all_cases():
    def interrupt(told, _):
        if any(told):
            raise KeyboardInterrupt

    def run(_, tell):
        tell(1.0)
        multiprocessing.Event().wait()  # for ever

    with pytest.raises(KeyboardInterrupt):
        run_beside(run, range(2), 2, interrupt)
    assert not multiprocessing.active_children()
