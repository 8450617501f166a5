"""The lower bound of cost: hand-computed cases, and that no run in the simulator beats it."""

import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import Billing, HostType
from elastream.dataflow.operators import Alternate, Kind, Operator
from elastream.errors import InputError
from elastream.evaluation.bound import Lease, Problem, lower_bound, problem_of
from elastream.evaluation.compare import compare
from elastream.evaluation.comparison import Bound, Peak
from elastream.loads import constant, steps
from elastream.policies.horizon.policy import Horizon
from elastream.policies.static import Static
from elastream.settings import SimulateSettings
from support.property_examples import examples
from support.random_leases import random_run
from support.simulated_plants import between_ends

BY_SECOND = Lease(capacity=1.0, start=0.0, unit=1.0, first=1.0, rate=1.0)
BY_HOUR = replace(BY_SECOND, unit=3600.0, first=3600.0)


def problem(rates, lease=BY_SECOND, *, latency=10.0, late=0.0, period=10.0, **more):
    """Work of `rates[k]` core-seconds a second in second k."""
    times = np.arange(len(rates) * 10) / 10
    work = np.repeat(np.asarray(rates, dtype=float), 10) / 10
    return Problem(times, work, latency, late, float(len(rates)), period, (lease,), **more)


def cost(*args, **more):
    return lower_bound(problem(*args, **more), whole=False).cost


def test_bound_is_the_work_due_by_the_end():
    # Records of the last 10 s may wait at the end.
    assert cost([2.0] * 100) == pytest.approx(180, rel=1e-4)


def test_bound_counts_the_fewest_hosts():
    assert cost([0.1] * 100, min_hosts=2) == pytest.approx(200, rel=1e-4)


def test_work_that_may_be_late_is_left_out():
    burst = [2.0] * 50 + [22.0] + [2.0] * 49
    assert cost(burst) - cost(burst, late=20.0) == pytest.approx(20, rel=1e-3)


def test_whole_units_are_paid():
    assert cost([0.5] * 5400, BY_HOUR, period=60.0) == pytest.approx(2 * 3600, rel=1e-4)
    by_second = replace(BY_HOUR, unit=0.0, first=0.0)
    assert cost([0.5] * 5400, by_second, period=60.0) == pytest.approx(5400, rel=1e-4)


def test_a_burst_costs_the_time_in_which_hosts_start():
    burst = [1.0] * 60 + [21.0] + [1.0] * 59
    # Ten core-seconds from 60 s to 72.5 s, in steps of 2.5 s, take 0.8 of a host more, which starts for 20 s.
    assert cost(burst, replace(BY_SECOND, start=20.0)) - cost(burst) == pytest.approx(16, rel=1e-3)


def test_whole_hosts_cost_more_than_parts_of_hosts():
    # One host is too few and no second comes in time: two until the backlog of one may last to the end, 15 s before it.
    load = problem([1.5] * 100, replace(BY_SECOND, start=200.0), latency=5.0)
    assert lower_bound(load, whole=False).cost == pytest.approx(142.5, rel=0.01)
    bound = lower_bound(load)
    assert bound.whole
    assert 180 <= bound.cost <= 185


def test_windows_together_bound_the_whole():
    rates = [2.5 + 2 * math.sin(second / 40) for second in range(900)]
    load = problem(rates, replace(BY_SECOND, start=15.0, first=60.0), latency=10.0, period=5.0)
    parts, bound = lower_bound(load, whole=False), lower_bound(load, seconds=5.0)
    assert parts.cost <= bound.cost <= 5 * 900


def test_bound_of_an_unfinished_solver_holds_and_says_so():
    load = problem([1.5] * 100, replace(BY_SECOND, start=200.0), latency=5.0)
    bound = lower_bound(load, seconds=0.0)
    assert 140 < bound.cost <= 185
    assert "did not finish 1 of 1 windows within 0 s" in bound.note


def test_too_few_hosts_are_an_error():
    with pytest.raises(InputError, match="no fleet of at most max_hosts hosts can keep the target"):
        lower_bound(problem([5.0] * 100, max_hosts=2))


