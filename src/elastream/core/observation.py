"""What a plant observed: per metric a value or *unknown*, and its age.

Columns of numpy arrays, because policies must plan over tens of thousands of tasks in well under a second. Unknown is
NaN in a column and None in a `Reading`; it is never zero. Comparisons with NaN are false, so that a policy that does not
check for unknown does nothing rather than something wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from elastream.core.alarm import Alarm
from elastream.core.frames import OLD, Floats, Frame, Implausible, Integers, Reading, TaskFrame, known_sum
from elastream.core.guarding import Standing
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.latency import Basis
from elastream.core.leases import Cores, Leases
from elastream.core.metrics import Metric, Rows
from elastream.core.ring import Ring
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Operator
from elastream.dataflow.signals import Signals
from elastream.dataflow.stages import Layout, Unit

MOST_SECONDS, MOST_RECORDS = Metric.DURATION.quantity.most, Metric.BACKLOG.quantity.most
MOST_EXCHANGED = Metric.TRAFFIC.quantity.most
"""The most that micro-batches and exchanges can be; what is more is unknown, as in frames."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Bytes/s that tasks send each other, as measured: a sparse matrix, one entry a pair that exchanges anything.

    source, target: rows of `Observation.tasks`, int64; -1 is a sender or receiver without a host of its own, such as
    a floating source. rate: bytes/s, float64, mean over the last monitoring period. All three of one length, read-only.
    age: seconds since it was taken. known: False where nothing was measured, or it is older than OLD; then the entries are
    empty, while a pair that is missing from a known exchange sends nothing. Unknown is never zero: check `known` first.

    Raises ValueError for columns of different lengths, entries without `known`, and rates that are NaN or negative.
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
        if self.rate.size and float(np.fmax.reduce(self.rate)) > MOST_EXCHANGED:
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
        """Bytes/s that each of `places` exchanges with others, both directions; shape (places,), NaN if unknown.

        place: as in `split`. What comes from or goes to a task that is placed nowhere counts at the other end.
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
        """(bytes/s within one place, bytes/s between two) of the pairs that are both placed; NaN where unknown.

        place: by row of a task, the number of the place that it is in, -1 for none; `tasks.host` for hosts.
        """
        if not self.known:
            return math.nan, math.nan
        at = np.append(place, -1)  # row -1 is placed nowhere
        begin, end = at[self.source], at[self.target]
        placed = (begin >= 0) & (end >= 0)
        same = placed & (begin == end)
        return float(self.rate[same].sum()), float(self.rate[placed & (begin != end)].sum())


UNMEASURED = Exchange(known=False)
"""The exchange of a plant that does not measure which task sends how much to which."""


@dataclass(frozen=True, eq=False)
class Standby:
    """Copies of tasks' state that other hosts keep: one entry a copy.

    task: rows of `Observation.tasks`. host: rows of `.hosts`, of the host that keeps the copy. lag: checkpoints of the task
    (on Spark: committed batches) that the copy has not taken in yet, NaN where unknown. megabytes: memory that it takes,
    NaN where unknown. All of one length, read-only. known: False where copies are kept and nobody says which; without
    copies it is known and empty. why: one sentence where fewer copies are kept than wanted, or none can be.

    Raises ValueError for columns of different lengths.
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


NO_COPIES = Standby()
"""Of a plant that keeps no copies."""


@dataclass(frozen=True, slots=True)
class Composition:
    """What a batch runs under: the alternate of each operator, the target of each choice, the parallelism of each stage.

    `version` grows with every change; a batch has exactly one composition, and a replayed batch the same one again.
    tables: version of the key table by which an operator's alternate is chosen for each key; without one, or with 0, all
    keys run the alternate of `alternates`.
    """

    version: int = 0
    alternates: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    parallelism: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def default(cls, graph: Graph, parallelism: Mapping[str, int] | None = None) -> "Composition":
        """First alternate of every operator, first target of every choice."""
        return cls(
            0,
            {o.name: o.alternates[0].name for o in graph.operators if o.alternates},
            {name: targets[0] for name, targets in graph.choices.items()},
            dict(parallelism or {}),
        )

    def alternate(self, operator: Operator) -> Alternate:
        """The alternate of `operator` that runs: its first where nothing is said."""
        return operator.alternate(self.alternates.get(operator.name, operator.alternates[0].name))

    def running(self, element: str) -> str | None:
        """The alternate of the operator, or the branch of the choice, called `element`; None where nothing is said."""
        return self.alternates.get(element, self.choices.get(element))


