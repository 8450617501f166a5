"""Tuples that mappers emit, by sequence number.

Mapper m numbers its tuples for partition p from 0; number k is emitted when the integral of its rate reaches k + 1.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.simulator.arrivals import Emissions, Load, emissions

AT_ONCE = 1e-3  # seconds to spread records of one moment over


class Streams:
    """Emissions of mappers by the sources' loads, for `shares` (sources, partitions).

    until: seconds. factors: tuples a record, by source.
    """

    def __init__(
        self,
        loads: Mapping[str, Load],
        shares: Floats,
        mappers: int,
        seed: int,
        until: float,
        factors: Sequence[float] = (),
        step: float = 0.1,
    ) -> None:
        self.shares = shares
        self.mappers = mappers
        self._edges, self._reach = zip(
            *(
                _reach(emissions(load, step=step, until=until), factor)
                for load, factor in zip(loads.values(), factors or [1.0] * len(loads), strict=True)
            ),
            strict=True,
        )
        # Where between two tuples each mapper begins, so that they do not emit in step.
        self._phase = np.random.default_rng(seed).random((mappers, shares.shape[1]))
        self.end = max(float(edges[-1]) for edges in self._edges)
        # Copies as plain numbers, because a run looks up single moments hundreds of thousands of times.
        self._steps = [(edges.tolist(), reach.tolist()) for edges, reach in zip(self._edges, self._reach, strict=True)]
        self._every = sorted({edge for edges, _ in self._steps for edge in edges})

    def emitted_by(self, time: Floats | float) -> Floats:
        """Return tuples by source up to `time` (seconds, any shape); shape (sources, *shape of time)."""
        if isinstance(time, float):
            return np.array(self._by(time))
        return np.array([np.interp(time, e, r, left=0.0) for e, r in zip(self._edges, self._reach, strict=True)])

    def _by(self, time: float) -> list[float]:
        return [_at(time, edges, reach, bisect_right(edges, time) - 1) for edges, reach in self._steps]

    def numbers(self, times: Floats) -> Integers:
        """Return tuples emitted by mapper and partition up to `times` (seconds).

        times: (mappers, 1 or partitions).
        """
        due = self._phase.copy()
        for share, edges, reach in zip(self.shares, self._edges, self._reach, strict=True):
            due += np.interp(times, edges, reach, left=0.0) * (share / self.mappers)
        return np.floor(due).astype(np.int64)

    def between(self, begin: float, end: float) -> list[float]:
        """Return tuples by source in that time."""
        return [late - early for early, late in zip(self._by(begin), self._by(end), strict=True)]

    def part_of(self, partitions: NDArray[np.bool_]) -> list[float]:
        """Return by source the part of tuples for these partitions."""
        found: list[float] = self.shares[:, partitions].sum(axis=1).tolist()
        return found

    def when(self, begin: float, tuples: float, weights: Sequence[float], latest: float) -> float:
        """Return when `tuples` weighted by source were emitted since `begin`; at most `latest`."""
        low, due = begin, self._weighed_by(begin, weights)
        high, wanted = latest, due + tuples
        if self._weighed_by(latest, weights) <= wanted:
            return latest
        every = self._every
        first, last = bisect_right(every, low), bisect_left(every, high)
        stride = 1  # tuples processed in a moment arrived in a moment, so the edges next to `begin` are tried first
        while first < last:
            at = min((first + last) // 2, first + stride - 1)
            if (reached := self._weighed_by(every[at], weights)) < wanted:
                low, due, first, stride = every[at], reached, at + 1, 2 * stride
            else:
                high, last = every[at], at
        # Between two edges the rate is constant; at `high` itself tuples may come all at once.
        just_before = weighed(
            weights, [_at(high, edges, reach, bisect_left(edges, high) - 1) for edges, reach in self._steps]
        )
        if just_before <= wanted:
            return high
        return min(high, low + (high - low) * (wanted - due) / (just_before - due))

    def _weighed_by(self, time: float, weights: Sequence[float]) -> float:
        found = 0.0
        for weight, (edges, reach) in zip(weights, self._steps, strict=True):
            found += weight * _at(time, edges, reach, bisect_right(edges, time) - 1)
        return found


def _at(time: float, edges: Sequence[float], reach: Sequence[float], piece: int) -> float:
    """Return tuples due by `time` on the line from edge `piece`; equals `numpy.interp` to the last bit."""
    if piece < 0:
        return 0.0
    if piece >= len(edges) - 1:
        return reach[-1]
    begin, end = edges[piece], edges[piece + 1]
    if time == begin:
        return reach[piece]
    return (reach[piece + 1] - reach[piece]) / (end - begin) * (time - begin) + reach[piece]


def weighed(weights: Sequence[float], tuples: Sequence[float]) -> float:
    """Return the weighted sum of tuples."""
    found = 0.0
    for weight, each in zip(weights, tuples, strict=True):
        found += weight * each
    return found


def _reach(load: Emissions, factor: float) -> tuple[Floats, Floats]:
    """Return edges of constant rate, and tuples due by each: `factor` a record."""
    if not load.times.size:
        return np.array([0.0, 1.0]), np.zeros(2)
    lasts = load.span or AT_ONCE
    ends = load.times + lasts
    # A piece ends where the next begins at the latest: pieces follow one another.
    ends[:-1] = np.minimum(ends[:-1], load.times[1:])
    reach = load.reach.astype(np.float64)
    edges = np.column_stack([load.times, ends]).ravel()
    rows = np.column_stack([reach - load.counts, reach]).ravel()
    return edges, rows * factor
