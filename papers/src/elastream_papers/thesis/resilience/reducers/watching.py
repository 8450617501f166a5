"""Observation of a ring of reducers."""

import math
from collections import deque
from collections.abc import Mapping

import numpy as np

from elastream.core.frames import Floats, Frame, Integers, TaskFrame, application_frame
from elastream.core.latency import DURATIONS, Basis, figures
from elastream.core.metrics import Metric
from elastream.core.observation import NO_STANDBY, Composition, Context, Observation, Sample, Standby
from elastream.core.ring import Ring
from elastream.simulator.pool import SimulatedHosts
from elastream_papers.thesis.resilience.reducers.checkpoints import Checkpoints
from elastream_papers.thesis.resilience.reducers.cluster import Reducers
from elastream_papers.thesis.resilience.reducers.nodes import Node

MEGA = 1e6
HISTORY = 40  # monitoring periods of an observation; as `Settings.history`


class RingSample:
    """A monitoring period, by host: tuples/s, waiting tuples, secondary tuples, CPU."""

    __slots__ = ("backups", "busy", "queued", "rate", "time")

    def __init__(self, time: float) -> None:
        self.time = time
        self.rate: dict[str, float] = {}
        self.queued: dict[str, float] = {}
        self.backups: dict[str, float] = {}
        self.busy: dict[str, float] = {}


