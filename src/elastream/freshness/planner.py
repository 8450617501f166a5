"""The start of the next bounded run and its hosts, as pure functions of what is waiting and of earlier runs.

A record is *fresh* if it is committed within `freshness` seconds. A run takes what arrived before its snapshot, the start
of its queries. The latest start is the cheapest.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from elastream.core.hosts import HostType
from elastream.core.wording import counted

# Newest runs of which start-up times count, and those of which work counts, which changes with code and data.
MEMORY_RUNS, WORK_RUNS = 100, 20
# Quantile of start-up times and of errors of predictions for which a plan leaves time; and that of arrivals, which cost
# hosts: a larger burst delays only what came just before it.
SURE, USUAL = 0.99, 0.95
# Bins of a freshness in which arrivals are counted, and how many freshnesses back.
BINS, BACK = 20, 144


@dataclass(frozen=True, slots=True)
class BoundedRun:
    """A run that ended in order. Times are epoch seconds.

    Attributes:
        start: Hosts were requested.
        snapshot: Queries started. Later arrivals wait for the next run.
        committed: The last batch was committed.
        end: All hosts were released.
    """

    start: float
    snapshot: float
    committed: float
    end: float
    hosts: int
    records: float

    @property
    def seconds(self) -> float:
        """Return the time from snapshot to last commit."""
        return max(0.0, self.committed - self.snapshot)

    @property
    def share(self) -> float:
        """Return the records per host."""
        return self.records / self.hosts


@dataclass(frozen=True, slots=True)
class HostBounds:
    """Hosts that a run may lease."""

    type: HostType
    least: int = 1
    most: int = 1

    def named(self, hosts: int, word: str = "") -> str:
        """Return `"{word} 2 hosts"`; empty if all runs have as many."""
        return "" if self.least == self.most else f"{word} {counted(hosts, 'host')}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Records that no run has committed.

    Attributes:
        records: Their number, estimated for files.
        oldest: Arrival of the oldest (epoch seconds); -inf if unknown.
    """

    records: float = 0.0
    oldest: float = math.inf

    def __bool__(self) -> bool:
        return self.records > 0 or self.oldest < math.inf


@dataclass(frozen=True, slots=True)
class WakePlan:
    """The next run: when its hosts are requested (epoch seconds; inf if nothing waits), how many, and why."""

    start: float
    hosts: int = 0
    why: str = "no record waits"
    remark: str = ""
    ready: float = math.inf  # predicted last commit


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least `share` of them do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def bound(values: Sequence[float]) -> float:
    """Return a value that the next one exceeds once in a hundred times.

    For fewer than 99 values it is more than the largest by the reciprocal of their number.
    """
    enough = len(values) >= SURE / (1 - SURE) - 1e-9
    return quantile(values, SURE) if enough else max(values) * (1 + 1 / len(values))


@dataclass(eq=False)
class Arrivals:
    """Arrivals by bins of `bin` seconds, for a bounded time back."""

    freshness: float
    _bins: deque[float] = field(default_factory=deque)
    _at: int | None = None
    _sums: dict[int, float] = field(default_factory=dict)  # quantile of windows by their bins, until the next arrivals

    @property
    def bin(self) -> float:
        """Return the width of a bin (seconds)."""
        return self.freshness / BINS

    def add(self, time: float, records: float) -> None:
        """Count `records` that arrived between the last call and `time`."""
        at = int(time / self.bin)
        if records or at != self._at:
            self._sums.clear()
        for _ in range(min(BACK * BINS, at - self._at if self._at is not None else 1)):
            self._bins.append(0.0)
        while len(self._bins) > BACK * BINS:
            self._bins.popleft()
        self._at = at if self._at is None else max(at, self._at)
        self._bins[-1] += records

    def upper(self, seconds: float) -> float:
        """Return the quantile USUAL of arrivals in `seconds`; 0 without history."""
        if seconds <= 0 or not self._bins:
            return 0.0
        width = min(len(self._bins), math.ceil(seconds / self.bin))
        if width not in self._sums:
            totals = [0.0, *accumulate(self._bins)]
            windows = [upto - since for since, upto in zip(totals, totals[width:], strict=False)]
            self._sums[width] = max(0.0, quantile(windows, USUAL))
        return self._sums[width] * seconds / (width * self.bin)


