"""Observations of the simulation.

Rates and durations cover the last whole period; backlogs, hosts, tasks and cost are current.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats, Frame, TableFrame, TaskFrame, application_frame
from elastream.core.hosts import Lease
from elastream.core.latency import Basis, figures
from elastream.core.metrics import Metric
from elastream.core.observation import NO_STANDBY, Composition, Context, Leases, MicroBatch, Observation, Sample, Standby
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.signals import SignalReading, Signals
from elastream.simulator.batching import weighted
from elastream.simulator.costs import Cost, own_cost
from elastream.simulator.fused import FusedNetwork
from elastream.simulator.links import EdgeTraffic, adjacent, exchange_of, link_frame
from elastream.simulator.network import QueueNetwork
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.stations import Counters, Items, Station

# Rows of the alternate table.
ALTERNATE_ROWS: Mapping[Metric, int] = {Metric.SERVICE_TIME: 0, Metric.SELECTIVITY: 1, Metric.AGE: 2}
# Cap on the weight of earlier periods: random variation stays within a tenth.
ENOUGH = 100.0


class AlternateMetrics:
    """Cost and selectivity of each alternate, from its last run; `rows` maps operators to table rows."""

    def __init__(self, graph: Graph, settings: Settings, rows: Mapping[str, int]) -> None:
        self._graph = graph
        self._settings = settings
        self._declared: dict[tuple[str, str], Cost] = {}
        self._several: dict[str, tuple[float, float, float]] = {}
        self._sums: dict[str, tuple[int, float, float, float]] = {}
        single = [each for each in graph.operators if len(each.alternates) == 1]
        self._single = [f"{each.name}.{each.alternates[0].name}" for each in single]
        self._columns = np.array([rows[each.name] for each in single], dtype=np.int64)
        self._last = np.full((len(ALTERNATE_ROWS), len(single)), np.nan)
        self._names: tuple[int, Mapping[str, int]] = (-1, {})
        self._any_single = False

    def period(self, served: Floats, processed: Floats, emitted: Floats, now: float) -> None:
        """Enter a period that ends at `now`: core-seconds per record, records/s in and out."""
        done = processed[self._columns]
        ran = done > 0
        if ran.any():
            self._any_single = True
            columns = self._columns[ran]
            self._last[:, ran] = served[columns], emitted[columns] / done[ran], np.full(columns.size, now)

    def counted(self, station: Station, epoch: int, runs: Mapping[str, float], now: float) -> None:
        """Enter a period of an operator with several alternates under one composition."""
        tally, (since, work, done, emitted) = station.period, self._sums.get(station.name, (epoch, 0.0, 0.0, 0.0))
        if since != epoch:
            self._sums[station.name] = (epoch, 0.0, 0.0, 0.0)
            return
        weight = min(1.0, ENOUGH / done) if done > 0 else 0.0
        work = weight * work + tally.busy * station.operator.cores
        done, emitted = weight * done + tally.done, weight * emitted + tally.emitted
        self._sums[station.name] = (epoch, work, done, emitted)
        if tally.done <= 0:
            return
        longer = work / done / station.work if station.work > 0 else 1.0
        more = emitted / done / station.selectivity if station.selectivity > 0 else 1.0
        for alternate in runs:
            own = self._own(station.name, alternate)
            self._several[f"{station.name}.{alternate}"] = (own.work * longer, own.selectivity * more, now)

    def ran(self, until: Mapping[tuple[str, str], float], speed: float) -> None:
        """Enter alternates run by micro-batches on hosts of `speed`, with last commit times."""
        for (operator, alternate), time in until.items():
            if self._several.get(name := f"{operator}.{alternate}", (0.0, 0.0, -1.0))[2] != time:
                own = self._own(operator, alternate)
                self._several[name] = (own.work / speed, own.selectivity, time)

    def frame(self, now: float) -> Frame:
        table: Floats = np.array([*self._several.values()]).reshape(-1, len(ALTERNATE_ROWS)).T
        names: list[str] = []
        if self._any_single:
            has_run = ~np.isnan(self._last[ALTERNATE_ROWS[Metric.AGE]])
            table = np.concatenate([self._last[:, has_run], table], axis=1)
            names = [name for name, one in zip(self._single, has_run.tolist(), strict=True) if one]
        if table.shape[1] != self._names[0]:
            self._names = table.shape[1], {name: row for row, name in enumerate([*names, *self._several])}
        table[ALTERNATE_ROWS[Metric.AGE]] = np.maximum(0.0, now - table[ALTERNATE_ROWS[Metric.AGE]])
        return TableFrame(self._names[1], ALTERNATE_ROWS, table) if table.size else Frame()

    def _own(self, operator: str, alternate: str) -> Cost:
        cost = self._declared.get((operator, alternate))
        if cost is None:
            of = self._graph.by_name[operator]
            cost = own_cost(of, of.alternate(alternate), self._settings)
            assert cost is not None, "nothing runs whose cost is not known"
            self._declared[operator, alternate] = cost
        return cost


Integers: TypeAlias = NDArray[np.int64]

PERIODIC = (
    Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.EMITTED_RATE, Metric.DURATION, Metric.DURATION_P50,
    Metric.DURATION_P99, Metric.SERVICE_TIME, Metric.UTILISATION, Metric.BUSY_CORES, Metric.COMPLIANCE,
)  # fmt: skip
CURRENT = (Metric.BACKLOG, Metric.PARALLELISM, Metric.SCALINGS)
# Rows of the operator table.
AT: Mapping[Metric, int] = {metric: row for row, metric in enumerate((*PERIODIC, *CURRENT))}
HOSTS: Mapping[Metric, int] = {
    metric: row for row, metric in enumerate((Metric.CPU, Metric.MEMORY, Metric.TASKS, Metric.SPEED, Metric.BANDWIDTH))
}
# Rows of the host table; fused stages declare no memory.
HOSTS_FUSED: Mapping[Metric, int] = {
    metric: row for row, metric in enumerate((Metric.CPU, Metric.TASKS, Metric.SPEED, Metric.BANDWIDTH))
}
# Percentiles of more items in a period use a part of them (VISP measures every tenth).
MAX_SAMPLE = 1000


class MetricsCollector:
    """Metrics of the last monitoring period, and operators' history."""

    def __init__(
        self, context: Context, network: QueueNetwork | FusedNetwork, pool: SimulatedHosts, settings: Settings
    ) -> None:
        self.context = context
        self.network = network
        self.pool = pool
        self.settings = settings
        self.ticks = 0
        self.names = tuple(context.graph.by_name)
        self.rows = {name: row for row, name in enumerate(self.names)}
        self._table = np.full((len(AT), len(self.names)), np.nan)
        self.application: dict[Metric, float] = {}
        self.samples: deque[Sample] = deque(maxlen=settings.history + 1)
        self.offered = dict.fromkeys(network.sources, 0.0)
        self.emitted = dict.fromkeys(network.sources, 0.0)
        self.committed = 0.0
        self.elsewhere: dict[int, float] = {}
        self.host_busy: Floats = np.zeros(0)
        self.task_busy: dict[str, Floats] = {}
        self.slow_since: dict[str, float] = {}
        self.adapted: list[float] = []
        self.streams: list[EdgeTraffic] | None = None
        self.series: list[tuple[float, ...]] = []
        self._basis = {source.name: Basis.DUE for source in context.graph.sources}
        self._leases: tuple[int, Mapping[str, Lease], tuple[str, ...]] = (-1, {}, ())
        self._host_rows: Mapping[str, int] = {}
        self._placed: tuple[Any, ...] | None = None
        self._pairs: tuple[tuple[Any, ...], Frame] = ((), Frame())
        self._images: tuple[int, Mapping[str, frozenset[str]]] = (-1, {})
        signals = [sink.writes for sink in context.graph.sinks if isinstance(sink.writes, DomainSignal)]
        self._traces = {signal.name: signal.trace for signal in signals if signal.trace is not None}
        self._readings: dict[str, SignalReading] = {}
        self._alternates = AlternateMetrics(context.graph, settings, self.rows)

    @property
    def next_tick(self) -> float:
        return (self.ticks + 1) * self.settings.monitor

    def keep_busy(self, station: Station, rows: NDArray[np.int64]) -> None:
        """Add the busy time of instances to the period's totals, before they are removed. `rows`: theirs in the crew."""
        station.period.busy += float(station.crew.busy[rows].sum())
        for host, busy in zip(station.crew.host[rows], station.crew.busy[rows], strict=True):
            self.elsewhere[int(host)] = self.elsewhere.get(int(host), 0.0) + float(busy) * station.operator.cores

    def tick(self, now: float) -> None:
        period = now - self.ticks * self.settings.monitor
        self.ticks += 1
        self._table = np.full((len(AT), len(self.names)), np.nan)
        busy = self.pool.worked[: len(self.pool)].copy()
        self.pool.worked[:] = 0.0
        for host, seconds in self.elsewhere.items():
            busy[host] += seconds
        self.elsewhere = {}
        judged = within = 0.0
        for station in self.network.stations:
            crew = station.crew
            station.period.busy += tally_hosts(busy, crew.host, crew.busy, station.operator.cores)
            self.task_busy[station.name] = crew.busy / period
            crew.busy = np.zeros(len(crew))
            if station.operator.max_duration is not None:
                judged, within = judged + station.period.judged, within + station.period.within[0]
                self._note_delay(station, now)
            self._take(station, period)
            if len(station.operator.alternates) > 1 and isinstance(self.network, QueueNetwork):
                self._alternates.counted(station, self.network.epochs[station.name], self.network.runs(station.name), now)
            station.total.add(station.period)
            station.period = Counters(np.zeros(station.limits.size))
            station.durations = []
        self.host_busy = busy / period
        served, processed, emitted = (
            self._table[AT[each]] for each in (Metric.SERVICE_TIME, Metric.PROCESSED_RATE, Metric.EMITTED_RATE)
        )
        self._alternates.period(served, processed, emitted, now)
        self._take_sources(period)
        self._take_application(period, judged, within)
        self._stream()
        self.samples.append(Sample(now, self._operators(0.0)))

    def _stream(self) -> None:
        emitted = self._table[AT[Metric.EMITTED_RATE]].tolist()
        self.streams = self.network.streams(dict(zip(self.names, emitted, strict=True)))

    def _take(self, station: Station, period: float) -> None:
        tally, cores, unknown = station.period, station.operator.cores, math.nan
        mean = middle = late = complied = unknown
        if tally.judged > 0:
            mean = tally.delay / tally.judged
            middle, late = quantiles(station.durations, (0.5, 0.99), single=station.single)
            if station.operator.max_duration is not None:
                complied = tally.within[0] / tally.judged
        busy = tally.busy * cores
        self._table[: len(PERIODIC), self.rows[station.name]] = (
            tally.arrived / period,
            tally.done / period,
            tally.emitted / period,
            mean,
            middle,
            late,
            busy / tally.done if tally.done > 0 else unknown,
            tally.busy / tally.available if tally.available > 0 else unknown,
            busy / period,
            complied,
        )

    def _note_delay(self, station: Station, now: float) -> None:
        if station.period.judged > 0:
            if station.period.delay / station.period.judged > station.limit:
                self.slow_since.setdefault(station.name, now)
            elif (since := self.slow_since.pop(station.name, None)) is not None:
                self.adapted.append(now - since)

    def _take_sources(self, period: float) -> None:
        for name, source in self.network.sources.items():
            for metric, reach, last in (
                (Metric.ARRIVAL_RATE, source.offered, self.offered),
                (Metric.EMITTED_RATE, source.emitted, self.emitted),
            ):
                self._table[AT[metric], self.rows[name]] = (reach - last[name]) / period
                last[name] = reach
            column = self._table[:, self.rows[name]]
            column[AT[Metric.PROCESSED_RATE]] = column[AT[Metric.EMITTED_RATE]]

    def _take_application(self, period: float, judged: float, within: float) -> None:
        network = self.network
        offered = math.fsum(self._table[AT[Metric.ARRIVAL_RATE], self.rows[name]] for name in network.sources)
        self.application = {
            Metric.ARRIVAL_RATE: offered,
            Metric.THROUGHPUT: (network.committed - self.committed) / period,
        }
        finished, self.committed = network.committed - self.committed, network.committed
        if network.latencies:
            whole = joined_latencies(network.latencies)
            every = 1 if network.cohorts else whole.times.size // MAX_SAMPLE + 1
            self.application |= figures(whole.times, whole.counts, self.context.target_latency, every)
            network.latencies = []
        if judged > 0 and self.context.target_latency is None:
            self.application[Metric.COMPLIANCE] = within / judged
        self.series.append(
            (
                self.ticks * self.settings.monitor,
                offered,
                float(len(self.pool.active)),
                float(sum(len(station.crew) for station in network.stations)),
                sum(station.queued for station in network.stations),
                self.application.get(Metric.COMPLIANCE, np.nan),
                finished,
            )
        )

    def _history(self) -> tuple[Sample, ...]:
        return tuple(self.samples)[:-1]

    def _operators(self, age: float) -> Frame:
        table = self._table.copy()
        for station in self.network.stations:
            table[len(PERIODIC) :, self.rows[station.name]] = station.backlog, len(station.crew), station.scalings
        return TableFrame(self.rows, AT, table, dict.fromkeys(PERIODIC, age) if age else 0.0)

    def observation(self, now: float, composition: Composition) -> Observation:
        age = now - self.ticks * self.settings.monitor
        leases, hosts = self._lease_frame()
        exchange = exchange_of(self.streams, self.network.stations, age)
        tasks = self._task_frame()
        overall = {**self.application, **self.network.updates.figures, Metric.COST: self.pool.cost(now)}
        return Observation(
            time=now,
            context=self.context,
            operators=self._operators(age),
            application=application_frame(
                self.context.graph.name, overall, dict.fromkeys(self.application, age) if age else 0.0
            ),
            hosts=self._host_frame(hosts, now, exchange.over_links(tasks.host, len(hosts))),
            tasks=tasks,
            links=self._links(hosts, now),
            leases=leases,
            composition=composition,
            images=self._image_sets(),
            history=self._history(),
            next_host=self.pool.next_number,
            batches=self._batches(now),
            exchange=exchange,
            latency_basis=self._basis,
            effective=dict(self.network.effective),
            alternates=self._alternates.frame(now),
            signals=self._signals(now),
            rings={s.name: s.ring for s in self.network.stations if s.ring is not None},
            standby=self._standby(tasks, hosts),
        )

    def _signals(self, now: float) -> Signals:
        for name, trace in self._traces.items():
            reached, last = self.network.signalled.get(name), self._readings.get(name)
            if reached is not None and (last is None or min(reached, now) > last.time):
                self._readings[name] = SignalReading(trace(min(reached, now)), min(reached, now))
        return dict(self._readings)

    def _standby(self, tasks: TaskFrame, hosts: tuple[str, ...]) -> Standby:
        return NO_STANDBY

    def _batches(self, now: float) -> Sequence[MicroBatch]:
        return ()

    def _lease_frame(self) -> tuple[Mapping[str, Lease], tuple[str, ...]]:
        if self._leases[0] != self.pool.changes:
            leases = Leases((lease.host, lease) for lease in (self.pool.leases[row] for row in self.pool.active))
            self._leases = (self.pool.changes, leases, leases.hosts)
            self._host_rows = {host: row for row, host in enumerate(leases)}
        return self._leases[1], self._leases[2]

    def _host_frame(self, names: tuple[str, ...], now: float, link: Floats) -> Frame:
        pool, active = self.pool, self.pool.active
        busy = self.host_busy
        if busy.size < len(pool):
            busy = np.append(busy, np.zeros(len(pool) - busy.size))
        cpu = busy[active] / pool.cores[active]
        network = self.network
        if isinstance(network, QueueNetwork) and network.per_task:
            cores, bytes_ = network.background_of(names)
            cpu, link = cpu + np.where(pool.up[active], cores, 0.0) / pool.cores[active], link + bytes_
        unknown = ~pool.up[active] | (active >= self.host_busy.size)
        at = HOSTS_FUSED if isinstance(network, FusedNetwork) else HOSTS
        table = np.empty((len(at), len(names)))
        table[at[Metric.CPU]] = np.where(unknown, np.nan, np.minimum(cpu, 1.0))
        table[at[Metric.TASKS]] = pool.tasks[active]
        table[at[Metric.SPEED]] = np.where(pool.up[active], pool.speeds(now)[active], np.nan)
        table[at[Metric.BANDWIDTH]] = link
        if Metric.MEMORY in at:
            table[at[Metric.MEMORY]] = pool.used_memory[active]
        age = now - self.ticks * self.settings.monitor
        return TableFrame(self._host_rows, at, table, dict.fromkeys((Metric.CPU, Metric.BANDWIDTH), age) if age else 0.0)

    def _task_frame(self) -> TaskFrame:
        stations = self.network.stations
        version = (self.pool.changes, self.pool.placements, *(len(station.crew) for station in stations))
        if self._placed is None or self._placed[0] != version:
            self._placed = (version, *self._placements())
        _, operator, index, host, memory, placed = self._placed
        busy = [
            shares if (shares := self.task_busy.get(s.name)) is not None and shares.size == n else np.full(n, np.nan)
            for s, n in zip(stations, version[2:], strict=True)
        ]
        usage = np.concatenate(busy)
        values = {Metric.UTILISATION: usage if placed.all() else usage[placed]}
        if isinstance(self.network, FusedNetwork):
            values[Metric.BUSY_CORES] = values[Metric.UTILISATION]  # a task has one thread
            return TaskFrame(operator, index, host, self.names, values)
        values[Metric.MEMORY] = memory
        if isinstance(self.network, QueueNetwork) and self.network.per_task:
            cores = np.repeat([station.operator.cores for station in stations], version[2:])
            values[Metric.BUSY_CORES] = (usage * cores)[placed]
            values[Metric.BACKLOG] = np.concatenate([station.crew.queued for station in stations])[placed]
        return TaskFrame(operator, index, host, self.names, values)

    def _placements(self) -> tuple[Integers, Integers, Integers, Floats, NDArray[np.bool_]]:
        stations = self.network.stations
        counts = [len(station.crew) for station in stations]
        rank = np.full(len(self.pool), -1, dtype=np.int64)
        rank[self.pool.active] = np.arange(self.pool.active.size)
        host = np.concatenate([station.crew.host for station in stations])
        placed = host >= 0
        return (
            np.repeat([self.rows[station.name] for station in stations], counts)[placed],
            np.concatenate([station.crew.index for station in stations])[placed],
            rank[host[placed]],
            np.repeat([station.needs[1] for station in stations], counts)[placed],
            placed,
        )

    def _links(self, hosts: tuple[str, ...], now: float) -> Frame:
        pool, network = self.pool, self.network
        if not isinstance(network, QueueNetwork) or self.settings.link_trace is None:
            if self._pairs[0] != (hosts,):
                self._pairs = ((hosts,), link_frame(hosts, pool, now))
        elif self._pairs[0] != (version := (hosts, pool.link_slot(now), pool.placements, network.version)):
            near = partial(adjacent, network.stations, network.live)
            self._pairs = (version, link_frame(hosts, pool, now, near))
        return self._pairs[1]

    def _image_sets(self) -> Mapping[str, frozenset[str]]:
        pool = self.pool
        cached = pool.images[: len(pool)]
        version = pool.changes * 1_000_000 + int(cached.sum())
        if self._images[0] != version:
            names = np.array([station.name for station in self.network.stations])
            sets_by_key: dict[bytes, frozenset[str]] = {}
            sets = {}
            for row in pool.active:
                key = cached[row].tobytes()
                if key not in sets_by_key:
                    sets_by_key[key] = frozenset(names[cached[row]].tolist())
                sets[pool.leases[row].host] = sets_by_key[key]
            self._images = (version, sets)
        return self._images[1]


@njit(cache=True)
def tally_hosts(busy: Floats, host: NDArray[np.int64], seconds: Floats, cores: float) -> float:
    """Add instances' core-seconds to `busy` by host; return their instance-seconds."""
    total = 0.0
    for i in range(host.size):
        total += seconds[i]
        if host[i] >= 0:
            busy[host[i]] += seconds[i] * cores
    return total


def joined_latencies(latencies: Sequence[Items]) -> Items:
    if len(latencies) == 1:
        return latencies[0]
    return Items(*(np.concatenate(columns) for columns in zip(*latencies, strict=True)))


def quantiles(durations: Sequence[Items], levels: Sequence[float], *, single: bool = False) -> list[float]:
    """Return quantiles of durations weighted by `counts`; many single items are sampled."""
    whole = joined_latencies(durations)
    every = whole.times.size // MAX_SAMPLE + 1 if single else 1
    times, counts = (np.ascontiguousarray(column[::every]) for column in (whole.times, whole.counts))
    result: list[float] = weighted(times, counts, np.asarray(levels)).tolist()
    return result
