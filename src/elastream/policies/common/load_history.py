"""The load's past in a policy's memory: rates and busy cores over time, lulls, and conclusions from earlier rounds.

A host that starts for longer than a burst lasts serves none of it. So hosts stay as long as earlier lulls lasted, and for a
while after their start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Frame, known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.policies.common.query_work import QueryWork, RecordWork
from elastream.policies.forecasting.trend import Forecast, Surprises

# Part of a need above which another need counts as similar; seconds for which needs and lulls are remembered.
LIKE, MEMORY_S = 0.9, 1800.0
# Number of newest hosts that are judged, and the share of late ones among them from which lulls count.
JUDGED, TOO_LATE = 20, 0.5
# Multiple of the longest lull for which hosts stay.
MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Lulls:
    """Needs of the last half hour, and lulls between similar ones.

    Attributes:
        needs: (last time, cores) of each need that none has reached since, oldest first; cores decrease.
        lulls: (time of its end, seconds) of each lull.
        unneeded: For each of the newest hosts, True if its need had passed when it came and records were late.
        late: Time when records were last late. Forecast lateness does not count: few records may be late once a burst is
            over.
    """

    needs: tuple[tuple[float, float], ...] = ()
    lulls: tuple[tuple[float, float], ...] = ()
    unneeded: tuple[bool, ...] = ()
    late: float = -math.inf

    def after(self, observation: Observation, cores: float, settle: float) -> "Lulls":
        """Return the lulls after a round.

        Args:
            settle: Seconds for which idle hosts stay anyway: shorter lulls do not count.
        """
        now, target, latency = observation.time, observation.context.target_latency, observation.latency().value
        late = now if target is not None and latency is not None and latency > target else self.late
        needs = [each for each in self.needs if now - each[0] <= MEMORY_S]
        last = next((time for time, highest in reversed(needs) if highest >= LIKE * cores), now)
        before = max((time for time, _ in self.needs), default=now)
        unneeded = [late >= request and self._need_has_fallen(request, cores) for request in _arrived(observation, before)]
        while needs and needs[-1][1] <= cores:
            needs.pop()
        if needs and cores >= LIKE * needs[-1][1]:
            needs[-1] = (now, needs[-1][1])
        else:
            needs.append((now, cores))
        lulls = [each for each in self.lulls if now - each[0] <= MEMORY_S]
        lulls += [(now, now - last)] if now - last > settle else []
        return Lulls(tuple(needs), tuple(lulls), (*self.unneeded, *unneeded)[-JUDGED:], late)

    def _need_has_fallen(self, request: float, cores: float) -> bool:
        """Return True if the need has fallen to `cores` since hosts were requested."""
        return cores < LIKE * max((highest for time, highest in self.needs if time >= request), default=0.0)

    def hold(self, observation: Observation, settle: float) -> float:
        """Return the seconds for which needs count: `settle` or longer."""
        now = observation.time
        starting = [observation.leases[host].since for host in observation.coming if host not in observation.waiting]
        recent = (*starting, *_arrived(observation, now - settle))
        since = [now - request for request in recent if self.late >= request]
        too_late = sum(self.unneeded) > TOO_LATE * len(self.unneeded)
        return max((settle, *since, *(MARGIN * seconds for _, seconds in self.lulls if too_late)))


def _arrived(observation: Observation, since: float) -> Sequence[float]:
    leases = (observation.leases[host] for host in observation.usable)
    return [lease.since for lease in leases if (ready := lease.ready_at()) is not None and ready > since]


# Standard errors of a one-sided bound: one case in twenty is higher.
CERTAIN = 1.645


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Linear fit of busy cores over arrival rate, with its standard error.

    A micro-batch has a fixed cost (`intercept`); in proportion to records, a light load would overestimate the cost of a
    record. Beyond the observed rates the upper bound of the mean response counts, limited by proportional work.
    """

    intercept: float
    slope: float
    deviation: float
    mean: float
    spread: float
    highest: float
    samples: int

    @classmethod
    def through(cls, rates: Sequence[float], busy: Sequence[float]) -> "LinearFit":
        count = len(rates)
        mean, mean_busy = sum(rates) / count, sum(busy) / count
        deviations = [rate - mean for rate in rates]
        spread = sum([each * each for each in deviations])
        slope = sum([each * (cores - mean_busy) for each, cores in zip(deviations, busy, strict=True)]) / spread
        intercept = mean_busy - slope * mean
        rest = [cores - intercept - slope * rate for rate, cores in zip(rates, busy, strict=True)]
        deviation = math.sqrt(sum([each * each for each in rest]) / (count - 2))
        return cls(intercept, slope, deviation, mean, spread, max(rates), count)

    def cores(self, rate: float, proportional: float) -> float:
        """Return the cores busy at `rate`.

        Args:
            proportional: Upper limit beyond the observed rates: work per record times `rate`.
        """
        cores = self.intercept + self.slope * rate
        if rate <= self.highest:
            return cores
        error = self.deviation * math.sqrt(1 / self.samples + (rate - self.mean) ** 2 / self.spread)
        return max(cores, min(cores + CERTAIN * error, proportional))


