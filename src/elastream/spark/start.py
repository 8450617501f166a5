"""Start of queries on hosts of a cloud: cluster, session, first hosts, queries. On failure nothing is left running."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elastream.clouds.executors import ExecutorCloud
from elastream.clouds.provider import ClusterEndpoint, Provider, ProviderOffer, SessionHosts
from elastream.core.alarm import Alarms
from elastream.core.composition import check_consistency, consistency_of
from elastream.core.fitting import doubts, state_partitions_of
from elastream.core.observation import Composition
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import KafkaTopic
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import CloudError, EnvironmentProblem
from elastream.recording.directory import RunDirectory
from elastream.recording.file_systems import FILES_REACHED_BY
from elastream.recording.lease_log import LeaseLog
from elastream.settings import RunSettings
from elastream.spark.dataflow.kafka import with_connector
from elastream.spark.dataflow.table_activation import table_publisher
from elastream.spark.hosts.first_hosts import Resumed, lease_first_hosts, retry
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.cluster_manager import pending_reason
from elastream.spark.jvm.driver_side import DriverSide, TaskLoads
from elastream.spark.jvm.executors import AllocationClient, Executors
from elastream.spark.jvm.recovery import Recovery
from elastream.spark.jvm.session import LOCAL_FILE_SETTINGS, holding, open_session, settings_for
from elastream.spark.jvm.standby import standby_registry
from elastream.spark.jvm.standby_jar import copies_settings
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.placing import Placing
from elastream.spark.plant import PlantLimits, RunClock, SparkPlant
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.queries.compiler import start_queries
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.segments import composition_left, led_by_edges
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import STEP_S
from elastream.spark.telemetry.left_out import LeftOutCounts
from elastream.spark.telemetry.links import LinkProbes
from elastream.spark.telemetry.speeds import SpeedProbes
from elastream.spark.telemetry.traffic import MapOutputs, Traffic
from elastream.spark.worker import probe

# Of the target latency, the time from one batch to the next. A record waits for at most one batch and is in the next, which
# at full use leaves a fifth of the target to spare. Queries in a row share the target.
BATCH_SHARE = 0.4
# Stands for a target latency if none is set.
DEFAULT_LATENCY_S = 2.0
# Most batches of a query whose tasks one look reads: they are shorter than a monitoring period, but seldom much.
MAX_BATCHES_PER_LOOK = 3

log = logging.getLogger(__name__)
Q = TypeVar("Q", bound=CompiledQueries | SessionQueries)


def start_plant(
    graph: Graph, directory: RunDirectory, settings: RunSettings, *, resumed: Resumed | None = None
) -> SparkPlant[CompiledQueries]:
    """Start cluster, session and the queries of `graph`, or resume a run; return when the first hosts take tasks.

    Raises:
        ElastreamError: Any of it fails; nothing is left running.
    """
    layout = lay_out(graph)
    consistency = consistency_of(settings.consistency)
    plan_queries(layout)
    check_consistency(layout, consistency)
    settings = replace(settings, settings=_with_kafka(graph, settings.settings or {}))
    with _session_on_hosts(graph.name, directory, settings, resumed) as on:
        terms, keyed = on.provider.terms, any(stage.keyed for stage in layout.stages)
        for doubt in doubts(settings.replicas, terms.types, on.partitions if keyed else None, terms.max_hosts):
            log.warning("%s", doubt)
        slots = len(on.hosts.usable) * terms.types[0].slots
        composition = Composition.default(graph, dict.fromkeys({*graph.loads, *led_by_edges(layout)}, slots))
        if resumed is not None:
            composition = composition_left(layout, directory, composition)
        pace = pace_of(settings.latency, layout) if settings.batch is None else float(settings.batch)
        running = start_queries(
            on.spark,
            layout,
            directory,
            composition,
            state_partitions=on.partitions,
            batch_seconds=pace,
            interval=pace,
            consistency=consistency,
            retention=float(settings.retention),
        )
        queries = CompiledQueries(
            on.instruments,
            layout,
            running,
            partitions=on.partitions,
            target_latency=settings.latency,
            consistency=consistency,
            tables=table_publisher(graph, directory),
            left_out=LeftOutCounts(layout, directory),
        )
        return on.plant(queries, settings)


def start_beside(
    start: Callable[[SparkSession], object], directory: RunDirectory, settings: RunSettings
) -> SparkPlant[SessionQueries]:
    """Start cluster and session, and let `start` begin its own queries on them; they run as written."""
    with _session_on_hosts("queries", directory, settings, None) as on:
        on.spark.conf.set("spark.sql.shuffle.partitions", str(on.partitions))
        start(on.spark)
        return on.plant(SessionQueries(on.instruments, target_latency=settings.latency), settings)


def pace_of(target_latency: float | None, layout: Layout) -> float:
    """Return the default seconds between batches, by target latency and queries that a record passes in a row."""
    return BATCH_SHARE * (target_latency or DEFAULT_LATENCY_S) / layout.in_a_row


@dataclass(frozen=True, slots=True)
class _RunSession:
    """A session whose first hosts take tasks."""

    spark: SparkSession
    provider: Provider
    hosts: Hosts
    instruments: QueryAccess
    clock: RunClock
    alarms: Alarms
    partitions: int
    unlock: Callable[[], None]

    def plant(self, queries: Q, settings: RunSettings) -> SparkPlant[Q]:
        """Return the plant of `queries`; closing it ends queries, session and every host."""
        limits = PlantLimits(self.provider.terms, settings.latency, replicas=settings.replicas)
        links = LinkProbes(self.hosts.status)
        return SparkPlant(
            self.instruments, queries, self.hosts, limits, self.clock, self.alarms, links=links, end=self._end
        )

    def _end(self, plant: SparkPlant[Q]) -> None:
        plant.stop_acting()
        _teardown(lambda: _stop_queries(self.spark))
        now = self.clock.now()
        _teardown(lambda: plant.queries.look(now, time.time()))  # the last batches
        self.hosts.close()
        # Hosts first: a stopping session waits for its executors.
        self.provider.close()
        _teardown(self.unlock)
        _teardown(self.spark.stop)


@contextmanager
def _session_on_hosts(
    name: str, directory: RunDirectory, settings: RunSettings, resumed: Resumed | None
) -> Iterator[_RunSession]:
    """Start cluster, session and first hosts; end them if the body raises."""
    clock = RunClock(0.0 if resumed is None else resumed.at)
    alarms = Alarms(clock.now)
    provider = spark = hosts = None
    cloud, replicas = settings.cloud, settings.replicas
    try:
        if directory.files is not None and isinstance(cloud, ExecutorCloud):
            cloud = replace(cloud, shared=True)
        provider = cloud.open(directory.cluster, ports=settings.ports, alarms=alarms)
        terms, reach = provider.terms, provider.terms.endpoint
        if reach is None:
            raise CloudError(f"no Spark session can reach the hosts of {type(cloud).__name__}")
        partitions = settings.state_partitions or state_partitions_of(terms.types, terms.max_hosts)
        leases = LeaseLog(directory.leases)
        # Requested now, because hosts take as long to start as the session.
        first_hosts = lease_first_hosts(leases, provider, resumed, clock.now(), replicas)
        readings = directory.cluster / "speeds"
        readings.mkdir(exist_ok=True)
        spark = session = open_session(
            reach.master,
            name,
            directory.cluster,
            _spark_settings(terms, reach, partitions, directory, settings, readings),
            reach.secret,
            python=reach.python,
            packaged=reach.packaged,
        )
        driver = DriverSide(spark)
        client = AllocationClient(spark, Executors(driver), pending_reason(spark))
        if isinstance(provider, SessionHosts):
            client.take_over()
            provider.bind(client)
        hosts = Hosts(
            client.executors,
            provider,
            clock.now,
            fence=client.fence,
            warm=(lambda executor: warm_up(session, driver, executor, directory.cluster)) if settings.warm_up else None,
            log=leases,
            alarms=alarms,
        )
        hosts.begin(first_hosts)
        _await_first(hosts, max(1, terms.min_hosts))
        placing = Placing({}, clock.now, AllocationStore(directory.allocation), alarms=alarms)
        instruments = _instruments(spark, driver, placing, SpeedProbes(readings))
        if replicas:
            instruments = replace(instruments, copies=standby_registry(spark))
        with holding(spark, directory.session_lock) as unlock:
            yield _RunSession(spark, provider, hosts, instruments, clock, alarms, partitions, unlock)
    except BaseException:
        if hosts is not None:
            hosts.close()
        if provider is not None:
            provider.close()
        if spark is not None:
            _teardown(spark.stop)
        raise


def _spark_settings(
    terms: ProviderOffer,
    reach: ClusterEndpoint,
    partitions: int,
    directory: RunDirectory,
    settings: RunSettings,
    readings: Path,
) -> Mapping[str, str]:
    defaults = settings_for(
        driver_address=reach.driver_address,
        executor_memory=reach.executor_memory,
        executor_cores=reach.executor_cores,
        state_partitions=partitions,
        state_store=settings.state_store,
        host_cores=[type.cores for type in terms.types],
        java_options=reach.java_options,
    )
    environment = {f"spark.executorEnv.{probe.FOLDER_VARIABLE}": str(readings)}
    if directory.files is not None:
        environment[f"spark.executorEnv.{FILES_REACHED_BY}"] = os.environ.get(FILES_REACHED_BY, "{}")
        defaults = {name: value for name, value in defaults.items() if name not in LOCAL_FILE_SETTINGS}
    merged = {**defaults, **environment, **reach.settings, **(settings.settings or {})}
    return {**merged, **_standby_settings(merged)} if settings.replicas else merged


def _instruments(spark: SparkSession, driver: DriverSide, placing: Placing, speeds: SpeedProbes) -> QueryAccess:
    loads: TaskLoads | None = None
    outputs: MapOutputs | None = None
    recovery: Recovery | None = None
    try:
        loads = TaskLoads(spark)
        outputs = MapOutputs(spark)
    except EnvironmentProblem as problem:
        log.warning("%s; it stays unknown", problem)
    try:
        recovery = Recovery(spark)
    except EnvironmentProblem as problem:
        log.warning("state partitions of a lost executor are left to Spark: %s", problem)
    return QueryAccess(spark, driver, placing, loads, Traffic(outputs), MAX_BATCHES_PER_LOOK, speeds, recovery)


def _standby_settings(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Return settings for standby replicas, appended to lists in `settings`; none if unsupported."""
    try:
        standby = copies_settings()
    except EnvironmentProblem as problem:
        log.warning("%s", problem)
        return {}
    return {name: ",".join(filter(None, (settings.get(name), value))) for name, value in standby.items()}


