"""The latency budget: the fewest cores for which every expected record is served in time.

A record may wait for `budget` seconds. Records that arrive between two times u < s must be served by s + budget, within
s - u + budget seconds. The need is the largest such quotient of records and seconds. It is near the mean of the load for a
long budget, and near the peak for a short one.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastream.core.frames import Floats
from elastream.units import ROUNDING

# Quantiles of the scenarios that a plan may serve, by need, beside their mean and the worst jump of the past.
SERVED = (0.5, 0.95)
# Part of a host's start in which late records are served.
CATCH_UP = 0.25


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """Mean of the scenarios, those at the served quantiles, and the worst jump; rows are in this order.

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
    def of(cls, paths: Floats, jump: Floats, rate: float, seconds: float, start: int, budget: float) -> "Outlook":
        """Select the scenarios to plan for.

        Args:
            paths: Rates by scenario and bin; shape (scenarios, steps).
            jump: Rates of the worst jump; shape (steps,).
            seconds: Length of a bin.
            start: Bins until a host requested now works.
        """
        order = np.argsort(need(paths, seconds, budget), kind="stable")
        rows = np.minimum((np.array(SERVED) * order.size).astype(np.int64), order.size - 1)
        chosen = np.concatenate([paths.mean(axis=0)[None], paths[order[rows]], jump[None]])
        total = np.concatenate([np.zeros((chosen.shape[0], 1)), np.cumsum(chosen, axis=1) * seconds], axis=1)
        return cls(total, need(chosen, seconds, budget), need(chosen[:, start:], seconds, budget), rate)


def need(paths: Floats, seconds: float, budget: float) -> Floats:
    """Return the least rate of service for each row of rates, without backlog (records/s); shape (rows,).

    It is at least the mean rate: a backlog at the end of a plan only postpones the lease.
    """
    steps = paths.shape[1]
    begin, end, lasts = _intervals(steps)
    total = np.concatenate([np.zeros((paths.shape[0], 1)), np.cumsum(paths, axis=1)], axis=1)
    within = ((total[:, end] - total[:, begin]) / (lasts + budget / seconds)).max(axis=1)
    return np.asarray(np.maximum(within, total[:, -1] / steps))


@lru_cache(8)
def _intervals(steps: int) -> "tuple[np.ndarray, np.ndarray, Floats]":
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


def with_backlog(without: Floats, total: Floats, waiting: Floats, seconds: float, within: Floats | float) -> Floats:
    """Return the need if records wait at the first edge (records/s).

    Args:
        without: Need without backlog.
        total: Arrivals by the edges; shape (rows, edges).
        within: Seconds in which what waits must be served; shape (rows,) or a number.
    """
    lasts = np.arange(total.shape[-1]) * seconds + np.maximum(within, seconds)[..., None]
    return np.asarray(np.maximum(without, ((waiting[..., None] + total - total[..., :1]) / lasts).max(axis=-1)))


def time_to_serve(waiting: Floats, capacity: Floats, budget: float, host_start: float) -> Floats:
    """Return the seconds for serving the backlog: the budget, or longer once records are late.

    Late records stay late: hosts that served them faster would mostly be paid for starting.
    """
    late = waiting > budget * capacity
    return np.asarray(np.where(late, max(budget, CATCH_UP * host_start), budget))


def hosts_for(need: Floats | float, each: float) -> Floats:
    """Return the whole hosts of `each` records/s that serve `need`, at least one."""
    return np.maximum(1.0, np.ceil(np.asarray(need) / each - ROUNDING))
