"""Loads as piecewise linear rates, with counts that are identical on every machine: IEEE 754 defines all operations."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastream.core.metrics import Quantity
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.errors import DataflowError
from elastream.units import MAX_DURATION_S, duration
from elastream.units import rate as rate_of

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

MAX_PIECES = 10_000_000  # some 1.5 GB: one wrong time or exponent in a load must not take all of a machine's memory
RECORD_TOLERANCE = 1e-6  # A record is due when all but this fraction has arrived: 100/s has 29 records at 0.29 s, not 28.


def check_pieces(number: int, what: str) -> None:
    if number > MAX_PIECES:
        raise DataflowError(f"{what} makes a load of {number:,} pieces; at most {MAX_PIECES:,} can be")


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a load in which the rate changes linearly from `first` to `last` (records/s).

    Attributes:
        total: Records in it; default: the integral of the rate. A trace sets the recorded count.
    """

    seconds: float
    first: float
    last: float
    total: float = math.nan

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise DataflowError(f"a piece of a load lasts {self.seconds:g} s; it must be above 0 and finite")
        if not (0 <= self.first < math.inf and 0 <= self.last < math.inf):
            raise DataflowError(
                f"a load goes from {self.first:g}/s to {self.last:g}/s; a rate must be finite and not negative"
            )
        if max(self.first, self.last) > Quantity.RATE.most or self.seconds > MAX_DURATION_S:
            raise DataflowError(
                f"a load of {max(self.first, self.last):g}/s for {self.seconds:g} s makes no sense: at most "
                f"{Quantity.RATE.most:g}/s, for at most 31 years, can be"
            )
        if math.isnan(self.total):
            object.__setattr__(self, "total", (self.first + self.last) / 2 * self.seconds)

    def reversed(self) -> "Section":
        return Section(self.seconds, self.last, self.first, self.total)

    def until(self, seconds: float) -> "Section":
        share = seconds / self.seconds
        if share >= 1:
            return self
        if self.first == self.last:
            return Section(seconds, self.first, self.last, self.total * share)
        return Section(seconds, self.first, self.first + (self.last - self.first) * share)


