"""Hosts by need, tasks by load, nothing in doubt."""

import math

import pytest

from elastream.control.loop import Loop
from elastream.core.action import LeaseHost, MoveTask
from elastream.policies.by_load import ByLoad
from elastream.policies.threshold import Threshold
from policies.common.test_placement import observe
from support.fake_plant import FakePlant


def test_where_no_host_can_be_leased_only_tasks_are_moved():
    observation = observe([0] * 8, [1, 1], busy=[0.1] * 8)
    plan = ByLoad().plan(observation).actions
    assert len(plan) == 4
    assert all(isinstance(action, MoveTask) for action in plan)


@pytest.mark.parametrize("busy", [None, [math.nan] * 8, [0.001] * 8])
def test_what_is_unknown_or_idle_moves_nothing(busy):
    assert ByLoad().plan(observe([0] * 8, [1, 1], busy)).actions == ()


def test_hosts_follow_the_load_as_under_threshold():
    plants = [FakePlant(hosts=1, arrival_rate=200.0), FakePlant(hosts=1, arrival_rate=200.0)]
    for plant, policy in zip(plants, (ByLoad(hosts=Threshold()), Threshold()), strict=True):
        Loop(plant, policy, monitor=1.0, period=2.0, limit=60).run()
    leased = [[action for action in plant.applied if isinstance(action, LeaseHost)] for plant in plants]
    assert leased[0] == leased[1]
    assert leased[0]
