"""An oracle says what will come; one that errs, by as much as is wanted, and the same again when asked again."""

import math

import numpy as np
import pytest

from elastream.core.metrics import Metric, Rows
from elastream.core.plant import Prospect
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.loads import constant
from elastream.loads.pattern import steps
from elastream.policies.forecasting.series import QUANTILES, Ahead, Oracle, SeriesOf, TimeSeries

RATE = SeriesOf(Rows.OPERATOR, "in", Metric.ARRIVAL_RATE)
SPEED = SeriesOf(Rows.HOST, "h1", Metric.SPEED)
AHEAD = Ahead(600.0, 300.0, 12)
BOOK = {RATE: TimeSeries(300.0).extended([600], [50.0]), SPEED: TimeSeries(300.0).extended([600], [0.7])}


def prospect(load, **more):
    graph = Graph("g", (Operator("in", Kind.SOURCE), Operator("out", Kind.SINK)), (Edge("in", "out"),))
    return Prospect(lay_out(graph, chained=False), (), {"in": load}, **more)


def told(oracle, load=None, ahead=AHEAD, **more):
    return oracle.prepared(prospect(load or constant(100, "1000h"), **more)).foresee(BOOK, ahead)[0]


def test_a_perfect_oracle_forecasts_the_load_and_constants_last():
    load = steps((100, 1200), (40, 1200), (0.01, 7200))
    found = told(Oracle(), load)
    assert found[RATE].mean == pytest.approx([100, 100, 40, 40, 40, 40, *[0.01] * 6])
    assert np.array_equal(found[RATE].quantiles, np.tile(found[RATE].mean, (len(QUANTILES), 1)))
    assert found[SPEED].mean.tolist() == [0.7] * 12


def test_hosts_follow_their_course():
    found = told(Oracle(), speeds=lambda host, times: np.where((host == "h1") & (times >= 1200), 0.5, 1.0))
    assert found[SPEED].mean.tolist() == [0.7, 0.7, *[0.35] * 10]


def test_a_rate_that_no_load_declares_is_unknown():
    other = {SeriesOf(Rows.OPERATOR, "other", Metric.ARRIVAL_RATE): TimeSeries(300.0)}
    found, _ = Oracle().prepared(prospect(constant(5, "1h"))).foresee(other, AHEAD)
    assert all(math.isnan(each) for outlook in found.values() for each in outlook.mean)


def test_errors_grow_from_none_to_twice_the_mean_repeatably():
    oracle = Oracle(error=0.1, spread="size")
    times = [Ahead(600.0 * n, 300.0, 12) for n in range(200)]
    errors = np.array([told(oracle, constant(100, "1000h"), each)[RATE].mean / 100 - 1 for each in times])
    assert np.all(errors[:, 0] == 0)
    assert np.abs(errors).mean(axis=0)[-1] == pytest.approx(0.2, rel=0.15)
    assert np.abs(errors).mean() == pytest.approx(0.1, rel=0.05)
    assert np.all(np.diff(errors.std(axis=0)) > -0.04)
    assert abs(errors.mean()) < 0.01
    assert np.array_equal(told(oracle)[RATE].mean, told(oracle)[RATE].mean)
    assert not np.array_equal(told(oracle)[RATE].mean, told(Oracle(error=0.1, spread="size", seed=2))[RATE].mean)


def test_printed_variance_is_half_of_the_error():
    found = np.array([told(Oracle(error=0.25), ahead=Ahead(600.0 * n, 300.0, 12))[RATE].mean for n in range(150)])
    assert found.min() >= 0
    assert found[:, -1].std() / 100 == pytest.approx(math.sqrt(0.25), rel=0.2)


@pytest.mark.parametrize("bias", [-0.05, 0.05])
def test_a_bias_is_added_to_all(bias):
    found = told(Oracle(bias=bias))
    assert found[RATE].mean == pytest.approx([100 * (1 + bias)] * 12)
    assert found[SPEED].mean == pytest.approx([0.7 * (1 + bias)] * 12)


def test_an_oracle_that_knows_no_run_says_what_it_lacks():
    assert "simulated" in Oracle().lacking()
    assert not Oracle().prepared(prospect(constant(1, "1h"))).lacking()


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"error": -0.1}, "error"), ({"error": 2}, "error"), ({"bias": 1.5}, "bias"), ({"spread": "wide"}, "spread")],
)
def test_what_is_no_fraction_is_refused(settings, said):
    with pytest.raises(InputError, match=said):
        Oracle(**settings)
