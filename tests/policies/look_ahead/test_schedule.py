"""A plan over time: what is due, what of it was given up, and what of it was enacted and reversed."""

import numpy as np

from elastream.policies.look_ahead.planner import (
    Change,
    ChangeHistory,
    PlannedStage,
    StagedPlan,
    due,
    named,
    retracted,
)
from elastream.policies.value_cost.problem import Deployment, Host
from support.scheduling_problems import SMALL, chain, deployed

PROBLEM = chain([(1.0, 1.0, 1.0), (0.5, 0.5, 1.0)])
ONE = deployed(PROBLEM, [(SMALL, {"o0": 1})])


def with_host(deployment, since, count=1):
    """The same with a planned host that is leased at `since`, and so many instances on it."""
    more = np.zeros((1, len(PROBLEM.operators)), dtype=np.int64)
    more[0, 1] = count
    host = Host("", SMALL, SMALL.speed, since, since + SMALL.start)
    grown = Deployment(deployment.active, (*deployment.hosts, host), np.concatenate([deployment.instances, more]))
    return named(grown, 1 + len(deployment.hosts))


def schedule(*stages):
    return StagedPlan(tuple(PlannedStage(time, deployment) for time, deployment in stages), np.zeros(0))


def test_only_the_stage_of_the_time_is_due():
    later = ONE.switched(1, 1)
    plan = schedule((0.0, ONE), (600.0, later))
    assert due(plan, 0.0, 60.0).active == ONE.active
    assert due(plan, 540.0, 60.0).active == ONE.active
    assert due(plan, 600.0, 60.0).active == later.active


def test_a_host_is_due_before_the_round_in_which_it_would_be_late():
    plan = schedule((0.0, ONE), (600.0, with_host(ONE, 540.0)))
    assert [host.name for host in due(plan, 0.0, 60.0).hosts] == ["h1"]
    early = due(plan, 500.0, 60.0)
    assert [host.name for host in early.hosts] == ["h1", ""], "a host without a name is leased now"
    assert not early.instances[1].any()
    assert due(plan, 600.0, 60.0).instances[1, 1] == 1


def test_dropped_change_is_retracted_and_a_moved_one_is_not():
    before = (Change(300.0, "a", "x"), Change(600.0, "a", "y"), Change(900.0, "b", "2"))
    assert retracted(before, before, 0.0, 300.0) == 0
    assert retracted(before, (), 0.0, 300.0) == 3
    assert retracted(before, (), 300.0, 300.0) == 2, "what was due was enacted"
    assert retracted(before, (Change(720.0, "a", "y"), Change(300.0, "a", "x")), 0.0, 300.0) == 1
    assert retracted(before[:1], (Change(700.0, "a", "x"),), 0.0, 300.0) == 1


def test_an_enacted_change_is_reversed_within_the_horizon():
    other = ONE.switched(1, 1)
    done = ChangeHistory().after(PROBLEM, 0.0, 1800.0, ONE, other)
    assert done.reversed == 0
    assert done.after(PROBLEM, 600.0, 1800.0, other, ONE).reversed == 1
    assert done.after(PROBLEM, 3600.0, 1800.0, other, ONE).reversed == 0, "so late it is no reversal"
    more = with_host(ONE, 0.0)
    grown = ChangeHistory().after(PROBLEM, 0.0, 1800.0, ONE, more)
    assert grown.after(PROBLEM, 600.0, 1800.0, more, with_host(more, 0.0)).reversed == 0
    assert grown.after(PROBLEM, 600.0, 1800.0, more, ONE).reversed == 2, "an instance and a host"
