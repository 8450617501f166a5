"""Operator managers propose instances; application managers grant them and return hosts (E2DF, section 4.2)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.e2df.snapshot import Booleans, Identities, Snapshot, ranks
from elastream.sharing.holder import Holder, claim
from elastream.sharing.messages import Claim
from elastream.units import ROUNDING

# Steps of utilisation: differences below a percent are measurement noise.
LEVELS = 100
# Host row of a new instance that the plant places.
ANYWHERE = -1


@dataclass(frozen=True, slots=True)
class OperatorRules:
    """Rules of operator managers.

    Args:
        scale_out: Utilisation above which an operator gets an instance (S_s-out; paper: 0.7).
        scale_in: Fraction of it below which an instance goes (c; paper: 0.75).
    """

    scale_out: float = 0.7
    scale_in: float = 0.75
    seed: int = 0


@dataclass(frozen=True)
class Proposals:
    operator: Integers
    change: Integers  # +1 or -1
    instances: Integers  # number after the change
    host: Integers  # row of the host for a new instance, or `ANYWHERE`
    instance: Integers  # row of the instance to remove, -1 for scale-out
    utilisation: Floats  # of the most used instance
    stuck: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # operators that find no host to grow on

    def __len__(self) -> int:
        return len(self.operator)


def propose(rules: OperatorRules, snapshot: Snapshot, owner: Integers, withheld: Booleans) -> Proposals:
    """Return the proposals of all operator managers.

    Scales out if an instance is used above S_s-out, to the least used host with a free slot in its region. Scales in if the
    total utilisation over n - 1 instances stays below c S_s-out; as in the paper, one of the two most used goes, at random.
    Unknown utilisation triggers neither.
    """
    instances, operators = snapshot.instances, snapshot.operators
    count = np.bincount(instances.operator, minlength=len(operators.names))
    present = np.flatnonzero(count)
    used = instances.utilisation
    order = np.lexsort((np.where(np.isnan(used), -1.0, used), instances.operator))
    last = np.cumsum(count[present]) - 1
    top = order[last]
    second = order[np.maximum(last - 1, 0)]
    total = np.bincount(instances.operator, used, minlength=len(operators.names))[present]
    n = count[present]
    grows = instances.above(rules.scale_out)[top]
    with np.errstate(divide="ignore", invalid="ignore"):
        shrinks = ~grows & (n > 1) & (total / (n - 1) < rules.scale_in * rules.scale_out)

    host = _least_used(snapshot, present[grows], instances.host[top[grows]], owner, withheld)
    placed = (host >= 0) | (instances.host[top[grows]] < 0)
    out = np.flatnonzero(grows)[placed]
    shrinking = np.flatnonzero(shrinks)
    pick = _chance(operators.identity[present[shrinking]], rules.seed, snapshot.time) % np.uint64(2)
    leaving = np.where(pick == 0, top[shrinking], second[shrinking])
    both = np.concatenate([out, shrinking])
    return Proposals(
        present[both],
        np.repeat(np.array([1, -1]), [len(out), len(shrinking)]),
        n[both] + np.repeat(np.array([1, -1]), [len(out), len(shrinking)]),
        np.concatenate([host[placed], np.full(len(shrinking), ANYWHERE)]),
        np.concatenate([np.full(len(out), -1), leaving]),
        used[top[both]],
        present[grows][~placed],
    )


def _least_used(snapshot: Snapshot, rows: Integers, beside: Integers, owner: Integers, withheld: Booleans) -> Integers:
    """Return the least used open host in the region of `beside`; among equals, the operator's identity chooses."""
    hosts, operators = snapshot.hosts, snapshot.operators
    regions = len(snapshot.regions)
    open_ = np.flatnonzero(hosts.up & ~withheld & (owner >= 0) & (snapshot.free > 0))
    level = np.where(np.isnan(hosts.cpu[open_]), LEVELS + 1, np.floor(hosts.cpu[open_] * LEVELS)).astype(np.int64)
    group = owner[open_] * regions + hosts.region[open_]
    # One sorted key: by application and region, within it by how much a host is used; unknown comes last.
    key = group * (LEVELS + 2) + np.minimum(level, LEVELS + 1)
    order = np.argsort(key, kind="stable")
    key, open_ = key[order], open_[order]
    chosen = np.full(len(rows), ANYWHERE, dtype=np.int64)
    placed = np.flatnonzero(beside >= 0)
    if not len(open_) or not len(placed):
        return chosen
    keys = (operators.application[rows[placed]] * regions + hosts.region[beside[placed]]) * (LEVELS + 2)
    first = np.searchsorted(key, keys, side="left")
    any_ = (first < len(key)) & (key[np.minimum(first, len(key) - 1)] < keys + LEVELS + 2)
    first, placed = first[any_], placed[any_]
    equal = np.searchsorted(key, key[first], side="right") - first
    turn = (operators.identity[rows[placed]] % equal.astype(np.uint64)).astype(np.int64)
    chosen[placed] = open_[first + turn]
    return chosen


