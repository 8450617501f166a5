"""Offers of a plan (leased hosts and types to lease), and the throughput of many plans at once."""

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
    """Best plan of a search, or None.

    bound: highest possible profit of a feasible plan (-inf: none is feasible; inf: unknown). optimal: the bound proves
    the plan. looked_at: partial plans examined.
    """

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


MANY = 100_000  # instances on a host if they take none of it


@dataclass(frozen=True)
class HostOffer:
    """Hosts of one kind in a plan.

    host: its name; empty until leased. speed: of a core now. cost: money each adds to the period (`coming`). most: their
    number at most. fits: instances of each operator alone, shape (operators,).
    """

    host: Host
    speed: float
    cost: float
    most: int
    fits: Integers

    @property
    def type(self) -> HostType:
        return self.host.type


def fits(problem: Problem, type: HostType) -> Integers:
    """Return instances of each operator that a host of `type` holds alone; shape (operators,)."""
    room = np.full(len(problem.operators), float(MANY))
    for needs, has in ((problem.cores, type.cores), (problem.memory, type.memory)):
        room = np.minimum(room, np.floor(np.divide(has, needs, out=np.full_like(room, MANY), where=needs > 0) + ROUNDING))
    return np.where(problem.placed, room, 0).astype(np.int64)


def coming(problem: Problem, conditions: Conditions) -> float:
    """Return the seconds that an adapting plan is made for: the longest billing time unit, within the period."""
    units = [kind.billing.unit for kind in (*problem.types, *(host.type for host in conditions.leased))]
    return min(max([conditions.seconds, *units]), problem.goal.period)


def offers(problem: Problem, conditions: Conditions, *, ahead: float | None = None) -> tuple[HostOffer, ...]:
    """Return the leased hosts one by one, then the types to lease.

    ahead: planned seconds; None: the rest. Raises InputError for conditions of several instants.
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
    """Return the money for `host` in the next `ahead` seconds beyond its paid time, over the whole period."""
    billing, passed = host.type.billing, now - host.since
    left = billing.units(passed) * billing.unit - passed if host.name else 0.0
    units = max(0.0, ahead - left) / billing.unit if host.name else billing.units(ahead)
    return units * host.type.price * problem.goal.period / ahead


def numbers_fixed(problem: Problem, current: Deployment | None) -> tuple[int | None, ...]:
    """Return the fixed number of instances by operator, None if free."""
    now = np.ones(len(problem.operators)) if current is None else current.instances.sum(axis=0)
    return tuple(max(1, int(count)) if fixed else None for count, fixed in zip(now, problem.fixed, strict=True))


def equal_sizes(problem: Problem, types: Sequence[HostType]) -> bool:
    """Return True if instances of all operators are of equal size on each of `types`."""
    sizes, memory = problem.cores[problem.placed], problem.memory[problem.placed]
    if not sizes.size:
        return True
    if not (sizes > 0).all():
        return False
    enough = all(np.floor(type.cores / sizes[0] + ROUNDING) * memory.max() <= type.memory + ROUNDING for type in types)
    return bool((sizes == sizes[0]).all()) and enough


def selected(problem: Problem, choices: Integers) -> tuple[Floats, Floats]:
    """Return costs and selectivities of the options `choices`, shape (operators, plans)."""
    width = max(len(each) for each in problem.options)
    costs, selectivities = np.zeros((len(problem.options), width)), np.zeros((len(problem.options), width))
    for row, each in enumerate(problem.options):
        costs[row, : len(each)] = [option.cost for option in each]
        selectivities[row, : len(each)] = [option.selectivity for option in each]
    rows = np.arange(len(problem.options))[:, None]
    return costs[rows, choices], selectivities[rows, choices]


def possible_rates(problem: Problem, conditions: Conditions, selectivities: Floats) -> Floats:
    """Return records/s at each operator if nothing limits; shape (operators, plans)."""
    external = _external_rates(problem, conditions)
    found = np.zeros(selectivities.shape)
    sent = np.zeros(selectivities.shape)
    for rows in problem.network.levels:
        found[rows] = external[rows] + problem.network.weights[rows] @ sent
        sent[rows] = found[rows] * selectivities[rows]
    return found


def relative_throughput(
    problem: Problem,
    conditions: Conditions,
    costs: Floats,
    selectivities: Floats,
    capacity: Floats,
    possible: Floats | None = None,
) -> Floats:
    """Return the relative throughput (4.4 to 4.7) of N plans in one instant; shape (N,).

    As `core.qos.flows` without links. Arrays have shape (operators, N). capacity: cores (speed 1), all if shared.
    possible: from `possible_rates`.
    """
    if possible is None:
        possible = possible_rates(problem, conditions, selectivities)
    if problem.shared:
        work = possible * costs
        total = work.sum(axis=0)
        capacity = capacity * np.divide(work, total, out=np.ones_like(work), where=total > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        served = np.where(costs > 0, capacity / costs, np.inf)
    external = _external_rates(problem, conditions)
    taken, sent = np.zeros(possible.shape), np.zeros(possible.shape)
    for rows in problem.network.levels:
        taken[rows] = np.minimum(external[rows] + problem.network.weights[rows] @ sent, served[rows])
        sent[rows] = taken[rows] * selectivities[rows]
    ends = problem.network.outputs
    reachable = possible[ends] > 0
    parts = np.minimum(np.divide(taken[ends], possible[ends], out=np.ones_like(taken[ends]), where=reachable), 1.0)
    counts = reachable.sum(axis=0)
    total = np.where(reachable, parts, 0.0).sum(axis=0)
    found: Floats = np.divide(total, counts, out=np.ones_like(total), where=counts > 0)
    return found


def _external_rates(problem: Problem, conditions: Conditions) -> Floats:
    """Return records/s from outside and from backlogs, shape (operators, 1)."""
    found = conditions.queues / conditions.seconds
    found[problem.sources] += conditions.rates[0]
    return np.asarray(found[:, None])


def least_capacity(problem: Problem, conditions: Conditions, costs: Floats, selectivities: Floats, least: float) -> Floats:
    """Return the least cores (speed 1) by operator for `least`, all others unlimited; shape (operators,).

    Shared: the common cores in each row. costs, selectivities: of one plan.
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
        enough = (
            relative_throughput(problem, conditions, prices, chosen, np.where(own, middle, np.inf), possible)
            >= least - ROUNDING
        )
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(problem.placed, high, 0.0)


def laid_out(
    problem: Problem, active: Sequence[int], chosen: Sequence[tuple[HostOffer, int, Integers]]
) -> Deployment | None:
    """Return a plan of hosts with the given instances; None if one does not fit.

    chosen: offers, numbers of hosts, and instances on all of them. Hosts get proportional mixes, so that neighbours in
    the dataflow are close.
    """
    hosts: list[Host] = []
    rows: list[Integers] = []
    even = equal_sizes(problem, [offer.type for offer, _, _ in chosen])
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
    """Yield operators in placement order: proportional to their numbers."""
    turns = [
        ((number + 0.5) / count, operator) for operator, count in enumerate(instances.tolist()) for number in range(count)
    ]
    sizes = (problem.cores + problem.memory * ROUNDING) * by_size
    for _, operator in sorted(turns, key=lambda turn: (-sizes[turn[1]], turn)):
        yield operator
