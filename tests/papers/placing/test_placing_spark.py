"""What is made of queries and measurements of the placement experiments on Spark; running them takes minutes."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from elastream.core.action import MoveTask
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from elastream_papers.placing.on_spark import Moves, PlacementFigures, settle

SENT = ((100.0, 10.0, 20.0), (30.0, 100.0, 40.0), (0.0, 0.0, 100.0))
PHASE = PlacementFigures((0.8, 0.4, 0.6), (0.1, 0.2, 0.3), SENT, 300.0, 100.0, 1000.0, 0.5, Moves(3, 1, {}), 0.9)
TASKS = [TaskId("count", 0), TaskId("count", 1)]


def test_figures_are_of_the_hosts_quota_and_links():
    figures = PHASE.metrics
    assert figures["CPU of hosts (mean, of the quota)"] == pytest.approx(0.6)
    assert figures["CPU of hosts (deviation)"] == pytest.approx(math.sqrt(0.08))
    assert figures["links of hosts (mean, of the rate)"] == pytest.approx(0.2)
    assert figures["between hosts, of what tasks with state send each other"] == pytest.approx(0.25)
    assert (figures["state partitions moved"], figures["moves refused"]) == (3, 1)
    assert figures["tasks where planned"] == 0.9


class Tasks(list):
    """Two tasks with this many busy cores each."""

    def column(self, metric):
        return np.full(len(self), self.busy)


def observed(busy):
    tasks = Tasks(TASKS)
    tasks.busy = busy
    return SimpleNamespace(tasks=tasks)


def test_unmeasured_rounds_are_not_quiet_and_the_planned_placement_is_kept():
    """A policy that moves a task in its third measured round at the latest gets there, however long nothing is measured."""
    rounds = iter([0.1, math.nan, math.nan, math.nan, 0.1, 0.1, 0.1])
    plans = iter([(), (MoveTask(TASKS[1], "h1"), MoveTask(TASKS[0], "gone")), (), ()])
    plant = SimpleNamespace(
        observe=lambda: observed(0.1),
        queries=SimpleNamespace(all=()),
        placing=SimpleNamespace(landed=[], targets=dict),
        reconciler=SimpleNamespace(placements=lambda: dict.fromkeys(TASKS, "h2")),
        apply=lambda action: SimpleNamespace(succeeded=action.host != "gone"),
    )
    policy = SimpleNamespace(plan=lambda seen, memory: Plan(next(plans)))
    moves = settle(plant, policy, 60.0, observe=lambda plant: observed(next(rounds)))
    assert moves == Moves(0, 1, {TASKS[0]: "h2", TASKS[1]: "h1"})
    assert list(rounds) == list(plans) == []