@dataclass(frozen=True)
class Context:
    """The dataflow, what can be leased, and what is wanted; another value where queries come and go.

    host_types: by name. target_latency: seconds, or None. max_hosts, min_hosts: bounds on hosts leased at once.
    capabilities: names of the actions that the plant can do (`"SetParallelism"`). scalable: operators whose parallelism
    `SetParallelism` can change; on Spark that of a stateful stage is fixed and its load follows `MoveTask` instead.
    partitions: state partitions by operator whose keys `SetTokens` can divide among hosts. replicas: copies of each state
    partition that other hosts are to keep up to date (the thesis' r). scaling: the user's rules for the number of hosts.
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

    @property
    def graph(self) -> Graph:
        """The dataflow."""
        return self.layout.graph

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """What scales together, in topological order."""
        return self.layout.units(self.scalable)


@dataclass(frozen=True, slots=True)
class Sample:
    """The operators as they were at an earlier time."""

    time: float
    operators: Frame


class MicroBatch(NamedTuple):
    """A batch of a segment that was committed.

    start: seconds on the clock of the run. seconds: from there to its commit. records: taken from the source. oldest,
    newest: seconds from being due to the commit, of its first record and its last; NaN where it is not known when they
    were due. number: of the batch in its segment. version: of the composition that it ran under. Both NaN where the plant
    does not tell.
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
        """When it was committed."""
        return self.start + self.seconds


