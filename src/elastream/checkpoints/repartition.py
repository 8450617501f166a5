"""Changes the number of state partitions of a stopped query, whole or not at all.

Spark (4.2 and later, RocksDB) writes the repartitioned state as a batch without records, here in a copy of the checkpoint
whose large files are hard links. Only a copy with equal rows takes the checkpoint's place, in one step of the kernel.
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
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastream.checkpoints.pause import Pause, Prediction, add_pause, predicted_pause, read_pauses
from elastream.checkpoints.state import CheckpointState, checkpoint_state
from elastream.clouds.local.java import cache_folder
from elastream.core.wording import counted
from elastream.errors import EnvironmentProblem, InputError, first_line
from elastream.spark.jvm.releases import release_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's, since 4.2.
SINCE = (4, 2)
MOST_PARTITIONS = 10_000
# Seconds without a new batch before a query counts as stopped.
QUIET_S = 10.0
AT_FDCWD, RENAME_EXCHANGE = -100, 2
SUFFIX = ".repartitioning"
PAUSES = "repartitions.jsonl"  # on this machine, in the cache folder


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


def check_repartition(state: CheckpointState, partitions: int, *, skip_open_batch: bool = False) -> None:
    """Raise InputError if the state of `state` cannot get `partitions` partitions now.

    `skip_open_batch` allows a newest batch that is not committed.
    """
    name = state.folder
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InputError(f"partitions is {partitions}: it must be from 1 to {MOST_PARTITIONS:,}")
    if not state.operators:
        raise InputError(f"{name} has no state: its query keeps none, and needs no repartition")
    if not state.rocksdb:
        store = state.provider.rsplit(".", 1)[-1] or "an unknown store"
        raise InputError(f"{name} keeps its state in {store}: Spark repartitions RocksDB only")
    if partitions == state.width:
        raise InputError(f"{name} has {partitions} state partitions already")
    if state.committed < 0 or (state.committed < state.batch and not skip_open_batch):
        remedy = "let the query end it, or skip it (--skip-open-batch) if the sink tolerates that its records come again"
        raise InputError(f"batch {state.batch} of {name} is not committed: {remedy}")
    age = time.time() - (name / "commits" / str(state.committed)).stat().st_mtime
    if age < QUIET_S:
        raise InputError(f"{name} was written {age:.0f} s ago: stop the query first")


def repartition(
    spark: "SparkSession", folder: Path, partitions: int, say: Callable[[str], None], *, skip_open_batch: bool = False
) -> Repartitioned:
    """Give the state of a stopped query `partitions` partitions.

    Args:
        folder: The query's checkpoint, on a local file system.
        skip_open_batch: Leave out a newest batch that is not committed; its records come again in the next batch.

    Raises:
        InputError: The checkpoint cannot be repartitioned, or was written meanwhile.
        EnvironmentProblem: This Spark or this file system cannot do it.
    """
    if release_of(spark.version) < SINCE:
        needed = ".".join(map(str, SINCE))
        raise EnvironmentProblem(f"state is repartitioned by Spark {needed} or newer, and this is {spark.version}")
    folder = folder.resolve()
    state = checkpoint_state(folder)
    check_repartition(state, partitions, skip_open_batch=skip_open_batch)
    began = time.monotonic()
    copy = folder.with_name(folder.name + SUFFIX)
    before = folder.with_name(f"{folder.name}.{state.width}-partitions")
    if before.exists():
        raise InputError(f"{before} exists: remove or rename this earlier checkpoint first")
    megabytes, widths = sum(each.bytes for each in state.operators) / 1e6, state.width + partitions
    earlier = read_pauses(cache_folder() / PAUSES)
    predicted = predicted_pause(earlier, widths, megabytes)
    say(
        f"the pause is {predicted.text}, by {counted(len(earlier), 'earlier repartition')} on this machine"
        if earlier
        else "the pause is unknown: no repartition was measured on this machine yet"
    )
    say(f"copying the checkpoint ({megabytes:.1f} MB of state, as links)")
    try:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, copy_function=_link)
        say(f"repartitioning from {state.width} to {partitions}")
        try:
            spark._streamingCheckpointManager.repartition(str(copy), partitions, not skip_open_batch)
        except Exception as error:
            raise EnvironmentProblem(f"Spark does not repartition {folder}: {first_line(error)}") from error
        say("comparing the rows")
        rows = _compare(spark, state, copy)
        if checkpoint_state(folder).batch != state.batch:
            raise InputError(f"{folder} was written meanwhile: stop the query first")
        _exchange(folder, copy)
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        raise
    copy.rename(before)
    seconds = time.monotonic() - began
    add_pause(cache_folder() / PAUSES, Pause(widths, megabytes, seconds))
    return Repartitioned(before, state.width, partitions, rows, seconds, predicted)


def _link(source: str, target: str) -> None:
    if f"{os.sep}state{os.sep}" in source and "_metadata" not in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _compare(spark: "SparkSession", state: CheckpointState, copy: Path) -> int:
    """Return the number of rows in all operators. Raises EnvironmentProblem if rows changed."""
    total = 0
    for each in state.operators:
        for store in _stores(spark, copy, each.number):
            old = _digest(spark, copy, each.number, store, state.committed)
            new = _digest(spark, copy, each.number, store, state.batch + 1)
            if old != new:
                counts = f"{old[0]:,} rows before, {new[0]:,} after"
                raise EnvironmentProblem(f"the repartition of {each.name} is not exact ({counts}): nothing is changed")
            total += new[0]
    return total


def _stores(spark: "SparkSession", copy: Path, operator: int) -> list[str]:
    frame = spark.read.format("state-metadata").load(str(copy)).where(f"operatorId = {operator}")
    return [str(row[0]) for row in frame.select("stateStoreName").distinct().collect()]


def _digest(spark: "SparkSession", copy: Path, operator: int, store: str, batch: int) -> tuple[int, Any]:
    """Return the rows of a store after a batch, and a sum over them that no order changes.

    The option is the one by which Spark's own repartition reads: all column families, as bytes.
    """
    reader = spark.read.format("statestore").option("batchId", batch).option("operatorId", operator)
    frame = reader.option("storeName", store).option("_readAllColumnFamilies", "true").load(str(copy))
    columns = ", ".join(each for each in frame.columns if each not in ("partition_id", "partition_key"))
    row = frame.selectExpr("count(*)", f"sum(cast(xxhash64({columns}) as decimal(38, 0)))").collect()[0]
    return int(row[0]), row[1]


def _exchange(one: Path, other: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or rename(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        reason = "this system has no renameat2" if rename is None else os.strerror(ctypes.get_errno())
        raise EnvironmentProblem(f"{one} stays as it was: two folders cannot be exchanged in one step here ({reason})")
