"""The seven methods that forecast a customer's next hour (thesis, Fig. 3.6), and what each averages, which it does not say.

Each is one function of the past, for any number of pasts at once, so that the experiment, the application on Spark and the
check of its results forecast with the same lines. What is fitted (ARIMA, the tree) is fitted weekly, on what was known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.policies.forecasting.selection import learned
from elastream_papers.thesis.dynamic_dataflow.readings import DAY, INTERVAL, WEEK

Truths: TypeAlias = NDArray[np.bool_]

HORIZON = 60 // INTERVAL
"""Intervals of a forecast: one hour (p. 52)."""
HISTORY = 15 * DAY
"""Intervals of the past that a method is given: the 14 days before today, and today so far."""
LOOK_BACK = 14
"""Days among which like days are looked for: always ten working days and four of weekends."""
LEAST, MOST = 0.6, 1.4
"""Bounds of the day-of adjustment, as in Southern California Edison's tariffs."""
ARIMA_MEMORY = DAY
"""Intervals from which the error of the last step is computed: far more than its moving average remembers."""
LEAF = 20
"""Least examples in a leaf of the tree: fewer repeat the noise of single hours."""
FITTED_ON = 2 * WEEK
"""Intervals that ARIMA and the tree are fitted on."""
RANDOM_WALK = (0.0, 0.0, 0.0)
"""Of a customer whose fit is not stationary or not invertible: its last value goes on."""

Method: TypeAlias = Callable[["Fitted", Floats, Integers, Integers], Floats]
"""(what was fitted, pasts, customer of each, week's interval that each forecast begins with) -> forecasts.

pasts: kW by interval, oldest first, shape (n, HISTORY); forecasts: kW, shape (n, HORIZON). Forecasts begin on the hour.
"""


@dataclass(frozen=True, slots=True)
class Fitted:
    """arima: (phi_1, phi_2, theta) by customer, shape (customers, 3). tree: a fitted regression tree of scikit-learn."""

    arima: Floats
    tree: Any


