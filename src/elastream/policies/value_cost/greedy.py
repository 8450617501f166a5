"""Greedy plans, knowing all operators: which alternates run, and how the first deployment is adapted (thesis, 4.8).

Algorithms 3 and 4 with the functions of Table 4.1 for the centralised variant (CE). `steps` has what they do to instances
and hosts, `sharded` the variant that knows one operator at a time (SH).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from elastream.policies.value_cost.assembly import Assembly
from elastream.policies.value_cost.packing import HOUR, power, rate_of
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, value_of
from elastream.policies.value_cost.steps import allocate, repacked, replacements, shed, shut_down, vacated
from elastream.units import ROUNDING


def with_successors(problem: Problem, active: Sequence[int]) -> list[list[float]]:
    """Core-seconds per record of each option of each operator, with what its records cost the operators after it.

    `GetCostOfAlternate` of CE (Table 4.1): cost + selectivity x the sum of its successors' costs, from the outputs back,
    where each successor runs its option of `active`.
    """
    after = [0.0] * len(problem.operators)
    found: list[list[float]] = [[]] * len(problem.operators)
    into: list[list[tuple[int, float]]] = [[] for _ in problem.operators]
    for (source, target), part in zip(problem.edges.tolist(), problem.parts.tolist(), strict=True):
        into[target].append((source, part))
    for row in reversed(range(len(problem.operators))):
        found[row] = [option.cost + option.selectivity * after[row] for option in problem.options[row]]
        for source, part in into[row]:
            after[source] += part * found[row][active[row]]
    return found


def ranked(problem: Problem, row: int, costs: Sequence[float]) -> list[int]:
    """Options of an operator by value over `costs`, the highest first; then by value, then the least cost."""
    options = problem.options[row]
    return sorted(
        range(len(options)), key=lambda each: (-_ratio(options[each].value, costs[each]), -options[each].value, costs[each])
    )


def _ratio(value: float, cost: float) -> float:
    return value / cost if cost > 0 else math.inf if value > 0 else 0.0


def chosen(problem: Problem, *, sharded: bool = False) -> tuple[int, ...]:
    """The option of each operator with the most value for its cost (Algorithm 3, lines 2 to 11).

    sharded: for its own cost alone, that of SH. Line 6 keeps the best ratio from one operator to the next, so that a
    later one may select nothing; here each begins anew.
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
    """The initial deployment (Algorithm 3): alternates first, then cores until the goal's throughput is reached.

    hosts: those that are leased, with the instances on them; None: none. sharded: with the cost function of SH, and without
    repacking (Table 4.1). Where the goal cannot be reached, what comes nearest to it on the hosts that may be leased.
    """
    active = chosen(problem, sharded=sharded)
    none = np.zeros((0, len(problem.operators)), dtype=np.int64)
    begun = Deployment(active, (), none) if hosts is None else replace(hosts, active=active)
    assembly = Assembly(problem, begun, conditions)
    allocate(assembly, problem.goal.throughput)
    if not sharded:
        assembly = repacked(assembly, problem.goal.throughput)
    return shut_down(assembly).deployment()


