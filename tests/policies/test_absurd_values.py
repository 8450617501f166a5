"""A metric that cannot be - infinite, negative, beyond any installation - is unknown, and what is unknown moves nothing."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import Action, DrainHost, LeaseHost, ReleaseHost
from elastream.core.frames import Frame, TaskFrame
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.plant import Plan
from support.every_policy import EVERY, ROUND, looped, plant
from support.property_examples import examples

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
@settings(max_examples=examples(60))
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
    assert notes[4 * ROUND] == "backlog of lines is 1e+18, which cannot be: it is unknown"
    assert not any("cannot be" in note for time, note in notes.items() if time != 4 * ROUND)
