"""Forecasts by who knows the load: the perfect oracle of chapter 5 of Kumbhare's thesis, and one that errs (pp. 112-113).

An oracle needs the run to come (`core.prospect`), which a simulation has and reality has not. It is the yardstick of real
forecasters: what a policy could gain by looking ahead, and how much error it bears.
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
from elastream.core.prospect import Prospect
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.errors import InputError
from elastream.loads.pattern import counts
from elastream.policies.forecasting.series import QUANTILES, Ahead, Book, Forecaster, Outlook, SeriesOf, TimeSeries

Spread: TypeAlias = Literal["variance", "deviation"]
"""What is half of the error of a step."""
MOST_ERROR = 1.0
"""Relative error beyond which a drawn one is cut off, on both sides: a rate cannot be less than nothing."""
SLOWEST = 0.05
"""Part of what a host's speed or a link's bandwidth is, that is foreseen at least: nothing runs on a host of speed 0."""
SAMPLES = 8
"""Times within a step at which a course or a low rate is looked up."""
COUNTED = 100
"""Records in a step from which on their number is taken, which is exact; fewer are the mean of the rate."""
STREAM = 5
"""Random-number stream of oracles, apart from those of the plants."""


@dataclass(frozen=True)
class Oracle:
    """Knows the load that comes, and how fast hosts and links will be; errs by as much as is wanted.

    error: mean error e of what it says: in the first step 0, growing linearly to 2e in the last; that of a step is drawn
    from a normal distribution around 0. spread: what is half of the step's error: the `"variance"`, as printed (p. 113), so
    that an error of 0.1 is drawn with a deviation of up to 0.32, or the `"deviation"`, which keeps errors below what they
    are named. bias: is added to all. seed: of the errors, which follow from it, the subject and the time of the forecast.
    prospect: of the run; None: it knows nothing, until `prepared` was called.

    Raises InputError for errors and biases that are no fractions.
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
        """No: what it says earlier than it is asked for is no better."""
        return False

    @property
    def name(self) -> str:
        """With its error and bias, where it has any."""
        said = [f"error {self.error:.0%}"] * (self.error > 0) + [f"bias {self.bias:+.0%}"] * (self.bias != 0)
        return f"oracle, {', '.join(said)}" if said else "oracle"

    def prepared(self, prospect: Prospect) -> "Oracle":
        """The oracle of this run."""
        return replace(self, prospect=prospect)

    def lacking(self) -> str:
        """A run to come that it knows."""
        if self.prospect is not None:
            return ""
        return "an oracle knows simulated runs only: take forecast=real, or simulate"

    def foresee(self, book: Book, ahead: Ahead, memory: Any = None) -> tuple[Mapping[SeriesOf, Outlook], Any]:
        """What will be, with error. What does not vary lasts; a rate that no load declares is unknown."""
        return {subject: self._of(subject, series, ahead) for subject, series in book.items()}, memory

    def _of(self, subject: SeriesOf, series: TimeSeries, ahead: Ahead) -> Outlook:
        true = self._true(subject, series, ahead)
        share = np.linspace(0.0, 2 * self.error, ahead.steps) if ahead.steps > 1 else np.zeros(1)
        deviation = share / 2 if self.spread == "deviation" else np.sqrt(share / 2)
        drawn = deviation * self._draws(subject, ahead).standard_normal(ahead.steps)
        least = 0.0 if subject.metric is Metric.ARRIVAL_RATE else SLOWEST

        def off(by: Floats) -> Floats:
            found: Floats = true * np.maximum(1 + np.clip(by, -MOST_ERROR, MOST_ERROR) + self.bias, least)
            return found

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
        said = f"{subject.rows}:{subject.name}:{subject.metric}"
        return np.random.default_rng((self.seed, STREAM, zlib.crc32(said.encode()), round(ahead.start * 1000)))


def _rates(load: ArrivalPattern, ahead: Ahead) -> Floats:
    """Records/s in each step, on average."""
    edges = ahead.edges
    found = np.diff(counts(load, edges))
    few = found < COUNTED
    rates: Floats = found / ahead.seconds
    if few.any():
        rates[few] = _means(np.vectorize(load.rate, otypes=[float]), edges)[few]
    return rates


def _means(value: Callable[[Floats], Floats], edges: Floats) -> Floats:
    """Mean of a function of time in each step, of `SAMPLES` evenly spaced values."""
    within = (np.arange(SAMPLES) + 0.5) / SAMPLES
    times = edges[:-1, None] + np.diff(edges)[:, None] * within
    found: Floats = value(times).mean(axis=1)
    return found


def informed(forecaster: Forecaster, prospect: Prospect) -> Forecaster:
    """Return an oracle that knows the run to come; other forecasters as they are."""
    return forecaster.prepared(prospect) if isinstance(forecaster, Oracle) else forecaster
