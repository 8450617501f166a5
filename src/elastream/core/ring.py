"""Rings of hosts: owners of an operator's keys, from a host's token in [0, 1) to the next one clockwise (thesis, 6.4)."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastream.errors import InputError

# So few buckets of `owners`' table then hold a token that searching in those is cheap.
BUCKETS_PER_NODE = 64
# Keys looked up together: intermediate arrays stay in the processor's cache.
KEYS_PER_BLOCK = 1 << 14


@dataclass(frozen=True)
class Ring:
    """Hosts in the order of tokens: `Ring({"h1": 0.0, "h2": 0.5})`. Immutable.

    Raises:
        InputError: No host, a token outside [0, 1), or equal tokens.
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
        named = tuple(nodes)
        return cls({node: number / len(named) for number, node in enumerate(named)})

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.tokens)

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {node: place for place, node in enumerate(self.nodes)}

    @cached_property
    def _values(self) -> NDArray[np.float64]:
        return np.fromiter(self.tokens.values(), dtype=np.float64, count=len(self))

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        """Return the owner of each of 2^b equal buckets; -1 if a token lies within."""
        size = 1 << max(10, math.ceil(math.log2(BUCKETS_PER_NODE * len(self))))
        begins = np.arange(size) / size
        owners = self._searched(begins)
        within = np.floor(self._values * size).astype(np.int64)
        owners[within[self._values > begins[within]]] = -1
        return owners

    def _searched(self, keys: NDArray[np.float64]) -> NDArray[np.int64]:
        owners: NDArray[np.int64] = np.searchsorted(self._values, keys, side="right") - 1
        owners[owners < 0] = len(self) - 1  # before the first token the last host's interval goes on
        return owners

    def owners(self, keys: ArrayLike) -> NDArray[np.int64]:
        """Return the owner's index in `nodes` for each key, in O(1) per key.

        Raises:
            InputError: A key is outside [0, 1).
        """
        values = np.asarray(keys, dtype=np.float64)
        result = np.empty(values.shape, dtype=np.int64)
        points, owners, table = values.ravel(), result.reshape(-1), self._table
        for begin in range(0, points.size, KEYS_PER_BLOCK):
            part, of = points[begin : begin + KEYS_PER_BLOCK], owners[begin : begin + KEYS_PER_BLOCK]
            if not (part.min() >= 0 and part.max() < 1):
                raise InputError("a key lies outside [0, 1)")
            # A power of two, by which multiplication is exact: a key falls into the bucket that it lies in.
            np.take(table, (part * table.size).astype(np.int64), out=of, mode="clip")
            near = np.flatnonzero(of < 0)
            of[near] = self._searched(part[near])
        return result

    def owner(self, key: float) -> str:
        return self.nodes[int(self.owners([key])[0])]

    def interval(self, node: str) -> tuple[float, float]:
        """Return start and end of the keys of `node`; the end is smaller past 0."""
        return self.tokens[node], self.tokens[self._after(node)]

    def length(self, node: str) -> float:
        begin, end = self.interval(node)
        return (end - begin) % 1.0 or 1.0

    def _after(self, node: str, steps: int = 1) -> str:
        return self.nodes[(self._places[node] + steps) % len(self)]

    def before(self, node: str) -> str:
        """Return the neighbour counter-clockwise (section 6.6)."""
        return self._after(node, -1)

    def successors(self, node: str, r: int) -> tuple[str, ...]:
        """Return the next `r` hosts clockwise, which hold its replicas."""
        return tuple(self._after(node, step) for step in range(1, 1 + min(r, len(self) - 1)))

    def with_node(self, node: str, token: float) -> "Ring":
        """Return the ring with another host, or raise InputError."""
        if node in self.tokens:
            raise InputError(f"{node!r} is on the ring already")
        return Ring({**self.tokens, node: token})

    def at(self, node: str, token: float) -> "Ring":
        if node not in self.tokens:
            raise InputError(f"{node!r} is not on the ring")
        return Ring({**self.tokens, node: token})

    def without(self, node: str) -> "Ring":
        """Return the ring without `node`, whose keys and token go clockwise (Figs. 6.8, 6.9)."""
        if node not in self.tokens:
            raise InputError(f"{node!r} is not on the ring")
        if len(self) == 1:
            raise InputError(f"{node!r} is the last host of the ring")
        heir, token = self._after(node), self.tokens[node]
        return Ring({**{each: at for each, at in self.tokens.items() if each != node}, heir: token})

    def hosts_of(self, count: int) -> tuple[str, ...]:
        """Return the owner of each of `count` state partitions; partition i lies at i / count."""
        return tuple(self.nodes[owner] for owner in self.owners(np.arange(count) / count).tolist())

    def partitions(self, node: str, count: int) -> tuple[int, ...]:
        begin, end = self.interval(node)
        first, last = (_first_from(token, count) for token in (begin, end))
        owned = count if len(self) == 1 else last - first if begin < end else last - first + count
        return tuple((first + step) % count for step in range(owned))

    def survives(self, failed: Collection[str], r: int) -> bool:
        """Return True if no key is lost with `failed`: every host or one of its `r` successors remains."""
        gone = set(failed)
        return all(not gone.issuperset((node, *self.successors(node, r))) for node in self.nodes)


def _first_from(token: float, count: int) -> int:
    number = math.ceil(token * count)
    while number > 0 and (number - 1) / count >= token:
        number -= 1
    while number / count < token:
        number += 1
    return number


def in_zones(zones: Mapping[str, str]) -> tuple[str, ...]:
    """Return hosts in a ring order with neighbours in distinct fault zones, if possible (section 6.6).

    Hosts of one zone fail together, so replicas belong in others.

    Args:
        zones: Fault zone by host.
    """
    members: dict[str, list[str]] = {}
    for host, zone in zones.items():
        members.setdefault(zone, []).append(host)
    groups = sorted(members.values(), key=len, reverse=True)  # stable: zones as they first appear
    return min((_interleaved(groups), _in_turn(groups)), key=lambda order: _shared_zones([zones[host] for host in order]))


def _interleaved(groups: list[list[str]]) -> tuple[str, ...]:
    """Return zone after zone, largest first, on even positions and then odd ones."""
    hosts = [host for group in groups for host in group]
    places = [*range(0, len(hosts), 2), *range(1, len(hosts), 2)]
    return tuple(host for _, host in sorted(zip(places, hosts, strict=True)))


def _in_turn(groups: list[list[str]]) -> tuple[str, ...]:
    turns = max(map(len, groups), default=0)
    return tuple(group[turn] for turn in range(turns) for group in groups if turn < len(group))


def _shared_zones(zones: list[str]) -> tuple[int, ...]:
    """Count hosts that share the zone of the host 1, 2, ... positions further."""
    size = len(zones)
    return tuple(sum(zones[i] == zones[(i + step) % size] for i in range(size)) for step in range(1, size))
