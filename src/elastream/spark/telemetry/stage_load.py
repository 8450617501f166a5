"""What one stage of one micro-batch cost, task by task, and what its tasks sent each other: columns out of lines of text.

Pure arithmetic, so that it can be tested on what a Spark once said. `StatefulTasks` and `MapOutputs` fetch the text.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from elastream.core.frames import Floats, Integers

SAMPLES, LEAST_SAMPLES = 7, 3
"""Batches whose tasks tell what a partition takes, and the fewest that tell anything."""
MEDIAN_ERROR = 1.25
"""Standard error of a median over that of a mean, of normal samples: the root of pi / 2."""
SHIFT, NOISE, CHANCE, QUIET = 0.1, 1.5, 2.5, 0.5
"""Part of the work that lies on other partitions than it did, from which a batch is unlike those before; how many times as
much as in these it must be, and what is added to 1 for that of two partitions, the less of it the more there are, as chance
evens out; and the work over theirs below which a batch says nothing of that, being nearly empty."""
USUAL = 5
"""Batches from which it is known by how much they differ by chance: three may be alike by chance themselves."""

MILLI, NANO = 1e-3, 1e-9
FIGURES = {
    "run_time": MILLI,
    "waited": MILLI,
    "cpu": NANO,
    "records": 1.0,
    "local_bytes": 1.0,
    "remote_bytes": 1.0,
    "written_bytes": 1.0,
}
"""What `TaskLoads.java` tells of a task, in its order, and what makes it the unit that `StageLoad` has it in."""


@dataclass(frozen=True, slots=True, eq=False)
class StageLoad:
    """A stage of a finished batch; every column has a row per task, which of a stateful stage is its state partition.

    batch: its number in the query. stage: Spark's id, `parents` those of the stages whose shuffles it reads. ranks: the
    stateful operators that its tasks run, as `StatefulOperator.rank` counts them; none where it only feeds such a stage.
    python: whether its tasks hand records to Python, whose CPU time Spark does not count.
    seconds: from the end of the batch before to the end of this one, what rates are over; NaN where the one before is not
    known. ended: epoch seconds.

    executor: id of the executor that ran the task. task: Spark's id of the attempt that succeeded. cpu: core-seconds of the
    task's thread in the JVM, failed attempts included. run_time: seconds that it kept a slot, the same. waited: seconds of
    them spent waiting for shuffle blocks. records: read from shuffles. local_bytes, remote_bytes: shuffle bytes read from
    its own executor and from others. written_bytes: shuffle bytes written for the next stage.
    """

    batch: int
    stage: int
    parents: tuple[int, ...]
    ranks: tuple[int, ...]
    python: bool
    seconds: float
    ended: float
    executor: tuple[str, ...]
    task: Integers
    run_time: Floats
    waited: Floats
    cpu: Floats
    records: Floats
    local_bytes: Floats
    remote_bytes: Floats
    written_bytes: Floats

    @property
    def partitions(self) -> int:
        """How many tasks there are."""
        return len(self.executor)

    @property
    def busy(self) -> Floats:
        """Core-seconds of each task: CPU time where the JVM does all the work.

        Where Python does some, the time that the task kept a slot without waiting for blocks: an upper bound, since it may
        have shared the core, and the same for all tasks of the stage.
        """
        return np.maximum(self.cpu, self.run_time - self.waited) if self.python else self.cpu


def read_loads(lines: Iterable[Sequence[str]]) -> tuple[StageLoad, ...]:
    """Loads from the fields of `TaskLoads.java`, oldest batch first; each stage appears once a batch.

    Stages of which a task is missing are left out: one that was cut short, or skipped because another job of the batch had
    done its work, has no figures for what it left out. If several jobs of a batch ran one with state, their costs add up.
    """
    ended: dict[int, float] = {}
    found: dict[tuple[int, tuple[int, ...], int], StageLoad] = {}
    for batch, head, rows in _stages(lines, ended):
        stage, parents, ranks = int(head[1]), _numbers(head[2]), _numbers(head[3])
        columns = _columns(rows, int(head[5]))
        if columns is None:
            continue
        # Jobs come newest first. Stages without state run once a batch: a later job finds what they wrote.
        key = (batch, ranks, 0 if ranks else stage)
        if (known := found.get(key)) is None:
            found[key] = StageLoad(batch, stage, parents, ranks, head[4] == "1", math.nan, math.nan, **columns)
        elif known.partitions == len(columns["executor"]):
            more = {name: getattr(known, name) + columns[name] for name in FIGURES}
            found[key] = replace(known, **more)
    return tuple(
        replace(load, seconds=ended[load.batch] - ended.get(load.batch - 1, math.nan), ended=ended[load.batch])
        for _, load in sorted(found.items(), key=lambda item: (item[1].batch, item[1].stage))
    )


def _stages(
    lines: Iterable[Sequence[str]], ended: dict[int, float]
) -> Iterator[tuple[int, Sequence[str], list[Sequence[str]]]]:
    """(batch, line of a stage, lines of its tasks); the end of each batch is noted in `ended` on the way."""
    batch, head, rows = -1, None, list[Sequence[str]]()
    for line in lines:
        if line[0] == "T":
            rows.append(line)
            continue
        if head is not None:
            yield batch, head, rows
        head, rows = None, []
        if line[0] == "J":
            batch = int(line[1])
            ended[batch] = max(ended.get(batch, 0.0), MILLI * int(line[2]))
        else:
            head = line
    if head is not None:
        yield batch, head, rows


def _columns(rows: Sequence[Sequence[str]], tasks: int) -> dict[str, Any] | None:
    """The columns of a `StageLoad`, by name; None where a task is missing."""
    width = max(tasks, 1 + max((int(row[1]) for row in rows), default=-1))
    executor, task = [""] * width, np.full(width, -1, dtype=np.int64)
    figures = np.zeros((len(FIGURES), width))
    for _, partition, attempt, where, succeeded, *spent in rows:
        row = int(partition)
        if succeeded == "1":
            executor[row], task[row] = where, int(attempt)
        figures[:, row] += [float(each) for each in spent]
    if not width or (task < 0).any():
        return None
    named = {name: unit * column for (name, unit), column in zip(FIGURES.items(), figures, strict=True)}
    return {"executor": tuple(executor), "task": task, **named}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


class PartitionLoads(NamedTuple):
    """What the state partitions of a stage take a second, a row each; NaN where unknown.

    busy: cores. error: standard error of that. occupied: share of the time that the partition's task kept a slot. records:
    read from shuffles. traffic: bytes read from shuffles, from its own executor and from others. age: seconds since the
    newest batch ended. state: megabytes of the state as checkpointed. delta: of the whole stage, what the newest checkpoint
    wrote over that.
    """

    busy: Floats
    error: Floats
    occupied: Floats
    records: Floats
    traffic: Floats
    age: float
    state: Floats
    delta: float = math.nan


class LoadWindow:
    """The last `length` batches of one stateful stage that were seen, and what its partitions take a second by them.

    Where work moves from partitions to others for good, as keys get hot, a median would tell of before until half of the
    batches are of after. Once two batches in a row are unlike those before and like each other, those are forgotten;
    what one alone says is in doubt.
    """

    def __init__(self, length: int = SAMPLES) -> None:
        self._loads: deque[StageLoad] = deque(maxlen=length)
        self._least = LEAST_SAMPLES
        self._doubtful = False

    def add(self, load: StageLoad) -> None:
        """Take a batch."""
        before = list(self._loads)
        self._loads.append(load)
        if self._doubtful and _unlike(before[:-1], load) and _alike(before[:-1], before[-1], load):
            self._loads = deque((before[-1], load), maxlen=self._loads.maxlen)
            self._least, self._doubtful = len(self._loads), False
        else:
            self._doubtful = _unlike(before, load)

    @property
    def newest(self) -> StageLoad | None:
        """The last batch that was seen; None before the first."""
        return self._loads[-1] if self._loads else None

    def loads(self, partitions: int, now: float) -> PartitionLoads:
        """What `partitions` take at epoch second `now`; all unknown until LEAST_SAMPLES batches were seen.

        How large their state is files tell, and not batches: unknown here.

        Busy cores are medians, since a task that has just moved, or that a garbage collection met, is one of the samples;
        their error is what the samples' own disagreement makes of it, and at least how far the newest is off where that is
        unlike the others. The rest are means. A second is one of those from batch to batch: what has gone quiet takes less
        and less.
        """
        told = [load for load in self._loads if load.partitions == partitions]
        periods = [load.seconds for load in told if load.seconds > 0]
        if len(told) < self._least or not periods:
            unknown = np.full(partitions, math.nan)
            return PartitionLoads(unknown, unknown, unknown, unknown, unknown, 0.0, unknown)
        age = max(0.0, now - told[-1].ended)
        seconds = max(math.fsum(periods) / len(periods), age)
        busy = np.stack([load.busy for load in told]) / seconds
        usual = np.median(busy, axis=0)
        error = MEDIAN_ERROR * busy.std(axis=0, ddof=1) / math.sqrt(len(told))
        if self._doubtful:
            error = np.maximum(error, np.abs(busy[-1] - usual))
        traffic = [load.local_bytes + load.remote_bytes for load in told]
        occupied, records, exchanged = (
            np.mean(columns, axis=0) / seconds
            for columns in ([load.run_time for load in told], [load.records for load in told], traffic)
        )
        return PartitionLoads(usual, error, occupied, records, exchanged, age, np.full(partitions, math.nan))


def _unlike(before: Sequence[StageLoad], load: StageLoad) -> bool:
    """Whether the work of `load` lies on other partitions than in the batches `before`, by more than these differ."""
    known = _comparable(before, load)
    if len(known) < USUAL or load.busy.sum() < QUIET * np.median([each.busy.sum() for each in known]):
        return False
    usual = _usual(known)
    noise = sorted(_moved(usual, _parts(each)) for each in known)[-2]  # one of them may be an outlier itself
    times = max(NOISE, 1 + CHANCE / math.sqrt(max(1, load.partitions - 1)))
    return _moved(usual, _parts(load)) > max(SHIFT, times * noise)


def _alike(before: Sequence[StageLoad], one: StageLoad, other: StageLoad) -> bool:
    """Whether two batches that are unlike those `before` are more like each other than like these."""
    usual = _usual(_comparable(before, other))
    apart = _moved(_parts(one), _parts(other))
    return apart < min(_moved(usual, _parts(one)), _moved(usual, _parts(other)))


def _comparable(before: Sequence[StageLoad], load: StageLoad) -> list[StageLoad]:
    """Those of `before` whose work lies on as many partitions as that of `load`."""
    return [each for each in before if each.partitions == load.partitions and each.busy.sum() > 0]


def _parts(load: StageLoad) -> Floats:
    """The part of the work that each partition has."""
    return load.busy / float(load.busy.sum())


def _usual(loads: Sequence[StageLoad]) -> Floats:
    """Medians of the parts of the work that partitions have."""
    usual: Floats = np.median([_parts(each) for each in loads], axis=0)
    return usual


def _moved(one: Floats, other: Floats) -> float:
    """The part of the work that lies elsewhere, of two ways in which it lies (their total variation)."""
    return float(np.abs(one - other).sum()) / 2