def adapted(
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
    """The deployment adapted to `conditions` (Algorithm 4), all operators known.

    alternates, resources: whether it is time for either stage. due: hosts whose paid time ends before the next time for
    resources. soon: those for which another that is leased now is up when theirs ends. bought: rows of operators that run
    their next better option from now on, whatever hosts that takes (`renting.overdue`). pace: seconds for which an option
    of less value runs at least; 0: it is not asked what it loses. Within the tolerance nothing changes, but that hosts
    that are due go if the others do without them, and those that are soon if cheaper ones do.
    """
    goal = problem.goal
    assembly = Assembly(problem, deployment, conditions)
    for row in bought:
        option = better(assembly, row)
        if option is not None:
            assembly.switch(row, option)
    if alternates:
        assembly = switched(assembly, kept=bought, pace=pace)
    if resources:
        reached = assembly.reached(assembly.limits())
        if reached <= goal.lowest + ROUNDING:
            allocate(assembly, goal.throughput)
            assembly = repacked(assembly, goal.throughput)
        lasting = assembly.under(enduring(problem, conditions))
        if reached >= goal.throughput + goal.tolerance - ROUNDING:
            lasting = shed(lasting, goal.throughput)
        lasting = vacated(lasting, goal.throughput, _called(lasting, due))
        wanted = replacements(lasting, goal.throughput, _called(lasting, soon))
        assembly = shut_down(lasting)
        for kind in wanted:
            assembly.lease(kind)
    return assembly.deployment()


def enduring(problem: Problem, conditions: Conditions) -> Conditions:
    """`conditions` with at least as much waiting as a load that lasts leaves at the goal's throughput.

    Holding a throughput of which what waits is a part, (1 / goal - 1) of an instant's input waits for good. A plan that
    holds it while less waits falls behind until so much does, is raised again, and so on: what is given back, or switched
    to more value, must hold it then.
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
    """Rows of the hosts `names`."""
    return [row for row, host in enumerate(assembly.hosts) if host.name in names]


def switched(assembly: Assembly, *, kept: Collection[int] = (), traded: bool = True, pace: float = 0.0) -> Assembly:
    """The same with other alternates, where the throughput is off the goal and the hosts there are carry them.

    `AlternateReDeploy` (Algorithm 4). Below the goal: of the options that need less, the first by value for cost with
    which the goal is reached; above: of those of more value. "Accommodated using the existing resource allocation" is
    read as by the cores of the hosts there are: instances are shifted among operators, none is leased. Where no single
    switch does, those together that give up least value for what they save, if they do; else, with `traded`, those that
    are worth it (`worth`).
    """
    goal = assembly.problem.goal
    reached = assembly.reached(assembly.limits())
    if reached <= goal.lowest + ROUNDING:
        return _lowered(assembly, kept, traded, pace)
    if reached >= goal.throughput + goal.tolerance - ROUNDING:
        return _raised(assembly.under(enduring(assembly.problem, assembly.conditions))).under(assembly.conditions)
    return assembly


def _raised(assembly: Assembly) -> Assembly:
    problem = assembly.problem
    for row in range(len(problem.operators)):
        value = problem.options[row][assembly.active[row]].value
        for option in (
            ranked(problem, row, with_successors(problem, assembly.active)[row]) if _several(problem, row) else ()
        ):
            if problem.options[row][option].value > value + ROUNDING and (carried := _carried(assembly, row, option)):
                assembly = carried
                break
    return assembly


def _lowered(assembly: Assembly, kept: Collection[int], traded: bool, pace: float) -> Assembly:
    problem = assembly.problem
    for row in range(len(problem.operators)):
        if not _several(problem, row) or row in kept:
            continue
        costs = with_successors(problem, assembly.active)[row]
        for option in ranked(problem, row, costs):
            less = costs[option] < costs[assembly.active[row]] * (1 - ROUNDING)
            if less and not _dear(assembly, row, option, pace) and (carried := _carried(assembly, row, option)):
                return carried
    worthwhile, trial = assembly.copy(), assembly.copy()
    while (step := _least_lost(trial, kept, pace)) is not None:
        row, option = step
        if traded and worth(trial, row, option):
            worthwhile.switch(row, option)
        trial.switch(row, option)
        filled = trial.copy()
        if allocate(filled, problem.goal.throughput, lease=False):
            return filled
    allocate(worthwhile, problem.goal.throughput, lease=False)
    return worthwhile


def _several(problem: Problem, row: int) -> bool:
    return len(problem.options[row]) > 1


def _carried(assembly: Assembly, operator: int, option: int) -> Assembly | None:
    """The same with another option of an operator, if the hosts there are reach the goal with it; else None."""
    trial = assembly.copy()
    trial.switch(operator, option)
    return trial if allocate(trial, assembly.problem.goal.throughput, lease=False) else None


def work(problem: Problem, active: Sequence[int], conditions: Conditions) -> float:
    """Cores of speed 1 that all operators work on the mean rates if nothing holds records back."""
    rates = np.zeros(len(problem.operators))
    rates[problem.sources] = conditions.rates.mean(axis=0)
    return float(problem.network.unlimited(rates, problem.selectivities(active)) @ problem.costs(active))


def with_option(active: Sequence[int], operator: int, option: int) -> list[int]:
    """`active` with another option of `operator`."""
    return [*active[:operator], option, *active[operator + 1 :]]


def _least_lost(assembly: Assembly, kept: Collection[int], pace: float) -> tuple[int, int] | None:
    """The switch to a lower need that loses least value for the cores that it saves; None where none saves any."""
    problem, active, conditions = assembly.problem, assembly.active, assembly.conditions
    now = work(problem, active, conditions)
    best: tuple[float, float, int, int] | None = None
    for row, options in enumerate(problem.options):
        for option in range(len(options)) if len(options) > 1 and row not in kept else ():
            saved = now - work(problem, with_option(active, row, option), conditions)
            lost = max(0.0, options[active[row]].value - options[option].value)
            if saved <= ROUNDING * now or _dear(assembly, row, option, pace):
                continue
            if best is None or (lost / saved, -saved) < best[:2]:
                best = lost / saved, -saved, row, option
    return None if best is None else best[2:]


def worth(assembly: Assembly, operator: int, option: int) -> bool:
    """Whether the cores that an option saves are worth more than the value that it loses (4.8, 4.9), if both last."""
    problem, active = assembly.problem, assembly.active
    lost = value_of(problem, active) - value_of(problem, with_option(active, operator, option))
    money = money_of(assembly, operator, option) * problem.goal.period / HOUR
    return lost <= problem.line.sigma * money + ROUNDING


def money_of(assembly: Assembly, operator: int, option: int) -> float:
    """Money an hour that another option of `operator` saves, by the price of the type with the cheapest core."""
    problem, active, conditions = assembly.problem, assembly.active, assembly.conditions
    saved = work(problem, active, conditions) - work(problem, with_option(active, operator, option), conditions)
    return saved * problem.goal.throughput * min((rate_of(kind) / power(kind) for kind in problem.types), default=0.0)


def _dear(assembly: Assembly, operator: int, option: int, pace: float) -> bool:
    """Whether another option loses more value in `pace` seconds than the hosts that it saves cost an hour, and these may
    come."""
    problem, active = assembly.problem, assembly.active
    lost = value_of(problem, active) - value_of(problem, with_option(active, operator, option))
    money = money_of(assembly, operator, option)
    return assembly.may_lease and bool(problem.types) and lost * pace / problem.goal.period > problem.line.sigma * money


def cheaper(assembly: Assembly, operator: int) -> int | None:
    """The option of `operator` with the next lower need of cores, its successors' counted; None where none needs less."""
    costs = with_successors(assembly.problem, assembly.active)[operator]
    active = assembly.active[operator]
    rows = [row for row, cost in enumerate(costs) if cost < costs[active] * (1 - ROUNDING)]
    return max(rows, key=lambda row: (costs[row], assembly.problem.options[operator][row].value), default=None)


def better(assembly: Assembly, operator: int) -> int | None:
    """The option of `operator` with the next higher value; None where it runs the highest."""
    options = assembly.problem.options[operator]
    value = options[assembly.active[operator]].value
    rows = [row for row, option in enumerate(options) if option.value > value + ROUNDING]
    return min(rows, key=lambda row: (options[row].value, options[row].cost), default=None)
