"""What the page of chapter 6 on Spark says of given figures, and what its parts wait for; nothing is measured here."""

import json
from math import nan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.sql import functions as F

from elastream.errors import EnvironmentProblem, InputError
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.page import render
from elastream.spark.jvm.standby import OpenedReplica
from elastream_papers.thesis.resilience import bed as bed_module
from elastream_papers.thesis.resilience.bed import MENDING, PATIENCE, Bed, Mended, Steps
from elastream_papers.thesis.resilience.job import Job
from elastream_papers.thesis.resilience.measured import Resilience, attempt
from elastream_papers.thesis.resilience.on_spark import outcome, run_resilience_spark
from elastream_papers.thesis.resilience.reducers.keys import two_regimes


def fault(seconds):
    return Mended(normal=0.3, recovered=seconds, committed=seconds / 2, longest=0.8, batches=2)


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


def verdicts(**given):
    return {check.name: check.verdict for check in outcome(found(**given), 60.0).checks}


def test_all_bars_are_held_where_everything_is_fast_and_exact():
    assert set(verdicts().values()) == {"held"}


def test_a_slow_recovery_from_two_losses_is_missed():
    said = verdicts(faults={1: [fault(1.1)] * 6, 2: [fault(2.0)] * 6})
    assert (said["s from the kill of 1 to a batch as before"], said["s from the kill of 2 to a batch as before"]) == (
        "held",
        "missed",
    )


def test_one_run_decides_nothing():
    assert verdicts(faults={1: [fault(9.0)]})["s from the kill of 1 to a batch as before"] == "undecided"


def test_a_wrong_count_is_missed_however_fast_all_was():
    assert verdicts(wrong={"a zone lost": 3})["counts that differ from a batch query's"] == "missed"


def test_checkpoints_that_do_not_grow_with_the_interval_are_missed():
    assert verdicts(deltas={1.0: 0.03, 2.0: 0.02})["checkpoint over whole state grows with the interval"] == "missed"


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


def test_more_hosts_at_once_that_take_longer_are_missed_however_fast_both_are():
    name = "s more for each host killed at once, not above noise"
    assert verdicts(faults={1: [fault(0.5)] * 5, 2: [fault(1.0 + n / 100) for n in range(5)]})[name] == "missed"
    assert verdicts(faults={1: [fault(0.9)], 2: [fault(0.9)]})[name] == "undecided"


def test_the_page_says_where_the_time_after_a_kill_goes():
    shown = render(outcome(found(steps={1: [Steps(0.05, 0.062, 2, 1, 0.01), Steps(nan, nan, 0, 0, nan)]}), 60.0).page)
    row = shown.split("Where the time after a kill goes")[1].split("On Spark")[0]
    assert [part in row for part in ("0.050 s", "0.062 s", "0.010 s")] == [True] * 3
    json.dumps(outcome(found(steps={1: [Steps(nan, nan, 0, 0, nan)]}), 60.0).to_json(), allow_nan=False)


def test_of_a_kill_it_is_known_when_the_driver_heard_of_it_and_what_was_opened_from_a_copy_since():
    losses = (SimpleNamespace(at=99.0, took=9.0), SimpleNamespace(at=100.2, took=0.1), SimpleNamespace(at=100.4, took=0.2))
    copies = [OpenedReplica("1", "count", number, 10, 11, number, 0.01 * number) for number in range(4)]
    plant = SimpleNamespace(
        failover=SimpleNamespace(losses=losses),
        instruments=SimpleNamespace(copies=SimpleNamespace(opened=lambda: copies)),
    )
    bed = Bed(plant, SimpleNamespace(runId="run"), Job(10, 10), Path())
    steps = bed.steps(100.0, before=2)
    assert (steps.told, steps.placed) == (pytest.approx(0.4), pytest.approx(0.6))
    assert (steps.opened, steps.files, steps.opening) == (2, 5, pytest.approx(0.03))


def test_figures_are_json():
    json.dumps(outcome(found(), 60.0).to_json(), allow_nan=False)


def test_a_part_that_fails_leaves_its_sentence_and_what_others_have_measured():
    kept = found()

    def part():
        raise EnvironmentProblem("what was waited for did not come within 180 s")

    attempt(kept, "a zone lost", part)
    shown = outcome(kept, 60.0)
    assert kept.failed == {"a zone lost": "what was waited for did not come within 180 s"}
    assert "Did not run through: a zone lost: what was waited for did not come within 180 s." in render(shown.page)
    assert [check.name for check in shown.checks if check.missed] == ["parts that did not run through"]


def test_a_part_that_ends_in_a_mistake_of_ours_loses_nothing_of_what_the_others_have_measured():
    kept = found()

    def part():
        raise ValueError("not enough values to unpack")

    attempt(kept, "an interval moves", part)
    assert kept.failed == {"an interval moves": "ValueError: not enough values to unpack"}
    assert kept.faults[1]


