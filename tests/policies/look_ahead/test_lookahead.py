"""Algorithm 5: what runs is kept as long as it holds, then changed by local profit; and the loop always ends."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import Billing
from elastream.policies.look_ahead.planner import changes, farthest, look_ahead
from elastream.policies.value_cost.problem import Conditions, Goal, capacities, throughput
from support.property_examples import examples
from support.scheduling_problems import MEDIUM, SMALL, chain, deployed, deployments, problems

STEP = 300.0
GOAL = Goal(break_even_best=10.0, break_even_worst=1.0)


def ahead(problem, *rates, **more):
    """Conditions of an instant for each of `rates`, at the only source."""
    queues = np.zeros(len(problem.operators))
    return Conditions(np.array(rates, dtype=float)[:, None], queues, STEP, steady=False, **more)


def instances(stage, operator=1):
    return int(stage.deployment.instances[:, operator].sum())


@pytest.mark.parametrize(
    ("throughput", "hold", "instants"),
    [
        ([0.8, 0.75, 0.85], "instant", 3),
        ([0.8, 0.8, 0.2, 0.8], "instant", 2),
        ([0.7, 0.8], "instant", 0),
        ([1.0, 1.0], "instant", 0),
        ([0.8, 0.7, 0.9, 0.5], "interval", 3),  # up to the last instant at which the mean so far is in the tolerance
        ([0.7, 0.7], "interval", 0),
        ([], "interval", 0),
    ],
)
def test_a_deployment_holds_while_it_is_in_the_tolerance(throughput, hold, instants):
    assert farthest(np.array(throughput), GOAL, hold) == instants


def test_a_low_instant_counts_per_instant_but_not_per_interval():
    problem = chain([(1.0, 1.0, 1.0)], [(1.0, 0.1, 1.0)], goal=GOAL)
    now = deployed(problem, [(SMALL, {"o0": 1}), (SMALL, {"o1": 1})])
    rates = 1.2, 1.2, 1.2, 1.5, 1.1, 1.1, 1.1
    each = look_ahead(problem, now, replace(ahead(problem, *rates), steady=True))
    assert each.throughput.min() >= GOAL.lowest - 1e-6
    whole = look_ahead(problem, now, replace(ahead(problem, *rates), steady=True), hold="interval")
    assert whole.throughput.min() < GOAL.lowest
    assert whole.throughput.mean() >= GOAL.lowest


def test_of_hosts_whose_paid_time_ends_unneeded_ones_go():
    kind = replace(SMALL, billing=Billing(3600.0))
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL, types=[kind])
    now = deployed(problem, [(kind, {"o0": 1})] * 3)
    conditions = ahead(problem, *[2.4] * 6, time=3500.0)
    (left,) = look_ahead(problem, now, conditions, ending=["h1", "h2", "h3"]).stages[:1]
    assert len(left.deployment.hosts) == 2


def test_an_instant_alone_that_no_host_is_in_time_for_is_passed_over():
    kind = replace(SMALL, start=60.0)
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL, types=[kind])
    found = look_ahead(problem, deployed(problem, [(kind, {"o0": 1})]), ahead(problem, 1.5, 0.3, 1.0, 1.0))
    assert found.throughput[0] < GOAL.lowest
    assert not changes(problem, found)
    assert not found.missed


def test_what_rises_step_by_step_is_answered_step_by_step():
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL)
    found = look_ahead(problem, deployed(problem, [(SMALL, {"o0": 1})]), ahead(problem, *(1.1 + 0.4 * np.arange(10))))
    counts = [instances(stage) for stage in found.stages]
    assert len(set(counts)) >= 3
    assert counts[-1] == max(counts)
    assert found.throughput[1:].min() >= GOAL.lowest - 1e-6
    assert not found.missed


def test_what_holds_to_the_end_is_left_as_it_is():
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL)
    found = look_ahead(problem, deployed(problem, [(SMALL, {"o0": 1})]), ahead(problem, 1.25))
    assert len(found.stages) == 1
    assert not changes(problem, found)
    assert found.throughput == pytest.approx([0.8])
    assert not found.missed


def test_a_host_for_a_rise_is_leased_earlier_by_its_start_time():
    kind = replace(SMALL, start=120.0)
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL, types=[kind])
    now = deployed(problem, [(kind, {"o0": 1})])
    found = look_ahead(problem, now, ahead(problem, 1.1, 1.1, 1.1, 2.1, 2.1, 2.1))
    assert [stage.time for stage in found.stages] == [0.0, 3 * STEP]
    assert instances(found.stages[0]) == 1
    assert instances(found.stages[1]) == 2
    (fresh,) = [host for host in found.stages[1].deployment.hosts if host.name != "h1"]
    assert fresh.since == 3 * STEP - 120.0
    assert fresh.ready == 3 * STEP


def test_a_host_that_cannot_start_in_time_is_leased_at_once():
    kind = replace(SMALL, start=900.0)
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL, types=[kind])
    found = look_ahead(problem, deployed(problem, [(kind, {"o0": 1})]), ahead(problem, 1.2, 2.4, 2.4, 2.4, 2.4))
    fresh = [host for stage in found.stages for host in stage.deployment.hosts if host.name != "h1"]
    assert fresh
    assert all(host.since == 0.0 for host in fresh)


def test_dear_hosts_lead_to_an_alternate_and_cheap_ones_to_a_host():
    variants = [(1.0, 1.0, 1.0), (0.9, 0.4, 1.0)]

    def answer(price):
        kind = replace(SMALL, price=price)
        problem = chain(variants, goal=GOAL, types=[kind])
        found = look_ahead(problem, deployed(problem, [(kind, {"o0": 1})]), ahead(problem, *[2.0] * 6))
        return found.stages[0].deployment

    assert answer(100.0).active[1] == 1
    assert len(answer(100.0).hosts) == 1
    assert answer(0.0001).active[1] == 0
    assert len(answer(0.0001).hosts) == 2


def test_cores_to_spare_go_to_an_alternate_of_more_value():
    problem = chain([(0.5, 0.2, 1.0), (1.0, 1.0, 1.0)], goal=GOAL)
    found = look_ahead(problem, deployed(problem, [(SMALL, {"o0": 1})]), ahead(problem, *[1.0] * 4))
    assert found.stages[0].deployment.active[1] == 1
    assert found.throughput.mean() >= GOAL.lowest


def test_an_unreachable_goal_is_reported_and_vain_tries_are_undone():
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL, max_hosts=1)
    found = look_ahead(problem, deployed(problem, [(SMALL, {"o0": 1})]), ahead(problem, *[10.0] * 4))
    assert found.missed
    assert found.missed[0].time == 0.0
    assert found.missed[0].reached < 0.2
    assert not changes(problem, found)
    assert len(found.stages[0].deployment.hosts) == 1


def test_a_host_goes_at_its_units_end_if_the_interval_gains():
    kind = replace(MEDIUM, billing=Billing(600.0))
    problem = chain([(1.0, 1.0, 1.0)], [(1.0, 0.5, 1.0)], goal=GOAL, types=[kind])
    now = deployed(problem, [(kind, {"o0": 1}), (kind, {"o1": 1})])
    conditions = ahead(problem, 1.25, time=550.0)
    assert len(look_ahead(problem, now, conditions).stages[0].deployment.hosts) == 2
    (left,) = look_ahead(problem, now, conditions, ending=["h1", "h2"]).stages
    assert len(left.deployment.hosts) == 1
    assert left.deployment.instances[0, 1:3].tolist() == [1, 1]


def test_a_host_that_is_needed_until_the_load_falls_stays_until_then():
    kind = replace(SMALL, billing=Billing(600.0), price=1.0)
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL, types=[kind])
    now = deployed(problem, [(kind, {"o0": 1})] * 3)
    found = look_ahead(problem, now, ahead(problem, 3.6, 0.5, 0.5, 0.5, 0.5, time=550.0), ending=["h1", "h2", "h3"])
    assert instances(found.stages[0]) == 3
    assert instances(found.stages[-1]) < 3


def test_where_cores_are_shared_hosts_come_and_go():
    problem = chain([(1.0, 1.0, 1.0)], goal=GOAL, shared=True, types=[SMALL])
    rising = look_ahead(problem, deployed(problem, [(SMALL, {})]), ahead(problem, 1.2, 1.2, 2.4, 2.4, 2.4))
    assert len(rising.stages[0].deployment.hosts) == 1
    assert len(rising.stages[-1].deployment.hosts) > 1
    falling = look_ahead(problem, deployed(problem, [(SMALL, {})] * 3), ahead(problem, *[1.0] * 4))
    assert len(falling.stages[-1].deployment.hosts) == 1


@given(st.data())
@settings(max_examples=examples(60), deadline=None)
def test_whatever_is_foreseen_the_loop_ends_in_a_plan_that_fits(data):
    problem = replace(data.draw(problems(shared=None)), max_hosts=data.draw(st.integers(1, 8)))
    now = data.draw(deployments(problem))
    steps = data.draw(st.integers(1, 6))
    rates = data.draw(st.lists(st.floats(0, 50), min_size=steps, max_size=steps))
    found = look_ahead(
        problem, now, ahead(problem, *rates), ending=data.draw(st.sampled_from([(), ("h1",), ("h1", "h2", "h3", "h4")]))
    )
    assert found.throughput.shape == (steps,)
    assert ((found.throughput >= 0) & (found.throughput <= 1)).all()
    times = [stage.time for stage in found.stages]
    assert times == sorted(set(times))
    for stage in found.stages:
        hosts, active = stage.deployment.hosts, stage.deployment.active
        assert len(hosts) <= max(problem.max_hosts, len(now.hosts))
        assert len({host.name for host in hosts}) == len(hosts)
        held = np.zeros(len(hosts)) if problem.shared else stage.deployment.instances @ (problem.cores * problem.placed)
        assert all(each <= host.type.cores + 1e-6 for each, host in zip(held, hosts, strict=True))
        assert all(0 <= each < len(options) for each, options in zip(active, problem.options, strict=True))


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_with_enough_hosts_the_interval_is_in_tolerance_or_reported(data):
    problem = data.draw(problems())
    placed = [name for name, where in zip(problem.operators, problem.placed.tolist(), strict=True) if where]
    rates = data.draw(st.lists(st.floats(0.1, 20), min_size=2, max_size=6))
    conditions = replace(ahead(problem, *rates), steady=True)
    found = look_ahead(problem, deployed(problem, [(SMALL, {name: 1}) for name in placed]), conditions)
    if not found.missed:
        assert found.throughput.mean() >= problem.goal.lowest - 1e-6
    first = found.stages[0].deployment
    flows = throughput(problem, first.active, capacities(problem, first, conditions), conditions)
    upto = len(rates) if len(found.stages) == 1 else round(found.stages[1].time / STEP)
    assert flows.application[:upto] == pytest.approx(found.throughput[:upto], abs=1e-6)
