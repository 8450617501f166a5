"""Simulated sources: emit the records of a load as time passes, one by one or in cohorts."""

from collections.abc import Mapping

import numpy as np

from elastream.dataflow.operators import Operator
from elastream.errors import DataflowError
from elastream.simulator.arrivals import Emissions, Load, cohorts, emissions, items
from elastream.simulator.stations import NOTHING, Items, each_one, joined

AHEAD = 1 << 14
"""Approximate number of records that a source generates at once."""
PIECES = 64
"""Cohorts per monitoring period for evenly spaced arrivals; a computed wait is off by at most one such piece."""


class Source:
    """Emits the records of a load as time passes: one by one or, given `piece` seconds, in cohorts of that length."""

    def __init__(self, load: Emissions, piece: float | None = None) -> None:
        self.load = load
        self.piece = piece
        self.total = load.total
        self.next = 0
        self.ready = NOTHING
        self.offered = 0.0
        self.held = 0.0

    @property
    def emitted(self) -> float:
        """Records emitted, without those held back before the first operator."""
        return self.offered - self.held

    def until(self, end: float) -> Items:
        """Emit the records that arrive before `end` and were not emitted yet."""
        ready = self.ready
        if self.next < self.load.times.size and self.load.times[self.next] < end:
            self.ready = ready = self._laid_out(end)
        cut = int(ready.times.searchsorted(end))
        flow, self.ready = Items(*(a[:cut] for a in ready)), Items(*(a[cut:] for a in ready))
        self.offered += flow.total if self.piece is not None else cut
        return flow

    def _laid_out(self, end: float) -> Items:
        """The ready records plus those of all emissions that begin before `end`, and some more to amortise the cost."""
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
    """The load of a source: the one in `loads`, else its declared one; raises DataflowError if it has neither."""
    load = loads.get(source.name) or source.load
    if load is None:
        raise DataflowError(f"source {source.name!r} has no load; the simulation needs one: declare `load` at the source")
    return emissions(load, until=seconds)
