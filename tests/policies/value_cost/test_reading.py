"""A problem is what an observation says, and what it does not say is named."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import ArrayLike

from elastream.core.action import ReleaseHost, SwitchAlternate
from elastream.core.frames import Frame
from elastream.core.guarding import GuardDecision
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation, Sample
from elastream.dataflow.operators import Alternate
from elastream.loads.speeds import SpeedTrace
from elastream.policies.common.draft import Draft
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.value_cost.problem import Goal, score
from elastream.policies.value_cost.reading import deployment_of, read
from support.scheduling_plants import FAST, INSTANT, SCORE, graph, plant, seen


def ran(seconds=60.0, *given, **options):
    """A plant after some time."""
    made = plant(*given, **options)
    made.advance(seconds)
    return made


def test_problem_has_the_dataflow_with_costs_and_values_of_alternates():
    found = seen(ran())
    problem = found.problem
    assert found.decidable
    assert not found.unknown
    assert problem.operators == ("source", "score", "count", "sink")
    names = [[option.name for option in options] for options in problem.options]
    assert names == [[""], ["best", "quick"], ["count"], [""]]
    assert [option.value for option in problem.options[1]] == [1.0, 0.5]
    assert problem.costs((0, 0, 0, 0)) == pytest.approx([0, 0.02, 0.01, 0], rel=0.05)  # measured
    assert problem.options[1][1].cost == 0.005  # declared: it has not run
    assert problem.selectivities((0, 1, 0, 0)) == pytest.approx([1, 0.5, 1, 1], rel=0.05)
    assert problem.edges.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert (problem.sources.tolist(), problem.outputs.tolist()) == ([0], [3])
    assert problem.placed.tolist() == [False, True, True, False]
    assert problem.bounds == (0.5, 1.0)
    assert found.conditions.rates == pytest.approx(np.array([[100.0]]), rel=0.05)
    assert [host.name for host in found.deployment.hosts] == ["h1"]
    assert found.deployment.instances.tolist() == [[0, 1, 1, 0]]
    assert found.deployment.active == (0, 0, 0, 0)


def test_operators_without_a_choice_or_records_count_as_declared():
    assert seen(ran(), Goal(over="all")).problem.bounds == (0.75, 1.0)
    idle = seen(ran(60.0, 0.0))
    assert (idle.decidable, idle.history.break_even) == (True, None)
    assert not math.isnan(idle.problem.goal.best)


def test_what_waits_is_in_the_queue_of_its_operator():
    found = seen(ran(120.0))
    assert found.conditions.queues[1] == pytest.approx(120 * 50, rel=0.1)
    assert score(found.problem, found.deployment, found.conditions).mean < 0.5


def in_batches(of: Observation, phase: int, lasts: int = 10) -> Observation:
    """`of` as at second `phase` of a micro-batch of `lasts` seconds of a query that keeps up: its source's records wait for
    the next, and hosts are busy in the first half.
    """
    ages = range(3 * lasts, -1, -1)
    values = {Metric.ARRIVAL_RATE: 100.0, Metric.PROCESSED_RATE: 100.0}

    def operators(age: int) -> Frame:
        second = (phase - age) % lasts
        waits, busy = {"source": 100.0 * second}, {"source": 1.6 if second < lasts / 2 else 0.0, "score": 0.0, "count": 0.0}
        columns = {metric: [value] * len(of.operators) for metric, value in values.items()}
        columns[Metric.BACKLOG] = [waits.get(name, math.nan) for name in of.operators]
        columns[Metric.BUSY_CORES] = [busy.get(name, math.nan) for name in of.operators]
        return Frame(of.operators.ids, columns)

    history = tuple(Sample(of.time - age, operators(age)) for age in ages[:-1])
    application = Frame(of.application.ids, {Metric.BATCH_DURATION: [float(lasts)]})
    return replace(of, operators=operators(0), history=history, application=application)


def test_reading_on_shared_cores_ignores_the_phase_of_batches():
    plant_ = ran(fused=True)
    read_at = [read(in_batches(plant_.observe(), phase), Goal(), INSTANT) for phase in range(10)]
    for found in read_at:
        assert found.conditions.queues.tolist() == [0.0] * 4
        assert found.problem.costs((0, 0, 0, 0)) == pytest.approx(read_at[0].problem.costs((0, 0, 0, 0)), rel=0.2)


def test_where_cores_are_shared_what_waits_throughout_a_batch_waits():
    plant_ = ran(fused=True)
    observed = in_batches(plant_.observe(), 3)
    more = {Metric.BACKLOG: observed.operators.column(Metric.BACKLOG) + 500.0}
    behind = [Sample(each.time, with_columns(each.operators, more)) for each in observed.history]
    found = read(
        replace(observed, history=tuple(behind), operators=with_columns(observed.operators, more)), Goal(), INSTANT
    )
    assert found.conditions.queues[0] == 800.0


def with_columns(frame: Frame, columns: Mapping[Metric, ArrayLike]) -> Frame:
    """`frame` with these columns instead."""
    return Frame(frame.ids, {metric: frame.column(metric) for metric in frame.metrics} | dict(columns))


def test_nothing_is_planned_without_metrics_and_they_are_named():
    found = seen(plant())
    assert not found.decidable
    (unknown,) = found.unknown
    assert (unknown.metric, unknown.rows, unknown.row) == (Metric.ARRIVAL_RATE, Rows.OPERATOR, "source")


def test_an_alternate_of_unknown_cost_cannot_be_chosen_and_is_named():
    found = seen(ran(of=graph((SCORE[0], Alternate("new", value=0.9)))))
    assert found.decidable
    assert [option.name for option in found.problem.options[1]] == ["best"]
    assert [(each.metric, each.row) for each in found.unknown] == [(Metric.SERVICE_TIME, "score.new")]


def test_guards_limit_options_and_forbidden_alternates_are_left():
    plant_ = ran()
    guarded = {"score": GuardDecision("score", ("quick",), {"best": 1.0, "quick": 0.5})}
    found = read(replace(plant_.observe(), standings=guarded), Goal(), INSTANT)
    assert [option.name for option in found.problem.options[1]] == ["quick"]
    assert found.deployment.active == (0, 0, 0, 0)
    assert found.problem.bounds == (0.5, 1.0)
    nothing = read(replace(plant_.observe(), standings={"score": GuardDecision("score", ())}), Goal(), INSTANT)
    assert [option.name for option in nothing.problem.options[1]] == ["best"]


def test_costs_are_those_on_a_core_of_speed_1_wherever_an_operator_runs():
    found = seen(ran(120.0, 20.0, ("one", "fast"), {"score": 2, "count": 1}))
    assert found.problem.costs((0, 0, 0, 0))[1:3] == pytest.approx([0.02, 0.01], rel=0.05)
    assert sorted(host.speed for host in found.deployment.hosts) == [1.0, FAST.speed]


def test_measured_cost_of_an_alternate_is_remembered_at_any_speed():
    plant_ = plant(20.0, settings={"speed_trace": SpeedTrace(np.array([[1.0] * 2 + [0.5] * 100]), 60.0)})
    plant_.advance(110.0)
    history = seen(plant_).history
    plant_.apply(SwitchAlternate("score", "quick"))
    for time in (180.0, 300.0, 600.0):
        plant_.advance(time)
        history = (found := seen(plant_, history=history)).history
    assert found.problem.costs((0, 0, 0, 0))[1] == pytest.approx(0.02, rel=0.05)
    assert found.problem.costs((0, 1, 0, 0))[1] == pytest.approx(0.005, rel=0.05)


def test_default_break_even_follows_from_the_first_records():
    plant_ = ran()
    first = seen(plant_)
    assert first.problem.goal.best == pytest.approx(2 * 3.0 / TARGET_UTILISATION * 3.0 / 4 * 6, rel=0.05)
    assert first.problem.goal.worst == pytest.approx(1.0 / TARGET_UTILISATION * 3.0 / 4 * 6, rel=0.1)
    plant_.apply(SwitchAlternate("score", "quick"))
    plant_.advance(300.0)
    assert seen(plant_, history=first.history).problem.goal == first.problem.goal
    given = Goal(break_even_best=5.0, break_even_worst=1.0)
    assert seen(plant_, given, first.history).problem.goal == given


def test_the_value_and_the_money_so_far_are_those_of_the_period():
    plant_ = ran(60.0, 20.0, ("four", "one"))
    history = seen(plant_).history
    plant_.apply(SwitchAlternate("score", "quick"))
    plant_.apply(ReleaseHost("h2"))
    plant_.advance(180.0)
    found = seen(plant_, history=history)
    assert found.conditions.value == pytest.approx((60 * 1.0 + 120 * 0.5) / 180)
    assert found.conditions.paid == pytest.approx(1.0)
    assert [host.name for host in found.conditions.leased] == ["h1"]
    cost = score(found.problem, found.deployment, found.conditions).cost
    assert cost == pytest.approx(1.0 + 12 * 6 * 3.0)


def test_a_new_period_begins_with_what_it_is_charged_itself():
    goal = Goal(period=300.0)
    plant_ = ran(240.0, 20.0)
    history = seen(plant_, goal).history
    plant_.advance(360.0)
    found = seen(plant_, goal, history)
    assert (found.conditions.began, found.conditions.paid) == (300.0, 0.0)
    assert score(found.problem, found.deployment, found.conditions).cost == 0.0  # paid until 600 before it began


def test_a_host_on_its_way_is_part_of_the_plan():
    plant_ = ran()
    draft = Draft(plant_.observe())
    host = draft.lease(FAST, "more")
    draft.add(draft.by_name["score"], host, "more")
    drafted = deployment_of(draft, seen(plant_).problem)
    for action in draft.plan:
        assert plant_.apply(action).succeeded
    observed = seen(plant_)
    assert plant_.observe().leases[host].state is not HostState.RUNNING
    assert observed.deployment.instances.tolist() == drafted.instances.tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]]
    assert [each.speed for each in observed.deployment.hosts] == [each.speed for each in drafted.hosts] == [1.0, 2.0]


def test_where_cores_are_shared_the_work_of_a_stage_counts_once():
    found = seen(ran(120.0, 40.0, fused=True))
    assert (found.decidable, found.problem.shared) == (True, True)
    filled = [0, 0.02 / TARGET_UTILISATION, 0.01 / TARGET_UTILISATION, 0]
    assert found.problem.costs((0, 0, 0, 0)) == pytest.approx(filled, abs=0.003)
    assert not found.deployment.instances.any()
    assert score(found.problem, found.deployment, found.conditions).mean == pytest.approx(1.0)


def test_batch_overhead_is_no_cost_per_record():
    """A tenth of the records would else cost ten times as much each."""
    plant_ = ran(120.0, 40.0, fused=True, parallelism={"source": 2})
    assert plant_.observe().operators.value("source", Metric.BACKLOG) > 0
    assert seen(plant_).conditions.queues.sum() < 40, "what comes while a micro-batch runs does not wait"
    observation = replace(plant_.observe(), history=())
    frame, alone = observation.operators, read(observation, Goal(), INSTANT).problem.costs((0, 0, 0, 0))[1]
    busy = {Metric.BUSY_CORES: [1.0, 1.3, 1.0, math.nan], Metric.PROCESSED_RATE: [40.0, 40.0, 40.0, math.nan]}
    columns = {metric: frame.column(metric) for metric in frame.metrics} | busy
    more = read(replace(observation, operators=Frame(frame.ids, columns)), Goal(), INSTANT).problem
    assert more.costs((0, 0, 0, 0))[1] == pytest.approx(
        alone + 0.5 / 40.0 / TARGET_UTILISATION, rel=0.05
    )  # 1.3 cores, 0.8 of them its own
    few = replace(observation, operators=Frame(frame.ids, columns | {Metric.PROCESSED_RATE: [4.0] * 3 + [math.nan]}))
    assert read(few, Goal(), INSTANT).problem.costs((0, 0, 0, 0))[1] == pytest.approx(
        alone + 1.22 / 40.0 / TARGET_UTILISATION, rel=0.05
    )
