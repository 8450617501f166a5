"""Memory that state takes on hosts, and whether the hosts that remain can hold it."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState, HostType
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.units import format_duration

# Share of a host's limit that a release leaves free: for garbage, records under way and growth until the next round. Of a
# container that counts with the whole heap, only what is beside the heap: Spark's default is a tenth of it.
RESERVE = 0.1
# The share in which state counts as nearly full. Between the two, hosts are neither leased nor released for memory.
NEARLY = RESERVE / 2
# Seconds of growth that a release must leave room for, and that a lease is sized for.
KEEP_S = 3600.0
# Part by which limits may differ from the memory of host types. Otherwise they are the session's, whatever the type.
LIKE_TYPE = 0.1
MOVING = (HostState.DRAINING, HostState.RELEASING)
MEASURED = (Metric.STATE_HEAP, Metric.STATE_OFF_HEAP)
NAN = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Use of one kind of memory. Hosts and tasks are in the observation's order.

    Attributes:
        kind: "heap", "memory" (of the whole container) or "declared memory".
        used: By host (MB), state included.
        limit: By host (MB).
        tasks: State by task (MB).
        total: State of all operators (MB).
        fixed: By host, part of the limit that cannot grow (MB).
    """

    kind: str
    used: Floats
    limit: Floats
    tasks: Floats
    total: float
    fixed: Floats | float = 0.0

    def until_full(self, at: Integers) -> float:
        """Return the MB by which state may grow in its proportions until a host is full. `at`: host by task."""
        state = np.bincount(at[at >= 0], self.tasks[at >= 0], len(self.used))
        holds = state > 0
        left = (self.limit - self.used)[holds] * self.total / state[holds]
        return max(0.0, float(np.nanmin(left))) if holds.any() and not np.isnan(left).all() else math.inf

    @property
    def most(self) -> Floats:
        """MB that each host may fill, with RESERVE left free; NaN if unknown."""
        return self.limit - RESERVE * (self.limit - self.fixed)

    @property
    def room(self) -> Floats:
        """MB that each host may take besides; NaN if unknown."""
        return self.most - self.used


def memory_uses(observation: Observation) -> tuple[MemoryUse, ...]:
    """Return the kinds of memory in which state and limits are known."""
    hosts, leases = observation.hosts, observation.leases
    heap, native = (_state_by_task(observation, metric) for metric in MEASURED)
    declared = _declared(observation) if not heap.any() and not native.any() else heap
    uses = []
    if heap.any():
        used = np.fmax(hosts.column(Metric.HEAP), _by_host(observation, heap))
        uses.append(MemoryUse("heap", used, hosts.column(Metric.HEAP_LIMIT), heap, float(heap.sum())))
    if native.any():
        python = np.nan_to_num(hosts.column(Metric.PYTHON_MEMORY))
        # The heap grows to its limit, whatever it holds now.
        others = np.nan_to_num(hosts.column(Metric.OFF_HEAP))  # unknown after minutes without a task
        reserved = hosts.column(Metric.HEAP_LIMIT) + others + python + _by_host(observation, native)
        measured, limit = hosts.column(Metric.MEMORY), hosts.column(Metric.MEMORY_LIMIT)
        used = np.fmax(measured, reserved)
        fixed = np.where(np.isnan(reserved), 0.0, hosts.column(Metric.HEAP_LIMIT))
        uses.append(MemoryUse("memory", used, limit, native, float(native.sum()), np.fmin(fixed, limit)))
    if declared is not heap and declared.any():
        limit = np.array([leases[host].type.memory if host in leases else NAN for host in hosts.ids])
        uses.append(MemoryUse("declared memory", _by_host(observation, declared), limit, declared, float(declared.sum())))
    return tuple(uses)


@dataclass(frozen=True, slots=True)
class FilledHost:
    """Limit of a host, the part that cannot grow, and what it holds besides state (MB)."""

    type: HostType
    limit: float
    fixed: float
    others: float