@dataclass(frozen=True)
class Observation:
    """All that a policy is given.

    time: seconds on the clock of the run. application: one row, the dataflow's name. operators: a row per operator.
    hosts: a row per active lease, in the order of `leases`. tasks: a row per placed task. links: a row per pair of hosts,
    `"h1>h2"`. leases: by host name, ended ones left out. images: operators whose image a host has cached. history: the
    operators at earlier monitoring times, oldest first, this one not included. next_host: number of the next host name
    never used, so that a pure policy can name what it leases. batches: committed since the last observation. exchange:
    what tasks send each other, unknown where that is not measured. alarms: those not cleared, the oldest first; for people,
    not for policies. latency_basis: what the application's latency is measured from, by source; empty while unknown.
    composition: the one wanted. effective: by query (segment), that of its last committed batch; left out before the first.
    alternates: a row per alternate that has run, `"operator.alternate"`: its own cost and selectivity. signals: the newest
    reading of each. standings: by dynamic element, what its guards allow; an element without guards is left out. guards:
    version of the guards in force, 0 without. rings: by operator, the ring by which its state partitions are placed, of
    hosts that are left; an operator without `SetTokens` is left out. moving: tasks whose state has not come yet to the host
    that they are placed on: they run elsewhere until then. standby: copies of state. stalled: by query, seconds
    for which a batch has been under way that takes unusually long: what its tasks take is not known until they end.
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
    batches: Sequence[MicroBatch] = ()
    exchange: Exchange = UNMEASURED
    alarms: tuple[Alarm, ...] = ()
    latency_basis: Mapping[str, Basis] = field(default_factory=dict)
    effective: Mapping[str, Composition] = field(default_factory=dict)
    alternates: Frame = field(default_factory=Frame)
    signals: Signals = field(default_factory=dict)
    standings: Mapping[str, Standing] = field(default_factory=dict)
    guards: int = 0
    stalled: Mapping[str, float] = field(default_factory=dict)
    rings: Mapping[str, Ring] = field(default_factory=dict)
    standby: Standby = NO_COPIES
    moving: frozenset[TaskId] = frozenset()

    def __post_init__(self) -> None:
        if not isinstance(self.leases, Leases):
            object.__setattr__(self, "leases", Leases(self.leases))
        if any(map(_absurd, self.batches)):
            object.__setattr__(self, "batches", [each for each in self.batches if not _absurd(each)])

    def series(self, operator: str, metric: Metric, last: int | None = None) -> tuple[Floats, Floats]:
        """(times, values) of one operator's metric, oldest first, this observation last; at most `last` of them."""
        samples = [*self.history, Sample(self.time, self.operators)]
        if last is not None:
            samples = samples[-last:]
        return (
            np.array([sample.time for sample in samples]),
            np.array([sample.operators.value(operator, metric) for sample in samples]),
        )

    @property
    def implausible(self) -> tuple[Implausible, ...]:
        """Values that cannot be and were taken as unknown, as far as they were met."""
        return tuple(each for frame in self.frames.values() for each in frame.implausible)

    @property
    def frames(self) -> Mapping[Rows, Frame]:
        """Its frames by what a row of them describes."""
        return {
            Rows.APPLICATION: self.application,
            Rows.OPERATOR: self.operators,
            Rows.ALTERNATE: self.alternates,
            Rows.HOST: self.hosts,
            Rows.TASK: self.tasks,
            Rows.LINK: self.links,
        }

    def overall(self, metric: Metric) -> float:
        """A metric of the whole dataflow; NaN if unknown."""
        ids = self.application.ids
        return self.application.value(ids[0], metric) if ids else math.nan

    def latency(self, metric: Metric = Metric.LATENCY_P99) -> Reading:
        """The application's latency."""
        ids = self.application.ids
        return self.application.reading(ids[0], metric) if ids else Reading(None)

    @property
    def backlog(self) -> float:
        """Records that wait at all operators, as far as known; NaN if nothing is."""
        return known_sum(self.operators.column(Metric.BACKLOG))

    @property
    def late(self) -> bool:
        """Whether records wait, and the last ones that were processed took longer than the target latency."""
        target, latency = self.context.target_latency, self.latency().value
        return target is not None and latency is not None and latency > target and self.backlog > 0

    @property
    def _leased(self) -> Leases:
        assert isinstance(self.leases, Leases)
        return self.leases

    @cached_property
    def cores(self) -> Cores:
        """What the cores of the leased hosts come to, at measured speeds where these are known, else at nominal ones."""
        leases, measured = self._leased, self.hosts.column(Metric.SPEED)
        if self.hosts.ids == leases.hosts and bool((np.isnan(measured) | (measured == leases.speeds)).all()):
            return leases.nominal
        known, rows = measured.tolist(), self.hosts.rows
        found = {}
        for host, lease in leases.items():
            speed = known[rows[host]] if host in rows else math.nan
            found[host] = speed if speed == speed else lease.type.speed
        return Cores(leases, found)

    @property
    def capacities(self) -> Mapping[str, float]:
        """Capacity of each leased host in cores of speed 1: its cores times its speed."""
        return self.cores.each

    @property
    def speeds(self) -> Mapping[str, float]:
        """Speed of the cores of each leased host: measured if known, else nominal."""
        return self.cores.speeds

    @property
    def mean_speed(self) -> float:
        """Speed of the usable hosts' cores on average (`Cores.mean_speed`)."""
        return self.cores.mean_speed

    @property
    def usable(self) -> tuple[str, ...]:
        """Hosts that take tasks now."""
        return self._leased.usable

    @property
    def working(self) -> tuple[str, ...]:
        """Hosts that run tasks: a draining one still runs those that are not placed."""
        return self._leased.working

    @property
    def waiting(self) -> tuple[str, ...]:
        """Hosts that were requested, and that their provider has not begun to start."""
        return tuple(name for name in self.coming if self.leases[name].state is HostState.REQUESTED)

    @property
    def coming(self) -> tuple[str, ...]:
        """Hosts leased and not ready yet."""
        return self._leased.coming

    @property
    def draining(self) -> tuple[str, ...]:
        """Hosts whose tasks are being moved away."""
        return self._leased.draining

    @property
    def usable_cores(self) -> tuple[float, float]:
        """Cores that the usable hosts have together, whatever their speed, and that the smallest has."""
        return self._leased.usable_cores

    @property
    def came(self) -> tuple[float, ...]:
        """When each usable host came into its present state."""
        return self._leased.came

    @property
    def since_change(self) -> float:
        """Seconds since a host came, or a drain was begun or cancelled; inf if never."""
        return self.time - self._leased.changed

    def follows(self, operator: str, ring: Ring) -> bool:
        """Whether every state partition of `operator` is placed on the host that owns it by `ring`."""
        count, rows = self.context.partitions.get(operator, 0), self.hosts.rows
        mine = self.tasks.operator == self.operators.rows.get(operator, -1)
        at = np.full(count, -1, dtype=np.int64)
        known = mine & (self.tasks.index < count)
        at[self.tasks.index[known]] = self.tasks.host[known]
        wanted = np.array([rows.get(node, -2) for node in ring.nodes])
        return count > 0 and bool((at == wanted[ring.owners(np.arange(count) / count)]).all())

    def host_name(self, offset: int = 0) -> str:
        """A name that no host of this run has had; `offset` for the second, third, ... in one plan."""
        return f"h{self.next_host + offset}"


def _absurd(batch: MicroBatch) -> bool:
    """Whether a batch has a duration or size that cannot be: then nothing is known of it."""
    return not (0 <= batch.seconds <= MOST_SECONDS and 0 <= batch.records <= MOST_RECORDS)
