"""The user's streaming queries, for a plant: they run unchanged and end by themselves.

Due times of records and loads of operators inside a stage are unknown; the stages form a chain. A query in real-time mode,
or with a continuous trigger, is left alone.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from elastream.core import action
from elastream.core.frames import Frame, application_frame
from elastream.core.latency import Basis, figures, weighted_share
from elastream.core.lateness import Diagnosis
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, MicroBatch
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.signals import Signals
from elastream.dataflow.stages import Layout, lay_out
from elastream.spark.jvm.driver_side import RunningQuery, running_queries
from elastream.spark.queries.query import Query, QueryAccess, largest_lag, stalled
from elastream.spark.telemetry.batches import Batch
from elastream.spark.telemetry.frames import state_columns
from elastream.spark.telemetry.origins import mean_age
from elastream.spark.telemetry.stage_load import PartitionLoads

WRITTEN = "a query that someone else wrote runs as it was written"
# Seconds to wait for a restart of an ended query from its checkpoint.
RESTART_WAIT_S = 15.0
NAN = float("nan")
_AS_WRITTEN = (Alternate("as written"),)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryService:
    """Service of one query.

    Attributes:
        target: Its target latency (seconds); None without one.
        latency: Highest latency of its last batches (seconds); NaN if unknown.
        in_time: Share of their records within the target; NaN if unknown.
        work: Its share of the time of all tasks of watched queries, which is its share of the cost; NaN if unknown.
        late: Why it is late; empty if it is in time, or if the cause is unknown.
    """

    target: float | None = None
    latency: float = NAN
    in_time: float = NAN
    work: float = NAN
    late: str = ""


class SessionQueries:
    """The chosen queries of a session, through all their runs. chosen: their ids, None for every running one."""

    scalable: frozenset[str] = frozenset()
    composition = Composition()
    effective: Mapping[str, Composition] = MappingProxyType({})
    signals: Signals = MappingProxyType({})

    def __init__(
        self,
        access: QueryAccess,
        chosen: Callable[[], frozenset[str] | None] = lambda: None,
        target_latency: float | None = None,
        *,
        stays: bool = False,
        own_targets: Mapping[str, float] = MappingProxyType({}),
        task_seconds: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Watch queries.

        Args:
            stays: True to not finish when all of them have ended.
            own_targets: Target latencies by query id (seconds); may grow.
            task_seconds: Seconds of ended tasks by query id; they grow.
        """
        self._stays, self._own, self._task_seconds = stays, own_targets, task_seconds
        self._with, self._chosen, self._target = access, chosen, target_latency
        self._queries: dict[str, Query] = {}
        self._gone_since: dict[str, float] = {}
        self._since: float | None = None  # when the first running query was seen
        self._left_alone: dict[str, RunningQuery] = {}
        self._left_alone_chosen = False
        self._incidents: list[str] = []
        self._batches, self._rows, self._longest = 0, 0.0, 0.0

    @property
    def all(self) -> tuple[Query, ...]:
        return tuple(self._queries.values())

    @property
    def live(self) -> tuple[Query, ...]:
        return tuple(query for query in self.all if query.run_id is not None)

    @property
    def left_alone(self) -> tuple[str, ...]:
        """Queries of the application whose tasks do not end with a batch, chosen or not."""
        return tuple(each.label for each in self._left_alone.values())

    @property
    def layout(self) -> Layout:
        """Layout of the running queries: a source, the stateful stages, and a sink each."""
        return layout_of(tuple((query.name, query.operators) for query in self.live))

    def look(self, now: float, wall: float) -> Sequence[MicroBatch]:
        self._find(now)
        fresh = [batch for query in self.live for batch in query.look()]
        self._batches += len(fresh)
        self._rows += sum(batch.rows for batch in fresh if batch.rows > 0)
        self._longest = max([self._longest, *(batch.seconds for batch in fresh)])
        return [_described(batch, now - wall) for batch in fresh]

    def operators(self, wall: float, loads: Mapping[str, PartitionLoads], cores: float, used: float) -> Frame:
        return operator_frame(self.layout.graph, self.live, loads, wall, used)

    def alternates(self, wall: float) -> Frame:
        """Return an empty frame: costs of alternates are unknown."""
        return Frame()

    def application(self, wall: float, cost: float) -> Frame:
        return application_row(self.layout.graph, self.live, wall, cost, self._target, self._own)

    def latency_basis(self) -> Mapping[str, Basis]:
        return {query.name: Basis.BOUND for query in self.live if query.timed}

    def stalled(self, wall: float) -> Mapping[str, float]:
        return stalled(self.live, wall)

    def incidents(self) -> Sequence[str]:
        incidents, self._incidents = self._incidents, []
        return incidents

    def diagnoses(self, slots: int, wall: float) -> Mapping[str, Diagnosis]:
        """Return why each late query is late. `slots`: tasks that run at once."""
        each = ((query.name, query.diagnosis(self._target_of(query), slots, wall)) for query in self.live)
        return {name: diagnosis for name, diagnosis in each if diagnosis is not None}

    def services(self, diagnoses: Mapping[str, Diagnosis]) -> Mapping[str, QueryService]:
        """Return the service of each running query. `diagnoses`: causes of lateness by query."""
        wall = self._with.wall()
        seconds = {query.name: self._task_seconds.get(query.id, NAN) for query in self.live}
        total = math.fsum(each for each in seconds.values() if each == each)
        services = {}
        for query in self.live:
            target, (latencies, rows) = self._target_of(query), query.latencies(wall)
            late = diagnoses.get(query.name)
            services[query.name] = QueryService(
                target,
                float(latencies.max()) if latencies.size else NAN,
                NAN if target is None else weighted_share(latencies, rows, target),
                seconds[query.name] / total if total > 0 else NAN,
                "" if late is None else late.sentence or f"{query.name} is late",
            )
        return services

    def _target_of(self, query: Query) -> float | None:
        return self._own.get(query.id, self._target)

    def handle(self, table: action.ActionTable) -> None:
        switches = (action.SwitchAlternate, action.SwitchEdge, action.SetKeyTable, action.UpdateCode)
        for kind in (*switches, action.SetParallelism):
            table.refuse(kind, WRITTEN)

    def switch(self, switches: Sequence[action.Switch]) -> tuple[action.Outcome, ...]:
        """Refuse all switches: a watched query has no alternates."""
        return tuple(action.Outcome(each, action.Status.REFUSED, WRITTEN) for each in switches)

    def settle(self) -> bool:
        """Return False: no switch waits here."""
        return False

    def finished(self, now: float) -> bool:
        """Return True if no query has run for RESTART_WAIT_S seconds, unless this stays."""
        if self._stays or self._since is None or self.live or self._left_alone_chosen:
            return False
        return now - max(self._gone_since.values(), default=self._since) > RESTART_WAIT_S

    def lost(self) -> None:
        """Do nothing: the session's owner may stop it."""

    def facts(self) -> Mapping[str, float | str]:
        runs = sum(query.runs for query in self.all)
        return {"batches": self._batches, "records": self._rows, "longest batch": self._longest, "query runs": runs}

    def _find(self, now: float) -> None:
        chosen = self._chosen()
        running, running_now = set(), running_queries(self._with.driver, self._with.spark)
        self._since = now if self._since is None else self._since
        before, self._left_alone = self._left_alone, {each.id: each for each in running_now if each.mode}
        self._left_alone_chosen = any(chosen is None or id in chosen for id in self._left_alone)
        for each in self._left_alone.values():
            if each.id not in before:
                log.warning("query %r runs %s: it is left alone, and executors with its tasks are not given back",
                            each.label, each.mode)  # fmt: skip
        for each in running_now:
            if each.id not in self._left_alone and (chosen is None or each.id in chosen):
                running.add(each.id)
                if each.id not in self._queries:
                    self._queries[each.id] = Query(self._with, each.id, self._free_name(each.label))
                self._queries[each.id].run(each.run_id)
                self._gone_since.pop(each.id, None)
        for query in self.live:
            if query.id not in running:
                if why := query.failure():
                    log.warning("query %r failed: %s", query.name, why)
                    self._incidents.append(f"query {query.name!r} failed: {why}")
                query.end()
                self._gone_since[query.id] = now

    def _free_name(self, name: str) -> str:
        names = {query.name for query in self.all}
        return next(n for n in (name, *(f"{name}~{number}" for number in range(2, len(names) + 3))) if n not in names)


