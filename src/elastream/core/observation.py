"""Observations of a plant: per metric a value or *unknown*, and its age.

Unknown is NaN in a column and None in a `Reading`. Comparisons with NaN are false, so an unprepared policy does nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.core.alarm import Alarm
from elastream.core.frames import OLD, Floats, Frame, Implausible, Integers, Reading, TaskFrame, known_sum
from elastream.core.guarding import GuardDecision
from elastream.core.hosts import HostState, HostType, Lease, known_cost
from elastream.core.latency import Basis
from elastream.core.lateness import Diagnosis
from elastream.core.lazy import once
from elastream.core.metrics import Metric, Rows
from elastream.core.ring import Ring
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Operator
from elastream.dataflow.signals import Signals
from elastream.dataflow.stages import Layout, Unit

MAX_SECONDS, MAX_RECORDS = Metric.DURATION.quantity.most, Metric.BACKLOG.quantity.most
# Larger values are implausible and count as unknown, as in frames.
MAX_EXCHANGED = Metric.TRAFFIC.quantity.most


class Leases(dict[str, Lease]):
    """Active leases by host. Immutable.

    Args:
        foreign: Part of a host's slots that long tasks of others hold, by host. A host without a free slot is not usable.
    """

    def __init__(
        self,
        leases: Mapping[str, Lease] | Iterable[tuple[str, Lease]],
        foreign: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        super().__init__(leases)
        self._foreign = foreign

    def free(self, host: str) -> float:
        """Return the part of a host's slots that no long task of others holds."""
        return 1.0 - self._foreign.get(host, 0.0)

    @once
    def usable(self) -> tuple[str, ...]:
        return tuple(host for host in self._in(HostState.RUNNING) if self.free(host) > 0)

    @once
    def working(self) -> tuple[str, ...]:
        return self._in(HostState.RUNNING, HostState.DRAINING)

    @once
    def coming(self) -> tuple[str, ...]:
        return self._in(HostState.REQUESTED, HostState.STARTING)

    @once
    def draining(self) -> tuple[str, ...]:
        return self._in(HostState.DRAINING)

    @once
    def recoverable(self) -> tuple[str, ...]:
        return tuple(host for host in self.draining if self[host].deadline is None and not self[host].fenced)

    def _in(self, *states: HostState) -> tuple[str, ...]:
        return tuple(host for host, lease in self.items() if lease.state in states)

    @once
    def usable_cores(self) -> tuple[float, float]:
        """Return the cores of all usable hosts and of the smallest (inf without any), regardless of speed."""
        cores = [self[host].type.cores * self.free(host) for host in self.usable]
        return math.fsum(cores), min(cores, default=math.inf)

    @once
    def came(self) -> tuple[float, ...]:
        return tuple(self[host].history[-1][0] for host in self.usable)

    @once
    def changed(self) -> float:
        """Return when a host last came or a drain changed; -inf: never."""
        changes = [at for host in self.usable for at, _ in self[host].history[1:]]
        changes += [self[host].history[-1][0] for host in self.draining]
        return max(changes, default=-math.inf)

    @once
    def hosts(self) -> tuple[str, ...]:
        return tuple(self)

    @once
    def speeds(self) -> NDArray[np.float64]:
        return np.array([lease.type.speed for lease in self.values()], dtype=np.float64)

    @once
    def nominal_speeds(self) -> list[float]:
        return [lease.type.speed for lease in self.values()]

    @once
    def nominal(self) -> "Cores":
        return Cores(self, {host: lease.type.speed for host, lease in self.items()})


class Cores:
    """Capacity of leased hosts in cores of speed 1; `speeds` and `each` (capacity) are by host."""

    def __init__(self, leases: Leases, speeds: Mapping[str, float]) -> None:
        self._leases, self.speeds = leases, speeds
        self.each = {host: lease.type.cores * speeds[host] * leases.free(host) for host, lease in leases.items()}
        self._sums: dict[tuple[str, ...], float] = {}
        self._least: dict[tuple[str, ...], float] = {}
        self._slots: dict[tuple[str, ...], tuple[int, float]] = {}

    def of(self, hosts: Sequence[str]) -> float:
        key = tuple(hosts)
        if (capacity := self._sums.get(key)) is None:
            capacity = self._sums[key] = math.fsum([self.each[host] for host in key])
        return capacity

    def least(self, hosts: Sequence[str]) -> float:
        key = tuple(hosts)
        if (capacity := self._least.get(key)) is None:
            capacity = self._least[key] = min((self.each[host] for host in key), default=0.0)
        return capacity

    def slots(self, hosts: Sequence[str]) -> tuple[int, float]:
        """Return the usable slots of `hosts`, and the slowest slot's capacity (inf without any)."""
        key = tuple(hosts)
        if (slots := self._slots.get(key)) is None:
            wide = {host: round(self._leases[host].type.width * self._leases.free(host)) for host in key}
            least = min((self.each[host] / wide[host] for host in key if wide[host]), default=math.inf)
            slots = self._slots[key] = sum(wide.values()), least
        return slots

    @once
    def mean_speed(self) -> float:
        """Return the harmonic mean of the core speeds of usable hosts, as slow cores are busy longer."""
        cores = {host: self._leases[host].type.cores for host in self._leases.usable}
        busy = math.fsum([each / self.speeds[host] for host, each in cores.items()])
        return math.fsum(cores.values()) / busy if busy > 0 else 1.0


