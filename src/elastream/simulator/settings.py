"""Defines every constant of the simulator with its unit and source.

A constant comes from a paper, a measurement or an assumption, and its docstring says which. Costs and selectivities of
operators belong to the dataflow's alternates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from elastream.core.composition import Consistency
from elastream.core.frames import Floats, Integers
from elastream.dataflow.key_table import Key
from elastream.dataflow.operators import Operator
from elastream.errors import InputError
from elastream.loads.links import LinkTrace
from elastream.loads.speeds import SpeedTrace

SLOT_DUST = 1e-9
"""Part of an interval by which a time that is a sum of fractions may fall short of its beginning."""


class Distribution(StrEnum):
    """Distribution of a service time around its mean."""

    DETERMINISTIC = "deterministic"
    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"
    EMPIRICAL = "empirical"


@dataclass(frozen=True, slots=True)
class Service:
    """Service-time distribution of an operator; its mean is the cost of the running alternate.

    variation: coefficient of variation, used by LOGNORMAL only. samples: measured service times for EMPIRICAL, in any
    unit, because they are divided by their mean. cost, selectivity: measured core-seconds per item and items out per item
    in; they override those that the alternates declare. alternates: the same by alternate, where each was measured; it
    overrides both.
    """

    distribution: Distribution = Distribution.LOGNORMAL
    variation: float = 0.2
    samples: tuple[float, ...] = ()
    cost: float | None = None
    selectivity: float | None = None
    alternates: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.variation < 0:
            raise InputError(f"the variation of a service time is {self.variation:g}; it must not be negative")
        if self.distribution is Distribution.EMPIRICAL and not (
            self.samples and min(self.samples) >= 0 < max(self.samples)
        ):
            raise InputError("an empirical service time needs samples >= 0, at least one of them above 0")

    def costing(
        self,
        cost: float,
        selectivity: float | None = None,
        alternates: Mapping[str, tuple[float | None, float | None]] | None = None,
    ) -> "Service":
        """Return a copy with a measured mean of `cost` core-seconds, a measured selectivity, and both by alternate."""
        return replace(self, cost=cost, selectivity=selectivity, alternates=alternates or {})

    @property
    def squared_variation(self) -> float:
        match self.distribution:
            case Distribution.DETERMINISTIC:
                return 0.0
            case Distribution.EXPONENTIAL:
                return 1.0
            case Distribution.LOGNORMAL:
                return self.variation**2
            case Distribution.EMPIRICAL:
                return float(np.var(self.samples) / np.mean(self.samples) ** 2)


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """Network between two regions. latency: seconds one way; bandwidth: bytes/s per host (None: no limit)."""

    latency: float
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class Messaging:
    """Time an item spends in the messaging system before an operator: part of its duration, but of no instance's work.

    VISP's durations (Table 2) contain it. mean: seconds. variation: coefficient of variation, lognormal. Arrival times are
    not shifted by it, because it delays all items by the same distribution.
    """

    mean: float
    variation: float = 0.2

    @property
    def spread(self) -> float:
        return math.sqrt(math.log1p(self.variation**2))

    def __post_init__(self) -> None:
        if self.mean < 0 or self.variation < 0:
            raise InputError(f"messaging: mean {self.mean:g} s, variation {self.variation:g}; neither may be negative")


@dataclass(frozen=True, slots=True)
class HostFailure:
    """Loss of `host` without warning at `time`, seconds; None: the host that has been running longest.

    Items in service on it return to the head of their queue (at least once: work is lost, items are not); its cached
    images are lost.
    """

    time: float
    host: str | None = None


class Travel(StrEnum):
    """How the simulator represents items."""

    SINGLE = "single"
    """Single items with exact start and finish times. Cost grows with items."""
    COHORTS = "cohorts"
    """Counts with an enqueue time, single items where few arrive (`Settings.cohorts_above`). Cost grows with time steps."""


@dataclass(frozen=True)
class Settings:
    """Constants of a simulated plant, each with its unit and source.

    The last ones describe the scenario: service times by operator, joins, faults, links by pair of regions, and traces of
    what hosts and links do meanwhile: factors on the speeds of host types and on those links. joins: operators that wait
    for one item of each input; any other operator with several inputs merges them.
    record_bytes: size of an item that an operator emits, overrides the declared one.

    shares: weights by state partition of a keyed stage where stages are fused: its keys' part of the records, 1 by default,
    or rows that each hold for `share_interval` seconds.

    batch_ratios: recorded over expected duration of micro-batches, in order; simulated batches cycle through them from a
    random start. consistency: what records under way meet when the composition changes. Operators apart have no batches:
    in `BATCH` each changes between two records, which is `REWIRED` but for the records in service. key_weights: by
    operator, how frequent each key of its key tables is, relative to the others; none: equally.
    """

    monitor: float = 15.0
    """Seconds. VISP, evaluation configuration: queues and usage are recorded every 15 s."""
    start_cached: float = 5.0
    """Seconds. VISP, metrics: spawning an instance takes 5-10 s; the lower end, where the image is cached."""
    registry_bandwidth: float = 14.0
    """MB/s. Assumed: fetching the 68-89 MB images of VISP Table 2 fills the rest of its 5-10 s to spawn an instance."""
    host_start_spread: float = 1 / 3
    """Fraction of HostType.start. VISP, metrics: leasing a host takes 30-60 s, read as uniform around 45 s."""
    variation: float = 0.2
    """Coefficient of variation. Assumed: VISP gives means only; lognormal, as service times of programs commonly are."""
    latency: float = 0.0005
    """Seconds one way. Assumed: a round trip of 1 ms between hosts of one data centre."""
    message_overhead: float = 0.0
    """Seconds an item. Assumed: time in the messaging system beyond what the cost contains."""
    host_start_queue: float = 0.0
    """Seconds more that a host takes to start for each that is on its way when it is requested. Assumed: none, as hosts of
    a cloud start beside each other; processes of one machine share its cores."""
    early_margin: float = 0.05
    """Fraction of a BTU. VISP, optimise resource usage: hosts are judged in the last 5 % of their BTU."""
    factors: tuple[float, ...] = (1.0, 2.0, 5.0)
    """Times the service level. VISP, metrics: real-time, near-real-time, relaxed."""
    history: int = 40
    """Monitoring periods. Assumed: ten minutes at VISP's 15 s; policies use fewer."""
    batch_overhead: float = 0.05
    """Seconds a micro-batch and stage. Measured: a fused Arrow stage on Spark 4.3.0, two shared cores, 49 ms."""
    batch_seconds: float = 1.0
    """Seconds. Default target of the batch governor of Elastream on Spark; `batch_interval` where that is longer."""
    batch_interval: float = 0.0
    """Seconds. Assumed: from one batch's start to the next, at least; 0: the next begins when the last is done."""
    batch_work: float = 0.0
    """Core-s a batch. Assumed: work of hosts per batch, whatever its records; it takes time as that of records does."""
    delivered: float = 1.0
    """Fraction of a host's cores. Assumed: what its tasks get: all if nothing else runs on the machine."""
    settling_batches: int = 3
    """Batches. Elastream's hosts on Spark are held to their quota after so many of them."""
    settling_boost: float = 1.0
    """Times a host's cores. Assumed: what a new host gets in its first batches: its own cores, unless it may burst."""
    state_load: float = 0.0
    """Core-s a task. Assumed: loading a state partition in its task's first batch on another host."""
    start_delay: float = 0.0
    """Seconds a batch and host. Assumed: delay of batches while a host starts: 0 if hosts share no machine."""
    state_partitions: int = 16
    """Partitions a keyed stage. What a run on Spark has by default."""
    replicas: int = 0
    """Copies of each state partition that other hosts keep (the thesis' r). What a run on Spark has by default."""
    replica_work: float = 0.15
    """Fraction of a partition's work that each copy costs its host. Thesis, 6.7.1: throughput drops "by around 15%"."""
    cohort_slots: int = 16
    """Slots a service time. Assumed: 8 to 32 of them left compliance on the VISP scenario the same to 0.01 points."""
    cohorts_above: int = 1024
    """Items a monitoring period. Assumed: below, cohorts are no cheaper, and random variation matters more."""
    travel: Travel = Travel.SINGLE
    consistency: Consistency = Consistency.BATCH
    key_weights: Mapping[str, Mapping[Key, float]] = field(default_factory=dict)
    services: Mapping[str, Service] = field(default_factory=dict)
    messaging: Mapping[str, Messaging] = field(default_factory=dict)
    joins: frozenset[str] = frozenset()
    record_bytes: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, Floats | Sequence[float]] = field(default_factory=dict)
    share_interval: float = 60.0
    speed_trace: SpeedTrace | None = None
    batch_ratios: tuple[float, ...] = ()
    links: Mapping[tuple[str, str], NetworkLink] = field(default_factory=dict)
    link_trace: LinkTrace | None = None
    faults: tuple[HostFailure, ...] = ()

    @property
    def governed(self) -> float:
        """Seconds that the governor wants batches to last. Of shorter ones than an interval a query would lie idle between
        them while records wait: on Spark the two are one number."""
        return max(self.batch_seconds, self.batch_interval)

    def __post_init__(self) -> None:
        for name in ("monitor", "registry_bandwidth", "batch_seconds", "delivered", "settling_boost",
            "share_interval",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise InputError(f"the simulator's {name.replace('_', ' ')} is {getattr(self, name):g}; it must be above 0")
        for name in ("start_cached", "variation", "latency", "message_overhead", "batch_overhead", "batch_interval",
            "batch_work", "state_load", "start_delay", "host_start_spread",
            "host_start_queue", "replica_work",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise InputError(f"the simulator's {name.replace('_', ' ')} is negative ({getattr(self, name):g})")

    def service(self, operator: str) -> Service:
        """Service-time distribution of an operator: the one in `services`, else lognormal with the common `variation`."""
        return self.services.get(operator) or Service(Distribution.LOGNORMAL, self.variation)

    def record_size(self, operator: Operator) -> float:
        """Bytes of an item that `operator` emits; NaN if not declared."""
        declared = operator.record_bytes
        return self.record_bytes.get(operator.name, math.nan if declared is None else declared)

    def share_slot(self, now: float) -> int:
        """Number of the row of `shares` that holds at `now`."""
        return int(now / self.share_interval + SLOT_DUST)

    def by_instance(
        self, weights: Mapping[str, Floats | Sequence[float]], operator: str, index: Integers, now: float
    ) -> Floats:
        """The entry of a table such as `shares` for each instance number in `index`; rows and entries repeat if too few."""
        table = np.atleast_2d(np.asarray(weights.get(operator, (1.0,)), dtype=np.float64))
        row = table[self.share_slot(now) % len(table)]
        return np.asarray(row[index % row.size])
