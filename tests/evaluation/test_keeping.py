"""Results kept in a file as they come: an interrupted experiment goes on, and nothing of other code is taken."""

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

from elastream.errors import EnvironmentProblem, InputError
from elastream.evaluation.cases import KeptResults, run_all
from elastream.evaluation.experiments import ExperimentOptions


@dataclass(frozen=True)
class Case:
    name: str
    plan: np.ndarray


CASES = [Case(name, np.arange(3000) + number) for number, name in enumerate("abcd")]


def doubled(case):
    return 2 * int(case.plan[-1])


def ran(path, run=doubled, cases=CASES, workers=1):
    said = []
    options = ExperimentOptions(workers=workers, resume=path)
    results, _ = run_all(run, cases, options, lambda case, *_: said.append(case.name))
    return results, said


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_experiment_goes_on_where_it_was(tmp_path, workers):
    def fails(case):
        if case.name == "c":
            raise KeyboardInterrupt
        return doubled(case)

    fails.__module__, fails.__qualname__ = doubled.__module__, doubled.__qualname__
    with pytest.raises(KeyboardInterrupt):
        ran(tmp_path / "kept", fails)
    found, said = ran(tmp_path / "kept", workers=workers)
    assert found == [doubled(case) for case in CASES]
    assert sorted(said) == ["c", "d"]


def test_cases_differ_by_each_number_of_a_plan(tmp_path):
    ran(tmp_path / "kept")
    plan = CASES[0].plan.copy()
    plan[1500] += 1
    _, said = ran(
        tmp_path / "kept", cases=[CASES[0], replace(CASES[0], name="other", plan=plan), replace(CASES[0], plan=plan)]
    )
    assert said == ["other", "a"]


def test_half_written_results_are_made_again(tmp_path):
    path = tmp_path / "kept"
    ran(path)
    path.write_bytes(path.read_bytes()[:-3])
    found, said = ran(path)
    assert (found, said) == ([doubled(case) for case in CASES], ["d"])
    assert ran(path) == (found, [])


def test_results_of_other_code_and_other_files_are_refused(tmp_path):
    path = tmp_path / "kept"
    path.write_bytes(pickle.dumps(("elastream results", "other")))
    with pytest.raises(InputError, match="other code"):
        KeptResults(path, doubled)
    path.write_text("a page")
    with pytest.raises(InputError, match="not a file of results"):
        KeptResults(path, doubled)
    with pytest.raises(EnvironmentProblem, match="cannot keep results"):
        KeptResults(tmp_path / "none" / "kept", doubled)
