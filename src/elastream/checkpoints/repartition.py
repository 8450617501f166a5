"""Changes the number of state partitions of a stopped query, whole or not at all.

Spark writes the new state as a batch without records, here in a copy of the checkpoint whose large files are hard links.
A copy with equal rows takes the checkpoint's place in one step of the kernel.
"""

# Steps:
#
#   step          checkpoint   if killed here      left behind
#   copied        old width    nothing happened    the copy, removed by the next attempt
#   repartitioned old width    nothing happened    the copy
#   compared      old width    nothing happened    the copy
#   exchanged     new width    done                the checkpoint before, under the copy's name, until the next
#   renamed       new width    done                the checkpoint before, as FOLDER.WIDTH-partitions

import ctypes
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elastream.checkpoints.state import CheckpointState, OperatorState, checkpoint_state
from elastream.clouds.local.java import cache_folder
from elastream.core.width import PauseLimit, TooLong
from elastream.errors import ElastreamError, EnvironmentProblem, InputError, first_line
from elastream.spark.jvm.releases import release_of
from elastream.systems import lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.conf import RuntimeConfig

# Spark's, since 4.2.
SINCE = (4, 2)
MOST_PARTITIONS = 10_000
# Seconds without a new batch before a query counts as stopped; twice the median of its last gaps, if that is longer.
QUIET_S, MOST_QUIET_S, GAPS = 10.0, 600.0, 10
AT_FDCWD, RENAME_EXCHANGE = -100, 2
SUFFIX = ".repartitioning"
# Setting with the format of a query's state files, which Spark's repartition takes from the session.
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
# Spark's repartition escapes these characters of a path, and looks for a folder of that name.
ESCAPED = re.compile(r"[^\w!'()*+,./:;=@~$&-]")
# Seconds between checks of the time that a repartition may take.
CANCEL_S = 0.2
PAUSES = "repartitions.jsonl"  # on this machine, in the cache folder
# Newest repartitions that a prediction counts.
MOST_PAUSES = 30
# Squared relative errors of predictions that differ by less are equal.
EQUAL = 1e-6
# Largest ratio of longest to shortest pause that is shown as one figure.
SURE = 1.25


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds of a repartition. `partitions`: old and new ones, for each of which Spark opens a store."""

    partitions: int
    megabytes: float
    seconds: float


class Prediction(NamedTuple):
    """Shortest and longest pause (seconds) by equally good fits; NaN if unknown."""

    shortest: float = math.nan
    longest: float = math.nan

    @property
    def text(self) -> str:
        if math.isnan(self.shortest):
            return "unknown"
        sure = self.longest <= SURE * self.shortest
        return f"about {self.longest:.0f} s" if sure else f"{self.shortest:.0f} to {self.longest:.0f} s"

    @property
    def sentence(self) -> str:
        if math.isnan(self.longest):
            return "the pause is unknown: no repartition was measured on this machine yet"
        return f"the pause is {self.text}, by earlier repartitions on this machine"


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """Outcome of a repartition.

    Attributes:
        rows: Rows of state, equal before and after.
        seconds: From the copy to the exchange.
        predicted: Of `seconds`, before the copy.
    """

    before: Path
    old: int
    new: int
    rows: int
    seconds: float
    predicted: Prediction


def check_repartition(
    state: CheckpointState[Path], partitions: int, *, skip_open_batch: bool = False, stopped: bool = False
) -> None:
    """Raise InputError if the state of `state` cannot get `partitions` partitions now.

    `skip_open_batch` allows a newest batch that is not committed. `stopped`: by the caller.
    """
    name = state.folder
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InputError(f"partitions is {partitions}: it must be from 1 to {MOST_PARTITIONS:,}")
    if not state.operators:
        raise InputError(f"{name} has no state: its query keeps none, and needs no repartition")
    if not state.rocksdb:
        store = state.provider.rsplit(".", 1)[-1] or "an unknown store"
        raise InputError(f"{name} keeps its state in {store}: Spark repartitions RocksDB only")
    if not all((name / "state" / str(each.number) / "_metadata").is_dir() for each in state.operators):
        raise InputError(f"{name} was written by a Spark before 4.0: it lacks the metadata of its state")
    if partitions == state.width:
        raise InputError(f"{name} has {partitions} state partitions already")
    if (before := before_of(state)).exists():
        raise InputError(f"{before} exists: remove or rename this earlier checkpoint first")
    if state.committed < 0 or (state.committed < state.batch and not skip_open_batch):
        remedy = "let the query end it, or skip it (--skip-open-batch) if the sink tolerates that its records come again"
        raise InputError(f"batch {state.batch} of {name} is not committed: {remedy}")
    if keyless := next((each for each in state.operators if _is_keyless(state, each)), None):
        raise InputError(f"{name} keeps the state of {keyless.name} in partition 0 at any width, because it has no keys")
    if not stopped:
        _check_stopped(state)
    _check_exchange(name.resolve())


def _is_keyless(state: CheckpointState[Path], operator: OperatorState) -> bool:
    # The query looks for its rows in partition 0; Spark's repartition would put them elsewhere.
    if len(operator.partitions) < state.width:
        return True
    schemas = (state.folder / "state" / str(operator.number)).glob("0/_metadata/schema")
    # That of the key is the first in such a file.
    return any(each.read_bytes().partition(b'"fields":[')[2].startswith(b"]") for each in schemas)


def _check_stopped(state: CheckpointState[Path]) -> None:
    name, owner, user = state.folder, state.folder.stat().st_uid, os.geteuid()
    if owner != user:
        raise InputError(f"{name} belongs to user {owner}, whose query could not write the files of user {user}")
    times = sorted(each.stat().st_mtime for each in (name / "commits").iterdir() if each.name.isdigit())
    gaps = [later - earlier for earlier, later in pairwise(times)]
    quiet = max(QUIET_S, min(2 * median(gaps[-GAPS:]), MOST_QUIET_S) if gaps else 0.0)
    if state.committed < state.batch:  # an open batch may be quiet for as long as one before
        quiet = max([quiet, *gaps])
    # Tasks write to the folders of state partitions when they begin and end.
    age = time.time() - max(os.stat(folder).st_mtime for folder, _, _ in os.walk(name))
    if age < quiet:
        wait = f"stop the query first, and wait until {quiet:.0f} s have passed"
        raise InputError(f"{name} was written {age:.0f} s ago: {wait}")


def _check_exchange(folder: Path) -> None:
    """Raise EnvironmentProblem if folders beside `folder` cannot be exchanged."""
    beside = list[Path]()
    try:
        if folder.stat().st_dev != folder.parent.stat().st_dev:
            raise EnvironmentProblem(f"{folder} is a disk of its own, whose place no folder can take")
        try:
            for _ in range(2):
                beside.append(Path(mkdtemp(prefix=f"{folder.name}{SUFFIX}-", dir=folder.parent)))
            _exchange(*beside)
        finally:
            for each in beside:
                each.rmdir()
    except OSError as error:
        raise EnvironmentProblem(f"{folder} cannot be copied beside itself: {error.strerror}") from error


def states_to_change(
    folders: Mapping[str, Path], partitions: int, *, skip_open_batch: bool = False, stopped: bool = False
) -> Mapping[str, CheckpointState[Path]]:
    """Return the states of another width. Raises InputError if one cannot change, or none needs to."""
    states = {name: checkpoint_state(folder) for name, folder in folders.items()}
    keyed = {name: each for name, each in states.items() if each.operators}
    # A run whose repartition was cut off has queries of both widths.
    changing = {name: each for name, each in keyed.items() if each.width != partitions}
    for each in (changing or keyed or states).values():
        check_repartition(each, partitions, skip_open_batch=skip_open_batch, stopped=stopped)
    return changing


def before_of(state: CheckpointState[Path]) -> Path:
    folder = state.folder.resolve()
    return folder.with_name(f"{folder.name}.{state.width}-partitions")


def check_release(version: str) -> None:
    """Raise EnvironmentProblem if Spark `version` cannot repartition state."""
    if release_of(version) < SINCE:
        needed = ".".join(map(str, SINCE))
        raise EnvironmentProblem(f"state is repartitioned by Spark {needed} or newer, and this is {version}")


def predicted(state: CheckpointState[Path], partitions: int) -> Prediction:
    return predicted_pause(read_pauses(cache_folder() / PAUSES), state.width + partitions, state.megabytes)


def predicted_together(states: Iterable[CheckpointState[Path]], partitions: int) -> Prediction:
    """Return the pause for `states` one after another."""
    pauses = [predicted(each, partitions) for each in states]
    return Prediction(math.fsum(each.shortest for each in pauses), math.fsum(each.longest for each in pauses))


def repartition(
    spark: "SparkSession",
    folder: Path,
    partitions: int,
    say: Callable[[str], None],
    *,
    skip_open_batch: bool = False,
    stopped: bool = False,
    limit: PauseLimit | None = None,
) -> Repartitioned:
    """Give the state of a stopped query `partitions` partitions.

    Args:
        skip_open_batch: Leave out a newest batch that is not committed; its records come again in the next batch.

    Raises:
        InputError: The checkpoint cannot be repartitioned, or was written meanwhile.
        EnvironmentProblem: This Spark or this file system cannot do it.
    """
    check_release(spark.version)
    folder = folder.resolve()
    with ExitStack() as locks:
        locks.enter_context(_locked(folder))
        state = checkpoint_state(folder)
        check_repartition(state, partitions, skip_open_batch=skip_open_batch, stopped=stopped)
        began = time.monotonic()
        copy = folder.with_name(folder.name + SUFFIX)
        before = before_of(state)
        pause = predicted(state, partitions)
        say(pause.sentence)
        say(f"copying the checkpoint ({state.megabytes:.1f} MB of state, as links)")

        def measured() -> float:
            seconds = time.monotonic() - began
            add_pause(cache_folder() / PAUSES, Pause(state.width + partitions, state.megabytes, seconds))
            return seconds

        try:
            with _cancelled_by(spark, limit) as check, in_format(spark.conf, folder / "commits" / str(state.committed)):
                shutil.rmtree(copy, ignore_errors=True)
                try:
                    shutil.copytree(folder, copy, copy_function=partial(_link, folder))
                except shutil.Error as error:
                    raise EnvironmentProblem(f"{folder} cannot be copied beside itself: {error.args[0][0][2]}") from error
                say(f"repartitioning from {state.width} to {partitions}")
                try:
                    with _readable_by_spark(copy) as path:
                        spark._streamingCheckpointManager.repartition(str(path), partitions, not skip_open_batch)
                        say("comparing the rows")
                        rows = _compare(spark, state, path, partitions)
                except ElastreamError:
                    raise
                except Exception as error:
                    check()
                    raise EnvironmentProblem(f"Spark does not repartition {folder}: {first_line(error)}") from error
                check()
            now = checkpoint_state(folder)
            if (now.batch, now.committed) != (state.batch, state.committed):
                raise InputError(f"{folder} was written meanwhile: stop the query first")
            locks.enter_context(_locked(copy))  # which soon is the checkpoint
            _exchange(folder, copy)
        except BaseException as error:
            if isinstance(error, TooLong) and not time.monotonic() - began <= pause.longest:
                measured()  # the next one must not begin
            shutil.rmtree(copy, ignore_errors=True)
            raise
        copy.rename(before)
        return Repartitioned(before, state.width, partitions, rows, measured(), pause)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    file = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock(file, wait=False)
        except BlockingIOError:
            raise EnvironmentProblem(f"another process repartitions {folder} already") from None
        yield
    finally:
        os.close(file)


def undo(folder: Path, done: Repartitioned) -> None:
    """Put the checkpoint before a repartition back, unless a batch ran since. Raises EnvironmentProblem."""
    if checkpoint_state(folder).batch != checkpoint_state(done.before).batch + 1:
        raise EnvironmentProblem(f"{folder} has batches in {done.new} partitions: it keeps them")
    copy = folder.with_name(folder.name + SUFFIX)
    done.before.rename(copy)  # whose name says after a kill that it may be removed
    _exchange(folder, copy)
    shutil.rmtree(copy, ignore_errors=True)


@contextmanager
def _cancelled_by(spark: "SparkSession", limit: PauseLimit | None) -> Iterator[Callable[[], None]]:
    """Cancel the jobs of this thread at the `limit`. Yields its check."""
    from py4j.protocol import Py4JError

    if limit is None:
        yield lambda: None
        return
    context, group = spark.sparkContext, f"elastream-repartition-{time.monotonic_ns()}"

    def cancel() -> None:
        while not ended.wait(CANCEL_S):  # a job may begin after a cancellation
            try:
                limit.check()
            except EnvironmentProblem:
                with suppress(Py4JError):
                    context.cancelJobGroup(group)

    ended = threading.Event()
    thread = threading.Thread(target=cancel, name="repartition-limit", daemon=True)
    context.setJobGroup(group, "repartition the state")
    thread.start()
    try:
        yield limit.check
    finally:
        ended.set()
        thread.join()
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]


@contextmanager
def in_format(conf: "RuntimeConfig", commit: Path) -> Iterator[None]:
    """Use the format of state files that `commit` names first."""
    before, version = conf.get(FORMAT, None), commit.read_text(encoding="utf-8").partition("\n")[0]
    conf.set(FORMAT, version.removeprefix("v"))
    try:
        yield
    finally:
        if before is None:
            conf.unset(FORMAT)
        else:
            conf.set(FORMAT, before)


@contextmanager
def _readable_by_spark(folder: Path) -> Iterator[Path]:
    if ESCAPED.search(str(folder)) is None:
        yield folder
        return
    with TemporaryDirectory() as above:
        link = Path(above) / "checkpoint"
        link.symlink_to(folder)
        yield link


def _link(checkpoint: Path, source: str, target: str) -> None:
    parts = Path(source).relative_to(checkpoint).parts
    if parts[0] == "state" and "_metadata" not in parts:
        with suppress(OSError):  # state on another disk, or a file system without links
            os.link(source, target)
            return
    shutil.copy2(source, target)


def _compare(spark: "SparkSession", state: CheckpointState[Path], copy: Path, partitions: int) -> int:
    """Return the number of rows in all operators. Raises EnvironmentProblem if rows or their places are wrong."""
    total = 0
    for each in state.operators:
        for store in _stores(spark, copy, each.number):
            old = _digest(spark, copy, each.number, store, state.committed, state.width)
            new = _digest(spark, copy, each.number, store, state.batch + 1, partitions)
            if old[2]:
                raise EnvironmentProblem(f"{each.name} does not place its state by its keys' hash: nothing is changed")
            if old != new:
                counts = f"{old[0]:,} rows before, {new[0]:,} after, {new[2]:,} of them misplaced"
                raise EnvironmentProblem(f"the repartition of {each.name} is not exact ({counts}): nothing is changed")
            total += new[0]
    return total


def _stores(spark: "SparkSession", copy: Path, operator: int) -> list[str]:
    frame = spark.read.format("state-metadata").load(str(copy)).where(f"operatorId = {operator}")
    return [str(row[0]) for row in frame.select("stateStoreName").distinct().collect()]


def _digest(spark: "SparkSession", copy: Path, operator: int, store: str, batch: int, width: int) -> tuple[int, Any, int]:
    """Return a store's rows after a batch, their sum in any order, and misplaced rows."""
    # The option is the one by which Spark's own repartition reads: all column families, as bytes. A task reads a partition.
    reader = spark.read.format("statestore").option("batchId", batch).option("operatorId", operator)
    frame = reader.option("storeName", store).option("_readAllColumnFamilies", "true").load(str(copy))
    columns = ", ".join(each for each in frame.columns if each not in ("partition_id", "partition_key"))
    misplaced = f"spark_partition_id() != pmod(hash(partition_key), {width}) as misplaced"
    rows = frame.selectExpr(f"cast(xxhash64({columns}) as decimal(38, 0)) as hash", misplaced)
    row = rows.selectExpr("count(*)", "sum(hash)", "count_if(misplaced)").collect()[0]
    return int(row[0]), row[1], int(row[2])


