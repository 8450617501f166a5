"""What the page of chapter 6 on Spark says of given figures, and what its parts wait for; nothing is measured here."""

import json

import numpy as np
import pytest
from pyspark.sql import functions as F

from elastream.errors import EnvironmentProblem, InputError
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.page import render
from elastream_papers.thesis.resilience.bed import RecoveryCost, Steps
from elastream_papers.thesis.resilience.job import Job
from elastream_papers.thesis.resilience.measured import Resilience, attempt
from elastream_papers.thesis.resilience.on_spark import outcome, run_resilience_spark
from elastream_papers.thesis.resilience.reducers.keys import two_regimes


def fault(seconds):
    return RecoveryCost(normal=0.3, recovered=seconds, committed=seconds / 2, longest=0.8, batches=2)


def found(**given):
    usual = {
        "speeds": {"r = 0": [100e3] * 6, "r = 1": [95e3] * 6, "r = 2": [90e3] * 6, "outside": [50e3] * 6},
        "joined": {"idle": [1.5] * 6, "leased": [9.0] * 6},
        "moved": {(1, 5000): [1.1, 1.3], (2, 20000): [1.8]},
        "deltas": {1.0: 0.03, 2.0: 0.05, 5.0: 0.1},
        "faults": {count: [fault(1.0 + n / 20) for n in range(6)] for count in (1, 2)},
        "steps": {count: [Steps(0.05, 0.06, 2 * count, 0, 0.01)] * 6 for count in (1, 2)},
        "balanced": [12.0] * 6,
        "taken": [(0.25, 0.5)] * 6,
        "wrong": {"hosts killed": 0},
        "restarts": {"hosts killed": 0},
    }
    return Resilience(**{**usual, **given})


KILLED, NOISE = "s from the kill of {} to a batch as before", "s more for each host killed at once, not above noise"


@pytest.mark.parametrize(
    ("given", "name", "verdict"),
    [
        ({"faults": {1: [fault(1.1)] * 6, 2: [fault(2.0)] * 6}}, KILLED.format(1), "held"),
        ({"faults": {1: [fault(1.1)] * 6, 2: [fault(2.0)] * 6}}, KILLED.format(2), "missed"),
        ({"faults": {1: [fault(9.0)]}}, KILLED.format(1), "undecided"),
        ({"faults": {1: [fault(0.5)] * 5, 2: [fault(1.0 + n / 100) for n in range(5)]}}, NOISE, "missed"),
        ({"wrong": {"a zone lost": 3}}, "counts that differ from a batch query's", "missed"),
        ({"deltas": {1.0: 0.03, 2.0: 0.02}}, "checkpoint over whole state grows with the interval", "missed"),
    ],
)
def test_bars_are_judged_by_the_figures_of_their_runs(given, name, verdict):
    assert all(check.holds for check in outcome(found(), 60.0).checks)
    verdicts = {check.name: check.verdict for check in outcome(found(**given), 60.0).checks}
    assert verdicts[name] == verdict


def test_what_was_not_measured_is_said_on_the_page():
    shown = outcome(
        found(speeds={"r = 0": [1.0], "r = 1": [1.0], "r = 2": [1.0]}, remarks=["state kept outside: no server"]), 1.0
    )
    assert "Not measured: state kept outside: no server." in render(shown.page)
    assert "records/s, r = 1 over state outside" not in render(shown.page).split("The thesis")[0]


def test_a_loss_that_did_not_mend_is_missed_and_can_be_written():
    never = found(faults={1: [fault(float("inf"))] * 6}, balanced=[float("inf")] * 6)
    shown = outcome(never, 1.0)
    missed = {check.name for check in shown.checks if check.missed}
    assert {each.split()[0] for each in missed} == {"s", "batches"}
    json.dumps(shown.to_json(), allow_nan=False)
    render(shown.page)


@pytest.mark.parametrize(
    "raised", [EnvironmentProblem("it did not come within 180 s"), ValueError("too few values")], ids=str
)
def test_a_part_that_fails_leaves_its_sentence_and_the_other_figures(raised):
    kept = found()

    def part():
        raise raised

    attempt(kept, "a zone lost", part)
    shown = outcome(kept, 60.0)
    assert str(raised) in kept.failed["a zone lost"]
    assert f"Did not run through: a zone lost: {kept.failed['a zone lost']}." in render(shown.page)
    assert [check.name for check in shown.checks if check.missed] == ["parts that did not run through"]


def test_a_part_that_there_is_not_is_one_sentence():
    with pytest.raises(InputError, match=r"no part 'kill' \(there are: kills, moves, checkpoints, throughput, skew\)"):
        run_resilience_spark(ExperimentOptions(True, False, 1, lambda *told: None), "kill")


@pytest.mark.spark
@pytest.mark.slow
def test_most_records_of_a_skew_are_of_the_hot_partitions(local_spark):
    job = Job(keys=4_000, rows=2_000, partitions=8, hot=2, skewed_from=3)

    def by_partition(batch):
        numbers = local_spark.range(batch * job.rows, (batch + 1) * job.rows).withColumnRenamed("id", "value")
        shuffled = job.keyed(numbers).repartition(job.partitions, "key").groupBy(F.spark_partition_id().alias("p")).count()
        found = {row["p"]: row["count"] for row in shuffled.collect()}
        return [found.get(number, 0) for number in range(job.partitions)]

    before, after = by_partition(2), by_partition(3)
    assert sum(before) == sum(after) == job.rows
    assert max(before) < 1.5 * job.rows / job.partitions
    assert sum(after[: job.hot]) > 0.6 * job.rows


@pytest.mark.spark
@pytest.mark.slow
def test_words_come_as_often_as_in_the_simulated_runs(local_spark):
    job = Job(keys=1_000_000, rows=200_000, words=True)
    came = job.counted(local_spark.range(job.rows).withColumnRenamed("id", "value")).collect()
    counts = np.zeros(job.keys)
    counts[[row["key"] for row in came]] = [row["count"] for row in came]
    expected = two_regimes(job.keys) * job.rows
    for most, least in ((0, 10), (10, 1000), (1000, 6000), (6000, 100_000), (100_000, 1_000_000)):
        assert counts[most:least].sum() == pytest.approx(expected[most:least].sum(), rel=0.1)
    assert len(came) == pytest.approx(float((1 - np.exp(-expected)).sum()), rel=0.1)
