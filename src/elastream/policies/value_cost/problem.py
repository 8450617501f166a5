"""Plans as values: alternates, hosts and instances that are scored without being enacted (thesis, 4.4 to 4.6).

The equations are `elastream.core.qos`'s. What a search asks often - capacity and throughput - costs no loop over hosts.
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

Over: TypeAlias = Literal["dynamic", "all"]
"""Operators that Eq. 4.3 counts: those with several alternates, as is compared with the thesis, or each."""


@dataclass(frozen=True, slots=True)
class Option:
    """An alternate as it may run now.

    name: empty where there is nothing to run: of sources and sinks. value: relative to the best of its operator (Eq. 4.1).
    cost: core-seconds of speed 1 per record. selectivity: records out per record in.
    """

    name: str
    value: float
    cost: float
    selectivity: float


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted: a share of the possible throughput, and the money at which a value breaks even.

    throughput, tolerance: the relative throughput that is to hold, and by how much it may be off. break_even_best,
    break_even_worst: money an hour at which the highest and the lowest value break even (4.9: C_max at Gamma_max and
    Gamma_min, over T); both or none: `reading.read` then takes them from the work of the first records. period: seconds
    over which profit is taken (T). over: the operators that Eq. 4.3 counts.

    Raises InputError for what nothing can be reached with.
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
        """Money an hour at which the highest value breaks even; 1 where none is given."""
        return 1.0 if self.break_even_best is None else self.break_even_best

    @property
    def worst(self) -> float:
        """Money an hour at which the lowest value breaks even; half of that of the highest where none is given."""
        return 0.5 if self.break_even_worst is None else self.break_even_worst

    @property
    def lowest(self) -> float:
        """The least relative throughput that is within the tolerance."""
        return self.throughput - self.tolerance


@dataclass(frozen=True)
class Problem:
    """What does not change while a plan is searched. Arrays are by operator, in the topological order of `operators`.

    options: alternates that may run now. edges, parts: shape (edges, 2) and (edges,): the live edges of the composition's
    branches, and the part of a record's emissions that goes over each. sources, outputs: rows of the operators that records
    come in by, and leave by. record_bytes: of an emitted record; NaN where unknown: such a stream is not limited by a link.
    placed: operators whose instances hold cores of a host (apart); the others run beside them. fixed: those of them whose
    number of instances stays. cores, memory: that one instance holds. dynamic: operators with several alternates, whether
    or not they may run now. branches: values of the branches that run, which Eq. 4.3 counts as they are. bounds: the least
    and the highest value of the dataflow with all its alternates (Gamma_min, Gamma_max). types: that can be leased.
    shared: tasks of all operators take turns on all cores (Spark), so that instances do
    not count; equal: each core then has as many records as the others, at most of the work, so that all wait for the
    slowest.
    """

    operators: tuple[str, ...]
    options: tuple[tuple[Option, ...], ...]
    edges: Integers
    parts: Floats
    sources: Integers
    outputs: Integers
    record_bytes: Floats
    placed: NDArray[np.bool_]
    fixed: NDArray[np.bool_]
    cores: Floats
    memory: Floats
    dynamic: NDArray[np.bool_]
    types: tuple[HostType, ...]
    goal: Goal
    branches: tuple[float, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    max_hosts: int = 1_000_000
    min_hosts: int = 1
    shared: bool = False
    equal: bool = False

    @cached_property
    def network(self) -> FlowNetwork:
        """The edges, made ready for Eqs. 4.4 to 4.7."""
        return FlowNetwork(len(self.operators), self.edges, self.parts, self.sources, self.outputs)

    @cached_property
    def row(self) -> Mapping[str, int]:
        """Row of each operator, by name."""
        return {name: row for row, name in enumerate(self.operators)}

    @cached_property
    def per_instance(self) -> Floats:
        """Cores of speed 1 that an instance works with on a host of speed 1; one that declares no cores uses one."""
        return np.where(self.cores > 0, self.cores, 1.0)

    @cached_property
    def line(self) -> BreakEven:
        """The line between break-even costs over the period, for Eqs. 4.8 and 4.9."""
        hours = self.goal.period / HOUR
        low, high = self.bounds
        return BreakEven(low, high, self.goal.worst * hours, self.goal.best * hours)

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Operators whose value Eq. 4.3 counts."""
        working = np.array([bool(options[0].name) for options in self.options], dtype=np.bool_)
        return self.dynamic if self.goal.over == "dynamic" else working

    @cached_property
    def reach(self) -> tuple[tuple[int, ...], ...]:
        """Rows that each operator sends to directly, in the order of `edges`."""
        found: list[list[int]] = [[] for _ in self.operators]
        for source, target in self.edges.tolist():
            found[source].append(target)
        return tuple(tuple(each) for each in found)

    def costs(self, active: Sequence[int]) -> Floats:
        """Core-seconds of speed 1 per record of the options `active`; shape (operators,)."""
        return np.array([options[each].cost for options, each in zip(self.options, active, strict=True)])

    def selectivities(self, active: Sequence[int]) -> Floats:
        """Records out per record in of the options `active`; shape (operators,)."""
        return np.array([options[each].selectivity for options, each in zip(self.options, active, strict=True)])


