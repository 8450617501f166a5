"""Starts a plant over an existing session and its queries; no query and no setting is changed.

It uses the terms of the other plants. A query is a source, its stages with state, and a sink; a state partition is a task;
an executor is a host. What a foreign query does not report stays unknown; a policy that needs it does nothing.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pyspark.sql import SparkSession

from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.provider import UNLIMITED, Cloud, ExistingSession, Provider, ProviderOffer
from elastream.core.action import LeaseHost, ReleaseHost
from elastream.core.alarm import Alarms
from elastream.core.hosts import HostState, HostType
from elastream.recording.lease_log import LeaseLog
from elastream.settings import AutopilotSettings
from elastream.spark.hosts.hosts import Hosts, unpriced
from elastream.spark.hosts.taking_over import take_over
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.capabilities import Capabilities
from elastream.spark.jvm.cluster_word import word_of
from elastream.spark.jvm.copies import desk_of
from elastream.spark.jvm.executors import AllocationClient, Executors
from elastream.spark.jvm.gateway import java_context
from elastream.spark.jvm.session import secret_of, session_stopped
from elastream.spark.placement.allocation import VolatilePlan
from elastream.spark.placement.placing import Limits, Placing
from elastream.spark.plant import RunClock, Scope, SparkPlant
from elastream.spark.queries.query import Instruments
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.telemetry.traffic import Traffic

AttachedPlant: TypeAlias = SparkPlant[SessionQueries]

FEW = Limits(per_host=4, lazy=True)
"""Partitions that one batch may load on one executor, where no time is left to load them ahead. Lazy as in a run of a
dataflow: `experiment nstorm` found no way that costs less at full load, and a query that waits for its next batch finds
what was loaded ahead within milliseconds."""
LOOK_SHARE = 0.05
"""Cores that observing may use on average: the bar promised to users of Autopilot."""
PATIENCE = 90.0
"""Seconds to wait for a requested executor; a cold one takes about 15."""
RESTORING = 20.0
"""Seconds that closing takes at most to bring back the original number of executors."""
UP = frozenset({HostState.REQUESTED, HostState.STARTING, HostState.RUNNING})
LEAVING = 0.5
"""Seconds between two checks of hosts that are given back."""

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
    """The provider of `cloud`, whose hosts join the master of `spark`; it is the caller's to close.

    client: by which executors of `spark` are requested, None where that cannot be; `allowed`: how many it may have. Raises
    ElastreamError where they cannot: the session has another kind of master, or its executors do not fit the hosts.
    """
    slots = int(spark.sparkContext.getConf().get("spark.executor.cores") or 1)
    context = java_context(spark)
    secret = secret_of(spark)
    session = ExistingSession(
        str(spark.sparkContext.master), int(context.executorMemory()), slots, secret, allocator=client, allowed=allowed
    )
    return cloud.open(folder, session=session, alarms=alarms)


@dataclass(frozen=True, slots=True)
class Leasing:
    """How hosts of a session's queries are leased.

    Attributes:
        provider: What leases them; None: executors are requested of Spark, or nothing is.
        asks: Whether executors are requested of Spark.
        kinds: Types to lease; of executors requested of Spark, what one of them is taken for.
        existing: What an executor of so many slots is taken for that the session has anyway, with its price.
        log: Log of the leases. Hosts in it that the provider still lists are adopted.
        alone: Whether nobody else leases of the provider: other hosts that it lists are released.
        gives_back: Seconds that closing takes to release hosts of the provider, which ends soon.
        staying: Receives the hosts that closing does not release, because nothing else can do their work.
    """

    provider: Provider | None = None
    asks: bool = False
    kinds: Sequence[HostType] = ()
    existing: Callable[[int], HostType] = unpriced
    log: LeaseLog | None = None
    alone: bool = False
    gives_back: float = 0.0
    staying: list[str] = field(default_factory=list)


def attach(
    spark: SparkSession,
    can: Capabilities,
    settings: AutopilotSettings,
    leasing: Leasing | None = None,
    *,
    client: AllocationClient | None = None,
    chosen: Callable[[], frozenset[str] | None] = lambda: None,
    traffic: Traffic | None = None,
) -> AttachedPlant:
    """Return a plant over queries of `spark` and its executors; when it is closed, these go on.

    Args:
        can: Capabilities in the session. Without access to task loads nothing is moved; without recovery Spark acts on
            lost executors.
        leasing: How hosts are leased; by default none is.
        client: How executors are requested and seen; by default one of its own.
        chosen: Tells the ids of the queries to look after, None for every query that runs.
        traffic: Measures who sends whom how much, at a call more a look and query.
    """
    assert can.driver is not None, "nothing can be attached to a session without a driver"
    leasing = leasing or Leasing()
    driver, provider, kinds, leases = can.driver, leasing.provider, leasing.kinds, leasing.log
    observe_only, max_hosts = settings.observe_only, settings.max_hosts
    if max_hosts is None:
        max_hosts = 0 if provider is None else provider.terms.max_hosts
    clock = RunClock()
    alarms = Alarms(clock.now)
    client = client or AllocationClient(spark, Executors(driver), word_of(spark))
    if isinstance(provider, ExecutorProvider):
        session = provider
    else:
        session = ExecutorProvider(ProviderOffer(tuple(kinds), max_hosts, patience=PATIENCE), client, allowed=can.allowed)

    # Executors that Spark brings may run where nothing of ours is installed; those on leased hosts are made ready.
    warm = None if provider is None or observe_only else lambda executor: warm_up(spark, driver, executor, None)
    log_of_leases = None if provider is None or observe_only or leases is None else leases.counted_from(clock.epoch)
    hosts = Hosts(
        client.executors,
        provider or session,
        clock.now,
        fence=client.fence,
        warm=warm,
        session=session,
        found=leasing.existing,
        log=log_of_leases,
        alone=leasing.alone,
        alarms=alarms,
    )
    if log_of_leases is not None and provider is not None:
        hosts.take_over(take_over(log_of_leases, provider, seen=0.0))
    hosts.look()
    original = sum(lease.state in UP for lease in hosts.active.values())
    placing = Placing({}, clock.now, VolatilePlan(), limits=FEW, alarms=alarms)
    copies = desk_of(spark) if settings.replicas else None
    instruments = Instruments(spark, driver, placing, can.task_loads, traffic, recovery=can.recovery, copies=copies)
    leasable = tuple(kinds) if leasing.asks or provider is not None else ()
    terms = ProviderOffer(leasable, max_hosts, settings.min_hosts)
    scope = Scope(terms, settings.latency, observe_only, LOOK_SHARE, settings.replicas)

    def leave(plant: AttachedPlant) -> None:
        """Let go of everything. Queries, session and executors stay as they are, except hosts that are given back."""
        restored = False
        try:
            if leasing.gives_back and plant.queries.live and not session_stopped(spark):
                leasing.staying.extend(_give_back(plant, leasing.gives_back))
            elif settings.restore == "original" and not observe_only and plant.queries.live and not session_stopped(spark):
                _restore(plant, original, RESTORING)
                restored = True
        except Exception:
            if not session_stopped(spark):
                log.warning("hosts were not given back", exc_info=True)
        plant.stop_acting()
        if not session_stopped(spark) and not restored:
            session.close()  # else Spark would request as many as it may have, and not as many as there were
        hosts.close(ended=False)

    queries = SessionQueries(instruments, chosen, settings.latency)
    return SparkPlant(instruments, queries, hosts, scope, clock, alarms, end=leave)


def _restore(plant: AttachedPlant, original: int, seconds: float) -> None:
    """Bring back the `original` number of executors: release the newest that were requested, or request what is missing."""
    until, hosts = time.monotonic() + seconds, plant.hosts
    seen = plant.observe()
    there = [host for host, lease in seen.leases.items() if lease.state in UP]
    surplus = [host for host in reversed(there) if host in hosts.leased][: max(0, len(there) - original)]
    waiting = {host for host in surplus if plant.apply(ReleaseHost(host)).succeeded}
    kinds = tuple(seen.context.host_types.values())
    for number in range(max(0, original - len(there)) if kinds else 0):
        plant.apply(LeaseHost(seen.host_name(number), kinds[0].name, kinds[0].region))
    while waiting & set(hosts.leased) and time.monotonic() < until and not session_stopped(plant.spark):
        plant.observe()
        time.sleep(LEAVING)


def _give_back(plant: AttachedPlant, seconds: float) -> Sequence[str]:
    """Release the provider's hosts that others can do the work of, and wait until they are gone; those that stay."""
    until, hosts = time.monotonic() + seconds, plant.hosts
    refused = {host for host in hosts.leased if not plant.apply(ReleaseHost(host)).succeeded}
    while set(hosts.leased) - refused and time.monotonic() < until and not session_stopped(plant.spark):
        plant.observe()
        time.sleep(LEAVING)
    return sorted(refused)
