"""Loss of DataFrame code in a dataflow: `transform` against the same function in plain PySpark. 4 minutes.

Both sides run one function between a source and a Parquet sink of Spark. The dataflow runs it as the only function of an
operator, and as one of two alternates, which every micro-batch chooses again. Micro-batches count after warm-up.
"""

import argparse
import shutil
import tempfile
from functools import partial
from pathlib import Path

from _common import Report, interleaved, local_session, main, median_batch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import parquet
from elastream.dataflow.stages import lay_out
from elastream.recording.directory import RunDirectory
from elastream.spark.queries.compiler import start_queries

BAR = 0.97
ROWS = 200_000
SOURCE = "the project's bar beside plain PySpark"


def numbers(spark: SparkSession) -> DataFrame:
    """The stream of both sides."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()


def work(frame: DataFrame) -> DataFrame:
    """Parse, filter and derive, as jobs do."""
    texts = frame.withColumn("text", F.concat_ws(",", "value", F.hex("value"), F.sha2(F.col("value").cast("string"), 256)))
    parts = texts.withColumn("parts", F.split("text", ",")).where(F.col("value") % 10 < 3)
    return parts.select("value", F.element_at("parts", 3).alias("hash"), F.length("text").alias("length"))


def other(frame: DataFrame) -> DataFrame:
    """An alternate that does not run."""
    return work(frame).withColumn("length", F.lit(0))


def as_pyspark(spark: SparkSession, folder: Path) -> StreamingQuery:
    """The job as its author wrote it."""
    writer = work(numbers(spark)).writeStream.format("parquet").option("path", str(folder / "out"))
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="0 seconds").start()


def as_dataflow(several: bool, spark: SparkSession, folder: Path) -> StreamingQuery:
    """The job as a dataflow; several: with an alternate."""
    flow = Dataflow("transform")
    stream = flow.from_dataframe(numbers).transform({"work": work, "other": other} if several else work)
    stream.sink(parquet(folder / "out"))
    directory = RunDirectory.create(folder / "runs", flow.name)
    composition = Composition.default(flow.graph)
    layout = lay_out(flow.graph)
    (only,) = start_queries(spark, layout, directory, composition, state_partitions=2, batch_seconds=60, interval=0.0)
    return only.query


def seconds_a_batch(start: partial[StreamingQuery], batches: int, root: Path) -> float:
    """Median duration of `batches` micro-batches after two that warm up."""
    folder = Path(tempfile.mkdtemp(dir=root))
    query = start(folder=folder)
    try:
        seconds = median_batch(query, 2, batches + 1, ROWS)
        assert {each["numInputRows"] for each in query.recentProgress if each["batchId"] > 1} == {ROWS}
        return seconds
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(arguments: argparse.Namespace) -> Report:
    rounds, batches = (5, 4) if arguments.quick else (15, 6)
    with local_session("transform") as (spark, root):
        report = Report(environment={"master": spark.sparkContext.master, "records a batch": ROWS})
        plain = partial(seconds_a_batch, partial(as_pyspark, spark), batches, root)
        for name, several in (("transform", False), ("transform, two alternates", True)):
            ours = partial(seconds_a_batch, partial(as_dataflow, several, spark), batches, root)
            sides = interleaved(plain, ours, rounds, f"{name}: seconds of a batch in plain PySpark and as a dataflow:")
            report.figures[name] = sides.figures("plain", "dataflow")
            report.median_at_least(f"throughput of {name} over plain PySpark", sides.ratios, BAR, SOURCE)
    return report


if __name__ == "__main__":
    main("transform", __doc__, measure)
