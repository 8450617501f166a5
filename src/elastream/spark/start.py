"""Starts a dataflow on Spark: cluster, session, first hosts, queries - all of it, or nothing is left running."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.clouds.provider import Cloud
from elastream.model.action import KINDS
from elastream.model.cloud import HostState
from elastream.model.endpoints import KafkaTopic
from elastream.model.errors import CloudError, DataflowError, EnvironmentProblem
from elastream.model.graph import Graph
from elastream.model.observation import Composition, Context
from elastream.model.stages import lay_out
from elastream.recording.directory import RunDirectory
from elastream.spark.clock import RunClock
from elastream.spark.dataflow.kafka import kafka_settings
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.allocation import AllocationClient
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors
from elastream.spark.jvm.session import StateStore, open_session, settings_for
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.placing import Placing
from elastream.spark.plant import SparkPlant
from elastream.spark.queries.compiled import RunningSegment, led_by_edges, start_queries
from elastream.spark.steward import STEP

__all__ = ["Start", "pace_of", "start_plant"]

Start: TypeAlias = Callable[..., Sequence[RunningSegment]]
"""What starts the queries of a layout, called as `start_queries` is."""

PARTITIONS_PER_SLOT = 2
"""State partitions for each slot of the largest cluster: enough to even out, few enough to stay cheap (5 ms each)."""

BATCH_SHARE = 0.4
"""Of the target latency, the time from one batch to the next: a record waits for at most one batch and is in the next,
which at full use leaves a fifth of the target to spare."""
DEFAULT_LATENCY = 2.0
"""Seconds that stand for a target latency where none is given."""


def start_plant(
    graph: Graph,
    cloud: Cloud,
    directory: RunDirectory,
    *,
    target_latency: float | None = None,
    state_partitions: int | None = None,
    state_store: StateStore = "memory",
    batch_seconds: float | None = None,
    warm: bool = True,
    ports: range | None = None,
    settings: Mapping[str, str] | None = None,
    start: Start = start_queries,
) -> SparkPlant:
    """Start cluster, session and queries; returns when the first host takes tasks.

    state_partitions: key groups of a keyed operator, fixed for the life of its checkpoint. state_store: where executors
    keep state, see `StateStore`. batch_seconds: how often a batch begins and how long it may take, by default `pace_of` the
    target latency. settings: further Spark settings, which win. start: makes the queries of `graph`, where they are to be
    others than those that it compiles to.

    Raises ElastreamError, with nothing left running, where any of it fails.
    """
    layout = lay_out(graph)
    for segment in layout.segments:
        shaped = [name for name in segment.operators if name in graph.loads]
        if len(shaped) > 1:
            raise DataflowError(
                f"dataflow {graph.name!r}: the sources {' and '.join(map(repr, shaped))} have loads and meet in one query, "
                "whose latencies could not be told apart: put a durable edge behind all but one of them"
            )
    clock = RunClock()
    provider = spark = None
    try:
        provider = cloud.open(directory.cluster, ports=ports)
        terms, reach = provider.terms, provider.terms.reach
        if reach is None:
            raise CloudError(f"no Spark session can reach the hosts of {type(cloud).__name__}")
        partitions = state_partitions or max(4, PARTITIONS_PER_SLOT * terms.max_hosts * max(t.slots for t in terms.types))
        first = {f"h{number}": terms.types[0] for number in range(1, max(1, terms.min_hosts) + 1)}
        since = clock.now()
        provider.lease(first)  # a host takes as long to start as a session
        wanted = settings_for(
            driver_address=reach.driver_address,
            executor_memory=reach.executor_memory,
            executor_cores=reach.executor_cores,
            state_partitions=partitions,
            state_store=state_store,
            small=any(type.cores < 1 for type in terms.types),
        )
        wanted = {**wanted, **reach.settings, **_kafka(graph), **(settings or {})}
        spark = session = open_session(reach.master, graph.name, directory.cluster, wanted)
        hosts = Hosts(
            Executors(DriverSide(spark)),
            provider,
            clock.now,
            fence=AllocationClient(spark).fence,
            warm=(lambda executor: warm_up(session, executor, directory.cluster)) if warm else None,
        )
        for host, kind in first.items():
            hosts.adopt(host, kind, since)
        _await_first(hosts, tuple(first))
        leaders = {*graph.loads, *led_by_edges(layout)}
        composition = Composition.default(graph, dict.fromkeys(leaders, len(first) * terms.types[0].slots))
        pace = batch_seconds or pace_of(target_latency)
        running = start(
            spark, layout, directory, composition, state_partitions=partitions, batch_seconds=pace, interval=pace
        )
        # Spark numbers the stateful operators of a query from its sink up.
        states = {
            name: StatePartitions(spark, each.query, partitions, number)
            for each in running
            for number, name in enumerate(reversed(each.keyed))
        }
    except BaseException:
        if provider is not None:
            provider.close()
        if spark is not None:
            with contextlib.suppress(Py4JError, PySparkException, OSError):
                spark.stop()
        raise
    context = Context(
        layout,
        {type.name: type for type in terms.types},
        target_latency,
        max_hosts=terms.max_hosts,
        min_hosts=terms.min_hosts,
        capabilities=frozenset(KINDS),
        scalable=frozenset([*leaders, *(o.name for o in graph.operators if o.waits)]),
    )
    placing = Placing(states, clock.now, AllocationStore(directory.allocation))
    return SparkPlant(context, clock, provider, spark, hosts, running, placing, composition)


def pace_of(target_latency: float | None) -> float:
    """Seconds from one batch to the next where nobody says, by the target latency."""
    return BATCH_SHARE * (target_latency or DEFAULT_LATENCY)


def _await_first(hosts: Hosts, names: Sequence[str]) -> None:
    """Wait until all first hosts take tasks; raises EnvironmentProblem with the provider's reason where one does not."""
    while True:
        hosts.look()
        hosts.step(batch=-1, idle=True, holds=lambda host: False)
        states = {name: hosts.leases[name].state for name in names}
        for name, state in states.items():
            if state is HostState.LOST:
                raise EnvironmentProblem(f"the first host did not come up: {hosts.reason(name)}")
        if all(state is HostState.RUNNING for state in states.values()):
            return
        time.sleep(STEP)


def _kafka(graph: Graph) -> Mapping[str, str]:
    """What a session needs beside the rest where the dataflow reads or writes Kafka."""
    uses_kafka = any(isinstance(each, KafkaTopic) for o in graph.operators for each in (o.reads, o.writes)) or any(
        e.durable == "kafka" for e in graph.edges
    )
    return kafka_settings() if uses_kafka else {}
