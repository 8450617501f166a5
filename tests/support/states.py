"""Observations of state on hosts."""

import math

from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.dataflow.operators import Kind
from elastream.spark.queries.watched import layout_of

BIG = HostType("big", cores=2.0, memory=1000.0)
LAYOUT = layout_of((("q", ("q/count",)),))


def running(host):
    return Lease(host, BIG, 0.0).to(HostState.STARTING, 1.0).to(HostState.RUNNING, 2.0)


def observed(at, *, heap=None, native=None, sizes=None, layout=LAYOUT, known=True, drains=(), time=10.0, **hosts):
    """An observation of tasks of one operator on hosts; at: the host of each task, by number from 0."""
    names = [f"h{number + 1}" for number in range(max(at) + 1)]
    leases = {name: running(name).to(HostState.DRAINING, 3.0) if name in drains else running(name) for name in names}
    operators = tuple(layout.graph.by_name)
    keyed = next(each.name for each in layout.graph.operators if each.kind is Kind.KEYED)
    state = {Metric.STATE_HEAP: heap, Metric.STATE_OFF_HEAP: native}
    columns = {m: [math.nan if o != keyed or each is None else each for o in operators] for m, each in state.items()}
    values = {Metric.STATE_SIZE: sizes if sizes is not None else [math.nan] * len(at)}
    limits = {Metric.HEAP_LIMIT: [700.0] * len(names), Metric.MEMORY_LIMIT: [1000.0] * len(names)} if known else {}
    return Observation(
        time,
        Context(layout, {"big": BIG}, partitions={keyed: len(at)}),
        Frame(operators, columns),
        hosts=Frame(names, {**limits, **{Metric[name.upper()]: value for name, value in hosts.items()}}),
        tasks=TaskFrame([operators.index(keyed)] * len(at), range(len(at)), at, operators, values),
        leases=leases,
    )