def test_a_missing_solver_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(InputError, match=r"scipy.*install elastream\[simulate\]"):
        lower_bound(problem([1.0] * 10))


HOST = HostType("small", cores=1, memory=4000, price=1.0, billing=Billing(1), start=30, stop=5)


def graph(*alternates, level=None):
    work = Operator("work", Kind.TRANSFORM, alternates or (Alternate("work", cost=0.1),), max_duration=level, cores=1.0)
    return between_ends(work, name="case")


def compared(graph, policies, **changes):
    usual = {"host_types": [HOST], "fused": True, "target_latency": 10, "target": 0.9, "bound": True}
    return compare(graph, policies, SimulateSettings(**usual | changes))


def test_comparison_has_the_bound_and_the_best_constant_fleet():
    found = compared(graph(), {"two": Static(2), "five": Static(5)}, load=steps(5, 28, every="2min"))
    assert isinstance(found.bound, Bound)
    assert isinstance(found.peak, Peak)
    # 90 % of 3,960 records of 0.1 core-seconds
    assert found.bound.cost >= 0.9 * 396
    assert (found.peak.hosts, found.peak.in_hindsight) == (3, True)
    assert not found.meets(found["two"])
    assert 0 < found.bounds["two"].cost <= found["two"].cost
    assert found.over_constant(found["five"]) == pytest.approx(5 / 3)
    assert found.over_bound(found["five"]) == found["five"].cost / found.bound.cost
    assert "No policy can meet the target on this load for less than" in found.verdict
    assert "best constant fleet in hindsight" in found.verdict
    assert found.table().header[3:5] == ("x bound", "x constant")
    figures = found.outcome().to_json()["figures"]
    assert figures["bound"]["cost"] == found.bound.cost
    assert figures["policies"]["five"]["cost over constant"] == pytest.approx(5 / 3)


def test_parts_of_the_cost_of_horizon_add_up_to_it():
    found = compared(graph(), {"horizon": Horizon(), "five": Static(5)}, load=steps(5, 28, every="4min"), target_latency=60)
    gap, cost = found.gap, found["horizon"].cost
    assert gap.work + gap.whole + gap.start + gap.plan + gap.forecast == pytest.approx(cost)
    assert gap.work + gap.whole + gap.start == pytest.approx(found.bound.cost)
    assert min(gap.work, gap.whole, gap.start) >= 0
    assert f"horizon spends {gap.work / cost:.0%} for the records' work" in found.verdict
    assert found.outcome().figures["gap"]["work"] == gap.work


def test_cheapest_alternate_counts():
    cheap = (Alternate("work", cost=0.1), Alternate("cheap", cost=0.02))
    dear, other = (compared(graph(*each), {"three": Static(3)}, load=constant(20, "2min")) for each in (cheap[:1], cheap))
    assert other.bound.cost < 0.7 * dear.bound.cost


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target_latency": None}, "it takes a target latency"),
        ({"limit": 60.5}, "the last monitoring period is cut short.*such as 60 s"),
    ],
)
def test_comparison_says_why_there_is_no_bound(changes, reason):
    found = compared(graph(level=10.0), {"two": Static(2)}, load=constant(5, "2min"), **changes)
    assert found.bound is not None
    assert not isinstance(found.bound, Bound)
    assert re.search(reason, found.bound)
    assert re.search(reason, found.verdict)


def check_run(seed: int, *, whole: bool) -> None:
    scene, trial = random_run(seed)
    bound = lower_bound(problem_of(scene, trial.compliance), whole=whole, seconds=0.5)
    assert bound.cost <= trial.cost * (1 + 1e-6)


@settings(deadline=None, max_examples=examples(300))
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_no_random_run_beats_the_bound(seed, whole):
    check_run(seed, whole=whole)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_no_run_of_ten_thousand_beats_the_bound(part):
    for seed in range(part * 1000, (part + 1) * 1000):
        check_run(seed, whole=seed % 4 == 0)
