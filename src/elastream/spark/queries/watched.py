"""Streaming queries of the user's, watched from outside: their batches, stages with state, what each partition takes.

Two questions to the driver a look, whatever the query does in between. A query is known by its id, which outlives a restart
from the same checkpoint; each run starts with nothing known. What was not seen is unknown.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import SparkSession

from elastream.model.action import TaskId
from elastream.model.observation import Floats
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.stateful import StageState, StatefulStage, stateful_stages
from elastream.spark.placement.placing import Placing
from elastream.spark.telemetry.stage_load import StageLoad
from elastream.spark.telemetry.tasks import TaskLoads, TaskWatch
from elastream.spark.telemetry.traffic import Traffic

__all__ = ["Loads", "WatchedBatch", "WatchedQueries", "WatchedQuery"]

NAN = float("nan")
REMEMBERED = 20
"""Batches that rates and intervals are taken over."""
SAMPLES, LEAST_SAMPLES = 7, 3
"""Batches whose tasks tell what a partition takes, by their median, and the fewest that tell anything: a task that has just
moved, or that a garbage collection met, is one of them."""
MEDIAN_ERROR = 1.25
"""Standard error of a median over that of a mean, of normal samples: the root of pi / 2."""


@dataclass(frozen=True, slots=True)
class WatchedBatch:
    """A committed batch: its start in epoch seconds, what it took, and the records that its sources say they still hold."""

    id: int
    start: float
    rows: int
    seconds: float
    behind: float = NAN

    @property
    def end(self) -> float:
        """When it was committed."""
        return self.start + self.seconds


class Loads(NamedTuple):
    """Busy cores of each partition of a stage, and the standard error of that, NaN where unknown."""

    busy: Floats
    error: Floats


class WatchedQuery:
    """One query through all its runs. Its stages with state are attached to `placing` as `"name/stage"`.

    traffic: takes who sends whom how much, where that is wanted.
    """

    def __init__(
        self,
        spark: SparkSession,
        driver: DriverSide,
        loads: TaskLoads | None,
        query_id: str,
        name: str,
        placing: Placing,
        traffic: Traffic | None = None,
    ) -> None:
        self.id, self.name = query_id, name
        self._spark, self._driver, self._task_loads, self._placing = spark, driver, loads, placing
        self._traffic = traffic
        self.run_id: str | None = None
        self.runs = 0
        self._forget()

    def _forget(self) -> None:
        self._execution: Any = None
        self.stages: tuple[StatefulStage, ...] | None = None
        self.batches: deque[WatchedBatch] = deque(maxlen=REMEMBERED)
        self.ran: dict[TaskId, str] = {}
        self._loads: dict[str, deque[Floats]] = {}
        self._tasks: TaskWatch | None = None
        self._seen_batch = -1

    @property
    def operators(self) -> tuple[str, ...]:
        """The stages with state by the names that their tasks have."""
        return tuple(self._task_name(stage) for stage in self.stages or ())

    @property
    def newest(self) -> int:
        """Number of the newest batch seen, -1 before the first."""
        return self._seen_batch

    def run(self, run_id: str) -> None:
        """The query runs as `run_id`: forget an earlier run."""
        if run_id != self.run_id:
            self.end()
            self.run_id = run_id
            self.runs += 1

    def end(self) -> None:
        """The run is over; the query may come back."""
        for operator in self.operators:
            self._placing.detach(operator)
        if self._traffic is not None:
            self._traffic.forget(self.name)
        self.run_id = None
        self._forget()

    def last_batch(self) -> int:
        """Number of the newest committed batch, -1 before the first: one call, for whoever waits for the next."""
        progress = None if self._execution is None else self._execution.lastProgress()
        return -1 if progress is None else int(progress.batchId())

    def look(self) -> tuple[WatchedBatch, ...]:
        """Fetch what is new; the batches that ended since the last look."""
        if self._execution is None:
            streams: Any = self._spark._jsparkSession.streams()
            wrapper = streams.get(self.id)
            if wrapper is None:
                return ()
            self._execution = wrapper.streamingQuery()
        if self.stages is None:
            self._find_stages()
        rows = self._driver.ask("batches", self._execution, self._seen_batch)
        fresh = [
            WatchedBatch(int(b), int(at) / 1e3, int(n), int(took) / 1e3, float(behind or NAN))
            for b, at, n, took, behind in reversed(rows)
        ]
        self.batches.extend(fresh)
        if fresh:
            self._seen_batch = fresh[-1].id
        if self._tasks is not None:
            loads = self._tasks.poll()
            for load in loads:
                self._take(self._tasks.stage(load), load)
            if self._traffic is not None:
                names = {o.rank: self._task_name(stage) for stage in self.stages or () for o in stage.operators}
                self._traffic.take(self.name, names, loads)
        return tuple(fresh)

    def interval(self, now: float) -> float:
        """Seconds from one batch to the next at epoch second `now`; NaN until two have been seen."""
        if len(self.batches) < 2:
            return NAN
        first, last = self.batches[0], self.batches[-1]
        return max((last.start - first.start) / (len(self.batches) - 1), now - last.end, 1e-3)

    def rate(self, now: float) -> float:
        """Records/s taken, mean over the batches remembered."""
        rows = [batch.rows for batch in self.batches]
        return float(np.mean(rows)) / self.interval(now) if len(rows) > 1 else NAN

    def latency(self, now: float) -> float:
        """Seconds that the oldest record of a recent batch took at most, if it came when the batch before was planned.

        A record that comes just then waits for the whole interval and for its own batch. Where a source holds records back
        it is older; that shows as what the source is behind.
        """
        if len(self.batches) < 2:
            return NAN
        return self.interval(now) + max(batch.seconds for batch in list(self.batches)[-SAMPLES:])

    def mean_latency(self, now: float) -> float:
        """Seconds that a record of a recent batch took at most on average, whenever in the interval before it came."""
        recent = [batch for batch in list(self.batches)[-SAMPLES:] if batch.rows]
        if len(self.batches) < 2 or not recent:
            return NAN
        seconds = np.average([batch.seconds for batch in recent], weights=[batch.rows for batch in recent])
        return self.interval(now) + float(seconds)

    def loads(self, stage: StatefulStage, now: float) -> Loads:
        """Busy cores of each partition of `stage`, all NaN until LEAST_SAMPLES batches told: medians with standard errors.

        The error is what the batches' own disagreement makes of it. It is large after a move, when the first batch was a
        cold one, and small in the long run.
        """
        samples = self._loads.get(stage.name, ())
        if len(samples) < LEAST_SAMPLES:
            unknown = np.full(stage.partitions, NAN)
            return Loads(unknown, unknown)
        told = np.stack(list(samples)) / self.interval(now)
        error = MEDIAN_ERROR * told.std(axis=0, ddof=1) / np.sqrt(len(told))
        return Loads(np.asarray(np.median(told, axis=0), dtype=np.float64), np.asarray(error, dtype=np.float64))

    def placed(self) -> Iterable[tuple[StatefulStage, str]]:
        """Per stage with state: itself, and the name of its tasks."""
        return [(stage, self._task_name(stage)) for stage in self.stages or ()]

    def _find_stages(self) -> None:
        self.stages = stateful_stages(self._driver, self._execution)
        for stage in self.stages or ():
            assert self.run_id is not None
            state = StageState(self._spark, self._driver, self._execution, self.run_id, stage)
            self._placing.attach(self._task_name(stage), state)
        if self.stages and self._task_loads is not None:
            self._tasks = TaskWatch(self._task_loads, self._execution, self.stages, senders=self._traffic is not None)

    def _take(self, stage: StatefulStage | None, load: StageLoad) -> None:
        if stage is not None and load.partitions == stage.partitions:
            self._loads.setdefault(stage.name, deque(maxlen=SAMPLES)).append(load.busy)
            self.ran |= {TaskId(self._task_name(stage), p): where for p, where in enumerate(load.executor)}

    def _task_name(self, stage: StatefulStage) -> str:
        return f"{self.name}/{stage.name}"


class WatchedQueries:
    """The queries of a session that are chosen, through all their runs. chosen: their ids, None for every one that runs."""

    def __init__(
        self,
        spark: SparkSession,
        driver: DriverSide,
        loads: TaskLoads | None,
        placing: Placing,
        chosen: Callable[[], frozenset[str] | None],
        traffic: Traffic | None = None,
    ) -> None:
        self._spark, self._driver, self._task_loads, self._placing = spark, driver, loads, placing
        self._chosen, self._traffic = chosen, traffic
        self._queries: dict[str, WatchedQuery] = {}
        self._gone_since: dict[str, float] = {}

    @property
    def all(self) -> tuple[WatchedQuery, ...]:
        """Every query so far."""
        return tuple(self._queries.values())

    @property
    def live(self) -> tuple[WatchedQuery, ...]:
        """Those that ran when they were last looked for."""
        return tuple(query for query in self.all if query.run_id is not None)

    def gone_for(self, now: float) -> float:
        """Seconds for which none has run, since 0 where none ever has; 0 while one runs."""
        return 0.0 if self.live else now - max(self._gone_since.values(), default=0.0)

    def find(self, now: float) -> None:
        """See which run at second `now`."""
        chosen = self._chosen()
        running = set()
        for query_id, run_id, name in self._driver.ask("queries", self._spark._jsparkSession.streams()):
            if chosen is None or query_id in chosen:
                running.add(query_id)
                if query_id not in self._queries:
                    self._queries[query_id] = self._new(query_id, name or query_id[:8])
                self._queries[query_id].run(run_id)
                self._gone_since.pop(query_id, None)
        for query in self.live:
            if query.id not in running:
                query.end()
                self._gone_since[query.id] = now

    def _new(self, query_id: str, name: str) -> WatchedQuery:
        """A query under a name that no other has."""
        names = {query.name for query in self.all}
        free = next(n for n in (name, *(f"{name}~{number}" for number in range(2, len(names) + 3))) if n not in names)
        return WatchedQuery(self._spark, self._driver, self._task_loads, query_id, free, self._placing, self._traffic)
