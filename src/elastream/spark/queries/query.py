"""One streaming query observed from outside, compiled or the user's: its batches, stages with state, loads of partitions.

Two calls to the driver a look, whatever the query does in between; three where traffic is measured. A query is known by its
id, which outlives a restart from the same checkpoint; each run starts with nothing known. What was not seen is unknown.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql import SparkSession

from elastream.core.frames import Floats
from elastream.spark.jvm.driver_side import DriverSide, TaskLoads
from elastream.spark.jvm.gateway import Java, java_queries, jvm_of
from elastream.spark.jvm.recovery import Recovery
from elastream.spark.jvm.standby import StandbyRegistry
from elastream.spark.jvm.state_partitions import Run, StatePartitions
from elastream.spark.jvm.stateful import StatefulStage, ranked_kinds, stateful_stages
from elastream.spark.placement.placing import Placing
from elastream.spark.telemetry.batches import Batch, Doing, read_batch, read_doing
from elastream.spark.telemetry.speeds import SpeedProbes
from elastream.spark.telemetry.stage_load import LoadWindow, PartitionLoads, StageLoad, read_loads
from elastream.spark.telemetry.state_files import StateSizes
from elastream.spark.telemetry.traffic import Traffic

NAN = float("nan")
RATED = 10.0
"""Seconds of batches, but at least two batches, that rates are taken over: records come in lumps."""
RECENT = 7
"""Batches that a latency is taken over."""
STEPPED = 0.5
"""Seconds by which two clocks must disagree about one look to the next for one to have been set: clocks that are slewed
differ by a thousandth of that."""
STALLED, UNUSUAL = 10.0, 3.0
"""A batch under way is unusually long after so many seconds, and so many times the longest of the last ones."""
HELD = 60.0
"""Seconds after a batch that hung for which policies may look at what was measured meanwhile: their usual window."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Instruments:
    """What queries of one session are seen through; `placing` takes where their tasks are.

    task_loads: None where this Spark does not report on single tasks, and nothing is known of them. traffic: receives
    bytes by sender and receiver; None: not measured. caught_up: most batches of a query whose tasks one observation reads.
    speeds: how fast hosts are; None where no process of ours runs on them. recovery: acts on lost executors; None: Spark
    does. copies: where executors report copies of state that they keep; None where they keep none. wall, steady: the clock
    that batches are dated by, and one that nobody sets.
    """

    spark: SparkSession
    driver: DriverSide
    placing: Placing
    task_loads: TaskLoads | None = None
    traffic: Traffic | None = None
    caught_up: int = 1
    speeds: SpeedProbes | None = None
    recovery: Recovery | None = None
    copies: StandbyRegistry | None = None
    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic


class StatefulTasks:
    """The tasks of the stateful stages of one run of a query, batch by batch, from Spark's own telemetry.

    The driver's status store has it all, web interface or not; one call of the gateway brings what the newest batches cost,
    however many tasks that are. That task p of a stage holds state partition p is how Spark schedules stateful stages.

    execution: Spark's StreamExecution of the query. stages: what it keeps state in, all of it. senders: tell also of the
    stages that feed those (they have no `ranks`), as `Exchanged` needs them.
    """

    def __init__(
        self, loads: TaskLoads, execution: Java, stages: Sequence[StatefulStage], *, senders: bool = False
    ) -> None:
        self._loads, self._execution, self._senders = loads, execution, senders
        self._kinds = ranked_kinds(stages)
        self._told = -1

    def poll(self, batches: int = 1) -> tuple[StageLoad, ...]:
        """Loads of the newest `batches` batches that ended since the last call, oldest first.

        Those before are left out: a look must not cost more because it came late. Raises Py4JError as any call does.
        """
        if not self._kinds:
            return ()
        lines = self._loads.ask(
            "loads", self._loads.context, self._execution, self._kinds, self._told, batches, self._senders
        )
        found = read_loads(lines)
        self._told = max((load.batch for load in found), default=self._told)
        return found


