"""Shuffle traffic between tasks and hosts, from the block sizes in Spark's driver, in one call.

Spark rounds each size up to a power of 1.1, so sums are about 5 % too high. Above 2,000 reduce partitions it keeps a mean
for all but the largest blocks.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
from pyspark.sql import SparkSession

from elastream.core.frames import Floats, Frame, Integers
from elastream.core.metrics import Metric
from elastream.core.observation import UNMEASURED, Exchange
from elastream.core.task_id import TaskId
from elastream.spark.jvm.driver_side import HERE, DriverSide, java_context
from elastream.spark.telemetry.stage_load import StageLoad

# Batches of a query over which rates are means.
BATCHES = 5


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Bytes that the tasks of one stage sent to those of another in one batch. bytes: shape (senders, receivers)."""

    sender: StageLoad
    receiver: StageLoad
    bytes: Floats

    def between(self, place: Mapping[str, int], places: int) -> Floats:
        """Return the bytes between places. place: number of each executor's place; other executors are ignored."""
        out, to = (np.array([place.get(where, places) for where in load.executor]) for load in (self.sender, self.receiver))
        total = np.zeros((places + 1, places + 1))
        np.add.at(total, np.ix_(out, to), self.bytes)
        return total[:places, :places]


class MapOutputs(DriverSide):
    """The driver's registry of shuffle outputs. Raises EnvironmentProblem if this Spark does not expose it."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "MapOutputs.java")
        self._context = java_context(spark)

    def flows(self, loads: Sequence[StageLoad]) -> tuple[Flow, ...]:
        pairs = _pairs(loads)
        if not pairs:
            return ()
        firsts = ",".join(sorted({str(sender.task[0]) for sender, _ in pairs}))
        partitions = max(receiver.partitions for _, receiver in pairs)
        return read_flows(self.ask("outputs", self._context, firsts, partitions), loads)


def read_flows(lines: Iterable[Sequence[str]], loads: Sequence[StageLoad]) -> tuple[Flow, ...]:
    sizes: dict[str, list[list[float]]] = defaultdict(list)
    for first, _, row in lines:
        sizes[first].append([float(size) for size in row.split(",")])
    flows = []
    for sender, receiver in _pairs(loads):
        table = sizes.get(str(sender.task[0]), [])
        if len(table) == sender.partitions and len(table[0]) >= receiver.partitions:
            flows.append(Flow(sender, receiver, np.array(table)[:, : receiver.partitions]))
    return tuple(flows)


def _pairs(loads: Sequence[StageLoad]) -> list[tuple[StageLoad, StageLoad]]:
    by_stage = {(load.batch, load.stage): load for load in loads}
    links = [(by_stage.get((load.batch, parent)), load) for load in loads if load.ranks for parent in load.parents]
    return [(sender, receiver) for sender, receiver in links if sender is not None]


# A batch's operators, by rank of a stateful operator, and its flows.
BatchFlows: TypeAlias = tuple[Mapping[int, str], tuple[Flow, ...]]


class Traffic:
    """Traffic of the last batches of some queries, from the registry `outputs`; without one, only added flows are known.

    Stateful stages are named after their tasks' operator.
    """

    def __init__(self, outputs: MapOutputs | None) -> None:
        self._outputs = outputs
        self._flows: dict[str, deque[BatchFlows]] = defaultdict(lambda: deque(maxlen=BATCHES))

    def take(self, query: str, operators: Mapping[int, str], loads: Sequence[StageLoad]) -> None:
        """Fetch the flows of the batches of `query` in `loads`, which include the senders.

        operators: name of its tasks by rank of a stateful operator.
        """
        for _, batch in groupby(loads, key=lambda load: load.batch):
            self.add(query, operators, self._outputs.flows(list(batch)) if self._outputs is not None else ())

    def add(self, query: str, operators: Mapping[int, str], flows: Sequence[Flow]) -> None:
        if flows and flows[0].receiver.seconds > 0:
            self._flows[query].append((operators, tuple(flows)))

    def forget(self, query: str) -> None:
        self._flows.pop(query, None)

    @property
    def measured(self) -> bool:
        return any(self._flows.values())

    def exchange(self, tasks: Sequence[TaskId], now: float) -> Exchange:
        """Return bytes/s between `tasks`, the rows of an observation; stateless senders have no row. now: epoch seconds."""
        if not self.measured:
            return UNMEASURED
        rows: dict[str, dict[int, int]] = defaultdict(dict)
        for row, task in enumerate(tasks):
            rows[task.operator][task.index] = row
        parts = [part for batches in self._flows.values() for part in _rates(batches, rows)]
        ended = max(batches[-1][1][0].receiver.ended for batches in self._flows.values() if batches)
        source, target, rate = (np.concatenate(column) for column in zip(*parts, strict=True))
        here = (rate > 0) & (target >= 0)
        return Exchange(source[here], target[here], rate[here], age=max(0.0, now - ended))

    def between(self, host_of: Mapping[str, str], hosts: Sequence[str]) -> Floats:
        """Return shuffle bytes/s from host (row) to host (column), local traffic on the diagonal; NaN if unknown.

        Traffic of the driver, heartbeats and the checkpoint is not included. host_of: host by executor.
        """
        rows = {host: row for row, host in enumerate(hosts)}
        place = {executor: rows[host] for executor, host in host_of.items() if host in rows}
        total = np.full((len(hosts), len(hosts)), 0.0 if self.measured else math.nan)
        for batches in self._flows.values():
            seconds = math.fsum(flows[0].receiver.seconds for _, flows in batches)
            for flow in (flow for _, flows in batches for flow in flows):
                total += flow.between(place, len(hosts)) / seconds
        return total

    def links(self, host_of: Mapping[str, str], hosts: Sequence[str], capacity: float) -> Frame:
        """Return a row per ordered pair of `hosts`: shuffle bytes/s over it, and its capacity [bytes/s]."""
        apart = ~np.eye(len(hosts), dtype=np.bool_)
        traffic = self.between(host_of, hosts)[apart]
        names = [f"{a}>{b}" for a in hosts for b in hosts if a != b]
        return Frame(names, {Metric.TRAFFIC: traffic, Metric.BANDWIDTH: np.full(len(names), capacity)})


def _rates(
    batches: Collection[BatchFlows], rows: Mapping[str, Mapping[int, int]]
) -> Iterable[tuple[Integers, Integers, Floats]]:
    """Yield (source, target, bytes/s) of each pair of stages, as means over a query's batches."""
    seconds = math.fsum(flows[0].receiver.seconds for _, flows in batches)
    total: dict[tuple[str, str], Floats] = {}
    for operators, flows in batches:
        for flow in flows:
            sender = operators.get(flow.sender.ranks[0], "") if flow.sender.ranks else ""
            sent = flow.bytes if sender else flow.bytes.sum(axis=0, keepdims=True)
            key = (sender, operators.get(flow.receiver.ranks[0], ""))
            total[key] = sent if (previous := total.get(key)) is None or previous.shape != sent.shape else previous + sent
    for (sender, receiver), sent in total.items():
        out = _rows(rows.get(sender, {}), sent.shape[0])
        to = _rows(rows.get(receiver, {}), sent.shape[1])
        yield np.repeat(out, to.size), np.tile(to, out.size), sent.ravel() / seconds


def _rows(row_of: Mapping[int, int], size: int) -> Integers:
    return np.array([row_of.get(index, -1) for index in range(size)], dtype=np.int64)
