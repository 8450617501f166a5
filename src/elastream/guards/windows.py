"""What guards remember: windows of a signal's samples, and for how long or in which order conditions held.

Each is advanced by what is new and answers in constant amortised time; `due` is when its answer may change although nothing
new arrives. Unknown is None, and an answer is given only where every resolution of the unknown would give it.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from elastream.dataflow.signals import SignalValue

Truth: TypeAlias = bool | None

RESOLUTION = 5_000
"""Parts of a window within which samples are merged: the bound on what a window keeps and on the error of its edge."""
ROUNDED = 1 - 1e-9
"""So much of a number of samples is sure where rounding may have made it larger."""


class _Bucket:
    """Samples of one part of a window, nearly always one: number, sum, sum of squares, least and largest.

    step: increase from the sample before the first; rise: from sample to sample behind it.
    """

    __slots__ = ("count", "end", "high", "low", "rise", "squares", "start", "step", "total")

    def __init__(self, time: float, value: float, step: float) -> None:
        self.start = self.end = time
        self.count, self.total, self.squares = 1, value, value * value
        self.low = self.high = value
        self.step, self.rise = step, 0.0


class SampleWindow:
    """Samples of a signal taken in (now - seconds, now]; `answer(now)` is their aggregate, None where none is defined.

    Samples that are not newer than the last are left out. Values other than numbers are only counted.
    """

    __slots__ = (
        "_aggregate",
        "_best",
        "_buckets",
        "_grain",
        "_high",
        "_last",
        "_left",
        "_low",
        "_newest",
        "_origin",
        "_sign",
        "seconds",
        "sums",
    )

    def __init__(self, aggregate: str, seconds: float) -> None:
        self.seconds = seconds
        self._grain = seconds / RESOLUTION
        self._aggregate = AGGREGATES[aggregate]
        self._sign = {"min": 1.0, "max": -1.0}.get(aggregate, 0.0)
        self._buckets: deque[_Bucket] = deque()
        self._best: deque[_Bucket] = deque()  # of min and max: those that no later one undercuts
        self._newest, self._last, self._origin = -math.inf, math.nan, 0.0
        self._left = 0
        self._low, self._high = math.inf, -math.inf  # no sample that is there is beyond them
        self.sums = [0, 0.0, 0.0, 0.0]  # samples; of their distances from the origin: sum, squares; increases

    def add(self, time: float, value: SignalValue) -> None:
        """Take a sample."""
        if time <= self._newest:
            return
        number = 0.0 if isinstance(value, str) else float(value)
        if not self._buckets:
            self._origin, self.sums, self._left = number, [0, 0.0, 0.0, 0.0], 0
            self._low = self._high = number
        elif number < self._low:
            self._low = number
        elif number > self._high:
            self._high = number
        step = 0.0 if math.isnan(self._last) else number - self._last if number >= self._last else number
        self._newest, self._last = time, number
        distance = number - self._origin
        bucket = self._buckets[-1] if self._buckets else None
        if bucket is not None and time - bucket.start < self._grain:
            bucket.end = time
            bucket.count += 1
            bucket.total += number
            bucket.squares += number * number
            bucket.low, bucket.high = min(bucket.low, number), max(bucket.high, number)
            bucket.rise += step
        else:
            bucket = _Bucket(time, number, step)
            self._buckets.append(bucket)
        sums = self.sums
        sums[0] += 1
        sums[1] += distance
        sums[2] += distance * distance
        sums[3] += step
        if self._sign:
            self._rank(bucket)

    def _rank(self, bucket: _Bucket) -> None:
        best = self._best
        if best and best[-1] is bucket:
            best.pop()
        if self._sign > 0:
            while best and best[-1].low >= bucket.low:
                best.pop()
        else:
            while best and best[-1].high <= bucket.high:
                best.pop()
        best.append(bucket)

    @property
    def due(self) -> float:
        """When the oldest sample leaves that the answer depends on, if none comes."""
        buckets = self._best if self._sign else self._buckets
        return buckets[0].end + self.seconds if buckets else math.inf

    def steady(self, mean: float, bounds: Sequence[float]) -> float:
        """Until when a mean, which is `mean` now, is on the same side of each of `bounds` at least, if no sample comes.

        Without k of n samples, all between low and high, it is at most (n mean - k low) / (n - k), which is below a bound
        while k < n (bound - mean) / (bound - low); and as far from those below.
        """
        buckets, count = self._buckets, self.sums[0]
        if self._aggregate is not _mean or self._sign or count != len(buckets):
            return self.due
        least = float(count)
        if (above := bisect_left(bounds, mean)) < len(bounds) and (bound := bounds[above]) > self._low:
            least = min(least, count * (bound - mean) / (bound - self._low))
        if (below := bisect_right(bounds, mean)) and (bound := bounds[below - 1]) < self._high:
            least = min(least, count * (mean - bound) / (self._high - bound))
        return buckets[max(0, math.ceil(least * ROUNDED) - 1)].end + self.seconds

    def answer(self, now: float) -> float | None:
        """The aggregate at `now`, which does not decrease from call to call."""
        buckets, best = self._buckets, self._best
        while buckets and buckets[0].end + self.seconds <= now:
            gone = buckets.popleft()
            self._left += 1
            sums, origin = self.sums, self._origin
            sums[0] -= gone.count
            sums[1] -= gone.total - gone.count * origin
            sums[2] -= gone.squares - 2 * origin * gone.total + gone.count * origin * origin
            sums[3] -= gone.step + gone.rise
            if best and best[0] is gone:
                best.popleft()
        if self._left > len(buckets):
            self._add_up()
        if self._sign:
            return None if not best else best[0].low if self._sign > 0 else best[0].high
        return self._aggregate(self.sums, self._origin, buckets)

    def _add_up(self) -> None:
        """Add up anew once as many samples have left as are there: rounding errors do not gather."""
        self._left = 0
        if not self._buckets:
            return
        self._origin = origin = self._buckets[0].total / self._buckets[0].count
        self._low, self._high = min(each.low for each in self._buckets), max(each.high for each in self._buckets)
        self.sums = [
            sum(each.count for each in self._buckets),
            math.fsum(each.total - each.count * origin for each in self._buckets),
            math.fsum(each.squares - 2 * origin * each.total + each.count * origin * origin for each in self._buckets),
            math.fsum(each.step + each.rise for each in self._buckets),
        ]


def _mean(sums: list[float], origin: float, buckets: deque[_Bucket]) -> float | None:
    return origin + sums[1] / sums[0] if buckets else None


def _sum(sums: list[float], origin: float, buckets: deque[_Bucket]) -> float | None:
    return sums[0] * origin + sums[1] if buckets else None


def _deviation(sums: list[float], origin: float, buckets: deque[_Bucket]) -> float | None:
    if not buckets:
        return None
    mean = sums[1] / sums[0]
    return math.sqrt(max(0.0, sums[2] / sums[0] - mean * mean))


def _rate(sums: list[float], origin: float, buckets: deque[_Bucket]) -> float | None:
    """Increase a second between the first and the last sample of the window."""
    if not buckets or (seconds := buckets[-1].end - buckets[0].start) <= 0:
        return None
    return max(0.0, sums[3] - buckets[0].step) / seconds


def _count(sums: list[float], origin: float, buckets: deque[_Bucket]) -> float:
    return float(sums[0]) if buckets else 0.0


AGGREGATES: Mapping[str, Callable[[list[float], float, deque[_Bucket]], float | None]] = {
    "avg": _mean, "sum": _sum, "stddev": _deviation, "rate": _rate, "count": _count, "min": _mean, "max": _mean,
}  # fmt: skip
"""By function; least and largest come from a ranking instead."""


class Held:
    """Whether a condition has held for `seconds` without a break: `advance` takes it as it is now."""

    __slots__ = ("_not_false", "_true", "due", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.due = seconds, math.inf
        self._true: float | None = None  # since when it is known to hold
        self._not_false: float | None = None  # since when it may have held

    def advance(self, now: float, condition: Truth) -> Truth:
        """The answer at `now`."""
        if condition is False:
            self._true = self._not_false = None
            self.due = math.inf
            return False
        if self._not_false is None:
            self._not_false = now
        if condition is None:
            self._true = None
        elif self._true is None:
            self._true = now
        ends = [since + self.seconds for since in (self._true, self._not_false) if since is not None]
        self.due = min((end for end in ends if end > now), default=math.inf)
        if self._true is not None and self._true + self.seconds <= now:
            return True
        return None if self._not_false + self.seconds <= now else False


class Then:
    """Whether a second condition began to hold at most `seconds` after the first had held, and not in the same round.

    A condition holds until the round that finds it false. The answer is true for as long as the second goes on to hold. As
    an unknown condition may or may not have held, all states that are possible are kept.
    """

    __slots__ = ("_first", "_maybe", "_states", "_sure", "due", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.due = seconds, math.inf
        self._first: Truth = False  # as the last round left it
        self._sure = self._maybe = -math.inf  # when the first was last known to hold, and may last have held
        self._states: frozenset[Truth] = frozenset({None})  # None: the second does not hold; else whether it was in order

    def advance(self, now: float, first: Truth, second: Truth) -> Truth:
        """The answer at `now`."""
        if self._first is not False:
            self._maybe = now
            if self._first:
                self._sure = now
        orders: Iterable[bool] = (False,)
        if self._sure + self.seconds >= now:
            orders = (True,)
        elif self._maybe + self.seconds >= now:
            orders = (True, False)
        states: set[Truth] = set()
        for state in self._states:
            if second is not True:
                states.add(None)
            if second is not False:
                states.update(orders if state is None else (state,))
        self._states, self._first = frozenset(states), first
        self.due = now if second is None else math.inf  # it may begin in any round
        return True if states == {True} else None if True in states else False
