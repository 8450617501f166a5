"""Load of hosts on rings, from an observation, for decisions about tokens.

With micro-batches all hosts of a query share one queue at its source. CPU use is therefore scaled to the arrival rate, and
the queue counts only for hosts that would then be busy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from elastream.core.decision import Unknown
from elastream.core.frames import Floats
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.ring import Ring
from elastream.dataflow.stages import Unit
from elastream.policies.common.measures import total_of
from elastream.policies.common.queues import entries, waiting
from elastream.policies.forecasting.trend import forecast
from elastream.policies.ring.balance import Arc

# Most by which CPU use is scaled up: for a query that paused, the ratio of arriving to processed records says nothing.
MOST_BEHIND = 10.0
# Ratio of mean latency to batch duration up to which batches follow without a pause: 1.5, and a tenth for measurement.
NO_PAUSE = 1.65
# Seconds of samples for a trend, as in `threshold`.
TREND_S = 120.0


@dataclass(frozen=True)
class RingLoad:
    """Figures of one observation.

    Args:
        busy: Part of its cores from which a host is busy.
        late: Waiting time from which records wait long (seconds).
        target: Target for the mean latency (seconds).
    """

    observation: Observation
    busy: float
    late: float = math.inf
    target: float = math.inf

    @cached_property
    def units(self) -> Mapping[str, Unit]:
        context = self.observation.context
        return {name: unit for unit in context.units for name in unit.operators if context.partitions.get(name, 0) > 0}

    @cached_property
    def waits(self) -> Mapping[str, float]:
        """Seconds that new records will wait beyond one batch, by operator; NaN if unknown."""
        held_up = self._batch if self.without_pause and self._batch >= self.late else 0.0
        latency = self.observation.overall(Metric.LATENCY)
        if latency > self.target and self._batch == self._batch:
            held_up = max(held_up, latency - self._batch)
        return {name: max(seconds, held_up) if seconds == seconds else seconds for name, seconds in self._queued.items()}

    @cached_property
    def _queued(self) -> Mapping[str, float]:
        """Seconds of work in each queue: by the arrival rate (Little's law), else by the latency."""
        waits = {}
        for name, unit in self.units.items():
            queue, rate = waiting(self.observation, unit), self._rate(unit, Metric.ARRIVAL_RATE)
            seconds = (0.0 if queue <= 0 else math.inf) if rate == 0 else queue / rate
            if math.isnan(seconds):
                latency = self.observation.overall(Metric.LATENCY)
                seconds = max(0.0, latency - self._batch) if latency == latency and self._batch == self._batch else math.nan
            waits[name] = seconds
        return waits

    @cached_property
    def _batch(self) -> float:
        return self.observation.overall(Metric.BATCH_DURATION)

    @cached_property
    def without_pause(self) -> bool:
        """True if micro-batches follow without a pause and records wait `late` seconds or more."""
        if self._own_queues or not self._batch > 0:
            return False
        if any(seconds >= self.late for seconds in self._queued.values()):
            return True
        return self._batch >= self.late and self.observation.overall(Metric.LATENCY) <= NO_PAUSE * self._batch

    @cached_property
    def behind(self) -> Mapping[str, float]:
        """Ratios as `_ratios`, at least 1."""
        return {name: max(1.0, ratio) for name, ratio in self._ratios.items()}

    @cached_property
    def _ratios(self) -> Mapping[str, float]:
        """Arriving over processed records of each operator's query, up to MOST_BEHIND; 1 if unknown."""
        ratios = {}
        for name, unit in self.units.items():
            arrive, done = (self._rate(unit, each) for each in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
            ratio = arrive / done if done > 0 else math.nan
            ratios[name] = min(ratio, MOST_BEHIND) if ratio == ratio else 1.0
        return ratios

    def _rate(self, unit: Unit, metric: Metric) -> float:
        return total_of(self.observation.operators, metric, entries(self.observation.context, unit))

    @cached_property
    def used(self) -> Mapping[str, float]:
        column, rows = self.observation.hosts.column(Metric.CPU).tolist(), self.observation.hosts.rows
        return {host: column[rows[host]] for host in self.observation.usable if host in rows}

    @cached_property
    def levels(self) -> Mapping[str, float]:
        """CPU use of each usable host, scaled to the arrival rate; may exceed 1. NaN if unknown.

        Without pauses between batches, use is relative to the busiest host.
        """
        most = max(self.behind.values(), default=1.0)
        levels = {host: used * most for host, used in self.used.items()}
        highest = max((level for level in levels.values() if level == level), default=math.nan)
        if not (self.without_pause and 0 < highest < 1):
            return levels
        return {host: level / highest for host, level in levels.items()}

    def enough(self, gain: float) -> float:
        """Return the hosts that process without delaying records; inf if no number does.

        Hosts share the part of a batch in tasks, but neither the rest (Amdahl) nor the largest partition of each stage.

        Args:
            gain: Reserve as a part of the speed.
        """
        hosts, tasks = len(self.levels), min(1.0, max((self.used[host] for host in self.levels), default=0.0))
        tasks = min(tasks, max(0.0, 1 - self.largest / max(self.behind.values(), default=1.0)))
        hosts_needed = 0.0
        if any(seconds >= self.late for seconds in self._queued.values()):
            # To reduce the backlog, a batch may take only this part of the time in which its records arrived.
            ratio = max(self._ratios.values(), default=1.0)
            part = 1 / ((1 + gain) * ratio) if ratio > 0 else 1.0  # without arrivals, any capacity suffices
            hosts_needed = 0.0 if part >= 1 else hosts * tasks / (part - (1 - tasks)) if part > 1 - tasks else math.inf
        if self._batch >= self.late:
            # A batch takes the records that arrived during the previous one: rest / (1 - tasks) seconds.
            room = 1 - self._batch * (1 - tasks) / ((1 - gain) * self.late)
            hosts_needed = max(hosts_needed, hosts * tasks / room if room > 0 else math.inf)
        return hosts_needed

    @cached_property
    def largest(self) -> float:
        """Part of the time that the largest partitions of all stages need one after the other.

        No host reduces it. 0 if unknown, and if hosts have queues of their own.
        """
        total = 0.0
        if not self.one_queue:
            return total
        for name in self.units:
            tasks, loads = self.observation.tasks, self.observation.tasks.column(Metric.BUSY_CORES)
            mine = loads[(tasks.operator == self.observation.operators.rows.get(name, -1)) & ~np.isnan(loads)]
            total += float(mine.max()) if mine.size else 0.0
        return total * max(self.behind.values(), default=1.0)

    def keeps_pace(self, before: float, after: float, gain: float) -> bool:
        """Return True unless batches would reach `late` when a host's use changes from `before` to `after`."""
        rest = self._batch * max(0.0, 1 - before)
        return not rest / max(1e-9, 1 - after) > (1 - gain) * self.late

    @cached_property
    def queues(self) -> Mapping[str, float]:
        """Seconds of waiting by usable host: its own queue, else its queries' if it would be busy."""
        wait = max(self.waits.values(), default=0.0, key=lambda each: -math.inf if each != each else each)
        shared = {host: 0.0 if level < self.busy else wait for host, level in self.levels.items()}
        return {**shared, **{host: seconds for host, seconds in self._own_queues.items() if host in shared}}

    @cached_property
    def one_queue(self) -> bool:
        """True if all hosts work on one queue, at a query's source."""
        layout = self.observation.context.layout
        return not self._own_queues and len({layout.stage_of[name].segment for name in self.units}) == 1

    @cached_property
    def _own_queues(self) -> Mapping[str, float]:
        """Seconds of work in each host's own queue; empty if tasks have no queues."""
        tasks, names = self.observation.tasks, self.observation.hosts.ids
        queued, rate = (tasks.column(metric) for metric in (Metric.BACKLOG, Metric.PROCESSED_RATE))
        measured = ~np.isnan(queued) & ~np.isnan(rate)
        if not measured.any():
            return {}
        waits, done = (np.bincount(tasks.host[measured], column[measured], len(names)) for column in (queued, rate))
        return {
            name: float(waits[row] / done[row]) if done[row] > 0 else math.inf if waits[row] > 0 else 0.0
            for row, name in enumerate(names)
        }

    @cached_property
    def _speeds(self) -> Floats:
        speeds = [self.observation.speeds.get(host, 1.0) for host in self.observation.hosts.ids]
        return np.array([*speeds, 1.0])

    def loads(self, operator: str) -> Floats:
        """Return the busy cores of speed 1 of each state partition, by number; NaN if unknown."""
        return self._loads[operator]

    @cached_property
    def _loads(self) -> Mapping[str, Floats]:
        tasks = self.observation.tasks
        busy, done = tasks.column(Metric.BUSY_CORES), {}
        for name in self.units:
            count = self.observation.context.partitions[name]
            within = (tasks.operator == self.observation.operators.rows.get(name, -1)) & (tasks.index < count)
            loads = np.full(count, np.nan)
            loads[tasks.index[within]] = busy[within] * self._speeds[tasks.host[within]]
            loads.flags.writeable = False
            done[name] = loads
        return done

    @cached_property
    def _state(self) -> Mapping[str, float]:
        cores: dict[str, float] = {}
        for name in self.units:
            loads = self.loads(name)
            for host, numbers in self._numbers_on[name].items():
                cores[host] = cores.get(host, 0.0) + float(np.nansum(loads[numbers]))
        return cores

    @cached_property
    def other(self) -> Mapping[str, float]:
        busy = {host: used * self.observation.capacities[host] for host, used in self.used.items() if used == used}
        return {host: cores - self._state.get(host, 0.0) for host, cores in busy.items()}

    def arc(
        self,
        operator: str,
        ring: Ring,
        hosts: tuple[str, ...],
        joins: str | None = None,
        other: Mapping[str, float] = MappingProxyType({}),
    ) -> Arc:
        """Return the arc of `hosts`, neighbours on `ring` clockwise.

        Args:
            joins: Another host behind them, without partitions.
        """
        count, loads = self.observation.context.partitions[operator], self.loads(operator)
        owned = [ring.partitions(host, count) for host in hosts]
        numbers = [number for each in owned for number in each]
        on, beside = self._numbers_on[operator], {**self.other, **other}
        members = (*hosts, *([] if joins is None else [joins]))
        capacity = np.array([self.observation.capacities[host] for host in members])
        own = [float(np.nansum(loads[on.get(host, [])])) for host in members]
        busy = np.array([beside[host] + self._state.get(host, 0.0) if host in beside else 0.0 for host in members])
        fixed = np.maximum(0.0, busy - own)
        counts = (*(len(each) for each in owned), *([] if joins is None else [0]))
        return Arc(members, numbers[0] if numbers else 0, count, loads[numbers], counts, fixed, capacity)

    @cached_property
    def _numbers_on(self) -> Mapping[str, Mapping[str, list[int]]]:
        tasks, names = self.observation.tasks, self.observation.hosts.ids
        done: dict[str, Mapping[str, list[int]]] = {}
        for name in self.units:
            mine = tasks.operator == self.observation.operators.rows.get(name, -1)
            numbers: dict[str, list[int]] = {}
            for number, row in zip(tasks.index[mine].tolist(), tasks.host[mine].tolist(), strict=True):
                numbers.setdefault(names[row], []).append(number)
            done[name] = numbers
        return done

    def uncertainty(self, host: str) -> float:
        """Return the relative standard error of the work of the partitions on `host`; 0 if unknown."""
        tasks, names = self.observation.tasks, self.observation.hosts.ids
        on_host = tasks.host == (names.index(host) if host in names else -1)
        busy, error = (tasks.column(each)[on_host] for each in (Metric.BUSY_CORES, Metric.BUSY_CORES_ERROR))
        measured = ~(np.isnan(busy) | np.isnan(error))
        work = float(busy[measured].sum())
        return float(error[measured].sum()) / work if work > 0 else 0.0

    def heaviest(self, host: str) -> tuple[str, int, float] | None:
        """Return the heaviest state partition on `host` as (operator, partition number, busy cores); None if unknown."""
        loads_by_partition = [
            (float(loads[number]), name, number)
            for name in self.units
            for loads in [self.loads(name)]
            for number in self._numbers_on[name].get(host, [])
            if loads[number] == loads[number]
        ]
        cores, name, number = max(loads_by_partition, default=(math.nan, "", -1))
        return None if number < 0 else (name, number, cores)

    def growth(self, horizon: float) -> float:
        """Return the rate expected in `horizon` seconds over the present one, at least 1."""
        observation = self.observation
        sources = [source.name for source in observation.context.graph.sources]
        samples = [each for each in observation.history if each.time > observation.time - TREND_S]
        times = np.array([*(each.time for each in samples), observation.time])
        rates = [total_of(each.operators, Metric.ARRIVAL_RATE, sources) for each in samples]
        rates.append(total_of(observation.operators, Metric.ARRIVAL_RATE, sources))
        expected = forecast(times, np.array(rates), horizon, horizon)
        return max(1.0, expected.expected / expected.level) if expected.level > 0 else 1.0

    @cached_property
    def lacking(self) -> tuple[Unknown, ...]:
        missing = [Unknown(Metric.CPU, Rows.HOST, host) for host, level in self.levels.items() if math.isnan(level)]
        for name, seconds in self.waits.items():
            if math.isnan(seconds):
                first = entries(self.observation.context, self.units[name])[:1]
                missing.append(Unknown(Metric.BACKLOG, Rows.OPERATOR, first[0] if first else name))
        return tuple(dict.fromkeys(missing))
