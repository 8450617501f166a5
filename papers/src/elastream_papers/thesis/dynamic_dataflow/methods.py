"""The methods that forecast a customer's next hour: six of Fig. 3.6 of the thesis, and Algorithm 2's regression tree.

Fig. 3.6's seventh, random choice, is a way to pick here. Each method is a function of the past, shared by experiment, Spark
application and its check. ARIMA and the tree are fitted weekly.
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

HORIZON = 60 // INTERVAL  # intervals of a forecast: one hour (p. 52)
HISTORY = 15 * DAY  # intervals of input: 14 days, and today so far
LOOK_BACK = 14  # days searched for like days: ten working days, four of weekends
LEAST, MOST = 0.6, 1.4  # bounds of the day-of adjustment, as in Southern California Edison's tariffs
ARIMA_MEMORY = DAY  # intervals for the last error: more than the moving average remembers
LEAF = 20  # least examples in a leaf: fewer repeat noise
FITTED_ON = 2 * WEEK  # intervals to fit ARIMA and the tree
RANDOM_WALK = (0.0, 0.0, 0.0)  # last value, for fits that are not stationary or invertible

# (fit, pasts, customer of each, week's interval of each forecast's begin) -> forecasts. pasts: kW, oldest first, shape (n,
# HISTORY); forecasts: kW, shape (n, HORIZON), from the full hour on.
Method: TypeAlias = Callable[["Fitted", Floats, Integers, Integers], Floats]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Fitted models. arima: (phi_1, phi_2, theta), shape (customers, 3). tree: scikit-learn's."""

    arima: Floats
    tree: Any


