"""Chapter 6, simulated: what its runs come to, and what is judged of them."""

from dataclasses import replace

import numpy as np
import pytest

from elastream_papers.thesis.resilience.bars import ResilienceResults, bars
from elastream_papers.thesis.resilience.experiment import ResilienceCase, ResilienceRun, failing, run_case
from elastream_papers.thesis.resilience.page import _cases, outcome
from elastream_papers.thesis.resilience.scene import ResilienceAssumptions

SMALL = ResilienceAssumptions(vocabulary=5_000)


def made(case: ResilienceCase) -> ResilienceRun:
    """A run that comes to what its case says, in place of one that takes seconds."""
    values = {
        "peak": {
            "throughput": 1000.0 * case.hosts * (3 - 0.2 * case.replicas),
            "sustained": 900.0 * case.hosts * (1 - 0.06 * case.replicas),
        },
        "balance": {"balanced": 20.0, "overloaded": 1.0, "neighbours": 2.0},
        "growth": {"reaction": 2.0, "lacking": 0.0},
        "move": {"latency": case.rate * case.checkpoint / 200_000},
        "delta": {"ratio": 0.03 * case.checkpoint},
        "fault": {"recovery": 1.0},
        "recovery": {
            "recovery": 1.0 + 0.01 * (case.seed % 3), "twice": 3.0, "repeated": 5.0, "emitted": 9.0, "left over": 0.0,
            "lacking": float(case.in_a_row),
        },
    }  # fmt: skip
    series = {
        "seconds": np.arange(3.0),
        "offered": np.ones(3),
        "throughput": np.ones(3),
        "hosts": np.ones(3),
        "ratio": np.ones(3),
        "reactions": np.full(4, 2.0),
    }
    return ResilienceRun(case, values[case.part], series)


@pytest.mark.parametrize("quick", [True, False])
def test_no_run_is_made_twice_and_the_page_shows_every_bar(quick):
    cases = _cases(SMALL, quick)
    assert len(set(cases)) == len(cases)
    found = outcome(ResilienceResults([made(case) for case in cases]), [], 1.0)
    assert {check.name for check in found.checks} == {row[0] for row in found.page.tables[0].rows}
    verdicts = {check.name: check.verdict for check in found.checks}
    assert verdicts["checkpoint over state at 2 s"] == "held"
    assert verdicts["sustained throughput lost from r = 0 to r = 2, least and most by hosts"] == "held"
    assert len(verdicts) == len(found.checks) >= 14


@pytest.mark.parametrize(("hosts", "r"), [(6, 1), (12, 1), (12, 2), (12, 3), (7, 2)])
def test_as_many_hosts_fail_as_may_and_no_more_than_r_neighbours(hosts, r):
    case = ResilienceCase("recovery", hosts, r, failures=hosts * r // (r + 1))
    places = sorted(failing(case, np.random.default_rng(1)))
    assert len(set(places)) == len(places) == hosts * r // (r + 1)
    gone = [place in places for place in range(hosts)] * 2
    assert not any(all(gone[place : place + r + 1]) for place in range(hosts))


def test_a_recovery_loses_nothing_and_too_many_in_a_row_lose_something():
    kept = run_case(ResilienceCase("recovery", 4, rate=400.0, checkpoint=1.0, failures=2, assumptions=SMALL))
    lost = run_case(ResilienceCase("recovery", 4, rate=400.0, checkpoint=1.0, failures=2, in_a_row=True, assumptions=SMALL))
    assert kept.figures["lacking"] == kept.figures["left over"] == 0
    assert 0 < kept.figures["recovery"] < 2.0
    assert lost.figures["lacking"] > 0


def test_a_move_takes_longer_with_a_longer_interval():
    short, long = (
        np.mean(
            [
                run_case(ResilienceCase("move", checkpoint=every, seed=s, assumptions=SMALL)).figures["latency"]
                for s in (1, 2)
            ]
        )
        for every in (1.0, 10.0)
    )
    assert short < long


def test_a_peak_is_above_what_a_ring_sustains():
    found = run_case(ResilienceCase("peak", 2, 1, assumptions=SMALL)).figures
    assert 0 < found["sustained"] < found["throughput"]


@pytest.mark.parametrize(("rise", "noise", "verdict"), [(0.0, 0.02, "held"), (0.1, 0.02, "missed"), (0.0, 2.0, "missed")])
def test_a_slope_holds_if_it_is_surely_small_and_not_by_noise(rise, noise, verdict):
    chance = np.random.default_rng(1)

    def recovered(case: ResilienceCase) -> ResilienceRun:
        run = made(case)
        took = 1.0 + rise * case.failures + noise * chance.normal()
        return replace(run, figures={**run.figures, "recovery": took}) if case.part == "recovery" else run

    runs = [recovered(case) for case in _cases(SMALL, False) if case.part == "recovery"]
    (slope,) = [check for check in bars(ResilienceResults(runs)) if "slope" in check.name]
    assert slope.verdict == verdict
    assert "power" in str(slope.value)


def test_a_checkpoint_sends_only_a_part_of_a_changed_state():
    whole, part = (
        run_case(ResilienceCase("delta", rate=400.0, assumptions=replace(SMALL, changed=changed))).figures["ratio"]
        for changed in (1.0, 0.5)
    )
    assert part == pytest.approx(whole / 2)


def test_bars_are_those_of_the_parts_that_ran():
    runs = [made(case) for case in _cases(SMALL, True) if case.part == "delta"]
    assert {check.source for check in bars(ResilienceResults(runs))} == {"Fig. 6.12, p. 150"}
