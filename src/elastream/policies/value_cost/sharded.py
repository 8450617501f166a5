"""Greedy search with one scheduler per operator (thesis, 4.8: SH).

A scheduler sees its own operator: arriving records, backlog, alternates, instances. Of hosts it sees only free cores.
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
    """Return the problem of one operator, as if it were the whole dataflow."""
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
    """Return the conditions of one operator: its arriving and waiting records."""
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
    """Return the deployment adapted by one scheduler per operator (Algorithm 4 of SH).

    Args:
        arriving: Records/s that reach each operator; NaN leaves it as it is.
        first: Operators that choose their alternate as initially (Algorithm 3).
    """
    rows = [row for row, rate in enumerate(arriving.tolist()) if not math.isnan(rate)]
    options = chosen(problem, sharded=True)
    active = tuple(options[row] if row in first and row in rows else now for row, now in enumerate(deployment.active))
    everyone = Assembly(problem, replace(deployment, active=active), conditions)
    later = [row for row in rows if row not in first] if alternates else []
    if problem.shared:
        return _of_shared(everyone, arriving, later, resources=resources).deployment()
    goal = problem.goal
    for operator in everyone.order:
        if operator not in rows or not problem.placed[operator]:
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
    """Let schedulers request whole cores; each knows only the share it gets."""
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
