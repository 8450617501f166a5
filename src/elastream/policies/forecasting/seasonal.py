"""Forecasts by the best of several methods of statsforecast: naive, seasonal, ETS, ARIMA and Theta.

A back-test on older data chooses. All hosts share one choice for speeds, all links one for bandwidths, so that a new one is
forecast after a few samples.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any, Protocol, TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric, Rows
from elastream.errors import EnvironmentProblem, InputError
from elastream.policies.forecasting.series import QUANTILES, Ahead, Book, Outlook, SeriesOf, TimeSeries, flat
from elastream.units import ROUNDING

DAY, WEEK = 86_400.0, 7 * 86_400.0
# Bins from which methods are compared; with fewer the last value is used.
LEAST = 12
# Bins from which a method chosen on other series of the kind is used.
FEW = 4
# Newest bins to fit on, unless a season needs more. Fits take milliseconds.
MOST = 1024
# Growth of a series after which it is back-tested again: about ten times in a run of 144 steps.
GROWN = 0.25
# Part of the bins that a back-test holds out, at least twice as many as are forecast.
TESTED = 0.25
# Most forecasts of a method in a back-test, evenly spaced over the held-out bins.
ORIGINS = 12
# Longest season that is decomposed (bins: a day of five minutes); longer ones are only repeated.
LONG = 288
# Multiple of the highest value at which a forecast is cut off: such a trend is a bad fit.
WILD = 2.0
# Width of the interval between the outer quantiles (percent).
LEVEL = round(100 * (QUANTILES[-1] - QUANTILES[0]))
DEVIATIONS = NormalDist().inv_cdf(QUANTILES[-1])

log = logging.getLogger(__name__)


class FittedSeries(Protocol):
    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        """Return (mean, low and high quantile) of the `steps` after `values`, without fitting again."""
        ...


# Fits on values without gaps, oldest first.
Method: TypeAlias = Callable[[Floats], FittedSeries]


@dataclass(frozen=True, slots=True)
class Repeated:
    """Repetition of the last season; of 1 bin, of the last value. The error grows with the root of the seasons ahead."""

    season: int = 1

    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        ahead = np.arange(steps)
        mean = values[values.size - self.season + ahead % self.season]
        off = values[self.season :] - values[: -self.season]
        wide = DEVIATIONS * float(np.sqrt(np.mean(off**2)) if off.size else 0.0) * np.sqrt(1 + ahead // self.season)
        return mean, mean - wide, mean + wide


@dataclass(frozen=True, slots=True)
class StatsforecastModel:
    model: Any

    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            forecast = self.model.forward(y=values, h=steps, level=[LEVEL])
        mean, low, high = (np.asarray(forecast[each], dtype=np.float64) for each in ("mean", f"lo-{LEVEL}", f"hi-{LEVEL}"))
        return mean, low, high


@dataclass(frozen=True, slots=True)
class ChosenForecaster:
    """The chosen method of a series or a group of series.

    Attributes:
        until: Time of the next back-test.
        error: Mean absolute error in the back-test.
    """

    name: str
    fitted: FittedSeries
    until: float
    error: float


@dataclass(frozen=True)
class BackTested:
    """Forecaster that chooses by back-test among last value, mean, last season, ETS, ARIMA and Theta.

    The choice is made again when a series has grown by a quarter; in between the fitted method is carried forward. Gaps are
    interpolated. With fewer than twelve bins the last value lasts.

    Args:
        seasons: Season lengths (seconds). Seasons with two full periods of history are repeated. Up to 288 bins they are
            also taken off (STL) before the other methods are fitted.
    """

    seasons: tuple[float, ...] = (DAY, WEEK)

    def __post_init__(self) -> None:
        if not all(0 < season < math.inf for season in self.seasons):
            lengths = ", ".join(f"{each:g} s" for each in self.seasons)
            raise InputError(f"seasons of {lengths}: each must be above 0 and end")

    @property
    def learns(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return "back-tested"

    def lacking(self) -> str:
        if find_spec("statsforecast") is not None:
            return ""
        return "it forecasts with statsforecast: install it with pip install 'elastream[forecast]'"

    def foresee(self, book: Book, ahead: Ahead, memory: Any = None) -> tuple[Mapping[SeriesOf, Outlook], Any]:
        """Forecast each series. The memory contains the chosen method by group."""
        chosen: dict[Group, ChosenForecaster] = dict(memory or {})
        pasts = {subject: self._past(series, ahead) for subject, series in book.items()}
        for group, members in _grouped(pasts).items():
            longest = max((pasts[each] for each in members), key=len)
            before = chosen.get(group)
            if _varies(longest) and longest.size >= LEAST and (before is None or ahead.start >= before.until - ROUNDING):
                chosen[group] = self._choose(longest, ahead)
        outlooks = {each: _outlook(past, ahead, chosen.get(_group(each)), each) for each, past in pasts.items()}
        return outlooks, chosen

    def _past(self, series: TimeSeries, ahead: Ahead) -> Floats:
        bins = max([MOST, *(3 * round(season / series.width) for season in self.seasons)])
        past = series.recent(bins, ahead.start)
        measured = np.flatnonzero(~np.isnan(past))
        if not measured.size:
            return np.array([] if math.isnan(series.newest) else [series.newest])
        behind = math.floor(ahead.start / series.width + ROUNDING) - math.floor(series.end / series.width + ROUNDING)
        past = np.append(past[measured[0] :], np.full(min(max(0, behind), MOST), math.nan))  # nothing was measured since
        places, measured = np.arange(past.size), np.flatnonzero(~np.isnan(past))
        return np.interp(places, measured, past[measured])

    def _choose(self, past: Floats, ahead: Ahead) -> ChosenForecaster:
        held_out = min(past.size // 2, max(2 * ahead.steps, round(TESTED * past.size)))
        cut = past.size - held_out
        origins = np.unique(np.linspace(cut, max(cut, past.size - ahead.steps), ORIGINS).round().astype(int)).tolist()
        best: tuple[float, str, Method, int] | None = None
        for name, method, least in _methods(self._seasons(past, ahead)):
            if cut < least:
                continue
            error = _error(method, past, cut, origins, ahead.steps)
            if not math.isnan(error) and (best is None or error < best[0] * (1 - ROUNDING)):
                best = error, name, method, least
        assert best is not None, "the last value is always tried, and errs by a finite amount"
        until = ahead.start + GROWN * past.size * ahead.seconds
        fitted = _tried(best[2], past[-max(MOST, best[3]) :])
        if fitted is None:
            return ChosenForecaster("last value", Repeated(), until, best[0])
        return ChosenForecaster(best[1], fitted, until, best[0])

    def _seasons(self, past: Floats, ahead: Ahead) -> Sequence[int]:
        """Return the season lengths (in bins) with at least two full seasons of history."""
        bins = (round(season / ahead.seconds) for season in self.seasons)
        return [each for each in bins if each > 1 and 2 * each + ahead.steps <= past.size]


Group: TypeAlias = tuple[str, ...]


def _group(subject: SeriesOf) -> Group:
    own = (subject.name,) if subject.rows is Rows.OPERATOR else ()
    return (str(subject.rows), str(subject.metric), *own)


def _grouped(pasts: Mapping[SeriesOf, Floats]) -> Mapping[Group, Sequence[SeriesOf]]:
    groups: dict[Group, list[SeriesOf]] = {}
    for subject in pasts:
        groups.setdefault(_group(subject), []).append(subject)
    return groups


def _varies(past: Floats) -> bool:
    return past.size > 0 and float(past.max()) > float(past.min())


@dataclass(frozen=True, slots=True)
class Mean:
    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        mean, wide = float(values.mean()), DEVIATIONS * float(values.std())
        return np.full(steps, mean), np.full(steps, mean - wide), np.full(steps, mean + wide)


def _methods(seasons: Sequence[int]) -> Iterator[tuple[str, Method, int]]:
    yield "last value", lambda _: Repeated(), 1
    yield "mean", lambda _: Mean(), 1
    for season in seasons:
        yield f"last season of {season}", partial(_repeated, season), season
    models = statsforecast()
    plain: Mapping[str, Callable[[], Any]] = {
        "ETS": lambda: models.AutoETS(model="ZZN"),
        "ARIMA": lambda: models.AutoARIMA(approximation=True),
        "Theta": lambda: models.AutoTheta(),
    }
    for name, make in plain.items():
        yield name, _fitting(make), LEAST // 2
    for season in (each for each in seasons if each <= LONG):
        for name, make in plain.items():
            yield f"{name} without season of {season}", _fitting(partial(_decomposed, models, season, make)), 2 * season


def _repeated(season: int, values: Floats) -> FittedSeries:
    return Repeated(season)


def _decomposed(models: Any, season: int, make: Callable[[], Any]) -> Any:
    return models.MSTL(season, trend_forecaster=make())


def _fitting(make: Callable[[], Any]) -> Method:
    def fit(values: Floats) -> FittedSeries:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return StatsforecastModel(make().fit(values))

    return fit


def statsforecast() -> Any:
    """Import statsforecast's models, or raise EnvironmentProblem."""
    try:
        return import_module("statsforecast.models")
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"{(error.name or 'statsforecast').split('.')[0]} is needed to forecast: "
            "install it with pip install 'elastream[forecast]'"
        ) from None


