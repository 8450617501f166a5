"""The VISP experiment on Spark: what is made of its runs. The runs themselves take minutes; a short pair is marked slow."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elastream import HostType
from elastream.core.hosts import Billing, HostState, Lease
from elastream.core.observation import MicroBatch
from elastream.loads import constant
from elastream_papers.visp.on_spark import (
    POLICIES,
    VispSparkRun,
    bars,
    began,
    early,
    machines,
    outcome,
    penalty,
    run_pair,
    tabulate,
    times_over,
)

RUN = VispSparkRun(
    "btu", 1000, {"real-time": 300, "near-real-time": 100, "relaxed": 20}, 0.8, 12.0, 0.04, 4, 8, 0, 3.0, 0, "", 220.0,
    "hosts as they are", tuple((float(second), 2.0 + second, 1.0, 2.0) for second in range(5)),
)  # fmt: skip
BASELINE = replace(
    RUN, policy="threshold", late={"real-time": 500, "near-real-time": 400, "relaxed": 90}, cost=14.0, early_releases=3
)


def pairs(number: int = 3, **changed: object) -> list[VispSparkRun]:
    """Pairs of runs that differ a little; changed: in those by billing time unit."""
    return [
        replace(each, cost=each.cost + 0.1 * pair) for pair in range(number) for each in (replace(RUN, **changed), BASELINE)
    ]


def test_every_bar_is_held_by_three_pairs_in_which_one_policy_is_better():
    assert [check.verdict for check in bars(pairs())] == ["held"] * 5


def test_one_pair_decides_nothing_of_means():
    assert [check.verdict for check in bars(pairs(1))] == ["undecided"] * 2 + ["held"] * 3


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
    names = [check.name for check in bars(pairs(**changed)) if check.missed]
    assert len(names) == 1
    assert names[0].startswith(missed)


def test_pairs_are_compared_and_not_the_order_in_which_they_ran():
    first, *others = zip(*[iter(pairs())] * 2, strict=True)
    swapped = [*first, *(run for pair in others for run in reversed(pair))]
    assert [check.value for check in bars(swapped)] == [check.value for check in bars(pairs())]
    assert list(tabulate(swapped)) == list(POLICIES)


def test_an_item_counts_from_when_it_was_due_to_the_commit_that_took_it():
    taken = [MicroBatch("parse", 5.0, 1.0, 4.0), MicroBatch("parse", 6.0, 1.0, 0.0), MicroBatch("parse", 6.0, 2.0, 6.0)]
    found = times_over(taken, constant("10/s", lasts="1s"), 4.0, 2.0)
    due = 4.0 + 0.1 * np.arange(1, 11)
    assert found == pytest.approx(np.concatenate([6.0 - due[:4], 8.0 - due[4:]]) / 2)


def test_a_query_without_batches_has_no_items():
    assert len(times_over([], constant("10/s"), 0.0, 1.0)) == 0


def test_the_load_of_a_sensor_began_where_its_checkpoint_says(tmp_path: Path):
    checkpoint = tmp_path / "checkpoint" / "heat"
    for kind, number in (("offsets", 0), ("offsets", 1), ("offsets", 2), ("commits", 0), ("commits", 1)):
        file = checkpoint / kind / str(number)
        file.parent.mkdir(parents=True, exist_ok=True)
        offset = {"n": number, "t": 0.5, "started": 1234.5 if number == 1 else 0.0}
        file.write_text("\n".join(("v1", "{}", json.dumps(offset))))
    assert began(tmp_path, "heat") == 1234.5


def test_all_late_costs_the_same_part_of_the_hosts_as_in_the_paper():
    # 1.7 million items at 0.0001 are 170, in two hours of BTU10 that a host pays twelve times.
    for items, units in ((4_000, 3), (100, 12)):
        assert items * penalty(items, 60.0 * units) == pytest.approx(170 * units / 12)


@pytest.mark.parametrize(("at", "ended", "expected"), [(30.0, 500.0, True), (58.0, 500.0, False), (30.0, 31.0, False)])
def test_a_host_is_early_that_goes_before_its_unit_ends_and_not_with_the_run(at, ended, expected):
    history = ((0.0, HostState.STARTING), (5.0, HostState.RUNNING), (at, HostState.RELEASING), (at + 1, HostState.RELEASED))
    lease = Lease("h1", HostType("half", cores=0.5, billing=Billing(60.0)), 0.0, until=at + 1, history=history)
    assert early(lease, ended) is expected


def test_the_load_is_stepwise_and_its_short_form_goes_through_it_once():
    assert [machines(False).rate(24.0 * step + 1) for step in range(8)] == [2, 5, 8, 5] * 2
    assert machines(True).seconds == 4 * 16


def test_figures_of_the_page_are_from_spark_with_the_papers_in_rows_of_their_own():
    page = outcome(pairs(), 1.0).page
    table = next(each for each in page.tables if "side by side" in each.caption)
    named = [row[0] for row in table.rows]
    assert named[:2] == ["real-time compliance (Spark)", "   paper, Table 3"]
    assert table.rows[1][1:] == ("49.0% (1.0%)", "40.0% (1.0%)")
    assert not any("simulated" in name for name in named)


@pytest.mark.spark
@pytest.mark.slow
def test_a_short_pair_on_spark_is_exact_and_each_sensors_items_are_judged():
    runs = list(run_pair(quick=True, swapped=False))
    assert [run.policy for run in runs] == list(POLICIES)
    for run in runs:
        assert (run.wrong, run.restarts) == ("", 0)
        displays = run.items // 17  # a display, its OEE value, five availabilities and ten temperatures
        assert run.items == 17 * displays > 0