@dataclass(frozen=True, slots=True)
class Lack:
    """State that does not fit on `hosts`.

    Attributes:
        need: MB used with all state.
        most: MB that the hosts may fill.
        stuck: MB of the largest partition without room.
        seconds: Time for which state grows until then; 0 if it does not grow.
    """

    kind: str
    hosts: Sequence[FilledHost]
    need: float
    most: float
    stuck: float
    seconds: float

    @property
    def missing(self) -> float:
        return max(self.stuck, self.need - self.most)

    def sentence(self, carry: str = "") -> str:
        count, then = len(self.hosts), f" in {format_duration(self.seconds)}" if self.seconds else ""
        carry = carry or ("carry" if count > 1 else "carries")
        detail = (
            f"{self.need:.0f} MB of {self.kind}{then}, of which {count} may fill {self.most:.0f} MB"
            if self.need > self.most
            else f"a partition of {self.stuck:.0f} MB of {self.kind}{then} fits on none"
        )
        return f"memory: {counted(count, 'host')} {carry} the load, {count + 1} carry the state: {detail}"

    def room(self, kind: HostType) -> float:
        """Return the MB of state that a new host of type `kind` may hold."""
        alike = [each for each in self.hosts if each.type.name == kind.name]
        limit = median(each.limit for each in alike or self.hosts)
        shares = [each.limit / each.type.memory for each in self.hosts]
        if not alike and self.kind != "heap" and all(abs(share - 1) <= LIKE_TYPE for share in shares):
            limit = median(shares) * kind.memory
        fixed = min(limit, median(each.fixed for each in self.hosts))
        return limit - RESERVE * (limit - fixed) - median(each.others for each in alike or self.hosts)


def lacking(
    observation: Observation, ahead: float, reserve: float, without: Collection[str] = (), moving: bool = False
) -> Lack | None:
    """Return the state without room on the usable hosts in `ahead` seconds. None: it fits, or memory is unknown.

    Args:
        reserve: Share of the limits to leave free.
        moving: True if only state on hosts that drain, or `without`, moves.
    """
    rows, tasks = observation.hosts.rows, observation.tasks
    hosts = [host for host in observation.usable if host not in without and host in rows]
    at = np.array([rows[host] for host in hosts], dtype=np.int64)
    going = {*without, *(name for name, lease in observation.leases.items() if lease.state in MOVING)}
    leaves = np.isin(tasks.host, [rows[host] for host in going if host in rows])
    for use in memory_uses(observation) if hosts else ():
        growth = observation.growth.get(use.kind)
        gain = growth.after(ahead) / use.total if growth else 0.0
        sizes, own = use.tasks * (1 + gain), _by_host(observation, use.tasks)
        others, grown = (use.used - own)[at], (1 + gain) * own[at]
        fixed = np.broadcast_to(use.fixed, own.shape)[at]
        most = use.limit[at] - reserve * (use.limit[at] - fixed)
        room = most - others
        if np.isnan(room).any() or (not sizes[leaves].any() and (moving or bool((grown <= room).all()))):
            continue
        placed = sizes[leaves if moving else leaves | np.isin(tasks.host, at)]
        stuck = _without_room(np.sort(placed)[::-1].tolist(), (room - grown if moving else room).tolist())
        if stuck > 0:
            need = float(others.sum() + grown.sum() + sizes[leaves].sum())
            types = [observation.leases[host].type for host in hosts]
            filled = map(FilledHost, types, use.limit[at].tolist(), fixed.tolist(), others.tolist())
            return Lack(use.kind, tuple(filled), need, float(most.sum()), stuck, ahead if gain else 0.0)
    return None


def shortage(observation: Observation, leaving: Collection[str]) -> str:
    """Return why state would not fit once the hosts `leaving` are gone, or "". Unknown memory forbids nothing."""
    # A host that holds no state stays, too, if another would be leased in its place.
    lack = lacking(observation, KEEP_S, RESERVE, leaving, moving=True)
    if lack is None and (lack := lacking(observation, KEEP_S, NEARLY, leaving)):
        before = lacking(observation, KEEP_S, NEARLY)
        lack = lack if before is None or before.missing < lack.missing else None
    return lack.sentence("would carry") if lack else ""


def measured_uses(observation: Observation) -> tuple[MemoryUse, ...]:
    measured = any(not np.isnan(observation.operators.column(metric)).all() for metric in MEASURED)
    return memory_uses(observation) if measured else ()


