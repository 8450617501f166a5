"""Traces of host speeds: the walk as documented, EC2 as the thesis measured it, and how a run reads them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import InputError
from elastream.loads.speeds import Ec2Speeds, SpeedTrace, SpeedWalk, number_of, slot_at
from support.property_examples import examples

HOURS = 3600.0
MANY = 2_000
"""Hosts of a test of shares: the standard error of a fifth is 0.9 points."""


@settings(max_examples=examples(50), deadline=None)
@given(st.floats(0.55, 0.95), st.floats(0.01, 1.0), st.integers(0, 2**32))
def test_a_random_walk_keeps_its_bounds_and_its_longest_step(mean, part, seed):
    step = part * 2 * (1 - mean)
    factors = SpeedWalk(mean=mean, step=step, hosts=5, seed=seed).over(2 * HOURS).factors
    assert factors.shape == (5, 60)
    assert (np.abs(np.diff(factors, axis=1)) <= step + 1e-12).all()
    assert ((factors >= 2 * mean - 1 - 1e-12) & (factors <= 1 + 1e-12)).all()


def test_the_documented_walk_has_its_mean_and_its_steps():
    trace = SpeedWalk(hosts=MANY).over(12 * HOURS)
    assert trace.interval == 120
    assert trace.factors.mean() == pytest.approx(0.85, abs=0.005)
    assert trace.factors[:, 0].mean() == pytest.approx(0.85, abs=0.01)
    assert np.abs(np.diff(trace.factors, axis=1)).max() == pytest.approx(0.1, abs=0.001)


def test_ec2_hosts_have_the_figures_of_the_thesis():
    factors = Ec2Speeds(hosts=MANY).over(6 * HOURS).factors
    changes = np.abs(factors[:, 1:] / factors[:, :-1] - 1)
    assert (factors.mean(axis=1) < 0.80).mean() == pytest.approx(0.23, abs=0.02)
    assert (changes > 0.20).mean() == pytest.approx(0.25, abs=0.01)
    assert factors.mean() == pytest.approx(0.85, abs=0.01)
    assert factors.max() <= 1


@pytest.mark.parametrize("source", [SpeedWalk, Ec2Speeds])
def test_a_seed_is_a_trace_and_a_longer_run_begins_with_it(source):
    one, longer = (source(seed=3, hosts=4).over(hours * HOURS).factors for hours in (1, 2))
    assert (longer[:, : one.shape[1]] == one).all()
    assert not (source(seed=4, hosts=4).over(HOURS).factors == one).all()


def test_a_host_reads_its_row_by_name_and_wraps_around():
    trace = SpeedTrace([[1, 0.9, 0.8], [0.5, 0.4, 0.3]], 60.0)
    numbers = np.array([number_of(name, 7) for name in ("h1", "h2", "h3", "spare", "h0")])
    assert numbers.tolist() == [0, 1, 2, 7, 7]
    assert trace.at(numbers, 0.0).tolist() == [1.0, 0.5, 1.0, 0.5, 0.5]
    assert trace.at(numbers[:2], 59.9).tolist() == [1.0, 0.5]
    assert trace.at(numbers[:2], 60.0).tolist() == [0.9, 0.4]
    assert trace.at(numbers[:2], 180.0).tolist() == [1.0, 0.5]


@given(st.integers(0, 10**6), st.floats(0.1, 1e4))
def test_the_border_between_two_slots_belongs_to_the_later_one(number, interval):
    assert slot_at(number * interval, interval) == number


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SpeedWalk(mean=0.5), "would go down to 0"),
        (lambda: SpeedWalk(mean=1.0), "has no room"),
        (lambda: SpeedWalk(step=0.4), "wider than a walk"),
        (lambda: SpeedWalk(step=0.0), "wider than a walk"),
        (lambda: SpeedWalk(hosts=0), "at least one is needed"),
        (lambda: SpeedWalk(every=0.0), "must be above 0"),
        (lambda: SpeedTrace(np.array([1.0])), "its shape is"),
        (lambda: SpeedTrace(np.array([[1.0, math.nan]])), "missing, infinite or not above 0"),
        (lambda: SpeedTrace(np.array([[1.0, 0.0]])), "missing, infinite or not above 0"),
        (lambda: SpeedTrace(np.ones((1, 1)), 0.0), "must be above 0"),
        (lambda: SpeedTrace([[1.0], [1.0, 0.9]]), "rows of one length"),
        (lambda: SpeedTrace([["fast"]]), "a table of numbers"),
    ],
)
def test_what_cannot_be_a_trace_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
