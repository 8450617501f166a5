"""Links between simulated hosts: their cost for travelling items, their traffic, and their observation.

With a trace, only links between neighbouring operators are observed (Kumbhare 2015, p. 67).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Frame, Integers
from elastream.core.metrics import Metric
from elastream.core.observation import UNMEASURED, Exchange
from elastream.dataflow.operators import Edge
from elastream.loads.links import LinkTrace
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.stations import Station

# Observations list pairs of at most this many hosts.
LINKS_UP_TO = 32


class Delays:
    """Mean latency (s) and link seconds per item, for each live edge.

    Items travel between any pair of instances with equal probability, and free within a host.
    """

    def __init__(self, size: Callable[[str], float]) -> None:
        self._size = size
        self._placement: tuple[int, ...] = ()
        self._edges: list[Edge] = []
        self._means: list[tuple[float, float]] = []
        self._weights: list[tuple[Floats, Floats]] = []

    def at(
        self,
        now: float,
        placement: tuple[int, ...],
        stations: Sequence[Station],
        live: Mapping[str, Sequence[Edge]],
        pool: SimulatedHosts,
    ) -> dict[Edge, tuple[float, float]]:
        """Return (latency, link seconds) by edge; `placement` changes with instances, hosts and edges."""
        trace = pool.settings.link_trace
        if self._placement != placement:
            self._placement = placement
            shares: dict[str, Floats] = {}
            for station in stations:
                placed = station.crew.host[station.crew.host >= 0]
                shares[station.name] = np.bincount(placed, minlength=len(pool)) / max(1, placed.size)
            self._edges = [edge for station in stations for edge in live[station.name] if edge.target in shares]
            if trace is None:
                self._means = _by_region(shares, self._edges, pool)
            else:
                self._weights = _by_pair(shares, self._edges, pool, trace)
        if trace is not None:
            longer, width = trace.column(now)
            self._means = [(float(far @ longer), float(wide @ (1 / width))) for far, wide in self._weights]
        delays = {}
        for edge, (latency, per_byte) in zip(self._edges, self._means, strict=True):
            bytes_each = self._size(edge.source)
            delays[edge] = (latency, 0.0 if math.isnan(bytes_each) else bytes_each * per_byte)
        return delays


def _by_region(shares: Mapping[str, Floats], edges: Sequence[Edge], pool: SimulatedHosts) -> list[tuple[float, float]]:
    region = pool.region[: len(pool)]
    latency, per_byte = pool.between_regions()
    count = len(latency)
    hosts = {name: np.bincount(region[share > 0], minlength=count) for name, share in shares.items()}
    by_region = {name: np.bincount(region, share, minlength=count) for name, share in shares.items()}
    means = []
    for edge in edges:
        pairs = np.outer(by_region[edge.source], by_region[edge.target])
        same_host = shares[edge.source] * shares[edge.target]
        pairs[np.diag_indices_from(pairs)] -= np.bincount(region, same_host, minlength=count)
        wide = np.maximum(1, hosts[edge.target])
        means.append((float((pairs * latency).sum()), float((pairs * per_byte / wide).sum())))
    return means


def _by_pair(
    shares: Mapping[str, Floats], edges: Sequence[Edge], pool: SimulatedHosts, trace: LinkTrace
) -> list[tuple[Floats, Floats]]:
    """Return each edge's weights for the trace's factors."""
    regional, per_byte = pool.between_regions()
    weights = []
    for edge in edges:
        source, target = (np.flatnonzero(shares[name]) for name in (edge.source, edge.target))
        pairs = np.outer(shares[edge.source][source], shares[edge.target][target])
        pairs[source[:, None] == target] = 0.0
        region = pool.region[target]
        between = np.ix_(pool.region[source], region)
        rows = trace.rows_of(pool.number[source], pool.number[target]).ravel()
        size, wide = len(trace.latency), np.bincount(region)[region]
        far = np.bincount(rows, (pairs * regional[between]).ravel(), size)
        width = np.bincount(rows, (pairs * per_byte[between] / wide).ravel(), size)
        weights.append((np.asarray(far, dtype=np.float64), np.asarray(width, dtype=np.float64)))
    return weights


def adjacent(stations: Sequence[Station], live: Mapping[str, Sequence[Edge]], rows: Integers) -> NDArray[np.bool_]:
    """Return a mask of the host pairs with operators that feed each other."""
    on = {station.name: np.isin(rows, station.crew.host) for station in stations}
    near = np.zeros((rows.size, rows.size), dtype=bool)
    for station in stations:
        for edge in live[station.name]:
            if edge.target in on:
                near |= np.outer(on[edge.source], on[edge.target])
    return near | near.T


def link_frame(
    hosts: Sequence[str], pool: SimulatedHosts, now: float, near: Callable[[Integers], NDArray[np.bool_]] | None = None
) -> Frame:
    """Return latency and bandwidth of every pair of `hosts`; NaN outside `near`."""
    if not 1 < len(hosts) <= LINKS_UP_TO:
        return Frame()
    rows = np.array([pool.rows[host] for host in hosts], dtype=np.int64)
    latency, per_byte = pool.between_hosts(rows, rows, now)
    bandwidth = np.divide(1.0, per_byte, out=np.full(per_byte.shape, np.nan), where=per_byte > 0)
    if near is not None:
        unobserved = ~near(rows)
        latency, bandwidth = (np.where(unobserved, np.nan, each) for each in (latency, bandwidth))
    off_diagonal = ~np.eye(len(hosts), dtype=bool)
    return Frame(
        [f"{a}>{b}" for a in hosts for b in hosts if a != b],
        {Metric.NETWORK_LATENCY: latency[off_diagonal], Metric.BANDWIDTH: bandwidth[off_diagonal]},
    )


class EdgeTraffic(NamedTuple):
    """Traffic (bytes/s; NaN if unknown) between instances of `source` (None: outside the hosts) and `target`."""

    edge: Edge
    source: Station | None
    target: Station
    rate: float


def rows_of(stations: Sequence[Station]) -> dict[str, Integers]:
    placed = np.concatenate([station.crew.host >= 0 for station in stations])
    rows = np.where(placed, np.cumsum(placed) - 1, -1)
    ends = np.cumsum([len(station.crew) for station in stations])
    return {station.name: part for station, part in zip(stations, np.split(rows, ends[:-1]), strict=True)}


def exchange_of(streams: Sequence[EdgeTraffic] | None, stations: Sequence[Station], age: float) -> Exchange:
    """Divide `streams` over pairs of tasks; `UNMEASURED` if unknown."""
    if streams is None or any(np.isnan(stream.rate) for stream in streams):
        return UNMEASURED
    flowing = [stream for stream in streams if stream.rate > 0]
    if not flowing:
        return Exchange(age=age)
    rows = rows_of(stations)
    parts = [_pairs(stream, rows) for stream in flowing]
    source, target, rate = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    here = (rate > 0) & ((source >= 0) | (target >= 0))
    return Exchange(source[here], target[here], rate[here], age=age)


def _pairs(stream: EdgeTraffic, rows: dict[str, Integers]) -> tuple[Integers, Integers, Floats]:
    to, gets = rows[stream.target.name], stream.target.shares
    if stream.source is None or not (rows[stream.source.name] >= 0).any():
        return np.full(to.size, -1), to, stream.rate * gets
    out, sends = rows[stream.source.name], stream.source.shares
    return np.repeat(out, to.size), np.tile(to, out.size), stream.rate * np.outer(sends, gets).ravel()
