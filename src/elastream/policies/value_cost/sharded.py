"""Greedy plans by one scheduler an operator, none of which knows of the others (thesis, 4.8: SH).

A scheduler is given the problem of its operator alone: what reaches it and waits for it, its alternates, its instances.
Where it takes a core it is told which hosts have one free; what holds the others it is not told.
"""

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from elastream.core.frames import Floats
from elastream.policies.value_cost.assembly import Assembly
from elastream.policies.value_cost.greedy import chosen, ranked, switched
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem
from elastream.policies.value_cost.steps import allocate, cores_of, grow, shed, shut_down, without_spare
from elastream.units import ROUNDING


def alone(problem: Problem, operator: int) -> Problem:
    """The problem of one operator, as if it were the dataflow."""
    return replace(
        problem,
        operators=(problem.operators[operator],),
        options=(problem.options[operator],),
        edges=np.zeros((0, 2), dtype=np.int64),
        parts=np.zeros(0),
        sources=np.zeros(1, dtype=np.int64),
        outputs=np.zeros(1, dtype=np.int64),
        record_bytes=problem.record_bytes[[operator]],
        placed=problem.placed[[operator]],
        fixed=problem.fixed[[operator]],
        cores=problem.cores[[operator]],
        memory=problem.memory[[operator]],
        dynamic=problem.dynamic[[operator]],
        branches=(),
    )


def under(conditions: Conditions, operator: int, arriving: float) -> Conditions:
    """The conditions of one operator, which sees the records that reach it and wait for it."""
    return replace(
        conditions,
        rates=np.full((conditions.instants, 1), arriving),
        queues=conditions.queues[[operator]],
        bandwidth={},
    )


def adapted_apart(
    problem: Problem,
    deployment: Deployment,
    conditions: Conditions,
    arriving: Floats,
    *,
    first: Collection[int] = (),
    alternates: bool = True,
    resources: bool = True,
) -> Deployment:
    """The deployment adapted by a scheduler an operator (Algorithm 4 of SH, without repacking).

    arriving: records/s that reach each operator as its scheduler sees them, shape (operators,); NaN: it does nothing.
    first: rows of those that choose their alternate as at the initial deployment (Algorithm 3).
    """
    known = [row for row, rate in enumerate(arriving.tolist()) if not math.isnan(rate)]
    options = chosen(problem, sharded=True)
    active = tuple(options[row] if row in first and row in known else now for row, now in enumerate(deployment.active))
    everyone = Assembly(problem, replace(deployment, active=active), conditions)
    later = [row for row in known if row not in first] if alternates else []
    if problem.shared:
        return _of_shared(everyone, arriving, later, resources=resources).deployment()
    goal = problem.goal
    for operator in everyone.order:
        if operator not in known or not problem.placed[operator]:
            continue
        its = alone(problem, operator), under(conditions, operator, float(arriving[operator]))
        if operator in later:
            # By the cores that it has: which others are free depends on who else asks.
            everyone.switch(operator, switched(everyone.alone(operator, *its, room=False), traded=False).active[0])
        own = everyone.alone(operator, *its)
        if resources:
            reached = own.reached()
            if reached <= goal.lowest + ROUNDING:
                allocate(own, goal.throughput)
            elif reached >= goal.throughput + goal.tolerance - ROUNDING:
                own = shed(own, goal.throughput)
        everyone.take(operator, own)
    return (shut_down(everyone) if resources else everyone).deployment()


def _of_shared(assembly: Assembly, arriving: Floats, later: Collection[int], *, resources: bool) -> Assembly:
    """The same where operators take turns on all cores: each scheduler asks for whole cores, and is given its part.

    No scheduler has cores of its own there. How much it is given of what it asks for is all that it knows of the rest.
    later: rows of the operators for whose alternates it is time.
    """
    problem, goal = assembly.problem, assembly.problem.goal
    records = np.nan_to_num(arriving) + assembly.conditions.queues / assembly.conditions.seconds
    asked = np.ceil(goal.throughput * records * problem.costs(assembly.active) - ROUNDING)
    has = cores_of(assembly)
    for row in later:
        options, active = problem.options[row], assembly.active[row]
        needs = [math.ceil(goal.throughput * float(records[row]) * option.cost - ROUNDING) for option in options]
        total = float(asked.sum())
        part = has / total if total > 0 else math.inf
        for option in ranked(problem, row, [each.cost for each in options]):
            less = part < 1 - goal.tolerance and options[option].cost < options[active].cost * (1 - ROUNDING)
            more = part > 1 + goal.tolerance and options[option].value > options[active].value + ROUNDING
            if (less and needs[option] <= part * needs[active]) or (more and needs[option] - needs[active] <= has - total):
                assembly.switch(row, option)
                asked[row] = needs[option]
                break
    if not resources:
        return assembly
    need = float(asked.sum())
    while cores_of(assembly) < need - ROUNDING and grow(assembly, 0):
        pass
    return without_spare(assembly, need)
