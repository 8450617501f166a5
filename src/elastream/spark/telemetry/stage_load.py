"""Cost of one stage in one micro-batch, task by task, parsed from the lines of `StatefulTasks` and `MapOutputs`."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.lateness import StageTimes

# Batches that measure a partition's load, and the fewest that measure anything.
SAMPLES, LEAST_SAMPLES = 7, 3
# Standard error of a median relative to that of a mean, for normal samples: sqrt(pi / 2).
MEDIAN_ERROR = 1.25
# A batch is unlike earlier ones if more than SHIFT of its work lies on other partitions, and NOISE times as much as usually
# moves. For few partitions chance is larger: 1 + CHANCE / sqrt(partitions - 1). Below QUIET of the usual work a batch is
# nearly empty and says nothing.
SHIFT, NOISE, CHANCE, QUIET = 0.1, 1.5, 2.5, 0.5
# Batches that establish the usual variation: three may be alike by chance.
USUAL_BATCHES = 5

MILLI, NANO = 1e-3, 1e-9
# Fields of a task in `TaskLoads.java`, in its order, with the factor to the unit of `StageLoad`.
FIGURES = {"run_time": MILLI, "waited": MILLI, "cpu": NANO}
FIGURES |= dict.fromkeys(("records", "local_bytes", "remote_bytes", "written_bytes"), 1.0)


def read_work(lines: Iterable[Sequence[str]]) -> tuple[dict[int, list[StageTimes]], list[tuple[float, float]]]:
    """Parse the stages of each batch, and the spans of jobs of no query, from the fields of `work` in `TaskLoads.java`."""
    stages: dict[int, list[StageTimes]] = {}
    others: list[tuple[float, float]] = []
    for batch, begun, ended, *figures in lines:
        span = MILLI * int(begun), MILLI * int(ended)
        if not figures:
            others.append(span)
            continue
        tasks, run, longest, cpu, waited, shuffled, python = map(int, figures)
        ran, alone, worked, waits = (MILLI * each for each in (run, longest, cpu, waited))
        stage = StageTimes(*span, tasks, ran, alone, worked, waits, shuffled=shuffled == 1, python=python == 1)
        stages.setdefault(int(batch), []).append(stage)
    return stages, others


@dataclass(frozen=True, slots=True, eq=False)
class StageLoad:
    """A stage of a finished batch. Each column has a row per task, which is the state partition in a stateful stage."""

    batch: int  # number of the batch in its query
    stage: int  # Spark's id
    parents: tuple[int, ...]  # ids of the stages whose shuffles it reads
    # Stateful operators that its tasks run, as `StatefulOperator.rank` counts them; empty for a feeding stage,
    # -1 for the first without state.
    ranks: tuple[int, ...]
    python: bool  # True if its tasks hand records to Python, whose CPU time Spark does not count
    seconds: float  # from the end of the previous batch to the end of this one; NaN if unknown
    ended: float  # epoch seconds
    executor: tuple[str, ...]  # id of the executor that ran each task
    task: Integers  # Spark's id of the attempt that succeeded
    run_time: Floats  # seconds that each task occupied a slot, failed attempts included
    waited: Floats  # seconds of them spent waiting for shuffle blocks
    cpu: Floats  # core-seconds of the task's JVM thread, failed attempts included
    records: Floats  # records read from shuffles
    local_bytes: Floats  # shuffle bytes read from its own executor
    remote_bytes: Floats  # shuffle bytes read from other executors
    written_bytes: Floats  # shuffle bytes written for the next stage

    @property
    def partitions(self) -> int:
        return len(self.executor)

    @property
    def busy(self) -> Floats:
        """Core-seconds of each task: CPU time if the JVM does all the work.

        With Python, the slot time without waits for blocks: an upper bound, as the task may have shared its core.
        """
        return np.maximum(self.cpu, self.run_time - self.waited) if self.python else self.cpu


def read_loads(lines: Iterable[Sequence[str]], partitions: Mapping[int, int] | None = None) -> tuple[StageLoad, ...]:
    """Parse loads from the fields of `TaskLoads.java`, oldest batch first; each stage appears once a batch.

    Several jobs of a batch may run one stateful stage, some on a part of its partitions (`head`, `show`, `isEmpty`): their
    costs add up, and the last one gives a partition's place. Stages with a missing task are left out.

    Args:
        lines: Fields of each line, newest job first.
        partitions: State partitions by rank of a stateful operator. A run with more tasks is left out, as behind a union of
            the batch with itself.
    """
    ended: dict[int, float] = {}
    runs: dict[tuple[int, tuple[int, ...], int], list[tuple[Sequence[str], list[Sequence[str]]]]] = {}
    for batch, head, rows in _stages(lines, ended):
        ranks = _numbers(head[3])
        if ranks and partitions and int(head[5]) > partitions.get(ranks[0], math.inf):
            continue
        # Stages without state run once a batch: a later job finds what they wrote.
        runs.setdefault((batch, ranks, 0 if ranks else int(head[1])), []).append((head, rows))
    loads = []
    for (batch, ranks, _), jobs in runs.items():
        head = max((head for head, _ in jobs), key=lambda each: int(each[5]))
        columns = _columns([row for _, rows in jobs for row in rows], int(head[5]))
        if columns is not None:
            seconds = ended[batch] - ended.get(batch - 1, math.nan)
            python, parents = any(each[4] == "1" for each, _ in jobs), _numbers(head[2])
            loads.append(StageLoad(batch, int(head[1]), parents, ranks, python, seconds, ended[batch], **columns))
    return tuple(sorted(loads, key=lambda load: (load.batch, load.stage)))


def _stages(
    lines: Iterable[Sequence[str]], ended: dict[int, float]
) -> Iterator[tuple[int, Sequence[str], list[Sequence[str]]]]:
    """Yield (batch, line of a stage, lines of its tasks); note each end in `ended`."""
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
    width = max(tasks, 1 + max((int(row[1]) for row in rows), default=-1))
    executor, task = [""] * width, np.full(width, -1, dtype=np.int64)
    figures = np.zeros((len(FIGURES), width))
    for _, partition, attempt, where, succeeded, *spent in rows:
        row = int(partition)
        if succeeded == "1" and int(attempt) > task[row]:  # Spark numbers attempts over all jobs
            executor[row], task[row] = where, int(attempt)
        figures[:, row] += [float(each) for each in spent]
    if not width or (task < 0).any():
        return None
    named = {name: unit * column for (name, unit), column in zip(FIGURES.items(), figures, strict=True)}
    return {"executor": tuple(executor), "task": task, **named}


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


class PartitionLoads(NamedTuple):
    """Load per second of the state partitions of a stage, a row each; NaN if unknown."""

    busy: Floats  # cores
    error: Floats  # standard error of `busy`
    occupied: Floats  # share of the time that the partition's task occupied a slot
    records: Floats  # records/s read from shuffles
    traffic: Floats  # bytes/s read from shuffles, from all executors
    age: float  # seconds since the newest batch ended
    state: Floats  # megabytes of checkpointed state
    delta: float = math.nan  # size of the newest checkpoint relative to the whole state of the stage
    rows: Floats | None = None  # rows of state in the newest snapshots
    stored: "StoredState | None" = None  # of the whole stage


class StoredState(NamedTuple):
    """State in executors, as stores report it; NaN if unknown."""

    rows: float = math.nan
    heap: float = 0.0  # MB
    off_heap: float = 0.0  # MB
    disk: float = 0.0  # MB

    def plus(self, rows: float, memory: float, disk: float, heap: bool | None) -> "StoredState":
        total = rows if math.isnan(self.rows) else self.rows + rows
        # None: a store that Spark does not have, whose memory may be anywhere.
        inside, outside = (math.nan, math.nan) if heap is None else (memory, 0.0) if heap else (0.0, memory)
        return StoredState(total, self.heap + inside, self.off_heap + outside, self.disk + disk)


class LoadWindow:
    """The last `length` batches of one stateful stage, and the load of its partitions over them.

    Once two batches in a row are unlike the earlier ones and like each other, the earlier ones are dropped: work has moved
    to other partitions for good.
    """

    def __init__(self, length: int = SAMPLES) -> None:
        self._loads: deque[StageLoad] = deque(maxlen=length)
        self._least, self._doubtful = LEAST_SAMPLES, False

    def add(self, load: StageLoad) -> None:
        before = list(self._loads)
        self._loads.append(load)
        if self._doubtful and _is_outlier(before[:-1], load) and _alike(before[:-1], before[-1], load):
            self._loads = deque((before[-1], load), maxlen=self._loads.maxlen)
            self._least, self._doubtful = len(self._loads), False
        else:
            self._doubtful = _is_outlier(before, load)

    @property
    def newest(self) -> StageLoad | None:
        """The last batch; None before the first."""
        return self._loads[-1] if self._loads else None

    @property
    def even(self) -> bool:
        # Once it may change: a query's first batch has few records, and topics get partitions.
        return sum(a.partitions != b.partitions for a, b in pairwise(self._loads)) <= 1

    def loads(self, partitions: int, now: float) -> PartitionLoads:
        """Return the load of `partitions` at epoch second `now`, without state sizes; unknown before LEAST_SAMPLES batches.

        Busy cores are medians, the rest means. Errors come from the samples' spread, and cover the newest sample if that is
        in doubt. Rates decay while no batch ends.
        """
        samples = [load for load in self._loads if load.partitions == partitions]
        periods = [load.seconds for load in samples if load.seconds > 0]
        if len(samples) < self._least or not periods:
            unknown = np.full(partitions, math.nan)
            return PartitionLoads(unknown, unknown, unknown, unknown, unknown, 0.0, unknown)
        age = max(0.0, now - samples[-1].ended)
        seconds = max(math.fsum(periods) / len(periods), age)
        busy = np.stack([load.busy for load in samples]) / seconds
        usual = np.median(busy, axis=0)
        error = MEDIAN_ERROR * busy.std(axis=0, ddof=1) / math.sqrt(len(samples))
        if self._doubtful:
            error = np.maximum(error, np.abs(busy[-1] - usual))
        columns = [(load.run_time, load.records, load.local_bytes + load.remote_bytes) for load in samples]
        occupied, records, exchanged = (np.mean(column, axis=0) / seconds for column in zip(*columns, strict=True))
        return PartitionLoads(usual, error, occupied, records, exchanged, age, np.full(partitions, math.nan))


def _is_outlier(before: Sequence[StageLoad], load: StageLoad) -> bool:
    comparable = _comparable(before, load)
    if len(comparable) < USUAL_BATCHES or load.busy.sum() < QUIET * np.median([each.busy.sum() for each in comparable]):
        return False
    usual = _usual(comparable)
    noise = sorted(_moved(usual, _parts(each)) for each in comparable)[-2]  # one of them may be an outlier itself
    times = max(NOISE, 1 + CHANCE / math.sqrt(max(1, load.partitions - 1)))
    return _moved(usual, _parts(load)) > max(SHIFT, times * noise)


def _alike(before: Sequence[StageLoad], one: StageLoad, other: StageLoad) -> bool:
    usual = _usual(_comparable(before, other))
    apart = _moved(_parts(one), _parts(other))
    return apart < min(_moved(usual, _parts(one)), _moved(usual, _parts(other)))


def _comparable(before: Sequence[StageLoad], load: StageLoad) -> list[StageLoad]:
    return [each for each in before if each.partitions == load.partitions and each.busy.sum() > 0]


def _parts(load: StageLoad) -> Floats:
    return load.busy / float(load.busy.sum())


def _usual(loads: Sequence[StageLoad]) -> Floats:
    return np.asarray(np.median([_parts(each) for each in loads], axis=0))


def _moved(one: Floats, other: Floats) -> float:
    """Return the share of the work that lies elsewhere (total variation distance)."""
    return float(np.abs(one - other).sum()) / 2
