"""Who sends whom how many bytes, measured: the sizes that Spark's driver keeps of every shuffle's blocks.

It must know them to tell readers where to fetch, so they cost nothing to have; one call brings those of all shuffles that
fed the stateful stages of a batch. Spark rounds each up to the next power of 1.1, so that a sum is some 5 % too high, and
above 2,000 reduce partitions keeps a mean for all but the largest blocks. It forgets a shuffle some time after its batch,
when its own collector gets to it.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from pyspark.sql import SparkSession

from elastream.core.frames import Floats, Frame, Integers
from elastream.core.metrics import Metric
from elastream.core.observation import UNMEASURED, Exchange
from elastream.core.task_id import TaskId
from elastream.spark.jvm.driver_side import HERE, DriverSide
from elastream.spark.jvm.gateway import java_context
from elastream.spark.telemetry.stage_load import StageLoad

BATCHES = 5
"""Batches of a query that rates are means over."""


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """What the tasks of one stage sent those of another in one batch. bytes: of shape (senders, receivers)."""

    sender: StageLoad
    receiver: StageLoad
    bytes: Floats

    def between(self, place: Mapping[str, int], places: int) -> Floats:
        """Bytes from place to place. place: number of each executor's, below `places`; other executors are left out."""
        out, to = (np.array([place.get(where, places) for where in load.executor]) for load in (self.sender, self.receiver))
        total = np.zeros((places + 1, places + 1))
        np.add.at(total, np.ix_(out, to), self.bytes)
        return total[:places, :places]


class MapOutputs(DriverSide):
    """The driver's registry of shuffle outputs. Raises EnvironmentProblem where this Spark does not show it."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark, HERE / "MapOutputs.java")
        self._context = java_context(spark)

    def flows(self, loads: Sequence[StageLoad]) -> tuple[Flow, ...]:
        """What fed the stages with state among `loads`, which tell of the senders too; what Spark forgot is left out."""
        pairs = _pairs(loads)
        if not pairs:
            return ()
        firsts = ",".join(sorted({str(sender.task[0]) for sender, _ in pairs}))
        partitions = max(receiver.partitions for _, receiver in pairs)
        return read_flows(self.ask("outputs", self._context, firsts, partitions), loads)


def read_flows(lines: Iterable[Sequence[str]], loads: Sequence[StageLoad]) -> tuple[Flow, ...]:
    """Flows between the stages `loads` from the fields of `MapOutputs.java`."""
    sizes: dict[str, list[list[float]]] = defaultdict(list)
    for first, _, row in lines:
        sizes[first].append([float(size) for size in row.split(",")])
    found = []
    for sender, receiver in _pairs(loads):
        table = sizes.get(str(sender.task[0]), [])
        if len(table) == sender.partitions and len(table[0]) >= receiver.partitions:
            found.append(Flow(sender, receiver, np.array(table)[:, : receiver.partitions]))
    return tuple(found)


def _pairs(loads: Sequence[StageLoad]) -> list[tuple[StageLoad, StageLoad]]:
    by_stage = {(load.batch, load.stage): load for load in loads}
    return [
        (sender, receiver)
        for receiver in loads
        if receiver.ranks
        for parent in receiver.parents
        if (sender := by_stage.get((receiver.batch, parent))) is not None
    ]


class Traffic:
    """What the last batches of some queries sent, as an observation tells of it.

    A query is known by a name of the caller's, and its stateful stages by those that their tasks have as their operator.
    outputs: where to ask; None where that cannot be, and nothing is known but what is added.
    """

    def __init__(self, outputs: MapOutputs | None) -> None:
        self._outputs = outputs
        self._flows: dict[str, deque[tuple[Mapping[int, str], tuple[Flow, ...]]]] = defaultdict(
            lambda: deque(maxlen=BATCHES)
        )

    def take(self, query: str, operators: Mapping[int, str], loads: Sequence[StageLoad]) -> None:
        """Ask what the batches of `query` sent that `loads`, with those of the senders, tell of.

        operators: by the rank of a stateful operator, what its tasks are called.
        """
        for _, batch in groupby(loads, key=lambda load: load.batch):
            self.add(query, operators, self._outputs.flows(list(batch)) if self._outputs is not None else ())

    def add(self, query: str, operators: Mapping[int, str], flows: Sequence[Flow]) -> None:
        """What one batch of `query` sent."""
        if flows and flows[0].receiver.seconds > 0:
            self._flows[query].append((operators, tuple(flows)))

    def forget(self, query: str) -> None:
        """A query is gone, or was started anew."""
        self._flows.pop(query, None)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return any(self._flows.values())

    def exchange(self, tasks: Sequence[TaskId], now: float) -> Exchange:
        """Bytes/s between `tasks`, the rows of an observation; a sender without state has no place.

        now: epoch seconds.
        """
        if not self.known:
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
        """Bytes/s of shuffles from host (row) to host (column), on the diagonal what stays; NaN where unknown.

        host_of: host by executor. What the driver, heartbeats and the checkpoint send besides is in no figure here.
        """
        rows = {host: row for row, host in enumerate(hosts)}
        place = {executor: rows[host] for executor, host in host_of.items() if host in rows}
        total = np.full((len(hosts), len(hosts)), 0.0 if self.known else math.nan)
        for batches in self._flows.values():
            seconds = math.fsum(flows[0].receiver.seconds for _, flows in batches)
            for flow in (flow for _, flows in batches for flow in flows):
                total += flow.between(place, len(hosts)) / seconds
        return total

    def links(self, host_of: Mapping[str, str], hosts: Sequence[str], capacity: float = math.nan) -> Frame:
        """A row per ordered pair of `hosts`: bytes/s of shuffles over it (`between`), and the bytes/s that it can carry."""
        apart = ~np.eye(len(hosts), dtype=np.bool_)
        traffic = self.between(host_of, hosts)[apart]
        names = [f"{a}>{b}" for a in hosts for b in hosts if a != b]
        return Frame(names, {Metric.TRAFFIC: traffic, Metric.BANDWIDTH: np.full(len(names), capacity)})


def _rates(
    batches: Iterable[tuple[Mapping[int, str], tuple[Flow, ...]]], rows: Mapping[str, Mapping[int, int]]
) -> Iterable[tuple[Integers, Integers, Floats]]:
    """(source, target, bytes/s) of one query: a part per pair of stages, means over its batches."""
    batches = list(batches)
    seconds = math.fsum(flows[0].receiver.seconds for _, flows in batches)
    total: dict[tuple[str, str], Floats] = {}
    for operators, flows in batches:
        for flow in flows:
            sender = operators.get(flow.sender.ranks[0], "") if flow.sender.ranks else ""
            sent = flow.bytes if sender else flow.bytes.sum(axis=0, keepdims=True)
            key = (sender, operators.get(flow.receiver.ranks[0], ""))
            total[key] = sent if (known := total.get(key)) is None or known.shape != sent.shape else known + sent
    for (sender, receiver), sent in total.items():
        out = _rows(rows.get(sender, {}), sent.shape[0])
        to = _rows(rows.get(receiver, {}), sent.shape[1])
        yield np.repeat(out, to.size), np.tile(to, out.size), sent.ravel() / seconds


def _rows(known: Mapping[int, int], size: int) -> Integers:
    return np.array([known.get(index, -1) for index in range(size)], dtype=np.int64)
