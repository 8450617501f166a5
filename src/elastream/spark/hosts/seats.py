"""The executors of a session that someone else opened, as hosts: who they are, how busy, how more come and how they go.

A host is an executor here, because it is executors that state partitions lie on and that Spark gives and takes; with a
provider it is a machine of the provider's with the one executor that Spark starts there. States and edges are those of
`elastream.model.cloud.TRANSITIONS`:

    REQUESTED -> STARTING -> RUNNING   an executor registered, that nobody had asked for or that the oldest request is for
    REQUESTED -> LOST                  none did within START_LIMIT: the cluster has no room
    RUNNING   -> DRAINING              asked to, or Spark gives it nothing new: it is being decommissioned or is excluded
    DRAINING  -> RUNNING               asked to after all, or Spark has changed its mind
    any       -> RELEASING             asked to; fenced once it holds nothing, ended GRACE_BATCHES later
    RELEASING -> RELEASED              it is gone
    any other -> LOST                  it is gone without being asked
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from elastream.clouds.provider import Provider
from elastream.model.cloud import Billing, HostState, HostType, Lease
from elastream.spark.hosts.lease_book import LeaseBook
from elastream.spark.hosts.leased import GRACE_BATCHES, GRACE_LIMIT, SETTLING_BATCHES, START_LIMIT, fence
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.state_partitions import Location

__all__ = ["UNLIMITED", "Seats"]

BUSY_WINDOW = 15.0
"""Seconds that an executor's use is averaged over: tasks tell what they took when they end."""
UNLIMITED = 2**31 - 1
"""What Spark takes for "as many executors as the cluster has room for"."""
NAN = float("nan")


@dataclass
class _Seat:
    """What is remembered of a host beside its lease."""

    executor: str | None = None
    address: str = ""
    provided: bool = False
    confined_after: Mapping[str, int] | None = None
    confined: bool = False
    leaving: bool = False
    busy: deque[tuple[float, float]] = field(default_factory=deque)
    waiting_since: float = 0.0
    fenced_at: Mapping[str, int] | None = None