@dataclass(frozen=True, eq=False)
class Exchange:
    """Measured traffic between tasks: a sparse matrix with an entry per communicating pair. Columns are read-only.

    Attributes:
        source: Rows of `Observation.tasks`, int64; -1 for a sender without a host, such as a floating source.
        target: Rows of the receivers, as in `source`.
        rate: Mean of the last monitoring period (bytes/s, float64); a pair without an entry sends nothing.
        known: False if unmeasured or older than OLD. Entries are then empty.
        age: Age of the measurement (seconds).

    Raises:
        ValueError: Columns differ in length, an unknown exchange has entries, or a rate is NaN or negative.
    """

    source: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    target: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rate: Floats = field(default_factory=lambda: np.zeros(0))
    known: bool = True
    age: float = 0.0

    def __post_init__(self) -> None:
        for name, kind in (("source", np.int64), ("target", np.int64), ("rate", np.float64)):
            column = np.asarray(getattr(self, name), dtype=kind).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column[:0] if self.age > OLD else column)
        if self.rate.size and float(np.fmax.reduce(self.rate)) > MAX_EXCHANGED:
            for name in ("source", "target", "rate"):
                object.__setattr__(self, name, getattr(self, name)[:0])
            object.__setattr__(self, "known", False)
        if self.age > OLD:
            object.__setattr__(self, "known", False)
        if not self.source.shape == self.target.shape == self.rate.shape == (self.rate.size,):
            raise ValueError(
                f"an exchange of {self.source.size} sources, {self.target.size} targets, {self.rate.size} rates"
            )
        if self.rate.size and not self.known:
            raise ValueError("an exchange with entries is known")
        if not (self.rate >= 0).all():
            raise ValueError("a rate of exchange is negative or not a number; leave the pair out, or all of it unknown")

    def __len__(self) -> int:
        return self.rate.size

    def over_links(self, place: Integers, places: int) -> Floats:
        """Return the traffic between each location and all others, in both directions (bytes/s); NaN if unknown.

        Args:
            place: As in `split`. Traffic with a task without a location counts at the other end.
        """
        if not self.known:
            return np.full(places, np.nan)
        at = np.append(place, -1)
        begin, end = at[self.source], at[self.target]
        apart, over = begin != end, np.zeros(places)
        for side in (begin, end):
            there = apart & (side >= 0)
            over += np.bincount(side[there], self.rate[there], places)
        return over

    def split(self, place: Integers) -> tuple[float, float]:
        """Return the traffic within one location and between two (bytes/s), of placed pairs; NaN if unknown.

        Args:
            place: Location of each task, -1 for none; `tasks.host` for hosts.
        """
        if not self.known:
            return math.nan, math.nan
        at = np.append(place, -1)  # row -1 is placed nowhere
        begin, end = at[self.source], at[self.target]
        placed = (begin >= 0) & (end >= 0)
        same = placed & (begin == end)
        return float(self.rate[same].sum()), float(self.rate[placed & (begin != end)].sum())


# Exchange of a plant that does not measure traffic between tasks.
UNMEASURED = Exchange(known=False)


