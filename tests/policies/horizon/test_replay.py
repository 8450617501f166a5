"""Settings that a replay of the past chooses."""

import math
from dataclasses import replace

import numpy as np
import pytest

from elastream.core.hosts import Billing, HostType
from elastream.policies.forecasting.trend import Forecast
from elastream.policies.horizon.budget import Grid, Outlook
from elastream.policies.horizon.replay import Choice, Fleet, Setting, replay, vain
from elastream.policies.horizon.scenarios import Past, scenarios

SECOND = HostType("m", 1.0, price=1.0, billing=Billing(1.0), start=60.0)
GRID = Grid(15.0, start=5, steps=9, host_start=60.0, budget=28.0)
FLAT = Forecast(math.nan, 0.0, math.nan, math.nan)
FLEET = Fleet(SECOND, each=100.0, grid=GRID, least=1, most=50)
FIRST = Choice(Setting())  # no replay before


def outlooks(rates) -> list[Outlook]:
    """Outlooks that the policy would have made."""
    past, result = Past(GRID.seconds), []
    for rate in rates:
        past = past.after(float(rate), GRID.seconds)
        result.append(Outlook.of(*scenarios(past, GRID, FLAT), float(rate), GRID))
    return result


def chosen(rates, allowance: float = 0.01, fleet: Fleet = FLEET) -> Choice:
    return replay(outlooks(rates), fleet, allowance, FIRST)


def test_a_slow_wave_is_followed():
    wave = 1000 + 800 * np.sin(np.arange(500) * 2 * np.pi / 250)
    choice = chosen(wave)
    assert choice.late <= 0.01
    assert choice.hosts < 12.5
    assert not choice.constant


def test_bursts_without_notice_end_in_a_fleet_for_the_burst():
    draw = np.random.default_rng(1)
    rates = np.where(draw.random(500) < 0.08, 900.0, 50.0)
    rates[1:] = np.maximum(rates[1:], rates[:-1] * (draw.random(499) < 0.7))
    choice = chosen(rates)
    assert choice.late <= 0.01
    assert choice.setting.least >= 3


def test_a_steady_load_leases_nothing():
    choice = chosen(np.full(400, 450.0))
    assert choice.hosts == pytest.approx(5.0, rel=0.02)


def test_a_lower_allowance_never_takes_fewer_hosts():
    draw = np.random.default_rng(2)
    rates = 800 * np.exp(np.cumsum(draw.normal(0, 0.05, 400)))
    seen = outlooks(rates)
    hosts = [replay(seen, FLEET, allowance, FIRST).hosts for allowance in (0.1, 0.01, 0.0)]
    assert hosts == sorted(hosts)


def test_below_zero_the_load_counts_as_greater():
    seen = outlooks(np.full(200, 450.0))
    assert replay(seen, FLEET, -0.1, FIRST).hosts > 1.5 * replay(seen, FLEET, 0.0, FIRST).hosts


def test_whole_hours_are_paid():
    hour = replace(FLEET, kind=replace(SECOND, billing=Billing(3600.0)))
    rates = np.where(np.arange(480) % 60 < 20, 900.0, 100.0)
    assert chosen(rates, fleet=hour).hosts > chosen(rates).hosts


HOUR = replace(FLEET, kind=replace(SECOND, billing=Billing(3600.0)))


def test_bursts_at_an_hour_each_end_in_a_fixed_fleet():
    draw = np.random.default_rng(1)
    rates = np.where(draw.random(500) < 0.08, 900.0, 50.0)
    rates[1:] = np.maximum(rates[1:], rates[:-1] * (draw.random(499) < 0.7))
    choice = chosen(rates, fleet=HOUR)
    assert choice.setting.fixed
    assert choice.hosts == choice.setting.least
    assert choice.late <= 0.01


@pytest.mark.parametrize("bins", [100, 250, 490])
def test_steady_fleet_costs_its_hosts_wherever_the_replay_ends(bins):
    assert chosen(np.full(bins, 450.0), fleet=HOUR).hosts == pytest.approx(5.0)


def test_unit_is_paid_for_twice_the_replay_at_most():
    hour, month = (replace(FLEET, kind=replace(SECOND, billing=Billing(unit))) for unit in (15.0 * 600, 30 * 86400.0))
    rates = [300.0] * 150 + [900.0] * 150
    assert chosen(rates, fleet=month) == chosen(rates, fleet=hour)


def test_a_single_jump_counts_for_a_fleet_that_does_not_answer_it():
    rates = np.full(480, 100.0)
    rates[200:230] = 1000.0
    assert not chosen(rates).setting.fixed


def test_a_backlog_is_foreseen_in_vain_if_nothing_was_late_after_it():
    foreseen, late = np.array([5.0, 9.0, 7.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0, 0.0, 2.0, 0.0])
    assert vain(foreseen, late, 2) == 9.0
    assert vain(foreseen, late, 3) == 5.0
    assert vain(foreseen, np.zeros(6), 6) == 0.0


def test_no_more_hosts_than_the_limit():
    few = replace(FLEET, most=3)
    choice = chosen(np.full(200, 900.0), fleet=few)
    assert choice.setting.least <= 3
    assert choice.hosts <= 3
    assert choice.late > 0.9


def test_free_hosts_are_chosen_by_the_fewest_leases():
    free = replace(FLEET, kind=replace(SECOND, price=0.0))
    assert chosen(np.full(200, 450.0), fleet=free).late == 0.0


def test_a_jump_that_came_once_costs_nothing_until_the_run_has_missed_its_target():
    rates = np.full(400, 300.0)
    rates[200:240] = 1500.0
    seen = outlooks(rates)
    once = replay(seen, FLEET, 0.01, FIRST)
    strict = replay(seen, FLEET, 0.01, FIRST, forgives=False)
    assert once.hosts < 6.0 < strict.hosts


def test_a_young_past_says_nothing_about_plans_for_its_worst_jump():
    alike = outlooks(np.full(60, 90.0))
    assert replay(alike, FLEET, 0.01, FIRST).setting.row == 2
    assert replay(alike, FLEET, 0.01, FIRST, jumps=False).setting.row == 1
