"""Leases by the name of their host: what every keeper of hosts has, of our own and of executors of a foreign session.

Nothing but the table of `elastream.model.cloud` decides where a host may go; how it gets there is the keeper's, except
how it begins: a provider is asked for it as soon as that has room.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from elastream.model.action import Action, Outcome, Status
from elastream.model.cloud import TRANSITIONS, HostState, Lease
from elastream.model.errors import ElastreamError

if TYPE_CHECKING:
    from elastream.clouds.provider import Provider

__all__ = ["LeaseBook"]


class LeaseBook:
    """All leases so far, ended ones too. Thread-safe. clock: seconds, for histories."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._leases: dict[str, Lease] = {}

    @property
    def leases(self) -> Mapping[str, Lease]:
        """Every lease by host name, ended ones too."""
        with self._lock:
            return dict(self._leases)

    @property
    def usable(self) -> tuple[str, ...]:
        """Hosts that take tasks."""
        return tuple(name for name, lease in self.leases.items() if lease.state is HostState.RUNNING)

    def state(self, host: str) -> HostState | None:
        """Where a host is in its life; None where there is no such host."""
        lease = self.leases.get(host)
        return None if lease is None else lease.state

    def expect(self, action: Action, host: str, *states: HostState) -> Outcome | None:
        """The refusal of `action` where `host` is in none of `states`, or is not there at all; None where it may go on."""
        state = self.state(host)
        if state is None:
            return Outcome(action, Status.REFUSED, f"there is no host {host!r}")
        return None if state in states else Outcome(action, Status.REFUSED, f"host {host!r} is {state}")

    def drain(self, host: str) -> None:
        """RUNNING to DRAINING."""
        self._to(host, HostState.DRAINING)

    def cancel_drain(self, host: str) -> None:
        """DRAINING to RUNNING."""
        self._to(host, HostState.RUNNING)

    def _ask_for_hosts(self, provider: "Provider") -> Mapping[str, Exception | None]:
        """Ask `provider` for requested hosts where it has room: they are STARTING, or LOST where it refused, and why."""
        with self._lock:
            waiting = {name: each.type for name, each in self._leases.items() if each.state is HostState.REQUESTED}
            starting = sum(each.state is HostState.STARTING for each in self._leases.values())
            asked: dict[str, Exception | None] = {}
            for name in provider.room(waiting, starting):
                try:
                    provider.lease(name, waiting[name])
                except Exception as error:
                    self._to(name, HostState.LOST)
                    if not isinstance(error, ElastreamError | OSError):
                        raise  # no refusal, but a fault of the provider
                    asked[name] = error
                else:
                    self._to(name, HostState.STARTING)
                    asked[name] = None
            return asked

    def _end_all(self) -> None:
        """Every host that is still leased is released now."""
        for name, lease in self.leases.items():
            if lease.active:
                # A host that never started goes straight to its end: `_to` skips what the table does not know.
                for state in (HostState.RELEASING, HostState.RELEASED):
                    self._to(name, state)

    def _to(self, host: str, state: HostState) -> None:
        with self._lock:
            # Someone else may have sent it another way since it was looked at: what is not in the table is not wanted.
            if state in TRANSITIONS[self._leases[host].state]:
                self._leases[host] = self._leases[host].to(state, self._clock())
