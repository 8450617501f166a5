"""What single tasks of a running dataflow cost and send each other, as the frames of an observation.

It follows each query with a `TaskWatch` and asks for what its batches shuffled; where this Spark tells neither, it says so
once in the log and every figure of a task stays unknown.
"""

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.model.action import TaskId
from elastream.model.cloud import Lease
from elastream.model.errors import EnvironmentProblem
from elastream.model.graph import Graph
from elastream.model.observation import Exchange, Floats, Frame, Metric, TaskFrame
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.stateful import stateful_stages
from elastream.spark.queries.compiled import RunningSegment
from elastream.spark.telemetry.stage_load import LoadWindow, Mean
from elastream.spark.telemetry.tasks import TaskLoads, TaskWatch
from elastream.spark.telemetry.traffic import MapOutputs, Traffic

__all__ = ["TaskTelemetry", "task_frame", "weights"]

CAUGHT_UP = 3
"""Batches of a query told of in one look at most: they are shorter than a monitoring period, but seldom by that much."""

log = logging.getLogger(__name__)


class TaskTelemetry:
    """The tasks of all keyed operators of a dataflow. `poll` asks for what is new; the rest is arithmetic on it."""

    def __init__(self, spark: SparkSession, running: Sequence[RunningSegment]) -> None:
        self._running = [each for each in running if each.keyed]
        self._watches: dict[str, TaskWatch] = {}
        self._operators: dict[str, dict[int, str]] = {}
        self._windows: dict[str, LoadWindow] = defaultdict(LoadWindow)
        self._driver: DriverSide | None = None
        self._loads: TaskLoads | None = None
        outputs: MapOutputs | None = None
        with _told():
            self._driver, self._loads = DriverSide(spark), TaskLoads(spark)
        with _told():
            outputs = MapOutputs(spark)
        self._traffic = Traffic(outputs)
        self._weights: Mapping[TaskId, float] = {}

    def poll(self) -> None:
        """Take what the batches that ended since the last call cost and sent."""
        for each in self._running:
            with contextlib.suppress(Py4JError):  # a query that has just stopped: whoever asks whether it runs will see
                self._poll(each)

    def _poll(self, each: RunningSegment) -> None:
        name = each.segment.name
        watch = self._watches.get(name) or self._watch(each)
        if watch is None:
            return
        loads = watch.poll(CAUGHT_UP)
        for load in loads:
            if load.ranks:
                self._windows[self._operators[name][load.ranks[0]]].add(load)
        self._traffic.take(name, self._operators[name], loads)

    def _watch(self, each: RunningSegment) -> TaskWatch | None:
        """A watch on the query of a segment; None before its first batch, and where this Spark tells nothing."""
        if self._driver is None or self._loads is None:
            return None
        execution: Any = each.query._jsq.streamingQuery()
        stages = stateful_stages(self._driver, execution)
        if not stages:
            return None
        # Both upstream first; where an operator became several in Spark's plan, the last name stands for what is left.
        names = [*each.keyed, *each.keyed[-1:] * len(stages)]
        self._operators[each.segment.name] = {
            operator.rank: name for stage, name in zip(stages, names, strict=False) for operator in stage.operators
        }
        watch = TaskWatch(self._loads, execution, stages, senders=True)
        self._watches[each.segment.name] = watch
        return watch

    def means(self, operator: str, partitions: int, now: float) -> Mean:
        """What each state partition of a keyed operator costs a second; `now` in epoch seconds."""
        return self._windows[operator].mean(partitions, now)

    def tasks(self, graph: Graph, leases: Mapping[str, Lease], held: Mapping[TaskId, str], now: float) -> TaskFrame:
        """A row per task that lies on a host of `leases`."""
        sizes: dict[str, int] = defaultdict(int)
        for task in held:
            sizes[task.operator] = max(sizes[task.operator], task.index + 1)
        frame = task_frame(graph, leases, held, {name: self.means(name, size, now) for name, size in sizes.items()})
        self._weights = weights(frame)
        return frame

    def weight(self, task: TaskId) -> float:
        """Cores that a task kept busy as `tasks` last told: what moving it first is good for; 0 where unknown."""
        return self._weights.get(task, 0.0)

    def exchange(self, tasks: TaskFrame, now: float) -> Exchange:
        """Who sends whom how much, mean over the last batches."""
        return self._traffic.exchange(tasks.tasks, now)

    def between(self, host_of: Mapping[str, str], hosts: Sequence[str]) -> Floats:
        """Who among `hosts` sends whom how much, see `Traffic.between`."""
        return self._traffic.between(host_of, hosts)

    def links(self, host_of: Mapping[str, str], hosts: Sequence[str], capacity: float) -> Frame:
        """What goes over the links between `hosts`, see `Traffic.links`."""
        return self._traffic.links(host_of, hosts, capacity)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Log why something cannot be measured, and go on without it."""
    try:
        yield
    except EnvironmentProblem as problem:
        log.warning("%s; it stays unknown", problem)


def task_frame(
    graph: Graph, leases: Mapping[str, Lease], held: Mapping[TaskId, str], means: Mapping[str, Mean]
) -> TaskFrame:
    """A row per task that lies on a host of `leases`, with what it costs a second by `means` of its operator."""
    operators = tuple(graph.by_name)
    numbers, rows = {name: row for row, name in enumerate(operators)}, {name: row for row, name in enumerate(leases)}
    placed = [(task, host) for task, host in sorted(held.items()) if host in rows]

    def column(name: str) -> Floats:
        return np.array([getattr(means[task.operator], name)[task.index] for task, _ in placed], dtype=np.float64)

    ages = [mean.age for mean in means.values() if not np.isnan(mean.busy).any()]
    return TaskFrame(
        operator=[numbers[task.operator] for task, _ in placed],
        index=[task.index for task, _ in placed],
        host=[rows[host] for _, host in placed],
        operators=operators,
        values={
            Metric.BUSY_CORES: column("busy"),
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
