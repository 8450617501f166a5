"""Simulated sources and their arrivals, as arrays of times and counts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastream.core.frames import Floats
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.operators import Operator
from elastream.errors import DataflowError, InputError
from elastream.loads.pattern import counts
from elastream.simulator.stations import NOTHING, Items, each_one, joined
from elastream.units import ROUNDING


@dataclass(frozen=True)
class Emissions:
    """Arrivals: `counts[k]` records from `times[k]` on, spread evenly over `span` seconds (0: all at once).

    Raises InputError unless times never decrease and counts are >= 0.
    """

    times: Floats
    counts: NDArray[np.int64]
    span: float = 0.0

    def __post_init__(self) -> None:
        if self.times.shape != self.counts.shape or self.times.ndim != 1:
            raise InputError(f"a load has {self.times.size} times and {self.counts.size} counts; each time needs one count")
        if self.counts.size and self.counts.min() < 0:
            raise InputError(f"a load has a negative count ({self.counts.min()} at entry {int(self.counts.argmin())})")
        if np.isnan(self.times).any() or (np.diff(self.times) < 0).any():
            raise InputError("the times of a load must be numbers that never decrease")

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def reach(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    @cached_property
    def last(self) -> float:
        """Time from which the last records arrive; -inf without records."""
        present = self.counts > 0
        return float(self.times[present][-1]) if present.any() else -math.inf

    def busiest(self, seconds: float) -> float:
        if not self.times.size:
            return 0.0
        lasts = max(seconds, self.span)
        last = np.searchsorted(self.times, self.times + lasts, side="left") - 1
        return float((self.reach[last] - self.reach + self.counts).max()) * seconds / lasts

    @property
    def end(self) -> float:
        return float(self.times[-1] + self.span) if self.times.size else 0.0

    @classmethod
    def every(cls, interval: float, counts: ArrayLike, *, spread: bool = False) -> "Emissions":
        """Place `counts[k]` records at `k * interval`, or spread over the interval.

        Raises InputError for an interval <= 0 and for invalid counts.
        """
        whole = np.asarray(counts, dtype=np.float64)
        if not interval > 0:
            raise InputError(f"a load has an interval of {interval:g} s; it must be above 0")
        if np.isnan(whole).any():
            raise InputError(f"a load has a gap: the count of interval {int(np.isnan(whole).argmax())} is unknown")
        if (whole != np.floor(whole)).any():
            raise InputError("a load has a count that is not a whole number")
        return cls(np.arange(whole.size, dtype=np.float64) * interval, whole.astype(np.int64), interval if spread else 0.0)

    @classmethod
    def at(cls, times: ArrayLike) -> "Emissions":
        """Place one record at each of `times` (seconds, any order)."""
        ordered = np.sort(np.asarray(times, dtype=np.float64))
        return cls(ordered, np.ones(ordered.size, dtype=np.int64))


Load = ArrivalPattern | Emissions


def emissions(load: Load, *, step: float = 0.1, until: float) -> Emissions:
    """Convert a load; cut a pattern into steps of `step` seconds.

    Raises InputError for an endless pattern without a limit `until` (seconds).
    """
    if isinstance(load, Emissions):
        return load
    seconds = min(load.seconds, until)
    if not math.isfinite(seconds):
        raise InputError("an endless load cannot be simulated without a limit: set the length of the run in seconds")
    edges = np.arange(math.ceil(seconds / step - ROUNDING) + 1, dtype=np.float64) * step
    edges[-1] = seconds
    due = counts(load, edges)
    due[0] = 0  # records due at time 0 belong to the first step
    return Emissions(edges[:-1], np.diff(due), step)


def items(times: Floats, counts: NDArray[np.int64], span: float) -> Floats:
    """Return every record's arrival time, sorted; spread records divide `span` equally."""
    starts = np.repeat(times, counts)
    if span == 0.0 or starts.size == 0:
        return starts
    first = np.repeat(np.cumsum(counts) - counts, counts)
    within = (np.arange(starts.size) - first + 0.5) / np.repeat(counts, counts)
    return np.sort(starts + within * span)


def cohorts(times: Floats, counts: NDArray[np.int64], span: float, piece: float) -> tuple[Floats, Floats]:
    """Return times and counts of cohorts; emissions longer than `piece` seconds are cut equally."""
    present = counts > 0
    times, shares = times[present], counts[present].astype(np.float64)
    if span == 0.0 or not times.size:
        return times, shares
    parts = math.ceil(span / piece)
    cut = (times[:, None] + (np.arange(parts) + 0.5) * (span / parts)).ravel()
    return np.sort(cut), np.repeat(shares / parts, parts)


def whole_items(flow: Items, part: float) -> tuple[Items, float]:
    """Convert cohorts to whole items, each at the arrival of its last part.

    Returns items and the remaining fraction; `part` is the fraction left earlier.
    """
    reach = part + np.cumsum(flow.counts)
    due = math.floor(float(reach[-1]) + ROUNDING)
    rows = np.minimum(np.searchsorted(reach, np.arange(1, due + 1) - ROUNDING), reach.size - 1)
    return Items(flow.times[rows], flow.born[rows], each_one(due)), max(0.0, float(reach[-1]) - due)


def share(flow: Items, first: int, of: int) -> Items:
    return Items(*(column[first::of] for column in flow))


# Approximate number of records generated at once.
AHEAD = 1 << 14
# Cohorts a monitoring period for spread arrivals; a computed wait is off by at most one.
PIECES = 64


class Source:
    """Emits the records of a load singly, or in cohorts of `piece` seconds."""

    def __init__(self, load: Emissions, piece: float | None) -> None:
        self.load = load
        self.piece = piece
        self.total = load.total
        self.next = 0
        self.ready = NOTHING
        self.offered = 0.0
        self.waiting = 0.0

    @property
    def emitted(self) -> float:
        """Records emitted and not held back."""
        return self.offered - self.waiting

    def until(self, end: float) -> Items:
        ready = self.ready
        if self.next < self.load.times.size and self.load.times[self.next] < end:
            self.ready = ready = self._laid_out(end)
        cut = int(ready.times.searchsorted(end))
        flow, self.ready = Items(*(a[:cut] for a in ready)), Items(*(a[cut:] for a in ready))
        self.offered += flow.total if self.piece is not None else cut
        return flow

    def _laid_out(self, end: float) -> Items:
        load = self.load
        stop = int(np.searchsorted(load.times, end, side="left"))
        if self.piece is None:
            stop = max(stop, int(np.searchsorted(load.reach, load.reach[self.next] + AHEAD)))
        else:
            stop = min(max(stop, self.next + AHEAD // PIECES), load.times.size)
        times, counts = load.times[self.next : stop], load.counts[self.next : stop]
        self.next = stop
        if self.piece is None:
            times = items(times, counts, load.span)
            return joined([self.ready, Items(times, times, each_one(times.size))])
        times, shares = cohorts(times, counts, load.span, self.piece)
        return joined([self.ready, Items(times, times, shares)])

    @property
    def ended(self) -> bool:
        return self.offered >= self.total - 1e-6 * max(1, self.total)


def load_of(source: Operator, loads: Mapping[str, Load], seconds: float) -> Emissions:
    load = loads.get(source.name) or source.load
    if load is None:
        raise DataflowError(f"source {source.name!r} has no load; the simulation needs one: declare `load` at the source")
    return emissions(load, until=seconds)
