"""Greedy plans by one scheduler an operator, none of which knows of the others (thesis, 4.8: SH).

A scheduler is given the problem of its operator alone: what reaches it and waits for it, its alternates, its instances. Where it
takes a core it is told which hosts have one free; what holds the others it is not told.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elastream.model.observation import Floats
from elastream.planning.scheduling.assembly import Assembly
from elastream.planning.scheduling.greedy import chosen, ranked, switched
from elastream.planning.scheduling.packing import NEARLY, largest
from elastream.planning.scheduling.problem import Conditions, Deployment, Problem
from elastream.planning.scheduling.steps import allocate, shed, shut_down, weights

__all__ = ["adapted_apart", "alone", "under"]


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
    first: bool = False,
    alternates: bool = True,
    resources: bool = True,
) -> Deployment:
    """The deployment adapted by a scheduler an operator (Algorithm 4 of SH, without repacking).

    arriving: records/s that reach each operator as its scheduler sees them, shape (operators,); NaN: it does nothing. first:
    whether alternates are chosen as at the initial deployment (Algorithm 3).
    """
    if first:
        options = chosen(problem, sharded=True)
        known = [not math.isnan(rate) for rate in arriving.tolist()]
        active = tuple(new if seen else old for new, old, seen in zip(options, deployment.active, known, strict=True))
        deployment = replace(deployment, active=active)
    if problem.shared:
        return _of_shared(problem, deployment, conditions, arriving, alternates=alternates and not first, resources=resources)
    goal, everyone = problem.goal, Assembly(problem, deployment, conditions)
    for operator in everyone.order:
        if not problem.placed[operator] or math.isnan(arriving[operator]):
            continue
        own = everyone.alone(operator, alone(problem, operator), under(conditions, operator, float(arriving[operator])))
        if alternates and not first:
            own = switched(own)
        if resources:
            reached = own.reached()
            if reached <= goal.lowest + NEARLY:
                allocate(own, goal.throughput)
            elif reached >= goal.throughput + goal.tolerance - NEARLY:
                own = shed(own, goal.throughput)
        everyone.take(operator, own)
    return (shut_down(everyone) if resources else everyone).deployment()


def _of_shared(
    problem: Problem,
    deployment: Deployment,
    conditions: Conditions,
    arriving: Floats,
    *,
    alternates: bool,
    resources: bool,
) -> Deployment:
    """The same where operators take turns on all cores: each scheduler asks for whole cores, and is given its part.

    No scheduler has cores of its own there. What each is given of what it asks for is the only thing it knows of the rest.
    """
    goal, assembly = problem.goal, Assembly(problem, deployment, conditions)
    known = [row for row, rate in enumerate(arriving.tolist()) if not math.isnan(rate)]
    records = np.nan_to_num(arriving) + conditions.queues / conditions.seconds

    def asks(active: Sequence[int]) -> Floats:
        """Cores of speed 1 that each operator asks for to reach the goal; shape (operators,)."""
        found: Floats = np.ceil(goal.throughput * records * problem.costs(active) - NEARLY)
        return found

    def has() -> float:
        return float(assembly.capacity[:, 0].mean()) if assembly.hosts else 0.0

    for row in known if alternates else ():
        asked = asks(assembly.active)
        given, total = has(), float(asked.sum())
        part = given / total if total > 0 else math.inf
        own = [goal.throughput * float(records[row]) * option.cost for option in problem.options[row]]
        now = own[assembly.active[row]]
        value = problem.options[row][assembly.active[row]].value
        for option in ranked(problem, row, [each.cost for each in problem.options[row]]):
            less = part < 1 - goal.tolerance and own[option] < now and math.ceil(own[option]) <= part * asked[row]
            more = part > 1 + goal.tolerance and problem.options[row][option].value > value + NEARLY
            if less or (more and math.ceil(own[option]) - asked[row] <= given - total):
                assembly.switch(row, option)
                break
    if resources:
        need = float(asks(assembly.active).sum())
        kind = largest(problem.types)
        while has() < need - NEARLY and kind is not None and assembly.may_lease:
            assembly.lease(kind)
        assembly = _without_spare(assembly, need)
    return assembly.deployment()


def _without_spare(assembly: Assembly, need: float) -> Assembly:
    """The same without the hosts that `need` cores of speed 1 do not need, the least weight first (4.10)."""
    by_weight = weights(assembly)
    cores = [float(speed) * host.type.cores for speed, host in zip(assembly.speeds.tolist(), assembly.hosts, strict=True)]
    spare, gone = math.fsum(cores) - need, set[int]()
    for row in np.argsort(by_weight).tolist():
        if cores[row] <= spare and len(assembly.hosts) - len(gone) > max(1, assembly.problem.min_hosts):
            spare -= cores[row]
            gone.add(row)
    return assembly.without(gone) if gone else assembly