# Part of a rate above which another rate counts as similar; seconds for which an insufficient number of hosts is avoided.
LIKE_RATE, SHORTFALL_MEMORY_S = 0.9, 1800.0
# Value of `shortfall` as long as hosts have always sufficed.
NEVER = (0.0, math.inf, -math.inf)


@dataclass(frozen=True, slots=True)
class HostTrial:
    """Figures of the round in which a query fell behind, to judge hosts that come later.

    Attributes:
        no_gain: Sentence if more hosts have brought next to nothing.
        low_gain: Sentence if more hosts have brought less than half of what they promised.
    """

    cores: float
    processed: float
    busy: float
    time: float
    no_gain: str = ""
    low_gain: str = ""


# Micro-batches of a query that start workers and compile code: their work and delay say nothing about later ones.
FIRST_BATCHES = 2


@dataclass(frozen=True, eq=False)
class LoadHistory:
    """Samples and conclusions of earlier rounds.

    Attributes:
        samples: Shape (6, samples), oldest first: time, arriving, processed and finished records/s, busy cores, and 1 if
            warm.
        since: Time of the first sample of the run.
        began: Time of the first sample with processed records; inf before.
        needs: (time, cores by part) of earlier rounds.
        shortfall: (cores that did not suffice, their rate, time) when the query last fell behind.
        running: Alternates and branches that run. `shortfall`, bounds and `trial` are valid for these only.
        rounds_beyond: Consecutive rounds in which the load needed more than that.
        last_drain: Time when a host was last draining. Observations do not contain ended leases.
        last_batches: (end, seconds) of the last micro-batch by query.
        late: Late micro-batches in a row until now, by query.
        queries: Work of several queries, and `record`: that of a source record in all of them. None for one query.
    """

    samples: Floats
    since: float
    began: float = math.inf
    needs: tuple[tuple[float, tuple[float, ...]], ...] = ()
    lulls: Lulls = field(default_factory=Lulls)
    surprises: Surprises = field(default_factory=Surprises)
    shortfall: tuple[float, float, float] = NEVER
    running: object = None
    partition_bounds: tuple[float, ...] = ()
    rounds_beyond: int = 0
    last_drain: float = -math.inf
    trial: HostTrial | None = None
    last_batches: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    late: Mapping[str, int] = field(default_factory=dict)
    queries: QueryWork | None = None
    record: RecordWork | None = None

    @classmethod
    def after(cls, before: "LoadHistory | None", observation: Observation, keep: float, warming: float) -> "LoadHistory":
        """Return the history after `observation`.

        Args:
            keep: Age of the oldest sample to keep (seconds).
            warming: Seconds for which a run, or a new host, is not warm. Nor is a query in its first batches.
        """
        last = -math.inf if before is None else float(before.times[-1])
        frames: list[tuple[float, Frame]] = []
        for sample in reversed(observation.history):
            if sample.time <= last:
                break
            frames.append((sample.time, sample.operators))
        frames.reverse()
        if observation.time > last:
            frames.append((observation.time, observation.operators))
        columns = _columns(observation, frames)
        now = observation.composition
        running = (now.alternates, now.choices, now.tables, now.code)
        queries = record = None
        if len(observation.context.layout.segments) > 1:
            earlier = before.queries if before is not None and running == before.running else None
            since = None if before is None else last
            queries = QueryWork.after(earlier, observation, frames, observation.mean_speed, since)
            record = queries.of_record(observation.context.layout)
        if record is not None:
            columns[3] = [cores / record.cores for cores in columns[4]]
        times, began = columns[0], math.inf if before is None else before.began
        began = min(began, next((time for time, done in zip(times, columns[2], strict=True) if done > 0), math.inf))
        last_drain = observation.time if observation.draining else -math.inf if before is None else before.last_drain
        last_batches = {} if before is None else before.last_batches
        ended, late = ({}, {}) if before is None else (before.ended, before.late)
        if observation.batches:
            ended, late, last_batches = _with_batches(ended, late, last_batches, observation)
        young = [at for at in observation.came if times and at + warming > times[0]]  # most hosts came long ago
        warm = [0.0 if time < began + warming or any(at <= time < at + warming for at in young) else 1.0 for time in times]
        if min(ended.values(), default=FIRST_BATCHES) < FIRST_BATCHES:
            warm = [0.0] * len(warm)
        samples = np.array([*columns, warm])
        if before is not None:
            first = int(before.samples[0].searchsorted(observation.time - keep))
            samples = np.concatenate([before.samples[:, first:], samples], axis=1)
            after = before._replaced(
                samples=samples, began=began, last_drain=last_drain, last_batches=last_batches, ended=ended, late=late,
                queries=queries, record=record,
            )  # fmt: skip
            if running == before.running:
                return after
            return replace(after, shortfall=NEVER, running=running, partition_bounds=(), rounds_beyond=0, trial=None)
        return cls(
            samples,
            float(samples[0, 0]),
            began,
            running=running,
            last_drain=last_drain,
            last_batches=last_batches,
            ended=ended,
            late=late,
            queries=queries,
            record=record,
        )

    def _replaced(self, **changes: object) -> "LoadHistory":
        # Several copies a round by `dataclasses.replace` would take most of its time.
        copy = object.__new__(LoadHistory)
        vars(copy).update(vars(self), **changes)
        return copy

    @property
    def times(self) -> Floats:
        row: Floats = self.samples[0]
        return row

    @property
    def arriving(self) -> Floats:
        row: Floats = self.samples[1]
        return row

    @property
    def processed(self) -> Floats:
        row: Floats = self.samples[2]
        return row

    @property
    def finished(self) -> Floats:
        """Source records/s that the busy cores finish in every query."""
        row: Floats = self.samples[3]
        return row

    @property
    def busy(self) -> Floats:
        row: Floats = self.samples[4]
        return row

    @property
    def warm(self) -> NDArray[np.bool_]:
        """True for samples that show the lasting work per record: first batches start workers and compile code."""
        return np.asarray(self.samples[5] > 0)

    def with_need(self, time: float, cores: tuple[float, ...], settle: float) -> "LoadHistory":
        """Return this history with a need; drop those older than `settle` seconds."""
        recent = tuple(each for each in self.needs if each[0] >= time - settle and len(each[1]) == len(cores))
        needs = (*recent, (time, cores))
        return self._replaced(needs=needs)

    def insufficient(self, time: float, rate: float) -> float:
        """Return the cores that lately did not suffice for a similar rate; 0 if there are none."""
        cores, arrived, when = self.shortfall
        return cores if rate >= LIKE_RATE * arrived and time - when <= SHORTFALL_MEMORY_S else 0.0

    def with_surprise(self, time: float, forecast: Forecast, horizon: float, pace: float) -> "LoadHistory":
        surprises = self.surprises.after(time, forecast.level, forecast.expected, horizon, pace)
        return self._replaced(surprises=surprises)

    def with_bounds(self, bounds: tuple[float, ...]) -> "LoadHistory":
        return self if bounds == self.partition_bounds else self._replaced(partition_bounds=bounds)

    @property
    def highest(self) -> Floats:
        return np.asarray(np.array([cores for _, cores in self.needs]).max(axis=0))