class Seats(LeaseBook):
    """All hosts seen so far. `look` sees what has changed; everything else is cheap. Thread-safe.

    provider: where hosts are leased; without one, executors are asked of Spark. allowed: how many it may have before anyone
    asks.
    """

    def __init__(
        self,
        spark: SparkSession,
        driver: DriverSide,
        clock: Callable[[], float],
        *,
        provider: Provider | None = None,
        allowed: int = UNLIMITED,
    ) -> None:
        super().__init__(clock)
        self._spark, self._driver = spark, driver
        self._provider = provider
        self._seats: dict[str, _Seat] = {}
        self._allowed = self._total = allowed
        self._given_back = False

    @property
    def next_number(self) -> int:
        """A number such that no host is called `h` and that, or more."""
        return 1 + max((int(name[1:]) for name in self._leases if re.fullmatch(r"h\d+", name)), default=0)

    @property
    def provided(self) -> tuple[str, ...]:
        """Hosts of the provider that are still leased."""
        return tuple(name for name, lease in self.leases.items() if lease.active and self._seats[name].provided)

    def host_of(self) -> Mapping[str, str]:
        """Host by executor, of those that are there."""
        with self._lock:
            return {
                seat.executor: name
                for name, seat in self._seats.items()
                if seat.executor is not None and self._leases[name].active
            }

    def describe(self, host: str) -> str:
        """A host as people know it."""
        seat = self._seats.get(host)
        return host if seat is None or seat.executor is None else f"executor {seat.executor} ({seat.address})"

    def target(self, host: str) -> Location | None:
        """The executor of a host that takes tasks."""
        with self._lock:
            seat, lease = self._seats.get(host), self._leases.get(host)
            if seat is None or lease is None or lease.state is not HostState.RUNNING or seat.executor is None:
                return None
            return Location(seat.address, seat.executor)

    def use(self, host: str) -> float:
        """Fraction of a host's slots that its tasks took, mean over BUSY_WINDOW; unknown until it was looked at twice."""
        busy = self._seats[host].busy
        if len(busy) < 2:
            return NAN
        (since, before), (now, after) = busy[0], busy[-1]
        return min(1.0, (after - before) / (now - since) / self._leases[host].type.slots) if now > since else NAN

    def look(self) -> None:
        """See which executors there are."""
        rows = self._driver.ask("executors", self._driver.context)
        with self._lock:
            known = {seat.executor: name for name, seat in self._seats.items() if self._leases[name].active}
            there = set()
            for executor, host_port, slots, busy, leaving in rows:
                if int(slots) == 0:
                    continue  # the driver of a session that has executors
                there.add(executor)
                address = host_port.rsplit(":", 1)[0]
                name = known.get(executor) or self._seat(executor, address, int(slots))
                self._follow(name, int(busy) / 1e3, leaving == "1")
            self._end_missing(there)

    def lease(self, host: str, type: HostType) -> None:
        """Ask for a host under the name `host`, as an executor of Spark's or as a host of the provider's of `type`."""
        with self._lock:
            self._leases[host] = Lease(host, type, self._clock())
            self._seats[host] = _Seat(provided=self._provider is not None, waiting_since=self._clock())
            if self._provider is None:
                self._request()
            elif (refused := self._ask_for_hosts(self._provider).get(host)) is not None:
                raise refused

    def release(self, host: str) -> None:
        """To RELEASING, or to RELEASED where nothing of it has been seen."""
        with self._lock:
            waiting = self._leases[host].state is HostState.REQUESTED
            self._to(host, HostState.RELEASED if waiting else HostState.RELEASING)
            self._seats[host].waiting_since = self._clock()
            if waiting and self._provider is None:
                self._request()

    def leaving(self, host: str) -> bool:
        """Whether Spark gives `host` nothing new, so that no wish of ours brings it back."""
        return host in self._seats and self._seats[host].leaving

    def step(self, batches: Mapping[str, int], holds: Callable[[str], bool]) -> None:
        """Take hosts that come and go along. batches: the newest that each query ended; holds: whether one has state."""
        if self._provider is not None:
            self._ask_for_hosts(self._provider)
        for name, lease in self.leases.items():
            seat = self._seats[name]
            if lease.state in (HostState.REQUESTED, HostState.STARTING):
                if self._clock() - lease.since > max(START_LIMIT, 3 * lease.type.start):
                    self._lose(name)
            elif lease.state is HostState.RELEASING:
                self._step_releasing(name, seat, batches, holds)
            elif seat.provided and lease.state is HostState.RUNNING:
                self._confine(name, seat, batches)

    def close(self) -> None:
        """Let go of every host: it stays where it is, with whoever owns the session or the provider."""
        self._end_all()

    def unbind(self) -> None:
        """Let Spark have as many executors as before, where that was changed."""
        with self._lock:
            if self._total != self._allowed:
                self._set_total(self._allowed)

    # -- steps, under the lock -----------------------------------------------------------------------------------------

    def _seat(self, executor: str, address: str, slots: int) -> str:
        """The host that a new executor is."""
        waiting = [n for n, lease in self._leases.items() if lease.state in (HostState.REQUESTED, HostState.STARTING)]
        provided = [n for n in waiting if self._seats[n].provided and self._address(n) == address]
        asked = [n for n in waiting if not self._seats[n].provided]
        name = next(iter([*provided, *asked]), None)
        if name is None:
            name = f"h{self.next_number}"
            kind = HostType(f"executor-{slots}", cores=slots, slots=slots, price=0.0, billing=Billing(1.0))
            self._leases[name] = Lease(name, kind, self._clock())
            self._seats[name] = _Seat()
        self._seats[name].executor, self._seats[name].address = executor, address
        for state in (HostState.STARTING, HostState.RUNNING):
            self._to(name, state)
        return name

    def _follow(self, name: str, busy: float, leaving: bool) -> None:
        seat, now = self._seats[name], self._clock()
        seat.busy.append((now, busy))
        while len(seat.busy) > 2 and seat.busy[1][0] <= now - BUSY_WINDOW:
            seat.busy.popleft()
        if leaving != seat.leaving and self._leases[name].state is not HostState.RELEASING:
            seat.leaving = leaving
            self._to(name, HostState.DRAINING if leaving else HostState.RUNNING)

    def _end_missing(self, there: set[str]) -> None:
        for name, lease in list(self._leases.items()):
            executor = self._seats[name].executor
            if lease.active and executor is not None and executor not in there:
                if lease.state is HostState.RELEASING:
                    self._to(name, HostState.RELEASED)
                else:
                    self._lose(name)

    def _step_releasing(self, name: str, seat: _Seat, batches: Mapping[str, int], holds: Callable[[str], bool]) -> None:
        tired = self._clock() - seat.waiting_since > GRACE_LIMIT
        if seat.fenced_at is None:
            if seat.executor is not None and (tired or not holds(name)):
                fence(self._spark, seat.executor)
                seat.fenced_at, seat.waiting_since = dict(batches), self._clock()
        elif tired or all(batches[each] - seat.fenced_at.get(each, -1) >= GRACE_BATCHES for each in batches):
            self._end(name, seat)

    def _confine(self, name: str, seat: _Seat, batches: Mapping[str, int]) -> None:
        """Hold a host of the provider to its type, as `Hosts` does: once it has worked off its first batches."""
        if seat.confined_after is None:
            seat.confined_after = {query: batch + SETTLING_BATCHES for query, batch in batches.items()}
        elif not seat.confined and any(batches.get(query, -1) > last for query, last in seat.confined_after.items()):
            seat.confined = True
            if self._provider is not None:
                self._provider.confine(name, self._leases[name].type.cores)

    def _end(self, name: str, seat: _Seat) -> None:
        if seat.provided and self._provider is not None:
            self._provider.terminate(name)
            self._to(name, HostState.RELEASED)
        elif seat.executor is not None:
            self._given_back = True
            self._request()
            jvm: Any = self._spark._jvm
            # The total is set already, a failure is not meant, and what still runs there has had its time.
            self._backend().killExecutors(jvm.PythonUtils.toSeq([seat.executor]), False, False, True)

    def _lose(self, name: str) -> None:
        waiting = self._leases[name].state is HostState.REQUESTED
        self._to(name, HostState.LOST)
        seat = self._seats[name]
        if seat.provided and self._provider is not None:
            if not waiting:
                self._provider.terminate(name)
        elif self._total != self._allowed:
            self._request()

    def _address(self, name: str) -> str:
        if self._provider is None or self._leases[name].state is HostState.REQUESTED:
            return ""
        return self._provider.address(name)

    def _request(self) -> None:
        """Let Spark have as many executors as there are and are asked for, less those that go.

        Where it may have all that the cluster has room for, and none was given back, asking for more changes nothing.
        """
        if self._allowed < UNLIMITED or self._given_back:
            kept = (HostState.REQUESTED, HostState.STARTING, HostState.RUNNING, HostState.DRAINING)
            self._set_total(sum(lease.state in kept for lease in self._leases.values()))

    def _set_total(self, total: int) -> None:
        self._total = total
        jvm: Any = self._spark._jvm
        context: Any = self._spark.sparkContext._jsc
        context.sc().requestTotalExecutors(total, 0, jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap()))

    def _backend(self) -> Any:
        context: Any = self._spark.sparkContext._jsc
        return context.sc().schedulerBackend()