@dataclass(frozen=True)
class Pattern:
    """Load over time (an `ArrivalPattern`): a sequence of sections, repeated if `endless`.

    `count` is the integral of `rate`, rounded down. Immutable: methods return new patterns.

    Attributes:
        begins: Time of 0 on the load's own clock, seconds since 1970; None without a recorded one, or if it runs faster.
    """

    pieces: tuple[Section, ...]
    endless: bool = False
    begins: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.pieces:
            raise DataflowError("a load has no piece; it needs at least one")

    def __repr__(self) -> str:
        lasts = "endless" if self.endless else f"{self.seconds:g} s"
        return f"Pattern({len(self.pieces)} pieces, {lasts}, {self.period_total:g} records)"

    @property
    def seconds(self) -> float:
        """Length (seconds); inf if endless."""
        return math.inf if self.endless else self.period

    @cached_property
    def ends(self) -> tuple[float, ...]:
        """End of each section within a period (seconds)."""
        return tuple(accumulate(piece.seconds for piece in self.pieces))

    @cached_property
    def totals(self) -> tuple[float, ...]:
        return tuple(accumulate(piece.total for piece in self.pieces))

    @property
    def period(self) -> float:
        """Length of all sections (seconds)."""
        return self.ends[-1]

    @property
    def period_total(self) -> float:
        return self.totals[-1]

    def rate(self, time: float) -> float:
        """Return the rate at `time` (records/s), right-continuous; 0 outside the load."""
        if time < 0 or time >= self.seconds:
            return 0.0
        within = math.fmod(time, self.period)
        at = min(bisect_right(self.ends, within), len(self.pieces) - 1)
        piece = self.pieces[at]
        since = within - (self.ends[at - 1] if at else 0.0)
        return piece.first + (piece.last - piece.first) * min(1.0, since / piece.seconds)

    def count(self, time: float) -> int:
        return int(counts(self, time))

    def due(self, number: int) -> float:
        """Return the smallest time with `count(time) > number`; inf if never."""
        if number < 0:
            return 0.0
        guess = float(dues(self, [number])[0])
        if math.isinf(guess):
            return math.inf
        # The inverse is accurate to a few bits; bisection between two bracketing times finds the smallest float.
        low, high, step = guess, guess, max(math.ulp(guess), 1e-12)
        while low > 0 and self.count(low) > number:
            low, step = max(0.0, low - step), step * 2
        step = max(math.ulp(guess), 1e-12)
        while self.count(high) <= number:
            high, step = high + step, step * 2
        while low < (middle := low + (high - low) / 2) < high:
            low, high = (low, middle) if self.count(middle) > number else (middle, high)
        return high

    def then(self, other: "Pattern") -> "Pattern":
        """Return this load followed by `other`; raises DataflowError if either is endless."""
        self._must_end("followed")
        if other.endless:
            raise DataflowError("an endless load cannot be the second part of another; give it an end with .lasting(...)")
        return replace(self, pieces=self.pieces + other.pieces)

    def then_back(self) -> "Pattern":
        """Return this load and its mirror image, without a constant end twice."""
        self._must_end("turned back")
        top = self.pieces[-1].last
        turn = len(self.pieces)
        while turn > 1 and self.pieces[turn - 1].first == self.pieces[turn - 1].last == top:
            turn -= 1
        return replace(self, pieces=self.pieces + tuple(piece.reversed() for piece in reversed(self.pieces[:turn])))

    def hold(self, lasts: float | str) -> "Pattern":
        """Return this load followed by its last rate for `lasts`."""
        self._must_end("held")
        level = self.pieces[-1].last
        return replace(self, pieces=(*self.pieces, Section(duration(lasts), level, level)))

    def scaled(self, factor: float) -> "Pattern":
        """Return `factor` times as many records."""
        if not 0 <= factor < math.inf:
            raise DataflowError(f"a load cannot be scaled by {factor:g}; the factor must be finite and not negative")
        pieces = tuple(Section(p.seconds, p.first * factor, p.last * factor, p.total * factor) for p in self.pieces)
        return replace(self, pieces=pieces)

    def faster(self, factor: float) -> "Pattern":
        """Return the same records in 1/`factor` of the time."""
        if not 0 < factor < math.inf:
            raise DataflowError(f"a load cannot run {factor:g} times faster; the factor must be finite and above 0")
        return Pattern(
            tuple(Section(p.seconds / factor, p.first * factor, p.last * factor, p.total) for p in self.pieces),
            self.endless,
        )

    def repeated(self, times: int | None = None) -> "Pattern":
        self._must_end("repeated")
        if times is None:
            return replace(self, endless=True)
        if times < 1:
            raise DataflowError(f"a load cannot be repeated {times} times; it must be at least once")
        check_pieces(len(self.pieces) * times, f"{len(self.pieces):,} pieces, repeated {times:,} times,")
        return replace(self, pieces=self.pieces * times)

    def lasting(self, lasts: float | str) -> "Pattern":
        """Return the first `lasts` of this load; raises DataflowError if it is shorter."""
        left = duration(lasts)
        if left > self.seconds or math.isinf(left):
            raise DataflowError(f"a load of {self.seconds:g} s cannot be cut to {left:g} s, which is longer")
        only = self.pieces[0]
        if self.endless and len(self.pieces) == 1 and only.first == only.last:
            return replace(self, pieces=(Section(left, only.first, only.last),), endless=False)
        check_pieces(int(left / self.period) * len(self.pieces), f"a period of {self.period:g} s, lasting {left:g} s,")
        whole, left = divmod(left, self.period)
        pieces = list(self.pieces * int(whole))
        for piece in self.pieces:
            if left <= 0:
                break
            pieces.append(piece.until(left))
            left -= piece.seconds
        return replace(self, pieces=tuple(pieces), endless=False)

    def _must_end(self, what: str) -> None:
        if self.endless:
            raise DataflowError(f"an endless load cannot be {what}; give it an end with .lasting(...)")

    @cached_property
    def _table(self) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
        rows = np.array([(p.seconds, p.first, p.last, p.total) for p in self.pieces])
        return np.array(self.ends), np.array(self.totals), rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3]


def counts(pattern: ArrivalPattern, edges: ArrayLike) -> Integers:
    """Return `pattern.count` at each time in `edges`, vectorised.

    Counts never decrease.
    """
    times = np.asarray(edges, dtype=np.float64)
    if not isinstance(pattern, Pattern):
        return np.array([pattern.count(float(time)) for time in times.ravel()], dtype=np.int64).reshape(times.shape)
    ends, totals, seconds, first, last, total = pattern._table
    inside = np.clip(times, 0.0, pattern.seconds)
    rounds, within = np.divmod(inside, pattern.period)
    at = np.minimum(np.searchsorted(ends, within, side="right"), len(ends) - 1)
    start, before = np.where(at > 0, ends[at - 1], 0.0), np.where(at > 0, totals[at - 1], 0.0)
    since, left = np.maximum(0.0, within - start), np.maximum(0.0, ends[at] - within)
    slope = (last - first)[at] / seconds[at]
    so_far = before + np.where(
        slope == 0,
        total[at] * (since / seconds[at]),
        np.where(slope > 0, since * (first[at] + slope * since / 2), total[at] - left * (last[at] - slope * left / 2)),
    )
    reached = rounds * pattern.period_total + np.minimum(np.maximum(so_far, before), totals[at])
    reached = np.floor(np.minimum(reached, (rounds + 1) * pattern.period_total) + RECORD_TOLERANCE)
    whole = math.floor(pattern.period_total + RECORD_TOLERANCE)
    return np.where(inside >= pattern.seconds, whole, reached).astype(np.int64)


