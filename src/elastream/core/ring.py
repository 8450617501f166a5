"""A ring of hosts: which of them owns which keys of an operator, and which hold copies of their state.

Thesis, section 6.4: every host has a token in [0, 1), and a key belongs to the nearest host counter-clockwise, so that a
host at token t owns [t, next token clockwise). Clockwise is towards greater tokens. A host that moves, comes or goes
changes the keys of its neighbours only, and can be moved as far as the load asks for: there are no virtual nodes.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastream.errors import InputError

BUCKETS_A_NODE = 64
"""Buckets of `owners`' table for each node, at least: so few hold a token that searching in those costs next to nothing."""
AT_A_TIME = 1 << 14
"""Keys that are looked up together: what comes in between stays in the processor's cache."""


@dataclass(frozen=True)
class Ring:
    """Hosts by token: `Ring({"h1": 0.0, "h2": 0.5})`. Immutable; kept in the order of the tokens.

    Raises InputError where it has no host, a token outside [0, 1), or two hosts at one token.
    """

    tokens: Mapping[str, float]

    def __post_init__(self) -> None:
        ordered = dict(sorted(self.tokens.items(), key=lambda each: each[1]))
        if not ordered:
            raise InputError("a ring has no host: it needs at least one")
        for node, token in ordered.items():
            if not 0 <= token < 1:
                raise InputError(f"the token of {node!r} is {token:g}; it must be at least 0 and below 1")
        nodes, values = list(ordered), list(ordered.values())
        if twice := [at for at in range(1, len(nodes)) if values[at] == values[at - 1]]:
            first = twice[0]
            raise InputError(f"{nodes[first - 1]!r} and {nodes[first]!r} are both at token {values[first]:g}")
        object.__setattr__(self, "tokens", ordered)

    def __hash__(self) -> int:
        return hash(tuple(self.tokens.items()))

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tokens)

    def __contains__(self, node: object) -> bool:
        return node in self.tokens

    @classmethod
    def even(cls, nodes: Iterable[str]) -> "Ring":
        """A ring of `nodes` in this order, with intervals of one length."""
        named = tuple(nodes)
        return cls({node: number / len(named) for number, node in enumerate(named)})

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The hosts clockwise, from the least token on."""
        return tuple(self.tokens)

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {node: place for place, node in enumerate(self.nodes)}

    @cached_property
    def _values(self) -> NDArray[np.float64]:
        return np.fromiter(self.tokens.values(), dtype=np.float64, count=len(self))

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        """Owner of each of 2^b equal buckets of [0, 1); -1 where a token lies within the bucket."""
        size = 1 << max(10, math.ceil(math.log2(BUCKETS_A_NODE * len(self))))
        begins = np.arange(size) / size
        found = self._searched(begins)
        within = np.floor(self._values * size).astype(np.int64)
        found[within[self._values > begins[within]]] = -1
        return found

    def _searched(self, keys: NDArray[np.float64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.searchsorted(self._values, keys, side="right") - 1
        found[found < 0] = len(self) - 1  # before the first token the last host's interval goes on
        return found

    def owners(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Number in `nodes` of the host that owns each of `keys`, in [0, 1); the same shape. O(1) a key.

        Raises InputError for a key outside [0, 1).
        """
        given = np.asarray(keys, dtype=np.float64)
        found = np.empty(given.shape, dtype=np.int64)
        points, owners, table = given.ravel(), found.reshape(-1), self._table
        for begin in range(0, points.size, AT_A_TIME):
            part, of = points[begin : begin + AT_A_TIME], owners[begin : begin + AT_A_TIME]
            if not (part.min() >= 0 and part.max() < 1):
                raise InputError("a key lies outside [0, 1)")
            # A power of two, by which multiplication is exact: a key falls into the bucket that it lies in.
            np.take(table, (part * table.size).astype(np.int64), out=of, mode="clip")
            near = np.flatnonzero(of < 0)
            of[near] = self._searched(part[near])
        return found

    def owner(self, key: float) -> str:
        """The host that owns `key`."""
        return self.nodes[int(self.owners([key])[0])]

    def interval(self, node: str) -> tuple[float, float]:
        """Where the keys of `node` begin and end; the end is below the beginning where they go through 0, and equal to it
        where it owns all."""
        return self.tokens[node], self.tokens[self._after(node)]

    def length(self, node: str) -> float:
        """Part of all keys that `node` owns."""
        begin, end = self.interval(node)
        return (end - begin) % 1.0 or 1.0

    def _after(self, node: str, steps: int = 1) -> str:
        return self.nodes[(self._places[node] + steps) % len(self)]

    def before(self, node: str) -> str:
        """The neighbour counter-clockwise, whom `node` watches (section 6.6); itself where it is alone."""
        return self._after(node, -1)

    def successors(self, node: str, r: int) -> tuple[str, ...]:
        """The next `r` hosts clockwise, nearest first, which hold copies of its state; all others where these are fewer."""
        return tuple(self._after(node, step) for step in range(1, 1 + min(r, len(self) - 1)))

    def with_node(self, node: str, token: float) -> "Ring":
        """With another host. Raises InputError where it is on the ring already, or another one is at that token."""
        if node in self.tokens:
            raise InputError(f"{node!r} is on the ring already")
        return Ring({**self.tokens, node: token})

    def at(self, node: str, token: float) -> "Ring":
        """With `node` at another token. Raises InputError where another host is at it."""
        if node not in self.tokens:
            raise InputError(f"{node!r} is not on the ring")
        return Ring({**self.tokens, node: token})

    def without(self, node: str) -> "Ring":
        """Without `node`: its keys go to its neighbour clockwise, its first backup, which takes its token (section 6.6,
        Figs. 6.8 and 6.9). Raises InputError for the last host."""
        if node not in self.tokens:
            raise InputError(f"{node!r} is not on the ring")
        if len(self) == 1:
            raise InputError(f"{node!r} is the last host of the ring")
        heir, token = self._after(node), self.tokens[node]
        return Ring({**{each: at for each, at in self.tokens.items() if each != node}, heir: token})

    def hosts_of(self, count: int) -> tuple[str, ...]:
        """The owner of each of `count` state partitions: number i lies at i / count, so that a token moves in steps of
        1 / count, and what a host owns is a contiguous range."""
        return tuple(self.nodes[owner] for owner in self.owners(np.arange(count) / count).tolist())

    def partitions(self, node: str, count: int) -> tuple[int, ...]:
        """Which of `count` state partitions `node` owns, clockwise from its token on."""
        begin, end = self.interval(node)
        first, last = (_first_from(token, count) for token in (begin, end))
        owned = count if len(self) == 1 else last - first if begin < end else last - first + count
        return tuple((first + step) % count for step in range(owned))

    def most_failures(self, r: int) -> int:
        """Most hosts that may fail at once and no key is lost, where no more than `r` are neighbours: n r / (r + 1)."""
        return max(0, min(len(self) * r // (r + 1), len(self) - 1))

    def survives(self, failed: Collection[str], r: int) -> bool:
        """Whether no key is lost where `failed` fail at once: of each host or one of its `r` successors is left."""
        gone = set(failed)
        return all(not gone.issuperset((node, *self.successors(node, r))) for node in self.nodes)


def _first_from(token: float, count: int) -> int:
    """The first of `count` partitions that lies at or behind `token`."""
    number = math.ceil(token * count)
    while number > 0 and (number - 1) / count >= token:
        number -= 1
    while number / count < token:
        number += 1
    return number


def in_zones(zones: Mapping[str, str]) -> tuple[str, ...]:
    """`zones` (fault zone by host) in an order round a ring in which neighbours are of distinct zones, where zones allow.

    Section 6.6: hosts of one zone fail together, so a copy is best kept in another. Neighbours can all differ where no zone
    has more than half of the hosts. Beyond neighbours, hosts two, three, ... apart differ as often as found.
    """
    members: dict[str, list[str]] = {}
    for host, zone in zones.items():
        members.setdefault(zone, []).append(host)
    groups = sorted(members.values(), key=len, reverse=True)  # stable: zones as they first appear
    return min((_dealt(groups), _in_turn(groups)), key=lambda order: _alike([zones[host] for host in order]))


def _dealt(groups: list[list[str]]) -> tuple[str, ...]:
    """Zone after zone, the largest first, onto every second place and then onto those between."""
    hosts = [host for group in groups for host in group]
    places = [*range(0, len(hosts), 2), *range(1, len(hosts), 2)]
    return tuple(host for _, host in sorted(zip(places, hosts, strict=True)))


def _in_turn(groups: list[list[str]]) -> tuple[str, ...]:
    """A host of each zone in turn."""
    turns = max(map(len, groups), default=0)
    return tuple(group[turn] for turn in range(turns) for group in groups if turn < len(group))


def _alike(zones: list[str]) -> tuple[int, ...]:
    """How many hosts are of the zone of the one 1, 2, ... places further; compared in this order."""
    size = len(zones)
    return tuple(sum(zones[i] == zones[(i + step) % size] for i in range(size)) for step in range(1, size))
