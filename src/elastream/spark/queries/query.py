"""One streaming query observed from outside, compiled or the user's: batches, stateful stages, loads of partitions.

A query is identified by its id, which survives a restart from its checkpoint. Missed batches are unknown.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.core.frames import OLD, Floats
from elastream.core.lateness import BATCHES_READ, BatchTimes, Diagnosis, QueryTraits, diagnose, unjudged
from elastream.core.wording import counted
from elastream.spark.jvm.driver_side import DriverSide, Java, TaskLoads, java_queries, jvm_of, why_in_java
from elastream.spark.jvm.executor_memory import ExecutorMemory
from elastream.spark.jvm.failure import cause_of_failure
from elastream.spark.jvm.recovery import Recovery
from elastream.spark.jvm.session import session_stopped
from elastream.spark.jvm.standby import StandbyRegistry
from elastream.spark.jvm.state_partitions import Run, StatefulStage, StatePartitions, ranked_kinds, stateful_stages
from elastream.spark.placement.placing import Placing
from elastream.spark.telemetry.batches import Batch, QueryStatus, read_batch, read_status
from elastream.spark.telemetry.held_files import HeldFiles, held_files
from elastream.spark.telemetry.listed_files import disk_of
from elastream.spark.telemetry.speeds import SpeedProbes
from elastream.spark.telemetry.stage_load import LoadWindow, PartitionLoads, StageLoad, StoredState, read_loads, read_work
from elastream.spark.telemetry.state_files import StateSizes
from elastream.spark.telemetry.traffic import Traffic

NAN = float("nan")
# Seconds of batches over which rates are taken, but at least two batches: records come in lumps.
RATE_WINDOW_S = 10.0
# Batches over which a latency is taken.
LATENCY_BATCHES = 7
# Least difference of two clocks between looks [s] from which a clock counts as set: slewed clocks differ by a thousandth of
# that.
CLOCK_STEP_S = 0.5
# A running batch is unusually long after STALLED seconds and UNUSUAL times the longest of the last ones.
STALLED_S, UNUSUAL = 10.0, 3.0
# Rank of the first stage without state.
WITHOUT_STATE = -1
# Batches with records but without costs of a stage's partitions, after which a remark says so.
UNREAD_BATCHES = 5
# First observed batches of a query: they start workers and compile code, and say nothing about later ones.
COLD_BATCHES = 2
# Seconds after a stalled batch for which policies may see figures measured meanwhile: their usual window.
STALL_DOUBT_S = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueryAccess:
    spark: SparkSession
    driver: DriverSide
    placing: Placing  # receives where tasks run
    task_loads: TaskLoads | None = None  # None if this Spark does not report single tasks
    traffic: Traffic | None = None  # receives bytes by sender and receiver; None if not measured
    caught_up: int = 1  # most batches of a query whose tasks one observation reads
    speeds: SpeedProbes | None = None  # speed of hosts; None if no process of Elastream runs on them
    recovery: Recovery | None = None  # acts on lost executors; None if Spark does
    memory: ExecutorMemory | None = None  # receives executors' heartbeats; None if this Spark does not tell
    copies: StandbyRegistry | None = None  # receives executors' reports of standby replicas; None without any
    least_interval: Callable[[], float] = lambda: 0.0  # seconds from batch to batch from which state may move
    stateless: bool = False  # True if tasks without state are observed and placed, too
    wall: Callable[[], float] = time.time  # clock that dates batches
    steady: Callable[[], float] = time.monotonic  # clock that nobody sets
    offset: float = field(init=False)  # of `wall` at first: a query may be found after the clock was set

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", self.wall() - self.steady())


class StatefulTasks:
    """Tasks of the stateful stages of one run of a query, batch by batch, from Spark's own telemetry.

    Task p is on state partition p. With `senders`, feeding stages are reported, too; with `first`, the first without state.
    """

    def __init__(
        self,
        loads: TaskLoads,
        execution: Java,
        stages: Sequence[StatefulStage],
        *,
        senders: bool = False,
        first: bool = False,
    ) -> None:
        self._loads, self._execution, self._reported = loads, execution, (senders, first)
        self._kinds = ranked_kinds(stages)
        self._partitions = {operator.rank: stage.partitions for stage in stages for operator in stage.operators}
        self._newest = -1

    def poll(self, batches: int = 1) -> tuple[StageLoad, ...]:
        """Return loads of the newest `batches` batches that ended since the last call, oldest first.

        Earlier ones are skipped. Raises Py4JError.
        """
        if not self._kinds and not self._reported[1]:
            return ()
        arguments = self._execution, self._kinds, self._newest, batches, *self._reported
        loads = read_loads(self._loads.ask("loads", self._loads.context, *arguments), self._partitions)
        self._newest = max((load.batch for load in loads), default=self._newest)
        return loads


class Query:
    """One query through all its runs. It attaches its stateful stages to `access.placing`.

    `called` returns the operator names of stateful stages, upstream first, by default `"name/stage"`. A stage without
    one is neither observed nor moved. `stateless` names the first without state, by default as the query.
    """

    def __init__(
        self,
        access: QueryAccess,
        query_id: str,
        name: str,
        called: Callable[[Sequence[StatefulStage]], Sequence[str]] | None = None,
        stateless: str | None = None,
    ) -> None:
        self.id, self.name, self.runs, self._with = query_id, name, 0, access
        self._called = called or (lambda stages: [f"{name}/{stage.name}" for stage in stages])
        self.stateless = (name if stateless is None else stateless) if access.stateless else ""
        self.run_id: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._execution: Java = None
        self.stages: dict[str, StatefulStage] | None = None
        self.batches: deque[Batch] = deque(maxlen=200)
        self.status = QueryStatus()
        self._looked, self.stepped = 0.0, 0.0
        self._offset = self._with.offset
        self._across = self._unsure = self._complete = False
        self._since: float | None = None
        self._stall = (-math.inf, 0.0)
        self._windows: dict[str, LoadWindow] = {}
        self._sizes: dict[str, StateSizes] = {}
        self._stored: dict[str, StoredState] = {}
        self.watermark_lag = NAN
        self._names: dict[int, str] = {}
        self._tasks: StatefulTasks | None = None
        self._unread: dict[str, int] = {}
        self._held_files: dict[int, HeldFiles | None] = {}

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(self.stages or ())

    @property
    def newest(self) -> int:
        """Number of the newest batch; -1 before the first."""
        return self.batches[-1].id if self.batches else -1

    @property
    def behind(self) -> float:
        """Records waiting after the newest batch; NaN before the first, or if no source reports any."""
        return self.batches[-1].behind if self.batches else NAN

    @property
    def _last(self) -> Batch | None:
        return self.batches[-1] if self.batches else None

    def run(self, run_id: str, execution: Java = None) -> None:
        """Note that the query runs as `run_id`, and forget an earlier run. execution: that of the JVM, if at hand."""
        if run_id != self.run_id:
            self.end()
            self.run_id, self._execution = run_id, execution
            self.runs += 1

    def end(self) -> None:
        for operator in self.operators:
            self._with.placing.detach(operator)
        if self.stateless:
            self._with.placing.detach(self.stateless)
        if self._with.traffic is not None:
            self._with.traffic.forget(self.name)
        self.run_id = None
        self._forget()

    def failure(self) -> str:
        """Return why the run failed; empty if it did not, or the session was stopped. Raises Py4JError."""
        error = None if self._execution is None else self._execution.exception()
        if error is None or not error.isDefined() or session_stopped(self._with.spark):
            return ""
        return cause_of_failure(str(error.get().getMessage()))

    def look(self) -> tuple[Batch, ...]:
        if self._execution is None:
            id = jvm_of(self._with.spark).java.util.UUID.fromString(self.id)
            if (execution := java_queries(self._with.spark).get(id)) is None:
                return ()
            self._execution = execution
        if self.stages is None:
            self._find_stages()
        before, now = self.status, self._with.wall()
        self._notice_step(now)
        self._unsure = self._across
        *rows, status = self._with.driver.ask("batches", self._execution, self.newest)
        self.status = read_status(status)
        self._read_batches(rows, now)
        self._across = self._across or bool(self.stepped)  # a running batch may have begun by the old clock
        self._date_running_batch(before, reported=bool(rows), now=now)
        self._looked = now
        if so_far := self._unusual(now):
            self._stall = now, so_far
        fresh = tuple(self.batches)[-len(rows) :] if rows else ()
        self._read_loads(fresh)
        self._complete = True
        return fresh

    def _read_batches(self, rows: Sequence[Sequence[str]], now: float) -> None:
        for row in reversed(rows):
            last = self._last
            batch = self._with_held_files(read_batch(self.name, row, last, self.status))
            if self._unsure:
                batch = batch.between(max(self._looked, last.end if last else 0.0), now)
            self.batches.append(batch)
        self._look_at_held_files(now)
        if rows:
            self._across = False
            for sizes in self._sizes.values():
                sizes.look(self.newest)
            self._read_state()

    def _read_state(self) -> None:
        (lag,), *operators = self._with.driver.ask("state", self._execution) or [[""]]
        self.watermark_lag = max(0.0, int(lag) / 1e3) if lag else NAN
        figures = {int(position): tuple(map(int, others)) for position, *others in operators}
        self._stored = {}
        for name, stage in (self.stages or {}).items():
            there = (figures[each.position] for each in stage.operators if each.position in figures)
            for tasks, rows, memory, place, files in there:
                before, times = self._stored.get(name, StoredState()), tasks / stage.partitions or 1.0
                # A function may have computed a batch several times. RocksDB counts no rows unless it is asked to.
                heap = None if place < 0 else place == 1
                known = rows / times if rows > 0 or (rows == 0 and heap) else NAN
                self._stored[name] = before.plus(known, memory / 1e6 / times, files / 1e6 / times, heap)

    def _with_held_files(self, batch: Batch) -> Batch:
        sources = list(batch.sources)
        for number, (progress, limit) in enumerate(zip(sources, self.status.limits, strict=False)):
            if number not in self._held_files:
                path = self.status.checkpoint
                self._held_files[number] = held_files(path, number, progress.description, limit, batch.start)
            if (files := self._held_files[number]) is not None:
                sources[number] = files.dated(progress)
        return replace(batch, sources=tuple(sources)) if self._held_files else batch

    def _look_at_held_files(self, now: float) -> None:
        if self.batches and any(self._held_files.values()):
            sources = list(self.batches[-1].sources)
            for number, files in self._held_files.items():
                if files is not None and number < len(sources):
                    sources[number] = files.looked(sources[number], now)
            self.batches[-1] = replace(self.batches[-1], sources=tuple(sources))

    def _date_running_batch(self, before: QueryStatus, *, reported: bool, now: float) -> None:
        same = self.status.planned == before.planned and before.processing
        if not self.status.processing:
            self._since = None
        elif not same:
            # It began since the last look: its records came after the start of the batch before, or after the last poll.
            # The first batch may take what was there before the query was first seen; that counts from now on.
            if (last := self._last) is None:
                self._since = now
            else:
                self._since = last.start if reported else max(last.start, self._looked - self.status.poll)

    def _read_loads(self, fresh: Sequence[Batch]) -> None:
        if self._tasks is None:
            return
        loads, read = self._tasks.poll(self._with.caught_up), set[str]()
        for load in loads:
            if load.ranks and load.ranks[0] in self._names and self._take(self._names[load.ranks[0]], load):
                read.add(self._names[load.ranks[0]])
        worked = bool(fresh) and fresh[-1].rows != 0
        for name in self.stages or ():
            self._unread[name] = 0 if name in read else self._unread.get(name, 0) + worked
        if self._with.traffic is not None:
            self._with.traffic.take(self.name, self._names, loads)

    def _notice_step(self, now: float) -> None:
        # Shifts earlier dates, and drops figures measured across the step. Loads of partitions are unknown until two more
        # batches have ended.
        offset = now - self._with.steady()
        step, self._offset = offset - self._offset, offset
        untold = 0.0 if self._complete else self.stepped  # of a look that failed
        self._complete = False
        if not abs(step) > CLOCK_STEP_S:  # NaN is no step
            self.stepped = untold
            return
        self.stepped, self._across = untold + step, True
        log.warning("the machine's clock was set by %+.1f s; %s knows less until batches have ended", step, self.name)
        for number, batch in enumerate(self.batches):
            self.batches[number] = batch.shifted(step)
        self._windows.clear()
        self._looked += step
        self._since = None if self._since is None else self._since + step
        self._stall = self._stall[0] + step, self._stall[1]

    def stalled(self, now: float) -> float:
        """Return the running time of a batch [s] if it is unusually long; else 0.

        Meanwhile, and for as long after it (STALL_DOUBT_S at most), the load of the query's tasks is unknown.
        """
        at, so_far = self._stall
        return self._unusual(now) or (so_far if now - at < min(so_far, STALL_DOUBT_S) else 0.0)

    def _unusual(self, now: float) -> float:
        usual = max((batch.seconds for batch in list(self.batches)[-LATENCY_BATCHES:]), default=0.0)
        under_way = self._under_way(now)
        return under_way if under_way > max(STALLED_S, UNUSUAL * usual) else 0.0

    def _under_way(self, now: float) -> float:
        # Seconds for which a record of the running batch may have waited; 0 if none runs.
        return 0.0 if self._since is None else max(0.0, now - self._since)

    def interval(self, now: float) -> float:
        """Return the seconds between batches at epoch second `now`.

        NaN before two batches, or if ended batches are unreported.
        """
        return max(mean, now - self.batches[-1].end) if (mean := self._usual_interval) > 0 else NAN

    @property
    def move_refusal(self) -> str:
        interval, least = self._usual_interval, self._with.least_interval()
        if not interval < least:
            return ""
        return (
            f"with a batch every {interval:.2g} s, Spark before 4.2 may delete files of state that moves (SPARK-55892); "
            f"a trigger above {least:.2g} s, or a shorter spark.sql.streaming.stateStore.maintenanceInterval, helps"
        )

    @property
    def _usual_interval(self) -> float:
        recent = self._rated()
        if len(recent) < 2 or self.status.planned > self.newest + 1:  # an ended batch is unreported
            return NAN
        mean = (recent[-1].start - recent[0].start) / (len(recent) - 1)
        return mean if mean > 0 else NAN

    def rate(self, now: float) -> float:
        """Return the throughput [records/s] over the last RATE_WINDOW_S seconds."""
        return self._rows / self.interval(now)

    @property
    def _rows(self) -> float:
        rows = [batch.rows for batch in self._rated()[1:]]
        return float(np.mean(rows)) if rows else NAN

    def arriving(self, now: float) -> float:
        """Return the arrival rate [records/s]: throughput plus growth of the backlog, if sources report one.

        It falls with time between batches, not while one runs.
        """
        until = now if self._since is None or self._unusual(now) else min(now, self._since)
        recent, interval = self._rated(), self.interval(until)
        rate = self._rows / interval
        if len(recent) < 2 or math.isnan(more := recent[-1].behind - recent[0].behind):
            return rate
        return max(rate + more / (len(recent) - 1) / interval, 0.0)  # in this order, NaN stays NaN

    @property
    def arriving_age(self) -> float:
        """Mean age [s] of the records that `arriving` counts, half an interval after the newest batch."""
        recent = self._rated()
        if not (mean := self._usual_interval) > 0:
            return 0.0
        return min(recent[-1].end - (recent[0].start + recent[-1].start) / 2 + mean / 2, OLD)

    def latencies(self, now: float) -> tuple[Floats, Floats]:
        """Return upper bounds of recent latencies [s] by epoch second `now`, by batch, and the numbers of records.

        The running batch counts as one more of usual size, so that a stall shows, even in the first batch.
        """
        recent = [batch for batch in list(self.batches)[-LATENCY_BATCHES:] if batch.rows and batch.waiting == batch.waiting]
        seconds = [batch.end - batch.waiting for batch in recent]
        rows = [float(batch.rows) if batch.rows > 0 else 1.0 for batch in recent]  # unknown: alike
        if (under_way := self._under_way(now)) > 0 and not self.unjudged:
            seconds, rows = [*seconds, under_way], [*rows, sum(rows) / len(rows) if rows else 1.0]
        return np.array(seconds), np.array(rows)

    @property
    def unjudged(self) -> bool:
        """True if a source limits its reads and does not report what waits: how late its records are is unknown."""
        return bool(self.batches) and any(source.everything is None for source in self.batches[-1].sources)

    def diagnosis(self, target: float | None, slots: int, now: float) -> Diagnosis | None:
        """Return why the query is late, as far as its batches show, or that its lateness is unknown; None if it is in time.

        Asks the driver; without an answer the cause is unknown.
        """
        held_back = self.batches[-1].held_back(self.status.limits) if self.batches else None
        if self.unjudged and held_back is not None:
            return unjudged(self.name, held_back[1].text)
        if target is None or not self._is_late(target, now):
            return None
        warm = [batch for batch in list(self.batches)[COLD_BATCHES:] if batch.rows and not batch.stepped][-BATCHES_READ:]
        loads = self._with.task_loads
        if loads is None or not warm:
            return Diagnosis()
        try:
            stages, others = read_work(loads.ask("work", loads.context, self._execution, warm[0].id - 1))
        except Py4JError as error:
            log.debug("query %r cannot be diagnosed: %s", self.name, why_in_java(error))
            return Diagnosis()
        times = [BatchTimes(each.start, each.seconds, each.durations, stages.get(each.id, ()), others) for each in warm]
        limited = held_back[1].text if held_back else ""
        option = held_back[1].option(held_back[0].description) if held_back else ""
        return diagnose(
            self.name, times, target, QueryTraits(self.status.trigger, limited, option, self.status.function, max(1, slots))
        )

    def _is_late(self, target: float, now: float) -> bool:
        seconds, rows = self.latencies(now)
        return (
            bool(seconds.size and float(seconds @ rows) > target * float(rows.sum()))
            or self.behind > self.rate(now) * target
        )

    @property
    def timed(self) -> bool:
        """True if latencies are known, from a batch with records or from the first one while it runs."""
        return len(self.latencies(math.inf)[0]) > 0

    def loads(self, now: float) -> dict[str, PartitionLoads]:
        """Return the loads of state partitions at epoch second `now`, by the operator that keeps the state."""
        loads = {}
        for name, stage in (self.stages or {}).items():
            loads[name] = self._windows.get(name, LoadWindow()).loads(stage.partitions, now)
            if (sizes := self._sizes.get(name)) is not None:
                loads[name] = loads[name]._replace(state=sizes.megabytes, delta=sizes.delta, rows=sizes.rows)
            loads[name] = loads[name]._replace(stored=self._stored.get(name))
        return loads

    def stateless_loads(self, now: float) -> dict[str, PartitionLoads]:
        """Return the loads of tasks without state at epoch second `now`, by their operator."""
        window = self._windows.get(self.stateless)
        if window is None or window.newest is None:
            return {}
        width = window.newest.partitions
        loads = window.loads(width, now)
        return {self.stateless: loads._replace(records=np.full(width, NAN), state=np.zeros(width))}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return sentences for people on figures of the query that cannot be read."""
        unread = tuple(
            f"the state partitions of {name} are not balanced: in {UNREAD_BATCHES} batches with records, no job ran its "
            f"{counted(self.stages[name].partitions, 'partition')} as tasks of their own, as behind coalesce or a union of "
            "the batch with itself"
            for name, batches in self._unread.items()
            if batches >= UNREAD_BATCHES and self.stages
        )
        return (*unread, *filter(None, [self.unplaced]))

    @property
    def unplaced(self) -> str:
        window, recovery, why = self._windows.get(self.stateless), self._with.recovery, ""
        if recovery is None:
            why = "this session has no executors, or its Spark lacks internals that this needs"
        elif recovery.places is False:
            why = "spark.scheduler.mode is not FIFO"
        elif window is not None and not window.even:
            why = "their number changes from batch to batch"
        return f"the tasks of {self.name} without state are not placed: {why}" if self.stateless and why else ""

    def newest_load(self, name: str) -> StageLoad | None:
        """Return the cost of each task of the stage `name` in the newest batch; None before the first."""
        window = self._windows.get(name)
        return None if window is None else window.newest

    def _rated(self) -> Sequence[Batch]:
        within = sum(batch.start > self.batches[-1].start - RATE_WINDOW_S for batch in self.batches)
        recent = list(self.batches)[-within - 1 :]
        return recent[1 + max((at for at, batch in enumerate(recent) if batch.stepped), default=-1) :]

    def _find_stages(self) -> None:
        if (stages := stateful_stages(self._with.driver, self._execution)) is None:
            return
        self.stages = dict(zip(self._called(stages), stages, strict=False))
        disk = disk_of(self._with.spark, stages[0].root) if stages else None
        self._sizes = {name: StateSizes(stage, disk) for name, stage in self.stages.items() if disk}
        assert self.run_id is not None
        run = Run(self.id, self.run_id)
        for name, stage in self.stages.items():
            state = StatePartitions(self._with.spark, run, stage.partitions, stage.operators, self._with.driver, disk)
            self._with.placing.attach(name, state)
        self._names = {operator.rank: name for name, stage in self.stages.items() for operator in stage.operators}
        if first := bool(self.stateless):
            self._names[WITHOUT_STATE] = self.stateless
        if (stages or first) and self._with.task_loads is not None:
            senders = self._with.traffic is not None
            self._tasks = StatefulTasks(self._with.task_loads, self._execution, stages, senders=senders, first=first)

    def _take(self, name: str, load: StageLoad) -> bool:
        # Returns False if its tasks are not its state partitions.
        assert self.stages is not None
        if name in self.stages and load.partitions != self.stages[name].partitions:
            return False
        if self._unsure:
            load = replace(load, seconds=NAN)
        window = self._windows.setdefault(name, LoadWindow())
        window.add(load)
        if name in self.stages:
            self._with.placing.ran(name, load.batch, load.executor)
        else:
            self._with.placing.ran_without_state(name, () if self.unplaced else load.executor)
        return True


def stalled(queries: Iterable[Query], now: float) -> dict[str, float]:
    """Return the running time [s] of unusually long batches, by query."""
    return {query.name: seconds for query in queries if (seconds := query.stalled(now))}


def largest_lag(queries: Iterable[Query]) -> float:
    """Return the longest time by which a watermark trails the clock [s]; NaN without a watermark."""
    return max((each.watermark_lag for each in queries if each.watermark_lag == each.watermark_lag), default=NAN)
