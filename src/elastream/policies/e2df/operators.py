"""The operator manager: when one operator would have a replica more or less, and where (E2DF, section 4.2).

It sees the utilisation of its own replicas and the hosts of their region that its application may use; it proposes and
never acts. Written over columns for all operators at once. Which proposals are granted is `applications`'.
"""

from dataclasses import dataclass, field

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.e2df.columns import Booleans, Identities, Snapshot

LEVELS = 100
"""Hosts whose utilisation differs by less than a percent are equally used: less than that is noise of the measurement."""
ANYWHERE = -1
"""Host of a new replica that the plant places by itself."""


@dataclass(frozen=True, slots=True)
class OperatorRules:
    """scale_out: S_s-out (paper: 0.7). scale_in: c, the fraction of it below which a replica goes (paper: 0.75)."""

    scale_out: float = 0.7
    scale_in: float = 0.75
    seed: int = 0


@dataclass(frozen=True)
class Proposals:
    """Proposals as columns. operator: row. change: +1 or -1. replicas: what it would have in all.

    host: row of the host for a new replica, `ANYWHERE` where the plant places it. replica: row of the one to remove, -1 for
    a scale-out. utilisation: of the most used replica. stuck: operators that would grow, were there a host for it.
    """

    operator: Integers
    change: Integers
    replicas: Integers
    host: Integers
    replica: Integers
    utilisation: Floats
    stuck: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.operator)


def propose(rules: OperatorRules, snapshot: Snapshot, owner: Integers, withheld: Booleans) -> Proposals:
    """What all operator managers propose.

    owner: row of the application that may place on each host, -1 for none; withheld: hosts closed to placements; both of
    shape (hosts,).

    A replica more where one is used above S_s-out (`Replicas.above`). One less where the sum over all n, divided by n - 1,
    stays below c S_s-out; not both. An unknown utilisation is above and below nothing. The new replica goes to the least
    used host of the region of the most used replica that has a free slot; of equally used ones the operator takes the one
    that its own identity picks, so that operators which cannot see each other do not all ask for the same. The one to go
    is, as in the paper, one of the two most used, at random: the same at random for the same operator, seed and time.
    """
    replicas, operators = snapshot.replicas, snapshot.operators
    count = np.bincount(replicas.operator, minlength=len(operators.names))
    there = np.flatnonzero(count)
    used = replicas.utilisation
    order = np.lexsort((np.where(np.isnan(used), -1.0, used), replicas.operator))
    last = np.cumsum(count[there]) - 1
    top = order[last]
    second = order[np.maximum(last - 1, 0)]
    total = np.bincount(replicas.operator, used, minlength=len(operators.names))[there]
    n = count[there]
    grows = replicas.above(rules.scale_out)[top]
    with np.errstate(divide="ignore", invalid="ignore"):
        shrinks = ~grows & (n > 1) & (total / (n - 1) < rules.scale_in * rules.scale_out)

    host = _least_used(snapshot, there[grows], replicas.host[top[grows]], owner, withheld)
    placed = (host >= 0) | (replicas.host[top[grows]] < 0)
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
    """By operator of `rows`: the least used open host of its application in the region of host `beside`; -1 where none."""
    hosts, operators = snapshot.hosts, snapshot.operators
    regions = len(snapshot.regions)
    open_ = np.flatnonzero(hosts.up & ~withheld & (owner >= 0) & (snapshot.free > 0))
    level = np.where(np.isnan(hosts.cpu[open_]), LEVELS + 1, np.floor(hosts.cpu[open_] * LEVELS)).astype(np.int64)
    group = owner[open_] * regions + hosts.region[open_]
    # One sorted key: by application and region, within it by how much a host is used; unknown comes last.
    key = group * (LEVELS + 2) + np.minimum(level, LEVELS + 1)
    order = np.argsort(key, kind="stable")
    key, open_ = key[order], open_[order]
    found = np.full(len(rows), ANYWHERE, dtype=np.int64)
    placed = np.flatnonzero(beside >= 0)
    if not len(open_) or not len(placed):
        return found
    wanted = (operators.application[rows[placed]] * regions + hosts.region[beside[placed]]) * (LEVELS + 2)
    first = np.searchsorted(key, wanted, side="left")
    any_ = (first < len(key)) & (key[np.minimum(first, len(key) - 1)] < wanted + LEVELS + 2)
    first, placed = first[any_], placed[any_]
    equal = np.searchsorted(key, key[first], side="right") - first
    turn = (operators.identity[rows[placed]] % equal.astype(np.uint64)).astype(np.int64)
    found[placed] = open_[first + turn]
    return found


def _chance(identity: Identities, seed: int, time: float) -> Identities:
    """Random numbers by identity, seed and time (splitmix64): no operator's depends on who else is there."""
    step = np.uint64((seed * 0x9E3779B97F4A7C15 + round(time * 1000) * 0xD1B54A32D192ED03) % 2**64)
    with np.errstate(over="ignore"):
        x = identity * np.uint64(0xBF58476D1CE4E5B9) + step
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
