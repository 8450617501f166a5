"""Queries that someone else wrote, as the graph and the frames of an observation.

Only what such a query tells is filled in. Its stages are chained one after another, because how they hang together makes
no difference to where their partitions lie.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from elastream.model.action import TaskId
from elastream.model.graph import Alternate, Edge, Graph, Kind, Operator
from elastream.model.observation import Frame, Metric, TaskFrame
from elastream.model.stages import Layout, lay_out
from elastream.spark.queries.watched import Loads, WatchedQuery

__all__ = ["application_frame", "layout_of", "operator_frame", "task_frame"]

NAN = float("nan")
_AS_WRITTEN = (Alternate("as written"),)


@lru_cache(maxsize=8)
def layout_of(queries: tuple[tuple[str, tuple[str, ...]], ...]) -> Layout:
    """Queries as a dataflow: each a source, its stages with state one after another, and a sink."""
    operators: list[Operator] = []
    edges: list[Edge] = []
    for name, stages in queries or (("nothing", ()),):
        chain = [
            Operator(name, Kind.SOURCE),
            *(Operator(stage, Kind.KEYED, alternates=_AS_WRITTEN, key=("key",)) for stage in stages),
            Operator(f"{name}/out", Kind.SINK),
        ]
        operators += chain
        edges += [Edge(a.name, b.name) for a, b in pairwise(chain)]
    return lay_out(Graph("queries", tuple(operators), tuple(edges)))


def task_frame(graph: Graph, held: Mapping[TaskId, str], hosts: Sequence[str], loads: Mapping[str, Loads]) -> TaskFrame:
    """Every task whose host is one of `hosts`, with what it takes by `loads`."""
    names = tuple(graph.by_name)
    operators, rows = {name: row for row, name in enumerate(names)}, {name: row for row, name in enumerate(hosts)}
    placed = [(task, rows[host]) for task, host in held.items() if host in rows and task.operator in loads]
    return TaskFrame(
        [operators[task.operator] for task, _ in placed],
        [task.index for task, _ in placed],
        [row for _, row in placed],
        names,
        {
            Metric.BUSY_CORES: [loads[task.operator].busy[task.index] for task, _ in placed],
            Metric.BUSY_CORES_ERROR: [loads[task.operator].error[task.index] for task, _ in placed],
        },
    )


def operator_frame(
    graph: Graph, live: Sequence[WatchedQuery], loads: Mapping[str, Loads], wall: float, cores: float
) -> Frame:
    """A row per operator. What the executors did that no stage with state is charged with is the sources'."""
    names = tuple(graph.by_name)
    columns: dict[Metric, dict[str, float]] = {
        metric: {} for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.BACKLOG, Metric.BUSY_CORES)
    }
    parallelism: dict[str, float] = {}
    per_stage = {name: float(each.busy.sum()) for name, each in loads.items()}
    charged = sum(load for load in per_stage.values() if load == load)
    for query in live:
        # A source that holds nothing back passes on what arrives; one that does says what it is behind, or nothing.
        columns[Metric.ARRIVAL_RATE][query.name] = columns[Metric.PROCESSED_RATE][query.name] = query.rate(wall)
        columns[Metric.BACKLOG][query.name] = query.batches[-1].behind if query.batches else NAN
        columns[Metric.BUSY_CORES][query.name] = max(0.0, cores - charged) / len(live)
        for stage, name in query.placed():
            columns[Metric.BUSY_CORES][name] = per_stage[name]
            parallelism[name] = float(stage.partitions)
    columns[Metric.PARALLELISM] = parallelism
    return Frame(names, {metric: [column.get(name, NAN) for name in names] for metric, column in columns.items()})


def application_frame(graph: Graph, live: Sequence[WatchedQuery], wall: float, cost: float) -> Frame:
    """All queries as one application: the latency and the batch of the slowest, the rates of all."""
    latencies = [query.latency(wall) for query in live]
    means = [query.mean_latency(wall) for query in live]
    batches = [query.batches[-1].seconds for query in live if query.batches]
    rates = [query.rate(wall) for query in live]
    return Frame(
        [graph.name],
        {
            Metric.LATENCY_P99: [max(latencies, default=NAN)],
            Metric.LATENCY: [max(means, default=NAN)],
            Metric.BATCH_DURATION: [max(batches, default=NAN)],
            Metric.THROUGHPUT: [sum(rates) if rates else NAN],
            Metric.COST: [cost],
        },
    )
