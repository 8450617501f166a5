"""Before the first query, and between two, Autopilot sees hosts and no operator: every policy waits, and leases nothing."""

from dataclasses import replace

import pytest

from elastream.core.action import LeaseHost
from elastream.core.frames import Frame, TaskFrame
from elastream.core.observation import UNMEASURED, Composition, Observation
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from support.every_policy import EVERY, ROUND, looped, plant

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
    policy, memory = EVERY[name](), None
    before = looped(policy, plant(name, [300] * 8), 7).observations
    for observation in () if first else before[:-1]:
        memory = policy.plan(observation, memory).memory
    for number in range(1, 5):
        plan = policy.plan(without_queries(before[-2], number * ROUND), memory)
        memory = plan.memory
        assert name in STATIC or not any(isinstance(action, LeaseHost) for action in plan.actions)
    policy.plan(replace(before[-1], time=before[-1].time + 5 * ROUND), memory)
