"""Leased hosts: types, prices, billing time units (BTU), and the life cycle of a lease (`TRANSITIONS`).

A lease is paid in whole BTU from its request on.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastream.errors import CloudError
from elastream.units import ROUNDING, bytes_per_second, cores, duration, memory

# More is a typing mistake that would otherwise show only on a cluster (memory in MB).
MAX_CORES, MAX_MEMORY_MB = 100_000, 1_000_000_000
# Slots of a host without a limit on instances, as in a price list.
UNLIMITED_SLOTS = 10_000


_READ = {"cores": cores, "start": duration, "stop": duration, "memory": memory, "bandwidth": bytes_per_second}


@dataclass(frozen=True, slots=True)
class Billing:
    """Billing in whole units: VISP's BTU is `Billing(600)`, per-second clouds are `Billing(1, 60)`.

    Attributes:
        unit: Billing time unit (seconds).
        minimum: Least time paid (seconds).
    """

    unit: float = 3600.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        if not self.unit > 0:
            raise CloudError(f"a billing time unit of {self.unit:g} s: it must be above 0")
        if self.minimum < 0:
            raise CloudError(f"a minimum billing time of {self.minimum:g} s: it must not be negative")

    @property
    def shortest(self) -> float:
        """Return the seconds for which any lease is paid."""
        return self.units(0.0) * self.unit

    def units(self, seconds: float) -> int:
        """Return the billing time units paid for `seconds`, at least one."""
        # The tolerance avoids an extra unit through rounding for a lease that ends exactly on a boundary.
        return max(1, math.ceil(max(seconds, self.minimum) / self.unit - ROUNDING))


@dataclass(frozen=True, slots=True)
class HostType:
    """Type of host that can be leased. Values may be text with units, such as "8 GB", "1 gbit" and "20s".

    Attributes:
        cores: Number of cores; may be fractional.
        memory: Memory (MB).
        speed: Core speed relative to the standard core (thesis: pi).
        bandwidth: Bandwidth of its link (bytes/s). None: unlimited.
        price: Money per billing time unit.
        slots: Operator instances it holds (E2DF's C_n). 0: cores rounded up.
        start: Time from lease to ready (seconds).
        stop: Time from release to gone (seconds).
        zone: Fault zone, such as a rack. Empty: the region.

    Raises:
        CloudError: A value is invalid.
        ElastreamError: A text has an unknown unit.
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
        for name, read in _READ.items():
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, read(value))
        self._check()
        if self.slots == 0:
            object.__setattr__(self, "slots", max(1, math.ceil(self.cores)))
        if not self.zone:
            object.__setattr__(self, "zone", self.region)

    def _check(self) -> None:
        if not self.cores > 0:
            raise CloudError(f"host type {self.name!r} has no core (cores: {self.cores:g}); it must be above 0")
        if self.cores > MAX_CORES:
            raise CloudError(f"host type {self.name!r} has {self.cores:g} cores; no host has more than {MAX_CORES:,}")
        if self.memory > MAX_MEMORY_MB:
            raise CloudError(f"host type {self.name!r} has {self.memory:g} MB; no host has more than {MAX_MEMORY_MB:,} MB")
        if self.price < 0:
            raise CloudError(f"host type {self.name!r} has a negative price ({self.price:g}); it must be 0 or more")
        if not self.memory > 0:
            raise CloudError(f"host type {self.name!r} has no memory (memory: {self.memory:g} MB); it must be above 0")
        if not self.speed > 0:
            raise CloudError(f"host type {self.name!r} has a core speed of {self.speed:g}; it must be above 0")
        if self.slots < 0:
            raise CloudError(f"host type {self.name!r} has a negative number of slots ({self.slots})")

    @property
    def slot(self) -> float:
        """Return the cores of speed 1 for each of `width` tasks."""
        return self.cores * self.speed / self.width

    @property
    def price_rate(self) -> float:
        """Return the price per second."""
        return self.price / self.billing.unit

    @property
    def executor(self) -> "HostType":
        """Return the type with a task slot a core, if its instances have no limit."""
        return replace(self, slots=0) if self.slots >= UNLIMITED_SLOTS else self

    @property
    def width(self) -> int:
        """Return how many tasks run at once: as many as slots, but no more than cores (rounded up).

        More tasks would share the cores, and each has a fixed cost. Price lists allow thousands of slots per host.
        """
        return max(1, min(self.slots, math.ceil(self.cores - ROUNDING)))


def by_zones(
    types: Iterable[HostType], count: int, kind: HostType | None = None, *, copies: int = 0, there: Iterable[str] = ()
) -> tuple[HostType, ...]:
    """Return types for `count` hosts, balanced over fault zones.

    Args:
        kind: Type to vary in name and zone; by default the first.
        copies: Standby replicas of state. With any, regions may vary, too.
        there: Zones of present hosts.
    """
    types = tuple(types)
    first = types[0] if kind is None else kind
    zones: dict[str, HostType] = {}
    for each in (first, *types):
        region = first.region if copies else each.region
        if replace(each, name=first.name, zone=first.zone, region=region) == first:
            zones.setdefault(each.zone, each)
    hosts, chosen = Counter(there), []
    for _ in range(count):
        chosen.append(zones[min(zones, key=lambda zone: hosts[zone])])
        hosts[chosen[-1].zone] += 1
    return tuple(chosen)


