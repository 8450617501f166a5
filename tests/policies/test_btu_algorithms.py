"""VISP's three algorithms, against values computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.policies import btu
from elastream.policies.common.draft import Draft
from support.visp_observations import observe, operator

NAN = math.nan


def test_unknown_durations_keep_their_place_in_the_trend():
    assert btu.predicted_duration([1.0, NAN, 3.0]) == pytest.approx(4.0)


@pytest.mark.parametrize("durations", [[], [1.0], [NAN, 1.0], [NAN, NAN]])
def test_there_is_no_trend_below_two_known_durations(durations):
    assert math.isnan(btu.predicted_duration(durations))


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_the_trend_agrees_with_numpys_fit(durations):
    slope, start = np.polyfit(np.arange(1, len(durations) + 1), durations, 1)
    assert btu.predicted_duration(durations) == pytest.approx(start + slope * (len(durations) + 1), rel=1e-6, abs=1e-3)


@pytest.mark.parametrize(
    ("duration", "durations", "queue", "upscales"),
    [
        (1.2, [1.2, 1.2], 51, True),  # late, queue long
        (1.2, [1.2, 1.2], 50, False),  # late, but the queue is not above the threshold
        (0.9, [0.5, 0.7, 0.9], 51, True),  # about to be late: the trend gives 1.1
        (0.9, [0.9, 0.9, 0.9], 51, False),  # in time and level
        (0.9, [1.5, 1.2, 0.9], 51, False),  # in time and falling
        (NAN, [NAN, NAN], 500, False),  # unknown is over nothing
        (1.2, [1.2, 1.2], NAN, False),
    ],
)
def test_a_late_operator_with_a_long_queue_is_scaled_up(duration, durations, queue, upscales):
    assert btu.needs_upscaling(duration, 1.0, durations, queue, 50) is upscales


def suitability_of(unit, placed, operators, images=None):
    draft = Draft(observe(operators, placed, images=images))
    return btu.host_suitability(draft, draft.by_name[unit], 0.01).tolist()


def test_suitability_is_the_imbalance_left_over_feasibility():
    # Empty host: 4 cores, 7000 MB. One b (1 core, 1000 MB): feasibility min(4, 7) = 4,
    # left 3/4 of the cores and 6/7 of the memory: |0.75 - 0.857142...| / 4.
    operators = [operator("a", cores=2, memory=1000), operator("b", cores=1, memory=1000)]
    # h2 holds an a: 2 cores and 6000 MB free; feasibility 2; left 1/4 and 5/7.
    found = suitability_of("b", {"h1": [], "h2": ["a"]}, operators)
    assert found == pytest.approx([abs(3 / 4 - 6 / 7) / 4, abs(1 / 4 - 5 / 7) / 2])


def test_a_cached_image_multiplies_suitability_by_the_cache_factor():
    operators = [operator("a", cores=2), operator("b")]
    plain = suitability_of("b", {"h1": [], "h2": ["a"]}, operators)
    cached = suitability_of("b", {"h1": [], "h2": ["a"]}, operators, {"h2": frozenset({"b"})})
    assert cached == pytest.approx([plain[0], plain[1] * 0.01])


def test_a_host_without_room_for_one_instance_is_unsuitable():
    operators = [operator("a", cores=4, memory=100), operator("b", cores=0.5, memory=6500), operator("c")]
    assert suitability_of("c", {"h1": ["a"], "h2": ["b"], "h3": []}, operators)[:2] == [-1.0, -1.0]


def test_the_lowest_suitability_that_is_not_negative_wins():
    operators = [operator("a", cores=4), operator("b", cores=2), operator("c")]
    draft = Draft(observe(operators, {"h1": ["a"], "h2": ["b"], "h3": []}))
    assert btu.best_host(draft, draft.by_name["c"], 0.01) == "h3"
    draft = Draft(observe(operators, {"h1": ["a"], "h2": ["b"], "h3": []}, images={"h2": frozenset({"c"})}))
    assert btu.best_host(draft, draft.by_name["c"], 0.01) == "h2"
    draft = Draft(observe(operators, {"h1": ["a"]}))
    assert btu.best_host(draft, draft.by_name["c"], 0.01) is None


HEAVY = btu.DownscalingWeights(instances=2, queue_load=0.5, delay=3, scalings=4)


@pytest.mark.parametrize(
    ("changes", "utility"),
    [
        ({}, 1 + 0.5 - 0.80008 - 0.25),  # 1 + (3-1)/(5-1) + 0 - 0.8 * 1.0001 - 2/8
        ({"queue": 0.0}, 1 + 0.5 + 100 - 0.80008 - 0.25),
        ({"queue": 1.0}, 1 + 0.5 - 0.80008 - 0.25),
        ({"queue": 0.0, "weights": HEAVY}, 1 + 2 * 0.5 + 0.5 * 100 - 3 * 0.80008 - 4 * 0.25),
        ({"all_instances": [3, 3], "all_scalings": 0.0, "service_level": None}, 1.0),  # nothing to compare
        ({"duration": 3.0}, 1 + 0.5 - 3.0003 - 0.25),  # a delayed one must not be scaled down
        ({"instances": 1, "queue": 0.0}, -1.0),  # nor the last instance
        ({"duration": NAN}, -1.0),
        ({"queue": NAN}, -1.0),
    ],
)
def test_downscaling_utility_is_the_weighted_sum_of_algorithm_3(changes, utility):
    case = {
        "instances": 3, "all_instances": [1, 3, 5], "duration": 0.8, "service_level": 1.0, "scalings": 2.0,
        "all_scalings": 8.0, "queue": 10.0, "weights": btu.DownscalingWeights(),
    }  # fmt: skip
    assert btu.downscaling_utility(**{**case, **changes}) == pytest.approx(utility)