class ReducerMetricsCollector:
    """Collects monitoring periods of `reducers`. keyed: the operator; factor: tuples a record, by source."""

    def __init__(
        self,
        context: Context,
        reducers: Reducers,
        checkpoints: Checkpoints,
        pool: SimulatedHosts,
        keyed: str,
        factors: Mapping[str, float],
    ) -> None:
        self.context, self.reducers, self.pool, self.keyed = context, reducers, pool, keyed
        self._checkpoints = checkpoints
        self._factors = factors
        self.names = tuple(context.graph.by_name)
        self.time = 0.0
        self.ticks = 0
        self.series: list[RingSample] = []
        self.history: deque[Sample] = deque(maxlen=HISTORY + 1)
        self._operators: dict[Metric, Floats] = {}
        self._application: dict[Metric, float] = {}
        self._hosts: dict[str, tuple[float, float]] = {}
        self._tasks: dict[Metric, Floats] = {}
        self._emitted = np.zeros(len(factors))
        self._before: Integers | None = None

    @property
    def next_tick(self) -> float:
        """Return the end of the current period."""
        return (self.ticks + 1) * self.reducers.settings.monitor

    def tick(self, now: float) -> None:
        """Close a period at `now` (seconds)."""
        period, self.time = now - self.time, now
        self.ticks += 1
        sample = RingSample(now)
        partitions = self.reducers.settings.partitions
        queued, processed = np.zeros(partitions), np.zeros(self._shape, dtype=np.int64)
        lags: list[tuple[float, float]] = []
        for node in self.reducers.living:
            done, arrived = self.reducers.processed(node), self.reducers.arrived(node, now)
            waiting = np.where(node.own, (arrived - done).sum(axis=0), 0)
            queued += waiting
            processed[:, node.own] = done[:, node.own]
            kept = np.maximum(arrived - node.low, 0)[:, node.fed].sum()
            sample.rate[node.name] = node.served / period
            sample.queued[node.name] = float(waiting.sum())
            sample.backups[node.name] = float(kept)
            sample.busy[node.name] = min(1.0, node.busy / (node.capacity * period))
            lags += node.lags
            self._hosts[node.name] = (sample.busy[node.name], float(kept))
        self.series.append(sample)
        self._take(sample, queued, processed, lags, period)
        for node in self.reducers.nodes.values():
            node.busy = node.served = 0.0
            node.lags = []
        self.history.append(Sample(now, self._frame()))

    @property
    def _shape(self) -> tuple[int, int]:
        return self.reducers.settings.mappers, self.reducers.settings.partitions

    def _take(
        self, sample: RingSample, queued: Floats, processed: Integers, lags: list[tuple[float, float]], period: float
    ) -> None:
        reducers, row = self.reducers, self.names.index(self.keyed)
        emitted = reducers.streams.emitted_by(sample.time) / np.array([*self._factors.values()])
        rates = dict(zip(self._factors, ((emitted - self._emitted) / period).tolist(), strict=True))
        self._emitted = emitted
        tuples = math.fsum(rate * self._factors[name] for name, rate in rates.items())
        done = math.fsum(sample.rate.values())
        columns = {
            metric: np.full(len(self.names), np.nan)
            for metric in (
                Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.EMITTED_RATE, Metric.BACKLOG, Metric.DURATION,
                Metric.SERVICE_TIME, Metric.UTILISATION, Metric.BUSY_CORES, Metric.STATE_SIZE, Metric.CHECKPOINT_DELTA,
                Metric.PARALLELISM, Metric.DURATION_P50, Metric.DURATION_P99,
            )
        }  # fmt: skip
        for name, rate in rates.items():
            for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.EMITTED_RATE):
                columns[metric][self.names.index(name)] = rate
        busy = math.fsum(sample.busy[n.name] * n.capacity for n in reducers.on_ring if n.alive)
        capacity = math.fsum(node.capacity for node in reducers.on_ring if node.alive)
        columns[Metric.ARRIVAL_RATE][row] = tuples
        columns[Metric.PROCESSED_RATE][row] = columns[Metric.EMITTED_RATE][row] = done
        columns[Metric.BACKLOG][row] = queued.sum()
        columns[Metric.PARALLELISM][row] = reducers.settings.partitions
        columns[Metric.BUSY_CORES][row] = busy
        columns[Metric.UTILISATION][row] = busy / capacity if capacity else np.nan
        if done > 0:
            columns[Metric.SERVICE_TIME][row] = busy / done
        state = self._state(processed)
        columns[Metric.STATE_SIZE][row] = state.sum()
        if self._checkpoints.made:
            last = self._checkpoints.made[-1]
            columns[Metric.CHECKPOINT_DELTA][row] = last.delta / last.full if last.full else np.nan
        self._application = {Metric.ARRIVAL_RATE: math.fsum(rates.values()), Metric.THROUGHPUT: done}
        if lags:
            times, weights = (np.array(column) for column in zip(*lags, strict=True))
            times = times + reducers.cost + reducers.mean_delay
            self._application |= figures(times, weights, self.context.target_latency)
            for metric, of in DURATIONS.items():
                columns[metric][row] = self._application[of]
        self._operators = columns
        self._tasks = {Metric.BACKLOG: queued, Metric.STATE_SIZE: state}
        if self._before is not None:
            rate = np.maximum(0, processed - self._before).sum(axis=0) / period
            self._tasks |= {Metric.PROCESSED_RATE: rate, Metric.BUSY_CORES: rate * reducers.cost}
        self._before = processed

    def _state(self, processed: Integers) -> Floats:
        """Return megabytes of state by partition, by the tuples since the start."""
        streams, keys = self.reducers.streams, self.reducers.keys
        whole = streams.emitted_by(self.time)
        due = np.maximum(1e-9, streams.numbers(np.full((self._shape[0], 1), self.time)).sum(axis=0))
        part = np.minimum(1.0, processed.sum(axis=0) / due)
        found: Floats = keys.state_bytes(whole[:, None] * part[None, :]) / MEGA
        return found

    def _frame(self, age: float = 0.0) -> Frame:
        return Frame(self.names, self._operators, age)

    def observation(self, now: float, composition: Composition) -> Observation:
        """Return the observation at `now`."""
        age = now - self.time
        leases = {lease.host: lease for lease in (self.pool.leases[row] for row in self.pool.active)}
        hosts = tuple(leases)
        tasks, placed = self._task_frame(hosts, age)
        overall = {**self._application, Metric.COST: self.pool.cost(now)}
        return Observation(
            time=now,
            context=self.context,
            operators=self._frame(age),
            application=application_frame(
                self.context.graph.name, overall, dict.fromkeys(self._application, age) if age else 0.0
            ),
            hosts=self._host_frame(hosts, tasks, now, age),
            tasks=tasks,
            leases=leases,
            composition=composition,
            history=tuple(self.history)[:-1],
            next_host=self.pool.next_number,
            latency_basis={source.name: Basis.DUE for source in self.context.graph.sources},
            rings=self._rings(),
            standby=self._standby(hosts, placed),
        )

    def _rings(self) -> Mapping[str, Ring]:
        ring = self.reducers.ring
        for node in self.reducers.on_ring:
            if not node.alive and ring is not None:
                ring = ring.without(node.name) if len(ring) > 1 else None
        return {} if ring is None else {self.keyed: ring}

    def _task_frame(self, hosts: tuple[str, ...], age: float) -> tuple[TaskFrame, Integers]:
        """Return tasks of living hosts, and each partition's row, -1 for none."""
        rows = {name: row for row, name in enumerate(hosts)}
        at = np.array(
            [-1 if owner is None or not owner.alive else rows.get(owner.name, -1) for owner in self.reducers.owner],
            dtype=np.int64,
        )
        placed = np.flatnonzero(at >= 0)
        operator = np.full(placed.size, self.names.index(self.keyed), dtype=np.int64)
        values = {metric: column[placed] for metric, column in self._tasks.items()}
        lag = self._lag()
        values[Metric.STANDBY_LAG] = lag[placed]
        where = np.full(at.size, -1, dtype=np.int64)
        where[placed] = np.arange(placed.size)
        ages: dict[Metric, float] = dict.fromkeys(self._tasks, age)
        return TaskFrame(operator, placed, at[placed], self.names, values, ages), where

    def _lag(self) -> Floats:
        """Return checkpoints that copies lack; NaN without a copy."""
        found = np.full(self.reducers.settings.partitions, np.nan)
        on_the_way = np.array([owner is not None and owner.sending for owner in self.reducers.owner], dtype=np.float64)
        for node in self.reducers.living:
            found[node.has] = on_the_way[node.has]
        return found

    def _host_frame(self, hosts: tuple[str, ...], tasks: TaskFrame, now: float, age: float) -> Frame:
        pool, active = self.pool, self.pool.active
        known = [self._hosts.get(name, (math.nan, math.nan)) for name in hosts]
        copies = [self._copies(self.reducers.nodes.get(name)) for name in hosts]
        up = pool.up[active]
        return Frame(
            hosts,
            {
                Metric.CPU: np.where(up, [cpu for cpu, _ in known], np.nan),
                Metric.TASKS: np.bincount(tasks.host, minlength=len(hosts))[: len(hosts)].astype(np.float64),
                Metric.SPEED: np.where(up, pool.speeds(now)[active], np.nan),
                Metric.COPIES_MEMORY: np.where(up, copies, np.nan),
            },
            {Metric.CPU: age},
        )

    def _copies(self, node: Node | None) -> float:
        """Return megabytes of copies on a host: state, and tuples since."""
        if node is None or not node.alive:
            return math.nan
        state = self._tasks.get(Metric.STATE_SIZE, np.zeros(node.has.size))
        kept = self._hosts.get(node.name, (0.0, 0.0))[1] * self.reducers.settings.tuple_bytes / MEGA
        return float(state[node.has].sum()) + (kept if kept == kept else 0.0)

    def _standby(self, hosts: tuple[str, ...], placed: Integers) -> Standby:
        reducers = self.reducers
        if not reducers.copying:
            return NO_STANDBY
        rows = {name: row for row, name in enumerate(hosts)}
        task, host = [], []
        for node in reducers.living:
            if node.name in rows:
                mine = np.flatnonzero(node.has & (placed >= 0))
                task.append(placed[mine])
                host.append(np.full(mine.size, rows[node.name], dtype=np.int64))
        required = min(reducers.settings.replicas, len(reducers.ring or ()) - 1) * len(placed)
        count = sum(map(len, task))
        state = self._tasks.get(Metric.STATE_SIZE)
        tasks = np.concatenate(task) if task else np.zeros(0, dtype=np.int64)
        numbers = np.flatnonzero(placed >= 0)
        return Standby(
            tasks,
            np.concatenate(host) if host else np.zeros(0, dtype=np.int64),
            self._lag()[numbers][tasks],
            np.full(count, np.nan) if state is None else state[numbers][tasks],
            why=f"{required - count} copies of state are on their way" if count < required else "",
        )