def test_a_part_that_there_is_not_is_one_sentence():
    with pytest.raises(InputError, match=r"no part 'kill' \(there are: kills, moves, checkpoints, throughput, skew\)"):
        run_resilience_spark(ExperimentOptions(True, False, 1, lambda *told: None), "kill")


def test_findings_are_given_where_every_part_has_failed():
    nothing = Resilience(failed={"hosts killed": "no memory"})
    assert not outcome(nothing, 60.0).holds
    json.dumps(outcome(nothing, 60.0).to_json(), allow_nan=False)


@pytest.mark.spark
@pytest.mark.slow
def test_from_some_batch_on_most_records_are_those_of_the_hot_partitions_as_spark_has_them(local_spark):
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


class Stage:
    """Bed on a clock of its own, with a query that ends a batch of `seconds` each `pace` until `hangs`."""

    def __init__(self, monkeypatch, seconds, pace, hangs=float("inf")):
        self.now = 1e9
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now, sleep=self.sleep)
        monkeypatch.setattr(bed_module, "time", clock)
        self.seconds, self.pace, self.hangs = seconds, pace, self.now + hangs
        self.began, self.runId = self.now, "run"
        self.query = SimpleNamespace(run_id="run", batches=[])
        plant = SimpleNamespace(observe=lambda: None, queries=SimpleNamespace(live=[self.query]))
        self.bed = Bed(plant, self, Job(10, 10, pace=pace), Path())

    def exception(self):
        return None

    def sleep(self, seconds):
        self.now += seconds
        while self.began + self.seconds <= min(self.now, self.hangs):
            self.query.batches.append(SimpleNamespace(rows=10, start=self.began, end=self.began + self.seconds))
            self.began += max(self.seconds, self.pace)


def test_batches_that_come_seldom_are_waited_for_however_many_are_wanted(monkeypatch):
    stage = Stage(monkeypatch, seconds=1.0, pace=20.0)
    stage.bed.more(10)
    assert len(stage.query.batches) == 10


def test_a_query_that_hangs_is_not_waited_for_for_ever(monkeypatch):
    stage = Stage(monkeypatch, seconds=1.0, pace=1.0, hangs=5.0)
    with pytest.raises(EnvironmentProblem, match="did not come"):
        stage.bed.more(10)
    assert stage.now < stage.hangs + 2 * PATIENCE


def test_a_fault_after_which_no_batch_is_as_before_is_given_up_and_what_came_is_told(monkeypatch):
    stage = Stage(monkeypatch, seconds=1.0, pace=1.0)
    found = stage.bed.after(stage.now, normal=0.5)
    assert found.recovered == float("inf")
    assert (found.longest, found.committed) == (1.0, 1.0)
    assert MENDING <= stage.now - 1e9 < MENDING + 2


def test_the_first_batch_that_began_after_a_fault_and_is_as_before_ends_it(monkeypatch):
    stage = Stage(monkeypatch, seconds=1.0, pace=1.0)
    assert stage.bed.after(stage.now + 0.5, normal=0.9).recovered == pytest.approx(1.5)


def test_the_batch_that_state_landed_with_is_found_though_it_was_not_observed_yet_when_it_landed(monkeypatch):
    stage = Stage(monkeypatch, seconds=1.0, pace=1.0)
    began = stage.now
    stage.sleep(2.2)
    landed = [SimpleNamespace(host="h2", history=((3.05, "landed"),))]  # the third batch has ended meanwhile
    stage.bed.plant.clock, stage.bed.plant.placing = SimpleNamespace(epoch=began), SimpleNamespace(landed=landed)
    assert stage.bed.first_batch_on(["h2"], began) == pytest.approx(began + 3.0)


def test_the_stage_of_a_query_that_has_just_begun_is_waited_for(monkeypatch):
    stage = Stage(monkeypatch, seconds=1.0, pace=1.0)
    ended = SimpleNamespace(run_id="before", batches=[], operators=("old/count",), stages={})
    stage.query.operators, stage.query.stages = (), None

    def seen():
        if stage.now > 1e9 + 2:
            stage.query.operators, stage.query.stages = ("new/count",), {"new/count": "its state"}

    stage.bed.plant.observe, stage.bed.plant.queries.live = seen, [ended, stage.query]
    assert stage.bed.operator == "new/count"
    assert stage.bed.stage == "its state"


def test_records_a_second_are_of_whole_batches_even_if_none_fits_the_window(monkeypatch):
    assert Stage(monkeypatch, seconds=25.0, pace=0.0).bed.rate(10.0) == pytest.approx(10 / 25.0)
