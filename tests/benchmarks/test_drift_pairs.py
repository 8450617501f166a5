"""benchmarks/drift.py: what it says where nothing was recorded, and when a prediction agrees."""

import math
from argparse import Namespace

import pytest
from drift import QUICK, SCENARIOS, Predicted, measure

from elastream.errors import ElastreamError


def predicted(simulated, spread=0.0, measured=10.0):
    return Predicted("a", "b", "latency p50", measured, simulated, spread)


@pytest.mark.parametrize(
    ("simulated", "spread", "agrees"),
    [
        (12.0, 0.0, True),
        (12.1, 0.0, False),
        (7.9, 0.0, False),
        (12.9, 0.3, True),
        (13.1, 0.3, False),
        (12.5, math.nan, False),
        (math.nan, 0.0, False),
    ],
)
def test_prediction_agrees_within_the_bound_or_the_spread_of_twins(simulated, spread, agrees):
    assert predicted(simulated, spread).agrees is agrees


def test_scenarios_of_a_dataflow_differ_in_load_hosts_and_policy():
    assert len(SCENARIOS) >= 12
    assert set(QUICK) <= set(SCENARIOS)
    for dataflow in {each.dataflow for each in SCENARIOS.values()}:
        mine = [each for each in SCENARIOS.values() if each.dataflow is dataflow]
        assert len(mine) >= 3
        assert len({type(each.policy) for each in mine}) > 1
        assert len({(each.host.name, each.hosts) for each in mine}) > 1
    longest = sum(60 if each.load.seconds is None else each.load.seconds + 35 for each in SCENARIOS.values())
    assert 2 * longest < 40 * 60


def test_without_recordings_one_sentence_says_how_to_make_them(tmp_path):
    with pytest.raises(ElastreamError, match="record them first"):
        measure(Namespace(record=None, read=tmp_path, quick=True))