class StateMoves:
    """State that comes to each host, less what leaves it, by kind of memory."""

    def __init__(self, observation: Observation) -> None:
        self._observation, self._uses = observation, measured_uses(observation)
        self._more = [np.zeros(len(use.used)) for use in self._uses]

    def accept(self, moves: Mapping[TaskId, str]) -> None:
        self._more = self._with(moves)

    def refusal(self, moves: Mapping[TaskId, str]) -> str:
        """Return why the host of a move has no memory for its state beside what was accepted, or ""."""
        for use, more in zip(self._uses, self._with(moves), strict=True):
            # Processes alone may fill a reserve, and a host that fills no more than the fullest one is no worse.
            fullest = np.fmax.reduce(use.used / use.limit)
            for row in np.flatnonzero((more > 0) & (more > use.room) & (use.used + more > fullest * use.limit)).tolist():
                room = max(0.0, float(use.room[row]))
                return (
                    f"memory: {self._observation.hosts.ids[row]} may take {room:.0f} MB of {use.kind} more, "
                    f"and {more[row]:.0f} MB would move there"
                )
        return ""

    def _with(self, moves: Mapping[TaskId, str]) -> list[Floats]:
        if not self._uses:
            return []
        hosts, tasks = self._observation.hosts.rows, self._observation.tasks
        pairs = [(tasks.rows.get(str(task), -1), hosts.get(host, -1)) for task, host in moves.items()]
        rows, to = np.array([pair for pair in pairs if min(pair) >= 0], dtype=np.int64).reshape(-1, 2).T
        at, count = tasks.host[rows], len(hosts)
        left = at >= 0
        changes = (
            np.bincount(to, use.tasks[rows], count) - np.bincount(at[left], use.tasks[rows][left], count)
            for use in self._uses
        )
        return [more + change for more, change in zip(self._more, changes, strict=True)]


def _without_room(megabytes: Collection[float], room: list[float]) -> float:
    """Return the first of `megabytes`, largest first, that does not fit where most `room` is left; 0 if all fit."""
    for each in megabytes:
        most = max(range(len(room)), key=room.__getitem__)
        room[most] -= each
        if room[most] < 0:
            return each
    return 0.0


def _by_host(observation: Observation, tasks: Floats) -> Floats:
    at = observation.tasks.host
    return np.asarray(np.bincount(at[at >= 0], tasks[at >= 0], len(observation.hosts)), dtype=np.float64)


def _state_by_task(observation: Observation, metric: Metric) -> Floats:
    """Return each task's part of its operator's state, by the sizes of files; 0 if unknown."""
    tasks, states = observation.tasks, np.nan_to_num(observation.operators.column(metric))
    sizes, state = tasks.column(Metric.STATE_SIZE), np.zeros(len(tasks))
    for name in observation.context.partitions if states.any() else ():
        of = tasks.operator == observation.operators.rows.get(name, -1)
        if of.any():
            weights = sizes[of] if sizes[of].sum() > 0 else np.ones(int(of.sum()))
            state[of] = states[observation.operators.rows[name]] * weights / weights.sum()
    return state


def _declared(observation: Observation) -> Floats:
    context, tasks = observation.context, observation.tasks
    state = np.zeros(len(tasks))
    for name in context.partitions.keys() - context.scalable:
        if name in context.graph.by_name and name in observation.operators.rows:
            of = tasks.operator == observation.operators.rows[name]
            state[of] = context.graph.operator(name).memory / max(1, int(of.sum()))
    return state


def room_by_host(observation: Observation) -> tuple[Mapping[str, float], Floats]:
    """Return the room of each host (MB; inf if unknown), and the state of each task, of the scarcest kind of memory."""
    uses = [use for use in memory_uses(observation) if not np.isnan(use.room).all()]
    if not uses:
        return {}, np.zeros(len(observation.tasks))
    use = min(uses, key=lambda each: float(np.nanmin(each.room / each.limit)))
    return dict(zip(observation.hosts.ids, np.nan_to_num(use.room, nan=math.inf).tolist(), strict=True)), use.tasks
