"""Demand: the search for the fewest executors, and what it shows."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.bench.demand import Demand, elastic_table, fewest, figures_of, holds, page_of, runs_table, table_of
from elastream.bench.runs import Outcome
from elastream.bench.service import Batch, Service, lag_growth
from elastream.evaluation.page import render
from elastream.loads import constant
from support.commands import invoke

LOAD = constant("10/s", lasts=40.0)


def outcome(growth=0.0, p99=1.0, correct=True, arm="fixed:1", host_seconds=10.0):
    return Outcome("q5", arm, Service(100, 10.0, 1.0, 1.0, p99, 1.5, 0, growth), host_seconds, 1.0, 1, correct, rows=3)


@given(need=st.integers(1, 9), low=st.integers(1, 4), high=st.integers(4, 8))
def test_search_returns_the_smallest_number_that_is_enough(need, low, high):
    tries = []
    found = fewest(lambda number: tries.append(number) or number >= need, low, high)
    assert found == (None if need > high else max(low, need))
    assert len(tries) == len(set(tries)) <= 4


def test_lag_that_grows_is_found_in_the_second_half():
    steady = [Batch(1000.0 + at, 1.0, 10 * at, 1000.0, 0) for at in range(0, 40, 4)]
    half = [Batch(1000.0 + at, 1.0, 5 * at, 1000.0, 0) for at in range(0, 40, 4)]
    assert lag_growth(steady, LOAD, 1000.0) == pytest.approx(0.0, abs=1e-6)
    assert lag_growth(half, LOAD, 1000.0) == pytest.approx(0.5, abs=1e-6)
    assert math.isnan(lag_growth(steady[:3], LOAD, 1000.0))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (outcome(), True),
        (outcome(growth=0.02), False),
        (outcome(growth=math.nan), False),
        (outcome(p99=6.0), False),
        (outcome(correct=None), False),
    ],
)
def test_service_level_needs_a_steady_lag_and_records_in_time(run, expected):
    assert holds(run, 5.0) is expected


def test_table_page_and_figures_show_every_repetition():
    demands = [Demand(1000.0, (1, 1, 2), (outcome(),)), Demand(2000.0, (None, 4, None), (outcome(math.nan),))]
    table = table_of(demands, 0.5, 5.0, up_to=4)
    assert [row[1:4] for row in table.rows] == [
        ("1", "0.5", "1, 1, 2"),
        ("more than 4", "-", "more than 4, 4, more than 4"),
    ]
    assert [row[4] for row in table.rows] == ["10", "-"]
    assert elastic_table(demands, 5.0) is None
    page = render(page_of("nexmark:q5", demands, [table], 0.5, {"rounds": 3}))
    assert "Demand of nexmark:q5" in page
    assert "rounds" in page
    figures = json.loads(json.dumps(figures_of("nexmark:q5", demands, {"rounds": 3}), allow_nan=False))
    assert figures["conditions"] == {"rounds": 3}


def test_runs_of_each_load_stand_with_their_service_and_answers():
    demands = [Demand(1000.0, (1,), (outcome(),)), Demand(2000.0, (2,), (outcome(correct=False, arm="fixed:2"),))]
    table = runs_table(demands, 5.0)
    assert [(*row[:2], row[-1]) for row in table.rows] == [
        ("q5 at 1000/s", "fixed:1", "correct"),
        ("q5 at 2000/s", "fixed:2", "WRONG"),
    ]
    assert table.good == (None, False)


def test_elastic_demand_stands_beside_the_fewest_that_are_fixed():
    runs = (outcome(arm="fixed:4", host_seconds=40.0), outcome(p99=9.0, host_seconds=20.0, arm="fixed:2"))
    under = tuple(outcome(arm="autopilot", host_seconds=each, p99=p99) for each, p99 in ((14.0, 1.0), (18.0, 9.0)))
    demands = [Demand(1000.0, (4,), runs, under), Demand(2000.0, (None,), runs, under)]
    table = elastic_table(demands, 5.0)
    assert [row[1:4] for row in table.rows] == [("1.60", "16", "0.40"), ("1.60", "16", "-")]
    assert table.rows[0][-1] == "1 of 2"
    assert "mean under Autopilot" in render(page_of("nexmark:q5", demands, [table], 0.5, {}))


@pytest.mark.parametrize("workload", ["nexmark", "nexmark:q99", "magic"])
def test_unknown_workload_ends_with_one_sentence_and_status_2(workload):
    result = invoke("bench", "demand", workload)
    assert result.exit_code == 2
    assert "there is no" in result.stderr


def test_rate_that_no_machine_makes_ends_before_a_cluster_starts():
    result = invoke("bench", "demand", "shuffle", "--rate", "900M/s")
    assert result.exit_code == 2
    assert "is more than this machine can make" in result.stderr


def test_load_with_too_few_batches_to_see_a_lag_grow_is_refused():
    result = invoke("bench", "demand", "shuffle", "--lasts", "15s", "--rate", "10/s")
    assert result.exit_code == 2
    assert "a load of 15 s has too few batches to see lag grow: let it last 16 s or longer" in result.stderr
