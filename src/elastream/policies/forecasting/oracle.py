"""Oracle of chapter 5 of Kumbhare's thesis, perfect or with errors (pp. 112-113).

It needs the future of the run (`core.prospect`), which only a simulation has. It shows how much a policy could gain by a
forecast, and how much error it tolerates.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric, Rows
from elastream.core.plant import Prospect
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.errors import InputError
from elastream.loads.pattern import counts
from elastream.policies.forecasting.series import QUANTILES, Ahead, Book, Forecaster, Outlook, SeriesOf, TimeSeries

# Meaning of half of a step's error.
Spread: TypeAlias = Literal["variance", "deviation"]
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
        error: Mean error e: 0 in the first step, growing linearly to 2e in the last. Each step's error is drawn from a
            normal distribution around 0.
        bias: Added to all forecasts.
        spread: Whether half of a step's error is the `"variance"` (as printed on p. 113) or the `"deviation"`. As a
            variance, an error of 0.1 is drawn with a deviation of up to 0.32.
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
        if self.spread not in ("variance", "deviation"):
            raise InputError(f"an oracle's spread of {self.spread!r}: it is 'variance' or 'deviation'")

    @property
    def learns(self) -> bool:
        """False: an earlier forecast is as good as a later one."""
        return False

    @property
    def name(self) -> str:
        """Name with error and bias, if any."""
        words = [f"error {self.error:.0%}"] * (self.error > 0) + [f"bias {self.bias:+.0%}"] * (self.bias != 0)
        return f"oracle, {', '.join(words)}" if words else "oracle"

    def prepared(self, prospect: Prospect) -> "Oracle":
        """Return the oracle for this run."""
        return replace(self, prospect=prospect)

    def lacking(self) -> str:
        """Return that it needs a simulated run, if it has none."""
        if self.prospect is not None:
            return ""
        return "an oracle knows simulated runs only: take forecast=real, or simulate"

    def foresee(self, book: Book, ahead: Ahead, memory: Any = None) -> tuple[Mapping[SeriesOf, Outlook], Any]:
        """Forecast each series with error. Constants last; a rate without a declared load is unknown."""
        return {subject: self._of(subject, series, ahead) for subject, series in book.items()}, memory

    def _of(self, subject: SeriesOf, series: TimeSeries, ahead: Ahead) -> Outlook:
        true = self._true(subject, series, ahead)
        share = np.linspace(0.0, 2 * self.error, ahead.steps) if ahead.steps > 1 else np.zeros(1)
        deviation = share / 2 if self.spread == "deviation" else np.sqrt(share / 2)
        drawn = deviation * self._draws(subject, ahead).standard_normal(ahead.steps)
        least = 0.0 if subject.metric is Metric.ARRIVAL_RATE else SLOWEST

        def off(by: Floats) -> Floats:
            rates: Floats = true * np.maximum(1 + np.clip(by, -MOST_ERROR, MOST_ERROR) + self.bias, least)
            return rates

        mean = off(drawn)
        quantiles = [off(drawn + NormalDist().inv_cdf(each) * deviation) for each in QUANTILES]
        return Outlook(mean, np.array(quantiles), self.name)

    def _true(self, subject: SeriesOf, series: TimeSeries, ahead: Ahead) -> Floats:
        assert self.prospect is not None, "an oracle is asked before it was prepared"
        if subject.rows is Rows.OPERATOR:
            load = self.prospect.loads.get(subject.name)
            return np.full(ahead.steps, math.nan) if load is None else _rates(load, ahead)
        course = self.prospect.speeds if subject.rows is Rows.HOST else self.prospect.bandwidths
        time, value = series.latest
        if course is None or math.isnan(value):
            return np.full(ahead.steps, value)
        now = float(course(subject.name, np.array([time]))[0])
        return value / now * _means(lambda times: course(subject.name, times), ahead.edges)

    def _draws(self, subject: SeriesOf, ahead: Ahead) -> np.random.Generator:
        subject_key = f"{subject.rows}:{subject.name}:{subject.metric}"
        return np.random.default_rng((self.seed, STREAM, zlib.crc32(subject_key.encode()), round(ahead.start * 1000)))


def _rates(load: ArrivalPattern, ahead: Ahead) -> Floats:
    """Return the mean records/s of each step."""
    edges = ahead.edges
    records = np.diff(counts(load, edges))
    few = records < COUNTED
    rates: Floats = records / ahead.seconds
    if few.any():
        rates[few] = _means(np.vectorize(load.rate, otypes=[float]), edges)[few]
    return rates


def _means(value: Callable[[Floats], Floats], edges: Floats) -> Floats:
    """Return the mean of a function of time in each step, from `SAMPLES` evenly spaced values."""
    within = (np.arange(SAMPLES) + 0.5) / SAMPLES
    times = edges[:-1, None] + np.diff(edges)[:, None] * within
    means: Floats = value(times).mean(axis=1)
    return means


def informed(forecaster: Forecaster, prospect: Prospect) -> Forecaster:
    """Return an oracle with the future of the run; other forecasters unchanged."""
    return forecaster.prepared(prospect) if isinstance(forecaster, Oracle) else forecaster
