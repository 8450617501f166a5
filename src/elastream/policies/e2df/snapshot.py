"""Conversion of an observation of one application into columns for the managers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from elastream.core.decision import Unknown
from elastream.core.frames import Floats, Integers, known_sum
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.policies.common.measures import host_capacity, tasks_on
from elastream.units import ROUNDING

Booleans: TypeAlias = NDArray[np.bool_]
Identities: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True)
class LeasedHosts:
    names: tuple[str, ...]
    region: Integers  # row of the region
    slots: Integers  # instances it may hold (C_n)
    cpu: Floats  # utilisation, 0 to 1 (U_n)
    up: Booleans  # false while the host starts
    floating: Integers | None = None  # slots used by instances without a fixed host; None without such

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {name: row for row, name in enumerate(self.names)}


@dataclass(frozen=True)
class Instances:
    operator: Integers  # row
    index: Integers  # number among the operator's instances
    host: Integers  # row, -1 if unknown
    utilisation: Floats  # share of its allowed CPU time (S_alpha), NaN if unknown
    # own share of the time, times the number of turns, where operators take turns on slots; else None
    turn: Floats | None = None

    def above(self, level: float) -> Booleans:
        """Return a mask of instances used above `level` that another instance would relieve."""
        used: Booleans = self.utilisation > level
        return used if self.turn is None else used & (self.turn > level)


@dataclass(frozen=True)
class Operators:
    """Operators. `identity` is a number independent of the other rows."""

    names: tuple[str, ...]
    application: Integers
    identity: Identities


@dataclass(frozen=True)
class Applications:
    """Applications with mean response time and target (s), NaN if unknown."""

    names: tuple[str, ...]
    response: Floats
    target: Floats


@dataclass(frozen=True)
class Snapshot:
    time: float
    regions: tuple[str, ...]
    hosts: LeasedHosts
    instances: Instances
    operators: Operators
    applications: Applications

    @cached_property
    def placed(self) -> Integers:
        """Instances on each host (A_n), shape (hosts,)."""
        on = self.instances.host[self.instances.host >= 0]
        return np.bincount(on, minlength=len(self.hosts.names)).astype(np.int64)

    @cached_property
    def free(self) -> Integers:
        """Free slots of each host (C_n - A_n), at least 0, shape (hosts,)."""
        return np.asarray(np.maximum(self.hosts.slots - self.placed, 0))

    @cached_property
    def spare(self) -> Integers:
        """Free slots not used by floating instances either, shape (hosts,).

        Floating instances take turns with placed ones and block none of them.
        """
        return self.free if self.hosts.floating is None else np.minimum(self.free, self.hosts.slots - self.hosts.floating)

    @cached_property
    def by_host(self) -> tuple[Integers, Integers]:
        placed = np.flatnonzero(self.instances.host >= 0)
        order: Integers = placed[np.argsort(self.instances.host[placed], kind="stable")]
        return order, np.r_[0, np.cumsum(self.placed)].astype(np.int64)

    @cached_property
    def critical(self) -> Booleans:
        """Applications known to exceed their target response time, shape (applications,)."""
        return np.asarray(self.applications.response > self.applications.target)


def identities(names: Sequence[str]) -> Identities:
    return np.array([crc32(name.encode()) for name in names], dtype=np.uint64)


def ranks(groups: Integers) -> Integers:
    """Return the position of each element within its group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    position = np.empty(len(groups), dtype=np.int64)
    position[order] = np.arange(len(groups)) - np.repeat(first, np.diff(np.r_[first, len(groups)]))
    return position


def snapshot_of(observation: Observation) -> Snapshot:
    """Return the managers' snapshot of an observation.

    If an operator is not scalable, its tasks on one host count as one instance (on Spark: its state partitions). Chained
    stages take turns on the same slots: each instance counts as used for all turns together, and as fully used with several
    waiting micro-batches.
    """
    context = observation.context
    leases = {h: lease for h, lease in observation.leases.items() if lease.state is not HostState.RELEASING}
    regions = tuple(sorted({*(x.type.region for x in leases.values()), *(t.region for t in context.host_types.values())}))
    at = {region: row for row, region in enumerate(regions)}
    hosts = LeasedHosts(
        tuple(leases),
        np.array([at[lease.type.region] for lease in leases.values()], dtype=np.int64),
        _slots(observation, leases),
        np.array([observation.hosts.value(host, Metric.CPU) for host in leases], dtype=np.float64),
        np.array([x.state in (HostState.RUNNING, HostState.DRAINING) for x in leases.values()], dtype=np.bool_),
        _floating_slots(observation, leases),
    )
    names = observation.operators.ids
    response = observation.latency(Metric.LATENCY).value
    target = context.target_latency
    return Snapshot(
        observation.time,
        regions,
        hosts,
        _running_instances(observation, hosts),
        Operators(names, np.zeros(len(names), dtype=np.int64), identities([f"{context.graph.name}/{n}" for n in names])),
        Applications(
            (context.graph.name,),
            np.array([math.nan if response is None else response]),
            np.array([math.nan if target is None else target]),
        ),
    )


