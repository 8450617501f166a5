"""Time series for forecasts, thinned with age, and the interface of forecasters.

`Observation.history` covers minutes, a season needs weeks. Series are immutable, so that a policy can store them in its
plan's memory.
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

# Bins of the finest part of a series: three and a half days of five minutes, so that two days can be compared.
KEPT = 1024
# Older bins that become one, as in a round-robin database: 40 minutes for 5, then 5 hours and 20 minutes.
FOLDED = 8
# Parts of different width: at five minutes 3.5 days, 28 days more, and 227 days more, in 24 kB.
PARTS = 3
# Quantiles of forecasts.
QUANTILES = (0.1, 0.5, 0.9)


class SeriesOf(NamedTuple):
    """Key of a series: a metric of one row, such as `SeriesOf(Rows.OPERATOR, "clicks", Metric.ARRIVAL_RATE)`."""

    rows: Rows
    name: str
    metric: Metric


@dataclass(frozen=True, eq=False, slots=True)
class TimeSeries:
    """Means over bins of `width` seconds, NaN if nothing was measured.

    Attributes:
        first: Number of the oldest bin, which begins at `first * width`.
        means: Oldest first.
        newest_sum: (sum, count) of the values in the newest bin.
        part: 1 for the finest part; each `older` one has one more.
        last_time: Time of the newest value, known or not.
        latest: (time, value) of the newest known value.
        older: Earlier means, in bins `FOLDED` times as wide.
    """

    width: float
    first: int = 0
    means: Floats = field(default_factory=lambda: np.zeros(0))
    newest_sum: tuple[float, int] = (0.0, 0)
    part: int = 1
    last_time: float = -math.inf
    latest: tuple[float, float] = (-math.inf, math.nan)
    older: "TimeSeries | None" = None

    @property
    def end(self) -> float:
        """End of the newest bin (seconds); 0 if the series is empty."""
        return (self.first + self.means.size) * self.width

    @property
    def newest(self) -> float:
        """Newest known mean; NaN without one."""
        means = self.means[~np.isnan(self.means)]
        return float(means[-1]) if means.size else math.nan

    def at(self, time: float) -> float:
        """Return the mean of the finest bin that contains `time`; NaN without one."""
        row = math.floor(time / self.width + ROUNDING) - self.first
        return float(self.means[row]) if 0 <= row < self.means.size else math.nan

    def extended(self, times: Iterable[float], values: Iterable[float]) -> "TimeSeries":
        """Return the series with further values. Each value holds for the time before it; unknown ones are left out.

        Args:
            times: Ascending (seconds).
        """
        book = self
        for time, value in zip(times, values, strict=True):
            if not math.isnan(value):
                book = replace(book._add(max(0, math.ceil(time / self.width - ROUNDING) - 1), value), latest=(time, value))
            book = replace(book, last_time=time)
        return book

    def _add(self, number: int, value: float) -> "TimeSeries":
        """Return the series with `value` in bin `number`; older bins do not change."""
        newest = self.first + self.means.size - 1
        if self.means.size and number < newest:
            return self
        if self.means.size and number == newest:
            total, count = self.newest_sum[0] + value, self.newest_sum[1] + 1
            means = self.means.copy()
            means[-1] = total / count
            return replace(self, means=means, newest_sum=(total, count))
        if not self.means.size or number - newest > KEPT * FOLDED ** (PARTS - self.part):  # all would be forgotten
            return TimeSeries(self.width, number, np.array([value]), (value, 1), self.part)
        means = np.append(self.means, np.full(number - newest, math.nan))
        means[-1] = value
        return replace(self, means=means, newest_sum=(value, 1))._thinned()

    def _thinned(self) -> "TimeSeries":
        """Return the series with whole groups of bins beyond `KEPT` merged into wider ones."""
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
        """Return up to `bins` means, the last ending by `until`. A wider bin counts for each bin that it was made of."""
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


# All series of a run.
Book = Mapping[SeriesOf, TimeSeries]


def collected(book: Book, observation: Observation, width: float) -> Book:
    """Return `book` with the sources' rates, hosts' speeds and links' bandwidths of `observation`.

    Rates are those of every monitoring time since the last one. Hosts and links that are gone are left out.
    """
    updated: dict[SeriesOf, TimeSeries] = {}

    def take(subject: SeriesOf, times: Iterable[float], values: Iterable[float]) -> None:
        updated[subject] = book.get(subject, TimeSeries(width)).extended(times, values)

    for source in observation.context.graph.sources:
        subject = SeriesOf(Rows.OPERATOR, source.name, Metric.ARRIVAL_RATE)
        times, values = observation.series(source.name, Metric.ARRIVAL_RATE)
        begin = book[subject].last_time if subject in book else -math.inf
        take(subject, times[times > begin].tolist(), values[times > begin].tolist())
    now = (observation.time,)
    for frame, rows, metric in (
        (observation.hosts, Rows.HOST, Metric.SPEED),
        (observation.links, Rows.LINK, Metric.BANDWIDTH),
    ):
        for name, value in zip(frame.ids, frame.column(metric).tolist(), strict=True):
            take(SeriesOf(rows, name, metric), now, (value,))
    return updated


@dataclass(frozen=True, slots=True)
class Ahead:
    """Period of a forecast: `steps` steps of `seconds` each, from `start`."""

    start: float
    seconds: float
    steps: int

    @property
    def edges(self) -> Floats:
        """Begin of each step and end of the last; shape (steps + 1,)."""
        edges: Floats = self.start + self.seconds * np.arange(self.steps + 1, dtype=np.float64)
        return edges

    @property
    def end(self) -> float:
        """End of the last step."""
        return self.start + self.seconds * self.steps


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """A forecast.

    Attributes:
        mean: Mean of each step, shape (steps,); NaN if unknown.
        quantiles: Shape (len(QUANTILES), steps).
        by: Method used.
    """

    mean: Floats
    quantiles: Floats
    by: str = ""


def flat(value: float, steps: int, by: str) -> Outlook:
    """Return the forecast that `value` lasts; NaN if it is unknown."""
    mean = np.full(steps, value)
    return Outlook(mean, np.tile(mean, (len(QUANTILES), 1)), by)


class Forecaster(Protocol):
    """Interface of forecasters. Immutable: what one learns is returned as memory."""

    @property
    def name(self) -> str:
        """Name for people."""
        ...

    @property
    def learns(self) -> bool:
        """True if more data may improve the forecast."""
        ...

    def foresee(self, book: Book, ahead: Ahead, memory: Any = None) -> tuple[Mapping[SeriesOf, Outlook], Any]:
        """Return a forecast for each series, and memory for the next call.

        Equal arguments give equal forecasts. Unknown means are NaN.

        Args:
            memory: From the last call in the run; None in the first.
        """
        ...

    def lacking(self) -> str:
        """Return what is missing for it to work, as a sentence; empty if nothing is."""
        ...
