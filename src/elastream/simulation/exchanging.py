"""Who sends whom how much in a simulation: the traffic between operators, dealt out over the pairs of their instances.

An instance gets its share of what comes to its operator and sends its share of what that emits, so a pair's part is the
product of the two; with keys that weigh differently the shares do. Sizes of records are declared; without them nothing is
known.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from elastream.model.graph import Edge
from elastream.model.observation import UNMEASURED, Exchange, Floats, Integers
from elastream.simulation.stations import Station

__all__ = ["Stream", "crossing", "exchange_of", "rows_of"]


class Stream(NamedTuple):
    """What travels over an edge, from instances of `source` (None: one that stands nowhere) to those of `target`.

    rate: bytes/s; NaN where the size of a record or its rate is unknown.
    """

    edge: Edge
    source: Station | None
    target: Station
    rate: float


def rows_of(stations: Sequence[Station]) -> dict[str, Integers]:
    """Row in the frame of tasks of every instance, by station; -1 for one that is placed nowhere."""
    placed = np.concatenate([station.crew.host >= 0 for station in stations])
    rows = np.where(placed, np.cumsum(placed) - 1, -1)
    ends = np.cumsum([len(station.crew) for station in stations])
    return {station.name: part for station, part in zip(stations, np.split(rows, ends[:-1]), strict=True)}


def exchange_of(streams: Sequence[Stream] | None, stations: Sequence[Station], age: float) -> Exchange:
    """`streams` by pair of tasks; unknown where there are none yet or one of them is."""
    if streams is None or any(np.isnan(stream.rate) for stream in streams):
        return UNMEASURED
    rows = rows_of(stations)
    parts = [_pairs(stream, rows) for stream in streams if stream.rate > 0]
    if not parts:
        return Exchange(age=age)
    source, target, rate = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    here = (rate > 0) & ((source >= 0) | (target >= 0))
    return Exchange(source[here], target[here], rate[here], age=age)


def crossing(exchange: Exchange, host: Integers, hosts: int) -> Floats:
    """Bytes/s over the link of each host, both directions; NaN where unknown. What comes from nowhere comes over it."""
    if not exchange.known:
        return np.full(hosts, np.nan)
    at = np.append(host, -1)
    begin, end = at[exchange.source], at[exchange.target]
    apart = begin != end
    over = np.zeros(hosts)
    for side in (begin, end):
        there = apart & (side >= 0)
        over += np.bincount(side[there], exchange.rate[there], hosts)
    return over


def _pairs(stream: Stream, rows: dict[str, Integers]) -> tuple[Integers, Integers, Floats]:
    to, gets = rows[stream.target.name], stream.target.shares
    if stream.source is None or not (rows[stream.source.name] >= 0).any():
        return np.full(to.size, -1), to, stream.rate * gets
    out, sends = rows[stream.source.name], stream.source.shares
    return np.repeat(out, to.size), np.tile(to, out.size), stream.rate * np.outer(sends, gets).ravel()
