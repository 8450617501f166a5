"""A plant over an existing session, whose executors are the hosts, without changing a query or setting."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from pyspark.sql import SparkSession

from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.provider import UNLIMITED, Cloud, ExistingSession, Provider, ProviderOffer
from elastream.core.action import LeaseHost, ReleaseHost
from elastream.core.alarm import Alarms
from elastream.core.hosts import HostState, HostType
from elastream.recording.lease_log import LeaseLog
from elastream.settings import AutopilotSettings
from elastream.spark.hosts.first_hosts import take_over
from elastream.spark.hosts.hosts import Hosts, unpriced
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.capabilities import Capabilities
from elastream.spark.jvm.cluster_manager import cluster_watch, pending_reason
from elastream.spark.jvm.driver_side import java_context
from elastream.spark.jvm.executors import AllocationClient, Executor, Executors
from elastream.spark.jvm.session import secret_of, session_stopped
from elastream.spark.jvm.standby import standby_registry
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import MigrationLimits, Placing
from elastream.spark.plant import PlantLimits, RunClock, SparkPlant
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.telemetry.traffic import Traffic

AttachedPlant: TypeAlias = SparkPlant[SessionQueries]

# Partitions that one batch may load on one executor if there is no time to load them ahead. Lazy as in a dataflow:
# `experiment nstorm` found no cheaper way at full load.
MIGRATIONS = MigrationLimits(per_host=4, lazy=True)
# Cores for observing, as promised to users of Autopilot.
LOOK_SHARE_CORES = 0.05
# A cold executor takes about 15 s.
EXECUTOR_START_TIMEOUT_S = 90.0
RESTORE_TIMEOUT_S = 20.0
ACTIVE_STATES = frozenset({HostState.REQUESTED, HostState.STARTING, HostState.RUNNING})
LEAVE_POLL_S = 0.5

log = logging.getLogger(__name__)


def join(
    cloud: Cloud,
    spark: SparkSession,
    folder: Path,
    alarms: Alarms | None = None,
    *,
    client: AllocationClient | None = None,
    allowed: int = UNLIMITED,
) -> Provider:
    """Return the provider of `cloud`, whose hosts join the master of `spark`; the caller closes it.

    Raises:
        ElastreamError: Wrong kind of master, or unfit executors.
    """
    slots = int(spark.sparkContext.getConf().get("spark.executor.cores") or 1)
    master, memory, secret = str(spark.sparkContext.master), int(java_context(spark).executorMemory()), secret_of(spark)
    session = ExistingSession(master, memory, slots, secret, allocator=client, allowed=allowed)
    return cloud.open(folder, session=session, alarms=alarms)


@dataclass(frozen=True, slots=True)
class Leasing:
    provider: Provider | None = None  # leases the hosts; None: Spark grants executors, or nothing does
    asks: bool = False  # True if Spark is asked for executors
    kinds: Sequence[HostType] = ()  # host types to lease; the first stands for an executor that Spark grants
    existing: Callable[[int], HostType] = unpriced  # host type, with price, of the session's own executors, by slots
    log: LeaseLog | None = None  # log of the leases; its hosts that still exist are adopted
    alone: bool = False  # True if nobody else leases from the provider: its other hosts are released
    gives_back: float = 0.0  # seconds for closing to release hosts of a provider that ends soon
    # Receives hosts that closing does not release: nothing else can do their work
    staying: list[str] = field(default_factory=list)


def attach(  # noqa: C901, PLR0913
    spark: SparkSession,
    can: Capabilities,
    settings: AutopilotSettings,
    leasing: Leasing | None = None,
    *,
    client: AllocationClient | None = None,
    chosen: Callable[[], frozenset[str] | None] = lambda: None,
    own_targets: Mapping[str, float] = MappingProxyType({}),
    traffic: Traffic | None = None,
    stateless: bool = False,
) -> AttachedPlant:
    """Return a plant over queries of `spark` and its executors, which outlive it.

    Args:
        own_targets: Target latencies by id of queries (seconds); may grow.
        stateless: True to place tasks without state, too.
    """
    assert can.driver is not None, "nothing can be attached to a session without a driver"
    leasing = leasing or Leasing()
    driver, provider, kinds, leases = can.driver, leasing.provider, leasing.kinds, leasing.log
    observe_only, max_hosts = settings.observe_only, settings.max_hosts
    if max_hosts is None:
        max_hosts = 0 if provider is None else provider.terms.max_hosts
    # A request beyond the session's limit would stay pending for ever.
    limit = can.limit.name if can.limit.executors < max_hosts else "max_hosts"
    max_hosts = min(max_hosts, can.limit.executors)
    clock = RunClock()
    alarms = Alarms(clock.now)
    client = client or AllocationClient(spark, executors_of(can, chosen), pending_reason(spark), cluster_watch(spark))
    offer = ProviderOffer(tuple(kinds), max_hosts, patience=EXECUTOR_START_TIMEOUT_S)
    session = provider if isinstance(provider, ExecutorProvider) else ExecutorProvider(offer, client, allowed=can.allowed)

    placing = Placing({}, clock.now, InMemoryPlan(), limits=MIGRATIONS, alarms=alarms)
    registry = standby_registry(spark) if settings.replicas else None
    if can.memory is not None:
        can.memory.start()
    instruments = QueryAccess(
        spark,
        driver,
        placing,
        can.task_loads,
        traffic,
        recovery=can.recovery,
        memory=can.memory,
        copies=registry,
        least_interval=can.least_interval,
        stateless=stateless,
    )
    queries = SessionQueries(
        instruments,
        chosen,
        settings.latency,
        stays=settings.until == "session",
        own_targets=own_targets,
        task_seconds=client.executors.task_seconds,
    )

    def warm(executor: Executor) -> None:
        checkpoints = (query.status.checkpoint for query in queries.live)
        warm_up(spark, driver, executor, next(filter(None, checkpoints), None))

    log_of_leases = None if provider is None or observe_only or leases is None else leases.counted_from(clock.epoch)
    hosts = Hosts(
        client.executors,
        provider or session,
        clock.now,
        fence=client.fence,
        # Present executors are warm. A cold new one would delay the very batches that need it.
        warm=None if observe_only else warm,
        session=session,
        existing=leasing.existing,
        log=log_of_leases,
        alone=leasing.alone,
        alarms=alarms,
        drain_timeout=float(settings.drain_timeout),
    )
    if can.use is not None:
        can.use.start()
    if log_of_leases is not None and provider is not None:
        hosts.take_over(take_over(log_of_leases, provider, last_seen=0.0))
    hosts.look()
    original = sum(lease.state in ACTIVE_STATES for lease in hosts.active.values())
    leasable = tuple(kinds) if leasing.asks or provider is not None else ()
    terms = ProviderOffer(leasable, max_hosts, min(settings.min_hosts, can.limit.executors))
    limits = PlantLimits(terms, settings.latency, observe_only, LOOK_SHARE_CORES, settings.replicas, limit)

    def leave(plant: AttachedPlant) -> None:
        restored, running = False, bool(plant.queries.live) and not session_stopped(spark)
        try:
            used = not session_stopped(spark) and any(map(hosts.others, hosts.leased))
            if leasing.gives_back and (running or used):
                leasing.staying.extend(_give_back(plant, leasing.gives_back))
            elif settings.restore == "original" and not observe_only and running:
                _restore(plant, original, RESTORE_TIMEOUT_S)
                restored = True
        except Exception:
            if not session_stopped(spark):
                log.warning("hosts were not given back", exc_info=True)
        plant.stop_acting()
        if can.use is not None and not session_stopped(spark):
            can.use.close()
        if not session_stopped(spark) and not restored:
            session.close()  # else Spark would request more executors than there were
        hosts.close(ended=False)

    return SparkPlant(instruments, queries, hosts, limits, clock, alarms, end=leave)


def executors_of(can: Capabilities, chosen: Callable[[], frozenset[str] | None]) -> Executors:
    """Return the reader of executors, which tells work of the `chosen` queries (ids, None for all) from that of others."""
    assert can.driver is not None

    def watches(query: str) -> bool:
        watched = chosen()
        return bool(query) if watched is None else query in watched

    return Executors(can.driver, can.use, watches)


def _restore(plant: AttachedPlant, original: int, seconds: float) -> None:
    until, hosts = time.monotonic() + seconds, plant.hosts
    observation = plant.observe()
    active = [host for host, lease in observation.leases.items() if lease.state in ACTIVE_STATES]
    surplus = [host for host in reversed(active) if host in hosts.leased][: max(0, len(active) - original)]
    for host in list(surplus):
        if others := hosts.others(host):
            log.warning("%s stays: others have %s there", hosts.describe(host), others)
            surplus.remove(host)
    waiting = {host for host in surplus if plant.apply(ReleaseHost(host)).succeeded}
    kinds = tuple(observation.context.host_types.values())
    for number in range(max(0, original - len(active)) if kinds else 0):
        plant.apply(LeaseHost(observation.host_name(number), kinds[0].name, kinds[0].region))
    while waiting & set(hosts.leased) and time.monotonic() < until and not session_stopped(plant.spark):
        plant.observe()
        time.sleep(LEAVE_POLL_S)


def _give_back(plant: AttachedPlant, seconds: float) -> Sequence[str]:
    """Release dispensable hosts, and wait until they are gone; return those that stay."""
    until, hosts = time.monotonic() + seconds, plant.hosts
    refused = {host for host in hosts.leased if not plant.apply(ReleaseHost(host)).succeeded}
    while set(hosts.leased) - refused and time.monotonic() < until and not session_stopped(plant.spark):
        plant.observe()
        time.sleep(LEAVE_POLL_S)
    return sorted(refused | {host for host in hosts.leased if hosts.others(host)})
