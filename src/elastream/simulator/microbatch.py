"""Simulation of one query as on Spark: micro-batches through its stages, one after the other.

A batch starts at its trigger once the previous one has ended, and takes due records up to the governor's limit. A stage
lasts as long as its most loaded host. Stateless tasks spread over hosts; keyed tasks stay with their state.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.core.hosts import HostState
from elastream.core.observation import Composition, MicroBatch
from elastream.dataflow.stages import Segment
from elastream.policies.common.governor import REMEMBERED, Governor
from elastream.simulator import batching
from elastream.simulator.costs import Demand
from elastream.simulator.draws import uniform
from elastream.simulator.partitions import StageStation, TaskPlaces, dealt
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import NOTHING, Items, joined, neighbours
from elastream.units import ROUNDING

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


class Burdens(NamedTuple):
    """Tasks of a query by host; `share`, `loading` and `pace` by stage and host.

    Attributes:
        hosts: Rows in the pool.
        share: Fraction of a stage's records, including standby work.
        loading: Tasks that must load state.
        pace: Core-seconds of speed 1 per second.
        floor: Cores used whatever the records.
        coming: Hosts requested and not running.
        careful: True if the next batch is distributed otherwise.
    """

    hosts: NDArray[np.int64]
    share: Floats
    loading: Floats
    pace: Floats
    speed: Floats
    floor: Floats
    coming: int
    careful: bool


class Turn(NamedTuple):
    """One advance of all queries.

    Attributes:
        ends: Ends of the monitoring periods; inf after the last.
        worked: Core-seconds by period and host.
        speed: Speed by host.
        interval: Number of the interval with these speeds.
    """

    ends: Floats
    worked: Floats
    speed: Floats
    interval: int
    begin: float


class Committed(NamedTuple):
    """Commits of a query under one composition.

    `done` lists records if another query reads them.
    """

    demand: Demand
    records: float
    since: float
    until: float
    done: Items


class FusedSegment:
    """One query: its queue of records, current batch, and stages.

    Attributes:
        demand: Demand of the next batches.
        running: Demand of the current or last batch.
        effective: Composition of the last committed batch.
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
        self.state = np.zeros(12)
        self.state[batching.STARTS], self.state[batching.ENDS] = -math.inf, math.inf
        self.remembered = np.zeros((2, REMEMBERED))
        self.spent = np.empty((2, 1 << 10))
        self.charged, self.charges, self.busy = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(1)
        self.open = np.zeros(batching.WITHIN + self.leader.limits.size)
        self.log = np.zeros((0, 5))
        self.demand = self.running = demand
        self.effective: Composition | None = None
        self.later: list[tuple[int, Items]] = []
        self.served: dict[int, int] = {}
        self.ratios = np.array(settings.batch_ratios, dtype=np.float64)
        # Slow batches occur in runs (interference on the machine): the order is kept, the start is random.
        self.first_ratio = int(uniform(seed, BATCH_STREAM + stream, 0) * self.ratios.size)
        self._burdens: tuple[tuple[int, ...], Burdens] | None = None

    def govern(self, rate: float) -> None:
        """Limit batch sizes as Elastream's sources do, from a first `rate` (records/s)."""
        seconds = self.settings.governed
        # Arrivals within two batch durations are not treated as a burst (`spark.dataflow.sources`).
        self.state[batching.ALLOWANCE] = max(Governor(seconds).allowance, int(2 * seconds * rate))
        self.marks[batching.MEMORY_SIZE] = -1

    def advance(
        self,
        begin: float,
        end: float,
        flows: Sequence[tuple[int, Items]],
        pool: SimulatedHosts,
        turn: "Turn",
        target: float,
    ) -> tuple[Floats, list["Committed"]]:
        """Execute batches in [begin, end); return figures by period, and commits by composition.

        `flows` arrive with their epochs; `target` is in seconds (inf: none).
        """
        marks, state, settings = self.marks, self.state, self.settings
        in_work, earlier = bool(marks[batching.RUNNING]), self.log.shape[0]
        if in_work and any(station.interrupted for station in self.stations):
            state[batching.STARTS], state[batching.ENDS] = begin, begin + (state[batching.ENDS] - state[batching.STARTS])
            state[batching.CHARGED] = begin
        for station in self.stations:
            station.interrupted = False
        table = np.zeros((turn.ends.size, self.open.size))
        table[0] = self.open
        self._receive(flows, table)
        marks[batching.PERIOD] = 0
        logged, sent = [self.log], []
        work = np.array([self.demand.work[station.name] for station in self.stations])
        again, any_begun = True, 0
        while again:
            burdens = self._burdened(pool, turn)
            self._make_room(burdens.hosts.size)
            rows = int(marks[batching.TAIL] - marks[batching.FIRST]) + BATCHES_A_CALL
            batches, gave = np.empty((BATCHES_A_CALL, 5)), np.empty((rows if self.segment.outputs else 0, 3))
            again, begun, committed, gone = batching.run_batches(
                *self.queue, marks, state, self.remembered, self.spent,
                burdens.hosts, burdens.share, burdens.loading, burdens.pace, burdens.speed, burdens.floor, work,
                (settings.batch_overhead, settings.batch_work, settings.state_load,
                 settings.start_delay * burdens.coming, settings.batch_interval, settings.governed),
                self.ratios, self.first_ratio, self.charged, self.charges, self.busy, begin, end, turn.ends,
                self.leader.limits, target, burdens.careful, table, turn.worked, batches, gave,
            )  # fmt: skip
            logged.append(batches[:committed])
            sent.append(gave[:gone])
            any_begun += begun
            if burdens.careful and begun:
                for row in np.flatnonzero(pool.up[: len(pool)]).tolist():
                    self.served[row] = self.served.get(row, 0) + 1
            if burdens.careful and committed:
                for station in self.stations:
                    if station.placed:
                        station.settle()
        self.log = np.concatenate(logged)
        self.open = table[-1].copy()
        done = Items(*np.concatenate(sent).T) if self.segment.outputs else NOTHING
        parts = self._parted(self.log[earlier:], done, in_work)
        if parts:
            self.effective = parts[-1].demand.composition
        if any_begun:
            self.running = self.demand
        self._tell()
        return table, parts

    def _parted(self, batches: Floats, done: Items, in_work: bool) -> list["Committed"]:
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
        """Oldest epoch under which records may still commit."""
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
            self._append(joined(released))
            self.marks[batching.ARRIVAL_END] = self.marks[batching.TAIL]  # they were counted when they came

    def hold(self, epoch: int) -> None:
        """Set waiting records aside until the composition of `epoch`."""
        marks = self.marks
        rows = slice(int(marks[batching.HEAD]), int(marks[batching.TAIL]))
        if rows.stop > rows.start:
            self.later.append((epoch, Items(*(column[rows].copy() for column in self.queue))))
        marks[batching.TAIL] = marks[batching.ARRIVAL_END] = marks[batching.HEAD]

    def _tell(self) -> None:
        marks, state = self.marks, self.state
        if marks[batching.HEAD] == marks[batching.TAIL] and not self.later:
            state[batching.WAITING] = -self.open[batching.ARRIVED]  # rounding must not add up over a long run
        self.leader.due = max(0.0, state[batching.WAITING] + self.open[batching.ARRIVED])
        self.leader.served = self.leader.served or self.log.shape[0] > 0
        for station in self.stations:
            station.working = state[batching.BATCH_SIZE] * self.running.volume[station.name]

    def _receive(self, flows: Sequence[tuple[int, Items]], table: Floats) -> None:
        for epoch, flow in flows:
            if epoch > self.demand.epoch and flow.times.size:
                self.later.append((epoch, flow))
                table[0, batching.ARRIVED] += flow.total
        self._append(joined([flow for epoch, flow in flows if epoch <= self.demand.epoch]))

    def _append(self, flow: Items) -> None:
        marks, size = self.marks, flow.times.size
        if not size:
            return
        if marks[batching.TAIL] + size > self.queue.times.size:
            first, waiting = int(marks[batching.FIRST]), slice(int(marks[batching.HEAD]), int(marks[batching.TAIL]))
            in_work = [column[first : waiting.start] for column in self.queue]
            rest = Items(*(column[waiting] for column in self.queue))
            while rest.times.size > MOST_ROWS:
                rest = paired(rest)
            columns = [np.concatenate(parts) for parts in zip(in_work, rest, strict=True)]
            room = max(LEAST_ROOM, 2 * (columns[0].size + size))
            self.queue = Items(*(np.concatenate([column, np.zeros(room - column.size)]) for column in columns))
            marks[batching.FIRST], marks[batching.HEAD] = 0, in_work[0].size
            marks[batching.TAIL] = marks[batching.ARRIVAL_END] = columns[0].size
        tail = int(marks[batching.TAIL])
        for column, more in zip(self.queue, flow, strict=True):
            column[tail : tail + size] = more
        marks[batching.TAIL] += size

    def _make_room(self, hosts: int) -> None:
        marks = self.marks
        need = int(marks[batching.SPENT] + marks[batching.TAIL] - marks[batching.FIRST]) + BATCHES_A_CALL
        if need > self.spent.shape[1]:
            self.spent = np.concatenate([self.spent, np.empty((2, need))], axis=1)
        if (more := hosts - self.charges.size) > 0:
            self.charges = np.pad(self.charges, (0, more))
            self.charged = np.pad(self.charged, (0, more))

    def _burdened(self, pool: SimulatedHosts, turn: "Turn") -> "Burdens":
        """Return tasks by host, cached until hosts, tasks or state change."""
        for station in self.stations:
            station.now = turn.begin
        slot = self.settings.share_slot(turn.begin) if self.settings.shares else 0
        version = (pool.changes, pool.placements, turn.interval, slot, *(len(station.crew) for station in self.stations))
        if self._burdens is None or self._burdens[0] != version or self._burdens[1].careful:
            self._burdens = (version, self._locate(pool, turn.speed))
        return self._burdens[1]

    def _locate(self, pool: SimulatedHosts, speeds: Floats) -> "Burdens":
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
        # The JVM's compilation uses what its tasks leave of a host in its first batches.
        boosted = np.where(young & pool.up[rows], pool.cores[rows] * settings.settling_boost, 0.0)
        cores = pool.cores[rows] * settings.delivered * np.where(young, settings.settling_boost, 1.0)
        speed = speeds[rows]
        busy = np.maximum(tasks, copied > 0)  # a copy is kept by a thread of its own
        pace = np.maximum(np.minimum(cores, np.minimum(busy, slots)) * speed, ROUNDING)
        share = share + settings.replica_work * copied
        # A task is one thread: the heaviest of a host may last longer than all of them would in equal parts.
        one = np.maximum(np.minimum(1.0, cores) * speed, ROUNDING)
        alone = heaviest * pace > share * one * (1 + ROUNDING)
        return Burdens(
            rows,
            share,
            loading,
            np.where(alone, share * one / np.maximum(heaviest, ROUNDING), pace),
            np.maximum(speed, ROUNDING),
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
