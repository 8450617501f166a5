"""Memory of state on hosts, and checks that remaining hosts can hold it."""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.units import ROUNDING, format_duration

# Share of a host's limit that a release leaves free: for garbage, records under way and growth until the next round. Of a
# container that counts with the whole heap, only what is beside the heap: Spark's default is a tenth of it.
RESERVE = 0.1
# Time whose growth a release leaves room for, and that a host works before state may fill the others (seconds).
KEEP_S, MARGIN_S = 3600.0, 600.0
# Memory that the dataflow declares, where none is measured.
DECLARED = "declared memory"
MOVING = (HostState.DRAINING, HostState.RELEASING)
MEASURED = (Metric.STATE_HEAP, Metric.STATE_OFF_HEAP)
NAN = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class MemoryUse:
    """Use of one kind of memory. Hosts and tasks are in the observation's order.

    Attributes:
        kind: "heap", "memory" (of the whole container) or DECLARED.
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
        holds = (state > 0) & ~(self.used - state > self.limit)  # others than state fill some
        left = (self.limit - self.used)[holds] * self.total / state[holds]
        return max(0.0, float(np.nanmin(left))) if holds.any() and not np.isnan(left).all() else math.inf

    def up_to(self, reserve: float) -> Floats:
        """Return the MB that each host may fill with a share `reserve` left free; NaN if unknown."""
        return self.limit - reserve * (self.limit - self.fixed)

    def grown(self, megabytes: float, at: Integers) -> "MemoryUse":
        """Return the use with `megabytes` of state more, in its proportions. `at`: host by task."""
        more = self.tasks * (megabytes / self.total)
        used = self.used + np.bincount(at[at >= 0], more[at >= 0], len(self.used))
        return replace(self, used=used, tasks=self.tasks + more, total=self.total + megabytes)

    @property
    def room(self) -> Floats:
        """MB that each host may take besides; NaN if unknown."""
        return self.up_to(RESERVE) - self.used


def memory_uses(observation: Observation, ahead: float = 0.0) -> tuple[MemoryUse, ...]:
    """Return the kinds of memory with known state and limits. Growing state has grown for `ahead` seconds."""
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
        others = others + np.nan_to_num(hosts.column(Metric.COPIES_MEMORY))
        reserved = hosts.column(Metric.HEAP_LIMIT) + others + python + _by_host(observation, native)
        measured, limit = hosts.column(Metric.MEMORY), hosts.column(Metric.MEMORY_LIMIT)
        used = np.fmax(measured, reserved)
        fixed = np.where(np.isnan(reserved), 0.0, hosts.column(Metric.HEAP_LIMIT))
        uses.append(MemoryUse("memory", used, limit, native, float(native.sum()), np.fmin(fixed, limit)))
    if declared is not heap and declared.any():
        limit = np.array([leases[host].type.memory if host in leases else NAN for host in hosts.ids])
        uses.append(MemoryUse(DECLARED, _by_host(observation, declared), limit, declared, float(declared.sum())))
    if not ahead or not observation.growth:
        return tuple(uses)
    return tuple(use.grown(observation.growth.get(use.kind, 0.0) * ahead, observation.tasks.host) for use in uses)


def _growing_for(observation: Observation, seconds: float) -> float:
    # State that fills a window grows for a while, so a young run foresees no more than its own length.
    return max(0.0, min(seconds, observation.time))


def until_help(observation: Observation) -> float:
    """Return the seconds until a host requested now has worked for MARGIN_S, at most KEEP_S."""
    start = max((kind.start for kind in observation.context.leasable.values()), default=0.0)
    return _growing_for(observation, min(KEEP_S, start + MARGIN_S))


@dataclass(frozen=True, slots=True)
class Fit:
    """Fit of state on hosts in one kind of memory.

    Attributes:
        need: Memory used with all state (MB).
        most: Memory that the hosts may fill (MB).
        stuck: State of the largest partition without room (MB); 0 if all fit.
        missing: State of all partitions without room (MB).
        staying: Part of `missing` on hosts that stay (MB).
        seconds: Forecast horizon; 0 without growth.
    """

    kind: str
    hosts: int
    need: float
    most: float
    stuck: float
    missing: float
    staying: float
    seconds: float

    @property
    def sentence(self) -> str:
        when = f" in {format_duration(self.seconds)}" if self.seconds else ""
        if self.need > self.most:
            return f"{self.need:.0f} MB of {self.kind}{when}, of which {self.hosts} may fill {self.most:.0f} MB"
        return f"a partition of {self.stuck:.0f} MB of {self.kind}{when} fits on none"


def fits(
    observation: Observation, ahead: float, reserve: float, leaving: Collection[str] = (), *, partial: bool = False
) -> Iterator[Fit]:
    """Yield whether state fits on the hosts that stay, by kind of memory that is known on all of them.

    Args:
        ahead: Seconds for which growing state grows.
        reserve: Share of each limit to leave free.
        leaving: Hosts whose state moves, besides draining ones.
        partial: Yield also kinds that are known on some; the others take nothing.
    """
    rows, tasks, standby = observation.hosts.rows, observation.tasks, observation.standby
    going = {*leaving, *(name for name, lease in observation.leases.items() if lease.state in MOVING)}
    at = [rows[host] for host in observation.usable if host not in going and host in rows]
    away, gone = (np.isin(each, [rows[host] for host in going if host in rows]) for each in (tasks.host, standby.host))
    held = np.nan_to_num(standby.megabytes)
    # A copy of state that leaves takes its place; where others stay, they make it anew, as those of hosts that leave.
    leaves = np.isin(standby.task, np.flatnonzero(away))
    copies = held[(gone | leaves) & (held > 0)].tolist() if len(at) > 1 else []
    becomes = np.bincount(standby.host, held * leaves, len(observation.hosts))
    for use in memory_uses(observation, ahead) if at else ():
        known = [host for host in at if not math.isnan(use.room[host])]  # a new host tells its limit after seconds
        use = use if use.kind == DECLARED else replace(use, used=use.used - becomes)
        most, excess = use.up_to(reserve), (-use.room)[known].tolist()
        room, moving = (most - use.used)[known].tolist(), use.tasks[away].tolist()
        moving += copies if use.kind != DECLARED else []
        if not known or (len(known) < len(at) and not partial):
            continue
        need, spilled, full = float(use.used[known].sum()) + math.fsum(moving), list[float](), set[int]()
        for host, row in enumerate(known):
            pieces = spill(use.tasks[tasks.host == row].tolist(), -room[host], excess[host]) if room[host] < 0 else ()
            spilled += [size for _, size in pieces]
            full |= {host} if room[host] < 0 else set()
            room[host] += math.fsum(size for _, size in pieces)
        without = _without_room([*((size, True) for size in spilled), *((size, False) for size in moving)], room, full)
        yield Fit(
            use.kind,
            len(known),
            need,
            float(most[known].sum()),
            stuck=max((size for size, _ in without), default=0.0),
            missing=math.fsum(size for size, _ in without),
            staying=math.fsum(size for size, stays in without if stays),
            seconds=ahead if use.kind in observation.growth else 0.0,
        )


def spill(sizes: Sequence[float], excess: float, least: float) -> Sequence[tuple[int, float]]:
    """Return positions and sizes of the smallest partitions that free a host of `excess` MB.

    None leave if they do not free it of `least` MB: other memory fills it.
    """
    left, chosen = sorted((size, position) for position, size in enumerate(sizes) if size > 0), []
    while excess > 0 and left and math.fsum(sizes) >= least:
        size, position = left.pop(min(bisect_left(left, (excess, 0)), len(left) - 1))
        chosen.append((position, size))
        excess -= size
    return chosen


def shortage(observation: Observation, leaving: Collection[str]) -> str:
    """Return why state would not fit without the hosts `leaving`, or "". Unknown memory forbids nothing."""
    # A partition that already fits on no host is no reason to keep one.
    ahead = _growing_for(observation, KEEP_S)
    staying = {fit.kind: fit.staying for fit in fits(observation, ahead, RESERVE, partial=True)}
    for fit in fits(observation, ahead, RESERVE, leaving, partial=True):
        if fit.missing > fit.staying or fit.staying > staying.get(fit.kind, 0.0) * (1 + ROUNDING):
            carry = f"{counted(fit.hosts, 'host')} would carry the load, {fit.hosts + 1} carry the state"
            return f"memory: {carry}: {fit.sentence}"
    return ""


class StateMoves:
    """State that arrives at each host minus what leaves, by kind of memory."""

    def __init__(self, observation: Observation) -> None:
        measured = any(not np.isnan(observation.operators.column(metric)).all() for metric in MEASURED)
        self._observation = observation
        self._uses = memory_uses(observation, until_help(observation)) if measured else ()
        self._more = [np.zeros(len(use.used)) for use in self._uses]
        # Tasks that move count at their new host already; its container was measured before their state comes.
        for task in observation.moving:
            row = observation.tasks.rows.get(str(task))
            if row is not None and (at := observation.tasks.host[row]) >= 0:
                self._add(row, at, 1.0, "memory")

    def accept(self, task: TaskId, host: str) -> None:
        if (move := self._rows(task, host)) is not None:
            row, to, at = move
            self._add(row, to, 1.0)
            if at >= 0:
                self._add(row, at, -1.0)

    def refusal(self, task: TaskId, host: str) -> str:
        """Return why `host` has no memory for the state of `task` beside what was accepted, or ""."""
        if (move := self._rows(task, host)) is None:
            return ""
        row, to, at = move
        for use, accepted in zip(self._uses, self._more, strict=True) if at != to else ():
            more = float(accepted[to] + use.tasks[row])
            # Processes alone may fill a reserve, and a host that fills no more than the fullest one is no worse.
            fullest = float(np.fmax.reduce(use.used / use.limit))
            if more > 0 and more > use.room[to] and use.used[to] + more > fullest * use.limit[to]:
                room = max(0.0, float(use.room[to]))
                return f"memory: {host} may take {room:.0f} MB of {use.kind} more, and {more:.0f} MB would move there"
        return ""

    def _add(self, row: int, host: int, times: float, kind: str | None = None) -> None:
        for use, more in zip(self._uses, self._more, strict=True):
            more[host] += times * use.tasks[row] * (kind in (None, use.kind))

    def _rows(self, task: TaskId, host: str) -> tuple[int, int, int] | None:
        """Return the rows of the task, of `host` and of its present host (-1: none); None if unknown."""
        tasks = self._observation.tasks
        row, to = tasks.rows.get(str(task)), self._observation.hosts.rows.get(host)
        return None if row is None or to is None else (row, to, int(tasks.host[row]))


def _without_room(
    pieces: Collection[tuple[float, bool]], room: list[float], full: Collection[int]
) -> Sequence[tuple[float, bool]]:
    """Return those `pieces` (MB, whether it stays) that do not fit if each moves, largest first, to the most `room`.

    full: Hosts that pieces leave. Only such pieces may use what becomes free there.
    """
    without = []
    for each in sorted(pieces, reverse=True):
        open_to = [host for host in range(len(room)) if each[1] or host not in full]
        most = max(open_to, key=room.__getitem__, default=-1)
        if each[0] > 0 and (most < 0 or each[0] > room[most]):
            without.append(each)
        elif most >= 0:
            room[most] -= each[0]
    return without


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
            state[of] = by_partition(float(states[observation.operators.rows[name]]), sizes[of])
    return state


def by_partition(megabytes: float, sizes: Floats) -> Floats:
    """Divide the state of an operator among its partitions by the sizes of their files; equally if none is known."""
    weights: Floats = np.nan_to_num(sizes)
    if not weights.sum() > 0:
        weights = np.ones(len(sizes))
    return np.asarray(megabytes * weights / weights.sum(), dtype=np.float64)


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
