"""Forecasts by what was seen: of naive and seasonal methods, ETS, ARIMA and Theta, that which would have erred least.

The methods are statsforecast's (the extra `forecast`, imported when the first forecast is made). Which one is taken, a
back-test says: each is fitted on what is older, and carried over what came since. Hosts share what is learned of their
speeds, and links of their bandwidths: a new one is foreseen as soon as it has been seen a few times.
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
LEAST = 12
"""Bins from which on methods are compared; fewer say nothing of one against another, and the last value is taken."""
FEW = 4
"""Bins from which on what was learned of others of its kind is carried over a series."""
MOST = 1024
"""Newest bins that methods are fitted on, where no season asks for more: fits take milliseconds."""
GROWN = 0.25
"""Part of the bins known at the last back-test that must have come since for another: about ten in a run of 144 steps."""
TESTED = 0.25
"""Part of the bins that a back-test holds out, at least twice as many as are foreseen."""
ORIGINS = 12
"""Most forecasts of a method in a back-test, evenly spaced over what is held out."""
LONG = 288
"""Longest season, in bins, that is decomposed (a day of five minutes); a longer one is only repeated."""
WILD = 2.0
"""Times the highest value seen, that a forecast is cut off at: a trend that goes on so is a bad fit."""
LEVEL = round(100 * (QUANTILES[-1] - QUANTILES[0]))
"""Width of the interval between the outer quantiles, percent."""
DEVIATIONS = NormalDist().inv_cdf(QUANTILES[-1])

log = logging.getLogger(__name__)


class FittedSeries(Protocol):
    """A method as fitted."""

    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        """(mean, low and high quantile) of the steps after `values`, with what was fitted on others."""
        ...


Method: TypeAlias = Callable[[Floats], FittedSeries]
"""Fits on values without gaps, oldest first."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The last season again; of 1 bin: the last value lasts. The error grows with the root of the seasons ahead."""

    season: int = 1

    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        """What was one season before."""
        ahead = np.arange(steps)
        mean = values[values.size - self.season + ahead % self.season]
        off = values[self.season :] - values[: -self.season]
        wide = DEVIATIONS * float(np.sqrt(np.mean(off**2)) if off.size else 0.0) * np.sqrt(1 + ahead // self.season)
        return mean, mean - wide, mean + wide


@dataclass(frozen=True, slots=True)
class Library:
    """A model of statsforecast."""

    model: Any

    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        """Its forecast with what it was fitted with."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.model.forward(y=values, h=steps, level=[LEVEL])
        mean, low, high = (np.asarray(found[each], dtype=np.float64) for each in ("mean", f"lo-{LEVEL}", f"hi-{LEVEL}"))
        return mean, low, high


@dataclass(frozen=True, slots=True)
class ChosenForecaster:
    """The method of a series, or of a group of them. until: when there is to be
    another back-test. error: mean absolute, in the back-test."""

    name: str
    fitted: FittedSeries
    until: float
    error: float


@dataclass(frozen=True)
class BackTested:
    """Forecasts by what a back-test chooses among the last value, the mean, a season again, ETS, ARIMA and Theta.

    seasons: seconds; those are tried of which two are known, each repeated, and, where it is no longer than 288 bins, taken
    off (STL) before the others are fitted. Methods are chosen anew when a series has grown by a quarter, and in between
    carried forward as fitted. Gaps are interpolated. With fewer than twelve bins the last value lasts.
    """

    seasons: tuple[float, ...] = (DAY, WEEK)

    def __post_init__(self) -> None:
        if not all(0 < season < math.inf for season in self.seasons):
            given = ", ".join(f"{each:g} s" for each in self.seasons)
            raise InputError(f"seasons of {given}: each must be above 0 and end")

    @property
    def learns(self) -> bool:
        """Yes."""
        return True

    @property
    def name(self) -> str:
        """What people call it."""
        return "back-tested"

    def lacking(self) -> str:
        """The extra `forecast`."""
        if find_spec("statsforecast") is not None:
            return ""
        return "it forecasts with statsforecast: install it with pip install 'elastream[forecast]'"

    def foresee(self, book: Book, ahead: Ahead, memory: Any = None) -> tuple[Mapping[SeriesOf, Outlook], Any]:
        """By series; memory: what was chosen, by group."""
        chosen: dict[Group, ChosenForecaster] = dict(memory or {})
        pasts = {subject: self._past(series, ahead) for subject, series in book.items()}
        for group, members in _grouped(pasts).items():
            longest = max((pasts[each] for each in members), key=len)
            known = chosen.get(group)
            if _varies(longest) and longest.size >= LEAST and (known is None or ahead.start >= known.until - ROUNDING):
                chosen[group] = self._choose(longest, ahead)
        outlooks = {each: _outlook(past, ahead, chosen.get(_group(each)), each) for each, past in pasts.items()}
        return outlooks, chosen

    def _past(self, series: TimeSeries, ahead: Ahead) -> Floats:
        """Whole bins up to the forecast's start, without gaps; the newest value where no bin is whole."""
        wanted = max([MOST, *(3 * round(season / series.width) for season in self.seasons)])
        past = series.recent(wanted, ahead.start)
        known = np.flatnonzero(~np.isnan(past))
        if not known.size:
            return np.array([] if math.isnan(series.newest) else [series.newest])
        behind = math.floor(ahead.start / series.width + ROUNDING) - math.floor(series.end / series.width + ROUNDING)
        past = np.append(past[known[0] :], np.full(min(max(0, behind), MOST), math.nan))  # nothing was measured since
        places, known = np.arange(past.size), np.flatnonzero(~np.isnan(past))
        return np.interp(places, known, past[known])

    def _choose(self, past: Floats, ahead: Ahead) -> ChosenForecaster:
        """The method of the least mean absolute error in a back-test; of equal ones the first, which is the simplest."""
        held = min(past.size // 2, max(2 * ahead.steps, round(TESTED * past.size)))
        cut = past.size - held
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
        """Bins of each season of which two are known."""
        bins = (round(season / ahead.seconds) for season in self.seasons)
        return [each for each in bins if each > 1 and 2 * each + ahead.steps <= past.size]


Group: TypeAlias = tuple[str, ...]


def _group(subject: SeriesOf) -> Group:
    """Series that share a method: each rate is one of its own, and all hosts are one, and all links."""
    own = (subject.name,) if subject.rows is Rows.OPERATOR else ()
    return (str(subject.rows), str(subject.metric), *own)


def _grouped(pasts: Mapping[SeriesOf, Floats]) -> Mapping[Group, Sequence[SeriesOf]]:
    found: dict[Group, list[SeriesOf]] = {}
    for subject in pasts:
        found.setdefault(_group(subject), []).append(subject)
    return found


def _varies(past: Floats) -> bool:
    return past.size > 0 and float(past.max()) > float(past.min())


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of the past, and its deviation."""

    def forward(self, values: Floats, steps: int) -> tuple[Floats, Floats, Floats]:
        """The mean of `values`, at every step."""
        mean, wide = float(values.mean()), DEVIATIONS * float(values.std())
        return np.full(steps, mean), np.full(steps, mean - wide), np.full(steps, mean + wide)


def _methods(seasons: Sequence[int]) -> Iterator[tuple[str, Method, int]]:
    """(name, method, bins that it needs to be fitted on), the simplest first."""
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
            return Library(make().fit(values))

    return fit


def statsforecast() -> Any:
    """statsforecast's models, imported now. Raises EnvironmentProblem where it is not installed."""
    try:
        return import_module("statsforecast.models")
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            f"{(error.name or 'statsforecast').split('.')[0]} is needed to forecast: "
            "install it with pip install 'elastream[forecast]'"
        ) from None


def _tried(method: Method, values: Floats) -> FittedSeries | None:
    """`method` fitted; None where it cannot be: libraries fail at odd series in ways of their own, and others are left."""
    try:
        return method(values)
    except EnvironmentProblem:
        raise
    except Exception as error:
        log.debug("not fitted: %s", error)
        return None


def _forward(fitted: FittedSeries, values: Floats, steps: int) -> tuple[Floats, Floats, Floats] | None:
    """Its forecast; None where it fails, or is not finite."""
    try:
        found = fitted.forward(values, steps)
    except Exception as error:
        log.debug("not carried forward: %s", error)
        return None
    return found if all(np.isfinite(each).all() and each.shape == (steps,) for each in found) else None


def _error(method: Method, past: Floats, cut: int, origins: Sequence[int], steps: int) -> float:
    """Mean absolute error of `method`, fitted on what is before `cut`, of forecasts from `origins`; NaN where it fails."""
    fitted = _tried(method, past[:cut])
    if fitted is None:
        return math.nan
    errors = []
    for origin in origins:
        came = past[origin : origin + steps]
        found = _forward(fitted, past[:origin], steps)
        if found is None:
            return math.nan
        errors.append(float(np.abs(np.clip(found[0][: came.size], 0.0, WILD * past.max()) - came).mean()))
    return float(np.mean(errors))


def _outlook(past: Floats, ahead: Ahead, chosen: ChosenForecaster | None, subject: SeriesOf) -> Outlook:
    """The outlook of one series; the last value lasts where no method was chosen, or it fails."""
    if not past.size:
        return flat(math.nan, ahead.steps, "nothing is known")
    if not _varies(past):
        return flat(float(past[-1]), ahead.steps, "it never varied")
    found = None if chosen is None or past.size < FEW else _forward(chosen.fitted, past, ahead.steps)
    name = chosen.name if chosen is not None and found is not None else "last value"
    mean, low, high = Repeated().forward(past, ahead.steps) if found is None else found
    least = 0.0 if subject.metric is Metric.ARRIVAL_RATE else float(past.min()) / WILD
    middle = np.clip(mean, least, WILD * past.max())
    quantiles = np.array([np.minimum(np.clip(low, least, None), middle), middle, np.maximum(high, middle)])
    return Outlook(middle, quantiles, name)
