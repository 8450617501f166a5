"""Makes a new executor fast before the stream depends on it.

The first task on a fresh executor pays for class loading, the start of Python workers and their imports, and a state
store's native library: seconds, in the middle of a batch. A warm-up job pays them beforehand. It holds every slot of the
executor meanwhile, which also keeps the stream's own tasks off it until it is ready.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from elastream.spark.jvm.executors import Executor
from elastream.spark.jvm.gateway import gateway_of, java_context, java_session

__all__ = ["warm_up"]

ROWS = 400
"""Rows a task: enough to run the generated code of every stage once, too few to take time."""

TASKS = 2
"""Tasks a slot behind the shuffle: each writes a file, the first slowly. One a state partition would be many."""

LOAD_ROCKSDB = "java_method('org.rocksdb.RocksDB', 'loadLibrary')"
"""Unpacks and loads the native library of the store on disk, once a process: seconds on a small host."""


def warm_up(spark: SparkSession, executor: Executor, scratch: Path | None) -> None:
    """Run one task on each slot of `executor` that does what a batch does.

    What it writes goes into `scratch`; None where executors need not see the driver's folders, and nothing is written.
    """
    context = spark.sparkContext
    context.setJobDescription(f"warm up executor {executor.id}")
    try:
        rows = _pinned(spark, executor)
        if "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")):
            rows = rows.selectExpr(f"coalesce({LOAD_ROCKSDB}, word) as word")
        # Twice, because a task of the stream has two workers: one reads its source, the other runs its operators.
        touch = _touch()
        touched = rows.mapInArrow(touch, "word string").mapInArrow(touch, "word string")
        # All of the shuffle's input is on this executor, so Spark runs the stage behind it there as well.
        counts = touched.groupBy("word").count().coalesce(TASKS * executor.slots).write.mode("overwrite")
        if scratch is None:
            counts.format("noop").save()
        else:
            counts.parquet(str(scratch / f"warm-up-{executor.id}"))
    finally:
        context.setJobDescription(None)  # type: ignore[arg-type]


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
