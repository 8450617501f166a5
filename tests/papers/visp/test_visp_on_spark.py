"""The VISP experiment on Spark: what is made of its runs. The runs themselves take minutes; a short pair is marked slow."""

from dataclasses import replace

import numpy as np
import pytest

from elastream import HostType
from elastream.core.hosts import Billing, HostState, Lease
from elastream.core.observation import MicroBatch
from elastream.loads import constant
from elastream_papers.visp import on_spark

RUN = on_spark.VispSparkRun(
    "btu", 1000, {"real-time": 300, "near-real-time": 100, "relaxed": 20}, 0.8, 12.0, 0.04, 4, 8, 0, 3.0, 0, "", 220.0,
    "hosts as they are", tuple((float(second), 2.0 + second, 1.0, 2.0) for second in range(5)),
)  # fmt: skip
BASELINE = replace(
    RUN, policy="threshold", late={"real-time": 500, "near-real-time": 400, "relaxed": 90}, cost=14.0, early_releases=3
)


def pairs(number: int = 3, **changed: object) -> list[on_spark.VispSparkRun]:
    """Pairs of runs that differ a little; changed: in those by billing time unit."""
    return [
        replace(each, cost=each.cost + 0.1 * pair) for pair in range(number) for each in (replace(RUN, **changed), BASELINE)
    ]


def test_every_bar_is_held_by_three_pairs():
    assert [check.verdict for check in on_spark.bars(pairs())] == ["held"] * 5
    assert [check.verdict for check in on_spark.bars(pairs(1))] == ["undecided"] * 2 + ["held"] * 3, (
        "one pair decides no mean"
    )


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({"late": {"real-time": 600, "near-real-time": 500, "relaxed": 10}, "cost": 1.0}, "near-real-time compliance"),
        ({"cost": 80.0}, "near-real-time total cost"),
        ({"early_releases": 1}, "early host releases"),
        ({"wrong": "readings in reports: 3 arrived, 4 expected"}, "results against the sensors' data"),
        ({"restarts": 1}, "query restarts"),
    ],
)
def test_each_bar_is_missed_by_what_it_is_about_alone(changed, missed):
    names = [check.name for check in on_spark.bars(pairs(**changed)) if check.missed]
    assert len(names) == 1
    assert names[0].startswith(missed)


def test_an_item_counts_from_when_it_was_due_to_the_commit_that_took_it():
    taken = [MicroBatch("parse", 5.0, 1.0, 4.0), MicroBatch("parse", 6.0, 1.0, 0.0), MicroBatch("parse", 6.0, 2.0, 6.0)]
    found = on_spark.times_over(taken, constant("10/s", lasts="1s"), 4.0, 2.0)
    due = 4.0 + 0.1 * np.arange(1, 11)
    assert found == pytest.approx(np.concatenate([6.0 - due[:4], 8.0 - due[4:]]) / 2)


@pytest.mark.parametrize(("at", "ended", "expected"), [(30.0, 500.0, True), (58.0, 500.0, False), (30.0, 31.0, False)])
def test_a_host_is_early_that_goes_before_its_unit_and_the_run_end(at, ended, expected):
    history = ((0.0, HostState.STARTING), (5.0, HostState.RUNNING), (at, HostState.RELEASING), (at + 1, HostState.RELEASED))
    lease = Lease("h1", HostType("half", cores=0.5, billing=Billing(60.0)), 0.0, until=at + 1, history=history)
    assert on_spark.early(lease, ended) is expected


def test_the_papers_figures_have_rows_of_their_own():
    page = on_spark.outcome(pairs(), 1.0).page
    table = next(each for each in page.tables if "side by side" in each.caption)
    named = [row[0] for row in table.rows]
    assert named[:2] == ["real-time compliance (Spark)", "   paper, Table 3"]
    assert table.rows[1][1:] == ("49.0% (1.0%)", "40.0% (1.0%)")
    assert not any("simulated" in name for name in named)


@pytest.mark.spark
@pytest.mark.slow
def test_a_short_pair_on_spark_is_exact_and_judged():
    runs = list(on_spark.run_pair(quick=True, swapped=False))
    assert [run.policy for run in runs] == list(on_spark.POLICIES)
    for run in runs:
        assert (run.wrong, run.restarts) == ("", 0)
        displays = run.items // 17  # a display, its OEE value, five availabilities and ten temperatures
        assert run.items == 17 * displays > 0
