"""Observations of a simulated micro-batch dataflow, over the last `WINDOW` seconds, with the lags of Spark's telemetry."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats, TableFrame, TaskFrame
from elastream.core.latency import spread, spread_figures
from elastream.core.metrics import Metric
from elastream.core.observation import NO_STANDBY, Composition, Context, MicroBatch, Observation, Sample, Standby
from elastream.simulator.batching import ARRIVED, BUSY, DELAY, DONE, IN_TIME, LATE, LEFT, MIDDLE, WITHIN, rates_at
from elastream.simulator.fused import FusedNetwork, Periods, Reports
from elastream.simulator.microbatch import StageStation
from elastream.simulator.pool import SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.watching import AT, MetricsCollector

# Rows of the operator table, as globals for compiled code.
(
    ARRIVAL_ROW, PROCESSED_ROW, EMITTED_ROW, SERVICE_ROW, DURATION_ROW, MIDDLE_ROW, LATE_ROW, COMPLIANCE_ROW, BACKLOG_ROW,
    BUSY_ROW, UTILISATION_ROW,
) = (
    AT[metric] for metric in (
        Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.EMITTED_RATE, Metric.SERVICE_TIME, Metric.DURATION,
        Metric.DURATION_P50, Metric.DURATION_P99, Metric.COMPLIANCE, Metric.BACKLOG, Metric.BUSY_CORES, Metric.UTILISATION,
    )
)  # fmt: skip
# Seconds of batches that an observation covers, as on Spark with short batches (`core.frames`).
WINDOW = 3.0

compiled_spread = njit(cache=True)(spread)


@dataclass(frozen=True)
class ClosedPeriods:
    """Metrics of the monitoring periods closed in one advance, a row each.

    Attributes:
        offered: Records/s of all sources.
        samples: Earlier samples, and those of these periods.
        logs: Batches by query; columns as in `batching`.
        rates: Recent records/s and number of recent batches by query.
        commits: Number of `logs` committed by the end of each period, by query.
    """

    before: int
    ends: Floats
    table: Floats
    offered: Floats
    hosts: Floats
    samples: Sequence[Sample]
    logs: Mapping[str, Floats]
    rates: Mapping[str, tuple[Floats, NDArray[np.int64]]]
    commits: Mapping[str, NDArray[np.int64]]


class BatchMetricsCollector(MetricsCollector):
    """Metrics of a `FusedNetwork`, from committed batches; closes many monitoring periods at once."""

    def __init__(self, context: Context, network: FusedNetwork, pool: SimulatedHosts, settings: Settings) -> None:
        super().__init__(context, network, pool, settings)
        self.fused = network
        self.fused.target = math.inf if context.target_latency is None else context.target_latency
        self._averaged = max(1, round(WINDOW / settings.monitor))
        self._hosts: Floats = np.zeros((0, 0))
        self._busy: Floats = np.zeros((0, len(network.stations)))
        self._stages = np.array([self.rows[station.name] for station in network.stations], dtype=np.int64)
        self._since: Mapping[str, float] = dict.fromkeys(network.sources, 0.0)
        self._batch: tuple[float, Sequence[MicroBatch]] = (-1.0, ())
        self._closed: ClosedPeriods | None = None
        self._row = -1
        self._sources = tuple(dict.fromkeys(context.layout.stage_of[name].segment for name in network.sources))

    def tick(self, now: float) -> None:
        closed = self.fused.closed
        assert closed is not None
        count, period = closed.ends.size, self.settings.monitor
        active, usable = np.full(count, float(closed.active)), np.full(count, closed.usable)
        if closed.ends[-1] >= now:  # a change of hosts at the end of a period shows in that period
            active[-1], usable[-1] = len(self.pool.active), self.pool.running_cores
        table = np.full((count, len(AT), len(self.names)), np.nan)
        logs = {name: segment.log for name, segment in self.fused.segments.items()}
        rates = {name: rates_at(closed.ends, log, WINDOW) for name, log in logs.items()}
        offered = self._enter(table, closed, usable, rates)
        hosts = self._hosts
        if (gap := closed.worked.shape[1] - hosts.shape[1]) > 0:
            hosts = np.pad(hosts, ((0, 0), (0, gap)))
        earlier = hosts.shape[0]
        hosts = np.concatenate([hosts, closed.worked / period])
        samples = [*self.samples, *map(self._sample, closed.ends.tolist(), table)]
        self._closed = ClosedPeriods(
            self.ticks, closed.ends, table, offered, window_means(hosts, earlier, self._averaged), samples, logs, rates,
            {name: (log[:, 0] + log[:, 1]).searchsorted(closed.ends) for name, log in logs.items()},
        )  # fmt: skip
        self._hosts = hosts[max(0, len(hosts) - self._averaged + 1) :] if self._averaged > 1 else hosts[:0]
        self.samples.extend(samples[-count:])
        self._show(count - 1)
        compliance = self._compliance(closed)
        waiting = sum(table[:, LEFT] for table in closed.tables.values())
        instances = float(sum(len(station.crew) for station in self.fused.stations))
        finished = sum(table[:, DONE] * self.fused.segments[name].demand.results for name, table in closed.tables.items())
        whole = np.column_stack([closed.ends, offered, active, np.full(count, instances), waiting, compliance, finished])
        self.series += [tuple(row) for row in whole.tolist()]

    def _sample(self, end: float, table: Floats) -> Sample:
        return Sample(end, TableFrame(self.rows, AT, table))

    def _show(self, row: int) -> None:
        closed = self._closed
        assert closed is not None
        self._row = row
        self.ticks = closed.before + row + 1
        self._table, self.host_busy = closed.table[row], closed.hosts[row]
        self.offered_last = float(closed.offered[row])
        for station in self.fused.stations:
            tasks, busy = len(station.crew), self._table[AT[Metric.BUSY_CORES], self.rows[station.name]]
            equal = np.full(tasks, busy / max(1, tasks))
            self.task_busy[station.name] = busy * station.shares if station.skewed else equal
        self._stream()

    def _enter(
        self,
        table: Floats,
        closed: Periods,
        usable: Floats,
        rates: Mapping[str, tuple[Floats, NDArray[np.int64]]],
    ) -> Floats:
        period = self.settings.monitor
        offered = np.zeros(closed.ends.size)
        earlier, most = self._busy.shape[0], self._averaged
        busy = np.empty((earlier + closed.ends.size, len(self.fused.stations)))
        busy[:earlier] = self._busy
        for number, station in enumerate(self.fused.stations):
            segment = self.fused.segments[station.stage.segment]
            figures, (rate, batches) = closed.tables[station.stage.segment], rates[station.stage.segment]
            total = sum(segment.demand.work.values())
            part = segment.demand.work[station.name] / total if total > 0 else 1 / len(segment.stations)
            leads, limited = station is segment.leader, station.operator.max_duration is not None
            row = self.rows[station.name]
            enter_stage(
                table, row, figures, rate, batches, busy, earlier, number, float(part),
                float(segment.demand.volume[station.name]), float(period), leads, limited,
            )  # fmt: skip
            table[:, AT[Metric.PARALLELISM], row] = len(station.crew)
            table[:, AT[Metric.SCALINGS], row] = station.scalings
            if leads and limited:
                self._note_delays(station, table[:, AT[Metric.DURATION], row], closed.ends)
        # Work is charged evenly over a batch's duration; the reported value is its mean over the window.
        enter_busy(table, self._stages, busy, earlier, most, usable)
        self._busy = busy[max(0, busy.shape[0] - most + 1) :] if most > 1 else busy[:0]
        for name, reached in closed.offered.items():
            into, (rate, batches) = table[:, :, self.rows[name]], rates[self.context.layout.stage_of[name].segment]
            arrived = (reached - np.concatenate([[self._since[name]], reached[:-1]])) / period
            offered += arrived
            into[:, AT[Metric.ARRIVAL_RATE]] = np.where(batches > 0, arrived, np.nan)
            processed = rate * self.fused.source_share(name)
            into[:, AT[Metric.EMITTED_RATE]] = into[:, AT[Metric.PROCESSED_RATE]] = processed
        self._since = {name: float(reached[-1]) for name, reached in closed.offered.items()}
        return offered

    def _note_delays(self, station: StageStation, means: Floats, ends: Floats) -> None:
        for mean, end in zip(means.tolist(), ends.tolist(), strict=True):
            if mean > station.limit:
                self.slow_since.setdefault(station.name, end)
            elif mean <= station.limit and (since := self.slow_since.pop(station.name, None)) is not None:
                self.adapted.append(end - since)

    def _compliance(self, closed: Periods) -> Floats:
        aimed = self.context.target_latency is not None
        on_time, judged = np.zeros(closed.ends.size), np.zeros(closed.ends.size)
        for name, segment in self.fused.segments.items():
            if segment.leader.operator.max_duration is not None if not aimed else segment.demand.results > 0:
                on_time += closed.tables[name][:, IN_TIME if aimed else WITHIN]
                judged += closed.tables[name][:, DONE]
        return np.asarray(np.divide(on_time, judged, out=np.full(on_time.size, np.nan), where=judged > 0))

    def observation(self, now: float, composition: Composition) -> Observation:
        self.application = self._figures()
        self._alternates.ran(self._last_commits(), self.pool.mean_speed(now))
        return super().observation(now, composition)

    def _last_commits(self) -> Mapping[tuple[str, str], float]:
        return self.fused.ran

    def _figures(self) -> dict[Metric, float]:
        closed, row = self._closed, self._row
        if closed is None:
            return {}
        ends = tuple(name for name, segment in self.fused.segments.items() if segment.demand.results > 0) or self._sources
        taken = self._batches_of(self._sources, closed, row)
        _, _, records, oldest, newest = np.ascontiguousarray(self._batches_of(ends, closed, row).T)
        figures = {
            Metric.ARRIVAL_RATE: self.offered_last if len(taken) else math.nan,
            Metric.THROUGHPUT: sum(float(closed.rates[name][0][row]) for name in self._sources),
            **spread_figures(records, oldest, newest, self.context.target_latency, compiled_spread),
        }
        if len(taken):
            durations = taken if ends == self._sources else self._batches_of(tuple(closed.logs), closed, row)
            figures[Metric.BATCH_DURATION] = statistics.median(durations[:, 1].tolist())
        return figures

    @staticmethod
    def _batches_of(segments: Sequence[str], closed: ClosedPeriods, row: int) -> Floats:
        logs = []
        for name in segments:
            by = int(closed.commits[name][row])
            logs.append(closed.logs[name][by - int(closed.rates[name][1][row]) : by])
        return logs[0] if len(logs) == 1 else np.concatenate(logs)

    def _standby(self, tasks: TaskFrame, hosts: tuple[str, ...]) -> Standby:
        if not self.settings.replicas:
            return NO_STANDBY
        rows, names = {name: row for row, name in enumerate(hosts)}, [lease.host for lease in self.pool.leases]
        standby = {station.name: station.standby for station in self.fused.stations}
        pairs = [
            (row, rows[names[host]])
            for row, task in enumerate(tasks.tasks)
            for host in sorted(standby[task.operator].get(task.index, ()))
            if names[host] in rows
        ]
        task, host = ([pair[side] for pair in pairs] for side in (0, 1))
        return Standby(task, host, np.zeros(len(pairs)), np.full(len(pairs), np.nan))  # type: ignore[arg-type]

    @property
    def traced(self) -> bool:
        """True if commits set signals."""
        return bool(self._traces)

    def delivered(self, batch: tuple[float, Sequence[MicroBatch]]) -> None:
        """Exclude the batches up to the observed `batch` from the next observation."""
        self._batch = batch
        self.fused.reports = [(name, log[log[:, 0] + log[:, 1] >= batch[0]]) for name, log in self.fused.reports]

    def _batches(self, now: float) -> Sequence[MicroBatch]:
        if now > self._batch[0]:
            self._batch = (now, Reports(self.fused.reports))
            self.fused.reports = []
        return self._batch[1]


@njit(cache=True)
def enter_stage(  # noqa: PLR0913
    table: Floats,
    row: int,
    figures: Floats,
    rate: Floats,
    batches: NDArray[np.int64],
    busy: Floats,
    before: int,
    stage: int,
    part: float,
    volume: float,
    period: float,
    leads: bool,
    limited: bool,
) -> None:
    """Enter a stage's figures in its `row` of `table`, and its busy cores in `busy`.

    Args:
        rate, batches: Recent records/s of the query, and number of batches measured.
        part: The stage's fraction of the query's work.
        leads: True for a query's first stage, the only one with a queue.
        limited: True with a service level.
    """
    for k in range(figures.shape[0]):
        into, done, judged = table[k], figures[k, DONE] * volume, figures[k, DONE]
        busy[before + k, stage] = figures[k, BUSY] * part / period
        into[PROCESSED_ROW, row] = into[EMITTED_ROW, row] = rate[k] * volume
        if done > 0:
            into[SERVICE_ROW, row] = figures[k, BUSY] * part / done
        if not leads:
            into[ARRIVAL_ROW, row] = rate[k] * volume
            continue
        if batches[k] > 0:
            into[ARRIVAL_ROW, row] = figures[k, ARRIVED] / period
            into[BACKLOG_ROW, row] = figures[k, LEFT]
        if judged > 0:
            into[DURATION_ROW, row] = figures[k, DELAY] / judged
            if limited:
                into[COMPLIANCE_ROW, row] = figures[k, WITHIN] / judged
        into[MIDDLE_ROW, row], into[LATE_ROW, row] = figures[k, MIDDLE], figures[k, LATE]


@njit(cache=True)
def enter_busy(table: Floats, rows: NDArray[np.int64], busy: Floats, before: int, most: int, usable: Floats) -> None:
    """Enter mean busy cores over up to `most` periods, and their fraction of `usable` cores.

    The first `before` periods of `busy` come from earlier calls.
    """
    periods, stages = busy.shape
    reach = np.zeros((periods + 1, stages))
    for k in range(periods):
        for stage in range(stages):
            reach[k + 1, stage] = reach[k, stage] + busy[k, stage]
    for last in range(before + 1, periods + 1):
        first, k = max(0, last - most), last - before - 1
        for stage in range(stages):
            mean = (reach[last, stage] - reach[first, stage]) / (last - first)
            table[k, BUSY_ROW, rows[stage]] = mean
            if usable[k] > 0:
                table[k, UTILISATION_ROW, rows[stage]] = mean / usable[k]


@njit(cache=True)
def window_means(rows: Floats, before: int, most: int) -> Floats:
    """Return the mean of each row after the first `before` ones and up to `most` - 1 rows in front of it."""
    means = np.zeros((rows.shape[0] - before, rows.shape[1]))
    for row in range(before, rows.shape[0]):
        first = max(0, row - most + 1)
        for column in range(rows.shape[1]):
            total = rows[first, column]
            for k in range(first + 1, row + 1):
                total += rows[k, column]
            means[row - before, column] = total / (row + 1 - first)
    return means
