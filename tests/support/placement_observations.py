"""Observations of tasks on hosts that tests of placement policies share."""

import numpy as np

from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import UNMEASURED, Context, Exchange, Observation
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out

HOST = HostType("host", cores=1.0, bandwidth=1000.0)
GRAPH = Graph(
    "two",
    (
        Operator("source", Kind.SOURCE),
        Operator("a", alternates=(Alternate("a"),)),
        Operator("b", alternates=(Alternate("b"),)),
        Operator("sink", Kind.SINK, cores=0.0),
    ),
    (Edge("source", "a"), Edge("a", "b"), Edge("b", "sink")),
)
"""Operators by row: source, a, b, sink."""


def seen(  # noqa: PLR0913
    place, cpu, *, busy=None, backlog=None, exchange=UNMEASURED, states=None, types=None, operator=None, time=5.0
) -> Observation:
    """Tasks at `place`, hosts used as `cpu` says; all tasks are of `a` where `operator` does not say otherwise."""
    hosts = [f"h{n + 1}" for n in range(len(cpu))]
    states = states or [HostState.RUNNING] * len(cpu)
    types = types or [HOST] * len(cpu)
    leases = {
        name: Lease(name, kind, 0.0, state, ((0.0, state),)) for name, kind, state in zip(hosts, types, states, strict=True)
    }
    operator = [1] * len(place) if operator is None else operator
    values = {Metric.BUSY_CORES: busy, Metric.BACKLOG: backlog}
    index = [list(operator[:row]).count(each) for row, each in enumerate(operator)]
    return Observation(
        time=time,
        context=Context(lay_out(GRAPH, chained=False), {HOST.name: HOST}),
        operators=Frame(tuple(GRAPH.by_name)),
        hosts=Frame(hosts, {Metric.CPU: cpu}),
        tasks=TaskFrame(operator, index, place, tuple(GRAPH.by_name), {m: v for m, v in values.items() if v is not None}),
        leases=leases,
        exchange=exchange,
    )


def pairs(*entries) -> Exchange:
    """An exchange from (source, target, bytes/s)."""
    source, target, rate = zip(*entries, strict=True)
    return Exchange(np.array(source), np.array(target), np.array(rate, dtype=float))


def allocation_score(exchange: Exchange, place: np.ndarray, task: int, node: int) -> float:
    """Return AS of Equation 4: traffic of `task` within `node` minus that with other nodes, if it were there."""
    touching = (exchange.source == task) ^ (exchange.target == task)
    other = np.where(exchange.source == task, exchange.target, exchange.source)[touching]
    rate = exchange.rate[touching]
    there = np.append(place, -1)[other]
    placed = there >= 0
    within = rate[placed & (there == node)].sum()
    return float(within - rate[placed & (there != node)].sum())
