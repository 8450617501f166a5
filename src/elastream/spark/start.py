"""Start of queries on hosts of a cloud: cluster, session, first hosts, queries. On failure nothing is left running."""

import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elastream.clouds.executors import ExecutorCloud, ExecutorProvider, is_this_machine
from elastream.clouds.in_process import InProcess
from elastream.clouds.local.java import DRIVER_OPTIONS
from elastream.clouds.provider import Cloud, ClusterEndpoint, Provider, ProviderOffer, SessionHosts
from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetTokens
from elastream.core.alarm import Alarms
from elastream.core.composition import check_consistency, consistency_of
from elastream.core.fitting import doubts, state_partitions_of
from elastream.core.hosts import HostState, Lease
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
from elastream.spark.dataflow.kafka import kafka_package, with_connector
from elastream.spark.dataflow.table_activation import table_publisher
from elastream.spark.hosts.first_hosts import Resumed, lease_first_hosts, retry
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.borrowed import borrowed, has_class, open_in_process, slots_of
from elastream.spark.jvm.capabilities import has_executors
from elastream.spark.jvm.cluster_manager import cluster_watch, pending_reason
from elastream.spark.jvm.driver_side import DriverSide, TaskLoads
from elastream.spark.jvm.executor_memory import ExecutorMemory
from elastream.spark.jvm.executors import AllocationClient, Executors
from elastream.spark.jvm.jars import copies_settings
from elastream.spark.jvm.recovery import Recovery
from elastream.spark.jvm.session import (
    LOCAL_FILE_SETTINGS,
    PROGRESS_SETTINGS,
    SMALL_JVM,
    holding,
    open_session,
    own_modules,
    session_settings,
    settings_for,
)
from elastream.spark.jvm.standby import standby_registry
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.placing import Placing
from elastream.spark.plant import PlantLimits, RunClock, SparkPlant
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.queries.compiler import start_queries
from elastream.spark.queries.damage import complete_edges
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.repartitioning import Checkpoints, Repartitioning
from elastream.spark.queries.segments import RunningSegment, composition_left, led_by_edges
from elastream.spark.queries.updating import RunningCode
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import STEP_S
from elastream.spark.telemetry.left_out import LeftOutCounts
from elastream.spark.telemetry.links import LinkProbes
from elastream.spark.telemetry.speeds import SpeedProbes
from elastream.spark.telemetry.traffic import MapOutputs, Traffic
from elastream.spark.worker import probe

# Time from one batch to the next, as a share of the target latency. A record waits for at most one batch and is in the
# next, so that a fifth of the target is spare at full use. Queries in a row share the target.
BATCH_SHARE = 0.4
# Target latency if none is set.
DEFAULT_LATENCY_S = 2.0
# Most batches of a query whose tasks one look reads: they are shorter than a monitoring period, but seldom much.
MAX_BATCHES_PER_LOOK = 3
# Actions that make no sense in process, and those that make none without executors.
NO_LEASES: Mapping[type[Action], str] = dict.fromkeys(
    (LeaseHost, DrainHost, CancelDrain, ReleaseHost), "hosts are neither leased nor released in process"
)
ONE_PLACE: Mapping[type[Action], str] = dict.fromkeys((MoveTask, SetTokens), "all state is in this process")
# Of the settings for queries, those that only a session of our own can have: the file system is that of all its readers.
OWN_SESSION_ONLY = ("spark.hadoop.fs.file.impl", "spark.python.unix.domain.socket.enabled")
# A class of Spark's Kafka connector.
KAFKA_CLASS = "org.apache.spark.sql.kafka010.KafkaSourceProvider"

log = logging.getLogger(__name__)
Q = TypeVar("Q", bound=CompiledQueries | SessionQueries)

# Function that receives what is being started, again and again while it takes time.
Progress: TypeAlias = Callable[[str], object]


def no_progress(text: str) -> None:
    """Show nothing."""