def holds(observation: Observation, kind: HostType) -> int:
    """Return the slots of an empty host, limited by the cores and memory of instances."""
    cores, memory = _most(observation)
    return int(min(kind.slots, max(1.0, _fitting(kind, cores, memory))))


def lacking(observation: Observation, snapshot: Snapshot) -> Iterator[Unknown]:
    instances, names, tasks = snapshot.instances, snapshot.operators.names, observation.tasks
    measured = set(instances.operator[~np.isnan(instances.utilisation)].tolist())
    for row, name in enumerate(names):
        scalable = name in observation.context.scalable
        mine = np.flatnonzero(tasks.operator == row)
        if row in measured or not (scalable or len(mine)):
            continue
        if scalable and len(mine):
            task = str(tasks.tasks[int(mine[0])])
            if math.isnan(float(tasks.column(Metric.UTILISATION)[mine[0]])):
                yield Unknown(Metric.UTILISATION, Rows.TASK, task)
        elif scalable and not width(observation, row):
            yield Unknown(Metric.PARALLELISM, Rows.OPERATOR, name)
        else:
            metric = Metric.UTILISATION if _waits(observation, row) else Metric.BUSY_CORES
            if math.isnan(observation.operators.value(name, metric)):
                yield Unknown(metric, Rows.OPERATOR, name)


def _most(observation: Observation) -> tuple[float, float]:
    context = observation.context
    placed = {observation.operators.ids[row] for row in np.unique(observation.tasks.operator).tolist()}
    reserving = [context.graph.by_name[name] for name in placed & context.scalable]
    return max((o.cores for o in reserving), default=0.0), max((o.memory for o in reserving), default=0.0)


def _fitting(kind: HostType, cores: float, memory: float, used: tuple[float, float] = (0.0, 0.0)) -> float:
    room = [(kind.cores - used[0]) / cores] if cores > 0 else []
    room += [(kind.memory - used[1]) / memory] if memory > 0 else []
    return math.floor(min(room) + ROUNDING) if room else math.inf


def _slots(observation: Observation, leases: Mapping[str, Lease]) -> Integers:
    cores, memory = _most(observation)
    tasks, graph, names = observation.tasks, observation.context.graph, observation.operators.ids
    needs = np.array([(graph.by_name[name].cores, graph.by_name[name].memory) for name in names]).reshape(-1, 2)
    own = np.array([name in observation.context.scalable for name in names], dtype=np.bool_)
    slots = []
    for host, lease in leases.items():
        here = tasks.operator[tasks.host == observation.hosts.rows.get(host, -2)]
        here = here[own[here]]
        used = needs[here].sum(axis=0)
        room = _fitting(lease.type, cores, memory, (float(used[0]), float(used[1])))
        slots.append(int(min(lease.type.slots, len(here) + max(0.0, room))))
    return np.array(slots, dtype=np.int64)


def _floating_slots(observation: Observation, leases: Mapping[str, Lease]) -> Integers | None:
    """Return the slots of each host used by floating instances: first beside state, then on the oldest hosts."""
    # Spread evenly, one host more or less would change the free slots by more than its own.
    wide = int(max((width(observation, row) for row in floating(observation)), default=0.0))
    if not wide:
        return None
    slots = np.array([lease.type.slots if host in observation.usable else 0 for host, lease in leases.items()])
    order = np.argsort([tasks_on(observation, host) == 0 for host in leases], kind="stable")
    used = np.zeros(len(slots), dtype=np.int64)
    used[order] = np.diff(np.minimum(np.cumsum(slots[order]), wide), prepend=0)
    return used


# Waiting micro-batches of a query that is never idle: one waits while another runs, a second after a slow one.
LATE = 3.0
# Time within which an unloaded query starts a micro-batch (s): E2DF's period, the fastest it reacts.
TURN = 30.0
# Columns of instances: operator, index, host, utilisation.
_Part: TypeAlias = tuple[Integers, Integers, Integers, Floats]


