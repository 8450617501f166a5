"""Memory of functions of time: windows, ages, persistence and order of conditions.

`advance` runs once a round. Its value is None (unknown) unless all possible inputs give the same.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from elastream.dataflow.signals import SignalValue

Truth: TypeAlias = bool | None

# parts of a window within which samples merge: bounds its memory and its edge's error
RESOLUTION = 5_000


class _Bucket:
    """Samples of one part of a window.

    `step` is the increase from the sample before, `rise` that after the first.
    """

    __slots__ = ("count", "end", "high", "low", "rise", "squares", "start", "step", "total")

    def __init__(self, time: float, value: float, step: float) -> None:
        self.start = self.end = time
        self.count, self.total, self.squares = 1, value, value * value
        self.low = self.high = value
        self.step, self.rise = step, 0.0

    def add(self, time: float, value: float, step: float) -> None:
        self.end = time
        self.count += 1
        self.total += value
        self.squares += value * value
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.rise += step

    def sums(self, origin: float) -> tuple[float, float, float]:
        """Return the sums of distances from `origin`, of their squares, and of increases."""
        squares = self.squares - 2 * origin * self.total + self.count * origin * origin
        return self.total - self.count * origin, squares, self.step + self.rise


class SampleWindow:
    """Samples of a signal in (now - seconds, now], and one aggregate.

    Samples no newer than the last are ignored. `aggregate`: avg, sum, stddev, rate, count, min or max.
    """

    def __init__(self, aggregate: str, seconds: float) -> None:
        self.aggregate, self.seconds = aggregate, seconds
        self._buckets: deque[_Bucket] = deque()
        self._newest, self._last = -math.inf, math.nan
        # Distances are from an origin near the samples: squares of large values would cancel each other badly.
        self._origin, self._expired = 0.0, 0
        self._count, self._sum, self._squares, self._rise = 0, 0.0, 0.0, 0.0

    def add(self, time: float, value: SignalValue) -> None:
        if time <= self._newest:
            return
        number = 0.0 if isinstance(value, str) else float(value)
        if not self._buckets:
            self._origin = number
            self._add_up()
        # A counter that decreases was restarted at zero.
        step = 0.0 if math.isnan(self._last) else number - self._last if number >= self._last else number
        self._newest, self._last = time, number
        if self._buckets and time - self._buckets[-1].start < self.seconds / RESOLUTION:
            self._buckets[-1].add(time, number, step)
        else:
            self._buckets.append(_Bucket(time, number, step))
        distance = number - self._origin
        self._count += 1
        self._sum += distance
        self._squares += distance * distance
        self._rise += step

    def advance(self, now: float) -> float | None:
        """Drop old samples and return the aggregate, None if undefined."""
        buckets = self._buckets
        while buckets and buckets[0].end + self.seconds <= now:
            oldest = buckets.popleft()
            total, squares, rise = oldest.sums(self._origin)
            self._count -= oldest.count
            self._sum -= total
            self._squares -= squares
            self._rise -= rise
            self._expired += 1
        if self._expired > len(buckets):  # once as many samples have left as remain: rounding errors must not gather
            self._origin = buckets[0].total / buckets[0].count if buckets else 0.0
            self._add_up()
        if self.aggregate == "count":
            return float(self._count)
        return self._aggregate() if buckets else None

    def _add_up(self) -> None:
        sums = [bucket.sums(self._origin) for bucket in self._buckets]
        self._count = sum(bucket.count for bucket in self._buckets)
        self._sum, self._squares, self._rise = (math.fsum(each[n] for each in sums) for n in range(3))
        self._expired = 0

    def _aggregate(self) -> float | None:
        buckets, count = self._buckets, self._count
        match self.aggregate:
            case "avg":
                return self._origin + self._sum / count
            case "sum":
                return count * self._origin + self._sum
            case "stddev":
                mean = self._sum / count
                return math.sqrt(max(0.0, self._squares / count - mean * mean))
            case "min":
                return min(bucket.low for bucket in buckets)
            case "max":
                return max(bucket.high for bucket in buckets)
        seconds = buckets[-1].end - buckets[0].start  # of a rate, from the first sample to the last
        return max(0.0, self._rise - buckets[0].step) / seconds if seconds > 0 else None


@dataclass(slots=True)
class Age:
    """Seconds since a signal's newest sample."""

    time: float = -math.inf

    def add(self, time: float, value: SignalValue) -> None:
        self.time = time

    def advance(self, now: float, value: SignalValue | None) -> float | None:
        return None if value is None else now - self.time


@dataclass(slots=True)
class Persistence:
    """Condition that must hold for `seconds`; it holds since `certain`, or maybe since `possible`."""

    seconds: float
    certain: float | None = None
    possible: float | None = None

    def advance(self, now: float, condition: Truth) -> Truth:
        if condition is False:
            self.certain = self.possible = None
            return False
        if self.possible is None:
            self.possible = now
        if condition is None:
            self.certain = None
        elif self.certain is None:
            self.certain = now
        if self.certain is not None and self.certain + self.seconds <= now:
            return True
        return None if self.possible + self.seconds <= now else False


class Order:
    """Second condition that begins at most `seconds` after the first held, in a later round.

    It stays true while the second holds. Unknown conditions leave several states.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._first: Truth = False  # in the last round
        self._certain = self._possible = -math.inf  # when the first condition last held for certain, and may have held
        self._states: frozenset[Truth] = frozenset({None})  # None: the second does not hold; else whether in order

    def advance(self, now: float, first: Truth, second: Truth) -> Truth:
        if self._first is not False:
            self._possible = now
            if self._first:
                self._certain = now
        orders: tuple[bool, ...] = (False,)
        if self._certain + self.seconds >= now:
            orders = (True,)
        elif self._possible + self.seconds >= now:
            orders = (True, False)
        states: set[Truth] = set()
        for state in self._states:
            if second is not True:
                states.add(None)
            if second is not False:
                states.update(orders if state is None else (state,))
        self._states, self._first = frozenset(states), first
        return True if states == {True} else None if True in states else False