@dataclass(frozen=True, slots=True)
class Host:
    """A host of a plan. name: empty for one to be leased. speed: of a core. since: when it is leased, of one that is not,
    when it is to be. ready: when it takes instances. Times in seconds on the clock of the run."""

    name: str
    type: HostType
    speed: float
    since: float
    ready: float


@dataclass(frozen=True)
class Deployment:
    """A plan as a value. active: row of the option of each operator. instances: int64, shape (hosts, operators), zero where
    cores are shared. A host that is leased and not among `hosts` is given back."""

    active: tuple[int, ...]
    hosts: tuple[Host, ...]
    instances: Integers

    def switched(self, operator: int, option: int) -> "Deployment":
        """This, with another option of one operator."""
        return replace(self, active=(*self.active[:operator], option, *self.active[operator + 1 :]))


@dataclass(frozen=True)
class Conditions:
    """Rates, queues, speeds and links over T instants of `seconds` each, from `time` on.

    rates: records/s, shape (T, sources). queues: records that wait at `time`, shape (operators,). speeds: of the cores of a
    host by its name, shape (T,); others are as fast as `Host.speed` says. bandwidth: bytes/s from one host to another, by
    their names, shape (T,); of other pairs, what their types are rated at. steady: whether the conditions last, so that a
    host counts in full also where it is not ready yet; else from `Host.ready` on. lead: seconds before `time` from which on
    hosts may be leased, where the conditions are those of a later time: one that starts within them is ready at `time`.

    began: when the period began. value: mean application value from there to `time`; NaN: nothing is known, or no time has
    passed. leased: the hosts that are leased at `time`. paid: money spent in this period on hosts that are no longer
    leased.
    """

    rates: Floats
    queues: Floats
    seconds: float
    time: float = 0.0
    speeds: Mapping[str, Floats] = field(default_factory=dict)
    bandwidth: Mapping[tuple[str, str], Floats] = field(default_factory=dict)
    steady: bool = True
    lead: float = 0.0
    began: float = 0.0
    value: float = math.nan
    leased: tuple[Host, ...] = ()
    paid: float = 0.0

    @property
    def instants(self) -> int:
        """Number of instants, T."""
        return int(self.rates.shape[0])


@dataclass(frozen=True)
class Score:
    """What a plan comes to. throughput: relative, of the application, by instant, with what waits counted (4.7).
    by_operator: the same of each operator, shape (T, operators) (4.4). value: of the application while this plan runs
    (4.3). cost: money of the whole period if the plan stays to its end (4.2). profit: of the whole period (4.8)."""

    throughput: Floats
    by_operator: Floats
    value: float
    cost: float
    profit: float

    @property
    def mean(self) -> float:
        """Mean relative throughput of the application (Omega)."""
        return float(self.throughput.mean())

    def feasible(self, goal: Goal) -> bool:
        """Whether the mean relative throughput is within the goal's tolerance."""
        return self.mean >= goal.lowest - ROUNDING