def _chance(identity: Identities, seed: int, time: float) -> Identities:
    step = np.uint64((seed * 0x9E3779B97F4A7C15 + round(time * 1000) * 0xD1B54A32D192ED03) % 2**64)
    with np.errstate(over="ignore"):
        x = identity * np.uint64(0xBF58476D1CE4E5B9) + step
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class ApplicationRules:
    """Rules of application managers.

    Args:
        tokens: Reconfigurations allowed at once; inf for no limit.
        settle: Time for which a granted placement counts before it is observed (s).
    """

    tokens: float = math.inf
    window: float = 60.0
    settle: float = 120.0


class Refusal(IntEnum):
    GRANTED = 0
    TAKEN = 1
    CRITICAL = 2
    TOKENS = 3

    @property
    def reason(self) -> str:
        """Text of the reason; empty if granted."""
        return ("", "the host was just given to another replica", "the response time is over its target",
                "as much was reconfigured lately as is allowed")[self]  # fmt: skip


@dataclass(frozen=True)
class Application(Holder):
    tokens: float = math.inf  # reconfigurations it may grant as of `refilled`
    refilled: float = 0.0
    granted: Mapping[str, float] = field(default_factory=dict)  # time of the last granted placement by host


@dataclass(frozen=True)
class Grants:
    """A `Refusal` for each row of `Proposals`."""

    proposals: Proposals
    refusals: Integers

    @property
    def granted(self) -> Booleans:
        return np.asarray(self.refusals == Refusal.GRANTED)


@dataclass(frozen=True, slots=True)
class Shift:
    """Move of an instance (row) off a host that must be left, to another host (row)."""

    instance: int
    host: int


def initial_placement(operators: Sequence[str], hosts: Sequence[str]) -> dict[str, str]:
    """Return a host for each operator's first instance, spread evenly over `hosts` (the R_init hosts)."""
    return {operator: hosts[number % len(hosts)] for number, operator in enumerate(operators)} if hosts else {}


def refilled(rules: ApplicationRules, applications: Sequence[Application], now: float) -> Floats:
    if math.isinf(rules.tokens):
        return np.full(len(applications), math.inf)
    return np.array([min(rules.tokens, a.tokens + (now - a.refilled) * rules.tokens / rules.window) for a in applications])


def grant(snapshot: Snapshot, proposals: Proposals, tokens: Floats) -> Grants:
    """Return the verdicts of all application managers.

    Refuses scale-in while the response time is over target, scale-out to a host without a slot left ("an already used
    resource"), and changes beyond the tokens. The most used operator comes first.

    Args:
        tokens: Reconfigurations that each application may still do.
    """
    application = snapshot.operators.application[proposals.operator]
    refusals = np.zeros(len(proposals), dtype=np.int64)
    refusals[(proposals.change < 0) & snapshot.critical[application]] = Refusal.CRITICAL
    # Operators tie where all are saturated; their identity, not their row, decides then.
    identity = snapshot.operators.identity[proposals.operator]
    order = np.lexsort((identity, -proposals.utilisation, -proposals.change))
    asks = order[proposals.host[order] >= 0]
    late = ranks(proposals.host[asks]) >= snapshot.free[proposals.host[asks]]
    refusals[asks[late]] = Refusal.TAKEN
    alive = order[refusals[order] == Refusal.GRANTED]
    over_tokens = ranks(application[alive]) >= np.floor(tokens[application[alive]] + ROUNDING)
    refusals[alive[over_tokens]] = Refusal.TOKENS
    return Grants(proposals, refusals)


def move_off(snapshot: Snapshot, rows: Iterable[int], usable: Integers, free: Integers) -> tuple[Shift, ...]:
    """Return moves off hosts `rows`, to the least used of `usable`, their region first; whole hosts or nothing."""
    hosts = snapshot.hosts
    order, first = snapshot.by_host
    cpu = np.where(np.isnan(hosts.cpu[usable]), 1.0, hosts.cpu[usable])
    usable = usable[np.argsort(cpu, kind="stable")]
    shifts: list[Shift] = []
    for row in rows:
        instances = order[first[row] : first[row + 1]]
        here = hosts.region[usable] == hosts.region[row]
        near_first = np.concatenate([usable[here], usable[~here]])
        slots = np.repeat(near_first, free[near_first])[: len(instances)]
        if len(slots) == len(instances):
            np.subtract.at(free, slots, 1)
            shifts += [Shift(*pair) for pair in zip(instances.tolist(), slots.tolist(), strict=True)]
    return tuple(shifts)


def answer(
    rules: ApplicationRules,
    application: Application,
    now: float,
    occupied: frozenset[str],
    critical: bool,
    spare: tuple[tuple[str, int], ...] = (),
) -> tuple[Application, Claim]:
    """Return the application's next claim, without requested hosts that it no longer uses.

    A critical application refuses to leave occupied hosts.
    """
    granted = {host: at for host, at in application.granted.items() if now - at < rules.settle}
    needed = {host for host in application.leave if host in occupied or host in granted}
    gone = application.leave.keys() - needed
    refused = tuple(sorted(needed)) if critical else ()
    return claim(replace(application, granted=granted), gone, refused=refused, critical=critical, spare=spare)
