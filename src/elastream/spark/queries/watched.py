"""The user's streaming queries, for a plant: they run unchanged and end by themselves.

Due times of records and the loads of operators inside a stage are unknown. The stages form a chain, because their true
edges make no difference to where their partitions are.

A query in Spark's real-time mode is left alone: its tasks go on for minutes, so that between two of its batches nothing can
be moved in time, and what it reports comes as late. Its executors must not be given back meanwhile; which they are nobody
tells.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from elastream.core.action import (
    ActionTable,
    Outcome,
    SetKeyTable,
    SetParallelism,
    Status,
    Switch,
    SwitchAlternate,
    SwitchEdge,
)
from elastream.core.frames import Frame, application_frame
from elastream.core.latency import Basis, figures, weighted_share
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, MicroBatch
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.signals import Signals
from elastream.dataflow.stages import Layout, lay_out
from elastream.spark.jvm.driver_side import running_queries
from elastream.spark.queries.query import Instruments, Query, stalled
from elastream.spark.telemetry.batches import Batch
from elastream.spark.telemetry.frames import state_columns
from elastream.spark.telemetry.stage_load import PartitionLoads

WRITTEN = "a query that someone else wrote runs as it was written"
RESTART = 15.0
"""Seconds that a query which has ended is waited for: the user may start it again from its checkpoint."""
NAN = float("nan")
_AS_WRITTEN = (Alternate("as written"),)

log = logging.getLogger(__name__)


class SessionQueries:
    """The chosen queries of a session, through all their runs. chosen: their ids, None for every one that runs."""

    scalable: frozenset[str] = frozenset()
    composition = Composition()
    effective: Mapping[str, Composition] = MappingProxyType({})
    signals: Signals = MappingProxyType({})

    def __init__(
        self,
        instruments: Instruments,
        chosen: Callable[[], frozenset[str] | None] = lambda: None,
        target_latency: float | None = None,
    ) -> None:
        self._with, self._chosen, self._target = instruments, chosen, target_latency
        self._queries: dict[str, Query] = {}
        self._gone_since: dict[str, float] = {}
        self._since: float | None = None  # when it was first seen which run
        self._real_time: dict[str, str] = {}
        self._batches, self._rows, self._longest = 0, 0, 0.0

    @property
    def all(self) -> tuple[Query, ...]:
        """Every query so far."""
        return tuple(self._queries.values())

    @property
    def live(self) -> tuple[Query, ...]:
        """Those that ran when they were last looked for."""
        return tuple(query for query in self.all if query.run_id is not None)

    @property
    def real_time(self) -> tuple[str, ...]:
        """Queries of the application that run in real-time mode, chosen or not."""
        return tuple(self._real_time.values())

    @property
    def layout(self) -> Layout:
        """Those that run: a source, the stages with state, and a sink each."""
        return layout_of(tuple((query.name, query.operators) for query in self.live))

    def look(self, now: float, wall: float) -> Sequence[MicroBatch]:
        """See which run, and fetch what is new of each."""
        self._find(now)
        fresh = [batch for query in self.live for batch in query.look()]
        self._batches += len(fresh)
        self._rows += sum(batch.rows for batch in fresh)
        self._longest = max([self._longest, *(batch.seconds for batch in fresh)])
        return [_described(batch, now - wall) for batch in fresh]

    def operators(self, wall: float, loads: Mapping[str, PartitionLoads], cores: float, used: float) -> Frame:
        """A row per operator."""
        return operator_frame(self.layout.graph, self.live, loads, wall, used)

    def alternates(self, wall: float) -> Frame:
        """Nothing: what it costs is not told by alternate."""
        return Frame()

    def application(self, wall: float, cost: float) -> Frame:
        """All queries as one application."""
        return application_row(self.layout.graph, self.live, wall, cost, self._target)

    def latency_basis(self) -> Mapping[str, Basis]:
        """What latency is measured from, by query."""
        return {query.name: Basis.BOUND for query in self.live if query.timed}

    def stalled(self, wall: float) -> Mapping[str, float]:
        """Seconds by query for which a batch has been under way that takes unusually long."""
        return stalled(self.live, wall)

    def handle(self, table: ActionTable) -> None:
        """Let `table` refuse what concerns queries."""
        for kind in (SwitchAlternate, SwitchEdge, SetKeyTable, SetParallelism):
            table.refuse(kind, WRITTEN)

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Refuse them."""
        return tuple(Outcome(each, Status.REFUSED, WRITTEN) for each in switches)

    def settle(self) -> bool:
        """Nothing of it waits."""
        return False

    def finished(self, now: float) -> bool:
        """Whether none has run for RESTART seconds, as far as it could be seen."""
        if self._since is None or self.live:
            return False
        return now - max(self._gone_since.values(), default=self._since) > RESTART

    def lost(self) -> None:
        """Whose session it was may stop it."""

    def facts(self) -> Mapping[str, float | str]:
        """Figures of the whole run."""
        runs = sum(query.runs for query in self.all)
        return {"batches": self._batches, "records": self._rows, "longest batch": self._longest, "query runs": runs}

    def _find(self, now: float) -> None:
        """See which run at second `now`."""
        chosen = self._chosen()
        running = set()
        found = running_queries(self._with.driver, self._with.spark)
        self._since = now if self._since is None else self._since
        before, self._real_time = self._real_time, {each.id: each.label for each in found if each.real_time}
        for query_id, name in self._real_time.items():
            if query_id not in before:
                log.warning("query %r runs in real-time mode: it is left alone, and no executor is drained or given back"
                            " while it runs", name)  # fmt: skip
        for each in found:
            if each.id not in self._real_time and (chosen is None or each.id in chosen):
                running.add(each.id)
                if each.id not in self._queries:
                    self._queries[each.id] = Query(self._with, each.id, self._free_name(each.label))
                self._queries[each.id].run(each.run_id)
                self._gone_since.pop(each.id, None)
        for query in self.live:
            if query.id not in running:
                query.end()
                self._gone_since[query.id] = now

    def _free_name(self, name: str) -> str:
        """A name that no other query has."""
        names = {query.name for query in self.all}
        return next(n for n in (name, *(f"{name}~{number}" for number in range(2, len(names) + 3))) if n not in names)