def _tried(method: Method, values: Floats) -> FittedSeries | None:
    try:
        return method(values)
    except EnvironmentProblem:
        raise
    except Exception as error:
        log.debug("not fitted: %s", error)
        return None


def _forward(fitted: FittedSeries, values: Floats, steps: int) -> tuple[Floats, Floats, Floats] | None:
    try:
        forecast = fitted.forward(values, steps)
    except Exception as error:
        log.debug("not carried forward: %s", error)
        return None
    return forecast if all(np.isfinite(each).all() and each.shape == (steps,) for each in forecast) else None


def _error(method: Method, past: Floats, cut: int, origins: Sequence[int], steps: int) -> float:
    fitted = _tried(method, past[:cut])
    if fitted is None:
        return math.nan
    errors = []
    for origin in origins:
        actual = past[origin : origin + steps]
        forecast = _forward(fitted, past[:origin], steps)
        if forecast is None:
            return math.nan
        errors.append(float(np.abs(np.clip(forecast[0][: actual.size], 0.0, WILD * past.max()) - actual).mean()))
    return float(np.mean(errors))


def _outlook(past: Floats, ahead: Ahead, chosen: ChosenForecaster | None, subject: SeriesOf) -> Outlook:
    """Return the forecast of one series. Without a working method the last value lasts."""
    if not past.size:
        return flat(math.nan, ahead.steps, "nothing is known")
    if not _varies(past):
        return flat(float(past[-1]), ahead.steps, "it never varied")
    forecast = None if chosen is None or past.size < FEW else _forward(chosen.fitted, past, ahead.steps)
    name = chosen.name if chosen is not None and forecast is not None else "last value"
    mean, low, high = Repeated().forward(past, ahead.steps) if forecast is None else forecast
    least = 0.0 if subject.metric is Metric.ARRIVAL_RATE else float(past.min()) / WILD
    middle = np.clip(mean, least, WILD * past.max())
    quantiles = np.array([np.minimum(np.clip(low, least, None), middle), middle, np.maximum(high, middle)])
    return Outlook(middle, quantiles, name)
