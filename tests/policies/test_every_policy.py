"""What every policy that can be named keeps to: it is a value, waits for queries, and believes nothing impossible."""

import math
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import Action, DrainHost, LeaseHost, ReleaseHost
from elastream.core.frames import Frame, TaskFrame
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import UNMEASURED, Composition, Observation
from elastream.core.plant import Plan
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from support.every_policy import EVERY, RISING, ROUND, Shown, answers, looped, plant
from support.policy_run import OneRun
from support.property_examples import examples


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_holds_settings_only_and_none_can_be_set(name: str) -> None:
    policy = EVERY[name]()
    assert is_dataclass(policy)
    for field in fields(policy):
        assert field.init, f"{field.name} is not a setting"
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(policy, field.name, None)


@pytest.mark.parametrize("name", [name for name in EVERY if "host_type" in getattr(EVERY[name](), "__dict__", {})])
def test_a_host_type_that_is_not_offered_is_named_before_a_run(name: str) -> None:
    policy = replace(EVERY[name](), host_type="huge")  # type: ignore[type-var]
    context = plant("threshold" if name == "ring" else name, RISING).observe().context  # ring divides chained state
    reason = policy.unsupported_reason(context)
    assert reason is not None
    assert reason.startswith("there is no host type 'huge' (there are: ")


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_acts_on_the_load_of_the_property_below(name: str) -> None:
    if name == "even":
        pytest.skip("tasks are placed evenly from the start")
    seen = looped(EVERY[name](), plant(name, RISING), 19)
    assert any(d.proposals for d in seen.recording.decisions)


@pytest.mark.parametrize("name", EVERY)
@given(loads=st.lists(st.sampled_from([0, 50, 300, 900]), min_size=4, max_size=10))
@settings(max_examples=settings.default.max_examples // 5)
def test_one_object_answers_two_loops_alike_in_any_order(name: str, loads: list[int]) -> None:
    policy, rounds = EVERY[name](), len(loads) - 1
    first = looped(policy, plant(name, loads), rounds)
    assert answers(looped(policy, plant(name, loads), rounds)) == answers(first)
    shown = [answers(looped(policy, Shown(first.observations), rounds)) for _ in range(2)]
    assert shown[0] == shown[1]
    one, other = OneRun(policy), OneRun(policy)
    for observation in first.observations:
        told, again = one.plan(observation), other.plan(observation)
        assert (told.actions, told.predicted, told.remarks, told.refused, told.unknown) == (
            again.actions, again.predicted, again.remarks, again.refused, again.unknown,
        )  # fmt: skip
        assert all(decision.note == "" or "failed" not in decision.note for decision in first.recording.decisions)


NONE, NO_TASKS = Frame([], {}), TaskFrame([], [], [], ())
STATIC = ("static",)
"""Leases its hosts whatever runs."""


def without_queries(seen: Observation, later: float) -> Observation:
    """What is left of an observation when its queries have ended, so many seconds later."""
    context = replace(seen.context, layout=lay_out(Graph("none", (), ())), scalable=frozenset(), partitions={})
    return replace(
        seen,
        time=seen.time + later,
        context=context,
        operators=NONE,
        application=NONE,
        alternates=NONE,
        links=NONE,
        tasks=NO_TASKS,
        exchange=UNMEASURED,
        composition=Composition(),
        effective={},
        batches=(),
    )


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("first", [True, False], ids=["before the first", "between two"])
def test_where_no_query_runs_a_policy_neither_fails_nor_leases(name: str, first: bool) -> None:
    policy, ((before, memory), (after, _)) = EVERY[name](), seen(name)[2:4]
    memory = None if first else memory
    for number in range(1, 5):
        plan = policy.plan(without_queries(before, number * ROUND), memory)
        memory = plan.memory
        assert name in STATIC or not any(isinstance(action, LeaseHost) for action in plan.actions)
    policy.plan(replace(after, time=after.time + 5 * ROUND), memory)


STEADY = [300] * 16
ABSURD = [1e18, math.inf, -math.inf, -1.0, -1e18]
FIELDS = {
    Rows.APPLICATION: "application",
    Rows.OPERATOR: "operators",
    Rows.ALTERNATE: "alternates",
    Rows.HOST: "hosts",
    Rows.TASK: "tasks",
    Rows.LINK: "links",
}


@cache
def seen(name: str) -> list[tuple[Observation, Any]]:
    """What a policy observes under a constant load, with what it remembers before each round."""
    policy, memory, found = EVERY[name](), None, []
    for observation in looped(policy, plant(name, STEADY), len(STEADY) - 1).observations:
        found.append((observation, memory))
        memory = policy.plan(observation, memory).memory
    return found[4:]


def altered(observation: Observation, rows: Rows, metric: Metric, row: int, value: float) -> Observation:
    """`observation` with one value replaced."""
    frame = observation.frames[rows]
    columns = {each: np.array(frame.column(each)) for each in frame.metrics}
    columns[metric][row] = value
    if isinstance(frame, TaskFrame):
        new: Frame = TaskFrame(frame.operator, frame.index, frame.host, tuple(observation.operators), columns)
    else:
        new = Frame(frame.ids, columns, {each: frame.age(each) for each in frame.metrics})
    return replace(observation, **{FIELDS[rows]: new})


def leaving(plan: Plan) -> set[Action]:
    return {action for action in plan.actions if isinstance(action, DrainHost | ReleaseHost)}


def leased(plan: Plan) -> int:
    return sum(isinstance(action, LeaseHost) for action in plan.actions)


@pytest.mark.parametrize("name", EVERY)
@given(data=st.data())
@settings(max_examples=examples(40))
def test_a_value_that_cannot_be_is_unknown_and_moves_nothing(name: str, data: st.DataObject) -> None:
    observation, memory = data.draw(st.sampled_from(seen(name)), "round")
    known = [(rows, metric) for rows, frame in observation.frames.items() if len(frame) for metric in frame.metrics]
    rows, metric = data.draw(st.sampled_from(known), "metric")
    row = data.draw(st.integers(0, len(observation.frames[rows]) - 1), "row")
    value = data.draw(st.sampled_from(ABSURD), "value")
    policy = EVERY[name]()
    wrong = altered(observation, rows, metric, row, value)
    assert [(each.metric, each.value) for each in wrong.implausible] == [(metric, value)]
    usual, unknown = (
        policy.plan(observation, memory),
        policy.plan(altered(observation, rows, metric, row, math.nan), memory),
    )
    told = policy.plan(wrong, memory)
    assert (told.actions, told.unknown) == (unknown.actions, unknown.unknown)
    assert leased(told) <= leased(usual) + 1, "towards the most"
    assert leaving(told) <= leaving(usual), "towards none"


def test_the_round_says_what_could_not_be() -> None:
    class Broken:
        def __init__(self) -> None:
            self.of = plant("threshold", STEADY)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.of, name)

        def observe(self) -> Observation:
            found = self.of.observe()
            return altered(found, Rows.OPERATOR, Metric.BACKLOG, 0, 1e18) if found.time == 4 * ROUND else found

    notes = {each.time: each.note for each in looped(EVERY["threshold"](), Broken(), 8).recording.decisions}  # type: ignore[arg-type]
    assert notes[4 * ROUND] == "backlog of lines is 1e+18, which is impossible: it counts as unknown"
    assert not any("cannot be" in note for time, note in notes.items() if time != 4 * ROUND)