def start_plant(
    graph: Graph,
    directory: RunDirectory,
    settings: RunSettings,
    *,
    resumed: Resumed | None = None,
    progress: Progress = no_progress,
    bounded: int | None = None,
    checkpoints: Checkpoints | None = None,
    stateless: bool = False,
) -> SparkPlant[CompiledQueries]:
    """Start cluster, session and the queries of `graph`, or resume a run; return when the first hosts take tasks.

    Args:
        bounded: First hosts of a run whose queries end once they have read what is there; None for other runs.
        checkpoints: Of a run that may repartition its state.
        stateless: True to place tasks without state, too.

    Raises:
        ElastreamError: Any of it fails; nothing is left running.
    """
    layout = lay_out(graph)
    consistency = consistency_of(settings.consistency)
    plan_queries(layout)
    check_consistency(layout, consistency)
    existing = open_in_process() if isinstance(cloud_of(settings), InProcess) else None
    settings = replace(settings, settings=_with_kafka(graph, settings.settings or {}, existing))
    with _session_on_hosts(graph.name, directory, settings, resumed, existing, progress, bounded or 1) as on:
        on = replace(on, instruments=replace(on.instruments, stateless=stateless))
        terms, keyed = on.terms, any(stage.keyed for stage in layout.stages)
        for doubt in doubts(settings.replicas, terms.types, on.partitions if keyed else None, terms.max_hosts):
            log.warning("%s", doubt)
        code = RunningCode(graph, directory)
        slots = sum(on.hosts.active[host].type.slots for host in on.hosts.usable) or slots_of(on.spark)
        composition = Composition.default(graph, dict.fromkeys({*graph.loads, *led_by_edges(layout)}, slots))
        if resumed is not None:
            composition = composition_left(layout, directory, composition, code.codec)
        progress("starting the queries")
        pace = _pace(settings, layout)

        def start(composition: Composition, partitions: int) -> tuple[RunningSegment, ...]:
            complete_edges(layout, directory)
            return start_queries(
                on.spark,
                layout,
                directory,
                composition,
                state_partitions=partitions,
                batch_seconds=pace,
                interval=pace,
                consistency=consistency,
                retention=float(settings.retention),
                bounded=bounded is not None,
                codec=code.codec,
            )

        on.spread()
        running = start(composition, on.partitions)
        queries = CompiledQueries(
            on.instruments,
            layout,
            running,
            partitions=on.partitions,
            target_latency=settings.latency,
            consistency=consistency,
            tables=table_publisher(graph, directory),
            left_out=LeftOutCounts(layout, directory),
            code=code,
            repartitioning=None if checkpoints is None else Repartitioning(on.spark, checkpoints, start),
        )
        return on.plant(queries, settings)


def start_beside(
    start: Callable[[SparkSession], object], directory: RunDirectory, settings: RunSettings
) -> SparkPlant[SessionQueries]:
    """Start cluster and session, and let `start` begin its own queries on them."""
    with _session_on_hosts("queries", directory, settings, None, None, no_progress) as on:
        on.spark.conf.set("spark.sql.shuffle.partitions", str(on.partitions))
        on.spread()
        start(on.spark)
        return on.plant(SessionQueries(on.instruments, target_latency=settings.latency), settings)


def cloud_of(settings: RunSettings) -> Cloud:
    cloud = settings.cloud or InProcess()
    if isinstance(cloud, InProcess) and (session := open_in_process()) is not None:
        return InProcess(slots_of(session))
    return cloud


def _pace(settings: RunSettings, layout: Layout) -> float:
    return pace_of(settings.latency, layout) if settings.batch is None else float(settings.batch)


def pace_of(target_latency: float | None, layout: Layout) -> float:
    """Return the default seconds between batches, by target latency and queries that a record passes in a row."""
    return BATCH_SHARE * (target_latency or DEFAULT_LATENCY_S) / layout.in_a_row


@dataclass(frozen=True, slots=True)
class _RunSession:
    spark: SparkSession
    provider: Provider
    terms: ProviderOffer
    refused: Mapping[type[Action], str]
    hosts: Hosts
    instruments: QueryAccess
    clock: RunClock
    alarms: Alarms
    partitions: int
    unlock: Callable[[], None]
    leave: Callable[[], object]

    def plant(self, queries: Q, settings: RunSettings) -> SparkPlant[Q]:
        """Return the plant of `queries`; closing it ends queries and every host, and ends or leaves the session."""
        limits = PlantLimits(
            self.terms,
            settings.latency,
            replicas=settings.replicas,
            refused=self.refused,
            batch_seconds=_pace(settings, queries.layout),
        )
        links = LinkProbes(self.hosts.status)
        return SparkPlant(
            self.instruments, queries, self.hosts, limits, self.clock, self.alarms, links=links, end=self._end
        )

    def spread(self) -> None:
        if (recovery := self.instruments.recovery) is not None:
            recovery.start()
            places = map(self.hosts.target, self.hosts.usable)
            recovery.spread([each.executor for each in places if each is not None])

    def _end(self, plant: SparkPlant[Q]) -> None:
        plant.stop_acting()
        _teardown(lambda: _stop_queries(self.spark))
        now = self.clock.now()
        _teardown(lambda: plant.queries.look(now, time.time()))  # the last batches
        self.hosts.close()
        # Hosts first: a stopping session waits for its executors.
        self.provider.close()
        _teardown(self.unlock)
        _teardown(self.leave)


