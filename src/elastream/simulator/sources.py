"""Simulated sources: emit a load's records one by one or in cohorts."""

from collections.abc import Mapping

import numpy as np

from elastream.dataflow.operators import Operator
from elastream.errors import DataflowError
from elastream.simulator.arrivals import Emissions, Load, cohorts, emissions, items
from elastream.simulator.stations import NOTHING, Items, each_one, joined

# Approximate number of records generated at once.
AHEAD = 1 << 14
# Cohorts a monitoring period for spread arrivals; a computed wait is off by at most one.
PIECES = 64


class Source:
    """Emits the records of a load singly, or in cohorts of `piece` seconds."""

    def __init__(self, load: Emissions, piece: float | None = None) -> None:
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
        """Return records that begin before `end`, and more to amortise the cost."""
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
