"""Makes a new executor fast before the stream depends on it.

The first task on a fresh executor pays for class loading, the start of Python workers and their imports, and a state
store's native library: seconds, in the middle of a batch. A warm-up job pays them beforehand. It holds every slot of the
executor meanwhile, which also keeps the stream's own tasks off it until it is ready.

Its tasks are submitted as the executor registers, and that is seconds before it takes any: longer than Spark has them wait
for their place. Without `DriverSide.hold` they would run on the others, and leave it as cold as it was.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from elastream.errors import first_line
from elastream.spark.jvm.driver_side import DriverSide, runs_python
from elastream.spark.jvm.executors import Executor
from elastream.spark.jvm.gateway import gateway_of, java_context, java_session

log = logging.getLogger(__name__)

HELD, HOLD_STEP = 30.0, 0.2
"""Seconds for which tasks wait for their executor and no other, at most: of one whose slots are taken by a long batch the
batch itself sees to it that it is warm. And between two calls that have them wait on."""

WARMS = "elastream.warms"
"""Local property of a job that warms an executor up: its id."""

ROWS = 400
"""Rows a task: enough to run the generated code of every stage once, too few to take time."""

TASKS = 2
"""Tasks a slot behind the shuffle: each writes a file, the first slowly. One a state partition would be many."""

LOAD_ROCKSDB = "java_method('org.rocksdb.RocksDB', 'loadLibrary')"
"""Unpacks and loads the native library of the store on disk, once a process: seconds on a small host."""


def warm_up(spark: SparkSession, driver: DriverSide, executor: Executor, scratch: Path | None) -> None:
    """Run one task on each slot of `executor` that does what a batch does; returns when they have ended.

    Where no query that runs has Python in its batches, none is started: its workers and what they import are most of the
    work. What it writes goes into `scratch`; None where executors need not see the driver's folders: nothing is written.
    """
    context = spark.sparkContext
    context.setJobDescription(f"warm up executor {executor.id}")
    context.setLocalProperty(WARMS, executor.id)
    try:
        with _held(driver, executor):
            _run(spark, executor, scratch, runs_python(driver, spark))
    finally:
        context.setLocalProperty(WARMS, None)  # type: ignore[arg-type]
        context.setJobDescription(None)  # type: ignore[arg-type]


@contextlib.contextmanager
def _held(driver: DriverSide, executor: Executor) -> Iterator[None]:
    """Have the tasks of the job inside wait for `executor`; after HELD, or where this Spark cannot, they run anywhere."""
    ended, until = threading.Event(), time.monotonic() + HELD

    def hold() -> None:
        try:
            while not ended.wait(HOLD_STEP) and time.monotonic() < until:
                driver.ask("hold", driver.context, executor.id, WARMS)
        except (Py4JError, OSError) as error:  # a session that has just stopped, too
            log.info("what warms executor %s up may run on another: %s", executor.id, first_line(error))

    thread = threading.Thread(target=hold, name="hold-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _run(spark: SparkSession, executor: Executor, scratch: Path | None, python: bool) -> None:
    rows = _pinned(spark, executor)
    if "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")):
        rows = rows.selectExpr(f"coalesce({LOAD_ROCKSDB}, word) as word")
    if python:
        # Twice, because a task of the stream has two workers: one reads its source, the other runs its operators.
        touch = _touch()
        touched = rows.mapInArrow(touch, "word string").mapInArrow(touch, "word string")
    else:
        touched = rows.selectExpr(f"explode(transform(sequence(1, {ROWS}), n -> concat(word, n))) as word")
    # All of the shuffle's input is on this executor, so Spark runs the stage behind it there as well.
    counts = touched.groupBy("word").count().coalesce(TASKS * executor.slots).write.mode("overwrite")
    if scratch is None:
        counts.format("noop").save()
    else:
        counts.parquet(str(scratch / f"warm-up-{executor.id}"))


def _pinned(spark: SparkSession, executor: Executor) -> DataFrame:
    """One row a slot, each in a partition of its own that prefers `executor`."""
    gateway = gateway_of(spark)
    jvm = gateway.jvm
    preferred = jvm.PythonUtils.toSeq([f"executor_{executor.host}_{executor.id}"])
    value = gateway.new_array(jvm.java.lang.Object, 1)
    value[0] = "warm"  # text, because the gateway would turn a boxed long into an int on its way
    row = jvm.org.apache.spark.sql.RowFactory.create(value)
    rows = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(row, preferred) for _ in range(executor.slots)])
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("org.apache.spark.sql.Row"))
    rdd = java_context(spark).makeRDD(rows, tag)
    schema = java_session(spark).sql("select 'warm' as word").schema()
    return DataFrame(java_session(spark).createDataFrame(rdd.toJavaRDD(), schema), spark)


def _touch() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A stage in Python; defined in here, it travels whole, to executors that may not have this package."""
    rows = ROWS

    def touch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pandas  # noqa: F401 - what operators and PySpark's own workers import at first use

        for _ in batches:
            yield pa.record_batch([pa.array([f"word {number}" for number in range(rows)])], names=["word"])

    return touch