@dataclass(frozen=True, eq=False)
class Standby:
    """Standby replicas of tasks' state on other hosts; read-only columns with one entry each.

    Attributes:
        lag: Checkpoints (on Spark: committed batches) that the replica lacks; NaN if unknown.
        megabytes: Memory of the replica (MB); NaN if unknown.
        known: False if replicas exist at unknown locations. True without replicas.
        why: Sentence if fewer replicas exist than requested.
    """

    task: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    host: Integers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lag: Floats = field(default_factory=lambda: np.zeros(0))
    megabytes: Floats = field(default_factory=lambda: np.zeros(0))
    known: bool = True
    why: str = ""

    def __post_init__(self) -> None:
        for name, kind in (("task", np.int64), ("host", np.int64), ("lag", np.float64), ("megabytes", np.float64)):
            column = np.asarray(getattr(self, name), dtype=kind).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        if not self.task.shape == self.host.shape == self.lag.shape == self.megabytes.shape == (self.task.size,):
            raise ValueError(f"copies of {self.task.size} tasks on {self.host.size} hosts, {self.lag.size} lags")

    def __len__(self) -> int:
        return self.task.size


# Of a plant without standby replicas.
NO_STANDBY = Standby()


@dataclass(frozen=True, slots=True)
class Composition:
    """Alternates, branches and parallelism of a batch; a replayed batch keeps its own.

    Attributes:
        alternates: Alternate by operator.
        choices: Target by choice.
        parallelism: Number of tasks by stage.
        tables: Version of the key table by operator. Absent or 0: `alternates` for all keys.
        code: Version of the code by operator (`elastream update`). Absent or 0: that of the start.
    """

    version: int = 0
    alternates: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)
    code: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def default(cls, graph: Graph, parallelism: Mapping[str, int] | None = None) -> "Composition":
        """Return the first alternate of every operator and the first target of every choice."""
        return cls(
            0,
            {o.name: o.alternates[0].name for o in graph.operators if o.alternates},
            {name: targets[0] for name, targets in graph.choices.items()},
            dict(parallelism or {}),
        )

    def alternate(self, operator: Operator) -> Alternate:
        return operator.alternate(self.alternates.get(operator.name, operator.alternates[0].name))

    @property
    def code_version(self) -> int:
        """The newest version of code that runs."""
        return max(self.code.values(), default=0)

    def running(self, element: str) -> str | None:
        """Return the running alternate or branch of an operator or choice; None if absent."""
        return self.alternates.get(element, self.choices.get(element))


@dataclass(frozen=True)
class Context:
    """Dataflow, hosts that can be leased, and goals.

    Attributes:
        target_latency: Target latency (seconds), or None.
        limit: Name of the limit that sets `max_hosts`.
        scarce: Names of host types whose leases failed several times in a row, while none is tried.
        capabilities: Names of actions that the plant can do (`"SetParallelism"`).
        scalable: Operators whose parallelism `SetParallelism` can change. On Spark, stateful stages have fixed tasks that
            `MoveTask` moves.
        partitions: State partitions by operator whose keys `SetTokens` can divide among hosts.
        replicas: Standby replicas of each state partition (the thesis' r).
        scaling: The user's rules for the number of hosts.
        batch_seconds: Length to which micro-batches are limited where Elastream reads the sources (seconds).
    """

    layout: Layout
    host_types: Mapping[str, HostType] = field(default_factory=dict)
    target_latency: float | None = None
    max_hosts: int = 1_000_000
    min_hosts: int = 1
    capabilities: frozenset[str] = frozenset()
    scalable: frozenset[str] = frozenset()
    partitions: Mapping[str, int] = field(default_factory=dict)
    replicas: int = 0
    scaling: ScalingRules = NO_RULES
    limit: str = "max_hosts"
    scarce: frozenset[str] = frozenset()
    batch_seconds: float = 1.0

    @property
    def leasable(self) -> Mapping[str, HostType]:
        """Return the host types by name, without scarce ones unless all are scarce."""
        return {name: kind for name, kind in self.host_types.items() if name not in self.scarce} or self.host_types

    @property
    def graph(self) -> Graph:
        return self.layout.graph

    @once
    def units(self) -> tuple[Unit, ...]:
        """Return the operators that scale together, in topological order."""
        return self.layout.units(self.scalable)


@dataclass(frozen=True, slots=True)
class Sample:
    """Frame of operators at an earlier time."""

    time: float
    operators: Frame


