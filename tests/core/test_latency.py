"""What latencies count from is said beside them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.frames import Floats
from elastream.core.latency import (
    Basis,
    basis_text,
    figures,
    is_bound,
    mixture_quantile,
    share_within,
    spread,
    spread_figures,
    spread_quantiles,
    weakest,
    weighted_quantiles,
)
from elastream.core.metrics import Metric

Batches = tuple[Floats, Floats, Floats]


def test_a_common_basis_is_stated_once_and_others_by_source():
    assert basis_text({}) == ""
    assert basis_text({"a": Basis.DUE, "b": Basis.DUE}) == "from due times"
    assert basis_text({"a": Basis.BOUND}) == "upper bound"
    assert basis_text({"a": Basis.DUE, "b": Basis.BOUND}) == "a: due times, b: upper bound"


def test_one_source_with_a_bound_makes_the_whole_a_bound():
    assert is_bound({"a": Basis.DUE, "b": Basis.BOUND})
    assert not is_bound({"a": Basis.TIMESTAMPS})


def test_a_run_is_as_exact_as_its_least_exact_observation():
    seen = [{"a": Basis.DUE}, {"a": Basis.DUE, "b": Basis.TIMESTAMPS}, {"b": Basis.BOUND}, {"b": Basis.TIMESTAMPS}]
    assert weakest(seen) == {"a": Basis.DUE, "b": Basis.BOUND}


# -- weighted samples --------------------------------------------------------------------------------------------------

_PAIRS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.01, 100)), min_size=1, max_size=30)


@given(_PAIRS, st.floats(0.01, 1.0))
def test_weighted_quantile_leaves_its_share_at_or_below(pairs: list[tuple[float, float]], q: float) -> None:
    values, weights = np.array(pairs).T
    (quantile,) = weighted_quantiles(values, weights, np.array([q]))
    assert quantile in values
    assert weights[values <= quantile].sum() >= q * weights.sum() * (1 - 1e-9)
    assert weights[values < quantile].sum() <= q * weights.sum() * (1 + 1e-9)


def test_weighted_quantile_is_exact_where_equal_weights_reach_it() -> None:
    for weight in (0.1, 1 / 3, 7e5):
        assert weighted_quantiles(np.arange(10.0), np.full(10, weight), np.array([0.5, 0.99])).tolist() == [4.0, 9.0]


def test_figures_of_no_samples_are_unknown() -> None:
    row = figures(np.empty(0), np.empty(0), 1.0)
    assert all(math.isnan(value) for value in row.values())
    assert Metric.COMPLIANCE not in row


def test_figures_weigh_samples_by_their_records() -> None:
    row = figures(np.array([3.0, 1.0]), np.array([1.0, 3.0]), 2.0)
    assert row == {Metric.LATENCY: 1.5, Metric.LATENCY_P50: 1.0, Metric.LATENCY_P99: 3.0, Metric.COMPLIANCE: 0.75}


# -- batches -----------------------------------------------------------------------------------------------------------

_BATCHES = st.lists(
    st.tuples(st.integers(1, 10_000).map(float), st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=12
).map(lambda rows: (np.array(rows)[:, 0], np.array(rows)[:, 1] + np.array(rows)[:, 2], np.array(rows)[:, 1]))


def spread_share(records: np.ndarray, oldest: np.ndarray, newest: np.ndarray, limit: float) -> float:
    return float(spread(records, oldest, newest, np.array([0.5]), limit)[-2])


@given(_BATCHES)
def test_spread_quantiles_rise_from_the_newest_to_the_oldest(batches: Batches) -> None:
    quantiles = spread_quantiles(*batches, (0.0, 0.25, 0.5, 0.99, 1.0))
    assert quantiles == sorted(quantiles)
    assert quantiles[0] >= batches[2].min() - 1e-6
    assert quantiles[-1] <= batches[1].max() + 1e-5


@given(_BATCHES, st.floats(0, 80))
def test_spread_share_and_spread_quantile_are_inverse(batches: Batches, limit: float) -> None:
    share = spread_share(*batches, limit)
    assert 0 <= share <= 1
    assert spread_share(*batches, *spread_quantiles(*batches, (share,))) == pytest.approx(share, abs=1e-6)


@given(_BATCHES, st.floats(0, 80))
def test_share_of_several_batches_is_the_mean_of_theirs(batches: Batches, limit: float) -> None:
    shares = [share_within(limit, oldest, newest) for _, oldest, newest in zip(*batches, strict=True)]
    near = [abs(limit - newest) < 1e-5 for newest in batches[2]]  # where a spread of 0 decides
    if not any(near):
        assert spread_share(*batches, limit) == pytest.approx(np.average(shares, weights=batches[0]), abs=1e-6)


def test_latencies_of_a_batch_lie_evenly_between_newest_and_oldest() -> None:
    one = np.array([100.0]), np.array([3.0]), np.array([1.0])
    row = spread_figures(*one, 1.5)
    assert row[Metric.LATENCY_P50] == pytest.approx(2.0)
    assert (row[Metric.LATENCY], row[Metric.COMPLIANCE]) == (2.0, pytest.approx(0.25))
    assert math.isnan(spread_quantiles(np.array([100.0]), np.array([math.nan]), np.array([math.nan]), (0.5,))[0])


# -- periods -----------------------------------------------------------------------------------------------------------


def test_quantiles_of_equal_periods_are_those_of_one() -> None:
    ones = np.ones(20)
    assert mixture_quantile(0.5, ones, 0.2 * ones, 0.9 * ones) == pytest.approx(0.2)
    assert mixture_quantile(0.99, ones, 0.2 * ones, 0.9 * ones) == pytest.approx(0.9)


@given(st.lists(st.tuples(*[st.floats(0, 9)] * 3), min_size=1, max_size=20), st.floats(0.01, 0.99))
def test_quantile_of_a_mixture_is_where_its_distributions_add_up(several: list[tuple[float, ...]], q: float) -> None:
    weights, p50, width = (np.array(column) + 0.01 for column in zip(*several, strict=True))
    p99 = p50 + width
    knots = np.unique(np.concatenate([[0.0], p50, p99]))
    curves = [np.interp(knots, [0.0, m, h], [0.0, 0.5, 0.99], right=1.0) for m, h in zip(p50, p99, strict=True)]
    expected = np.interp(q, np.average(curves, axis=0, weights=weights), knots)
    assert mixture_quantile(q, weights, p50, p99) == pytest.approx(expected, rel=1e-6)


def test_a_bad_period_weighs_as_much_as_its_records() -> None:
    p50, p99 = np.array([0.2, 10.0]), np.array([1.0, 20.0])
    assert mixture_quantile(0.5, np.array([99.0, 1.0]), p50, p99) < 0.3
    assert mixture_quantile(0.99, np.array([99.0, 1.0]), p50, p99) <= 1.0 + 9.5
    assert mixture_quantile(0.5, np.array([1.0, 99.0]), p50, p99) > 9.0
    assert mixture_quantile(0.5, np.array([1.0, 0.0]), p50, p99) == pytest.approx(0.2)
    assert math.isnan(mixture_quantile(0.5, np.zeros(2), p50, p99))
