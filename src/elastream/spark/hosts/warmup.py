"""Warm-up of new executors, before the stream depends on them.

Their first task loads classes, Python workers and native libraries for seconds.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from elastream.errors import first_line
from elastream.spark.jvm.driver_side import DriverSide, gateway_of, java_context, java_session, runs_python
from elastream.spark.jvm.executors import Executor

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# If a long batch takes the executor's slots, that batch warms it up.
HOLD_TIMEOUT_S, HOLD_PAUSE_S = 30.0, 0.2
# Local property of a warm-up job: the executor's id.
WARMED_EXECUTOR = "elastream.warms"
# Enough to run the generated code of every stage once, too few to take time.
ROWS_PER_TASK = 400
# Each task behind the shuffle writes a file, the first one slowly. One a state partition would be many.
SHUFFLE_TASKS_PER_SLOT = 2
# Unpacks and loads the native library, once a process: seconds on a small host.
LOAD_ROCKSDB = "java_method('org.rocksdb.RocksDB', 'loadLibrary')"


def warm_up(
    spark: SparkSession, driver: DriverSide, executor: Executor, scratch: str | Path | None, workers: int = 1
) -> None:
    """Run one task like a batch's on each slot of `executor`; return when they have ended.

    Args:
        scratch: Folder that driver and executors reach, for a Parquet file as sinks write. None: no file.
        workers: Python workers of a task, where queries need Python.
    """
    context = spark.sparkContext
    context.setJobDescription(f"warm up executor {executor.id}")
    context.setLocalProperty(WARMED_EXECUTOR, executor.id)
    try:
        with _held_tasks(driver, executor):
            most = workers if runs_python(driver, spark) else 0
            ways = dict.fromkeys([(scratch, most), (None, most), (None, 0)])
            for number, (folder, needed) in enumerate(ways, start=1):
                try:
                    _run(spark, executor, folder, needed)
                    break
                except (Py4JError, PySparkException) as error:
                    if number == len(ways):
                        raise
                    left_out = "a file" if folder is not None else "Python"
                    log.info("executor %s is warmed up without %s: %s", executor.id, left_out, first_line(error))
    finally:
        context.setLocalProperty(WARMED_EXECUTOR, None)  # type: ignore[arg-type]
        context.setJobDescription(None)  # type: ignore[arg-type]


@contextlib.contextmanager
def _held_tasks(driver: DriverSide, executor: Executor) -> Iterator[None]:
    """Keep the warm-up tasks waiting for `executor`, up to HOLD_TIMEOUT_S; then they run anywhere."""
    ended, until = threading.Event(), time.monotonic() + HOLD_TIMEOUT_S

    def hold() -> None:
        try:
            while not ended.wait(HOLD_PAUSE_S) and time.monotonic() < until:
                driver.ask("hold", driver.context, executor.id, WARMED_EXECUTOR)
        except (Py4JError, OSError) as error:  # or the session has just stopped
            log.info("the warm-up of executor %s may run on another one: %s", executor.id, first_line(error))

    thread = threading.Thread(target=hold, name="hold-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run(spark: SparkSession, executor: Executor, scratch: str | Path | None, workers: int) -> None:
    rows = _pinned(spark, executor)
    if "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")):
        rows = rows.selectExpr(f"coalesce({LOAD_ROCKSDB}, word) as word")
    touched, touch = rows, _touch()
    for _ in range(workers):
        touched = touched.mapInArrow(touch, "word string")
    if not workers:
        touched = rows.selectExpr(f"explode(transform(sequence(1, {ROWS_PER_TASK}), n -> concat(word, n))) as word")
    # All of the shuffle's input is on this executor, so Spark runs the stage behind it there as well.
    counts = touched.groupBy("word").count().coalesce(SHUFFLE_TASKS_PER_SLOT * executor.slots).write.mode("overwrite")
    if scratch is None:
        counts.format("noop").save()
        return
    folder = f"{scratch}/_elastream-warm-up-{executor.id}"
    try:
        counts.parquet(folder)
    finally:
        with contextlib.suppress(Py4JError):  # the session has stopped, or nobody may delete
            path = gateway_of(spark).jvm.org.apache.hadoop.fs.Path(folder)
            path.getFileSystem(java_session(spark).sessionState().newHadoopConf()).delete(path, True)


def _pinned(spark: SparkSession, executor: Executor) -> DataFrame:
    gateway = gateway_of(spark)
    jvm = gateway.jvm
    preferred = jvm.PythonUtils.toSeq([f"executor_{executor.host}_{executor.id}"])
    value = gateway.new_array(jvm.java.lang.Object, 1)
    value[0] = "warm"  # text: py4j would turn a boxed long into an int
    row = jvm.org.apache.spark.sql.RowFactory.create(value)
    rows = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(row, preferred) for _ in range(executor.slots)])
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.Row"))
    rdd = java_context(spark).makeRDD(rows, tag)
    schema = java_session(spark).sql("select 'warm' as word").schema()
    return DataFrame(java_session(spark).createDataFrame(rdd.toJavaRDD(), schema), spark)


def _touch() -> Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]:
    rows = ROWS_PER_TASK

    def touch(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        with contextlib.suppress(ImportError):
            import pandas  # noqa: F401 - what operators and PySpark's own workers import at first use

        for _ in batches:
            yield pa.record_batch([pa.array([f"word {number}" for number in range(rows)])], names=["word"])

    return touch