def _described(batch: Batch, offset: float) -> MicroBatch:
    """Return a batch for an observation; each record counts as if waiting since the poll before."""
    waited = batch.end - batch.waiting
    return MicroBatch(batch.query, batch.start + offset, batch.seconds, float(batch.rows), waited, waited)


@lru_cache(maxsize=8)
def layout_of(queries: tuple[tuple[str, tuple[str, ...]], ...]) -> Layout:
    """Return queries as a dataflow: for each a source, its stateful stages in a row, and a sink."""
    operators: list[Operator] = []
    edges: list[Edge] = []
    for name, stages in queries:
        chain = [
            Operator(name, Kind.SOURCE),
            *(Operator(stage, Kind.KEYED, alternates=_AS_WRITTEN, key=("key",)) for stage in stages),
            Operator(f"{name}/out", Kind.SINK),
        ]
        operators += chain
        edges += [Edge(a.name, b.name) for a, b in pairwise(chain)]
    return lay_out(Graph("queries", tuple(operators), tuple(edges)))


def operator_frame(
    graph: Graph, live: Sequence[Query], loads: Mapping[str, PartitionLoads], wall: float, used: float
) -> Frame:
    """Return a row per operator. Busy cores `used` that no stateful stage accounts for are charged to the sources."""
    names = tuple(graph.by_name)
    per_stage = {name: float(each.busy.sum()) for name, each in loads.items()}
    charged = sum(load for load in per_stage.values() if load == load)
    columns: dict[Metric, dict[str, float]] = {
        Metric.ARRIVAL_RATE: {query.name: query.arriving(wall) for query in live},
        Metric.PROCESSED_RATE: {query.name: query.rate(wall) for query in live},
        Metric.BACKLOG: {query.name: query.behind for query in live},
        # In this order, NaN stays NaN.
        Metric.BUSY_CORES: {**{query.name: max(used - charged, 0.0) / len(live) for query in live}, **per_stage},
        Metric.PARALLELISM: {name: float(each.busy.size) for name, each in loads.items()},
        **state_columns(loads),
    }
    ages = {Metric.ARRIVAL_RATE: mean_age((query.arriving(wall), query.arriving_age) for query in live)}
    return Frame(names, {metric: [column.get(name, NAN) for name in names] for metric, column in columns.items()}, ages)


