"""What every forecaster keeps to, whatever it knows."""

import math

import numpy as np
import pytest

from elastream.core.metrics import Metric, Rows
from elastream.core.plant import Prospect
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.policies.forecasting.seasonal import BackTested
from elastream.policies.forecasting.series import QUANTILES, Ahead, Oracle, SeriesOf, TimeSeries, informed

STEP = 300.0
GRAPH = Graph("g", (Operator("in", Kind.SOURCE), Operator("out", Kind.SINK)), (Edge("in", "out"),))
PROSPECT = Prospect(lay_out(GRAPH, chained=False), (), {"in": constant(50, "100h")})
EVERY = (BackTested(), BackTested((7200.0,)), Oracle(), Oracle(error=0.2, bias=0.05))


def book():
    times = STEP * np.arange(1, 61)
    noise = np.random.default_rng(5)
    gaps = np.where(noise.random(60) < 0.2, math.nan, noise.normal(50, 5, 60))
    return {
        SeriesOf(Rows.OPERATOR, "in", Metric.ARRIVAL_RATE): TimeSeries(STEP).extended(times, gaps),
        SeriesOf(Rows.HOST, "h1", Metric.SPEED): TimeSeries(STEP).extended(times, noise.uniform(0.7, 1.0, 60)),
        SeriesOf(Rows.HOST, "h2", Metric.SPEED): TimeSeries(STEP).extended(times[-1:], [0.9]),
        SeriesOf(Rows.LINK, "h1>h2", Metric.BANDWIDTH): TimeSeries(STEP).extended(times[:3], [math.nan] * 3),
    }


@pytest.mark.parametrize("forecaster", EVERY, ids=lambda each: each.name)
def test_forecasts_have_ordered_quantiles_and_are_repeatable(forecaster):
    forecaster, ahead = informed(forecaster, PROSPECT), Ahead(60 * STEP, STEP, 6)
    assert not forecaster.lacking()
    given = book()
    found, memory = forecaster.foresee(given, ahead)
    assert found.keys() == given.keys()
    for subject, outlook in found.items():
        assert outlook.mean.shape == (6,)
        assert outlook.quantiles.shape == (len(QUANTILES), 6)
        if subject.rows is Rows.LINK:
            assert np.isnan(outlook.mean).all(), "nothing was ever measured"
        else:
            assert (outlook.mean >= 0).all()
            assert (np.diff(outlook.quantiles, axis=0) >= 0).all()
    again, _ = forecaster.foresee(given, ahead, memory)
    for subject in found:
        assert np.array_equal(found[subject].mean, again[subject].mean, equal_nan=True)
