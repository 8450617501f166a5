"""Simulated traffic between tasks: each edge's traffic, divided by the senders' and receivers' shares."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.observation import UNMEASURED, Exchange
from elastream.dataflow.operators import Edge
from elastream.simulator.stations import Station


class EdgeTraffic(NamedTuple):
    """Traffic (bytes/s; NaN if unknown) between instances of `source` (None: outside the hosts) and `target`."""

    edge: Edge
    source: Station | None
    target: Station
    rate: float


def rows_of(stations: Sequence[Station]) -> dict[str, Integers]:
    """Return every instance's row in the task frame; -1 if unplaced."""
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