def _with_batches(
    ended: Mapping[str, int], late: Mapping[str, int], last: Mapping[str, tuple[float, float]], observation: Observation
) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, tuple[float, float]]]:
    counts, in_a_row, newest, target = dict(ended), dict(late), dict(last), observation.context.target_latency or math.inf
    for each in observation.batches:
        segment, seconds = each.segment, each.seconds
        end = each.start + seconds
        if segment not in last or end > last[segment][0]:
            counts[segment] = counts.get(segment, 0) + 1
            in_a_row[segment] = in_a_row.get(segment, 0) + 1 if each.oldest > target else 0
        newest[segment] = (end, seconds)
    return counts, in_a_row, newest


def _columns(observation: Observation, frames: Sequence[tuple[float, Frame]]) -> list[list[float]]:
    graph = observation.context.graph
    sources = [source.name for source in graph.sources]
    working = [o.name for o in graph.operators if not o.waits]
    speed = observation.mean_speed
    operators = [frame for _, frame in frames]
    arriving = [math.fsum(row) for row in _values(operators, Metric.ARRIVAL_RATE, sources)]
    processed = [math.fsum(row) for row in _values(operators, Metric.PROCESSED_RATE, sources)]
    busy = [speed * known_sum(row) for row in _values(operators, Metric.BUSY_CORES, working)]
    return [[time for time, _ in frames], arriving, processed, processed, busy]


# Frames up to which single values are faster than columns.
FEW_FRAMES = 4


def _values(frames: Sequence[Frame], metric: Metric, names: Sequence[str]) -> list[list[float]]:
    rows = frames[0].rows if frames else {}
    if len(frames) > FEW_FRAMES and all(frame.rows is rows for frame in frames) and all(name in rows for name in names):
        columns = np.array([frame.column(metric) for frame in frames])
        values: list[list[float]] = columns[:, [rows[name] for name in names]].tolist()
        return values
    return [[frame.value(name, metric) for name in names] for frame in frames]
