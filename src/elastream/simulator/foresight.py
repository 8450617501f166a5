"""Simulation ahead of the control loop: most rounds of a run change nothing.

A copy of the network advances over many rounds at once; the network itself follows before anything reads or changes it.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from elastream.core.frames import Floats, Frame, TableFrame, TaskFrame, application_frame
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, MicroBatch, Observation, Sample
from elastream.simulator.batch_watch import BatchMetricsCollector, ClosedPeriods
from elastream.simulator.fused import Reports
from elastream.simulator.links import exchange_of
from elastream.simulator.watching import AT, HOSTS_FUSED

# Rounds to simulate ahead: at first, and at most.
FEWEST_ROUNDS, MOST_ROUNDS = 4, 128
# Most rounds times leases, which bounds the memory.
MOST_HOST_ROUNDS = 200_000


class Foresight(BatchMetricsCollector):
    """Observations of a steady network from `begin` to `end`, the end of a monitoring period.

    `present` is the collector of the network at `begin`.
    """

    def __init__(self, present: BatchMetricsCollector, begin: float, end: float) -> None:
        vars(self).update(vars(present))
        self.begin, self.end = begin, end
        self.network = self.fused = present.fused.fork()
        self.samples, self.series = present.samples.copy(), []
        self.slow_since, self.adapted = dict(present.slow_since), []
        self.task_busy = dict(present.task_busy)
        self._waiting, self._last_commits_before = present.fused.reports, present.fused.ran
        pool = copy.copy(self.pool)
        pool.worked = pool.worked.copy()
        self.fused.advance(begin, end, pool)
        self._earlier = len(self.samples)
        self.tick(end)
        self._delivered = {name: int((log[:, 0] + log[:, 1]).searchsorted(begin)) for name, log in self._ahead.logs.items()}
        self._begun = dict(self._delivered)
        self._host_tables: Floats | None = None
        self._usages: Floats | None = None
        self._task_template = TaskFrame()
        self._fields: dict[str, Any] = {}
        self._speed = self.pool.mean_speed(begin)
        self._costs = self.pool.costs(self._ahead.ends).tolist()

    @property
    def _ahead(self) -> ClosedPeriods:
        assert self._closed is not None
        return self._closed

    def look(self, now: float) -> bool:
        """Make the simulated period that ends at `now` the current one; return False if there is none."""
        row = round(now / self.settings.monitor) - 1 - self._ahead.before
        if not 0 <= row < self._ahead.ends.size or self._ahead.ends[row] != now:
            return False
        self._show(row)
        return True

    @property
    def observed(self) -> tuple[float, Sequence[MicroBatch]]:
        return self._batch

    def observation(self, now: float, composition: Composition) -> Observation:
        if not self._fields:
            first = super().observation(now, composition)
            self._fields = {each.name: getattr(first, each.name) for each in fields(first)}
            return first
        self._alternates.ran(self._last_commits(), self._speed)
        self.application = self._figures()
        tasks, hosts = self._task_frame(), self._fields["hosts"].ids
        exchange = exchange_of(self.streams, self.network.stations, 0.0)
        overall = {**self.application, **self.network.updates.figures, Metric.COST: self._costs[self._row]}
        observation = object.__new__(Observation)
        vars(observation).update(
            self._fields,
            time=now,
            operators=self._operators(0.0),
            application=application_frame(self.context.graph.name, overall),
            hosts=self._host_frame(hosts, now, exchange.over_links(tasks.host, len(hosts))),
            tasks=tasks,
            composition=composition,
            history=self._history(),
            batches=self._batches(now),
            exchange=exchange,
            alternates=self._alternates.frame(now),
        )
        return observation

    def _host_frame(self, names: tuple[str, ...], now: float, link: Floats) -> Frame:
        if self._host_tables is None:
            pool, active = self.pool, self.pool.active
            unknown = ~pool.up[active] | (active >= self._ahead.hosts.shape[1])
            busy = self._ahead.hosts[:, np.where(unknown, 0, active)] / pool.cores[active]
            tables = np.empty((len(busy), len(HOSTS_FUSED), len(names)))
            tables[:, HOSTS_FUSED[Metric.CPU]] = np.where(unknown, np.nan, np.minimum(busy, 1.0))
            tables[:, HOSTS_FUSED[Metric.TASKS]] = pool.tasks[active]
            tables[:, HOSTS_FUSED[Metric.SPEED]] = np.where(pool.up[active], pool.speeds(now)[active], np.nan)
            self._host_tables = tables
        table = self._host_tables[self._row]
        table[HOSTS_FUSED[Metric.BANDWIDTH]] = link
        return TableFrame(self._host_rows, HOSTS_FUSED, table)

    def _show(self, row: int) -> None:
        self._row, self.ticks = row, self._ahead.before + row + 1
        self.offered_last = float(self._ahead.offered[row])
        self._table, self.host_busy = self._ahead.table[row], self._ahead.hosts[row]
        self._stream()

    def _task_frame(self) -> TaskFrame:
        if self._usages is None:
            self._task_template, columns = super()._task_frame(), []
            for station in self.fused.stations:
                busy = self._ahead.table[:, AT[Metric.BUSY_CORES], self.rows[station.name], None]
                placed = station.crew.host >= 0
                columns.append(busy * station.shares[placed])
            self._usages = np.concatenate(columns, axis=1)
        usage = self._usages[self._row]
        return self._task_template.measured({Metric.UTILISATION: usage, Metric.BUSY_CORES: usage})

    def _history(self) -> tuple[Sample, ...]:
        until = self._earlier + self._row
        return tuple(self._ahead.samples[max(0, until - self.settings.history) : until])

    def _operators(self, age: float) -> Frame:
        return self._ahead.samples[self._earlier + self._row].operators

    def _last_commits(self) -> Mapping[tuple[str, str], float]:
        ran = dict(self._last_commits_before)
        for name, segment in self.fused.segments.items():
            log, count = self._ahead.logs[name], int(self._ahead.commits[name][self._row])
            if count > self._begun[name]:
                ran.update(dict.fromkeys(segment.demand.runs, float(log[count - 1, 0] + log[count - 1, 1])))
        return ran

    def _batches(self, now: float) -> Sequence[MicroBatch]:
        if now > self._batch[0]:
            rows = list(self._waiting)
            for name, log in self._ahead.logs.items():
                count = int(self._ahead.commits[name][self._row])
                rows.append((name, log[self._delivered[name] : count]))
                self._delivered[name] = count
            self._batch, self._waiting = (now, Reports(rows)), []
        return self._batch[1]
