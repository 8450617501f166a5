"""Operator manager: proposes one instance more or less, and where (E2DF, section 4.2)."""

from dataclasses import dataclass, field

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.e2df.columns import Booleans, Identities, Snapshot

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
    """Proposals in columns."""

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

    Args:
        owner: Row of the application that may use each host, -1 for none.
        withheld: Hosts closed to placements.
    """
    instances, operators = snapshot.instances, snapshot.operators
    count = np.bincount(instances.operator, minlength=len(operators.names))
    there = np.flatnonzero(count)
    used = instances.utilisation
    order = np.lexsort((np.where(np.isnan(used), -1.0, used), instances.operator))
    last = np.cumsum(count[there]) - 1
    top = order[last]
    second = order[np.maximum(last - 1, 0)]
    total = np.bincount(instances.operator, used, minlength=len(operators.names))[there]
    n = count[there]
    grows = instances.above(rules.scale_out)[top]
    with np.errstate(divide="ignore", invalid="ignore"):
        shrinks = ~grows & (n > 1) & (total / (n - 1) < rules.scale_in * rules.scale_out)

    host = _least_used(snapshot, there[grows], instances.host[top[grows]], owner, withheld)
    placed = (host >= 0) | (instances.host[top[grows]] < 0)
    out = np.flatnonzero(grows)[placed]
    gone = np.flatnonzero(shrinks)
    pick = _chance(operators.identity[there[gone]], rules.seed, snapshot.time) % np.uint64(2)
    leaving = np.where(pick == 0, top[gone], second[gone])
    both = np.concatenate([out, gone])
    return Proposals(
        there[both],
        np.repeat(np.array([1, -1]), [len(out), len(gone)]),
        n[both] + np.repeat(np.array([1, -1]), [len(out), len(gone)]),
        np.concatenate([host[placed], np.full(len(gone), ANYWHERE)]),
        np.concatenate([np.full(len(out), -1), leaving]),
        used[top[both]],
        there[grows][~placed],
    )


def _least_used(snapshot: Snapshot, rows: Integers, beside: Integers, owner: Integers, withheld: Booleans) -> Integers:
    """Return the least used open host in the region of host `beside`; among equals, the operator's identity chooses."""
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
    """Return random numbers that no other operator affects (splitmix64)."""
    step = np.uint64((seed * 0x9E3779B97F4A7C15 + round(time * 1000) * 0xD1B54A32D192ED03) % 2**64)
    with np.errstate(over="ignore"):
        x = identity * np.uint64(0xBF58476D1CE4E5B9) + step
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
