"""What the hosts of rings are busy with, as an observation says it: readings for decisions about tokens.

The thesis's hosts have a queue each, and so have those of a ring of reducers. Of micro-batches all hosts of a query have
one, at its source, and wait for the slowest of them. So a host's use of CPU is taken at the rate at which records arrive
- what it would be if no other held the query up - and the queue counts for those hosts alone that would be busy then.
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

MOST_BEHIND = 10.0
"""Most by which a use of CPU is multiplied because fewer records are processed than arrive: of a query that has stopped for
a moment the ratio says nothing."""
NO_PAUSE = 1.65
"""Mean latency over the length of a batch up to which batches have no pause between them: one and a half where there is
none at all, and a tenth for what is measured between two looks."""
REMEMBERED = 120.0
"""Seconds of samples that a trend is drawn through: what the default policy keeps, too."""


@dataclass(frozen=True)
class RingLoad:
    """Readings of one observation. busy: part of its cores from which a host counts as busy. late: seconds from which
    records wait for long. target: mean latency, seconds, from which they are late whatever waits."""

    observation: Observation
    busy: float
    late: float = math.inf
    target: float = math.inf

    @cached_property
    def units(self) -> Mapping[str, Unit]:
        """What each operator with state partitions runs in."""
        context = self.observation.context
        return {name: unit for unit in context.units for name in unit.operators if context.partitions.get(name, 0) > 0}

    @cached_property
    def waits(self) -> Mapping[str, float]:
        """Seconds that records which come now will wait for each operator, beyond one batch; NaN where unknown.

        Batches that follow one another without a pause, each as long as `late`, keep records waiting for as long. A queue
        that grows by less than a hundredth of the rate is short for minutes, in which records are late: they are asked.
        """
        held_up = self._batch if self.without_pause and self._batch >= self.late else 0.0
        latency = self.observation.overall(Metric.LATENCY)
        if latency > self.target and self._batch == self._batch:
            held_up = max(held_up, latency - self._batch)
        return {name: max(seconds, held_up) if seconds == seconds else seconds for name, seconds in self._queued.items()}

    @cached_property
    def _queued(self) -> Mapping[str, float]:
        """Seconds that what waits now takes, by the rate at which records arrive (Little's law), else by the latency of the
        application."""
        found = {}
        for name, unit in self.units.items():
            queue, rate = waiting(self.observation, unit), self._rate(unit, Metric.ARRIVAL_RATE)
            seconds = (0.0 if queue <= 0 else math.inf) if rate == 0 else queue / rate
            if math.isnan(seconds):
                latency = self.observation.overall(Metric.LATENCY)
                seconds = max(0.0, latency - self._batch) if latency == latency and self._batch == self._batch else math.nan
            found[name] = seconds
        return found

    @cached_property
    def _batch(self) -> float:
        """Seconds of a micro-batch; NaN where unknown."""
        return self.observation.overall(Metric.BATCH_DURATION)

    @cached_property
    def without_pause(self) -> bool:
        """Whether micro-batches follow one another without a pause, and records wait for them for `late` seconds or more.

        So they do where more records wait than one batch takes; and where batches last so long and no record waits for
        longer than one. Of records that come evenly, one waits for half a batch and is in the next; with pauses for longer.
        """
        if self._own_queues or not self._batch > 0:
            return False
        if any(seconds >= self.late for seconds in self._queued.values()):
            return True
        return self._batch >= self.late and self.observation.overall(Metric.LATENCY) <= NO_PAUSE * self._batch

    @cached_property
    def behind(self) -> Mapping[str, float]:
        """Arriving over processed records of each operator's query, between 1 and MOST_BEHIND; 1 where unknown."""
        return {name: max(1.0, ratio) for name, ratio in self._ratios.items()}

    @cached_property
    def _ratios(self) -> Mapping[str, float]:
        """Arriving over processed records of each operator's query, up to MOST_BEHIND; 1 where unknown."""
        found = {}
        for name, unit in self.units.items():
            arrive, done = (self._rate(unit, each) for each in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
            ratio = arrive / done if done > 0 else math.nan
            found[name] = min(ratio, MOST_BEHIND) if ratio == ratio else 1.0
        return found

    def _rate(self, unit: Unit, metric: Metric) -> float:
        return total_of(self.observation.operators, metric, entries(self.observation.context, unit))

    @cached_property
    def used(self) -> Mapping[str, float]:
        """Use of CPU of each usable host as measured."""
        column, rows = self.observation.hosts.column(Metric.CPU).tolist(), self.observation.hosts.rows
        return {host: column[rows[host]] for host in self.observation.usable if host in rows}

    @cached_property
    def levels(self) -> Mapping[str, float]:
        """Use of CPU of each usable host at the rate at which records arrive, NaN where unknown; may be above 1.

        Where batches follow one another without a pause, hosts have no more to give than they do: their use is relative to
        the busiest one's. The rest of such a batch is spent between tasks, where no host works.
        """
        most = max(self.behind.values(), default=1.0)
        found = {host: used * most for host, used in self.used.items()}
        highest = max((level for level in found.values() if level == level), default=math.nan)
        if not (self.without_pause and 0 < highest < 1):
            return found
        return {host: level / highest for host, level in found.items()}

    def enough(self, gain: float) -> float:
        """Hosts with which a query that keeps records waiting without a pause would no longer do so; inf: with none.

        Hosts share the part of a batch that is spent in tasks, and not the rest (Amdahl), nor the largest state partition
        of each stage, which one core works on. gain: part by which it is to be faster than it must be.
        """
        hosts, tasks = len(self.levels), min(1.0, max((self.used[host] for host in self.levels), default=0.0))
        tasks = min(tasks, max(0.0, 1 - self.largest / max(self.behind.values(), default=1.0)))
        found = 0.0
        if any(seconds >= self.late for seconds in self._queued.values()):
            # What waits is to become less: the records of a batch are to take that part of their time.
            ratio = max(self._ratios.values(), default=1.0)
            part = 1 / ((1 + gain) * ratio) if ratio > 0 else 1.0  # where nothing arrives, whatever is done is enough
            found = 0.0 if part >= 1 else hosts * tasks / (part - (1 - tasks)) if part > 1 - tasks else math.inf
        if self._batch >= self.late:
            # A batch takes what came during the one before it: rest / (1 - tasks) seconds.
            room = 1 - self._batch * (1 - tasks) / ((1 - gain) * self.late)
            found = max(found, hosts * tasks / room if room > 0 else math.inf)
        return found

    @cached_property
    def largest(self) -> float:
        """Part of the time that the largest state partition of each stage would take at the rate at which records arrive,
        one after the other: no host makes it less. 0 where unknown, and where hosts have queues of their own."""
        found = 0.0
        if not self.one_queue:
            return found
        for name in self.units:
            tasks, loads = self.observation.tasks, self.observation.tasks.column(Metric.BUSY_CORES)
            mine = loads[(tasks.operator == self.observation.operators.rows.get(name, -1)) & ~np.isnan(loads)]
            found += float(mine.max()) if mine.size else 0.0
        return found * max(self.behind.values(), default=1.0)

    def keeps_pace(self, before: float, after: float, gain: float) -> bool:
        """Whether batches stay shorter than `late` where a host's use goes from `before` to `after`; so where unknown."""
        rest = self._batch * max(0.0, 1 - before)
        return not rest / max(1e-9, 1 - after) > (1 - gain) * self.late

    @cached_property
    def queues(self) -> Mapping[str, float]:
        """Seconds that wait for each usable host: in its own queue where there is one, else those of its queries where it
        would be busy, and 0 where not."""
        wait = max(self.waits.values(), default=0.0, key=lambda each: -math.inf if each != each else each)
        shared = {host: 0.0 if level < self.busy else wait for host, level in self.levels.items()}
        return {**shared, **{host: seconds for host, seconds in self._own_queues.items() if host in shared}}

    @cached_property
    def one_queue(self) -> bool:
        """Whether all hosts work off one queue: that of a query's source."""
        layout = self.observation.context.layout
        return not self._own_queues and len({layout.stage_of[name].segment for name in self.units}) == 1

    @cached_property
    def _own_queues(self) -> Mapping[str, float]:
        """Seconds that the queue of each host takes at the rate at which it processes; empty where tasks have no queues."""
        tasks, names = self.observation.tasks, self.observation.hosts.ids
        queued, rate = (tasks.column(metric) for metric in (Metric.BACKLOG, Metric.PROCESSED_RATE))
        known = ~np.isnan(queued) & ~np.isnan(rate)
        if not known.any():
            return {}
        waits, done = (np.bincount(tasks.host[known], column[known], len(names)) for column in (queued, rate))
        return {
            name: float(waits[row] / done[row]) if done[row] > 0 else math.inf if waits[row] > 0 else 0.0
            for row, name in enumerate(names)
        }

    @cached_property
    def _speeds(self) -> Floats:
        """Speed of the cores of each host, by its row; and of none, 1, for tasks that are placed nowhere."""
        known = [self.observation.speeds.get(host, 1.0) for host in self.observation.hosts.ids]
        return np.array([*known, 1.0])

    def loads(self, operator: str) -> Floats:
        """Cores of speed 1 that each state partition of `operator` keeps busy, by its number; NaN where unknown."""
        return self._loads[operator]

    @cached_property
    def _loads(self) -> Mapping[str, Floats]:
        tasks = self.observation.tasks
        busy, done = tasks.column(Metric.BUSY_CORES), {}
        for name in self.units:
            count = self.observation.context.partitions[name]
            within = (tasks.operator == self.observation.operators.rows.get(name, -1)) & (tasks.index < count)
            found = np.full(count, np.nan)
            found[tasks.index[within]] = busy[within] * self._speeds[tasks.host[within]]
            found.flags.writeable = False
            done[name] = found
        return done

    @cached_property
    def _state(self) -> Mapping[str, float]:
        """Cores that the state partitions on each host keep busy, as far as it is known."""
        found: dict[str, float] = {}
        for name in self.units:
            loads = self.loads(name)
            for host, numbers in self._on[name].items():
                found[host] = found.get(host, 0.0) + float(np.nansum(loads[numbers]))
        return found

    @cached_property
    def other(self) -> Mapping[str, float]:
        """Cores that each usable host is busy with beside its state partitions, by what is measured now; below 0 where that
        is less than they take. Hosts whose use is unknown are left out."""
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
        """`hosts`, neighbours on `ring` clockwise, with what they own; joins: another host behind them, which owns nothing.

        other: what hosts are busy with beside state, where more is known of it than is measured now.
        """
        count, loads = self.observation.context.partitions[operator], self.loads(operator)
        owned = [ring.partitions(host, count) for host in hosts]
        numbers = [number for each in owned for number in each]
        on, known = self._on[operator], {**self.other, **other}
        members = (*hosts, *([] if joins is None else [joins]))
        capacity = np.array([self.observation.capacities[host] for host in members])
        own = [float(np.nansum(loads[on.get(host, [])])) for host in members]
        busy = np.array([known[host] + self._state.get(host, 0.0) if host in known else 0.0 for host in members])
        fixed = np.maximum(0.0, busy - own)
        counts = (*(len(each) for each in owned), *([] if joins is None else [0]))
        return Arc(members, numbers[0] if numbers else 0, count, loads[numbers], counts, fixed, capacity)

    @cached_property
    def _on(self) -> Mapping[str, Mapping[str, list[int]]]:
        """By operator, numbers of its partitions that are on each host."""
        tasks, names = self.observation.tasks, self.observation.hosts.ids
        done: dict[str, Mapping[str, list[int]]] = {}
        for name in self.units:
            mine = tasks.operator == self.observation.operators.rows.get(name, -1)
            found: dict[str, list[int]] = {}
            for number, row in zip(tasks.index[mine].tolist(), tasks.host[mine].tolist(), strict=True):
                found.setdefault(names[row], []).append(number)
            done[name] = found
        return done

    def uncertainty(self, host: str) -> float:
        """Standard error of what all state partitions on `host` take, over that, at most: as if all erred the same way, as
        they do when a skew begins, whose first batches are outliers to a median. 0 where it is unknown.
        """
        tasks, names = self.observation.tasks, self.observation.hosts.ids
        there = tasks.host == (names.index(host) if host in names else -1)
        busy, error = (tasks.column(each)[there] for each in (Metric.BUSY_CORES, Metric.BUSY_CORES_ERROR))
        known = ~(np.isnan(busy) | np.isnan(error))
        taken = float(busy[known].sum())
        return float(error[known].sum()) / taken if taken > 0 else 0.0

    def heaviest(self, host: str) -> tuple[str, int, float] | None:
        """The state partition on `host` that keeps most cores busy: operator, number, cores; None where none is known."""
        known = [
            (float(loads[number]), name, number)
            for name in self.units
            for loads in [self.loads(name)]
            for number in self._on[name].get(host, [])
            if loads[number] == loads[number]
        ]
        cores, name, number = max(known, default=(math.nan, "", -1))
        return None if number < 0 else (name, number, cores)

    def growth(self, horizon: float) -> float:
        """Rate expected `horizon` seconds from now over the rate now, at least 1: a trend that is certain."""
        observation = self.observation
        sources = [source.name for source in observation.context.graph.sources]
        samples = [each for each in observation.history if each.time > observation.time - REMEMBERED]
        times = np.array([*(each.time for each in samples), observation.time])
        rates = [total_of(each.operators, Metric.ARRIVAL_RATE, sources) for each in samples]
        rates.append(total_of(observation.operators, Metric.ARRIVAL_RATE, sources))
        found = forecast(times, np.array(rates), horizon, horizon)
        return max(1.0, found.expected / found.level) if found.level > 0 else 1.0

    @cached_property
    def lacking(self) -> tuple[Unknown, ...]:
        """What is unknown for want of which no host can be said to be busy."""
        found = [Unknown(Metric.CPU, Rows.HOST, host) for host, level in self.levels.items() if math.isnan(level)]
        for name, seconds in self.waits.items():
            if math.isnan(seconds):
                first = entries(self.observation.context, self.units[name])[:1]
                found.append(Unknown(Metric.BACKLOG, Rows.OPERATOR, first[0] if first else name))
        return tuple(dict.fromkeys(found))