@dataclass(frozen=True, slots=True)
class RunModel:
    """Predictions from earlier runs: `startup` and `release` (seconds), and the time of `records` on `hosts`.

    The time is a line in records per host, and proportional beyond the largest run.
    """

    startup: float
    release: float
    fixed: float = 0.0
    each: float = 0.0
    largest: float = 0.0
    error: float = 1.0  # quantile SURE of actual over predicted time, at least 1
    measured: bool = False  # False before a run with records
    usual_startup: float = 0.0  # median of earlier runs (seconds)

    @classmethod
    def of(cls, runs: Sequence[BoundedRun], first_startup: float) -> "RunModel":
        """Fit the model to the newest of `runs`. first_startup: declared start-up, which counts as one more (seconds)."""
        recent = list(runs)[-MEMORY_RUNS:]
        startup = bound([*(run.snapshot - run.start for run in recent), *([first_startup] * (len(recent) < MEMORY_RUNS))])
        release = quantile([run.end - run.committed for run in recent], SURE) if recent else 0.0
        usual = statistics.median(run.snapshot - run.start for run in recent) if recent else first_startup
        worked = [run for run in recent if run.records > 0][-WORK_RUNS:]
        if not worked:
            return cls(startup, release, usual_startup=usual)
        fixed, each = _line([run.share for run in worked], [run.seconds for run in worked])
        largest = max(run.share for run in worked)
        model = cls(startup, release, fixed, each, largest, measured=True, usual_startup=usual)
        ratios = [run.seconds / model.expected(run.records, run.hosts) for run in worked if run.seconds > 0]
        return replace(model, error=max(1.0, bound(ratios)) if ratios else 1.0)

    def expected(self, records: float, hosts: int) -> float:
        """Return the seconds from snapshot to last commit."""
        share = records / hosts
        if share <= self.largest:
            return self.fixed + self.each * share
        return (self.fixed + self.each * self.largest) * share / self.largest if self.largest else 0.0

    def processing(self, records: float, hosts: int) -> float:
        """Return the seconds that processing exceeds in one run of a hundred, as far as is known."""
        return self.error * self.expected(records, hosts)


def _line(shares: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return (intercept, slope) of the least squares line with neither below 0; through 0 for a single share."""
    count, mean_x, mean_y = len(shares), math.fsum(shares) / len(shares), math.fsum(seconds) / len(seconds)
    spread = math.fsum((x - mean_x) ** 2 for x in shares)
    if count > 1 and spread > 1e-9 * mean_x * mean_x:
        slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(shares, seconds, strict=True)) / spread
        if slope < 0:
            return mean_y, 0.0
        if (intercept := mean_y - slope * mean_x) >= 0:
            return intercept, slope
    return 0.0, mean_y / mean_x


def plan_wake(
    now: float,
    waiting: Waiting,
    freshness: float,
    model: RunModel,
    arrivals: Arrivals,
    bounds: HostBounds,
    margin: float = 0.0,
) -> WakePlan:
    """Return the latest start that commits the oldest waiting record in time, with the hosts that cost least.

    Records that arrive behind the snapshot wait for this run and the whole next one: both must fit in `freshness`.

    Args:
        freshness: Seconds from arrival to commit.
        margin: Seconds that the start may be late.
    """
    if not waiting:
        return WakePlan(math.inf)
    if not model.measured:
        return WakePlan(now, bounds.least, "records wait, and no run has measured their work")
    if waiting.oldest == -math.inf:
        return WakePlan(now, bounds.least, "records wait since an unknown time")
    best: tuple[float, WakePlan] | None = None
    kind = bounds.type
    for hosts in range(bounds.least, bounds.most + 1):
        # This start leaves time for the waiting records; records that arrive before the snapshot take time, too.
        late = waiting.oldest + freshness - margin - model.startup - model.processing(waiting.records, hosts)
        records = waiting.records + arrivals.upper(max(0.0, late - now) + model.startup)
        processing = model.processing(records, hosts)
        start = waiting.oldest + freshness - margin - model.startup - processing
        behind = model.processing(arrivals.upper(processing + model.startup), hosts)
        if start < now or processing + model.startup + behind + margin > freshness:
            continue
        awake = model.startup + processing + model.release
        # Money for a second of arrivals that the run covers.
        cost = hosts * kind.price * kind.billing.units(awake) / (freshness - processing - margin)
        if best is None or cost < best[0]:
            costly = kind.price > 0 and cost >= bounds.least * kind.price_rate
            remark = f"hosts that stay would cost no more: each start pays {kind.billing.shortest:.0f} s" if costly else ""
            what = counted(round(records), "record")
            why = f"processing {what} takes {processing:.0f} s after {model.startup:.0f} s of start-up"
            best = cost, WakePlan(start, hosts, why, remark, start + model.startup + processing)
    if best is not None:
        return best[1]
    records = waiting.records + arrivals.upper(model.startup)
    times = {hosts: model.processing(records, hosts) for hosts in range(bounds.least, bounds.most + 1)}
    hosts = next(hosts for hosts, seconds in times.items() if seconds <= min(times.values()) + margin)
    ready = now + model.startup + times[hosts]
    due = waiting.oldest + freshness
    # The bound counts for the plan. A remark that took it for the usual case would be wrong 99 times of 100.
    late = now + model.usual_startup + model.expected(records, hosts) - due
    named = bounds.named(hosts, " with")
    if late > 0:
        remark = f"the oldest record will be about {late:.0f} s late{named}"
    elif ready > due:
        remark = f"the oldest record may be up to {ready - due:.0f} s late{named}"
    else:
        remark = f"what waits will be in time{named}, with no time to spare for what comes"
    return WakePlan(now, hosts, "the deadline allows no later start", remark, ready)
