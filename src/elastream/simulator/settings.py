"""Constants of the simulator.

Each comment names the unit and the source: a paper, a measurement or an assumption.
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

# Fraction of an interval by which a sum of fractions may miss its start.
SLOT_DUST = 1e-9


class Distribution(StrEnum):
    DETERMINISTIC = "deterministic"
    LOGNORMAL = "lognormal"
    EXPONENTIAL = "exponential"
    EMPIRICAL = "empirical"


@dataclass(frozen=True, slots=True)
class Service:
    """Service-time distribution of an operator.

    Attributes:
        variation: Coefficient of variation; LOGNORMAL only.
        cost, selectivity: Measurements; override the alternates' declarations.
        alternates: Both by measured alternate; overrides the operator's.
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
        """Return a copy with measured cost (core-seconds) and selectivity."""
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
    """Link between regions: one-way latency (seconds), bandwidth (bytes/s per host; None: unlimited)."""

    latency: float
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True)
class Messaging:
    """Lognormal time in the messaging system: part of an item's duration, but no work.

    `mean` is in seconds. VISP's durations contain it (Table 2).
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
    """Loss of a host at `time` (seconds); without a name, of the longest running one.

    Items in service return to their queue (at least once). `notice`: Warning time before the loss (seconds).
    """

    time: float
    host: str | None = None
    notice: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.notice < math.inf:
            raise InputError(f"the notice of a host's loss is {self.notice:g} s; it must be 0 or more")


class Travel(StrEnum):
    # Exact start and finish times; cost grows with items.
    SINGLE = "single"
    # Counts with an enqueue time, single items where few arrive (`cohorts_above`); cost grows with time steps.
    COHORTS = "cohorts"


@dataclass(frozen=True)
class Settings:
    """Constants of a simulated plant, and the scenario.

    Attributes:
        joins: Operators that wait for one item of each input; others merge inputs.
        record_bytes: Item size by operator; overrides the declared one.
        shares: Weights of a keyed stage's state partitions, or rows that each hold for `share_interval` seconds.
        batch_ratios: Recorded over expected batch durations; repeated from a random start.
        key_weights: Relative frequency of keys by operator; default equal.
    """

    # Seconds. VISP, evaluation configuration: queues and usage are recorded every 15 s.
    monitor: float = 15.0
    # Seconds. VISP, metrics: spawning an instance takes 5-10 s; the lower end, with a cached image.
    start_cached: float = 5.0
    # MB/s. Assumed: fetching the 68-89 MB images of VISP Table 2 fills the rest of its 5-10 s.
    registry_bandwidth: float = 14.0
    # Fraction of HostType.start. VISP, metrics: leasing a host takes 30-60 s, read as uniform around 45 s.
    host_start_spread: float = 1 / 3
    # Coefficient of variation. Assumed: VISP gives means only; lognormal is common for programs.
    variation: float = 0.2
    # Seconds one way. Assumed: a round trip of 1 ms within a data centre.
    latency: float = 0.0005
    # Seconds per item. Assumed: messaging time beyond the cost.
    message_overhead: float = 0.0
    # Seconds of extra start time for each host already starting. Assumed: none in a cloud; one machine's processes share
    # cores.
    host_start_queue: float = 0.0
    # Fraction of a BTU. VISP, optimise resource usage: hosts are judged in the last 5 % of their BTU.
    early_margin: float = 0.05
    # Times the service level. VISP, metrics: real-time, near-real-time, relaxed.
    factors: tuple[float, ...] = (1.0, 2.0, 5.0)
    # Monitoring periods. Assumed: ten minutes at VISP's 15 s; policies use fewer.
    history: int = 40
    # Seconds per micro-batch and stage. Measured: a fused Arrow stage on Spark 4.3.0, two shared cores, 49 ms.
    batch_overhead: float = 0.05
    # Seconds. Default target of the batch governor on Spark; `batch_interval` if longer.
    batch_seconds: float = 1.0
    # Seconds. Assumed: least time between starts of batches; 0: start when the last is done.
    batch_interval: float = 0.0
    # Core-seconds per batch. Assumed: work of the hosts whatever the records.
    batch_work: float = 0.0
    # Fraction of a host's cores. Assumed: tasks get all if nothing else runs on the machine.
    delivered: float = 1.0
    # Batches. Hosts on Spark are limited to their quota after these.
    settling_batches: int = 3
    # Times a host's cores. Assumed: a new host has its own cores in its first batches, unless it may burst.
    settling_boost: float = 1.0
    # Core-seconds per task. Assumed: loading a state partition in the first batch on another host.
    state_load: float = 0.0
    # Seconds per batch and starting host. Assumed: 0 if hosts share no machine.
    start_delay: float = 0.0
    # Partitions of a keyed stage. The default on Spark.
    state_partitions: int = 16
    # Standby replicas of each state partition (the thesis' r). The default on Spark.
    replicas: int = 0
    # Fraction of a partition's work for each standby replica. Thesis, 6.7.1: throughput drops "by around 15%".
    replica_work: float = 0.15
    # Slots per service time. Assumed: 8 to 32 left compliance on the VISP scenario the same to 0.01 points.
    cohort_slots: int = 16
    # Items per monitoring period. Assumed: below, cohorts are no cheaper, and random variation matters more.
    cohorts_above: int = 1024
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
        """Target batch duration (seconds), at least the interval: otherwise queries idle while records wait."""
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
        return self.services.get(operator) or Service(Distribution.LOGNORMAL, self.variation)

    def record_size(self, operator: Operator) -> float:
        declared = operator.record_bytes
        return self.record_bytes.get(operator.name, math.nan if declared is None else declared)

    def share_slot(self, now: float) -> int:
        return int(now / self.share_interval + SLOT_DUST)

    def by_instance(
        self, weights: Mapping[str, Floats | Sequence[float]], operator: str, index: Integers, now: float
    ) -> Floats:
        """Return each instance's entry of a table such as `shares`, cyclically."""
        table = np.atleast_2d(np.asarray(weights.get(operator, (1.0,)), dtype=np.float64))
        row = table[self.share_slot(now) % len(table)]
        return np.asarray(row[index % row.size])
