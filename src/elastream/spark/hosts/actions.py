"""Handlers of the actions on hosts. Each may be repeated and has its effect once; a refusal says why in a sentence.

How a host comes and goes is `Hosts`' affair; where its tasks go is the caller's.
"""

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

ANYWHERE = "local"
"""The region of an action whose policy leaves it to the host type."""


@dataclass(frozen=True, slots=True)
class HostActions:
    """Actions on `hosts`.

    types: what can be leased, by name. most: how many at a time. empty: plans moves of what a host holds to the others.
    """

    hosts: Hosts
    types: Mapping[str, HostType]
    most: int
    empty: Callable[[str], object]

    def handle(self, table: ActionTable) -> None:
        """Add the handlers to `table`."""
        table.on(LeaseHost, self.lease)
        table.on(RenewHost, self.renew)
        table.on(DrainHost, self.drain)
        table.on(CancelDrain, self.cancel_drain)
        table.on(ReleaseHost, self.release)

    def lease(self, action: LeaseHost) -> Outcome:
        """Request the host; raises what `Hosts` raises."""
        host, known = action.host, self.hosts.leases.get(action.host)
        if known is not None and known.active:
            return Outcome(action, Status.DONE)
        if known is not None:
            return Outcome(action, Status.REFUSED, f"host {host!r} was leased before and is {known.state}; take a new name")
        if not host:
            return Outcome(action, Status.REFUSED, "a host needs a name")
        if action.type not in self.types:
            return Outcome(action, Status.REFUSED, f"there is no host type {action.type!r}")
        kind = self.types[action.type]
        if action.region not in (kind.region, ANYWHERE):
            elsewhere = f"hosts of type {kind.name!r} are in {kind.region!r}, not in {action.region!r}"
            return Outcome(action, Status.REFUSED, elsewhere)
        if len(self.hosts.active) >= self.most:
            return Outcome(action, Status.REFUSED, f"at most {counted(self.most, 'host')} may be leased")
        self.hosts.lease(host, kind)
        return Outcome(action, Status.ACCEPTED)

    def renew(self, action: RenewHost) -> Outcome:
        """Check that the host is leased: leases continue by themselves."""
        return self.hosts.expect(action, action.host, *ACTIVE) or Outcome(action, Status.DONE)

    def drain(self, action: DrainHost) -> Outcome:
        """Move the host's tasks to the others."""
        host = action.host
        if self.hosts.state(host) is HostState.DRAINING:
            return Outcome(action, Status.DONE)
        refusal = self.hosts.expect(action, host, HostState.RUNNING) or self._alone(action, host)
        if refusal is not None:
            return refusal
        self.hosts.drain(host)
        self.empty(host)
        return Outcome(action, Status.ACCEPTED)

    def cancel_drain(self, action: CancelDrain) -> Outcome:
        """Return a draining host to service."""
        host = action.host
        if self.hosts.state(host) is HostState.RUNNING:
            return Outcome(action, Status.DONE)
        if refusal := self.hosts.expect(action, host, HostState.DRAINING):
            return refusal
        self.hosts.cancel_drain(host)
        return Outcome(action, Status.DONE)

    def release(self, action: ReleaseHost) -> Outcome:
        """End the lease once the host's tasks are elsewhere."""
        host = action.host
        state = self.hosts.state(host)
        if state in (HostState.RELEASING, HostState.RELEASED):
            return Outcome(action, Status.DONE if state is HostState.RELEASED else Status.ACCEPTED)
        if state is HostState.REQUESTED:
            self.hosts.release(host)
            return Outcome(action, Status.DONE)
        refusal = self.hosts.expect(action, host, HostState.STARTING, HostState.RUNNING, HostState.DRAINING)
        if refusal := refusal or self._alone(action, host):
            return refusal
        self.hosts.release(host)
        self.empty(host)
        return Outcome(action, Status.ACCEPTED)

    def _alone(self, action: Action, host: str) -> Outcome | None:
        """The refusal where no other host takes tasks."""
        if any(name != host for name in self.hosts.usable):
            return None
        return Outcome(action, Status.REFUSED, f"{host!r} is the only host that takes tasks")
