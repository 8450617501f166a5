"""What was measured, kept for forecasts: series of one quantity each, thinned with age; and what a forecaster is.

`Observation.history` is short (minutes), and a season needs weeks. A series is a value: adding to it makes another, so that
a policy may keep it in its plan's memory.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.units import ROUNDING

KEPT = 1024
"""Bins of the finest part of a series: three and a half days of five minutes, so that two days can be compared."""
FOLDED = 8
"""Bins that become one when they are older, as in a round-robin database: 40 minutes of 5, then 5 hours and 20 minutes."""
PARTS = 3
"""Parts of different width: at five minutes 3.5 days, 28 days more, and 227 days more, in 24 kB."""
QUANTILES = (0.1, 0.5, 0.9)
"""Quantiles that forecasts have."""


class SeriesOf(NamedTuple):
    """What a series is of: a metric of one row, `SeriesOf(Rows.OPERATOR, "clicks", Metric.ARRIVAL_RATE)`."""

    rows: Rows
    name: str
    metric: Metric


@dataclass(frozen=True, eq=False, slots=True)
class TimeSeries:
    """Means over bins of `width` seconds, NaN where nothing was measured.

    first: number of the oldest bin, which lasts from `first * width` to `(first + 1) * width`. means: oldest first. taken:
    (sum, number) of what the newest bin is the mean of. part: 1 for the finest, and one more for each that is `older`: what
    came before, in bins `FOLDED` times as wide. seen: time of the newest value that was given, known or not;
    latest: (time, value) of the newest known one.
    """

    width: float
    first: int = 0
    means: Floats = field(default_factory=lambda: np.zeros(0))
    taken: tuple[float, int] = (0.0, 0)
    part: int = 1
    seen: float = -math.inf
    latest: tuple[float, float] = (-math.inf, math.nan)
    older: "TimeSeries | None" = None

    @property
    def end(self) -> float:
        """End of the newest bin, seconds; the series knows nothing later. 0 where it is empty."""
        return (self.first + self.means.size) * self.width

    @property
    def newest(self) -> float:
        """The newest known mean; NaN without any."""
        known = self.means[~np.isnan(self.means)]
        return float(known[-1]) if known.size else math.nan

    def at(self, time: float) -> float:
        """Mean of the bin that `time` is in; NaN where it is not one of the finest part."""
        row = math.floor(time / self.width + ROUNDING) - self.first
        return float(self.means[row]) if 0 <= row < self.means.size else math.nan

    def extended(self, times: Iterable[float], values: Iterable[float]) -> "TimeSeries":
        """With what was measured at `times`, ascending: each is of the time up to it. Unknown values are left out."""
        found = self
        for time, value in zip(times, values, strict=True):
            if not math.isnan(value):
                found = replace(
                    found._add(max(0, math.ceil(time / self.width - ROUNDING) - 1), value), latest=(time, value)
                )
            found = replace(found, seen=time)
        return found

    def _add(self, number: int, value: float) -> "TimeSeries":
        """With `value` in bin `number`; what is older than the newest bin is left out."""
        newest = self.first + self.means.size - 1
        if self.means.size and number < newest:
            return self
        if self.means.size and number == newest:
            total, count = self.taken[0] + value, self.taken[1] + 1
            means = self.means.copy()
            means[-1] = total / count
            return replace(self, means=means, taken=(total, count))
        if not self.means.size or number - newest > KEPT * FOLDED ** (PARTS - self.part):  # all would be forgotten
            return TimeSeries(self.width, number, np.array([value]), (value, 1), self.part)
        means = np.append(self.means, np.full(number - newest, math.nan))
        means[-1] = value
        return replace(self, means=means, taken=(value, 1))._thinned()

    def _thinned(self) -> "TimeSeries":
        """With bins beyond `KEPT` folded into wider ones, whole ones at a time."""
        beyond = self.first + self.means.size - KEPT
        cut = beyond - beyond % FOLDED
        if cut <= self.first:
            return self
        if self.part == PARTS:
            return replace(self, first=cut, means=self.means[cut - self.first :])
        older = self.older or TimeSeries(self.width * FOLDED, part=self.part + 1)
        start = self.first - self.first % FOLDED
        whole = np.append(np.full(self.first - start, math.nan), self.means[: cut - self.first]).reshape(-1, FOLDED)
        for number, bins in enumerate(whole, start // FOLDED):
            if not np.isnan(bins).all():
                older = older._add(number, float(np.nanmean(bins)))
        return replace(self, first=cut, means=self.means[cut - self.first :], older=older)

    def recent(self, bins: int, until: float = math.inf) -> Floats:
        """Up to `bins` means of `width`, the last ending by `until`; a wider one counts for each that it was made of."""
        size = self.means.size
        if math.isfinite(until):
            size = min(size, max(0, math.floor(until / self.width + ROUNDING) - self.first))
        own = self.means[max(0, size - bins) : size]
        missing = bins - own.size
        if missing <= 0 or self.older is None:
            return own
        before = np.repeat(self.older.recent(-(-missing // FOLDED) + 1), FOLDED)
        gap = self.first - (self.older.first + self.older.means.size) * FOLDED
        joined = np.concatenate([before, np.full(max(0, gap), math.nan), own])
        return joined[-bins:]


Book = Mapping[SeriesOf, TimeSeries]
"""All series of a run."""


def collected(book: Book, observation: Observation, width: float) -> Book:
    """`book` with what `observation` has of sources' rates, hosts' speeds and links, in bins of `width` seconds.

    Rates are those of every monitoring time since the last that was taken; the rest is as of now. What there is no more (a
    host that is gone, and its links) is left out.
    """
    found: dict[SeriesOf, TimeSeries] = {}

    def take(subject: SeriesOf, times: Iterable[float], values: Iterable[float]) -> None:
        found[subject] = book.get(subject, TimeSeries(width)).extended(times, values)

    for source in observation.context.graph.sources:
        subject = SeriesOf(Rows.OPERATOR, source.name, Metric.ARRIVAL_RATE)
        times, values = observation.series(source.name, Metric.ARRIVAL_RATE)
        begin = book[subject].seen if subject in book else -math.inf
        take(subject, times[times > begin].tolist(), values[times > begin].tolist())
    now = (observation.time,)
    for frame, rows, metric in (
        (observation.hosts, Rows.HOST, Metric.SPEED),
        (observation.links, Rows.LINK, Metric.BANDWIDTH),
    ):
        for name, value in zip(frame.ids, frame.column(metric).tolist(), strict=True):
            take(SeriesOf(rows, name, metric), now, (value,))
    return found


@dataclass(frozen=True, slots=True)
class Ahead:
    """The time that a forecast is of: `steps` steps of `seconds` each, from `start` on."""

    start: float
    seconds: float
    steps: int

    @property
    def edges(self) -> Floats:
        """Where steps begin, and where the last ends; shape (steps + 1,)."""
        found: Floats = self.start + self.seconds * np.arange(self.steps + 1, dtype=np.float64)
        return found

    @property
    def end(self) -> float:
        """Where the last step ends."""
        return self.start + self.seconds * self.steps


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """A forecast. mean: of each step, shape (steps,); NaN where unknown. quantiles: shape (len(QUANTILES), steps). by: the
    method that it is of."""

    mean: Floats
    quantiles: Floats
    by: str = ""


def flat(value: float, steps: int, by: str) -> Outlook:
    """The forecast that `value` lasts, NaN where that is unknown."""
    mean = np.full(steps, value)
    return Outlook(mean, np.tile(mean, (len(QUANTILES), 1)), by)


class Forecaster(Protocol):
    """Looks ahead. A value that holds settings only; what it learned it returns, and is given again."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it may tell more as soon as more is known, so that it is asked again where it proved wrong."""
        ...

    def foresee(self, book: Book, ahead: Ahead, memory: Any = None) -> tuple[Mapping[SeriesOf, Outlook], Any]:
        """(an outlook for each series of `book`, memory). memory: of its last call in the same run, None in the first.

        Called again with the same time ahead it answers the same. Where it cannot tell, means are NaN.
        """
        ...

    def lacking(self) -> str:
        """What it cannot work without, in one sentence; empty where it has all."""
        ...
