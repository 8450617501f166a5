"""Plans as values that are scored without being enacted (thesis, 4.4 to 4.6), and the cheapest hosts for their needs.

Hosts are packed after Kang and Park, "Algorithms for the variable sized bin packing problem" (2003): fill bins of one size,
put the rest into the next smaller one. Here every size is tried first, and expensive sizes are not filled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.core.qos import BreakEven, FlowNetwork, Flows, application_value, flow_limits, flows
from elastream.errors import InputError
from elastream.units import ROUNDING

HOUR = 3600.0

# Operators that Eq. 4.3 counts: those with several alternates, as in the thesis, or all.
Over: TypeAlias = Literal["dynamic", "all"]


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # empty for sources and sinks, which have nothing to choose
    value: float  # relative to the best of its operator (Eq. 4.1)
    cost: float  # core-seconds of speed 1 per record
    selectivity: float  # records out per record in


@dataclass(frozen=True, slots=True)
class Goal:
    """Target share of the possible throughput, and the line at which values break even.

    Args:
        break_even_best: Money/h at which the highest value breaks even (4.9: C_max at Gamma_max, over T).
        break_even_worst: Money/h for the lowest value (C_min at Gamma_min). Give both or none.
        period: Period over which profit counts (s; T).
        over: Operators that Eq. 4.3 counts.
    """

    throughput: float = 0.8
    tolerance: float = 0.05
    break_even_best: float | None = None
    break_even_worst: float | None = None
    period: float = 12 * HOUR
    over: Over = "dynamic"

    def __post_init__(self) -> None:
        if not 0 < self.throughput <= 1:
            raise InputError(f"a throughput of {self.throughput:g} of what is possible: it must be above 0 and at most 1")
        if not 0 <= self.tolerance < self.throughput:
            raise InputError(f"a tolerance of {self.tolerance:g}: it must be 0 or more, and below the throughput")
        if (self.break_even_best is None) != (self.break_even_worst is None):
            raise InputError("break-even costs are given for the highest value and the lowest, or for none")
        if not 0 <= self.worst < self.best < math.inf:
            raise InputError(
                f"the highest value breaks even at {self.best:g} an hour and the lowest at {self.worst:g}: the first must "
                "be more, and none negative"
            )
        if not 0 < self.period < math.inf:
            raise InputError(f"a period of {self.period:g} s over which profit is taken: it must be above 0 and end")
        if self.over not in get_args(Over):
            raise InputError(f"the value is of {self.over!r} operators; it can be of 'dynamic' ones or of 'all'")

    @property
    def best(self) -> float:
        return 1.0 if self.break_even_best is None else self.break_even_best

    @property
    def worst(self) -> float:
        return 0.5 if self.break_even_worst is None else self.break_even_worst

    @property
    def lowest(self) -> float:
        return self.throughput - self.tolerance


@dataclass(frozen=True)
class Problem:
    """The part of a search that stays fixed. Arrays are by operator, in topological order."""

    operators: tuple[str, ...]
    options: tuple[tuple[Option, ...], ...]  # alternates that may run now
    edges: Integers  # live edges, shape (edges, 2)
    parts: Floats  # share of a record's emissions over each edge, shape (edges,)
    sources: Integers  # rows of the operators where records enter
    outputs: Integers  # rows of the operators where they leave
    record_bytes: Floats  # size of an emitted record; NaN leaves its links unlimited
    placed: NDArray[np.bool_]  # operators whose instances hold cores of a host
    fixed: NDArray[np.bool_]  # placed operators whose number of instances stays
    cores: Floats  # cores that an instance holds
    memory: Floats  # memory that an instance holds (MB)
    dynamic: NDArray[np.bool_]  # operators with several alternates, allowed now or not
    types: tuple[HostType, ...]  # host types for lease
    goal: Goal
    branches: tuple[float, ...] = ()  # values of the running branches, added to Eq. 4.3
    bounds: tuple[float, float] = (0.0, 1.0)  # least and highest value of the dataflow (Gamma_min, Gamma_max)
    max_hosts: int = 1_000_000
    min_hosts: int = 1
    shared: bool = False  # tasks of all operators share all cores (Spark); instances do not count
    equal: bool = False  # most work has equal shares per core, so that all wait for the slowest

    @cached_property
    def network(self) -> FlowNetwork:
        return FlowNetwork(len(self.operators), self.edges, self.parts, self.sources, self.outputs)

    @cached_property
    def row(self) -> Mapping[str, int]:
        return {name: row for row, name in enumerate(self.operators)}

    @cached_property
    def per_instance(self) -> Floats:
        """Cores of speed 1 of an instance; one that declares no cores uses one."""
        return np.where(self.cores > 0, self.cores, 1.0)

    @cached_property
    def line(self) -> BreakEven:
        hours = self.goal.period / HOUR
        low, high = self.bounds
        return BreakEven(low, high, self.goal.worst * hours, self.goal.best * hours)

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        working = np.array([bool(options[0].name) for options in self.options], dtype=np.bool_)
        return self.dynamic if self.goal.over == "dynamic" else working

    @cached_property
    def reach(self) -> tuple[tuple[int, ...], ...]:
        """Direct successors of each operator, in edge order."""
        targets: list[list[int]] = [[] for _ in self.operators]
        for source, target in self.edges.tolist():
            targets[source].append(target)
        return tuple(tuple(each) for each in targets)

    def costs(self, active: Sequence[int]) -> Floats:
        return np.array([options[each].cost for options, each in zip(self.options, active, strict=True)])

    def selectivities(self, active: Sequence[int]) -> Floats:
        return np.array([options[each].selectivity for options, each in zip(self.options, active, strict=True)])


@dataclass(frozen=True, slots=True)
class Host:
    name: str  # empty for a host to lease
    type: HostType
    speed: float  # speed of a core
    since: float  # start of the lease, actual or planned
    ready: float  # time from which it takes instances


@dataclass(frozen=True)
class Deployment:
    """Plan as a value. Leased hosts missing from `hosts` are released."""

    active: tuple[int, ...]  # row of the option of each operator
    hosts: tuple[Host, ...]
    instances: Integers  # int64, shape (hosts, operators); zero where cores are shared

    def switched(self, operator: int, option: int) -> "Deployment":
        return replace(self, active=(*self.active[:operator], option, *self.active[operator + 1 :]))


@dataclass(frozen=True)
class Conditions:
    rates: Floats  # records/s, shape (T, sources)
    queues: Floats  # records that wait at `time`, shape (operators,)
    seconds: float  # length of an instant
    time: float = 0.0
    speeds: Mapping[str, Floats] = field(default_factory=dict)  # core speeds by host name, shape (T,); default `Host.speed`
    # bytes/s between pairs of hosts, shape (T,); default the rating of their types
    bandwidth: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    steady: bool = True  # conditions last, so hosts count in full before they are ready
    lead: float = 0.0  # time before `time` from which hosts may be leased (s), for conditions of a later time
    began: float = 0.0  # start of the profit period
    value: float = math.nan  # mean application value from `began` to `time`; NaN if unknown
    leased: tuple[Host, ...] = ()  # hosts leased at `time`
    paid: float = 0.0  # money spent in this period on hosts no longer leased

    @property
    def instants(self) -> int:
        return int(self.rates.shape[0])


@dataclass(frozen=True)
class Score:
    throughput: Floats  # relative throughput of the application by instant, waiting records counted (4.7)
    by_operator: Floats  # relative throughput of each operator, shape (T, operators) (4.4)
    value: float  # application value of the plan (4.3)
    cost: float  # money of the whole period if the plan stays to its end (4.2)
    profit: float  # profit of the whole period (4.8)

    @property
    def mean(self) -> float:
        return float(self.throughput.mean())

    def feasible(self, goal: Goal) -> bool:
        return self.mean >= goal.lowest - ROUNDING


def speeds_of(deployment: Deployment, conditions: Conditions) -> Floats:
    """Return the core speed of each host and instant, reduced until it is ready; shape (T, hosts)."""
    count = len(deployment.hosts)
    speeds = np.tile(np.array([host.speed for host in deployment.hosts], dtype=np.float64), (conditions.instants, 1))
    for column, host in enumerate(deployment.hosts):
        if host.name in conditions.speeds:
            speeds[:, column] = conditions.speeds[host.name]
    if not conditions.steady and count:
        ends = conditions.time + conditions.seconds * np.arange(1, conditions.instants + 1)
        ready = np.array([host.ready for host in deployment.hosts])
        speeds *= np.clip((ends[:, None] - ready) / conditions.seconds, 0.0, 1.0)
    return speeds


def capacities(problem: Problem, deployment: Deployment, conditions: Conditions) -> Floats:
    """Return the cores of speed 1 of each operator and instant, shape (T, operators).

    Infinite for operators that hold no core. With shared cores every operator gets all; `throughput` divides them.
    """
    speeds = speeds_of(deployment, conditions)
    if problem.shared:
        cores = np.array([host.type.cores for host in deployment.hosts], dtype=np.float64)
        slowest = speeds.min(axis=1, initial=np.inf, where=speeds > 0) if problem.equal else np.inf
        total: Floats = np.where(speeds > 0, np.minimum(speeds, np.expand_dims(slowest, -1)), 0.0) @ cores
        return np.repeat(total[:, None], len(problem.operators), axis=1)
    capacity: Floats = (speeds @ deployment.instances.reshape(-1, len(problem.operators))) * problem.per_instance
    capacity[:, ~problem.placed] = np.inf
    return capacity


def throughput(
    problem: Problem, active: Sequence[int], capacity: Floats, conditions: Conditions, bandwidth: Floats | None = None
) -> Flows:
    """Return the rates of all operators (Eqs. 4.4 to 4.7), without a loop over hosts."""
    return flows(
        problem.network,
        conditions.rates,
        problem.costs(active),
        problem.selectivities(active),
        capacity,
        conditions.queues,
        conditions.seconds,
        limits=bandwidth,
        shared=problem.shared,
    )


def limits(problem: Problem, deployment: Deployment, conditions: Conditions) -> Floats | None:
    """Return the records/s that links let over each edge (4.5), shape (T, edges); None if unlimited."""
    if problem.shared or not deployment.hosts:
        return None
    rated = [math.inf if host.type.bandwidth is None else host.type.bandwidth for host in deployment.hosts]
    if not conditions.bandwidth and all(math.isinf(each) for each in rated):
        return None
    each = np.array(rated)
    pairs = np.tile(np.minimum.outer(each, each), (conditions.instants, 1, 1))
    at = {host.name: row for row, host in enumerate(deployment.hosts) if host.name}
    for (source, target), column in conditions.bandwidth.items():
        if source in at and target in at:
            pairs[:, at[source], at[target]] = column
    regions = [host.type.region for host in deployment.hosts]
    return flow_limits(problem.edges, deployment.instances, pairs, problem.record_bytes, regions)


def value_of(problem: Problem, active: Sequence[int]) -> float:
    """Return the normalised application value of the options `active` (4.3)."""
    values = [options[each].value for options, each in zip(problem.options, active, strict=True)]
    counted = [value for value, counts in zip(values, problem.counted.tolist(), strict=True) if counts]
    return application_value(counted, problem.branches)


def cost_of(problem: Problem, deployment: Deployment, conditions: Conditions) -> float:
    """Return the money of the whole period (4.2): for hosts that stay, hosts released now, and hosts released before."""
    end = max(conditions.began + problem.goal.period, conditions.time)
    names = {host.name for host in deployment.hosts if host.name}
    spent = [paid(host, conditions.began, end) for host in deployment.hosts]
    spent += [paid(host, conditions.began, conditions.time) for host in conditions.leased if host.name not in names]
    return conditions.paid + math.fsum(spent)


def paid(host: Host, since: float, until: float) -> float:
    """Return the money for units of `host` that begin between two times."""
    if until <= host.since:
        return 0.0
    billing = host.type.billing
    before = billing.units(since - host.since) if since > host.since else 0
    return (billing.units(until - host.since) - before) * host.type.price


def score(problem: Problem, deployment: Deployment, conditions: Conditions) -> Score:
    rates = throughput(
        problem,
        deployment.active,
        capacities(problem, deployment, conditions),
        conditions,
        limits(problem, deployment, conditions),
    )
    value = value_of(problem, deployment.active)
    cost = cost_of(problem, deployment, conditions)
    return Score(rates.application, rates.relative, value, cost, profit_of(problem, conditions, value, cost))


def profit_of(problem: Problem, conditions: Conditions, value: float, cost: float) -> float:
    """Return the profit of the whole period (4.8), with `value` for the rest of it."""
    passed = 0.0 if math.isnan(conditions.value) else min(conditions.time - conditions.began, problem.goal.period)
    earlier = conditions.value if passed > 0 else 0.0
    mean = (earlier * passed + value * (problem.goal.period - passed)) / problem.goal.period
    return problem.line.profit(mean, cost)


def power(type: HostType) -> float:
    return type.cores * type.speed


def rate_of(type: HostType) -> float:
    """Return the price of a host of `type` (money/h)."""
    return type.price_rate * HOUR


def largest(types: Sequence[HostType]) -> HostType | None:
    """Return the largest type (Algorithm 3, line 14); ties by price, then name."""
    return min(types, key=lambda t: (-power(t), rate_of(t), t.name), default=None)


@dataclass
class Bin:
    """Host to lease, with its instances of each operator; without any where cores are shared."""

    type: HostType
    counts: Integers
    cores: float
    memory: float

    @classmethod
    def empty(cls, type: HostType, operators: int) -> "Bin":
        return cls(type, np.zeros(operators, dtype=np.int64), type.cores, type.memory)

    def room(self, cores: float, memory: float) -> int:
        by_cores = (self.cores + ROUNDING) / cores if cores > 0 else math.inf
        by_memory = (self.memory + ROUNDING) / memory if memory > 0 else math.inf
        return max(0, math.floor(min(by_cores, by_memory, 1e9)))

    def put(self, operator: int, count: int, cores: float, memory: float) -> None:
        self.counts[operator] += count
        self.cores -= count * cores
        self.memory -= count * memory


def packed(problem: Problem, order: Sequence[int], needs: Floats, least: Integers, most: int) -> tuple[Bin, ...] | None:
    """Return the cheapest, then fewest hosts that give operators `needs`, or None.

    Args:
        order: Operators in packing order, so that neighbours share hosts.
        needs: Cores of speed 1 of each operator; with shared cores their sum, shape (1,).
    """
    sizes = sorted(_worth_asking(problem.types), key=lambda t: (-power(t), rate_of(t), t.name))
    rates = [rate_of(kind) / power(kind) for kind in sizes]
    best: tuple[float, int, tuple[Bin, ...]] | None = None
    for first in range(len(sizes)):
        chosen, rest, few = list[Bin](), needs, least
        for number in range(first, len(sizes)):
            all_of_it = _filled(problem, order, rest, few, sizes[number], most - len(chosen))
            if all_of_it is not None:
                bins = (*chosen, *all_of_it)
                if (
                    best is None
                    or (_price(bins), len(bins)) < (best[0] - ROUNDING, best[1])
                    or (_price(bins) < best[0] + ROUNDING and len(bins) < best[1])
                ):
                    best = _price(bins), len(bins), bins
            if rates[number] <= min(rates[number:]) + ROUNDING:
                chosen += _filled(problem, order, rest, few, sizes[number], most - len(chosen), full=True) or ()
                rest, few = _unmet(problem, needs, least, chosen)
            if best is not None and _price(chosen) > best[0]:
                break
    return None if best is None else best[2]


def _worth_asking(types: Sequence[HostType]) -> list[HostType]:
    def at_least(a: HostType, b: HostType) -> bool:
        return a.cores >= b.cores and a.memory >= b.memory and a.speed >= b.speed and rate_of(a) <= rate_of(b)

    named = sorted(types, key=lambda t: t.name)
    return [
        each
        for place, each in enumerate(named)
        if not any(
            at_least(other, each) and (not at_least(each, other) or before < place)
            for before, other in enumerate(named)
            if other is not each
        )
    ]


def _filled(
    problem: Problem,
    order: Sequence[int],
    needs: Floats,
    least: Integers,
    type: HostType,
    most: int,
    *,
    full: bool = False,
) -> list[Bin] | None:
    """Return hosts of `type` with instances for `needs`; full ones only with `full`."""
    if problem.shared:
        hosts = float(needs[0]) / power(type)
        count = math.floor(hosts + ROUNDING) if full else math.ceil(hosts - ROUNDING)
        return None if count > most else [Bin.empty(type, len(problem.operators)) for _ in range(max(0, count))]
    smallest = _smallest(problem)
    bins, open_ones = list[Bin](), list[Bin]()
    for operator in order:
        if not problem.placed[operator]:
            continue
        cores, memory = float(problem.cores[operator]), float(problem.memory[operator])
        exact = float(needs[operator]) / (type.speed * float(problem.per_instance[operator]))
        count = math.floor(exact + ROUNDING) if full else max(int(least[operator]), math.ceil(exact - ROUNDING))
        while count > 0:
            into = next((one for one in open_ones if one.room(cores, memory)), None)
            if into is None:
                into = Bin.empty(type, len(problem.operators))
                if not into.room(cores, memory) or len(bins) >= most:
                    return None
                bins.append(into)
                open_ones.append(into)
            put = min(count, into.room(cores, memory))
            into.put(operator, put, cores, memory)
            count -= put
            open_ones = [one for one in open_ones if one.room(*smallest)]
    return [one for one in bins if not one.room(*smallest)] if full else bins


def _smallest(problem: Problem) -> tuple[float, float]:
    placed = problem.placed
    return float(problem.cores[placed].min(initial=math.inf)), float(problem.memory[placed].min(initial=math.inf))


def _unmet(problem: Problem, needs: Floats, least: Integers, bins: Sequence[Bin]) -> tuple[Floats, Integers]:
    if problem.shared:
        return np.maximum(needs - math.fsum([power(each.type) for each in bins]), 0.0), least
    if not bins:
        return needs, least
    counts = np.array([each.counts for each in bins])
    speeds = np.array([each.type.speed for each in bins])
    capacity = (speeds @ counts) * problem.per_instance
    return np.maximum(needs - capacity, 0.0), np.maximum(least - counts.sum(axis=0), 0)


def _price(bins: Sequence[Bin]) -> float:
    return math.fsum([rate_of(each.type) for each in bins])