def sliding1(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Return the mean of the past hour."""
    return _flat(past[:, -HORIZON:].mean(axis=1))


def sliding2(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Return the mean of the past two hours."""
    return _flat(past[:, -2 * HORIZON :].mean(axis=1))


def caiso(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Return the mean of equal quarter hours on like days of two weeks (California ISO, "10 in 10")."""
    return _mean_of(_like_days(past, 0), _same_kind_of_day(start))


def nyiso(_: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Return `caiso` over the half of highest consumption (New York ISO, "high 5 of 10")."""
    like, days = _same_kind_of_day(start), _totals(past, start)
    by_total = np.argsort(np.where(like, -days, np.inf), axis=1, kind="stable")
    highest = np.argsort(by_total, axis=1, kind="stable") < like.sum(axis=1, keepdims=True) // 2
    return _mean_of(_like_days(past, 0), highest)


def casce(fitted: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Return `caiso` times a day-of adjustment in LEAST to MOST (Southern California Edison)."""
    like = _same_kind_of_day(start)
    before = np.concatenate([_mean_of(_like_days(past, -back * HORIZON), like) for back in (4, 3, 2)], axis=1)
    ratio = past[:, -4 * HORIZON : -HORIZON].sum(axis=1) / before.sum(axis=1)
    found: Floats = caiso(fitted, past, customer, start) * np.clip(ratio, LEAST, MOST)[:, None]
    return found


def arima(fitted: Fitted, past: Floats, customer: Integers, start: Integers) -> Floats:
    """Return ARIMA(2, 1, 1) of the customer."""
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
    """Return the forecast of one tree for all customers, relative to the past day's mean."""
    inputs, scale = _features(past, start)
    return np.asarray(fitted.tree.predict(inputs)).reshape(-1, HORIZON) * scale[:, None]


# by name, in the order of figures
METHODS: Mapping[str, Method] = {
    "arima": arima, "nyiso": nyiso, "casce": casce, "caiso": caiso, "sliding1": sliding1, "sliding2": sliding2,
    "regression_tree": regression_tree,
}  # fmt: skip


def forecast(name: str, fitted: Fitted, past: Floats, customer: int, start: int) -> Floats:
    """Return one method's forecast for one past, shape (HORIZON,)."""
    found: Floats = METHODS[name](fitted, past[None, :], np.array([customer]), np.array([start]))[0]
    return found


def fit(loads: Floats) -> Fitted:
    """Fit ARIMA and the tree to the last FITTED_ON intervals of `loads` (customers, intervals), which end with a day.

    Raises EnvironmentProblem without the extra `learned`.
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
    """Return hours, from the start of `loads`, with a whole HISTORY before them."""
    return np.arange(-(-HISTORY // HORIZON), loads.shape[1] // HORIZON)


def pasts_of(loads: Floats, hours: Integers) -> tuple[Floats, Integers, Integers]:
    """Return the methods' inputs for `hours` of all customers: (pasts, customers, starts)."""
    ends = hours * HORIZON
    windows = np.lib.stride_tricks.sliding_window_view(loads, HISTORY, axis=1)[:, ends - HISTORY]
    customers = len(loads)
    return (
        windows.reshape(customers * len(hours), HISTORY),
        np.repeat(np.arange(customers), len(hours)),
        np.tile(ends % WEEK, customers),
    )


def values_of(loads: Floats, hours: Integers) -> Floats:
    """Return actual values of `hours`, in the order of `pasts_of`, shape (customers * hours, HORIZON)."""
    by_hour = loads[:, : loads.shape[1] // HORIZON * HORIZON].reshape(len(loads), -1, HORIZON)
    return by_hour[:, hours].reshape(-1, HORIZON)


def percentage_errors(actual: Floats, forecasts: Floats) -> Floats:
    """Return the MAPE of each forecast (percent, Eq. 3.1 with absolute errors), over the last axis."""
    found: Floats = 100 * np.mean(np.abs(actual - forecasts) / actual, axis=-1)
    return found


def _flat(values: Floats) -> Floats:
    return np.repeat(values[:, None], HORIZON, axis=1)


def _same_kind_of_day(start: Integers) -> Truths:
    """Return True where the day d + 1 days ago is like today, shape (n, LOOK_BACK)."""
    weekday = (start // DAY)[:, None]
    ago = (weekday - np.arange(1, LOOK_BACK + 1)) % 7
    found: Truths = (ago >= 5) == (weekday >= 5)
    return found


def _like_days(past: Floats, shift: int) -> Floats:
    """Return the hour from `shift` intervals on, by day before today; shape (n, LOOK_BACK, HORIZON)."""
    ago = np.arange(1, LOOK_BACK + 1)[:, None] * DAY
    return past[:, past.shape[1] + shift - ago + np.arange(HORIZON)]


def _mean_of(days: Floats, chosen: Truths) -> Floats:
    found: Floats = (days * chosen[:, :, None]).sum(axis=1) / chosen.sum(axis=1)[:, None]
    return found


def _totals(past: Floats, start: Integers) -> Floats:
    """Return the consumption of each day before today, shape (n, LOOK_BACK)."""
    found = np.empty((len(past), LOOK_BACK))
    for today in np.unique(start % DAY):
        mine = start % DAY == today
        whole = past[mine, past.shape[1] - today - LOOK_BACK * DAY : past.shape[1] - today]
        found[mine] = whole.reshape(-1, LOOK_BACK, DAY).sum(axis=2)[:, ::-1]
    return found


def _features(past: Floats, start: Integers) -> tuple[Floats, Floats]:
    """Return the tree's inputs (n, 3 * HORIZON + 2) and the past day's mean (n,)."""
    scale = past[:, -DAY:].mean(axis=1)
    end = past.shape[1]
    lags = [past[:, -HORIZON:], past[:, end - DAY : end - DAY + HORIZON], past[:, end - WEEK : end - WEEK + HORIZON]]
    calendar = np.stack([start % DAY, start // DAY >= 5], axis=1)
    return np.concatenate([*(each / scale[:, None] for each in lags), calendar], axis=1), scale


def _fit_arima(estimators: ModuleType, steps: Floats) -> tuple[float, float, float]:
    """Return Hannan and Rissanen's estimate, consistent and fast. steps: differences of one customer."""
    found, _ = estimators.hannan_rissanen(steps, ar_order=2, ma_order=1, demean=False)
    if not (found.is_stationary and found.is_invertible):
        return RANDOM_WALK
    return float(found.ar_params[0]), float(found.ar_params[1]), float(found.ma_params[0])
