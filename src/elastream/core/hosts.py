"""Models leased hosts: types, prices, billing time units, and the life cycle of a lease.

A lease is paid in whole billing time units (BTU) from its request on. The states of a host form one table, `TRANSITIONS`;
only `Lease.to` sets a state.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastream.errors import CloudError
from elastream.units import ROUNDING, bytes_per_second, duration, memory

MOST_CORES, MOST_MEMORY = 100_000, 1_000_000_000
"""Of a host, the latter in megabytes: what is more is a slip of the pen that only a cluster would stumble over."""


@dataclass(frozen=True, slots=True)
class Billing:
    """Billing rule: leased time is paid in whole units of `unit` seconds, at least `minimum` seconds.

    VISP's BTU of ten minutes is `Billing(600)`; today's clouds bill by the second with a minimum: `Billing(1, 60)`.
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
        # The tolerance avoids an extra unit through rounding for a lease that ends exactly on a boundary.
        return max(1, math.ceil(max(seconds, self.minimum) / self.unit - ROUNDING))


@dataclass(frozen=True, slots=True)
class HostType:
    """A type of host that can be leased.

    cores: number of cores, may be fractional; speed: of one core relative to the standard core (thesis: pi); memory:
    megabytes; bandwidth: bytes/s of its link, None without a limit; price: money per billing time unit; slots: operator
    instances it can hold (E2DF's C_n), by default its cores rounded up; region: its location; start, stop: seconds from
    lease to ready and from release to gone, as expected (planning) or simulated; zone: its fault zone, whose hosts may fail
    together (a rack, an availability zone), by default its region. Text with a unit is taken, too: `start="20s"`,
    `memory="8 GB"`, `bandwidth="1 gbit"`. Raises CloudError for invalid values, ElastreamError for a unit that is none.
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
    zone: str = ""

    def __post_init__(self) -> None:
        for name, read in (("start", duration), ("stop", duration), ("memory", memory), ("bandwidth", bytes_per_second)):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, read(value))
        if not self.cores > 0:
            raise CloudError(f"host type {self.name!r} has no core (cores: {self.cores:g}); it must be above 0")
        if self.cores > MOST_CORES:
            raise CloudError(f"host type {self.name!r} has {self.cores:g} cores; no host has more than {MOST_CORES:,}")
        if self.memory > MOST_MEMORY:
            raise CloudError(f"host type {self.name!r} has {self.memory:g} MB; no host has more than {MOST_MEMORY:,} MB")
        if self.price < 0:
            raise CloudError(f"host type {self.name!r} has a negative price ({self.price:g}); it must be 0 or more")
        if not self.memory > 0:
            raise CloudError(f"host type {self.name!r} has no memory (memory: {self.memory:g} MB); it must be above 0")
        if not self.speed > 0:
            raise CloudError(f"host type {self.name!r} has a core speed of {self.speed:g}; it must be above 0")
        if self.slots < 0:
            raise CloudError(f"host type {self.name!r} has a negative number of slots ({self.slots})")
        if self.slots == 0:
            object.__setattr__(self, "slots", max(1, math.ceil(self.cores)))
        if not self.zone:
            object.__setattr__(self, "zone", self.region)

    @property
    def slot(self) -> float:
        """Cores of speed 1 that each of `width` tasks has."""
        return self.cores * self.speed / self.width

    @property
    def width(self) -> int:
        """Tasks at a time that use it up: its slots, but no more than its cores rounded up.

        Each task has a fixed cost; those beyond the cores share these (price lists allow thousands of instances a host).
        """
        return max(1, min(self.slots, math.ceil(self.cores - ROUNDING)))


def by_zones(
    types: Iterable[HostType], count: int, kind: HostType | None = None, *, copies: int = 0, there: Iterable[str] = ()
) -> tuple[HostType, ...]:
    """`count` times `kind`, by default the first of `types`, or those that differ from it in name and zone only: each time
    the one of whose zone there are fewest.

    copies: of state, that other hosts are to keep; where there are any, types may differ in their region, too. there: zones
    of the hosts that there are.
    """
    types = tuple(types)
    first = types[0] if kind is None else kind
    zones: dict[str, HostType] = {}
    for each in (first, *types):
        region = first.region if copies else each.region
        if replace(each, name=first.name, zone=first.zone, region=region) == first:
            zones.setdefault(each.zone, each)
    hosts, found = Counter(there), []
    for _ in range(count):
        found.append(zones[min(zones, key=lambda zone: hosts[zone])])
        hosts[found[-1].zone] += 1
    return tuple(found)


class HostState(StrEnum):
    """State of a leased host."""

    REQUESTED = "requested"
    """Requested and paid from now on; not accepted by the provider yet."""
    STARTING = "starting"
    """Accepted by the provider; the machine boots."""
    RUNNING = "running"
    """Up; accepts tasks."""
    DRAINING = "draining"
    """Works, but accepts no new tasks; its tasks are being moved away."""
    RELEASING = "releasing"
    """Empty, shutting down."""
    RELEASED = "released"
    """Gone after a release; no longer paid."""
    LOST = "lost"
    """Failed, or never came up; no longer paid."""


ACTIVE = frozenset({HostState.REQUESTED, HostState.STARTING, HostState.RUNNING, HostState.DRAINING, HostState.RELEASING})

TRANSITIONS: Mapping[HostState, Set[HostState]] = {
    HostState.REQUESTED: {
        HostState.STARTING,  # the provider accepted the request
        HostState.RELEASED,  # the request was withdrawn before the provider accepted it
        HostState.LOST,  # the provider refused, or the request timed out
    },
    HostState.STARTING: {
        HostState.RUNNING,  # its executor registered
        HostState.RELEASING,  # no longer wanted
        HostState.LOST,  # it failed, or did not come up in time
    },
    HostState.RUNNING: {
        HostState.DRAINING,  # a drain was granted
        HostState.RELEASING,  # released while it held no task
        HostState.LOST,  # it failed
    },
    HostState.DRAINING: {
        HostState.RUNNING,  # the drain was cancelled
        HostState.RELEASING,  # it is empty, or its drain timed out
        HostState.LOST,  # it failed
    },
    HostState.RELEASING: {
        HostState.RELEASED,  # the provider confirmed
        HostState.LOST,  # it failed while shutting down; billing ends as well
    },
    HostState.RELEASED: set(),
    HostState.LOST: set(),
}


class LifecycleError(RuntimeError):
    """A transition that a table of transitions does not have; the message holds the history."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of one host from its request on: type, state, history and cost.

    Times are seconds on the clock of the run. history: (time, state), oldest first. until: when it was released or lost.
    refused: whether its request was refused for now, for the reason in `note`.
    note: why it waits, is recalled or was lost, as its provider says; empty where there is nothing to say.
    """

    host: str
    type: HostType
    since: float
    state: HostState = HostState.REQUESTED
    history: tuple[tuple[float, HostState], ...] = ()
    until: float | None = None
    note: str = ""
    refused: bool = False

    def __post_init__(self) -> None:
        if not self.history:
            object.__setattr__(self, "history", ((self.since, self.state),))

    def to(self, state: HostState, at: float) -> "Lease":
        """The lease with its host in `state` from time `at`; itself if already in that state.

        Raises LifecycleError for a transition that `TRANSITIONS` does not contain.
        """
        if state is self.state:
            return self
        if state not in TRANSITIONS[self.state]:
            past = ", ".join(f"{s} at {t:.1f} s" for t, s in self.history)
            raise LifecycleError(f"host {self.host!r} cannot go from {self.state} to {state} at {at:.1f} s (it was {past})")
        ended = at if state in (HostState.RELEASED, HostState.LOST) else None
        return replace(self, state=state, history=(*self.history, (at, state)), until=ended)

    @property
    def zone(self) -> str:
        """Fault zone of the host."""
        return self.type.zone

    @property
    def there(self) -> bool:
        """Whether the provider has accepted the host and has not released or lost it."""
        return self.active and self.state is not HostState.REQUESTED

    @property
    def active(self) -> bool:
        """Whether the lease is still paid for."""
        return self.state in ACTIVE

    def ready_at(self) -> float | None:
        """When the host was first RUNNING, or None."""
        return next((time for time, state in self.history if state is HostState.RUNNING), None)

    def seconds(self, now: float) -> float:
        """Seconds leased up to `now`."""
        return max(0.0, (self.until if self.until is not None else now) - self.since)

    def units(self, now: float) -> int:
        """Whole billing time units paid by `now`."""
        return self.type.billing.units(self.seconds(now))

    def cost(self, now: float) -> float:
        """Cost of the lease up to `now`."""
        return self.units(now) * self.type.price

    def paid_until(self, now: float) -> float:
        """End of the last unit paid by `now`."""
        return self.since + self.units(now) * self.type.billing.unit

    def remaining(self, now: float) -> float:
        """Seconds already paid and not yet used at `now` (VISP's h_BTU*)."""
        return max(0.0, self.paid_until(now) - now)


def total_cost(leases: Iterable[Lease], now: float) -> float:
    """Cost of all `leases` up to `now`: the sum of their costs."""
    return math.fsum(lease.cost(now) for lease in leases)


@dataclass(frozen=True, slots=True)
class Past:
    """What leases came to that ended so long ago that they are not kept one by one.

    leases: how many; released, lost: how they ended. seconds: for which they were held. cost: theirs.
    """

    leases: int = 0
    released: int = 0
    lost: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def plus(self, lease: Lease) -> "Past":
        """With one that has ended."""
        assert lease.until is not None
        return Past(
            self.leases + 1,
            self.released + (lease.state is HostState.RELEASED),
            self.lost + (lease.state is HostState.LOST),
            self.seconds + lease.seconds(lease.until),
            self.cost + lease.cost(lease.until),
        )

    @property
    def facts(self) -> dict[str, float]:
        """Its figures for the ending of a run; nothing where no lease was forgotten."""
        return {f"{EARLIER} {name}": float(getattr(self, name)) for name in FIGURES} if self.leases else {}

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> "Past":
        """What `facts` gave."""
        known = (facts.get(f"{EARLIER} {name}") for name in FIGURES)
        leases, released, lost, seconds, cost = (value if isinstance(value, int | float) else 0.0 for value in known)
        return cls(int(leases), int(released), int(lost), seconds, cost)


EARLIER = "leases not kept:"
FIGURES = ("leases", "released", "lost", "seconds", "cost")


HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Money for a core-hour and for a gigabyte-hour (10^9 bytes), in `currency`; billed as `billing` says, by the second.

    currency: for people, such as `"EUR"`. Raises CloudError for prices that are negative or no numbers.
    """

    core_hour: float
    gb_hour: float = 0.0
    currency: str = ""
    billing: Billing = field(default_factory=lambda: Billing(1.0))

    def __post_init__(self) -> None:
        for name in ("core_hour", "gb_hour"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise CloudError(f"{name} is {value!r}; it is a price, 0 or more", ("prices", name))

    def of(self, kind: HostType) -> HostType:
        """`kind` at the price of its cores and memory, billed as the list says."""
        hourly = kind.cores * self.core_hour + kind.memory / 1000 * self.gb_hour
        return replace(kind, price=hourly * self.billing.unit / HOUR, billing=self.billing)
