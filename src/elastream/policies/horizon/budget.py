"""The latency budget: the fewest cores for which every expected record is served in time.

A record may wait for `budget` seconds. Records that arrive between two times u < s must be served by s + budget, within
s - u + budget seconds. The need is the largest such quotient of records and seconds. It is near the mean of the load for a
long budget, and near the peak for a short one.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.units import ROUNDING

# Quantiles of the scenarios that a plan may serve, by need, beside their mean and the worst jump of the past.
SERVED = (0.5, 0.95)
# Bins of a horizon, and the fewest bins of its part after a host's start.
BINS, LEAST_BINS = 12, 2
# Part of a host's start in which late records are served.
CATCH_UP = 0.25


@dataclass(frozen=True, slots=True)
class Grid:
    """Bins of the outlooks.

    Attributes:
        seconds: Length of a bin.
        start: Bins until a host requested now works.
        steps: Bins of a horizon.
        host_start: Seconds that a host takes to start, from which `start` follows.
        budget: Seconds that a record may wait, from which `steps` follows.
        paid: Seconds for which a lease is paid at least.
    """

    seconds: float
    start: int
    steps: int
    host_start: float
    budget: float
    paid: float = 0.0

    @classmethod
    def of(cls, host_start: float, budget: float, pace: float, seconds: float | None, paid: float) -> "Grid":
        """Return the grid. `seconds`: length of the bins if it is fixed; else a multiple of `pace`."""
        after = max(budget + pace, host_start / 2)
        if seconds is None:
            widest = min((host_start + pace + after) / BINS, max(budget, pace))
            seconds = max(1, round(widest / pace)) * pace
        start = max(1, math.ceil((host_start + pace / 2) / seconds - ROUNDING))
        return cls(seconds, start, start + max(LEAST_BINS, math.ceil(after / seconds - ROUNDING)), host_start, budget, paid)

    def fits(self, host_start: float, budget: float) -> bool:
        """Return True if the grid still suits these seconds, within a quarter."""
        pairs = ((self.host_start, host_start), (self.budget, budget))
        return all(abs(new - old) <= 0.25 * max(old, self.seconds) for old, new in pairs)


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """Mean of the scenarios, those at the served quantiles, and the worst jump if it needs more; rows are in this order.

    Attributes:
        total: Records that have arrived by the edges of the bins; shape (rows, steps + 1).
        keep: Need of the whole horizon without backlog (records/s); shape (rows,).
        lease: Need from the time at which a host requested now would work; shape (rows,).
        rate: Rate of the bin before (records/s).
    """

    total: Floats
    keep: Floats
    lease: Floats
    rate: float

    @classmethod
    def of(cls, paths: Floats, jump: Floats, rate: float, grid: Grid) -> "Outlook":
        """Select the scenarios to plan for.

        Args:
            paths: Rates by scenario and bin; shape (scenarios, steps).
            jump: Rates of the worst jump; shape (steps,).
        """
        order = np.argsort(need(paths, grid), kind="stable")
        rows = np.minimum((np.array(SERVED) * order.size).astype(np.int64), order.size - 1)
        served = paths[order[rows]]
        worst = max((served[-1], jump), key=lambda path: float(need(path[None], grid)[0]))
        chosen = np.concatenate([paths.mean(axis=0)[None], served, worst[None]])
        total = np.concatenate([np.zeros((chosen.shape[0], 1)), np.cumsum(chosen, axis=1) * grid.seconds], axis=1)
        return cls(total, need(chosen, grid), need(chosen[:, grid.start :], grid), rate)


def need(paths: Floats, grid: Grid) -> Floats:
    """Return the least rate of service for each row of rates, without backlog (records/s); shape (rows,).

    It is at least the mean rate: a backlog at the end of a plan only postpones the lease.
    """
    steps = paths.shape[1]
    begin, end, lasts = _intervals(steps)
    total = np.concatenate([np.zeros((paths.shape[0], 1)), np.cumsum(paths, axis=1)], axis=1)
    within = ((total[:, end] - total[:, begin]) / (lasts + grid.budget / grid.seconds)).max(axis=1)
    return np.asarray(np.maximum(within, total[:, -1] / steps))


@lru_cache(8)
def _intervals(steps: int) -> tuple[Integers, Integers, Floats]:
    begin, end = np.triu_indices(steps + 1, 1)
    return begin, end, (end - begin).astype(np.float64)


def waiting_at_start(total: Floats, waiting: Floats, served: Floats) -> Floats:
    """Return the records that wait once a host requested now would work.

    Args:
        total: Arrivals by the edges of the bins until then; shape (rows, bins + 1).
        waiting: Records that wait now; shape (rows,) or a number.
        served: Records that the present and coming hosts can serve by these edges, 0 first; shape (rows, bins + 1).
    """
    surplus = total - served
    last = surplus[..., -1]
    return np.asarray(np.maximum(waiting + last, last - surplus.min(axis=-1)))


def with_backlog(without: Floats, total: Floats, waiting: Floats, within: Floats, grid: Grid) -> Floats:
    """Return the need if records wait at the first edge (records/s).

    Args:
        without: Need without backlog.
        total: Arrivals by the edges; shape (rows, edges).
        within: Seconds in which what waits must be served; shape (rows,).
    """
    lasts = np.arange(total.shape[-1]) * grid.seconds + np.maximum(within, grid.seconds)[..., None]
    return np.asarray(np.maximum(without, ((waiting[..., None] + total - total[..., :1]) / lasts).max(axis=-1)))


def time_to_serve(waiting: Floats, capacity: Floats, grid: Grid) -> Floats:
    """Return the seconds for serving the backlog: the budget, or longer once records are late.

    Late records stay late: hosts that served them faster would mostly be paid for starting, and for what remains of their
    paid time. More hosts serve a backlog in proportion faster, at a price that grows with the paid time: the sum of both is
    least for a time that grows with its root.
    """
    late = waiting > grid.budget * capacity
    longer = CATCH_UP * grid.host_start * math.sqrt(max(1.0, grid.paid / max(grid.host_start, grid.seconds)))
    return np.asarray(np.where(late, max(grid.budget, longer), grid.budget))


def hosts_for(need: Floats | float, each: float) -> Floats:
    """Return the whole hosts of `each` records/s that serve `need`, at least one."""
    return np.maximum(1.0, np.ceil(np.asarray(need) / each - ROUNDING))