def _stop_queries(spark: SparkSession) -> None:
    for query in spark.streams.active:
        _teardown(query.stop)


def _teardown(stop: Callable[[], object]) -> None:
    try:
        stop()
    except (Py4JError, PySparkException, OSError):
        log.debug("a part of the run was already closed", exc_info=True)


def _await_first(hosts: Hosts, least: int) -> None:
    """Wait until `least` hosts take tasks. Raises EnvironmentProblem with the provider's reason."""
    before = hosts.leases.keys() - hosts.active.keys()

    def look() -> None:
        hosts.look()
        hosts.step(batch=-1, idle=True, holds=lambda host: False)

    while True:
        retry(look, "the first hosts cannot be looked at")
        if len(hosts.usable) >= least:
            return
        active = hosts.active
        lost = [name for name in hosts.leases if name not in active and name not in before]
        if lost and len(active) < least:
            raise EnvironmentProblem(f"the first host did not come up: {hosts.reason(lost[0])}")
        time.sleep(STEP_S)


def _with_kafka(graph: Graph, settings: Mapping[str, str]) -> Mapping[str, str]:
    uses_kafka = any(isinstance(each, KafkaTopic) for o in graph.operators for each in (o.reads, o.writes)) or any(
        e.durable == "kafka" for e in graph.edges
    )
    return with_connector(settings) if uses_kafka else settings