def _running_instances(observation: Observation, hosts: LeasedHosts) -> Instances:
    context, tasks, names = observation.context, observation.tasks, observation.operators.ids
    row_of = np.array([hosts.rows.get(host, -1) for host in observation.hosts.ids] or [-1], dtype=np.int64)
    host = np.where(tasks.host >= 0, row_of[tasks.host], -1)
    scalable = np.array([name in context.scalable for name in names], dtype=np.bool_)
    own = scalable[tasks.operator]
    used = tasks.column(Metric.UTILISATION)
    placed: list[_Part] = [(tasks.operator[own], tasks.index[own], host[own], used[own])]
    pools = [_instances(observation, row) for row in _unplaced(observation) if _waits(observation, row)]
    shares = [_shares(observation, hosts, row, host) for row in np.unique(tasks.operator[~own]).tolist()]
    turns = [*shares, *(_instances(observation, row) for row in floating(observation))]
    own_turn: Floats | None = None
    if not context.layout.unchained:
        # A turn of unknown length counts as 0: its unmetered work is in the busy cores of the others.
        lengths = [float(np.nan_to_num(part[3]).max()) for part in turns]
        late = _never_idle(observation)
        whole = max(1.0, sum(lengths)) if late else sum(lengths)
        if not late:
            each = [np.full(len(part[0]), len(turns) * length) for part, length in zip(turns, lengths, strict=True)]
            own_turn = np.concatenate([_always(placed), *each, _always(pools)])
        turns = [(*part[:3], part[3] + whole - length) for part, length in zip(turns, lengths, strict=True)]
    operator, index, on, utilisation = (np.concatenate(each) for each in zip(*placed, *turns, *pools, strict=True))
    return Instances(operator, index, on, utilisation, own_turn)


def _always(parts: Sequence[_Part]) -> Floats:
    return np.full(sum(len(part[0]) for part in parts), math.inf)


def _never_idle(observation: Observation) -> bool:
    """Return True if micro-batches follow each other without a pause."""
    last, operators = {batch.segment: batch.records for batch in observation.batches}, observation.operators
    for name in (segment.name for segment in observation.context.layout.segments):
        usual = LATE * last[name] if name in last else TURN * operators.value(name, Metric.ARRIVAL_RATE)
        if operators.value(name, Metric.BACKLOG) > usual > 0:
            return True
    return False


def _shares(observation: Observation, hosts: LeasedHosts, operator: int, host: Integers) -> _Part:
    mine = host[observation.tasks.operator == operator]
    rows, count = np.unique(mine[mine >= 0], return_counts=True)
    busy = _busy(observation, observation.operators.ids[operator])
    cores = np.array([host_capacity(observation, hosts.names[row]) for row in rows.tolist()])
    return np.full(len(rows), operator), rows, rows, busy * count / len(mine) / cores


def _unplaced(observation: Observation) -> list[int]:
    scalable, placed = observation.context.scalable, set(observation.tasks.operator.tolist())
    return [
        row
        for row, name in enumerate(observation.operators.ids)
        if name in scalable and row not in placed and width(observation, row)
    ]


def floating(observation: Observation) -> list[int]:
    """Return unplaced operators whose instances take turns on slots."""
    return [row for row in _unplaced(observation) if not _waits(observation, row)]


def _instances(observation: Observation, operator: int) -> _Part:
    n, usable, name = int(width(observation, operator)), observation.usable, observation.operators.ids[operator]
    if _waits(observation, operator):
        each = observation.operators.value(name, Metric.UTILISATION)
    else:
        # Instances have equal parts of the records, so that all wait for the one on the slowest slot.
        slots = [host_capacity(observation, host) / observation.leases[host].type.slots for host in usable]
        slot = min(slots, default=math.nan)
        each = min(_busy(observation, name) / (n * slot), 1.0)  # NaN stays NaN
    return np.full(n, operator), np.arange(n), np.full(n, -1), np.full(n, each)


def width(observation: Observation, operator: int) -> float:
    return float(np.nan_to_num(observation.operators.column(Metric.PARALLELISM)[operator]))


def _waits(observation: Observation, operator: int) -> bool:
    return observation.context.graph.operator(observation.operators.ids[operator]).waits


def _busy(observation: Observation, operator: str) -> float:
    stage = observation.context.layout.stage_of[operator]
    busy = known_sum([observation.operators.value(name, Metric.BUSY_CORES) for name in stage.operators])
    return observation.mean_speed * busy
