"""The tasks of an observation: where each state partition is, and what it takes as measured."""

from collections.abc import Mapping, Sequence

import numpy as np

from elastream.model.action import TaskId
from elastream.model.graph import Graph
from elastream.model.observation import Floats, Metric, TaskFrame
from elastream.spark.telemetry.stage_load import PartitionLoads

__all__ = ["task_frame", "weights"]


def task_frame(
    graph: Graph, hosts: Sequence[str], held: Mapping[TaskId, str], loads: Mapping[str, PartitionLoads]
) -> TaskFrame:
    """A row per task that is on one of `hosts`, with what it takes a second by `loads` of its operator."""
    operators = tuple(graph.by_name)
    numbers, rows = {name: row for row, name in enumerate(operators)}, {name: row for row, name in enumerate(hosts)}
    placed = [(task, host) for task, host in sorted(held.items()) if host in rows and task.operator in loads]

    def column(name: str) -> Floats:
        return np.array([getattr(loads[task.operator], name)[task.index] for task, _ in placed], dtype=np.float64)

    ages = [each.age for each in loads.values() if not np.isnan(each.busy).any()]
    return TaskFrame(
        operator=[numbers[task.operator] for task, _ in placed],
        index=[task.index for task, _ in placed],
        host=[rows[host] for _, host in placed],
        operators=operators,
        values={
            Metric.BUSY_CORES: column("busy"),
            Metric.BUSY_CORES_ERROR: column("error"),
            Metric.UTILISATION: column("occupied"),
            Metric.PROCESSED_RATE: column("records"),
            Metric.TRAFFIC: column("traffic"),
        },
        ages=max(ages, default=0.0),
    )


def weights(frame: TaskFrame) -> Mapping[TaskId, float]:
    """Busy cores by task, of those for which they are known."""
    return {
        task: busy for task, busy in zip(frame.tasks, frame.column(Metric.BUSY_CORES).tolist(), strict=True) if busy > 0
    }