class MicroBatch(NamedTuple):
    """Committed batch of a segment; NaN where unknown.

    Attributes:
        start: Start (seconds of the run).
        seconds: Time from start to commit (seconds).
        oldest: Latency of its first record (seconds); `newest`: of its last.
    """

    segment: str
    start: float
    seconds: float
    records: float
    oldest: float = math.nan
    newest: float = math.nan
    number: float = math.nan
    version: float = math.nan

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True)
class Observation:
    """Input of a policy: measured values, leases and goals at one time.

    Attributes:
        time: Time of the observation (seconds of the run).
        hosts: A row per active lease, in the order of `leases`.
        links: A row per pair of hosts, `"h1>h2"`.
        images: Operators whose image a host has cached, by host.
        history: Frames of operators at earlier monitoring times, oldest first.
        next_host: Number of the next unused host name.
        alarms: Active alarms, oldest first; for people.
        latency_basis: Start of the application's latency, by source; empty while unknown.
        effective: Composition of each query's last committed batch, if any.
        alternates: A row per alternate that has run, `"operator.alternate"`.
        standings: Guards' decision by dynamic element with guards.
        guards: Version of the guards in force; 0 without guards.
        stalled: Time for which an unusually long batch has run, by query (seconds). Its metrics follow at its end.
        rings: Ring by operator placed by `SetTokens`, with present hosts only.
        moving: Tasks that run elsewhere until their state reaches their host.
        remarks: Sentences for people on what cannot be observed.
        diagnoses: Causes of lateness by late query, as far as the plant diagnoses any.
        occupied: What others run or keep on a host, by host: a release waits for it.
        pinned: Why a host cannot be drained or released now, by host.
        growth: Growth of state (MB/s) by kind of memory (`memory.MemoryUse`), where it grows.
    """

    time: float
    context: Context
    operators: Frame
    application: Frame = field(default_factory=Frame)
    hosts: Frame = field(default_factory=Frame)
    tasks: TaskFrame = field(default_factory=TaskFrame)
    links: Frame = field(default_factory=Frame)
    leases: Mapping[str, Lease] = field(default_factory=dict)
    composition: Composition = field(default_factory=Composition)
    images: Mapping[str, frozenset[str]] = field(default_factory=dict)
    history: tuple[Sample, ...] = ()
    next_host: int = 1
    batches: Sequence[MicroBatch] = ()  # since the last observation; for a policy since its last round
    exchange: Exchange = UNMEASURED
    alarms: tuple[Alarm, ...] = ()
    latency_basis: Mapping[str, Basis] = field(default_factory=dict)
    effective: Mapping[str, Composition] = field(default_factory=dict)
    alternates: Frame = field(default_factory=Frame)
    signals: Signals = field(default_factory=dict)
    standings: Mapping[str, GuardDecision] = field(default_factory=dict)
    guards: int = 0
    stalled: Mapping[str, float] = field(default_factory=dict)
    rings: Mapping[str, Ring] = field(default_factory=dict)
    standby: Standby = NO_STANDBY
    moving: frozenset[TaskId] = frozenset()
    remarks: tuple[str, ...] = ()
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    occupied: Mapping[str, str] = field(default_factory=dict)
    pinned: Mapping[str, str] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.leases, Leases):
            object.__setattr__(self, "leases", Leases(self.leases))
        if any(map(_is_implausible, self.batches)):
            object.__setattr__(self, "batches", [each for each in self.batches if not _is_implausible(each)])

    def series(self, operator: str, metric: Metric, last: int | None = None) -> tuple[Floats, Floats]:
        """Return times and values of an operator's metric, oldest first, at most the `last` ones."""
        samples = [*self.history, Sample(self.time, self.operators)]
        if last is not None:
            samples = samples[-last:]
        return (
            np.array([sample.time for sample in samples]),
            np.array([sample.operators.value(operator, metric) for sample in samples]),
        )

    @property
    def explanations(self) -> tuple[str, ...]:
        """Return sentences for people on what cannot be observed, and on causes of lateness."""
        return (*self.remarks, *(each.sentence for each in self.diagnoses.values() if each.sentence))

    @property
    def beyond_hosts(self) -> bool:
        """Return True if records are late for causes that more hosts cannot cure."""
        return bool(self.diagnoses) and not any(each.hosts_help for each in self.diagnoses.values())

    @property
    def unjudged(self) -> bool:
        """Return True if the lateness of a query's records is unknown."""
        return any(not each.measured for each in self.diagnoses.values())

    @property
    def implausible(self) -> tuple[Implausible, ...]:
        """Return the impossible values read so far, which count as unknown."""
        return tuple(each for frame in self.frames.values() for each in frame.implausible)

    @property
    def frames(self) -> Mapping[Rows, Frame]:
        return {
            Rows.APPLICATION: self.application,
            Rows.OPERATOR: self.operators,
            Rows.ALTERNATE: self.alternates,
            Rows.HOST: self.hosts,
            Rows.TASK: self.tasks,
            Rows.LINK: self.links,
        }

    def overall(self, metric: Metric) -> float:
        """Return a metric of the application; NaN if unknown."""
        ids = self.application.ids
        return self.application.value(ids[0], metric) if ids else math.nan

    def latency(self, metric: Metric = Metric.LATENCY_P99) -> Reading:
        ids = self.application.ids
        return self.application.reading(ids[0], metric) if ids else Reading(None)

    @property
    def cost(self) -> float:
        """Return the cost so far; NaN if no leased host has a price."""
        leased = [lease.type for lease in self.leases.values()]
        return known_cost(self.overall(Metric.COST), leased or self.context.host_types.values())

    @once
    def backlog(self) -> float:
        """Return the records waiting at all operators with a known backlog; NaN without any."""
        return known_sum(self.operators.column(Metric.BACKLOG))

    @property
    def late(self) -> bool:
        """Return True if records wait and the last ones exceeded the target latency."""
        target, latency = self.context.target_latency, self.latency().value
        return target is not None and latency is not None and latency > target and self.backlog > 0

    @property
    def _leased(self) -> Leases:
        assert isinstance(self.leases, Leases)
        return self.leases

    @once
    def cores(self) -> Cores:
        """Return the capacity of the leased hosts, at measured speeds where known."""
        leases, measured, rows = self._leased, self.hosts.column(Metric.SPEED), self.hosts.rows
        values = measured.tolist()
        if self.hosts.ids == leases.hosts and (
            values == leases.nominal_speeds or bool((np.isnan(measured) | (measured == leases.speeds)).all())
        ):
            return leases.nominal
        speeds = {}
        for host, lease in leases.items():
            speed = values[rows[host]] if host in rows else math.nan
            speeds[host] = speed if speed == speed else lease.type.speed
        return Cores(leases, speeds)

    @property
    def capacities(self) -> Mapping[str, float]:
        """Return the capacity by leased host (cores of speed 1)."""
        return self.cores.each

    @property
    def speeds(self) -> Mapping[str, float]:
        """Return the core speed by leased host: measured if known, otherwise nominal."""
        return self.cores.speeds

    @property
    def mean_speed(self) -> float:
        return self.cores.mean_speed

    @property
    def usable(self) -> tuple[str, ...]:
        """Return the hosts that take tasks."""
        return self._leased.usable

    @property
    def working(self) -> tuple[str, ...]:
        """Return the hosts that run tasks, also draining ones."""
        return self._leased.working

    @property
    def waiting(self) -> tuple[str, ...]:
        """Return the hosts that the provider has not begun to start."""
        return tuple(name for name in self.coming if self.leases[name].state is HostState.REQUESTED)

    @property
    def coming(self) -> tuple[str, ...]:
        """Return the hosts leased but not ready."""
        return self._leased.coming

    @property
    def draining(self) -> tuple[str, ...]:
        """Return the hosts whose tasks are moving away."""
        return self._leased.draining

    @property
    def recoverable(self) -> tuple[str, ...]:
        """Return the draining hosts that nobody takes away, whose drain can be cancelled."""
        return self._leased.recoverable

    @property
    def usable_cores(self) -> tuple[float, float]:
        """Return the cores of all usable hosts and of the smallest, regardless of speed."""
        return self._leased.usable_cores

    @property
    def came(self) -> tuple[float, ...]:
        """Return when each usable host became usable."""
        return self._leased.came

    @property
    def since_change(self) -> float:
        """Return the time since a host came, or a drain began or was cancelled (seconds); inf: never."""
        return self.time - self._leased.changed

    def follows(self, operator: str, ring: Ring) -> bool:
        """Return True if every state partition of `operator` is on its owner by `ring`."""
        count, rows = self.context.partitions.get(operator, 0), self.hosts.rows
        placed = (self.tasks.operator == self.operators.rows.get(operator, -1)) & (self.tasks.index < count)
        at = np.full(count, -1, dtype=np.int64)
        at[self.tasks.index[placed]] = self.tasks.host[placed]
        owners = np.array([rows.get(node, -2) for node in ring.nodes])
        return count > 0 and bool((at == owners[ring.owners(np.arange(count) / count)]).all())

    def host_name(self, offset: int = 0) -> str:
        """Return an unused host name; `offset` 1, 2, ... for more in one plan."""
        return f"h{self.next_host + offset}"


def _is_implausible(batch: MicroBatch) -> bool:
    unknown = batch.records != batch.records
    return not (0 <= batch.seconds <= MAX_SECONDS and (unknown or 0 <= batch.records <= MAX_RECORDS))
