"""A plant that simulates ahead of its loop shows the same as one that does not."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from test_microbatches import plant

from elastream.core.action import DrainHost, LeaseHost, SetParallelism
from elastream.core.observation import Observation
from elastream.simulator import Emissions, HostFailure, SimulatedPlant
from elastream.simulator.batch_watch import window_means
from elastream.simulator.foresight import Foresight

ROUND_S = 2.0


def observed(
    simulated: SimulatedPlant, rounds: int, act: Callable[[SimulatedPlant, int], None], *, ahead: bool
) -> list[Observation]:
    observations = []
    for number in range(1, rounds + 1):
        simulated.advance(ROUND_S * number)
        observations.append(simulated.observe())
        act(simulated, number)
        if not ahead:
            assert not simulated.network.changing  # reading the network ends any foresight
    return observations


def nothing(simulated: SimulatedPlant, number: int) -> None: ...


def some_actions(simulated: SimulatedPlant, number: int) -> None:
    actions = {30: LeaseHost("h2", "one"), 61: SetParallelism("source", 2), 90: DrainHost("h1")}
    if number in actions:
        assert simulated.apply(actions[number]).succeeded


def assert_same(ahead: Observation, behind: Observation) -> None:
    assert ahead.time == behind.time
    assert ahead.leases == behind.leases
    assert ahead.composition == behind.composition
    assert ahead.effective == behind.effective
    assert ahead.tasks.tasks == behind.tasks.tasks
    assert [sample.time for sample in ahead.history] == [sample.time for sample in behind.history]
    assert np.array(ahead.batches, dtype=object)[:, 1:].astype(float) == pytest.approx(
        np.array(behind.batches, dtype=object)[:, 1:].astype(float), nan_ok=True
    )
    for rows, frame in ahead.frames.items():
        other = behind.frames[rows]
        assert frame.ids == other.ids
        assert set(frame.metrics) == set(other.metrics)
        for metric in frame.metrics:
            assert frame.column(metric) == pytest.approx(other.column(metric), nan_ok=True, abs=1e-6), (rows, metric)
            assert frame.age(metric) == other.age(metric)


CASES = {
    "nothing happens": ({}, nothing),
    "actions come between": ({"rate": 300}, some_actions),
    "a host is lost": ({"hosts": 2, "faults": [HostFailure(101.0)]}, nothing),
    "a host goes after a notice": ({"hosts": 2, "faults": [HostFailure(101.0, notice=30.0)]}, nothing),
    "there is no state": ({"keyed": False}, nothing),
}


@pytest.mark.parametrize("name", CASES)
def test_observations_ahead_equal_those_of_single_rounds(name: str) -> None:
    arguments, act = CASES[name]
    pairs = zip(
        observed(plant(**arguments), 120, act, ahead=True),
        observed(plant(**arguments), 120, act, ahead=False),
        strict=True,
    )
    for ahead, behind in pairs:
        assert_same(ahead, behind)


def test_result_counts_nothing_that_was_only_simulated_ahead() -> None:
    ahead, behind = plant(), plant()
    for each in (ahead, behind):
        observed(each, 37, nothing, ahead=each is ahead)
    assert isinstance(ahead._foresight, Foresight)
    before, after = behind.result(), ahead.result()
    assert after.committed == pytest.approx(before.committed)
    assert after.operators["source"].arrived == pytest.approx(before.operators["source"].arrived)
    assert after.series == pytest.approx(before.series, nan_ok=True, abs=1e-6)
    assert after.seconds == ahead.time == 37 * ROUND_S


def test_time_between_two_rounds_is_simulated_too() -> None:
    ahead, behind = plant(), plant()
    observed(ahead, 40, nothing, ahead=True)
    observed(behind, 40, nothing, ahead=False)
    for each in (ahead, behind):
        each.advance(40 * ROUND_S + 0.7)
    assert_same(ahead.observe(), behind.observe())


def test_run_ahead_finishes_when_its_load_ends() -> None:
    short = plant(seconds=60)
    for number in range(1, 40):
        short.advance(ROUND_S * number)
        if short.finished:
            break
    assert 60.0 <= short.time <= 66.0


def test_means_cover_earlier_rows() -> None:
    rows = np.arange(10.0).reshape(5, 2)
    expected = [rows[max(0, row - 2) : row + 1].mean(axis=0) for row in range(2, 5)]
    assert window_means(rows, 2, 3) == pytest.approx(np.array(expected))


def test_last_emission_is_the_last_with_records() -> None:
    assert Emissions.every(1.0, [0, 3, 0]).last == 1.0
    assert Emissions.every(1.0, [0, 0]).last == -math.inf
