"""The Elastic Allocator experiment: its runs, its bars and its page."""

import json
from dataclasses import replace

import numpy as np
import pytest

from elastream.experiments.elastic_allocator.experiment import (
    FIGURES,
    POLICIES,
    QUERIES,
    RATES,
    WORLD_CUP,
    AllocatorAssumptions,
    AllocatorCase,
    AllocatorRun,
    bars,
    make,
    queries,
    run_case,
    world_cup_day,
)
from elastream.experiments.elastic_allocator.page import outcome, verdict
from elastream.experiments.page import render


def run(policy, rate, values, gap=float("nan")):
    return AllocatorRun(AllocatorCase(policy, rate), dict(zip(FIGURES, values, strict=True)), 0, 0, gap, True, ())


def test_bars_compare_with_the_better_of_the_others_at_the_worst_rate():
    better = [
        run("even", 200, (0.1, 0.1, 0.2, 0.2, 200)), run("random", 200, (0.1, 0.1, 0.3, 0.1, 200)),
        run("elastic allocator", 200, (0.2, 0.2, 0.1, 0.05, 200), 1.04),
    ]  # fmt: skip
    assert all(check.holds for check in bars(better))
    worse = [*better[:2], replace(better[2], figures=dict(zip(FIGURES, (0.05, 0.05, 0.3, 0.2, 1), strict=True)), gap=1.1)]
    assert not any(check.holds for check in bars(worse))


def test_the_same_use_is_nowhere_lower_but_not_everywhere_higher():
    same = [run(policy, 200, (0.1, 0.1, 0.2, 0.2, 200)) for policy in POLICIES]
    held = {check.name.rpartition(": ")[2]: check.holds for check in bars(same) if " use less" in check.name}
    assert held == {"nowhere lower": True, "everywhere higher": False}


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
    assert found.figures["CPU use"] == pytest.approx(AllocatorAssumptions().busy / 6, rel=0.02)
    assert found.figures["tuples/s"] == pytest.approx(200, rel=0.02)
    assert found.moves == 0


@pytest.mark.parametrize("rate", [200, 1200])
def test_the_allocator_is_more_even_than_even_and_random(rate):
    ours, *others = (run_case(AllocatorCase(policy, rate)).figures for policy in reversed(POLICIES))
    for name in ("CPU deviation", "link deviation"):
        assert ours[name] < min(other[name] for other in others)
    assert ours["CPU use"] > min(other["CPU use"] for other in others) - 0.002


def test_only_top_k_is_moved():
    plant = make(AllocatorCase("elastic allocator", 600))
    before = plant.observe()
    from elastream.experiments.elastic_allocator.experiment import policy_of

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
