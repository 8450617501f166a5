"""Time series for forecasts, thinned with age, the interface of forecasters, and the oracle (Kumbhare, pp. 112-113)."""

import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.plant import Prospect
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.errors import InputError
from elastream.loads.pattern import counts
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
        newest_sum: (sum, count) of the values in the newest bin.
        part: 1 for the finest part; each `older` one has one more.
        last_time: Time of the newest value, known or not.
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
        newest = self.first + self.means.size - 1
        if self.means.size and number < newest:
            return self
        if self.means.size and number == newest:
            total, count = self.newest_sum[0] + value, self.newest_sum[1] + 1
            means = self.means.copy()
            means[-1] = total / count
            return replace(self, means=means, newest_sum=(total, count))
        if not self.means.size or number - newest > KEPT * FOLDED ** (PARTS - self.part):  # earlier bins are too old
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

    Rates are those of every monitoring time since the last one. Absent hosts and links are left out.
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
        return np.asarray(self.start + self.seconds * np.arange(self.steps + 1, dtype=np.float64))

    @property
    def end(self) -> float:
        return self.start + self.seconds * self.steps


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """A forecast.

    Attributes:
        mean: Mean of each step, shape (steps,); NaN if unknown.
        quantiles: Shape (len(QUANTILES), steps).
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
    def name(self) -> str: ...

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
        """Return a sentence on what it lacks to work, or ""."""
        ...


# How a step's error sets its draws.
Spread: TypeAlias = Literal["variance", "size"]
# Standard deviation of a normal distribution over its mean absolute value.
DEVIATION_OF_SIZE = math.sqrt(math.pi / 2)
# Relative error at which drawn errors are cut off: a rate is never negative.
MOST_ERROR = 1.0
# Least part of a host's speed or a link's bandwidth in a forecast: nothing runs on a host of speed 0.
SLOWEST = 0.05
# Times within a step at which a function of time is averaged.
SAMPLES = 8
# Records in a step from which they are counted exactly; fewer are the mean of the rate.
COUNTED = 100
# Random-number stream of oracles, apart from those of the plants.
STREAM = 5


@dataclass(frozen=True)
class Oracle:
    """Forecaster that knows the simulated future, with an adjustable error.

    Args:
        error: Mean error e: from 0 in the first step to 2e in the last, drawn from a normal distribution.
        bias: Added to all forecasts.
        spread: `"variance"`: half of a step's error, as on p. 113. `"size"`: the draws' mean absolute value is the error.
        seed: Seed of the errors, with the subject and the time of the forecast.
        prospect: Future of the run; None until `prepared` was called.

    Raises:
        InputError: An error or bias is no fraction.
    """

    error: float = 0.0
    bias: float = 0.0
    spread: Spread = "variance"
    seed: int = 1
    prospect: Prospect | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.error <= MOST_ERROR / 2:
            raise InputError(f"an oracle's error of {self.error:g}: it must be 0 to {MOST_ERROR / 2:g}")
        if not -MOST_ERROR < self.bias < MOST_ERROR:
            raise InputError(f"an oracle's bias of {self.bias:g}: it must be between -1 and 1, such as 0.05")
        if self.spread not in ("variance", "size"):
            raise InputError(f"an oracle's spread of {self.spread!r}: it is 'variance' or 'size'")

    @property
    def learns(self) -> bool:
        """False: an earlier forecast is as good as a later one."""
        return False

    @property
    def name(self) -> str:
        words = [f"error {self.error:.0%}"] * (self.error > 0) + [f"bias {self.bias:+.0%}"] * (self.bias != 0)
        return f"oracle, {', '.join(words)}" if words else "oracle"

    def prepared(self, prospect: Prospect) -> "Oracle":
        return replace(self, prospect=prospect)

    def lacking(self) -> str:
        if self.prospect is not None:
            return ""
        return "an oracle knows simulated runs only: take forecast=real, or simulate"

    def foresee(self, book: Book, ahead: Ahead, memory: Any = None) -> tuple[Mapping[SeriesOf, Outlook], Any]:
        """Forecast each series with error. Constants last; a rate without a declared load is unknown."""
        return {subject: self._of(subject, series, ahead) for subject, series in book.items()}, memory

    def _of(self, subject: SeriesOf, series: TimeSeries, ahead: Ahead) -> Outlook:
        true = self._true(subject, series, ahead)
        share = np.linspace(0.0, 2 * self.error, ahead.steps) if ahead.steps > 1 else np.zeros(1)
        deviation = share * DEVIATION_OF_SIZE if self.spread == "size" else np.sqrt(share / 2)
        drawn = deviation * self._draws(subject, ahead).standard_normal(ahead.steps)
        least = 0.0 if subject.metric is Metric.ARRIVAL_RATE else SLOWEST

        def off(by: Floats) -> Floats:
            return np.asarray(true * np.maximum(1 + np.clip(by, -MOST_ERROR, MOST_ERROR) + self.bias, least))

        mean = off(drawn)
        quantiles = [off(drawn + NormalDist().inv_cdf(each) * deviation) for each in QUANTILES]
        return Outlook(mean, np.array(quantiles), self.name)

    def _true(self, subject: SeriesOf, series: TimeSeries, ahead: Ahead) -> Floats:
        assert self.prospect is not None, "an oracle is asked before it was prepared"
        if subject.rows is Rows.OPERATOR:
            load = self.prospect.loads.get(subject.name)
            return np.full(ahead.steps, math.nan) if load is None else true_rates(load, ahead)
        course = self.prospect.speeds if subject.rows is Rows.HOST else self.prospect.bandwidths
        time, value = series.latest
        if course is None or math.isnan(value):
            return np.full(ahead.steps, value)
        now = float(course(subject.name, np.array([time]))[0])
        return value / now * _means(lambda times: course(subject.name, times), ahead.edges)

    def _draws(self, subject: SeriesOf, ahead: Ahead) -> np.random.Generator:
        subject_key = f"{subject.rows}:{subject.name}:{subject.metric}"
        return np.random.default_rng((self.seed, STREAM, zlib.crc32(subject_key.encode()), round(ahead.start * 1000)))


def true_rates(load: ArrivalPattern, ahead: Ahead) -> Floats:
    """Return the mean rate of each step (records/s)."""
    edges = ahead.edges
    records = np.diff(counts(load, edges))
    few = records < COUNTED
    rates: Floats = records / ahead.seconds
    if few.any():
        rates[few] = _means(np.vectorize(load.rate, otypes=[float]), edges)[few]
    return rates


def _means(value: Callable[[Floats], Floats], edges: Floats) -> Floats:
    within = (np.arange(SAMPLES) + 0.5) / SAMPLES
    times = edges[:-1, None] + np.diff(edges)[:, None] * within
    return np.asarray(value(times).mean(axis=1))


def informed(forecaster: Forecaster, prospect: Prospect) -> Forecaster:
    return forecaster.prepared(prospect) if isinstance(forecaster, Oracle) else forecaster