def _described(batch: Batch, offset: float) -> MicroBatch:
    """A batch as an observation tells of it: all of its records may have waited since the poll before it."""
    waited = batch.end - batch.waiting
    return MicroBatch(batch.query, batch.start + offset, batch.seconds, float(batch.rows), waited, waited)


@lru_cache(maxsize=8)
def layout_of(queries: tuple[tuple[str, tuple[str, ...]], ...]) -> Layout:
    """Queries as a dataflow, empty where there is none: a source, the stages with state in a row, and a sink each."""
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
    """A row per operator. What of the busy cores `used` no stage with state is charged with is the sources'."""
    names = tuple(graph.by_name)
    columns: dict[Metric, dict[str, float]] = {
        metric: {} for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.BACKLOG, Metric.BUSY_CORES)
    }
    per_stage = {name: float(each.busy.sum()) for name, each in loads.items()}
    charged = sum(load for load in per_stage.values() if load == load)
    for query in live:
        columns[Metric.ARRIVAL_RATE][query.name] = query.arriving(wall)
        columns[Metric.PROCESSED_RATE][query.name] = query.rate(wall)
        columns[Metric.BACKLOG][query.name] = query.batches[-1].behind if query.batches else NAN
        # In this order, NaN stays NaN.
        columns[Metric.BUSY_CORES][query.name] = max(used - charged, 0.0) / len(live)
    columns[Metric.BUSY_CORES] |= per_stage
    columns[Metric.PARALLELISM] = {name: float(each.busy.size) for name, each in loads.items()}
    columns |= state_columns(loads)
    return Frame(names, {metric: [column.get(name, NAN) for name in names] for metric, column in columns.items()})


def application_row(graph: Graph, live: Sequence[Query], wall: float, cost: float, target: float | None = None) -> Frame:
    """All queries as one application: the latency and the batch of the slowest, the rates of all."""
    batches = [query.batches[-1].seconds for query in live if query.batches]
    rates, arriving = [query.rate(wall) for query in live], [query.arriving(wall) for query in live]
    samples = [sample for query in live if len((sample := query.latencies(wall))[0])]
    latencies = [figures(*sample) for sample in samples]
    behind = [query.batches[-1].behind if query.batches else NAN for query in live]
    values = {
        Metric.LATENCY: max((each[Metric.LATENCY] for each in latencies), default=NAN),
        Metric.LATENCY_P50: max((each[Metric.LATENCY_P50] for each in latencies), default=NAN),
        Metric.LATENCY_P99: max((float(seconds.max()) for seconds, _ in samples), default=NAN),
        Metric.BATCH_DURATION: max(batches, default=NAN),
        Metric.THROUGHPUT: sum(rates) if rates else NAN,
        Metric.ARRIVAL_RATE: sum(arriving) if arriving else NAN,
        Metric.BACKLOG: sum(behind) if behind else NAN,
        Metric.COST: cost,
    }
    if target is not None and samples:
        seconds, weights = (np.concatenate(column) for column in zip(*samples, strict=True))
        values[Metric.COMPLIANCE] = weighted_share(seconds, weights, target)
    return application_frame(graph.name, values)