class HostState(StrEnum):
    """State of a leased host, paid until RELEASED or LOST.

    Attributes:
        REQUESTED: Not yet accepted by the provider.
        STARTING: The machine boots.
        DRAINING: Works, but its tasks are moving away.
        RELEASING: Empty, shutting down.
        LOST: Failed, or never came up.
    """

    REQUESTED = "requested"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    RELEASING = "releasing"
    RELEASED = "released"
    LOST = "lost"


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
    """Transition absent from a table of transitions. The message holds the history."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease of one host from its request on. Times are seconds of the run.

    Attributes:
        since: Time of the request.
        history: Pairs of time and state, oldest first.
        until: Time of release or loss, or None.
        note: Provider's reason for waiting, recall or loss; may be empty.
        refused: True if the provider refuses the request for now.
        deadline: Time at which its owner takes it away, or None.
        fenced: True if it gets no more tasks, so its drain cannot be cancelled.
    """

    host: str
    type: HostType
    since: float
    state: HostState = HostState.REQUESTED
    history: tuple[tuple[float, HostState], ...] = ()
    until: float | None = None
    note: str = ""
    refused: bool = False
    deadline: float | None = None
    fenced: bool = False

    def __post_init__(self) -> None:
        if not self.history:
            object.__setattr__(self, "history", ((self.since, self.state),))

    def to(self, state: HostState, at: float) -> "Lease":
        """Return the lease in `state` from time `at`; itself if unchanged.

        Raises:
            LifecycleError: `TRANSITIONS` lacks the transition.
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
        return self.type.zone

    @property
    def there(self) -> bool:
        """Return True while accepted, and neither released nor lost."""
        return self.active and self.state is not HostState.REQUESTED

    @property
    def active(self) -> bool:
        """Return True while the lease is paid."""
        return self.state in ACTIVE

    def ready_at(self) -> float | None:
        """Return the time of the first RUNNING, or None."""
        return next((time for time, state in self.history if state is HostState.RUNNING), None)

    def seconds(self, now: float) -> float:
        """Return the time leased by `now` (seconds)."""
        return max(0.0, (self.until if self.until is not None else now) - self.since)

    def units(self, now: float) -> int:
        """Return the billing time units paid by `now`."""
        return self.type.billing.units(self.seconds(now))

    def cost(self, now: float) -> float:
        return self.units(now) * self.type.price

    def paid_until(self, now: float) -> float:
        """Return the end of the last unit paid by `now`."""
        return self.since + self.units(now) * self.type.billing.unit

    def remaining(self, now: float) -> float:
        """Return the time paid and unused at `now` (seconds; VISP's h_BTU*)."""
        return max(0.0, self.paid_until(now) - now)


def total_cost(leases: Iterable[Lease], now: float) -> float:
    return math.fsum(lease.cost(now) for lease in leases)


def known_cost(cost: float, types: Iterable[HostType]) -> float:
    """Return `cost`, or NaN if it is 0 because no host type has a price."""
    return cost if cost > 0 or any(each.price > 0 for each in types) else math.nan


@dataclass(frozen=True, slots=True)
class EndedLeases:
    """Totals of leases that ended long ago."""

    leases: int = 0
    released: int = 0
    lost: int = 0
    seconds: float = 0.0
    cost: float = 0.0

    def plus(self, lease: Lease) -> "EndedLeases":
        assert lease.until is not None
        return EndedLeases(
            self.leases + 1,
            self.released + (lease.state is HostState.RELEASED),
            self.lost + (lease.state is HostState.LOST),
            self.seconds + lease.seconds(lease.until),
            self.cost + lease.cost(lease.until),
        )

    @property
    def facts(self) -> dict[str, float]:
        """Return figures for a run's ending; empty without leases."""
        return {f"{FACT_PREFIX} {name}": float(getattr(self, name)) for name in FACTS} if self.leases else {}

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> "EndedLeases":
        figures = (facts.get(f"{FACT_PREFIX} {name}") for name in FACTS)
        leases, released, lost, seconds, cost = (value if isinstance(value, int | float) else 0.0 for value in figures)
        return cls(int(leases), int(released), int(lost), seconds, cost)


FACT_PREFIX = "leases not kept:"
FACTS = ("leases", "released", "lost", "seconds", "cost")


HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Prices of cores and memory.

    Attributes:
        core_hour: Money per core-hour.
        gb_hour: Money per gigabyte-hour (10^9 bytes).
        currency: For people, such as `"EUR"`.
        billing: Billing rule, by the second by default.

    Raises:
        CloudError: A price is negative or not a number.
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
        hourly = kind.cores * self.core_hour + kind.memory / 1000 * self.gb_hour
        return replace(kind, price=hourly * self.billing.unit / HOUR_S, billing=self.billing)
