"""The latency budget: the fewest cores for which every expected record is served in time.

A record may wait for `budget` seconds. Those that arrive between times u < s must be served within s - u + budget seconds.
The need is the largest such quotient of records and seconds: near the load's mean for a long budget, near its peak for a
short one.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from elastream.core.frames import Floats
from elastream.policies.horizon.compiled import njit
from elastream.units import ROUNDING

# Quantiles of the scenarios that a plan may serve, by need, beside the worst jump of the past. Their mean is none of them:
# where some end soon and others last, it serves neither.
SERVED = (0.5, 0.95)
SCENARIO_NAMES = (*(f"the {part:.0%} scenario" for part in SERVED), "the worst jump")
# Length of a bin between rounds of the same time (seconds).
LEAST_BIN_S = 1.0
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
        host_start: Start of a host (seconds); gives `start`.
        budget: Seconds that a record may wait; gives `steps`.
        paid: Least seconds for which a lease is paid.
        age: Seconds since the newest known arrivals, where the bins begin.
    """

    seconds: float
    start: int
    steps: int
    host_start: float
    budget: float
    paid: float = 0.0
    age: float = 0.0

    @classmethod
    def of(
        cls, host_start: float, budget: float, pace: float, seconds: float | None, paid: float, age: float = 0.0
    ) -> "Grid":
        """Return the grid. `seconds`: fixed length of the bins; else a multiple of `pace`."""
        after = max(budget + pace, host_start / 2)
        if seconds is None:
            widest = min((host_start + pace + after) / BINS, max(budget, pace))
            seconds = max(1, round(widest / pace)) * pace if pace > 0 else max(widest, LEAST_BIN_S)
        start = max(1, math.ceil((age + host_start + pace / 2) / seconds - ROUNDING))
        steps = start + max(LEAST_BINS, math.ceil(after / seconds - ROUNDING))
        return cls(seconds, start, steps, host_start, budget, paid, age)

    @property
    def waits(self) -> float:
        return self.budget / self.seconds

    @property
    def lost(self) -> int:
        """Bins whose records a host requested now cannot serve in time."""
        return max(0, self.start - int(self.waits))

    @property
    def recovery(self) -> float:
        """Return for how long arriving records may be late, once some are (seconds).

        Catching up sooner takes more hosts, each paid for longer. The cheapest time grows with the root of the paid time.
        """
        longer = CATCH_UP * self.host_start * math.sqrt(max(1.0, self.paid / max(self.host_start, self.seconds)))
        return max(0.0, longer - self.budget)  # what arrives a budget before the end is in time already

    def alike(self, other: "Grid") -> bool:
        """Return True if outlooks of `other` suit this grid."""
        return (self.start, self.steps, self.waits) == (other.start, other.steps, other.waits)

    def fits(self, host_start: float, budget: float) -> bool:
        """Return True if the grid still suits these seconds, within a quarter."""
        pairs = ((self.host_start, host_start), (self.budget, budget))
        return all(abs(new - old) <= 0.25 * max(old, self.seconds) for old, new in pairs)


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """Scenarios at the served quantiles, and the worst jump if it needs more; rows are in this order.

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
        chosen = _planned(paths, jump, np.array(SERVED), grid.waits)
        total = np.zeros((chosen.shape[0], chosen.shape[1] + 1))
        np.cumsum(chosen, axis=1, out=total[:, 1:])
        return cls(total * grid.seconds, needs(chosen, 0, grid.waits), needs(chosen, grid.start, grid.waits), rate)


@njit(cache=True)
def _planned(paths: Floats, jump: Floats, served: Floats, waits: float) -> Floats:
    count, steps = paths.shape
    order = np.argsort(needs(paths, 0, waits), kind="mergesort")
    chosen = np.zeros((served.size + 1, steps))
    for row in range(served.size):
        chosen[row] = paths[order[min(int(served[row] * count), count - 1)]]
    chosen[-1] = jump if need(jump, waits) > need(chosen[-2], waits) else chosen[-2]
    return chosen


@njit(cache=True)
def needs(paths: Floats, first: int, waits: float) -> Floats:
    """Return the need of each row from bin `first` on; shape (rows,)."""
    rates = np.zeros(paths.shape[0])
    for row in range(rates.size):
        rates[row] = need(paths[row, first:], waits)
    return rates


@njit(cache=True)
def need(path: Floats, waits: float) -> float:
    """Return the least rate of service for the rates of `path`, without backlog (records/s).

    It is at least the mean rate: a backlog at the end of a plan only postpones the lease.

    Args:
        waits: Bins that a record may wait.
    """
    steps = path.size
    total = np.zeros(steps + 1)
    for step in range(steps):
        total[step + 1] = total[step] + path[step]
    most = total[steps] / steps
    for begin in range(steps):
        for end in range(begin + 1, steps + 1):
            most = max(most, (total[end] - total[begin]) / (end - begin + waits))
    return float(most)


class Binding(NamedTuple):
    """Records of a need: arrivals between two edges, with those that wait before if `waiting`."""

    records: float
    begin: int
    end: int
    waiting: bool


def binding(total: Floats, waiting: float, late: float, waits: float) -> Binding:
    """Return what binds the need that `need` and `with_backlog` compute.

    Args:
        late: Bins for which records may be late; 0 if none are.
        waits: Bins that a record may wait.
    """
    edges, last = range(total.size), total.size - 1
    rates = {
        Binding(float(total[end] - total[at]), at, end, waiting=False): (total[end] - total[at]) / (end - at + waits)
        for at in edges
        for end in edges[at + 1 :]
    }
    for end in edges if waiting > 0 else ():
        if late <= end or end == last:
            time, spare = max(end, late), waits if late > 0 else max(waits, 1.0)
            records = waiting + float(total[end] - total[0]) * (time / end if end else 1.0)
            rates[Binding(records, 0, end, waiting=True)] = records / max(time + spare, 1.0)
    return max(rates, key=rates.__getitem__)


@njit(cache=True)
def waiting_at_start(total: Floats, waiting: float, served: Floats) -> float:
    """Return the records that wait when a host requested now begins to work.

    Args:
        total: Arrivals by the edges of the bins until then.
        served: Records that the present and coming hosts can serve by these edges, 0 first.
    """
    last = total[-1] - served[-1]
    most = waiting + last
    for edge in range(total.size):
        most = max(most, last - (total[edge] - served[edge]))
    return float(most)


@njit(cache=True)
def with_backlog(without: float, total: Floats, waiting: float, late: float, budget: float, seconds: float) -> float:
    """Return the need if records wait at the first edge (records/s).

    Records are served in order, so what arrives behind a late backlog is late as well until it is served.

    Args:
        without: Need without backlog.
        total: Arrivals by the edges.
        late: Seconds for which records may be late; 0 if none are.
        budget: Seconds that a record may wait after that.
        seconds: Length of a bin.
    """
    most, last = without, total.size - 1
    for edge in range(total.size):
        time, arrived = edge * seconds, total[edge] - total[0]
        if time < late:
            if edge < last:
                continue
            time, arrived = late, arrived * late / max(time, seconds)
        ends = time + (budget if late > 0 else max(budget, seconds))
        most = max(most, (waiting + arrived) / max(ends, seconds))
    return most


@njit(cache=True)
def time_late(waiting: float, capacity: float, budget: float, recovery: float) -> float:
    return recovery if waiting > budget * capacity else 0.0


@njit(cache=True)
def hosts_for(need: float, each: float) -> float:
    """Return the whole hosts of `each` records/s that serve `need`, at least one."""
    return max(1.0, math.ceil(need / each - ROUNDING))
