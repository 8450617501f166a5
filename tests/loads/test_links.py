"""Traces of links: EC2's as the thesis measured them, and one link a pair of hosts, whichever way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.loads.links import Ec2Links, LinkTrace, pair_number, pairs_of

MANY = 2_000


def test_ec2_links_have_the_figures_of_the_thesis():
    trace = Ec2Links(pairs=MANY).over(6 * 3600.0)
    closeness = (1 / trace.latency).mean(axis=1)
    assert (closeness < 0.70).mean() == pytest.approx(0.47, abs=0.02)
    assert (trace.bandwidth.mean(axis=1) < 0.80).mean() == pytest.approx(0.22, abs=0.02)
    assert trace.latency.min() >= 1
    assert trace.bandwidth.max() <= 1
    assert abs(np.corrcoef(closeness, trace.bandwidth.mean(axis=1))[0, 1]) < 0.1


def test_a_seed_is_a_trace_and_a_longer_run_begins_with_it():
    one, longer = (Ec2Links(seed=3, pairs=4).over(seconds) for seconds in (3600.0, 7200.0))
    assert (longer.latency[:, : one.latency.shape[1]] == one.latency).all()
    assert (longer.bandwidth[:, : one.bandwidth.shape[1]] == one.bandwidth).all()
    assert not (Ec2Links(seed=4, pairs=4).over(3600.0).latency == one.latency).all()


@given(st.integers(0, 40))
def test_pairs_are_numbered_without_gaps_first_hosts_first(hosts):
    pairs = np.array(pairs_of(hosts), dtype=np.int64).reshape(-1, 2)
    assert pair_number(pairs[:, 0], pairs[:, 1]).tolist() == list(range(hosts * (hosts - 1) // 2))
    assert pair_number(pairs[:, 1], pairs[:, 0]).tolist() == list(range(hosts * (hosts - 1) // 2))


def test_a_link_is_the_same_both_ways_and_between_two_hosts():
    trace = Ec2Links(pairs=7).over(3600.0)
    hosts = np.arange(10)
    for factors in trace.at(hosts, hosts, 600.0):
        assert (factors == factors.T).all()
        assert (np.diag(factors) == 1).all()
        assert (factors[~np.eye(10, dtype=bool)] != 1).all()


def test_a_trace_whose_tables_differ_in_shape_is_refused():
    with pytest.raises(InputError, match="its shape is"):
        LinkTrace(np.ones((3, 2)), np.ones((3, 1)))
    with pytest.raises(InputError, match="not above 0"):
        LinkTrace(np.ones((3, 1)), -np.ones((3, 1)))
