"""Cases for searches: a dataflow in a line, with a few cores to lease, and small ones at random."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from elastream.core.hosts import Billing, HostType
from elastream.policies.value_cost.problem import Conditions, Deployment, Goal, Host, Problem
from support.scheduling_problems import Variants
from support.scheduling_problems import problem as problem_of

HOURLY = Billing(3600.0)
SMALL = HostType("small", cores=1.0, speed=1.0, price=1.0, billing=HOURLY, start=60.0)
LARGE = HostType("large", cores=4.0, speed=1.5, price=5.0, billing=HOURLY, start=60.0)


def problem(
    options: Sequence[Variants],
    edges: Sequence[tuple[int, int]] | None = None,
    *,
    types: Sequence[HostType] = (SMALL, LARGE),
    goal: Goal | None = None,
    shared: bool = False,
    **more: Any,
) -> Problem:
    """A source and operators with the (value, cost, selectivity) of their alternates; edges between these by number, None:
    one after another. What sends nothing on is an output. more: other fields of the problem.
    """
    names = [f"p{row}" for row in range(len(options))]
    pairs = [(row, row + 1) for row in range(len(options) - 1)] if edges is None else edges
    found = problem_of(
        {"in": (), **dict(zip(names, options, strict=True))},
        [("in", "p0"), *((names[a], names[b]) for a, b in pairs)],
        types=types,
        goal=goal or Goal(break_even_best=20.0, break_even_worst=8.0),
        shared=shared,
        max_hosts=50,
    )
    return replace(found, **more)


def at(case: Problem, rate: float, *, queues: Sequence[float] | None = None, **more: Any) -> Conditions:
    """Conditions of one instant of five minutes, in which `rate` records/s come."""
    waiting = np.zeros(len(case.operators)) if queues is None else np.array([0.0, *queues])
    return Conditions(np.array([[rate]]), waiting, 300.0, **more)


def leased(name: str, type: HostType, *, speed: float | None = None, since: float = 0.0) -> Host:
    """A host that is up."""
    return Host(name, type, type.speed if speed is None else speed, since, since + type.start)


def on(case: Problem, active: Sequence[int], hosts: Sequence[tuple[Host, Sequence[int]]]) -> Deployment:
    """A plan: alternates of the operators without the source, and hosts with the instances of these."""
    instances = [[0, *held] for _, held in hosts]
    return Deployment((0, *active), tuple(host for host, _ in hosts), np.array(instances, dtype=np.int64))


ALTERNATES = st.lists(
    st.tuples(st.sampled_from([0.5, 0.8, 1.0]), st.sampled_from([0.05, 0.1, 0.3]), st.sampled_from([0.5, 1.0, 1.3])),
    min_size=1,
    max_size=2,
    unique_by=lambda option: option[0],
)
SHAPES = {2: ([(0, 1)],), 3: ([(0, 1), (1, 2)], [(0, 1), (0, 2)]), 4: ([(0, 1), (0, 2), (1, 3), (2, 3)],)}


@st.composite
def small_cases(draw: st.DrawFn) -> tuple[Problem, Conditions]:
    """Two to four operators that need a few cores, with or without a host that is leased, and records that wait."""
    count = draw(st.integers(2, 4))
    options = draw(st.lists(ALTERNATES, min_size=count, max_size=count))
    price = draw(st.sampled_from([2.0, 3.5, 5.0]))
    types = (SMALL, HostType("large", cores=draw(st.sampled_from([2.0, 3.0])), speed=1.5, price=price, billing=HOURLY))
    best = draw(st.sampled_from([10.0, 40.0]))
    goal = Goal(draw(st.sampled_from([0.6, 0.8, 1.0])), break_even_best=best, break_even_worst=4.0)
    found = problem(options, draw(st.sampled_from(SHAPES[count])), types=types, goal=goal, max_hosts=12)
    there = draw(st.booleans())
    hosts = (leased("h0", types[1], speed=draw(st.sampled_from([0.7, 1.5]))),) if there else ()
    queues = [draw(st.sampled_from([0.0, 300.0])) for _ in range(count)]
    return found, at(found, draw(st.sampled_from([1.0, 4.0, 9.0])), queues=queues, time=1800.0 * there, leased=hosts)