class Query:
    """One query through all its runs. Its stages with state are attached to the placing of `instruments`.

    called: what the tasks of its stages have as their operator, upstream first, by default `"name/stage"`; of a stage
    without such a name nothing is known and nothing is moved.
    """

    def __init__(
        self,
        instruments: Instruments,
        query_id: str,
        name: str,
        called: Callable[[Sequence[StatefulStage]], Sequence[str]] | None = None,
    ) -> None:
        self.id, self.name = query_id, name
        self._with = instruments
        self._called = called or (lambda stages: [f"{name}/{stage.name}" for stage in stages])
        self.run_id: str | None = None
        self.runs = 0
        self._forget()

    def _forget(self) -> None:
        self._execution: Java = None
        self.stages: dict[str, StatefulStage] | None = None
        self.batches: deque[Batch] = deque(maxlen=200)
        self.doing = Doing()
        self._looked = 0.0
        self._offset = math.nan
        self.stepped = 0.0
        self._across = self._unsure = False
        self._since: float | None = None
        self._stall = (-math.inf, 0.0)
        self._windows: dict[str, LoadWindow] = {}
        self._sizes: dict[str, StateSizes] = {}
        self._names: dict[int, str] = {}
        self._tasks: StatefulTasks | None = None

    @property
    def operators(self) -> tuple[str, ...]:
        """The stages with state by the names that their tasks have, upstream first."""
        return tuple(self.stages or ())

    @property
    def newest(self) -> int:
        """Number of the newest batch seen, -1 before the first."""
        return self.batches[-1].id if self.batches else -1

    def run(self, run_id: str) -> None:
        """The query runs as `run_id`: forget an earlier run."""
        if run_id != self.run_id:
            self.end()
            self.run_id = run_id
            self.runs += 1

    def end(self) -> None:
        """The run is over; the query may come back."""
        for operator in self.operators:
            self._with.placing.detach(operator)
        if self._with.traffic is not None:
            self._with.traffic.forget(self.name)
        self.run_id = None
        self._forget()

    def look(self) -> tuple[Batch, ...]:
        """Fetch what is new; the batches that ended since the last look."""
        if self._execution is None:
            id = jvm_of(self._with.spark).java.util.UUID.fromString(self.id)
            self._execution = java_queries(self._with.spark).get(id)
            if self._execution is None:
                return ()
        if self.stages is None:
            self._find_stages()
        before, now = self.doing, self._with.wall()
        self._notice_step(now)
        self._unsure = bool(self.stepped) or self._across
        *rows, doing = self._with.driver.ask("batches", self._execution, self.newest)
        self.doing = read_doing(doing)
        for row in reversed(rows):
            last = self.batches[-1] if self.batches else None
            batch = read_batch(self.name, row, last, self.doing.poll)
            if self._unsure:
                batch = batch.between(max(self._looked, last.end if last else 0.0), now)
            self.batches.append(batch)
        if rows:
            self._across = False
            for sizes in self._sizes.values():
                sizes.look(self.newest)
        self._across = self._across or bool(self.stepped)  # one under way may have begun by the clock of before
        if not self.doing.processing:
            self._since = None
        elif rows and self.doing.planned == before.planned and before.processing:
            pass  # what is reported late says nothing of the one under way
        elif rows or not before.processing or self.doing.planned != before.planned:
            # It began since the last look: what it takes came after the start of the batch before, or after the last poll;
            # of the first batch, what was there before the query was first seen counts from then on.
            last = self.batches[-1] if self.batches else None
            self._since = now if last is None else last.start if rows else max(last.start, self._looked - self.doing.poll)
        self._looked = now
        if so_far := self._unusual(now):
            self._stall = now, so_far
        if self._tasks is not None:
            loads = self._tasks.poll(self._with.caught_up)
            for load in loads:
                if load.ranks and load.ranks[0] in self._names:
                    self._take(self._names[load.ranks[0]], load)
            if self._with.traffic is not None:
                self._with.traffic.take(self.name, self._names, loads)
        return tuple(self.batches)[-len(rows) :] if rows else ()

    def _notice_step(self, now: float) -> None:
        """See whether the wall's clock was set since the last look: what was dated before is then dated as it would be now.

        What was measured across the step is forgotten: loads of partitions are unknown until two more batches have ended.
        """
        offset = now - self._with.steady()
        step, self._offset = offset - self._offset, offset
        self.stepped = step if abs(step) > STEPPED else 0.0  # NaN is no step
        if not self.stepped:
            return
        log.warning("the machine's clock was set by %+.1f s; %s knows less until batches have ended", step, self.name)
        for number, batch in enumerate(self.batches):
            self.batches[number] = batch.shifted(step)
        self._windows.clear()
        self._looked += step
        self._since = None if self._since is None else self._since + step
        self._stall = self._stall[0] + step, self._stall[1]

    def stalled(self, now: float) -> float:
        """Seconds for which a batch has been under way, if that is longer than is usual; else 0.

        So long nothing is known of what the query's tasks take, which report when they end; nor, from what was measured
        meanwhile, for as long after it, HELD at most.
        """
        seen, so_far = self._stall
        return self._unusual(now) or (so_far if now - seen < min(so_far, HELD) else 0.0)

    def _unusual(self, now: float) -> float:
        if self._since is None:
            return 0.0
        usual = max((batch.seconds for batch in list(self.batches)[-RECENT:]), default=0.0)
        under_way = now - self._since
        return under_way if under_way > max(STALLED, UNUSUAL * usual) else 0.0

    def interval(self, now: float) -> float:
        """Seconds from one batch to the next at epoch second `now`; NaN before two were seen, where that is no time, or
        where batches have ended that were not reported."""
        recent = self._rated()
        if len(recent) < 2 or self.doing.planned > self.newest + 1:  # one behind the next: it has ended
            return NAN
        mean = (recent[-1].start - recent[0].start) / (len(recent) - 1)
        return max(mean, now - recent[-1].end) if mean > 0 else NAN

    def rate(self, now: float) -> float:
        """Records/s taken, by the batches of the last RATED seconds."""
        rows = [batch.rows for batch in self._rated()]
        return float(np.mean(rows[1:])) / self.interval(now) if len(rows) > 1 else NAN

    def arriving(self, now: float) -> float:
        """Records/s that came: those taken, and what the sources hold more; those taken if they do not say."""
        taken, recent = self.rate(now), self._rated()
        if len(recent) < 2 or math.isnan(more := recent[-1].behind - recent[0].behind):
            return taken
        return max(taken + more / (len(recent) - 1) / self.interval(now), 0.0)  # in this order, NaN stays NaN

    def latencies(self, now: float) -> tuple[Floats, Floats]:
        """Seconds that the records of each recent batch took at most by epoch second `now`, and how many these are.

        None of them can have come before the last poll of the source that did not take it. The batch under way counts as
        one more of the usual size, whose records have waited until now: so it shows where no batch ends, be it the first.
        """
        recent = [batch for batch in list(self.batches)[-RECENT:] if batch.rows and batch.waiting == batch.waiting]
        seconds = [batch.end - batch.waiting for batch in recent]
        rows = [float(batch.rows) for batch in recent]
        if self._since is not None and self._since < now:
            seconds, rows = [*seconds, now - self._since], [*rows, sum(rows) / len(rows) if rows else 1.0]
        return np.array(seconds), np.array(rows)

    @property
    def timed(self) -> bool:
        """Whether anything is known of its latency: a batch of this run had records, or its first one is under way."""
        return len(self.latencies(math.inf)[0]) > 0

    def loads(self, now: float) -> dict[str, PartitionLoads]:
        """What each partition of each stage takes at epoch second `now`, by the name that its tasks have."""
        nothing, found = LoadWindow(), {}
        for name, stage in (self.stages or {}).items():
            found[name] = self._windows.get(name, nothing).loads(stage.partitions, now)
            if (sizes := self._sizes.get(name)) is not None:
                found[name] = found[name]._replace(state=sizes.megabytes, delta=sizes.delta)
        return found

    def newest_load(self, name: str) -> StageLoad | None:
        """What the newest batch cost of the stage whose tasks are called so, task by task; None where none was seen."""
        window = self._windows.get(name)
        return None if window is None else window.newest

    def _rated(self) -> Sequence[Batch]:
        """The batches that began in the last RATED seconds, and the one before them; since it is known when they ran."""
        within = sum(batch.start > self.batches[-1].start - RATED for batch in self.batches)
        recent = list(self.batches)[-within - 1 :]
        return recent[1 + max((at for at, batch in enumerate(recent) if batch.stepped), default=-1) :]

    def _find_stages(self) -> None:
        stages = stateful_stages(self._with.driver, self._execution)
        if stages is None:
            return
        self.stages = dict(zip(self._called(stages), stages, strict=False))
        self._sizes = {name: StateSizes(stage) for name, stage in self.stages.items()}
        assert self.run_id is not None
        run = Run(self.id, self.run_id)
        for name, stage in self.stages.items():
            state = StatePartitions(self._with.spark, run, stage.partitions, stage.operators, self._with.driver)
            self._with.placing.attach(name, state)
        self._names = {operator.rank: name for name, stage in self.stages.items() for operator in stage.operators}
        if stages and self._with.task_loads is not None:
            senders = self._with.traffic is not None
            self._tasks = StatefulTasks(self._with.task_loads, self._execution, stages, senders=senders)

    def _take(self, name: str, load: StageLoad) -> None:
        assert self.stages is not None
        if load.partitions == self.stages[name].partitions:
            if self._unsure:
                load = replace(load, seconds=NAN)
            self._windows.setdefault(name, LoadWindow()).add(load)
            self._with.placing.ran(name, load.batch, load.executor)


def stalled(queries: Iterable[Query], now: float) -> dict[str, float]:
    """Of those whose batch under way takes unusually long, for how many seconds by epoch second `now`."""
    found = {query.name: query.stalled(now) for query in queries}
    return {name: seconds for name, seconds in found.items() if seconds}