def speeds_of(problem: Problem, deployment: Deployment, conditions: Conditions) -> Floats:
    """Speed of a core of each host in each instant, less the part of the instant in which it is not ready; shape (T, H)."""
    count = len(deployment.hosts)
    found = np.tile(np.array([host.speed for host in deployment.hosts], dtype=np.float64), (conditions.instants, 1))
    for column, host in enumerate(deployment.hosts):
        if host.name in conditions.speeds:
            found[:, column] = conditions.speeds[host.name]
    if not conditions.steady and count:
        ends = conditions.time + conditions.seconds * np.arange(1, conditions.instants + 1)
        ready = np.array([host.ready for host in deployment.hosts])
        found *= np.clip((ends[:, None] - ready) / conditions.seconds, 0.0, 1.0)
    return found


def capacities(problem: Problem, deployment: Deployment, conditions: Conditions) -> Floats:
    """Cores of speed 1 of each operator in each instant; shape (T, operators).

    Of one whose instances hold no core: inf. Where cores are shared: all cores, the same for each operator; `throughput`
    gives each its part of them. To plan one instance more on a host of speed s, add s * `problem.per_instance[operator]`
    to a copy of this; where shared, add its cores times its speed to all.
    """
    speeds = speeds_of(problem, deployment, conditions)
    if problem.shared:
        cores = np.array([host.type.cores for host in deployment.hosts], dtype=np.float64)
        slowest = speeds.min(axis=1, initial=np.inf, where=speeds > 0) if problem.equal else np.inf
        total: Floats = np.where(speeds > 0, np.minimum(speeds, np.expand_dims(slowest, -1)), 0.0) @ cores
        return np.repeat(total[:, None], len(problem.operators), axis=1)
    found: Floats = (speeds @ deployment.instances.reshape(-1, len(problem.operators))) * problem.per_instance
    found[:, ~problem.placed] = np.inf
    return found


def throughput(
    problem: Problem, active: Sequence[int], capacity: Floats, conditions: Conditions, bandwidth: Floats | None = None
) -> Flows:
    """Eqs. 4.4 to 4.7 of the options `active` with `capacity`, as from `capacities`; a step costs no loop over hosts.

    capacity: shape (T, operators) or (operators,). bandwidth: records/s by edge, shape (T, edges), as from `limits`; None:
    no limit.
    """
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
    """Records/s that the links let over each edge (4.5), shape (T, edges); None where no link limits anything."""
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
    """Normalised application value of the options `active` (4.3)."""
    values = [options[each].value for options, each in zip(problem.options, active, strict=True)]
    counted = [value for value, counts in zip(values, problem.counted.tolist(), strict=True) if counts]
    return application_value(counted, problem.branches)


def cost_of(problem: Problem, deployment: Deployment, conditions: Conditions) -> float:
    """Money of the whole period (4.2): of hosts kept to its end, of those given back now, and of those gone before."""
    end = max(conditions.began + problem.goal.period, conditions.time)
    kept = {host.name for host in deployment.hosts if host.name}
    spent = [paid(host, conditions.began, end) for host in deployment.hosts]
    spent += [paid(host, conditions.began, conditions.time) for host in conditions.leased if host.name not in kept]
    return conditions.paid + math.fsum(spent)


def paid(host: Host, since: float, until: float) -> float:
    """Money for `host` from `since` to `until`; units that began before are not of this time."""
    if until <= host.since:
        return 0.0
    billing = host.type.billing
    before = billing.units(since - host.since) if since > host.since else 0
    return (billing.units(until - host.since) - before) * host.type.price


def score(problem: Problem, deployment: Deployment, conditions: Conditions) -> Score:
    """What `deployment` comes to under `conditions`, without being enacted."""
    found = throughput(
        problem,
        deployment.active,
        capacities(problem, deployment, conditions),
        conditions,
        limits(problem, deployment, conditions),
    )
    value = value_of(problem, deployment.active)
    cost = cost_of(problem, deployment, conditions)
    return Score(found.application, found.relative, value, cost, profit_of(problem, conditions, value, cost))


def profit_of(problem: Problem, conditions: Conditions, value: float, cost: float) -> float:
    """Profit of the whole period (4.8) if the application has `value` for the rest of it and the period costs `cost`."""
    passed = 0.0 if math.isnan(conditions.value) else min(conditions.time - conditions.began, problem.goal.period)
    earlier = conditions.value if passed > 0 else 0.0
    mean = (earlier * passed + value * (problem.goal.period - passed)) / problem.goal.period
    return problem.line.profit(mean, cost)
