"""The life of leased hosts on the Spark plant, from lease to release, as one thread steps it forward.

What moves a host along (states and edges are `elastream.model.cloud.TRANSITIONS`):

    REQUESTED -> STARTING   the provider had room and has spawned it
    REQUESTED -> LOST       the provider refused
    REQUESTED -> RELEASED   asked to before the provider had room; or given up, as there was none for ROOM_LIMIT
    STARTING  -> RUNNING    its executor registered and is warm
    STARTING  -> LOST       it died, or did not come up within START_LIMIT
    RUNNING   -> DRAINING   asked to: its state partitions are moved to other hosts
    DRAINING  -> RUNNING    asked to after all
    STARTING, RUNNING, DRAINING -> RELEASING   asked to: its state partitions are moved to other hosts
    RELEASING -> RELEASED   it held no state partition and was fenced, so that it gets no further task; then GRACE_BATCHES
                            ended, so that nothing it wrote is still needed; the provider then ended it

A releasing host whose batches do not end is not waited for: after GRACE_LIMIT it is fenced whatever it holds, and after as
long again ended; where no batch is under way, after IDLE_LIMIT. The batch after loads what it held elsewhere.

    any other -> LOST       it is gone without being asked

A host is quick to start because its quota is lifted until it has worked off SETTLING_BATCHES, and slow to be trusted
because a cold executor would make a batch slow.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elastream.clouds.provider import Provider
from elastream.model.cloud import HostState, HostType, Lease
from elastream.spark.hosts.lease_book import LeaseBook
from elastream.spark.hosts.warmup import warm_up
from elastream.spark.jvm.executors import Executor, Executors

__all__ = ["Hosts", "fence"]

START_LIMIT = 90.0
"""Seconds a host may take to register an executor before it is given up as lost; a cold laptop needs about 15."""
ROOM_LIMIT = 30.0
"""Seconds for which nothing started although a host was asked for, after which that is given up while others do the work: a
policy that waits for a host which cannot come would neither ask anew nor let another go."""
SETTLING_BATCHES = 3
"""Batches after which a host that takes tasks is held to its quota: in its first ones it still compiles what it runs."""
GRACE_BATCHES = 2
"""Batches that must end between a host's last task and its end: the one under way, and one that surely began after."""
GRACE_LIMIT = 20.0
"""Seconds that a releasing host waits for batches to end: one may be far longer than usual, or its query be at fault."""
IDLE_LIMIT = 3.0
"""The same where no batch is under way."""


@dataclass
class _Seen:
    """What the steward remembers of one host beside its lease."""

    warming: str | None = None
    warm: set[str] = field(default_factory=set)
    confined_after: int | None = None
    fenced: str | None = None
    waiting_since: float = 0.0
    fenced_batch: int = 0
    milestones: dict[str, float] = field(default_factory=dict)


