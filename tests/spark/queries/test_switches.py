"""Random switches of a running dataflow, with faults among them: no batch mixes, replays are alike, totals are exact.

A small form of `benchmarks/switching.py`, which kills executors as well.
"""

import pytest
from switching import Trial

from elastream.core.action import SwitchAlternate
from elastream.core.composition import Consistency
from elastream.core.observation import Composition

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def violations(trial: Trial) -> dict[str, float]:
    counts = {"batches checked", "totals checked", "replays"}
    if trial.consistency is Consistency.BATCH:
        counts.add("batches with records of another version")  # what this mode allows
    return {what: number for what, number in trial.check().items() if number and what not in counts}


def test_random_switches_mix_no_batch_and_replays_are_alike(local_spark, tmp_path):
    trial = Trial(local_spark, tmp_path, rate=100.0, interval=0.05)
    trial.run(8, {4: "a sink"})
    assert not violations(trial)
    assert trial.restarts >= 1, trial.failures  # a busy machine may add some, which must do no harm either
    assert trial.check()["replays"] >= 1
    assert trial.lags


def test_new_code_mixes_no_batch_and_replays_run_their_own_code(local_spark, tmp_path):
    trial = Trial(local_spark, tmp_path, rate=100.0, interval=0.05, updates=True)
    trial.run(8, {4: "a sink"})
    assert not violations(trial)
    assert trial.queries.composition.code_version == 4
    assert trial.restarts >= 1, trial.failures
    assert trial.check()["replays"] >= 1


@pytest.mark.slow
def test_a_driver_lost_during_a_drain_leaves_the_composition_in_force(local_spark, tmp_path):
    trial = Trial(local_spark, tmp_path, Consistency.DRAIN, rate=200.0, interval=0.05)
    trial.wait(2)
    trial.request([SwitchAlternate("stamp", "b"), SwitchAlternate("total", "twice")])
    assert trial.queries.settle()
    trial.again()
    assert trial.queries.composition.alternates == Composition.default(trial.graph, {}).alternates
    trial.wait(2)
    trial.stop()
    assert not violations(trial)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Consistency.BATCH, Consistency.WAVE, Consistency.DRAIN])
def test_many_random_switches(local_spark, tmp_path, mode):
    trial = Trial(local_spark, tmp_path, mode, rate=200.0, interval=0.05, seed=15)
    trial.run(60 if mode is Consistency.BATCH else 30, {10: "an operator", 20: "a sink"})
    assert not violations(trial)
