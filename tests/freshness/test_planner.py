"""The plan of the next bounded run: as late as the deadline allows, with the hosts that cost least."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elastream.core.hosts import Billing, HostType
from elastream.freshness.planner import Arrivals, BoundedRun, HostBounds, RunModel, Waiting, plan_wake

TYPE = HostType("tiny", cores=1, price=1.0, billing=Billing(1.0))
BOUNDS = HostBounds(TYPE, 1, 8)
MODEL = RunModel(startup=30.0, release=5.0, fixed=5.0, each=0.1, largest=10_000.0, measured=True)
FRESHNESS = 600.0
waits = st.builds(Waiting, st.floats(1, 5_000), st.floats(-400, 0))


def run(hosts: int, records: float, seconds: float, startup: float = 30.0) -> BoundedRun:
    return BoundedRun(0.0, startup, startup + seconds, startup + seconds + 5, hosts, records)


def plan(waiting: Waiting, arrivals: Arrivals | None = None, model: RunModel = MODEL, bounds: HostBounds = BOUNDS):
    return plan_wake(0.0, waiting, FRESHNESS, model, arrivals or Arrivals(FRESHNESS), bounds)


def test_nothing_waiting_starts_nothing():
    assert plan(Waiting()).start == math.inf


def test_unmeasured_work_starts_at_once():
    assert plan(Waiting(1, -1), model=RunModel(30, 5)).start == 0.0


@given(waits)
def test_plan_without_a_remark_commits_in_time(waiting):
    wake = plan(waiting)
    assume(not wake.remark)  # a remark says that it cannot
    assert wake.start >= 0
    assert wake.start + MODEL.startup + MODEL.processing(waiting.records, wake.hosts) <= waiting.oldest + FRESHNESS + 1e-6


@given(waits, st.floats(1, 3))
def test_more_records_never_start_later_with_the_same_hosts(waiting, factor):
    bounds = HostBounds(TYPE, 2, 2)
    more = replace(waiting, records=waiting.records * factor)
    assert plan(more, bounds=bounds).start <= plan(waiting, bounds=bounds).start + 1e-9


@given(waits, st.floats(1, 500))
def test_older_records_never_start_later_with_the_same_hosts(waiting, older):
    bounds = HostBounds(TYPE, 2, 2)
    assert plan(replace(waiting, oldest=waiting.oldest - older), bounds=bounds).start <= plan(waiting, bounds=bounds).start


def test_burst_that_one_host_cannot_hold_leases_more():
    assert plan(Waiting(1_000, 0.0)).hosts == 1
    assert plan(Waiting(10_000, 0.0)).hosts > 1


def test_usual_lateness_is_foretold_after_one_run_rather_than_the_bound():
    model = RunModel.of([run(1, 100, 40.0, startup=10.0)], 10.0)
    held, missed = (plan(Waiting(100, oldest), model=model, bounds=HostBounds(TYPE)) for oldest in (-549.0, -560.0))
    assert held.remark == "the oldest record may be up to 44 s late"
    assert missed.remark == "the oldest record will be about 10 s late"


def test_runs_of_as_many_hosts_each_time_name_none():
    assert HostBounds(TYPE, 1, 1).named(1, " with") == ""
    assert HostBounds(TYPE, 1, 3).named(1, " with") == " with 1 host"


def test_missed_deadline_is_said_and_takes_all_hosts():
    wake = plan(Waiting(100_000, -500.0))
    assert (wake.start, wake.hosts) == (0.0, 8)
    assert "late" in wake.remark


def test_long_billing_units_make_sleep_dear():
    hourly = HostBounds(replace(TYPE, billing=Billing(3600.0)), 1, 8)
    assert "hosts that stay" in plan(Waiting(10, 0.0), bounds=hourly).remark


def test_expected_arrivals_start_the_run_earlier():
    arrivals = Arrivals(FRESHNESS)
    for second in range(0, 7200, 10):
        arrivals.add(second, 50)
    assert plan(Waiting(100, 0.0), arrivals).start < plan(Waiting(100, 0.0)).start


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=200), st.floats(1, 3000))
def test_upper_arrivals_are_at_most_those_of_the_worst_window(counts, seconds):
    arrivals = Arrivals(FRESHNESS)
    for number, count in enumerate(counts):
        arrivals.add(number * arrivals.bin, count)
    bins = math.ceil(seconds / arrivals.bin)
    assert 0 <= arrivals.upper(seconds) <= max(counts) * bins * (1 + 1e-9)


# No more runs than the model keeps.
SHAPES = st.lists(st.tuples(st.integers(1, 4), st.floats(10, 1e4)), min_size=3, max_size=20)


@given(st.floats(0, 20), st.floats(0.001, 1), SHAPES)
def test_model_recovers_fixed_and_variable_time(fixed, each, shapes):
    runs = [run(hosts, records, fixed + each * records / hosts) for hosts, records in shapes]
    assume(max(r.share for r in runs) > 2 * min(r.share for r in runs))
    model = RunModel.of(runs, 60.0)
    for one in runs:
        assert model.expected(one.records, one.hosts) == pytest.approx(one.seconds, rel=0.01)


@given(st.lists(st.builds(run, st.integers(1, 4), st.floats(1, 1e5), st.floats(0.1, 500)), min_size=1, max_size=30))
def test_prediction_is_no_shorter_than_any_of_few_runs(runs):
    model = RunModel.of(runs, 60.0)
    recent = runs[-20:]
    assert not any(one.seconds > model.processing(one.records, one.hosts) * (1 + 1e-9) for one in recent)


def test_larger_share_than_any_before_counts_in_proportion():
    model = RunModel.of([run(1, 1000, 20.0), run(1, 1100, 20.0)], 60.0)
    assert model.expected(11_000, 1) >= 10 * model.expected(1100, 1)