@contextmanager
def _session_on_hosts(  # noqa: C901
    name: str,
    directory: RunDirectory,
    settings: RunSettings,
    resumed: Resumed | None,
    existing: SparkSession | None,
    progress: Progress,
    least: int = 1,
) -> Iterator[_RunSession]:
    """Start cluster, session and first hosts, or borrow the `existing` session; end them if the body raises."""
    clock = RunClock(0.0 if resumed is None else resumed.at)
    alarms = Alarms(clock.now)
    provider = hosts = instruments = None
    leave: Callable[[], object] | None = None
    cloud, replicas = cloud_of(settings), settings.replicas
    in_process = isinstance(cloud, InProcess)
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
        first_hosts = None if in_process else lease_first_hosts(leases, provider, resumed, clock.now(), replicas, least)
        readings = directory.cluster / "speeds"
        readings.mkdir(exist_ok=True)
        if existing is None:
            progress("starting Spark")
            spark = open_session(
                reach.master,
                name,
                directory.cluster,
                _spark_settings(terms, reach, partitions, directory, settings, readings),
                reach.secret,
                python=reach.python,
                packaged=reach.packaged,
            )
            leave = spark.stop
        else:
            spark, leave = _borrowed(existing, directory, settings)
        driver = DriverSide(spark)
        client = AllocationClient(spark, Executors(driver), pending_reason(spark), cluster_watch(spark))
        if isinstance(provider, SessionHosts):
            if not in_process:
                client.take_over()
            provider.bind(client)
        session = provider if in_process and isinstance(provider, ExecutorProvider) else None
        warm = partial(warm_up, spark, driver, scratch=directory.cluster, workers=2)
        hosts = Hosts(
            client.executors,
            provider,
            clock.now,
            fence=client.fence,
            warm=warm if settings.warm_up else None,
            session=session,
            log=leases,
            alarms=alarms,
        )
        if first_hosts is not None:
            hosts.begin(first_hosts)
        several = has_executors(spark)
        _await_first(hosts, 0 if in_process and several else max(least, terms.min_hosts), progress)
        refused: Mapping[type[Action], str] = {}
        if in_process:
            _check_reached(hosts, directory)
            terms = _existing_hosts_offer(terms, hosts)
            refused = NO_LEASES if several else {**NO_LEASES, **ONE_PLACE}
        placing = Placing({}, clock.now, AllocationStore(directory.allocation), alarms=alarms)
        instruments = _instruments(spark, driver, placing, SpeedProbes(readings), several)
        if replicas:
            instruments = replace(instruments, copies=standby_registry(spark))
        with holding(spark, directory.session_lock) as unlock:
            yield _RunSession(
                spark,
                provider,
                terms,
                refused,
                hosts,
                instruments,
                clock,
                alarms,
                partitions,
                unlock,
                leave,
            )
    except BaseException:
        if hosts is not None:
            hosts.close()
        if provider is not None:
            provider.close()
        if instruments is not None and instruments.recovery is not None:
            _teardown(instruments.recovery.close)
        if leave is not None:
            _teardown(leave)
        raise


def _borrowed(
    existing: SparkSession, directory: RunDirectory, settings: RunSettings
) -> tuple[SparkSession, Callable[[], object]]:
    unset = {*OWN_SESSION_ONLY, *(LOCAL_FILE_SETTINGS if directory.files is not None else ())}
    own = {name: value for name, value in session_settings(settings.state_store).items() if name not in unset}
    environment = {"PYTHONPATH": os.pathsep.join(own_modules())}
    if directory.files is not None:
        environment[FILES_REACHED_BY] = os.environ.get(FILES_REACHED_BY, "{}")
    stack = ExitStack()
    spark = stack.enter_context(borrowed(existing, {**own, **PROGRESS_SETTINGS}, settings.settings or {}, environment))
    return spark, stack.close


