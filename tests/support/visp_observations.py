"""Small observations for the tests of VISP's policies: a pipeline, hosts with instances, metrics by operator."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation, Sample
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out

BTU10 = HostType("docker", cores=4, memory=7000, slots=8, price=1, billing=Billing(600), start=45, stop=10)


def operator(name: str, cores: float = 1.0, memory: float = 1000.0, level: float | None = 1.0) -> Operator:
    return Operator(name, Kind.TRANSFORM, (Alternate(name, cost=0.1),), max_duration=level, cores=cores, memory=memory)


def pipeline(*operators: Operator) -> Graph:
    """Source -> operators in a row -> sink, every operator a stage of its own when not fused."""
    names = ["in", *(each.name for each in operators), "out"]
    return Graph(
        "case",
        (Operator("in", Kind.SOURCE, cores=0), *operators, Operator("out", Kind.SINK, cores=0)),
        tuple(Edge(a, b) for a, b in pairwise(names)),
    )


def lease(host: str, since: float = 0.0, state: HostState = HostState.RUNNING, type: HostType = BTU10) -> Lease:
    return Lease(host, type, since, state)


def observe(  # noqa: PLR0913
    operators: Sequence[Operator],
    placed: Mapping[str, Sequence[str]],
    *,
    time: float = 60.0,
    metrics: Mapping[str, Mapping[Metric, float]] | None = None,
    earlier: Sequence[Mapping[str, float]] = (),
    leases: Sequence[Lease] | None = None,
    images: Mapping[str, frozenset[str]] | None = None,
    host_types: Sequence[HostType] = (BTU10,),
    max_hosts: int = 100,
    scalable: Sequence[str] | None = None,
    fused: bool = False,
) -> Observation:
    """`placed`: operators of the instances on each host. `earlier`: durations by operator, 15 s apart, oldest first."""
    graph = pipeline(*operators)
    active = {each.host: each for each in (leases if leases is not None else [lease(host) for host in placed])}
    names = [each.name for each in graph.operators]
    rows: list[tuple[int, int, int]] = []
    counts: dict[str, int] = {}
    for host, instances in placed.items():
        for name in instances:
            rows.append((names.index(name), counts.get(name, 0), list(active).index(host)))
            counts[name] = counts.get(name, 0) + 1
    given = metrics or {}
    columns = {
        metric: [given.get(name, {}).get(metric, float("nan")) for name in names]
        for metric in (Metric.DURATION, Metric.BACKLOG, Metric.SCALINGS, Metric.BUSY_CORES, Metric.UTILISATION)
    }
    columns[Metric.PARALLELISM] = [
        given.get(name, {}).get(Metric.PARALLELISM, float(counts.get(name, 0)) or float("nan")) for name in names
    ]
    history = tuple(
        Sample(
            time - 15 * (len(earlier) - k),
            Frame(names, {Metric.DURATION: [durations.get(name, float("nan")) for name in names]}),
        )
        for k, durations in enumerate(earlier)
    )
    operator_rows, index, host_rows = zip(*rows, strict=True) if rows else ((), (), ())
    context = Context(
        lay_out(graph, chained=fused),
        {type.name: type for type in host_types},
        max_hosts=max_hosts,
        scalable=frozenset(scalable if scalable is not None else [each.name for each in operators]),
    )
    return Observation(
        time,
        context,
        Frame(names, columns),
        hosts=Frame(tuple(active)),
        tasks=TaskFrame(operator_rows, index, host_rows, names),
        leases=active,
        images=images or {},
        history=history,
        next_host=len(active) + 1,
    )