def sliding1(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Mean of the past hour."""
    return _flat(past[:, -HORIZON:].mean(axis=1))


def sliding2(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Mean of the past two hours."""
    return _flat(past[:, -2 * HORIZON :].mean(axis=1))


def caiso(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """California ISO, "10 in 10": mean of the same quarter hours on all like days of the past two weeks.

    Like days of a working day are working days, those of a weekend are days of weekends; today is never among them.
    """
    return _mean_of(_like_days(past, 0), _like(start))


def nyiso(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """New York ISO, "high 5 of 10": as `caiso`, of that half of the like days on which most was consumed."""
    like, days = _like(start), _totals(past, start)
    by_total = np.argsort(np.where(like, -days, np.inf), axis=1, kind="stable")
    highest = np.argsort(by_total, axis=1, kind="stable") < like.sum(axis=1, keepdims=True) // 2
    return _mean_of(_like_days(past, 0), highest)


def casce(fitted: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Southern California Edison: as `caiso`, times what the first three of the past four hours were over the same hours of
    those days, within LEAST and MOST."""
    like = _like(start)
    before = np.concatenate([_mean_of(_like_days(past, -back * HORIZON), like) for back in (4, 3, 2)], axis=1)
    ratio = past[:, -4 * HORIZON : -HORIZON].sum(axis=1) / before.sum(axis=1)
    found: Floats = caiso(fitted, past, customer, start) * np.clip(ratio, LEAST, MOST)[:, None]
    return found


def arima(fitted: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """ARIMA(2, 1, 1) of the customer."""
    first, second, moving = fitted.arima[customer].T
    steps = np.diff(past[:, -ARIMA_MEMORY:], axis=1)
    error = np.zeros(len(past))
    for number in range(2, steps.shape[1]):
        error = steps[:, number] - first * steps[:, number - 1] - second * steps[:, number - 2] - moving * error
    last, before = steps[:, -1], steps[:, -2]
    level = past[:, -1]
    found: list[Floats] = []
    for _ in range(HORIZON):
        last, before, error = first * last + second * before + moving * error, last, np.zeros(len(past))
        level = level + last
        found.append(level)
    return np.maximum(np.stack(found, axis=1), 0.0)


def regression_tree(fitted: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """One tree for all customers, of the past hour, the same hour a day and a week ago, the time of day and the kind of
    day; powers relative to the mean of the past day."""
    inputs, scale = _features(past, start)
    return np.asarray(fitted.tree.predict(inputs)).reshape(-1, HORIZON) * scale[:, None]


METHODS: Mapping[str, Method] = {
    "arima": arima, "nyiso": nyiso, "casce": casce, "caiso": caiso, "sliding1": sliding1, "sliding2": sliding2,
    "regression_tree": regression_tree,
}  # fmt: skip
"""By name, in the order of figures."""


def forecast(name: str, fitted: Fitted, past: Floats, customer: int, start: int) -> Floats:
    """The forecast of one method for one past, shape (HORIZON,)."""
    found: Floats = METHODS[name](fitted, past[None, :], np.array([customer]), np.array([start]))[0]
    return found


def fit(loads: Floats) -> Fitted:
    """What ARIMA and the tree know after `loads`, shape (customers, intervals); its end is at the end of a day.

    Of its last FITTED_ON intervals; the tree also looks HISTORY back from there. Raises EnvironmentProblem without the
    extra `learned`.
    """
    estimators = learned("statsmodels.tsa.arima.estimators.hannan_rissanen")
    trees = learned("sklearn.tree")
    arima_of = np.array([_fit_arima(estimators, each) for each in np.diff(loads[:, -FITTED_ON:], axis=1)])
    hours = hours_of(loads)
    past, _, start = pasts_of(loads, hours[hours * HORIZON >= loads.shape[1] - FITTED_ON])
    inputs, scale = _features(past, start)
    known = values_of(loads, hours[hours * HORIZON >= loads.shape[1] - FITTED_ON])
    tree = trees.DecisionTreeRegressor(min_samples_leaf=LEAF, random_state=0).fit(inputs, known / scale[:, None])
    return Fitted(arima_of, tree)


def hours_of(loads: Floats) -> Integers:
    """Hours, counted from the start of `loads`, that have a whole HISTORY before them."""
    return np.arange(-(-HISTORY // HORIZON), loads.shape[1] // HORIZON)


def pasts_of(loads: Floats, hours: Integers) -> tuple[Floats, Integers, Integers]:
    """What methods are given to forecast `hours` of all customers: (pasts, customers, starts), customer by customer."""
    ends = hours * HORIZON
    windows = np.lib.stride_tricks.sliding_window_view(loads, HISTORY, axis=1)[:, ends - HISTORY]
    customers = len(loads)
    return (
        windows.reshape(customers * len(hours), HISTORY),
        np.repeat(np.arange(customers), len(hours)),
        np.tile(ends % WEEK, customers),
    )


def values_of(loads: Floats, hours: Integers) -> Floats:
    """What came in `hours`, in the order of `pasts_of`, shape (customers * hours, HORIZON)."""
    by_hour = loads[:, : loads.shape[1] // HORIZON * HORIZON].reshape(len(loads), -1, HORIZON)
    return by_hour[:, hours].reshape(-1, HORIZON)


def percentage_errors(actual: Floats, forecasts: Floats) -> Floats:
    """MAPE of each forecast, percent (Eq. 3.1, of absolute errors as its name says), over the last axis."""
    found: Floats = 100 * np.mean(np.abs(actual - forecasts) / actual, axis=-1)
    return found


def _flat(values: Floats) -> Floats:
    return np.repeat(values[:, None], HORIZON, axis=1)


def _like(start: Integers) -> Truths:
    """Whether the day d + 1 days ago is like today, shape (n, LOOK_BACK)."""
    weekday = (start // DAY)[:, None]
    ago = (weekday - np.arange(1, LOOK_BACK + 1)) % 7
    found: Truths = (ago >= 5) == (weekday >= 5)
    return found


def _like_days(past: Floats, shift: int) -> Floats:
    """The hour that begins `shift` intervals from now, on each of the days before today; shape (n, LOOK_BACK, HORIZON)."""
    ago = np.arange(1, LOOK_BACK + 1)[:, None] * DAY
    return past[:, past.shape[1] + shift - ago + np.arange(HORIZON)]


def _mean_of(days: Floats, chosen: Truths) -> Floats:
    found: Floats = (days * chosen[:, :, None]).sum(axis=1) / chosen.sum(axis=1)[:, None]
    return found


def _totals(past: Floats, start: Integers) -> Floats:
    """Consumption of each of the days before today, shape (n, LOOK_BACK)."""
    found = np.empty((len(past), LOOK_BACK))
    for today in np.unique(start % DAY):
        mine = start % DAY == today
        whole = past[mine, past.shape[1] - today - LOOK_BACK * DAY : past.shape[1] - today]
        found[mine] = whole.reshape(-1, LOOK_BACK, DAY).sum(axis=2)[:, ::-1]
    return found


def _features(past: Floats, start: Integers) -> tuple[Floats, Floats]:
    """Inputs of the tree, shape (n, 3 * HORIZON + 2), and the mean of the past day, shape (n,)."""
    scale = past[:, -DAY:].mean(axis=1)
    end = past.shape[1]
    lags = [past[:, -HORIZON:], past[:, end - DAY : end - DAY + HORIZON], past[:, end - WEEK : end - WEEK + HORIZON]]
    calendar = np.stack([start % DAY, start // DAY >= 5], axis=1)
    return np.concatenate([*(each / scale[:, None] for each in lags), calendar], axis=1), scale


def _fit_arima(estimators: ModuleType, steps: Floats) -> tuple[float, float, float]:
    """Hannan and Rissanen's estimate, which is consistent and takes milliseconds; steps: differences of one customer."""
    found, _ = estimators.hannan_rissanen(steps, ar_order=2, ma_order=1, demean=False)
    if not (found.is_stationary and found.is_invertible):
        return RANDOM_WALK
    return float(found.ar_params[0]), float(found.ar_params[1]), float(found.ma_params[0])
