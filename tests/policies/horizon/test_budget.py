"""Needs of the latency budget, against a queue that serves first in, first out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies.horizon.budget import Grid, binding, hosts_for, need, time_late, waiting_at_start, with_backlog

rates = st.lists(st.floats(0, 1000), min_size=2, max_size=30).filter(lambda each: max(each) > 1)
budgets = st.floats(0, 60)


def grid(budget: float, host_start: float = 60.0, seconds: float = 5.0) -> Grid:
    return Grid(seconds, start=1, steps=2, host_start=host_start, budget=budget)


def longest_wait(paths: list[float], seconds: float, service: float, waiting: float = 0.0, since: float = 0.0) -> float:
    """Return the longest wait of a record at the end of a bin from `since` on: what waits over the rate of service."""
    longest = 0.0
    for number, rate in enumerate(paths):
        waiting = max(0.0, waiting + (rate - service) * seconds)
        if (number + 1) * seconds >= since:
            longest = max(longest, waiting / service)
    return longest


@given(rates, budgets)
def test_nobody_waits_beyond_the_budget_at_the_need(paths, budget):
    service = need(np.array(paths), grid(budget).waits)
    assert longest_wait(paths, 5.0, service) <= budget + 1e-6


@given(rates, budgets)
def test_less_breaks_the_budget_or_leaves_a_backlog(paths, budget):
    service = 0.98 * need(np.array(paths), grid(budget).waits)
    left = sum(paths) * 5.0 - service * len(paths) * 5.0
    assert longest_wait(paths, 5.0, service) > budget or left > 0


@given(rates, st.floats(0, 10_000), st.floats(5, 60))
def test_records_that_wait_already_are_in_time_as_well(paths, waiting, budget):
    without = need(np.array(paths), grid(budget).waits)
    total = np.concatenate([[0.0], np.cumsum(paths) * 5.0])
    service = with_backlog(without, total, waiting, 0.0, budget, 5.0)
    assert longest_wait(paths, 5.0, service, waiting) <= budget + 1e-6


@given(rates, st.floats(0, 10_000), st.floats(5, 60), st.integers(0, 40))
def test_what_arrives_behind_late_records_is_in_time_again(paths, waiting, budget, bins):
    total = np.concatenate([[0.0], np.cumsum(paths) * 5.0])
    service = with_backlog(need(np.array(paths), grid(budget).waits), total, waiting, bins * 5.0, budget, 5.0)
    steady = [*paths, *[float(np.mean(paths))] * 40]
    assert longest_wait(steady, 5.0, service, waiting, since=bins * 5.0) <= budget + 1e-6


def test_a_steady_load_behind_late_records_needs_more_than_its_rate():
    total = np.arange(5) * 1000.0  # 100/s
    assert with_backlog(100.0, total, 5000.0, 100.0, 25.0, 10.0) == pytest.approx((5000 + 10_000) / 125)


def test_late_records_do_not_wait_for_a_second_long_round():
    # Rounds a minute apart: with a minute more to wait, a load that only just fits stayed late for good.
    total = np.arange(5) * 6000.0  # 100/s
    assert with_backlog(100.0, total, 3000.0, 5.0, 10.0, 60.0) == pytest.approx((3000 + 6000) / 70)
    assert with_backlog(100.0, total, 3000.0, 0.0, 10.0, 60.0) == 100.0, "they are in time"


@given(rates, st.floats(0, 5000), st.floats(1, 500))
def test_what_waits_later_is_that_of_a_queue(paths, waiting, service):
    total = np.concatenate([[0.0], np.cumsum(paths) * 5.0])
    queue = waiting
    for rate in paths:
        queue = max(0.0, queue + (rate - service) * 5.0)
    served = np.arange(total.size) * 5.0 * service
    assert waiting_at_start(total, waiting, served) == pytest.approx(queue, abs=1e-6)


def test_the_need_lies_between_mean_and_peak():
    burst = np.array([100.0] * 10 + [400.0] * 2 + [100.0] * 10)
    assert need(burst, 0.0) == 400.0
    assert need(burst, 4.0) == pytest.approx(400.0 * 20 / 60)
    assert need(burst, 1e8) == burst.mean()


def test_late_records_may_take_longer_where_a_lease_is_paid_for_longer():
    hour, minute, second = (replace(grid(10.0), paid=paid).recovery + 10.0 for paid in (3600.0, 600.0, 1.0))
    assert second == 15.0
    assert (hour / second) ** 2 == pytest.approx(60.0)
    assert (minute / second) ** 2 == pytest.approx(10.0)


def test_late_records_may_take_part_of_a_host_start():
    assert [grid(budget).recovery for budget in (3.0, 20.0)] == [12.0, 0.0]
    assert [time_late(waiting, 10.0, 3.0, 15.0) for waiting in (30.0, 31.0)] == [0.0, 15.0]


def test_whole_hosts_serve_a_need():
    assert [hosts_for(each, 10.0) for each in (0.0, 10.0, 10.1)] == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("budget", [0.0, 20.0])
def test_rounds_of_one_time_give_a_grid(budget):
    grid = Grid.of(30.0, budget, 0.0, None, 1.0)
    assert grid.seconds > 0
    assert grid.steps <= 100


@given(rates, st.floats(0, 12), st.floats(0, 10_000), st.floats(0, 40))
def test_records_that_bind_give_the_need(paths, waits, waiting, late):
    total = np.concatenate([[0.0], np.cumsum(paths)])
    records, begin, end, waited = binding(total, waiting, late, waits)
    needed = with_backlog(need(np.array(paths), waits), total, waiting, late, waits, 1.0)
    if waited:
        seconds = max(end, late) + (waits if late > 0 else max(waits, 1.0))
    else:
        seconds = end - begin + waits
    assert max(records / max(seconds, 1.0), float(np.mean(paths))) == pytest.approx(needed)
