"""What `run` refuses before it starts anything, and `elastream check` without ever starting: one function for both.

No session and no JVM is needed. What is left to the start: whether Java, ports and brokers are there, and the types of SQL
expressions.
"""

from collections.abc import Sequence

from elastream.core.composition import check_consistency, consistency_of
from elastream.core.fitting import check_feasible, check_replicas
from elastream.core.hosts import HostType
from elastream.core.observation import Composition
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from elastream.errors import about
from elastream.settings import RunSettings
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.dataflow.sinks import check_sink
from elastream.spark.dataflow.sources import check_source
from elastream.spark.queries.segments import scalable_operators
from elastream.spark.worker.composition import CompositionCodec


def admit(
    graph: Graph,
    settings: RunSettings,
    *,
    types: Sequence[HostType] = (),
    max_hosts: int = 1_000_000,
    run: str | None = "",
) -> None:
    """Check that `graph` can run on Spark with `settings`.

    Args:
        types: Host types, the first that of the first hosts; empty if they are not known yet.
        max_hosts: Most hosts that the cloud has.
        run: Id of the run that goes on, whose results may be where its sinks write. None: anybody's, which are replaced.

    Raises:
        ElastreamError: The first thing that keeps it from running, with the field at fault.
    """
    layout = lay_out(graph)
    plans = plan_queries(layout)
    check_consistency(layout, consistency_of(settings.consistency))
    check_replicas(settings.replicas, max_hosts, layout)
    CompositionCodec(graph).encode(Composition.default(graph))
    for operator in graph.operators:
        if operator.alternates:
            functions = [alternate.function for alternate in operator.alternates]
            pickled(functions, f"operator {operator.name!r}")
    for source in graph.sources:
        with about("operators", source.name, "source"):
            check_source(source)
    for segment in layout.segments:
        changes = plans[segment.name].updates != ()
        for name in segment.operators:
            with about("operators", name, "sink"):
                writes = graph.operator(name).writes
                check_sink(writes, changes=changes, run=run)
                if (refuse := getattr(writes, "refuse", None)) is not None:
                    refuse(graph)
    check_feasible(
        layout,
        types,
        settings.policy,
        target_latency=settings.latency,
        max_hosts=max_hosts,
        scalable=scalable_operators(layout),
    )
