"""Hosts as things one leases: types, prices, billing time units, and the life of a lease.

A lease is paid in whole billing time units (BTU) from the moment it is asked for. The states a host goes through are
one table, `TRANSITIONS`; nothing sets a state except `Lease.to`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastream.model.errors import CloudError

__all__ = ["ACTIVE", "TRANSITIONS", "Billing", "HostState", "HostType", "Lease", "LifecycleError", "total_cost"]


@dataclass(frozen=True, slots=True)
class Billing:
    """How leased time becomes money: whole units of `unit` seconds, at least `minimum` seconds of them.

    VISP's BTU of ten minutes is `Billing(600)`; clouds of today bill by the second with a minimum: `Billing(1, 60)`.
    """

    unit: float = 3600.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        if not self.unit > 0:
            raise CloudError(f"a billing time unit of {self.unit:g} s: it must be above 0")
        if self.minimum < 0:
            raise CloudError(f"a minimum billing time of {self.minimum:g} s: it must not be negative")

    def units(self, seconds: float) -> int:
        """Whole units paid for a lease that lasts `seconds`; a lease costs one unit from its first moment."""
        # The tolerance keeps a lease that ends exactly on a boundary from paying a unit for rounding's sake.
        return max(1, math.ceil(max(seconds, self.minimum) / self.unit - 1e-9))


@dataclass(frozen=True, slots=True)
class HostType:
    """A kind of host one can lease.

    cores: cores it has; speed: speed of one core relative to the standard core (thesis: pi); memory: megabytes;
    bandwidth: bytes/s of its link, or None where nothing limits it; price: money for one billing time unit;
    slots: operator instances it may hold (E2DF's C_n), by default its cores rounded up; region: where it stands;
    start, stop: seconds from lease to ready, and from release to gone, as expected (planning) or simulated.
    """

    name: str
    cores: float
    memory: float = 4000.0
    speed: float = 1.0
    bandwidth: float | None = None
    price: float = 1.0
    billing: Billing = field(default_factory=Billing)
    slots: int = 0
    region: str = "local"
    start: float = 60.0
    stop: float = 10.0

    def __post_init__(self) -> None:
        if not self.cores > 0:
            raise CloudError(f"host type {self.name!r} has no core (cores: {self.cores:g})")
        if self.price < 0:
            raise CloudError(f"host type {self.name!r} has a negative price ({self.price:g})")
        if not self.memory > 0:
            raise CloudError(f"host type {self.name!r} has no memory (memory: {self.memory:g} MB)")
        if not self.speed > 0:
            raise CloudError(f"host type {self.name!r} has a core speed of {self.speed:g}; it must be above 0")
        if self.slots < 0:
            raise CloudError(f"host type {self.name!r} has a negative number of slots ({self.slots})")
        if self.slots == 0:
            object.__setattr__(self, "slots", max(1, math.ceil(self.cores)))


class HostState(StrEnum):
    """Where a host is in its life."""

    REQUESTED = "requested"
    """Asked for; paid from now on, nothing seen of it yet."""
    STARTING = "starting"
    """The provider accepted; the machine boots."""
    RUNNING = "running"
    """Takes tasks."""
    DRAINING = "draining"
    """Still works, takes nothing new; its tasks are being moved away."""
    RELEASING = "releasing"
    """Empty, shutting down."""
    RELEASED = "released"
    """Gone as asked; no longer paid."""
    LOST = "lost"
    """Gone without being asked, or never came up; no longer paid."""


ACTIVE = frozenset({HostState.REQUESTED, HostState.STARTING, HostState.RUNNING, HostState.DRAINING, HostState.RELEASING})

TRANSITIONS: Mapping[HostState, frozenset[HostState]] = {
    HostState.REQUESTED: frozenset(
        {
            HostState.STARTING,  # the provider accepted the request
            HostState.RELEASED,  # the plan changed before the provider answered, or nobody expects an answer any more
            HostState.LOST,  # the provider refused, or the request timed out
        }
    ),
    HostState.STARTING: frozenset(
        {
            HostState.RUNNING,  # its executor registered
            HostState.RELEASING,  # no longer wanted
            HostState.LOST,  # it died, or did not come up in time
        }
    ),
    HostState.RUNNING: frozenset(
        {
            HostState.DRAINING,  # a drain was granted
            HostState.RELEASING,  # released while it held nothing
            HostState.LOST,  # it died
        }
    ),
    HostState.DRAINING: frozenset(
        {
            HostState.RUNNING,  # the drain was cancelled
            HostState.RELEASING,  # it is empty, or its time is up
            HostState.LOST,  # it died
        }
    ),
    HostState.RELEASING: frozenset(
        {
            HostState.RELEASED,  # the provider confirmed
            HostState.LOST,  # it died on its way out; billing ends all the same
        }
    ),
    HostState.RELEASED: frozenset(),
    HostState.LOST: frozenset(),
}


class LifecycleError(RuntimeError):
    """A host was asked to go where the table has no edge; carries the story of how it came to be there."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One host from the moment it is asked for: its type, its state, its history and what it has cost.

    Times are seconds on the clock of the run. `history` holds (time, state), oldest first.
    """

    host: str
    type: HostType
    since: float
    state: HostState = HostState.REQUESTED
    history: tuple[tuple[float, HostState], ...] = ()
    until: float | None = None

    def __post_init__(self) -> None:
        if not self.history:
            object.__setattr__(self, "history", ((self.since, self.state),))

    def to(self, state: HostState, at: float) -> "Lease":
        """This lease after its host went to `state` at time `at`; itself where it already is there.

        Raises LifecycleError where `TRANSITIONS` has no such edge.
        """
        if state is self.state:
            return self
        if state not in TRANSITIONS[self.state]:
            story = ", ".join(f"{s} at {t:.1f} s" for t, s in self.history)
            raise LifecycleError(
                f"host {self.host!r} cannot go from {self.state} to {state} at {at:.1f} s (it was {story})"
            )
        ended = at if state in (HostState.RELEASED, HostState.LOST) else None
        return replace(self, state=state, history=(*self.history, (at, state)), until=ended)

    @property
    def there(self) -> bool:
        """Whether the provider knows the host: it does not while that is requested and waits for room."""
        return self.active and self.state is not HostState.REQUESTED

    @property
    def active(self) -> bool:
        """Whether it is still being paid."""
        return self.state in ACTIVE

    def ready_at(self) -> float | None:
        """When it first took tasks, or None."""
        return next((time for time, state in self.history if state is HostState.RUNNING), None)

    def seconds(self, now: float) -> float:
        """How long it has been leased by `now`."""
        return max(0.0, (self.until if self.until is not None else now) - self.since)

    def units(self, now: float) -> int:
        """Whole billing time units paid by `now`."""
        return self.type.billing.units(self.seconds(now))

    def cost(self, now: float) -> float:
        """Money paid by `now`."""
        return self.units(now) * self.type.price

    def paid_until(self, now: float) -> float:
        """End of the last unit paid by `now`."""
        return self.since + self.units(now) * self.type.billing.unit

    def remaining(self, now: float) -> float:
        """Seconds already paid and not yet used at `now` (VISP's h_BTU*)."""
        return max(0.0, self.paid_until(now) - now)


def total_cost(leases: Iterable[Lease], now: float) -> float:
    """Money paid for all `leases` by `now`; always the plain sum of their own costs."""
    return math.fsum(lease.cost(now) for lease in leases)
