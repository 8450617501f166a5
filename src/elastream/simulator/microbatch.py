"""Simulation of one query as on Spark: micro-batches through its stages, one after the other.

A batch starts at its trigger once the previous one has ended, and takes due records up to the governor's limit. A stage
lasts as long as its most loaded host.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState
from elastream.core.observation import Composition, MicroBatch
from elastream.core.ring import Ring, in_zones
from elastream.dataflow.operators import Operator
from elastream.dataflow.stages import Segment, Stage
from elastream.policies.common.governor import REMEMBERED, Governor
from elastream.simulator import batching
from elastream.simulator.batching import Burdens, Output, QueryState, Rules, Turn
from elastream.simulator.costs import Demand
from elastream.simulator.draws import uniform
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import NOTHING, Items, Station, joined, neighbours
from elastream.units import ROUNDING


class TaskPlaces(NamedTuple):
    """Tasks of a stage by host.

    Attributes:
        loading: Tasks that must load state.
        heaviest: Fraction of the heaviest task.
        copied: Fraction of the state copied there.
    """

    hosts: Integers
    tasks: Integers
    loading: Integers
    share: Floats
    heaviest: Floats
    copied: Floats


class StageStation(Station):
    """A stage with partitions as instances; keyed ones have hosts but reserve no capacity."""

    def __init__(self, stage: Stage, stream: int, limit: float | None, settings: Settings, seed: int) -> None:
        super().__init__(Operator(stage.name, max_duration=limit, cores=1.0), stream, settings, seed)
        self.stage = stage
        self.due = math.nan
        self.served = False
        self.working = 0.0
        self.where: Mapping[int, int] = {}
        self.fresh: Mapping[int, int] = {}
        self.interrupted = False
        self.now = 0.0
        self.standby: Mapping[int, frozenset[int]] = {}

    @property
    def skewed(self) -> bool:
        return self.placed and self.name in self.settings.shares

    @property
    def shares(self) -> Floats:
        if not self.skewed:
            return super().shares
        mine = self.settings.by_instance(self.settings.shares, self.name, self.crew.index, self.now)
        return np.asarray(mine / mine.sum()) if mine.sum() > 0 else super().shares

    @property
    def needs(self) -> tuple[float, float]:
        """Token cores: reserve nothing, but make the pool spread partitions evenly."""
        return 1e-6, 0.0

    @property
    def placed(self) -> bool:
        return self.stage.keyed

    @property
    def backlog(self) -> float:
        """Due records not yet taken; NaN before the first batch and in later stages."""
        return self.due if self.served else math.nan

    @property
    def queued(self) -> float:
        return 0.0 if math.isnan(self.due) else self.due

    @property
    def in_service(self) -> float:
        return self.working

    @property
    def unfinished(self) -> bool:
        return self.queued > 1e-6 or self.working > 1e-6

    @property
    def settled(self) -> bool:
        """True if all partitions are on their target hosts with state."""
        if not self.placed:
            return True
        target = {int(i): int(host) for i, host in zip(self.crew.index, self.crew.host, strict=True) if host >= 0}
        return self.where == target and self.fresh == target

    def settle(self) -> None:
        """End a batch: move partitions to new hosts, as far as `landed` allows."""
        target = {int(i): int(host) for i, host in zip(self.crew.index, self.crew.host, strict=True) if host >= 0}
        self.where, self.fresh = landed(self.where, target), self.where

    def locate(self, pool: SimulatedHosts) -> TaskPlaces:
        """Return the partitions' hosts; a standby host loads nothing."""
        if not self.where:
            self.settle()
        now, up = {}, pool.up
        for i, host in zip(self.crew.index.tolist(), self.crew.host.tolist(), strict=True):
            place = self.where.get(i, -1)
            place = place if place >= 0 and up[place] else host
            if place >= 0:
                now[i] = place
        self.where = {**self.where, **now}  # tasks of a lost host move to their targets with this batch
        new = [host for i, host in now.items() if self.fresh.get(i, host) != host and host not in self.standby.get(i, ())]
        self.standby = self._copies(now, pool)
        holders = set(now.values()).union(*self.standby.values())
        hosts = np.array(sorted(holders), dtype=np.int64)
        at = {host: row for row, host in enumerate(hosts.tolist())}
        tasks, loading = np.zeros(hosts.size, dtype=np.int64), np.zeros(hosts.size, dtype=np.int64)
        share, heaviest, copied = (np.zeros(hosts.size) for _ in range(3))
        whole = dict(zip(self.crew.index.tolist(), self.shares.tolist(), strict=True))
        for i, host in now.items():
            tasks[at[host]] += 1
            share[at[host]] += whole[i]
            heaviest[at[host]] = max(heaviest[at[host]], whole[i])
            for other in self.standby.get(i, ()):
                copied[at[other]] += whole[i]
        for host in new:
            loading[at[host]] += 1
        if not self.skewed:  # in equal parts, without the rounding of a sum
            share, heaviest = tasks / max(1, len(now)), (tasks > 0) / max(1, len(now))
        return TaskPlaces(hosts, tasks, loading, share, heaviest, copied)

    def _copies(self, now: Mapping[int, int], pool: SimulatedHosts) -> dict[int, frozenset[int]]:
        r, usable = (
            self.settings.replicas,
            [pool.leases[row].host for row in pool.active.tolist() if pool.up[row] and pool.open[row]],
        )
        if not r or len(usable) < 2:
            return {}
        even = Ring.even(in_zones({host: pool.leases[pool.rows[host]].zone for host in usable}))
        ring = self.ring if self.ring is not None and set(self.ring) <= set(usable) else even
        standby: dict[int, frozenset[int]] = {}
        for i, row in now.items():
            host = pool.leases[row].host
            after = (ring if host in ring else even).successors(host, r) if host in even else ()
            standby[i] = frozenset(pool.rows[each] for each in after)
        return standby

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove partitions; after a loss the current batch restarts."""
        self.interrupted = self.interrupted or lost


def landed(where: Mapping[int, Any], target: Mapping[int, Any]) -> dict[int, Any]:
    """Return each task's host in the next batch, on the way from `where` to `target`.

    A host receives at most one moved task per batch, as on Spark.
    """
    taking: set[Any] = set()
    hosts = {}
    for task, host in target.items():
        before = where.get(task, host)
        hosts[task] = before if before != host and host in taking else host
        if before != host:
            taking.add(host)
    return hosts


def dealt(tasks: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return tasks per host, dealt one by one, free slots first."""
    dealt = np.zeros(slots.size, dtype=np.int64)
    for _ in range(tasks if slots.size else 0):
        dealt[np.lexsort((dealt, dealt // slots))[0]] += 1
    return dealt


# First random-number stream of queries' batches.
BATCH_STREAM = 2_000_000
# Most batches of one compiled call.
BATCHES_A_CALL = 1024
# Rows allocated for a queue; a full one drops the rows already taken.
LEAST_ROOM = 1 << 13
# Longer queues merge neighbouring rows, each at most 4 / 65,536 of the queue.
MOST_ROWS = 1 << 16
# States of a host that is requested but not yet running.
COMING = (HostState.REQUESTED, HostState.STARTING)


class Committed(NamedTuple):
    """Commits of a query under one composition; `done` has the records themselves where another query reads them."""

    demand: Demand
    records: float
    since: float
    until: float
    done: Items


class FusedSegment:
    """One query: its queue of records, current batch, and stages.

    Attributes:
        running: Demand of the current or last batch.
        later: Flows of newer compositions, with epochs; they count as arrived.
    """

    def __init__(
        self,
        segment: Segment,
        stations: Mapping[str, StageStation],
        settings: Settings,
        seed: int,
        stream: int,
        demand: Demand,
    ) -> None:
        self.segment = segment
        self.settings = settings
        self.stations = [stations[stage.name] for stage in segment.stages]
        self.leader = self.stations[0]
        self.queue = Items(np.empty(1 << 10), np.empty(1 << 10), np.empty(1 << 10))
        self.marks = np.zeros(10, dtype=np.int64)
        self.marks[batching.MEMORY_SIZE] = -2
        self.state = np.zeros(13)
        self.state[batching.STARTS], self.state[batching.ENDS] = -math.inf, math.inf
        self.query = QueryState(
            self.marks, self.state, np.zeros((2, REMEMBERED)), np.empty((2, 1 << 10)),
            np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(1), np.zeros(0),
        )  # fmt: skip
        self.open = self.table = np.zeros((1, batching.WITHIN + self.leader.limits.size))
        self.log = np.zeros((0, 5))
        self._ended: list[Floats] = []
        self.demand = self.running = demand
        self.effective: Composition | None = None
        self.later: list[tuple[int, Items]] = []
        self.served: dict[int, int] = {}
        ratios = np.array(settings.batch_ratios, dtype=np.float64)
        # Slow batches occur in runs (interference on the machine): the order is kept, the start is random.
        first_ratio = int(uniform(seed, BATCH_STREAM + stream, 0) * ratios.size)
        self.rules = Rules(
            settings.batch_overhead, settings.batch_work, settings.state_load, settings.start_delay,
            settings.batch_interval, settings.governed, ratios, first_ratio, self.leader.limits, stream,
        )  # fmt: skip
        self._burdens: tuple[tuple[int, ...], Burdens] | None = None

    def fork(self, stations: Mapping[str, StageStation]) -> "FusedSegment":
        other = copy.copy(self)
        other.stations = [stations[station.name] for station in self.stations]
        other.leader = other.stations[0]
        other.queue = Items(*(column.copy() for column in self.queue))
        other.query = copy.deepcopy(self.query)
        other.marks, other.state = other.query.marks, other.query.state
        other.served = dict(self.served)
        other.later = list(self.later)
        return other

    @property
    def steady(self) -> bool:
        """True if batch after batch runs under one composition and placement until hosts or actions change them."""
        composition = self.demand.composition
        placed = self._burdens is not None and not self._burdens[1].careful
        return placed and self.leader.served and self.running is self.demand and self.effective is composition

    def govern(self, rate: float) -> None:
        """Limit batch sizes as Elastream's sources do, from a first `rate` (records/s)."""
        seconds = self.settings.governed
        # Arrivals within two batch durations are not treated as a burst (`spark.dataflow.sources`).
        self.state[batching.ALLOWANCE] = max(Governor(seconds).allowance, int(2 * seconds * rate))
        self.marks[batching.MEMORY_SIZE] = -1

    def begin(self, pool: SimulatedHosts, turn: Turn) -> None:
        """Begin an advance, with a row of `table` for each of its periods."""
        marks, number = self.marks, self.rules.number
        self.table = np.zeros((turn.ends.size, self.table.shape[1]))
        self.table[0] = self.open
        self._ended = [self.log]
        if marks[batching.RUNNING] and any(station.interrupted for station in self.stations):
            # A batch that waited for another query's tasks waits for them again.
            waited = self.state[batching.CHARGED] > turn.begin
            self._restart(max(turn.begin, turn.until.max()) if waited else turn.begin)
        for station in self.stations:
            station.interrupted = False
        if marks[batching.RUNNING]:
            hosts = int(marks[batching.CHARGED_HOSTS])
            turn.until[number] = self.state[batching.ENDS]
            turn.used[number, self.query.charged[:hosts]] = self.query.used[:hosts]
        marks[batching.PERIOD] = 0

    def receive(self, epoch: int, flow: Items, turn: Turn) -> None:
        """Queue records of the composition `epoch`; those of one newer than the next batch's are set aside."""
        if epoch > self.demand.epoch and flow.times.size:
            self.later.append((epoch, flow))
            self.table[0, batching.ARRIVED] += flow.total
        elif flow.times.size:
            periods = turn.ends.searchsorted(flow.times, side="right")
            np.add.at(self.table[:, batching.ARRIVED], np.maximum(periods, self.marks[batching.PERIOD]), flow.counts)
            self._append(flow)
        self.marks[batching.ASIDE] = len(self.later)

    def due(self, pool: SimulatedHosts, turn: Turn) -> float:
        """Return when the running batch ends, or the next one starts; inf without waiting records or tasks."""
        if self.marks[batching.RUNNING]:
            return float(self.state[batching.ENDS])
        if not self.waits or not self._burdened(pool, turn).share.any(axis=1).all():
            return math.inf
        first = float(self.queue.times[self.marks[batching.HEAD]])
        return float(batching.next_start(first, self.state, self.rules.interval, turn.begin))

    def run(self, pool: SimulatedHosts, turn: Turn) -> list["Committed"]:
        """Execute batches until the end of `turn`; return commits by composition."""
        marks, in_work = self.marks, bool(self.marks[batching.RUNNING])
        ended, sent = [], []
        work = np.array([self.demand.work[station.name] for station in self.stations])
        more, any_begun = True, 0
        while more:
            burdens = self._burdened(pool, turn)
            self._make_room(burdens.hosts.size)
            rows = int(marks[batching.TAIL] - marks[batching.FIRST]) + BATCHES_A_CALL
            output = Output(self.table, np.empty((BATCHES_A_CALL, 5)), np.empty((rows if self.segment.outputs else 0, 3)))
            more, begun, committed, emitted = batching.run_batches(
                self.queue, self.query, burdens, work, self.rules, turn, output
            )
            ended.append(output.batches[:committed])
            sent.append(output.done[:emitted])
            any_begun += begun
            if burdens.careful:
                self._note_placed(pool, begun, committed)
        batches = np.concatenate(ended)
        done = Items(*np.concatenate(sent).T) if self.segment.outputs else NOTHING
        parts = self._split_by_demand(batches, done, in_work)
        if parts:
            self.effective = parts[-1].demand.composition
            self._ended.append(batches)
        if any_begun:
            self.running = self.demand
        return parts

    def end(self) -> None:
        self.open = self.table[-1:].copy()
        self.log = np.concatenate(self._ended)
        self._update_leader()

    def _restart(self, now: float) -> None:
        state = self.state
        state[batching.STARTS], state[batching.ENDS] = now, now + state[batching.LASTS]
        state[batching.CHARGED] = now

    def _note_placed(self, pool: SimulatedHosts, begun: int, committed: int) -> None:
        for row in np.flatnonzero(pool.up[: len(pool)]).tolist() if begun else ():
            self.served[row] = self.served.get(row, 0) + 1
        for station in self.stations if committed else ():
            if station.placed:
                station.settle()

    def _split_by_demand(self, batches: Floats, done: Items, in_work: bool) -> list["Committed"]:
        if not batches.shape[0]:
            return []
        ends = batches[:, 0] + batches[:, 1]
        if not in_work or self.running is self.demand:
            return [Committed(self.demand, float(batches[:, 2].sum()), float(ends[0]), float(ends[-1]), done)]
        cut = int(done.times.searchsorted(done.times[0], side="right")) if done.times.size else 0
        before, after = Items(*(column[:cut] for column in done)), Items(*(column[cut:] for column in done))
        parts = [Committed(self.running, float(batches[0, 2]), float(ends[0]), float(ends[0]), before)]
        if batches.shape[0] > 1:
            rest = float(batches[1:, 2].sum())
            parts.append(Committed(self.demand, rest, float(ends[1]), float(ends[-1]), after))
        return parts

    @property
    def oldest(self) -> int:
        return min(self.running.epoch, self.demand.epoch) if self.marks[batching.RUNNING] else self.demand.epoch

    @property
    def waits(self) -> bool:
        return bool(self.marks[batching.HEAD] < self.marks[batching.TAIL])

    def turn(self, demand: Demand, *, at_once: bool = False) -> None:
        """Use `demand` for the next batches; `at_once` includes the running batch."""
        self.demand = demand
        if at_once:
            self.running = demand
        if self.later:
            released = [flow for epoch, flow in self.later if epoch <= demand.epoch]
            self.later = [each for each in self.later if each[0] > demand.epoch]
            self._append(joined(released))  # they were counted on arrival

    def hold(self, epoch: int) -> None:
        """Set waiting records aside until the composition of `epoch`."""
        marks = self.marks
        rows = slice(int(marks[batching.HEAD]), int(marks[batching.TAIL]))
        if rows.stop > rows.start:
            self.later.append((epoch, Items(*(column[rows].copy() for column in self.queue))))
        marks[batching.TAIL] = marks[batching.HEAD]

    def _update_leader(self) -> None:
        marks, state = self.marks, self.state
        if marks[batching.HEAD] == marks[batching.TAIL] and not self.later:
            state[batching.WAITING] = -self.open[0, batching.ARRIVED]  # rounding must not add up over a long run
        self.leader.due = max(0.0, state[batching.WAITING] + self.open[0, batching.ARRIVED])
        self.leader.served = self.leader.served or self.log.shape[0] > 0
        for station in self.stations:
            station.working = state[batching.BATCH_SIZE] * self.running.volume[station.name]

    def _append(self, flow: Items) -> None:
        marks, size = self.marks, flow.times.size
        if not size:
            return
        if marks[batching.TAIL] + size > self.queue.times.size:
            first, waiting = int(marks[batching.FIRST]), slice(int(marks[batching.HEAD]), int(marks[batching.TAIL]))
            in_work = [column[first : waiting.start] for column in self.queue]
            rest = Items(*(column[waiting] for column in self.queue))
            while rest.times.size > MOST_ROWS and rest.times[-1] <= flow.times[0]:
                rest = paired(rest)
            columns = [np.concatenate(parts) for parts in zip(in_work, rest, strict=True)]
            room = max(LEAST_ROOM, 2 * (columns[0].size + size))
            self.queue = Items(*(np.concatenate([column, np.zeros(room - column.size)]) for column in columns))
            marks[batching.FIRST], marks[batching.HEAD] = 0, in_work[0].size
            marks[batching.TAIL] = columns[0].size
        head, tail = int(marks[batching.HEAD]), int(marks[batching.TAIL])
        if tail > head and flow.times[0] < self.queue.times[tail - 1]:  # a source's records are known ahead
            head += int(self.queue.times[head:tail].searchsorted(flow.times[0], side="right"))
            flow, tail = joined([Items(*(column[head:tail].copy() for column in self.queue)), flow]), head
        for column, more in zip(self.queue, flow, strict=True):
            column[tail : tail + flow.times.size] = more
        marks[batching.TAIL] += size

    def _make_room(self, hosts: int) -> None:
        marks = self.marks
        need = int(marks[batching.SPENT] + marks[batching.TAIL] - marks[batching.FIRST]) + BATCHES_A_CALL
        if need > self.query.spent.shape[1]:
            self.query = self.query._replace(spent=np.concatenate([self.query.spent, np.empty((2, need))], axis=1))
        if (more := hosts - self.query.charges.size) > 0:
            query = self.query
            charges, used = np.pad(query.charges, (0, more)), np.pad(query.used, (0, more))
            self.query = query._replace(charged=np.pad(query.charged, (0, more)), charges=charges, used=used)

    def _burdened(self, pool: SimulatedHosts, turn: Turn) -> Burdens:
        for station in self.stations:
            station.now = turn.begin
        slot = self.settings.share_slot(turn.begin) if self.settings.shares else 0
        version = (pool.changes, pool.placements, turn.interval, slot, *(len(station.crew) for station in self.stations))
        if self._burdens is None or self._burdens[0] != version or self._burdens[1].careful:
            self._burdens = (version, self._locate(pool, turn.speed))
        return self._burdens[1]

    def _locate(self, pool: SimulatedHosts, speeds: Floats) -> Burdens:
        settings, count = self.settings, len(pool)
        parts = [self._tasks(station, pool) for station in self.stations]
        shape = (len(parts), count)
        tasks, loading, share, heaviest, copied = (np.zeros(shape) for _ in range(5))
        for stage, part in enumerate(parts):
            tasks[stage, part.hosts], loading[stage, part.hosts] = part.tasks, part.loading
            share[stage, part.hosts], heaviest[stage, part.hosts] = part.share, part.heaviest
            copied[stage, part.hosts] = part.copied
        rows = np.flatnonzero(pool.up[:count] | (tasks.sum(axis=0) > 0))
        tasks, loading, share, heaviest, copied = (each[:, rows] for each in (tasks, loading, share, heaviest, copied))
        slots = np.array([pool.leases[row].type.slots for row in rows.tolist()])
        young = np.array([self.served.get(row, 0) < settings.settling_batches for row in rows.tolist()], dtype=bool)
        young &= settings.settling_boost != 1.0
        # In the first batches of a host, the JVM compiles on the cores that tasks leave idle.
        boosted = np.where(young & pool.up[rows], pool.cores[rows] * settings.settling_boost, 0.0)
        cores = pool.cores[rows] * settings.delivered * np.where(young, settings.settling_boost, 1.0)
        speed = speeds[rows]
        busy = np.maximum(tasks, copied > 0)  # a standby replica has a thread of its own
        pace = np.maximum(np.minimum(cores, np.minimum(busy, slots)) * speed, ROUNDING)
        share = share + settings.replica_work * copied
        # A task is one thread, so the heaviest one may last longer than all tasks of the host in equal parts.
        one = np.maximum(np.minimum(1.0, cores) * speed, ROUNDING)
        alone = heaviest * pace > share * one * (1 + ROUNDING)
        return Burdens(
            rows,
            share,
            loading,
            np.where(alone, share * one / np.maximum(heaviest, ROUNDING), pace),
            np.maximum(speed, ROUNDING),
            cores,
            boosted if settings.settling_boost > 1 else np.zeros(rows.size),
            sum(lease.state in COMING for lease in pool.leases if lease.active),
            bool(young.any()) or any(not station.settled for station in self.stations),
        )

    def _tasks(self, station: StageStation, pool: SimulatedHosts) -> TaskPlaces:
        if station.placed:
            return station.locate(pool)
        hosts = np.flatnonzero(pool.up[: len(pool)])
        tasks = dealt(len(station.crew), np.array([pool.leases[row].type.slots for row in hosts.tolist()]))
        total = max(1.0, float(tasks.sum()))
        return TaskPlaces(hosts, tasks, np.zeros_like(tasks), tasks / total, (tasks > 0) / total, np.zeros(hosts.size))

    def works_until(self, row: int) -> float:
        """Return the end of the running batch if it counts on a host, else 0."""
        marks = self.marks
        if not marks[batching.RUNNING] or row not in self.query.charged[: marks[batching.CHARGED_HOSTS]]:
            return 0.0
        return float(self.state[batching.ENDS])

    @property
    def recent(self) -> list[MicroBatch]:
        return [MicroBatch(self.segment.name, *row) for row in self.log.tolist()]

    @property
    def unfinished(self) -> bool:
        waiting = self.queue.counts[self.marks[batching.HEAD] : self.marks[batching.TAIL]]
        in_work = bool(self.marks[batching.RUNNING]) or bool(self.later)
        return in_work or (waiting.size > 0 and float(waiting.sum()) > 1e-6)


def paired(flow: Items) -> Items:
    """Merge neighbouring rows at their mean times."""
    times, born, counts = flow
    firsts = neighbours(times, np.append(times[1:], times[-1]), MOST_ROWS)
    total = np.add.reduceat(counts, firsts)
    weights = np.maximum(counts, ROUNDING)
    whole = np.add.reduceat(weights, firsts)
    return Items(np.add.reduceat(times * weights, firsts) / whole, np.add.reduceat(born * weights, firsts) / whole, total)