def _exchange(one: Path, other: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        reason = "this system has no renameat2" if rename is None else os.strerror(ctypes.get_errno())
        raise EnvironmentProblem(f"folders in {one.parent} cannot be exchanged in one step ({reason}): nothing is changed")


def predicted_pause(earlier: Sequence[Pause], partitions: int, megabytes: float) -> Prediction:
    # Seconds are a constant, a part for each partition and one for each MB; none is negative, none is more than is known.
    if not earlier:
        return Prediction()
    rows = np.array([(1.0, each.partitions, each.megabytes) for each in earlier])
    rows /= np.array([[each.seconds] for each in earlier])
    fits = []
    for count in range(1, min(3, len(earlier)) + 1):
        for columns in map(list, combinations(range(3), count)):
            rates = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)[0]
            if (rates >= 0).all():
                error = float(((rows[:, columns] @ rates - 1) ** 2).sum())
                fits.append((error, float(np.array((1.0, partitions, megabytes))[columns] @ rates)))
    best = min(fits)[0]
    equal = [seconds for error, seconds in fits if error <= best + EQUAL]
    return Prediction(min(equal), max(equal))


def read_pauses(file: Path) -> Sequence[Pause]:
    """Return the newest repartitions in `file`, without lines that cannot be read."""
    pauses = []
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):
                each = Pause(**json.loads(line))
                if min(each.partitions, each.megabytes, each.seconds) > 0:
                    pauses.append(each)
    return pauses[-MOST_PAUSES:]


def add_pause(file: Path, pause: Pause) -> None:
    """Add a repartition to `file`, if it can be written."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(each)) for each in (*read_pauses(file), pause)]
        new = file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(file)