class Hosts(LeaseBook):
    """All hosts of a run. `step` moves every host one step along; every other method is cheap and thread-safe."""

    def __init__(
        self, spark: SparkSession, provider: Provider, clock: Callable[[], float], scratch: Path, *, warm: bool = True
    ) -> None:
        super().__init__(clock)
        self._spark = spark
        self._scratch = scratch
        self._provider = provider
        self._warm = warm
        self._executors = Executors(spark)
        self._seen: dict[str, _Seen] = {}
        self._by_address: dict[str, Executor] = {}
        self._last_start = 0.0

    @property
    def settled(self) -> bool:
        """Whether no host is on its way in or out."""
        resting = (HostState.RUNNING, HostState.RELEASED, HostState.LOST)
        return all(lease.state in resting for lease in self.leases.values())

    def milestones(self, host: str) -> Mapping[str, float]:
        """When (seconds of the run) it was leased, spawned, its executor registered and warm, as far as it came."""
        return dict(self._seen[host].milestones)

    def address(self, host: str) -> str:
        """Address of a host."""
        return self._provider.address(host)

    def executor(self, host: str) -> Executor | None:
        """The registered executor of a host."""
        lease = self.leases.get(host)
        if lease is None or not lease.there:
            return None  # the provider does not know it yet: it has no address
        return self._by_address.get(self._provider.address(host))

    def lease(self, host: str, type: HostType) -> None:
        """Lease a host; the provider is asked for it as soon as it has room. It starts unconfined."""
        with self._lock:
            self._seen[host] = _Seen(milestones={"lease": self._clock()})
            self._leases[host] = Lease(host, type, self._clock())
            if (refused := self._spawn_where_there_is_room().get(host)) is not None:
                raise refused

    def adopt(self, host: str, type: HostType, since: float, *, spawned: bool) -> None:
        """Take over a host that was asked for at `since`, before there was a session, and may have been spawned then."""
        with self._lock:
            self._seen[host] = _Seen(milestones={"lease": since})
            self._leases[host] = Lease(host, type, since)
            if spawned:
                self._seen[host].milestones["spawned"] = since
                self._to(host, HostState.STARTING)

    def release(self, host: str) -> None:
        """To RELEASING: it is ended as soon as nothing depends on it any more; at once where it was never spawned."""
        with self._lock:
            waiting = self._leases[host].state is HostState.REQUESTED
            self._to(host, HostState.RELEASED if waiting else HostState.RELEASING)
            self._seen[host].waiting_since = self._clock()

    def step(self, *, batch: int, idle: bool, holds: Callable[[str], bool]) -> None:
        """Move every host along. batch: the newest committed one; idle: none is under way; holds: whether one has state."""
        self._by_address = dict(self._executors.by_address())
        self._spawn_where_there_is_room()
        for name, lease in self.leases.items():
            if not lease.active:
                continue
            if lease.state is HostState.REQUESTED:
                if self.usable and self._clock() - max(lease.since, self._last_start) > ROOM_LIMIT:
                    self._to(name, HostState.RELEASED)
            elif lease.state is HostState.RELEASING:
                self._step_releasing(name, batch, idle, holds)
            elif lease.state is HostState.STARTING:
                self._last_start = self._clock()
                self._step_starting(name, lease, batch)
            elif not self._provider.alive(name):
                self._lose(name)
            else:
                self._confine(name, lease, batch)

    def close(self) -> None:
        """Every host that is still leased is released now."""
        self._end_all()

    def _spawn_where_there_is_room(self) -> Mapping[str, Exception | None]:
        with self._lock:
            asked = self._ask_for_hosts(self._provider)
            for name in (name for name, refused in asked.items() if refused is None):
                self._seen[name].milestones["spawned"] = self._clock()
            return asked

    def _confine(self, name: str, lease: Lease, batch: int) -> None:
        seen = self._seen[name]
        if seen.confined_after is not None and batch > seen.confined_after:
            self._provider.confine(name, lease.type.cores)
            seen.confined_after = None

    def _step_starting(self, name: str, lease: Lease, batch: int) -> None:
        seen, executor = self._seen[name], self.executor(name)
        if not self._provider.alive(name) or self._clock() - lease.history[-1][0] > START_LIMIT:
            self._lose(name)
            return
        if executor is None:
            return
        seen.milestones.setdefault("registered", self._clock())
        if self._warm and executor.id not in seen.warm:
            if seen.warming != executor.id:
                seen.warming = executor.id
                threading.Thread(target=self._warm_up, args=(seen, executor), daemon=True).start()
            return
        seen.milestones["warm"] = self._clock()
        seen.confined_after = batch + SETTLING_BATCHES
        self._to(name, HostState.RUNNING)

    def _warm_up(self, seen: _Seen, executor: Executor) -> None:
        # A cold executor is slow, not wrong; a dead one shows in the next step.
        try:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                warm_up(self._spark, executor, self._scratch)
        finally:
            seen.warm.add(executor.id)

    def _step_releasing(self, name: str, batch: int, idle: bool, holds: Callable[[str], bool]) -> None:
        seen, executor = self._seen[name], self.executor(name)
        waited = self._clock() - seen.waiting_since
        tired = waited > (IDLE_LIMIT if idle else GRACE_LIMIT)
        if executor is not None and seen.fenced != executor.id:
            if tired or not holds(name):
                fence(self._spark, executor.id)
                seen.fenced, seen.fenced_batch, seen.waiting_since = executor.id, batch, self._clock()
        elif executor is None or tired or batch - seen.fenced_batch >= GRACE_BATCHES or not self._provider.alive(name):
            self._provider.terminate(name)
            self._to(name, HostState.RELEASED)

    def _lose(self, name: str) -> None:
        self._to(name, HostState.LOST)
        self._provider.terminate(name)


def fence(spark: SparkSession, executor: str) -> None:
    """Let the scheduler offer no further task to `executor`, which itself goes on serving what it wrote.

    Spark marks it as being decommissioned; with `triggeredByExecutor` the executor is not told, so that it does not
    leave by itself while a batch still fetches from it.
    """
    gateway: Any = spark.sparkContext._gateway
    jvm = gateway.jvm
    no_host = jvm.scala.Option.empty()
    info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released", no_host)
    pairs = gateway.new_array(jvm.scala.Tuple2, 1)
    pairs[0] = jvm.scala.Tuple2(executor, info)
    spark.sparkContext._jsc.sc().schedulerBackend().decommissionExecutors(pairs, False, True)
