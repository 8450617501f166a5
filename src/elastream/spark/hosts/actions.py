"""Handlers of the actions on hosts. Each is idempotent; a refusal gives its reason in a sentence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elastream.core.action import (
    Action,
    ActionTable,
    CancelDrain,
    DrainHost,
    LeaseHost,
    Outcome,
    ReleaseHost,
    RenewHost,
    Status,
)
from elastream.core.hosts import ACTIVE, HostState, HostType
from elastream.core.wording import counted
from elastream.spark.hosts.hosts import Hosts

# The region of an action whose policy leaves it to the host type.
ANY_REGION = "local"


@dataclass(frozen=True, slots=True)
class HostActions:
    """Actions on `hosts`. `empty` plans moves of a host's tasks to the others."""

    hosts: Hosts
    types: Mapping[str, HostType]
    limit: int
    empty: Callable[[str], object]

    def handle(self, table: ActionTable) -> None:
        table.on(LeaseHost, self.lease)
        table.on(RenewHost, self.renew)
        table.on(DrainHost, self.drain)
        table.on(CancelDrain, self.cancel_drain)
        table.on(ReleaseHost, self.release)

    def lease(self, action: LeaseHost) -> Outcome:
        host, lease = action.host, self.hosts.leases.get(action.host)
        if lease is not None and lease.active:
            return Outcome(action, Status.DONE)
        if lease is not None:
            return Outcome(action, Status.REFUSED, f"host {host!r} was leased before and is {lease.state}; take a new name")
        if not host:
            return Outcome(action, Status.REFUSED, "a host needs a name")
        if action.type not in self.types:
            return Outcome(action, Status.REFUSED, f"there is no host type {action.type!r}")
        kind = self.types[action.type]
        if action.region not in (kind.region, ANY_REGION):
            why = f"hosts of type {kind.name!r} are in {kind.region!r}, not in {action.region!r}"
            return Outcome(action, Status.REFUSED, why)
        if len(self.hosts.active) >= self.limit:
            return Outcome(action, Status.REFUSED, f"at most {counted(self.limit, 'host')} may be leased")
        self.hosts.lease(host, kind)
        return Outcome(action, Status.ACCEPTED)

    def renew(self, action: RenewHost) -> Outcome:
        """Check that the host is leased: leases continue by themselves."""
        return self.hosts.expect(action, action.host, *ACTIVE) or Outcome(action, Status.DONE)

    def drain(self, action: DrainHost) -> Outcome:
        host = action.host
        if self.hosts.state(host) is HostState.DRAINING:
            return Outcome(action, Status.DONE)
        refusal = self.hosts.expect(action, host, HostState.RUNNING) or self._must_stay(action, host)
        if refusal is not None:
            return refusal
        self.hosts.drain(host)
        self.empty(host)
        return Outcome(action, Status.ACCEPTED)

    def cancel_drain(self, action: CancelDrain) -> Outcome:
        host = action.host
        if self.hosts.leaving(host):
            return Outcome(action, Status.REFUSED, f"Spark gives host {host!r} nothing more")
        if self.hosts.state(host) is HostState.RUNNING:
            return Outcome(action, Status.DONE)
        if refusal := self.hosts.expect(action, host, HostState.DRAINING):
            return refusal
        self.hosts.cancel_drain(host)
        return Outcome(action, Status.DONE)

    def release(self, action: ReleaseHost) -> Outcome:
        """End the lease once the host's tasks are elsewhere."""
        host, state = action.host, self.hosts.state(action.host)
        if state in (HostState.RELEASING, HostState.RELEASED):
            return Outcome(action, Status.DONE if state is HostState.RELEASED else Status.ACCEPTED)
        if state is HostState.REQUESTED:
            self.hosts.release(host)
            return Outcome(action, Status.DONE)
        refusal = self.hosts.expect(action, host, HostState.STARTING, HostState.RUNNING, HostState.DRAINING)
        if refusal := refusal or self._must_stay(action, host):
            return refusal
        self.hosts.release(host)
        self.empty(host)
        return Outcome(action, Status.ACCEPTED)

    def _must_stay(self, action: Action, host: str) -> Outcome | None:
        if not any(name != host for name in self.hosts.usable):
            return Outcome(action, Status.REFUSED, f"{host!r} is the only host that takes tasks")
        if endless := self.hosts.endless(host):
            return Outcome(action, Status.REFUSED, f"it must stay: {endless}")
        return None
