"""The Elastic Allocator experiment: its runs, its bars and its page."""

import json
from dataclasses import replace

import numpy as np
import pytest

from elastream.evaluation.page import render
from elastream_papers.elastic_allocator.experiment import (
    FIGURES,
    POLICIES,
    QUERIES,
    RATES,
    WORLD_CUP,
    AllocatorAssumptions,
    AllocatorCase,
    AllocatorRun,
    bars,
    conserved,
    make,
    queries,
    run_case,
    world_cup_day,
)
from elastream_papers.elastic_allocator.page import outcome, verdict


def run(policy, rate, values, gap=float("nan"), seed=1, **more):
    given = {"assumptions": replace(AllocatorAssumptions(), busy=more.pop("busy")), "sweep": True} if "busy" in more else {}
    figures = dict(zip(FIGURES, values, strict=True))
    return AllocatorRun(
        AllocatorCase(policy, rate, seed, **given), figures, 0, 0, gap, True, more.pop("fullest", 0.5), 3, ()
    )


def test_bars_compare_with_the_better_of_the_others_on_the_same_seeds():
    better = [
        each
        for seed, off in ((1, 0.0), (2, 0.01), (3, 0.02))
        for each in (
            run("even", 200, (0.1 + off, 0.1 + off, 0.2, 0.2, 200), seed=seed),
            run("random", 200, (0.1 + off, 0.1 + off, 0.3, 0.1, 200), seed=seed),
            run("elastic allocator", 200, (0.2 + off, 0.2 + off, 0.1, 0.05, 200), 1.04, seed=seed),
        )
    ]
    assert all(check.holds for check in bars(better))
    worse = (0.05, 0.05, 0.3, 0.2, 1)
    lost = [
        replace(each, figures=dict(zip(FIGURES, worse, strict=True)), gap=1.1) if each.gap == 1.04 else each
        for each in better
    ]
    assert [check.name for check in bars(lost) if not check.missed] == ["tasks on a host, at most"]


def test_the_same_use_is_at_no_rate_lower_but_not_at_every_rate_higher_and_that_is_missed():
    same = [run(policy, 200, (0.1, 0.1, 0.2, 0.2, 200), seed=seed) for policy in POLICIES for seed in (1, 2)]
    held = {check.name.rpartition(": ")[2]: check.verdict for check in bars(same) if " use less" in check.name}
    assert held == {"at no rate lower": "held", "at every rate higher": "missed"}


def test_use_is_conserved_without_a_full_host_and_higher_where_even_placement_fills_one():
    def pair(busy, seed, even, ours, fullest):
        values = (0.5, 0.1, 0.1, 1)
        return [
            run("even", 1200, (even, *values), seed=seed, busy=busy, fullest=fullest),
            run("elastic allocator", 1200, (ours, *values), seed=seed, busy=busy, fullest=0.7),
        ]

    free = [each for seed in (1, 2) for each in pair(0.4, seed, 0.4, 0.4, 0.8)]
    full = [each for seed in (1, 2, 3) for each in pair(0.9, seed, 0.80, 0.84 + seed / 1000, 1.0)]
    assert [check.verdict for check in conserved([*free, *full])] == ["held", "held"]
    assert [check.verdict for check in conserved(pair(0.4, 1, 0.4, 0.41, 0.8))] == ["missed"]
    assert [check.verdict for check in conserved(pair(0.9, 1, 0.8, 0.9, 1.0))] == ["undecided"], "one seed"


def test_others_take_a_part_of_every_host_which_is_the_same_under_every_policy():
    first, second = (make(AllocatorCase(policy, 200, seed=2)) for policy in ("even", "elastic allocator"))
    given = first.settings.background
    assert given == second.settings.background
    assert 0 < min(each.cores for each in given.values()) < max(each.cores for each in given.values()) < 0.8


def test_at_the_highest_rate_the_queries_ask_for_the_assumed_part_of_all_cores():
    given = AllocatorAssumptions()
    work = sum(o.alternates[0].cost for o in queries(given).operators if o.alternates)
    assert work * RATES[-1] == pytest.approx(given.busy * 40)


def test_thirty_tasks_lie_three_to_a_host_before_anybody_decides():
    seen = make(AllocatorCase("even", 200)).observe()
    assert len(seen.tasks) == sum(tasks for steps in QUERIES.values() for _, tasks, *_ in steps) == 30
    assert np.bincount(seen.tasks.host).tolist() == [3] * 10


def test_at_a_low_rate_everything_gets_through_and_what_is_requested_is_used():
    found = run_case(AllocatorCase("even", 200))
    others = sum(each.cores for each in make(AllocatorCase("even", 200)).settings.background.values()) / 40
    assert found.figures["CPU use"] == pytest.approx(AllocatorAssumptions().busy / 6 + others, rel=0.02)
    assert found.figures["tuples/s"] == pytest.approx(200, rel=0.02)
    assert found.moves == 0


def test_no_host_holds_more_tasks_than_slots_under_any_policy():
    assert {run_case(AllocatorCase(policy, 600, seed=3)).crowded for policy in POLICIES} == {3}


@pytest.mark.parametrize("rate", [200, 1200])
def test_the_allocator_is_more_even_than_even_and_random(rate):
    ours, *others = (run_case(AllocatorCase(policy, rate)).figures for policy in reversed(POLICIES))
    for name in ("CPU deviation", "link deviation"):
        assert ours[name] < min(other[name] for other in others)
    assert ours["CPU use"] > min(other["CPU use"] for other in others) - 0.002


def test_only_top_k_is_moved():
    plant = make(AllocatorCase("elastic allocator", 600))
    before = plant.observe()
    from elastream_papers.elastic_allocator.experiment import policy_of

    plant.advance(10.0)
    for action in policy_of(AllocatorCase("elastic allocator", 600)).plan(plant.observe()).actions:
        assert action.task.operator.startswith("top-k")
    assert len(before.tasks) == 30


def test_the_outcome_can_be_written_and_shown():
    runs = [run_case(AllocatorCase(policy, rate)) for rate in (200, 1200) for policy in POLICIES]
    found = outcome(runs, 1.0)
    json.dumps(found.to_json(), allow_nan=False)
    page = render(found.page)
    assert "simulated" in page
    assert "Figure 5" in page
    assert "higher at" in verdict(found.figures["rates"])


@pytest.mark.skipif(not WORLD_CUP.exists(), reason="the recorded rates are not beside the repository")
def test_the_world_cups_busiest_day_has_a_count_a_minute_and_the_highest_rate_once():
    day = world_cup_day()
    assert day.size == 1440
    assert day.max() == RATES[-1]
    assert day.min() > 0
