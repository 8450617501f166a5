"""The cloud and the loads of chapters 4 and 5."""

import numpy as np

from elastream_papers.thesis.deployed import CloudAssumptions, host_types, walk


def test_a_load_walks_within_half_of_its_mean():
    load = walk(100.0, 3, CloudAssumptions())
    rates = np.array([load.rate(120.0 * step) for step in range(360)])
    assert 50.0 <= rates.min() < 65.0
    assert 135.0 < rates.max() <= 150.0
    assert np.abs(np.diff(rates)).max() <= 10.0 + 1e-6
    assert load.seconds == 12 * 3600


def test_hosts_cost_what_their_compute_units_do():
    for kind in host_types(CloudAssumptions()):
        assert kind.price == 0.06 * kind.cores * kind.speed
        assert kind.billing.unit == 3600.0