def application_row(
    graph: Graph,
    live: Sequence[Query],
    wall: float,
    cost: float,
    target: float | None = None,
    own_targets: Mapping[str, float] = MappingProxyType({}),
) -> Frame:
    """Return one row for all queries: latency and batch of the slowest, rates of all.

    Latencies of queries in `own_targets` (by id) are scaled: twice the own target counts as twice `target`.
    """
    samples = []
    for query in live:
        seconds, rows = query.latencies(wall)
        if len(seconds):
            samples.append((seconds if target is None else seconds * (target / own_targets.get(query.id, target)), rows))
    latencies = [figures(*sample) for sample in samples]
    values = {
        **{m: max((each[m] for each in latencies), default=NAN) for m in (Metric.LATENCY, Metric.LATENCY_P50)},
        Metric.LATENCY_P99: max((float(seconds.max()) for seconds, _ in samples), default=NAN),
        Metric.BATCH_DURATION: max((query.batches[-1].seconds for query in live if query.batches), default=NAN),
        Metric.THROUGHPUT: sum(query.rate(wall) for query in live) if live else NAN,
        Metric.ARRIVAL_RATE: sum(query.arriving(wall) for query in live) if live else NAN,
        Metric.BACKLOG: sum(query.behind for query in live) if live else NAN,
        Metric.WATERMARK_LAG: largest_lag(live),
        Metric.COST: cost,
    }
    if target is not None and samples:
        seconds, weights = (np.concatenate(column) for column in zip(*samples, strict=True))
        values[Metric.COMPLIANCE] = weighted_share(seconds, weights, target)
    return application_frame(graph.name, values)
