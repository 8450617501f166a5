"""Duration of a query's batches with other slots and other records, calibrated from its log.

A batch is its driver's part plus its stages. A stage takes as long as its tasks fill the slots, at least as long as its
longest task. Work is linear in the records. Without stages, all
that grows with them divides over the slots, as does work on state.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.advice.application import NAN, POLL_S, LoggedBatch, LoggedQuery, times_of
from elastream.core.frames import Floats
from elastream.core.latency import figures
from elastream.core.lateness import Cause, StageTimes
from elastream.core.lines import line_through
from elastream.core.metrics import Metric

# Fewest warm batches for a calibration, and for one half of a cross-validation.
LEAST_CALIBRATED = 10
# Tasks of a stage whose number is unknown: they fill any slots.
ANY_TASKS = 1_000_000
# Ratio of the 90 % to the 10 % quantile of batch sizes, below which batch and record costs cannot be separated.
ALIKE = 1.5
# A record is in the middle of its own count.
HALF = 0.5
# Places of records in a batch whose latencies stand for all, from the newest to the oldest.
SAMPLES: Floats = (np.arange(16) + 0.5) / 16
# Most batches of a prediction. A fleet that cannot follow ends after so many spans of the log.
MOST_BATCHES, MOST_SPANS = 50_000, 3.0
Slots = Callable[[float], float]


@dataclass(frozen=True, eq=False, slots=True)
class Arrivals:
    """Records that have arrived at a query: a line through (time, records so far)."""

    times: Floats
    total: Floats

    @classmethod
    def of(cls, query: LoggedQuery, batches: Sequence[LoggedBatch]) -> "Arrivals":
        """Return the arrivals of consecutive batches. Records came evenly between the polls that did not take them."""
        trigger, ordered = query.trigger, list(batches)
        poll = POLL_S if math.isnan(trigger) else trigger
        first = ordered[0]
        begun = first.start - max(poll, first.seconds) if math.isnan(first.first) else first.first
        times, total, records = [begun], [0.0], 0.0
        end = first.start
        for batch in ordered:
            if batch.start - end > poll and math.isnan(batch.first):  # it was idle: the last poll took nothing
                times.append(max(times[-1], batch.start - poll))
                total.append(total[-1])
            if batch.first > times[-1]:
                times.append(batch.first)
                total.append(max(total[-1], records))
            records += batch.rows
            times.append(max(times[-1], batch.start if math.isnan(batch.last) else batch.last))
            total.append(max(total[-1], records + (batch.behind if batch.behind > 0 else 0.0)))
            end = batch.end
        return cls(np.array(times), np.array(total))

    def by(self, at: float) -> float:
        return float(np.interp(at, self.times, self.total))

    def when(self, records: Floats | float) -> Floats:
        """Return the epoch seconds by which so many records have arrived."""
        return np.asarray(np.interp(records, self.total, self.times))

    def rates(self, seconds: float) -> Floats:
        """Return the mean rates (records/s) of bins of `seconds`."""
        edges = np.arange(self.times[0], self.times[-1], seconds)
        return np.asarray(np.diff(np.interp(edges, self.times, self.total)) / seconds)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies of all records: quantiles (seconds), and the share within the target."""

    p50: float = NAN
    p99: float = NAN
    in_time: float = NAN

    @classmethod
    def of(cls, arrivals: Arrivals, rows: Floats, ends: Floats, target: float) -> "Latency":
        """Return the latencies of batches that take the records in order."""
        if not rows.size:
            return cls()
        after = np.cumsum(rows)
        oldest = ends - arrivals.when(after - rows + HALF)
        newest = ends - arrivals.when(np.maximum(after - HALF, after - rows + HALF))
        samples = np.maximum(newest[:, None] + (oldest - newest)[:, None] * SAMPLES, 0.0).ravel()
        result = figures(samples, np.repeat(rows / SAMPLES.size, SAMPLES.size), target)
        return cls(result[Metric.LATENCY_P50], result[Metric.LATENCY_P99], result[Metric.COMPLIANCE])

    @classmethod
    def logged(cls, query: LoggedQuery, batches: Sequence[LoggedBatch], target: float) -> "Latency":
        rows, ends = np.array([[batch.rows, batch.end] for batch in batches if batch.rows > 0]).T
        return cls.of(Arrivals.of(query, batches), rows, ends, target)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage by its place in a batch.

    Attributes:
        fixed, each: Seconds of all its tasks in a batch, and more a record.
        ratio: Seconds of the stage over those that follow from its tasks.
    """

    tasks: int
    fixed: float
    each: float
    spread: float
    ratio: float = 1.0

    def seconds(self, rows: float, slots: float) -> float:
        return self.ratio * stage_seconds(self.fixed + self.each * rows, self.tasks, self.spread, slots)


def stage_seconds(run: float, tasks: int, spread: float, slots: float) -> float:
    """Return the seconds of `tasks` tasks that run `run` seconds together, `spread` the longest over their mean."""
    mean = run / tasks
    if tasks <= slots:
        return spread * mean
    return max(spread * mean, (run / slots + math.ceil(tasks / slots) * mean) / 2)


@dataclass(frozen=True, eq=False, slots=True)
class BatchModel:
    """Seconds of a batch.

    Attributes:
        driver: Seconds outside of stages, and more a record.
        overlap: Seconds with a running stage over those of all stages.
        ratios: Logged seconds over those of the model, of each batch in order.
        separable: False if all batches had about as many records, so that all work counts as theirs.
        work: Seconds of tasks a record.
    """

    driver: tuple[float, float]
    stages: tuple[_Stage, ...]
    overlap: float
    ratios: tuple[float, ...]
    trigger: float
    limit: float
    separable: bool
    work: float

    @classmethod
    def of(
        cls, query: LoggedQuery, batches: Sequence[LoggedBatch], slots: Slots, limit: float = math.inf
    ) -> "BatchModel | None":
        """Calibrate on warm batches; None if there are too few. slots: those of the query by epoch second."""
        usual = Counter(len(batch.stages) for batch in batches).most_common(1)
        alike = [batch for batch in batches if len(batch.stages) == usual[0][0]]
        if len(alike) < LEAST_CALIBRATED:
            return None
        if not usual[0][0]:
            return cls._of_durations(query, alike, slots, limit)
        rows = np.array([batch.rows for batch in alike])
        had = np.array([slots(batch.start) for batch in alike])
        low, high = np.quantile(rows, (0.1, 0.9))
        separable = bool(high >= ALIKE * low)
        busy = [times_of(batch).parts[Cause.HOSTS] for batch in alike]
        outside = np.array([max(0.0, batch.seconds - at) for batch, at in zip(alike, busy, strict=True)])
        driver = line_through(rows, outside) if separable else (float(np.median(outside)), 0.0)
        stages = tuple(
            _stage([batch.stages[at].times for batch in alike], rows, had, separable) for at in range(usual[0][0])
        )
        lasted = [math.fsum(stage.times.seconds for stage in batch.stages) for batch in alike]
        overlap = statistics.median(at / each if each > 0 else 1.0 for at, each in zip(busy, lasted, strict=True))
        work = math.fsum(batch.run for batch in alike) / math.fsum(rows)
        return cls(driver, stages, overlap, (1.0,), query.trigger, limit, separable, work)._with_ratios(alike, had)

    @classmethod
    def _of_durations(cls, query: LoggedQuery, batches: Sequence[LoggedBatch], slots: Slots, limit: float) -> "BatchModel":
        tasks = query.width or ANY_TASKS
        rows, seconds, state = np.array([[batch.rows, batch.seconds, batch.state_work] for batch in batches]).T
        had = np.minimum([slots(batch.start) for batch in batches], tasks)
        low, high = np.quantile(rows / had, (0.1, 0.9))
        separable = bool(high >= ALIKE * low)
        outside = np.maximum(0.0, seconds - state / had)
        if separable:
            driver, each = line_through(rows / had, outside)
        else:
            parts = np.array([batch.seconds - batch.durations.get("addBatch", batch.seconds) for batch in batches])
            driver = float(np.median(parts))
            each = float(np.median(np.maximum(0.0, outside - driver) * had / rows))
        fixed = float(np.median(state))
        work = each + fixed * len(batches) / math.fsum(rows)
        stages = (_Stage(tasks, fixed, each, 1.0),)
        return cls((driver, 0.0), stages, 1.0, (1.0,), query.trigger, limit, separable, work)._with_ratios(batches, had)

    def _with_ratios(self, batches: Sequence[LoggedBatch], slots: Floats) -> "BatchModel":
        pairs = zip(batches, slots, strict=True)
        return replace(self, ratios=tuple(b.seconds / max(self.seconds(b.rows, at), 1e-3) for b, at in pairs))

    def seconds(self, rows: float, slots: float) -> float:
        stages = math.fsum(stage.seconds(rows, slots) for stage in self.stages)
        return self.driver[0] + self.driver[1] * rows + self.overlap * stages

    @property
    def useful_slots(self) -> int:
        """Return the tasks of the widest stage; ANY_TASKS if unknown."""
        return max(stage.tasks for stage in self.stages)

    def largest_batch(self, seconds: float, slots: float) -> float:
        """Return the records of a batch that takes so long; infinite if records hardly count."""
        fixed, each = self.seconds(0.0, slots), self.seconds(1e6, slots)
        return (seconds - fixed) / ((each - fixed) / 1e6) if each > fixed else math.inf

    def predict(self, arrivals: Arrivals, slots: Slots, target: float) -> Latency:
        served, ready, rows, ends = 0.0, float(arrivals.times[0]), list[float](), list[float]()
        last = float(arrivals.times[-1]) + MOST_SPANS * float(np.ptp(arrivals.times))
        while served < arrivals.total[-1] - HALF and len(rows) < MOST_BATCHES and ready < last:
            waits = arrivals.by(ready) - served
            if waits < HALF:
                ready = self._start(max(ready + 1e-3, float(arrivals.when(served + HALF))))
                continue
            count = min(waits, self.limit)
            seconds = self.seconds(count, slots(ready)) * self.ratios[len(rows) % len(self.ratios)]
            served += count
            rows.append(count)
            ends.append(ready + seconds)
            ready = self._start(ready + seconds)
        left = float(arrivals.total[-1]) - served
        if left > HALF:  # it never comes to these
            rows.append(left)
            ends.append(last)
        return Latency.of(arrivals, np.array(rows), np.array(ends), target)

    def _start(self, at: float) -> float:
        return at if math.isnan(self.trigger) else math.ceil(at / self.trigger - 1e-6) * self.trigger


def _stage(times: Sequence[StageTimes], rows: Floats, slots: Floats, separable: bool) -> _Stage:
    run = np.array([each.run for each in times])
    tasks = max(1, round(statistics.median(each.tasks for each in times)))
    spread = statistics.median(each.longest * each.tasks / each.run if each.run > 0 else 1.0 for each in times)
    fixed, more = line_through(rows, run) if separable else (0.0, float(np.median(run / rows)))
    follows = [
        stage_seconds(each.run, each.tasks, max(1.0, each.longest * each.tasks / each.run), at)
        for each, at in zip(times, slots, strict=True)
        if each.run > 0
    ]
    lasted = [each.seconds for each in times if each.run > 0]
    ratio = statistics.median(a / b for a, b in zip(lasted, follows, strict=True)) if lasted else 1.0
    return _Stage(tasks, fixed, more, max(1.0, spread), ratio)


def cross_validated(
    query: LoggedQuery, batches: Sequence[LoggedBatch], slots: Slots, target: float, limit: float
) -> tuple[float, float]:
    """Return the relative errors of p50 and p99, calibrated on one half and predicting the other; NaN if too short."""
    middle = len(batches) // 2
    halves = batches[:middle], batches[middle:]
    errors = []
    for half, other in (halves, halves[::-1]):
        model = BatchModel.of(query, half, slots, limit)
        if model is None or len(other) < LEAST_CALIBRATED:
            return NAN, NAN
        logged = Latency.logged(query, other, target)
        predicted = model.predict(Arrivals.of(query, other), slots, target)
        errors.append((abs(predicted.p50 / logged.p50 - 1), abs(predicted.p99 / logged.p99 - 1)))
    return statistics.mean(each[0] for each in errors), statistics.mean(each[1] for each in errors)
