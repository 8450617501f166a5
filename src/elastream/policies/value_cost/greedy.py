"""Greedy searches (thesis, 4.8, Table 4.1): CE knows all operators; SH has a scheduler per operator."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from elastream.core.frames import Floats
from elastream.policies.value_cost.problem import HOUR, Conditions, Deployment, Problem, power, rate_of, value_of
from elastream.policies.value_cost.steps import (
    Assembly,
    allocate,
    cores_of,
    grow,
    repacked,
    replacements,
    shed,
    shut_down,
    vacated,
    without_spare,
)
from elastream.units import ROUNDING


def with_successors(problem: Problem, active: Sequence[int]) -> list[list[float]]:
    """Return the cost of each option, downstream operators included (core-seconds per record).

    `GetCostOfAlternate` of CE (Table 4.1): cost + selectivity x the costs of its successors' active options.
    """
    after = [0.0] * len(problem.operators)
    totals: list[list[float]] = [[]] * len(problem.operators)
    into: list[list[tuple[int, float]]] = [[] for _ in problem.operators]
    for (source, target), part in zip(problem.edges.tolist(), problem.parts.tolist(), strict=True):
        into[target].append((source, part))
    for row in reversed(range(len(problem.operators))):
        totals[row] = [option.cost + option.selectivity * after[row] for option in problem.options[row]]
        for source, part in into[row]:
            after[source] += part * totals[row][active[row]]
    return totals


def ranked(problem: Problem, row: int, costs: Sequence[float]) -> list[int]:
    """Return the options of an operator by descending value per cost; ties by value, then by lower cost."""
    options = problem.options[row]
    return sorted(
        range(len(options)), key=lambda each: (-_ratio(options[each].value, costs[each]), -options[each].value, costs[each])
    )


def _ratio(value: float, cost: float) -> float:
    return value / cost if cost > 0 else math.inf if value > 0 else 0.0


def chosen(problem: Problem, *, sharded: bool = False) -> tuple[int, ...]:
    """Return the option of each operator with the most value per cost (Algorithm 3, lines 2 to 11).

    Line 6 as printed carries the best ratio on to the next operator. Here each starts anew.

    Args:
        sharded: Count an operator's own cost alone (SH).
    """
    active = [0] * len(problem.operators)
    for row in reversed(range(len(problem.operators))):  # successors first: their costs are in those of this one
        if len(problem.options[row]) > 1:
            own = [option.cost for option in problem.options[row]]
            active[row] = ranked(problem, row, own if sharded else with_successors(problem, active)[row])[0]
    return tuple(active)


def deployed(
    problem: Problem, conditions: Conditions, hosts: Deployment | None = None, *, sharded: bool = False
) -> Deployment:
    """Return the initial deployment (Algorithm 3): alternates, then cores until the goal is reached or hosts run out.

    Args:
        sharded: Use SH's cost function and skip repacking (Table 4.1).
    """
    active = chosen(problem, sharded=sharded)
    none = np.zeros((0, len(problem.operators)), dtype=np.int64)
    begun = Deployment(active, (), none) if hosts is None else replace(hosts, active=active)
    assembly = Assembly(problem, begun, conditions)
    allocate(assembly, problem.goal.throughput)
    if not sharded:
        assembly = repacked(assembly, problem.goal.throughput)
    return shut_down(assembly).deployment()


def adapted(  # noqa: PLR0913
    problem: Problem,
    deployment: Deployment,
    conditions: Conditions,
    *,
    alternates: bool = True,
    resources: bool = True,
    due: Collection[str] = (),
    soon: Collection[str] = (),
    bought: Collection[int] = (),
    pace: float = 0.0,
) -> Deployment:
    """Return `deployment` adapted to `conditions` (Algorithm 4).

    Within the tolerance only hosts in `due` and `soon` may change.

    Args:
        due: Hosts whose paid time ends before the next resource stage.
        soon: Hosts that a cheaper one, leased now, could replace in time.
        bought: Operators that take their next better option (see `policy.overdue`).
        pace: Least time an option of less value runs (s); 0 ignores its loss.
    """
    goal = problem.goal
    assembly = Assembly(problem, deployment, conditions)
    for row in bought:
        option = better(assembly, row)
        if option is not None:
            assembly.switch(row, option)
    if alternates:
        assembly = switched(assembly, pinned=bought, pace=pace)
    if resources:
        reached = assembly.reached(assembly.limits())
        if reached <= goal.lowest + ROUNDING:
            allocate(assembly, goal.throughput)
            assembly = repacked(assembly, goal.throughput)
        lasting = assembly.under(enduring(problem, conditions))
        if reached >= goal.throughput + goal.tolerance - ROUNDING:
            lasting = shed(lasting, goal.throughput)
        lasting = vacated(lasting, goal.throughput, _called(lasting, due))
        types = replacements(lasting, goal.throughput, _called(lasting, soon))
        assembly = shut_down(lasting)
        for kind in types:
            assembly.lease(kind)
    return assembly.deployment()


def enduring(problem: Problem, conditions: Conditions) -> Conditions:
    """Return `conditions` with the backlog of a steady load at the goal, if it is larger.

    A goal below 1 leaves (1 / goal - 1) of an instant's input waiting; a plan made for less falls behind until then.
    """
    share = 1 / problem.goal.throughput - 1
    arriving = conditions.rates.mean(axis=0) * conditions.seconds
    lacking = share * float(arriving.sum()) - float(conditions.queues.sum())
    if lacking <= 0:
        return conditions
    queues = conditions.queues.copy()
    queues[problem.sources] += lacking * arriving / arriving.sum()
    return replace(conditions, queues=queues)


def _called(assembly: Assembly, names: Collection[str]) -> list[int]:
    return [row for row, host in enumerate(assembly.hosts) if host.name in names]


def switched(assembly: Assembly, *, pinned: Collection[int] = (), traded: bool = True, pace: float = 0.0) -> Assembly:
    """Switch alternates if the throughput is off the goal and the current hosts carry the change.

    `AlternateReDeploy` (Algorithm 4): below the goal the best option that needs less, above it one of more value. Instances
    move, none is leased. If no single switch suffices, several are combined; with `traded`, those that pay off (`worth`)
    are made in any case.
    """
    goal = assembly.problem.goal
    reached = assembly.reached(assembly.limits())
    if reached <= goal.lowest + ROUNDING:
        return _lowered(assembly, pinned, traded, pace)
    if reached >= goal.throughput + goal.tolerance - ROUNDING:
        return _raised(assembly.under(enduring(assembly.problem, assembly.conditions))).under(assembly.conditions)
    return assembly


def _raised(assembly: Assembly) -> Assembly:
    problem = assembly.problem
    for row in range(len(problem.operators)):
        value = problem.options[row][assembly.active[row]].value
        for option in (
            ranked(problem, row, with_successors(problem, assembly.active)[row]) if _has_choice(problem, row) else ()
        ):
            if problem.options[row][option].value > value + ROUNDING and (carried := _switched(assembly, row, option)):
                assembly = carried
                break
    return assembly


def _lowered(assembly: Assembly, pinned: Collection[int], traded: bool, pace: float) -> Assembly:
    problem = assembly.problem
    for row in range(len(problem.operators)):
        if not _has_choice(problem, row) or row in pinned:
            continue
        costs = with_successors(problem, assembly.active)[row]
        for option in ranked(problem, row, costs):
            less = costs[option] < costs[assembly.active[row]] * (1 - ROUNDING)
            if less and not _dear(assembly, row, option, pace) and (carried := _switched(assembly, row, option)):
                return carried
    worthwhile, trial = assembly.copy(), assembly.copy()
    while (step := _least_lost(trial, pinned, pace)) is not None:
        row, option = step
        if traded and worth(trial, row, option):
            worthwhile.switch(row, option)
        trial.switch(row, option)
        filled = trial.copy()
        if allocate(filled, problem.goal.throughput, lease=False):
            return filled
    allocate(worthwhile, problem.goal.throughput, lease=False)
    return worthwhile


def _has_choice(problem: Problem, row: int) -> bool:
    return len(problem.options[row]) > 1


def _switched(assembly: Assembly, operator: int, option: int) -> Assembly | None:
    trial = assembly.copy()
    trial.switch(operator, option)
    return trial if allocate(trial, assembly.problem.goal.throughput, lease=False) else None


def work(problem: Problem, active: Sequence[int], conditions: Conditions) -> float:
    rates = np.zeros(len(problem.operators))
    rates[problem.sources] = conditions.rates.mean(axis=0)
    return float(problem.network.unlimited(rates, problem.selectivities(active)) @ problem.costs(active))


def with_option(active: Sequence[int], operator: int, option: int) -> list[int]:
    return [*active[:operator], option, *active[operator + 1 :]]


def _least_lost(assembly: Assembly, pinned: Collection[int], pace: float) -> tuple[int, int] | None:
    problem, active, conditions = assembly.problem, assembly.active, assembly.conditions
    now = work(problem, active, conditions)
    best: tuple[float, float, int, int] | None = None
    for row, options in enumerate(problem.options):
        for option in range(len(options)) if len(options) > 1 and row not in pinned else ():
            saved = now - work(problem, with_option(active, row, option), conditions)
            lost = max(0.0, options[active[row]].value - options[option].value)
            if saved <= ROUNDING * now or _dear(assembly, row, option, pace):
                continue
            if best is None or (lost / saved, -saved) < best[:2]:
                best = lost / saved, -saved, row, option
    return None if best is None else best[2:]


def worth(assembly: Assembly, operator: int, option: int) -> bool:
    """Return True if the cores saved over the period are worth more than the lost value (4.8, 4.9)."""
    problem, active = assembly.problem, assembly.active
    lost = value_of(problem, active) - value_of(problem, with_option(active, operator, option))
    money = money_of(assembly, operator, option) * problem.goal.period / HOUR
    return lost <= problem.line.sigma * money + ROUNDING


def money_of(assembly: Assembly, operator: int, option: int) -> float:
    """Return the money/h that an option saves on the cheapest cores."""
    problem, active, conditions = assembly.problem, assembly.active, assembly.conditions
    saved = work(problem, active, conditions) - work(problem, with_option(active, operator, option), conditions)
    return saved * problem.goal.throughput * min((rate_of(kind) / power(kind) for kind in problem.types), default=0.0)


def _dear(assembly: Assembly, operator: int, option: int, pace: float) -> bool:
    """Return True if the value lost in `pace` seconds exceeds an hour of the saved hosts."""
    problem, active = assembly.problem, assembly.active
    lost = value_of(problem, active) - value_of(problem, with_option(active, operator, option))
    money = money_of(assembly, operator, option)
    return assembly.may_lease and bool(problem.types) and lost * pace / problem.goal.period > problem.line.sigma * money


def cheaper(assembly: Assembly, operator: int) -> int | None:
    """Return the option of `operator` with the next lower total cost, or None; `better`: the next higher value."""
    costs = with_successors(assembly.problem, assembly.active)[operator]
    active = assembly.active[operator]
    rows = [row for row, cost in enumerate(costs) if cost < costs[active] * (1 - ROUNDING)]
    return max(rows, key=lambda row: (costs[row], assembly.problem.options[operator][row].value), default=None)


def better(assembly: Assembly, operator: int) -> int | None:
    options = assembly.problem.options[operator]
    value = options[assembly.active[operator]].value
    rows = [row for row, option in enumerate(options) if option.value > value + ROUNDING]
    return min(rows, key=lambda row: (options[row].value, options[row].cost), default=None)


def alone(problem: Problem, operator: int) -> Problem:
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
    """Return one operator's conditions: its arriving and waiting records."""
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
            # Only its own cores count: which others are free depends on the other schedulers.
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
    requests = np.ceil(goal.throughput * records * problem.costs(assembly.active) - ROUNDING)
    has = cores_of(assembly)
    for row in later:
        options, active = problem.options[row], assembly.active[row]
        needs = [math.ceil(goal.throughput * float(records[row]) * option.cost - ROUNDING) for option in options]
        total = float(requests.sum())
        part = has / total if total > 0 else math.inf
        for option in ranked(problem, row, [each.cost for each in options]):
            less = part < 1 - goal.tolerance and options[option].cost < options[active].cost * (1 - ROUNDING)
            more = part > 1 + goal.tolerance and options[option].value > options[active].value + ROUNDING
            if (less and needs[option] <= part * needs[active]) or (more and needs[option] - needs[active] <= has - total):
                assembly.switch(row, option)
                requests[row] = needs[option]
                break
    if not resources:
        return assembly
    need = float(requests.sum())
    while cores_of(assembly) < need - ROUNDING and grow(assembly, 0):
        pass
    return without_spare(assembly, need)