def dues(pattern: ArrivalPattern, numbers: ArrayLike) -> Floats:
    targets = np.asarray(numbers, dtype=np.float64)
    if not isinstance(pattern, Pattern):
        return np.array([pattern.due(int(number)) for number in targets.ravel()]).reshape(targets.shape)
    if pattern.period_total <= RECORD_TOLERANCE:
        return np.full(targets.shape, math.inf)
    ends, totals, seconds, first, last, total = pattern._table
    target = targets + (1 - RECORD_TOLERANCE)
    rounds = np.maximum(0.0, np.ceil(target / pattern.period_total) - 1)
    missing = np.maximum(0.0, target - rounds * pattern.period_total)
    at = np.minimum(np.searchsorted(totals, missing, side="left"), len(ends) - 1)
    begin, before = np.where(at > 0, ends[at - 1], 0.0), np.where(at > 0, totals[at - 1], 0.0)
    need = missing - before
    half = (last - first)[at] / seconds[at] / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total[at] > 0, need / total[at], 0.0)
        # The stable root of half t^2 + first t = need.
        root = 2 * need / (first[at] + np.sqrt(np.maximum(0.0, first[at] ** 2 + 4 * half * need)))
    within = np.where(half == 0, share * seconds[at], np.nan_to_num(root))
    times = rounds * pattern.period + begin + np.clip(within, 0.0, seconds[at])
    return np.where((rounds > 0) & (not pattern.endless), math.inf, np.where(targets < 0, 0.0, times))


def chain(patterns: Iterable[Pattern]) -> Pattern:
    """Return the patterns, at least one, one after the other. Raises DataflowError if one of several is endless."""
    first, *others = patterns
    for other in others:
        first = first.then(other)
    return first


LINES_PER_PERIOD = 360  # linear pieces of a sine; the error is at most (pi / 360)^2 / 2 = 0.004 % of its amplitude

STEP_DOWN_BELOW, STEP_UP_ABOVE = 0.4, 0.6  # VISP's Eq. (6): a step down where R < 0.4, up where R > 0.6


def constant(rate: float | str, lasts: float | str | None = None) -> Pattern:
    """Return a constant `rate` (records/s, or `"5/s"`) for `lasts`, or endless."""
    level = rate_of(rate)
    seconds = 1.0 if lasts is None else duration(lasts)
    return Pattern((Section(seconds, level, level),), endless=lasts is None)


def steps(*levels: float | str | tuple[float | str, float | str], every: float | str | None = None) -> Pattern:
    """Return a sequence of rates: each lasts `every`, or is a pair (rate, duration)."""
    pieces = []
    for level in levels:
        rate, lasts = level if isinstance(level, tuple) else (level, every)
        if lasts is None:
            raise DataflowError(f"the step at {rate} has no duration: write every='30s' or ({rate!r}, '30s')")
        pieces.append(Section(duration(lasts), rate_of(rate), rate_of(rate)))
    return Pattern(tuple(pieces))


def ramp(start: float | str, end: float | str, over: float | str) -> Pattern:
    """Return a rate that changes linearly from `start` to `end`."""
    return Pattern((Section(duration(over), rate_of(start), rate_of(end)),))


def sine(low: float | str, high: float | str, period: float | str) -> Pattern:
    """Return an endless sine from `low` to `high` after half a `period`; `Pattern.lasting` limits it."""
    bottom, top, seconds = rate_of(low), rate_of(high), duration(period)
    # Rounded, because the last bit of a cosine differs between machines and a count must not.
    waves = [round((1 - math.cos(2 * math.pi * k / LINES_PER_PERIOD)) / 2, 12) for k in range(LINES_PER_PERIOD + 1)]
    rates = [bottom + (top - bottom) * wave for wave in waves]
    each = seconds / LINES_PER_PERIOD
    return Pattern(tuple(Section(each, a, b) for a, b in pairwise(rates)), endless=True)


def random_walk(
    start: float | str,
    step: float | str,
    *,
    low: float | str,
    high: float | str,
    every: float | str,
    lasts: float | str,
    seed: int,
) -> Pattern:
    """Return a random walk: each `every`, the rate moves a `step` down or up (probability 0.4 each) or stays.

    Steps beyond [`low`, `high`] are not taken. A seed gives the same load on every machine. Source: VISP, Eq. (6), there
    in machines (start 4, step 1, low 1, high 8).
    """
    level, size, bottom, top = (rate_of(value) for value in (start, step, low, high))
    each, left = duration(every), duration(lasts)
    if not bottom <= level <= top:
        raise DataflowError(f"a random walk between {bottom:g}/s and {top:g}/s cannot start at {level:g}/s")
    if not each > 0:
        raise DataflowError(f"a random walk has {each:g} s between its steps; it must be above 0")
    check_pieces(math.ceil(left / each), f"a random walk with a step every {each:g} s for {left:g} s")
    draw = random.Random(seed)
    pieces, place, began = [], 0, level
    for number in range(math.ceil(left / each)):
        level = began + place * size
        pieces.append(Section(min(each, left - number * each), level, level))
        chance = draw.random()
        moved = place - 1 if chance < STEP_DOWN_BELOW else place + 1 if chance > STEP_UP_ABOVE else place
        place = moved if bottom <= began + moved * size <= top else place
    return Pattern(tuple(pieces))
