"""N-Storm's figures 8 to 11: what a stretch shows is counted from its own batches, and bars compare ways."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.evaluation.experiments import ExperimentOptions
from elastream_papers.nstorm.experiment import EXECUTORS, LAZY, ONLINE
from elastream_papers.nstorm.page import run_nstorm
from elastream_papers.nstorm.rig import CommittedBatch
from elastream_papers.nstorm.stretches import PROCESS, UNDISTURBED, Stretch, Throughput, by_second, checks_of, outcome

RATE = 100.0


def shown(stopped: int, seconds: int = 60) -> Throughput:
    """Full throughput but for `stopped` seconds without any."""
    return Throughput((*[RATE] * (seconds - stopped), *[0.0] * stopped), (20.0,), {"plan written": 1.0}, 10.0)


def test_a_second_has_the_records_of_the_batches_that_ran_in_it() -> None:
    batches = [CommittedBatch(9.5, 10.5, 100), CommittedBatch(12.0, 14.0, 100)]
    assert by_second(batches, 10.0, 5.0) == pytest.approx((50.0, 0.0, 50.0, 50.0, 0.0))


@given(st.lists(st.floats(0, 200), min_size=1, max_size=50))
def test_each_level_of_degradation_contains_the_next(rates: list[float]) -> None:
    seconds = list(Throughput(tuple(rates), (), {}, 0.0).degraded(RATE).values())
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == pytest.approx(600 * sum(rate <= 1e-9 for rate in rates) / len(rates))


def test_bars_compare_ways_with_each_other_and_not_with_the_papers_seconds() -> None:
    found = {
        Stretch(UNDISTURBED): shown(0),
        Stretch(PROCESS): shown(26),
        Stretch(EXECUTORS): shown(14),
        Stretch(LAZY): shown(2),
        Stretch(ONLINE, 16): shown(12),
        Stretch(LAZY, 16): shown(7),
    }
    checks = {check.name: check for check in checks_of(found, 0)}
    assert {name: check.value for name, check in checks.items()} == {
        "counts that differ from a batch query's": 0,
        "seconds at >= 60 %, online, lazy, 1 of 16 over restart of the job": pytest.approx(2 / 26, abs=1e-4),
        "records, online, lazy over restart of the job, 1 of 16": pytest.approx(58 / 34, abs=1e-3),
        "records, restart of executors over restart of the job, 1 of 16": pytest.approx(46 / 34, abs=1e-3),
        "records, online, lazy over online, all at once, 16 of 16": pytest.approx(53 / 48, abs=1e-3),
        "seconds at >= 60 %, online, lazy over online, all at once, 16 of 16": pytest.approx(7 / 12, abs=1e-4),
    }
    assert {check.verdict for check in checks.values()} == {"held"}
    both = {way: shown(0) for way in (Stretch(UNDISTURBED), Stretch(ONLINE, 16), Stretch(LAZY, 16))}
    assert [check.verdict for check in checks_of(both, 0)] == ["held", "missed", "undecided"]
    found[Stretch(LAZY)] = shown(26)
    assert {check.verdict for check in checks_of(found, 1)} == {"held", "missed"}


def test_the_page_shows_each_stretch_beside_the_papers_runs() -> None:
    found = {Stretch(UNDISTURBED): shown(0), Stretch(PROCESS): shown(30)}
    page = outcome(found, {"wrong": 0, "batches": 40, "hosts": "four processes", "others": 0.0}, 100.0)
    _, ours, papers, _ = page.page.tables
    assert ours.rows[1] == ("restart of the job, 1 of 16", *["300"] * 5, "50", "0.50", "10", "1")
    assert papers.rows[0] == ("Storm, 1 task", "279", "267", "1")
    json.dumps(page.to_json(), allow_nan=False)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(InputError, match="no part 'figure'"):
        run_nstorm(ExperimentOptions(), part="figure")


def test_options_of_other_parts_are_refused() -> None:
    with pytest.raises(InputError, match="neither --moves nor --full"):
        run_nstorm(ExperimentOptions(), part="figures", full=True)
