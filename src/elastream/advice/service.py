"""Duration of a query's batches with other slots and other records, calibrated from its log.

A stage takes as long as its tasks fill the slots, at least its longest task.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.advice.application import NAN, POLL_S, LoggedBatch, LoggedQuery
from elastream.core.batch_line import BatchLine
from elastream.core.frames import Floats
from elastream.core.latency import figures
from elastream.core.lateness import StageTimes
from elastream.core.metrics import Metric

# Fewest warm batches for a calibration, and for one half of a cross-validation.
LEAST_CALIBRATED = 10
# Tasks of a stage whose number is unknown: they fill any slots.
ANY_TASKS = 1_000_000
# No batch is shorter (seconds).
SHORTEST_S = 1e-3
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
        if query.waiting_files or query.bounded or query.lacking:
            return cls()
        rows, ends = np.array([[batch.rows, batch.end] for batch in batches if batch.rows > 0]).T
        return cls.of(Arrivals.of(query, batches), rows, ends, target)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage by its place in a batch.

    Attributes:
        run: Seconds of all its tasks, by the records of a batch.
        ratio: Seconds of the stage over those that follow from its tasks.
    """

    tasks: int
    run: BatchLine
    spread: float = 1.0
    ratio: float = 1.0

    def seconds(self, rows: float, slots: float, rest: float = 0.0) -> float:
        run = max(0.0, self.run.fixed + self.run.each * rows)
        usual = stage_seconds(run, self.tasks, self.spread, slots)
        # It may wait for slots for far longer than its tasks run; longer ones add only their own seconds.
        more = stage_seconds(max(0.0, run + rest), self.tasks, self.spread, slots) - usual
        return max(0.0, self.ratio * usual + more)


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
        driver: Seconds outside of stages, by records.
        stages: One after the other. Those that run at once are one.
        rests: Seconds by which each batch deviates: outside of stages, then in each stage's tasks.
        work: Seconds of tasks per record.
    """

    driver: BatchLine
    stages: tuple[_Stage, ...]
    work: float
    trigger: float = NAN
    limit: float = math.inf
    rests: tuple[tuple[float, ...], ...] = ()
    of_tasks: bool = True

    @classmethod
    def of(
        cls, query: LoggedQuery, batches: Sequence[LoggedBatch], slots: Slots, limit: float = math.inf
    ) -> "BatchModel | None":
        """Calibrate on warm batches; None if there are too few. slots: those of the query by epoch second."""
        counts = Counter(len(batch.stages) for batch in batches)
        # A log may lack the stages of many batches.
        ((usual, number),) = Counter({each: counts[each] for each in counts if each}).most_common(1) or [(0, 0)]
        usual = usual if number >= LEAST_CALIBRATED else 0
        alike = [batch for batch in batches if len(batch.stages) == usual or not usual]
        if len(alike) < LEAST_CALIBRATED:
            return None
        rows, had = np.array([[batch.rows, slots(batch.start)] for batch in alike]).T
        times = _at_once(alike) if usual else [[] for _ in alike]
        model = cls._of_stages(alike, times, rows, had) if usual else cls._of_durations(query, alike, rows, had)
        rests = tuple(map(model._rest, alike, times, had.tolist()))
        return replace(model, rests=rests, trigger=query.trigger, limit=limit, of_tasks=usual > 0)

    @classmethod
    def _of_stages(
        cls, batches: Sequence[LoggedBatch], times: Sequence[Sequence[StageTimes]], rows: Floats, had: Floats
    ) -> "BatchModel":
        busy = [math.fsum(stage.seconds for stage in each) for each in times]
        outside = np.array([max(0.0, batch.seconds - at) for batch, at in zip(batches, busy, strict=True)])
        driver = BatchLine.of(rows, outside, float(np.median(outside)))
        # Commits of state are work that does not follow from records, in the stages that read a shuffle.
        shuffled = sum(stage.shuffled for stage in times[0])
        state = float(np.median([batch.state_work for batch in batches])) / max(1, shuffled)
        stages = tuple(_stage(place, rows, had, state) for place in zip(*times, strict=True))
        return cls(driver, stages, math.fsum(batch.run for batch in batches) / math.fsum(rows))

    @classmethod
    def _of_durations(cls, query: LoggedQuery, batches: Sequence[LoggedBatch], rows: Floats, had: Floats) -> "BatchModel":
        tasks = query.width or ANY_TASKS
        seconds, state, tasks_part = np.array(
            [[batch.seconds, batch.state_work, batch.durations.get("addBatch", batch.seconds)] for batch in batches]
        ).T
        had = np.minimum(had, tasks)
        line = BatchLine.of(rows / had, np.maximum(0.0, seconds - state / had), float(np.median(seconds - tasks_part)))
        run = BatchLine(float(np.median(state)), line.each)
        driver = BatchLine(line.fixed, 0.0, line.separable)
        work = run.each + run.fixed * len(batches) / math.fsum(rows)
        return cls(driver, (_Stage(tasks, run),), work)

    def _rest(self, batch: LoggedBatch, times: Sequence[StageTimes], slots: float) -> tuple[float, ...]:
        pairs = zip(times, self.stages, strict=False)
        runs = [each.run - stage.run.fixed - stage.run.each * batch.rows for each, stage in pairs]
        return batch.seconds - self.seconds(batch.rows, slots, (0.0, *runs)), *runs

    def seconds(self, rows: float, slots: float, rest: Sequence[float] = ()) -> float:
        """Return the seconds of a batch; `rest`: how it deviates, as in `rests`."""
        outside, *runs = rest or (0.0,)
        runs = runs or [0.0] * len(self.stages)
        stages = math.fsum(stage.seconds(rows, slots, run) for stage, run in zip(self.stages, runs, strict=True))
        return max(0.0, self.driver.fixed + self.driver.each * rows + outside) + stages

    @property
    def separable(self) -> bool:
        """False if all batches had about as many records, so that all work counts as theirs."""
        return self.driver.separable

    @property
    def useful_slots(self) -> int:
        """Return the tasks of the widest stage; ANY_TASKS if unknown."""
        return max(stage.tasks for stage in self.stages)

    @property
    def lent(self) -> float:
        """Return the slots that tasks got per slot that other queries left idle, at least 1."""
        ratio = max(self.stages, key=lambda stage: stage.run.each).ratio
        return 1 / ratio if 0 < ratio < 1 else 1.0

    def largest_batch(self, seconds: float, slots: float) -> float:
        """Return the records of a batch that takes `seconds`; infinite if its duration hardly depends on records."""
        fixed, each = self.seconds(0.0, slots), self.seconds(1e6, slots)
        return (seconds - fixed) / ((each - fixed) / 1e6) if each > fixed else math.inf

    def predict(self, arrivals: Arrivals, slots: Slots, target: float) -> Latency:
        served, ready, rows, ends = 0.0, float(arrivals.times[0]), list[float](), list[float]()
        last = float(arrivals.times[-1]) + MOST_SPANS * float(np.ptp(arrivals.times))
        while served < arrivals.total[-1] - HALF and len(rows) < MOST_BATCHES and ready < last:
            waits = arrivals.by(ready) - served
            if waits < HALF:
                arrived = float(arrivals.when(served + HALF))
                ready = max(ready + SHORTEST_S, arrived, self._next_trigger(arrived))
                continue
            count = min(waits, self.limit)
            seconds = max(SHORTEST_S, self.seconds(count, slots(ready), self.rests[len(rows) % len(self.rests)]))
            served += count
            rows.append(count)
            ends.append(ready + seconds)
            ready = max(ready + seconds, self._next_trigger(ready))
        left = float(arrivals.total[-1]) - served
        if left > HALF:  # these records are never processed
            rows.append(left)
            ends.append(last)
        return Latency.of(arrivals, np.array(rows), np.array(ends), target)

    def _next_trigger(self, at: float) -> float:
        return -math.inf if math.isnan(self.trigger) else (math.floor(at / self.trigger + 1e-6) + 1) * self.trigger


def _at_once(batches: Sequence[LoggedBatch]) -> list[list[StageTimes]]:
    """Return the stages of each batch, in one those that run at once in most batches."""
    of_batches = [[stage.times for stage in batch.stages] for batch in batches]
    groups: list[list[int]] = []
    for place in range(len(of_batches[0])):
        times = [(each[place], [each[other] for other in groups[-1]]) for each in of_batches] if groups else []
        at_once = sum(any(a.begun < b.ended and b.begun < a.ended for b in others) for a, others in times)
        groups[-1:] = [[*groups[-1], place]] if at_once > len(times) / 2 else [*groups[-1:], [place]]
    return [[_together([each[place] for place in group]) for group in groups] for each in of_batches]


def _together(times: Sequence[StageTimes]) -> StageTimes:
    return StageTimes(
        min(each.begun for each in times),
        max(each.ended for each in times),
        sum(each.tasks for each in times),
        math.fsum(each.run for each in times),
        max(each.longest for each in times),
        shuffled=any(each.shuffled for each in times),
    )


def _stage(times: Sequence[StageTimes], rows: Floats, slots: Floats, state: float) -> _Stage:
    run = np.array([each.run for each in times])
    tasks = max(1, round(statistics.median(each.tasks for each in times)))
    spread = statistics.median(each.longest * each.tasks / each.run if each.run > 0 else 1.0 for each in times)
    ratios = [
        each.seconds / stage_seconds(each.run, each.tasks, max(1.0, each.longest * each.tasks / each.run), at)
        for each, at in zip(times, slots, strict=True)
        if each.run > 0
    ]
    line = BatchLine.of(rows, run, state if times[0].shuffled else 0.0)
    return _Stage(tasks, line, max(1.0, spread), statistics.median(ratios or [1.0]))


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
        errors.append((_error(predicted.p50, logged.p50), _error(predicted.p99, logged.p99)))
    return statistics.mean(each[0] for each in errors), statistics.mean(each[1] for each in errors)


def _error(predicted: float, logged: float) -> float:
    return abs(predicted / logged - 1) if logged else NAN
