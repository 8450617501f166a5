"""Offers of a plan, hosts to lease and leased ones, and the throughput of many plans at a time."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.errors import InputError
from elastream.policies.value_cost.problem import Conditions, Deployment, Host, Problem, Score, cost_of, speeds_of
from elastream.units import ROUNDING


@dataclass(frozen=True)
class Optimum:
    """The best plan found. deployment, score: None where there is none. bound: no plan that reaches the throughput has a
    higher profit; -inf: none reaches it; inf: nothing is known of others. optimal: whether the bound proves the plan to be
    the best, or that there is none. seconds: it took. looked_at: partial plans that were looked at one by one."""

    deployment: Deployment | None
    score: Score | None
    bound: float
    optimal: bool
    seconds: float
    looked_at: int = 0

    @property
    def profit(self) -> float:
        """Profit of the plan; -inf without one."""
        return -math.inf if self.score is None else self.score.profit


MANY = 100_000
"""Instances that a host holds where they take none of it."""


@dataclass(frozen=True)
class HostOffer:
    """Hosts of one kind that a plan may have. host: its name is empty until it is leased. speed: of a core in the
    planned instant. cost: money that each adds to the period if it stays or is given back (see `coming`). most: their
    number at most. fits: int64, shape (operators,), instances of each operator that one can hold.
    """

    host: Host
    speed: float
    cost: float
    most: int
    fits: Integers

    @property
    def type(self) -> HostType:
        """The type of the hosts."""
        return self.host.type


def fits(problem: Problem, type: HostType) -> Integers:
    """Instances of each operator that a host of `type` can hold if it holds no other; shape (operators,)."""
    room = np.full(len(problem.operators), float(MANY))
    for needs, has in ((problem.cores, type.cores), (problem.memory, type.memory)):
        room = np.minimum(room, np.floor(np.divide(has, needs, out=np.full_like(room, MANY), where=needs > 0) + ROUNDING))
    return np.where(problem.placed, room, 0).astype(np.int64)


def coming(problem: Problem, conditions: Conditions) -> float:
    """Seconds that a plan is made for where conditions change: the longest billing time unit, no less than an instant and
    no more than the period. What is leased now is paid for so long, and what is saved is saved until another plan is made.
    """
    units = [kind.billing.unit for kind in (*problem.types, *(host.type for host in conditions.leased))]
    return min(max([conditions.seconds, *units]), problem.goal.period)


def offers(problem: Problem, conditions: Conditions, *, ahead: float | None = None) -> tuple[HostOffer, ...]:
    """Return the leased hosts one by one, then the types that can be leased.

    ahead: planned seconds; None: the rest of the period. Raises InputError for conditions of more than one instant.
    """
    if conditions.instants != 1:
        raise InputError(f"conditions of {conditions.instants} instants: one is planned for; give means of their rates")
    now = conditions.time
    new = tuple(Host("", type, type.speed, now, now + type.start) for type in problem.types)
    hosts = (*conditions.leased, *new)
    none = np.zeros((len(hosts), len(problem.operators)), dtype=np.int64)
    everything = Deployment((), hosts, none)
    speeds = speeds_of(everything, conditions)[0]
    given_back = cost_of(problem, Deployment((), (), none[:0]), conditions)
    return tuple(
        HostOffer(
            host,
            float(speed),
            cost_of(problem, Deployment((), (host,), none[:1]), conditions) - given_back
            if ahead is None
            else _beyond_paid(problem, host, now, ahead),
            1 if host.name else problem.max_hosts,
            fits(problem, host.type),
        )
        for host, speed in zip(hosts, speeds, strict=True)
    )


def _beyond_paid(problem: Problem, host: Host, now: float, ahead: float) -> float:
    """Money that `host` costs in the next `ahead` seconds beyond what is paid of it, if the whole period were like these.

    A host that is given back saves nothing before its paid time ends, one in its place is paid from its first moment.
    """
    billing, passed = host.type.billing, now - host.since
    left = billing.units(passed) * billing.unit - passed if host.name else 0.0
    units = max(0.0, ahead - left) / billing.unit if host.name else billing.units(ahead)
    return units * host.type.price * problem.goal.period / ahead


def numbers_fixed(problem: Problem, current: Deployment | None) -> tuple[int | None, ...]:
    """Instances that each operator is to have, None where that is free: of fixed ones as many as now, or one."""
    now = np.ones(len(problem.operators)) if current is None else current.instances.sum(axis=0)
    return tuple(max(1, int(count)) if fixed else None for count, fixed in zip(now, problem.fixed, strict=True))


def alike(problem: Problem, types: Sequence[HostType]) -> bool:
    """Whether instances of all operators take as much of each of `types`, so that any fill a host that are few enough."""
    sizes, memory = problem.cores[problem.placed], problem.memory[problem.placed]
    if not sizes.size:
        return True
    if not (sizes > 0).all():
        return False
    enough = all(np.floor(type.cores / sizes[0] + ROUNDING) * memory.max() <= type.memory + ROUNDING for type in types)
    return bool((sizes == sizes[0]).all()) and enough


def selected(problem: Problem, choices: Integers) -> tuple[Floats, Floats]:
    """Costs and selectivities of the options `choices`, shape (operators, plans); arrays of the same shape."""
    width = max(len(each) for each in problem.options)
    costs, selectivities = np.zeros((len(problem.options), width)), np.zeros((len(problem.options), width))
    for row, each in enumerate(problem.options):
        costs[row, : len(each)] = [option.cost for option in each]
        selectivities[row, : len(each)] = [option.selectivity for option in each]
    rows = np.arange(len(problem.options))[:, None]
    return costs[rows, choices], selectivities[rows, choices]


def possible_rates(problem: Problem, conditions: Conditions, selectivities: Floats) -> Floats:
    """Records/s that each operator takes of what comes and waits if nothing limits any; shape (operators, plans)."""
    given = _given(problem, conditions)
    found = np.zeros(selectivities.shape)
    sent = np.zeros(selectivities.shape)
    for rows in problem.network.levels:
        found[rows] = given[rows] + problem.network.weights[rows] @ sent
        sent[rows] = found[rows] * selectivities[rows]
    return found


def reached(
    problem: Problem,
    conditions: Conditions,
    costs: Floats,
    selectivities: Floats,
    capacity: Floats,
    possible: Floats | None = None,
) -> Floats:
    """Relative throughput of the application (4.4 to 4.7) of each of N plans, in one instant; shape (N,).

    costs, selectivities: by the options of each plan; capacity: cores of speed 1 by operator, where shared all of them; of
    shape (operators, N). possible: as from `possible_rates`. The equations are `core.qos.flows`'s, of plans instead of
    instants; no link limits anything here.
    """
    if possible is None:
        possible = possible_rates(problem, conditions, selectivities)
    if problem.shared:
        work = possible * costs
        total = work.sum(axis=0)
        capacity = capacity * np.divide(work, total, out=np.ones_like(work), where=total > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        served = np.where(costs > 0, capacity / costs, np.inf)
    given = _given(problem, conditions)
    taken, sent = np.zeros(possible.shape), np.zeros(possible.shape)
    for rows in problem.network.levels:
        taken[rows] = np.minimum(given[rows] + problem.network.weights[rows] @ sent, served[rows])
        sent[rows] = taken[rows] * selectivities[rows]
    ends = problem.network.outputs
    there = possible[ends] > 0
    parts = np.minimum(np.divide(taken[ends], possible[ends], out=np.ones_like(taken[ends]), where=there), 1.0)
    counts = there.sum(axis=0)
    total = np.where(there, parts, 0.0).sum(axis=0)
    found: Floats = np.divide(total, counts, out=np.ones_like(total), where=counts > 0)
    return found


def _given(problem: Problem, conditions: Conditions) -> Floats:
    """Records/s that come from outside and that wait, shape (operators, 1)."""
    found = conditions.queues / conditions.seconds
    found[problem.sources] += conditions.rates[0]
    return np.asarray(found[:, None])


def least_capacity(problem: Problem, conditions: Conditions, costs: Floats, selectivities: Floats, least: float) -> Floats:
    """Cores of speed 1 that each operator needs at least, with all others unlimited, for `least`; shape (operators,).

    costs, selectivities: of one plan, shape (operators,). Where shared: cores that all need together, in each row.
    """
    count = len(problem.operators)
    chosen = np.repeat(selectivities[:, None], count, axis=1)
    prices = np.repeat(costs[:, None], count, axis=1)
    possible = possible_rates(problem, conditions, chosen)
    if problem.shared:
        return np.full(count, least * float((possible[:, 0] * costs).sum()))
    low, high = np.zeros(count), possible[:, 0] * costs
    own = np.eye(count, dtype=np.bool_)
    # The throughput is concave and piecewise linear in one capacity: halving finds the least to 2^-60 of the most.
    for _ in range(60):
        middle = (low + high) / 2
        enough = reached(problem, conditions, prices, chosen, np.where(own, middle, np.inf), possible) >= least - ROUNDING
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(problem.placed, high, 0.0)


def laid_out(
    problem: Problem, active: Sequence[int], chosen: Sequence[tuple[HostOffer, int, Integers]]
) -> Deployment | None:
    """A plan of hosts that hold given instances; None where one instance found no place.

    chosen: offers, each with its number of hosts and the instances of each operator on all of them together. Instances of
    all operators go to each host in proportion, so that neighbours in the dataflow are near each other; the largest first
    where their sizes differ.
    """
    hosts: list[Host] = []
    rows: list[Integers] = []
    even = alike(problem, [offer.type for offer, _, _ in chosen])
    for offer, count, instances in chosen:
        held = np.zeros((count, len(problem.operators)), dtype=np.int64)
        cores, memory = np.full(count, offer.type.cores), np.full(count, offer.type.memory)
        for operator in _in_turn(problem, instances, by_size=not even):
            room = (cores >= problem.cores[operator] - ROUNDING) & (memory >= problem.memory[operator] - ROUNDING)
            if not room.any():
                return None
            host = int(room.argmax())
            held[host, operator] += 1
            cores[host] -= problem.cores[operator]
            memory[host] -= problem.memory[operator]
        hosts += [offer.host] * count
        rows += list(held)
    empty = np.zeros((0, len(problem.operators)), dtype=np.int64)
    return Deployment(tuple(active), tuple(hosts), np.array(rows, dtype=np.int64) if rows else empty)


def _in_turn(problem: Problem, instances: Integers, *, by_size: bool) -> Iterator[int]:
    """Operators in the order in which their `instances` are placed: in turn, in proportion to their numbers."""
    turns = [
        ((number + 0.5) / count, operator) for operator, count in enumerate(instances.tolist()) for number in range(count)
    ]
    sizes = (problem.cores + problem.memory * ROUNDING) * by_size
    for _, operator in sorted(turns, key=lambda turn: (-sizes[turn[1]], turn)):
        yield operator
