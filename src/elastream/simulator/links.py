"""Links between the hosts of a simulation: what they cost the items that travel, and what is observed of them.

They are as declared for regions and host types. Where a trace varies them, each pair of hosts has a link of its own, and
only links between hosts of neighbouring operators are observed: the thesis (Kumbhare 2015, p. 67) probes no others, to
save work.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Frame, Integers
from elastream.core.metrics import Metric
from elastream.dataflow.operators import Edge
from elastream.loads.links import LinkTrace
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.stations import Station

LINKS_UP_TO = 32
"""Most hosts for which the observation lists the links of every pair."""


class Delays:
    """Mean latency in s, and link seconds per item, of each live edge between operators.

    An item travels between any pair of instances of the two operators with equal probability; within a host for free. size:
    bytes of an item that an operator emits, NaN where unknown: it then takes no link seconds.
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
        """(Latency, link seconds) by edge at `now`. placement: differs where instances, hosts or live edges do."""
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
        found = {}
        for edge, (latency, per_byte) in zip(self._edges, self._means, strict=True):
            bytes_each = self._size(edge.source)
            found[edge] = (latency, 0.0 if math.isnan(bytes_each) else bytes_each * per_byte)
        return found


def _by_region(shares: Mapping[str, Floats], edges: Sequence[Edge], pool: SimulatedHosts) -> list[tuple[float, float]]:
    """(Mean latency, mean link seconds per byte) of each edge, where links differ by region: for any number of hosts."""
    region = pool.region[: len(pool)]
    latency, per_byte = pool.between_regions()
    count = len(latency)
    hosts = {name: np.bincount(region[share > 0], minlength=count) for name, share in shares.items()}
    by_region = {name: np.bincount(region, share, minlength=count) for name, share in shares.items()}
    found = []
    for edge in edges:
        pairs = np.outer(by_region[edge.source], by_region[edge.target])
        same_host = shares[edge.source] * shares[edge.target]
        pairs[np.diag_indices_from(pairs)] -= np.bincount(region, same_host, minlength=count)
        wide = np.maximum(1, hosts[edge.target])
        found.append((float((pairs * latency).sum()), float((pairs * per_byte / wide).sum())))
    return found


def _by_pair(
    shares: Mapping[str, Floats], edges: Sequence[Edge], pool: SimulatedHosts, trace: LinkTrace
) -> list[tuple[Floats, Floats]]:
    """Of each edge, where each pair of hosts has a link of its own: by row of the trace, what its factors on latency,
    and those by which bandwidth divides, are to be multiplied with; shape (rows,) each. So a new slot costs no loop
    over pairs."""
    regional, per_byte = pool.between_regions()
    found = []
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
        found.append((np.asarray(far, dtype=np.float64), np.asarray(width, dtype=np.float64)))
    return found


def adjacent(stations: Sequence[Station], live: Mapping[str, Sequence[Edge]], rows: Integers) -> NDArray[np.bool_]:
    """Which pairs of the hosts in `rows` have instances of operators that feed each other; shape (rows, rows)."""
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
    """Latency and bandwidth of every pair of `hosts` at `now`; unknown of those that are not `near`, if that is given."""
    if not 1 < len(hosts) <= LINKS_UP_TO:
        return Frame()
    rows = np.array([pool.rows[host] for host in hosts], dtype=np.int64)
    latency, per_byte = pool.between_hosts(rows, rows, now)
    bandwidth = np.divide(1.0, per_byte, out=np.full(per_byte.shape, np.nan), where=per_byte > 0)
    if near is not None:
        unobserved = ~near(rows)
        latency, bandwidth = (np.where(unobserved, np.nan, each) for each in (latency, bandwidth))
    apart = ~np.eye(len(hosts), dtype=bool)
    return Frame(
        [f"{a}>{b}" for a in hosts for b in hosts if a != b],
        {Metric.NETWORK_LATENCY: latency[apart], Metric.BANDWIDTH: bandwidth[apart]},
    )
