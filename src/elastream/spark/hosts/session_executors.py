"""The provider whose hosts are executors that Spark requests from the cluster manager of its session.

Spark takes a number, not names: how many executors it may have in all. The next one to register belongs to the oldest
request. Executors that were there before can be adopted under a name, and given back as well.
"""

import threading
from collections.abc import Collection, Mapping

from elastream.clouds.provider import HostStatus, Measured, Phase, RunState, Terms
from elastream.model.cloud import HostType
from elastream.spark.jvm.executors import UNLIMITED, AllocationClient, Executors

__all__ = ["SessionExecutors"]


class SessionExecutors:
    """The executors of a session, as hosts.

    executors: whose last look is taken for what is there. terms: what one is taken for, and how many there may be. allowed:
    how many Spark may have before anyone asks; it has that many again after `close`.
    """

    def __init__(self, client: AllocationClient, executors: Executors, terms: Terms, allowed: int = UNLIMITED) -> None:
        self._client, self._executors, self.terms = client, executors, terms
        self._allowed = self._total = allowed
        self._limited = allowed < UNLIMITED
        self._lock = threading.RLock()
        self._types: dict[str, str] = {}
        self._executor: dict[str, str] = {}  # by host; a host without one is requested
        self._gone: set[str] = set()
        self._released: set[str] = set()
        self._beside = 0

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        """Let Spark have an executor more for each of `hosts`."""
        with self._lock:
            new = {name: kind.name for name, kind in hosts.items() if name not in self._types}
            self._types |= new
            if new:
                self._request()

    def adopt(self, host: str, executor: str, kind: HostType) -> None:
        """Take in an executor that was not requested here, as `host`."""
        with self._lock:
            self._types[host], self._executor[host] = kind.name, executor

    def beside(self, others: int) -> None:
        """Note how many executors come up or run on hosts that were leased elsewhere: they count in Spark's total too."""
        with self._lock:
            changed, self._beside = others != self._beside, others
            if changed and self._total != self._allowed:
                self._request()

    def release(self, hosts: Collection[str]) -> None:
        """Withdraw requests; give executors back, whatever still runs there."""
        with self._lock:
            for name in hosts:
                if name not in self._types or name in self._released:
                    continue
                self._released.add(name)
                executor = self._executor.get(name)
                if executor is not None and name not in self._gone:
                    self._limited = True
                    self._request()
                    self._client.kill(executor)
            self._forget()
            if self._total != self._allowed:
                self._request()

    def hosts(self) -> Mapping[str, HostStatus]:
        """Every host, by the last look at the session's executors."""
        with self._lock:
            seen = self._executors.seen
            bound = set(self._executor.values())
            fresh = [executor for executor in seen if executor not in bound]
            for name in self._types:
                if name not in self._executor and name not in self._released and fresh:
                    self._executor[name] = fresh.pop(0)
            lost = {name for name, executor in self._executor.items() if executor not in seen} - self._gone
            self._gone |= lost
            self._forget()
            if lost and self._total != self._allowed:
                self._request()  # or Spark would start others in their place
            return {name: self._status(name) for name in self._types}

    def measure(self) -> Mapping[str, Measured]:
        """Nothing: how busy its tasks keep an executor is the session's to tell."""
        return {}

    def report(self, state: RunState) -> None:
        """Nothing: a cluster manager has no use for it."""

    def owed(self) -> float | None:
        """None: the leases' own cost."""
        return None

    def close(self) -> None:
        """Let Spark have as many executors as before. Those that are there stay: they live by the session."""
        with self._lock:
            if self._total != self._allowed:
                self._set_total(self._allowed)

    # -- under the lock ------------------------------------------------------------------------------------------------

    def _status(self, name: str) -> HostStatus:
        executor, kind = self._executor.get(name), self._types[name]
        if executor is None:
            return HostStatus(kind, Phase.REQUESTED, "no executor has registered for it yet")
        if name in self._gone:
            return HostStatus(kind, Phase.GONE, f"executor {executor} is gone", executor=executor)
        phase = Phase.ENDING if name in self._released else Phase.UP
        return HostStatus(kind, phase, address=self._executors.seen[executor].host, executor=executor)

    def _forget(self) -> None:
        """Drop hosts that were released and are gone, or never had an executor."""
        for name in [name for name in self._released if name in self._gone or name not in self._executor]:
            self._released.discard(name)
            self._gone.discard(name)
            self._executor.pop(name, None)
            del self._types[name]

    def _request(self) -> None:
        """Let Spark have as many executors as there are and are requested, less those that go.

        Where it may have all that the cluster has room for, and none was given back, asking for more changes nothing.
        """
        if self._limited:
            self._set_total(len(set(self._types) - self._gone - self._released) + self._beside)

    def _set_total(self, total: int) -> None:
        if total != self._total:
            self._total = total
            self._client.request(total)