def _existing_hosts_offer(terms: ProviderOffer, hosts: Hosts) -> ProviderOffer:
    leases = hosts.active.values()
    types = tuple({lease.type.name: lease.type for lease in leases}.values())
    return replace(terms, types=types or terms.types, max_hosts=max(1, len(leases)), min_hosts=max(1, len(leases)))


def _check_reached(hosts: Hosts, directory: RunDirectory) -> None:
    """Raise EnvironmentProblem if an executor is on another machine, and the run's folder only on this one."""
    for host in hosts.usable if directory.files is None else ():
        executor = hosts.executor(host)
        if executor is not None and not is_this_machine(executor.host):
            raise EnvironmentProblem(
                f"executor {executor.id} of the open session is at {executor.host}, on another machine, and the run's "
                f"folder {directory.root} on this one: name one that all of them reach, such as runs='hdfs://...'"
            )


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
    if reach.master.startswith("local["):
        options = shlex.join([*SMALL_JVM, *reach.java_options])  # such a run lasts for less than its compilation
        environment[DRIVER_OPTIONS] = options
        if sys.platform == "linux":  # elsewhere nothing can probe
            environment[f"spark.executorEnv.{probe.EXECUTOR_VARIABLE}"] = "driver"
    if directory.files is not None:
        environment[f"spark.executorEnv.{FILES_REACHED_BY}"] = os.environ.get(FILES_REACHED_BY, "{}")
        defaults = {name: value for name, value in defaults.items() if name not in LOCAL_FILE_SETTINGS}
    merged = {**defaults, **environment, **reach.settings, **(settings.settings or {})}
    return {**merged, **_standby_settings(merged)} if settings.replicas else merged


def _instruments(
    spark: SparkSession, driver: DriverSide, placing: Placing, speeds: SpeedProbes, several: bool
) -> QueryAccess:
    loads: TaskLoads | None = None
    outputs: MapOutputs | None = None
    memory: ExecutorMemory | None = None
    recovery: Recovery | None = None
    try:
        loads = TaskLoads(spark)
        outputs = MapOutputs(spark)
    except EnvironmentProblem as problem:
        log.warning("%s; it stays unknown", problem)
    try:
        memory = ExecutorMemory(spark)
        memory.start()
    except EnvironmentProblem as problem:
        log.warning("%s; it stays unknown", problem)
    try:
        recovery = Recovery(spark) if several else None
    except EnvironmentProblem as problem:
        log.warning("state partitions of a lost executor are left to Spark: %s", problem)
    return QueryAccess(spark, driver, placing, loads, Traffic(outputs), MAX_BATCHES_PER_LOOK, speeds, recovery, memory)


def _standby_settings(settings: Mapping[str, str]) -> Mapping[str, str]:
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


def _await_first(hosts: Hosts, least: int, progress: Progress) -> None:
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
        progress(_coming(active.values(), hosts.reason))
        time.sleep(STEP_S)


def _coming(leases: Iterable[Lease], reason: Callable[[str], str]) -> str:
    texts = []
    for lease in leases:
        if lease.state is not HostState.RUNNING:
            why = reason(lease.host)
            texts.append(f"host {lease.host} is {lease.state}" + (f", {why}" if why else ""))
    return "; ".join(texts) or "waiting for an executor"


def _with_kafka(graph: Graph, settings: Mapping[str, str], existing: SparkSession | None) -> Mapping[str, str]:
    """Return `settings`, with Kafka's connector if `graph` uses it.

    Raises:
        EnvironmentProblem: The open session lacks the connector.
    """
    uses_kafka = any(isinstance(each, KafkaTopic) for o in graph.operators for each in (o.reads, o.writes)) or any(
        e.durable == "kafka" for e in graph.edges
    )
    if not uses_kafka or (existing is not None and has_class(existing, KAFKA_CLASS)):
        return settings
    if existing is not None:
        raise EnvironmentProblem(
            f"the open session lacks Spark's Kafka connector: make it with spark.jars.packages={kafka_package()}, or stop "
            "it before run(...)"
        )
    return with_connector(settings)
