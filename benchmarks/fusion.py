"""Nine operators with fan-out and fan-in as one Arrow stage, against a plan of unions. 6 minutes on two free cores.

PySpark makes a plan of unions of `a.union(b)`, which reads its source once per branch. Durations of micro-batches are
compared.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from _common import Report, interleaved, local_session, main, median_batch
from pyspark.sql import DataFrame, SparkSession

from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.chains import chain_of
from elastream.spark.dataflow.chaining import build_walk
from elastream.spark.dataflow.shipping import pickled
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.meter import Meter
from elastream.spark.worker.walk import WorkerPaths, stage_function

BAR = 5.0
SIZES = (1_000, 400_000)
NUMBER = pa.schema([("value", pa.int64())])

ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch]


def _operator(compute: Callable[[pa.Array], pa.Array]) -> ArrowFunction:
    return lambda batch: pa.RecordBatch.from_arrays([compute(batch.column("value"))], schema=NUMBER)


FUNCTIONS: dict[str, ArrowFunction] = {
    "parse": _operator(lambda v: pc.add(v, 1)),
    "low": _operator(lambda v: v.filter(pc.equal(pc.bit_wise_and(v, 3), 0))),
    "middle": _operator(lambda v: v.filter(pc.equal(pc.bit_wise_and(v, 3), 1))),
    "high": _operator(lambda v: v.filter(pc.greater(pc.bit_wise_and(v, 3), 1))),
    "join": _operator(lambda v: pc.multiply(v, 3)),
    "left": _operator(lambda v: pc.add(v, 7)),
    "right": _operator(lambda v: pc.subtract(v, 7)),
    "meet": _operator(lambda v: pc.abs(v)),
    "last": _operator(lambda v: pc.add(v, 2)),
}
"""parse fans out to low, middle and high; join takes all three and fans out to left and right; meet takes both; last."""


def as_dataflow() -> Dataflow:
    flow = Dataflow("fusion")

    def then(stream: Stream, name: str) -> Stream:
        return stream.map_arrow(FUNCTIONS[name], returns="value long", name=name)

    parsed = then(flow.source(None), "parse")
    joined = then(then(parsed, "low").merge(then(parsed, "middle"), then(parsed, "high")), "join")
    then(then(then(joined, "left").merge(then(joined, "right")), "meet"), "last").sink(None)
    return flow


def fused(spark: SparkSession) -> Callable[[DataFrame], DataFrame]:
    graph = as_dataflow().graph
    chain, codec = chain_of(graph, graph.order, ()), CompositionCodec(graph)
    walk = build_walk(chain, "source", "source", codec, [NUMBER], lambda _: NUMBER)
    meter = Meter(spark.sparkContext)
    function = stage_function(pickled(walk, "fusion"), WorkerPaths(), meter.sink)
    return lambda frame: frame.mapInArrow(function, "value long")


def as_unions(frame: DataFrame) -> DataFrame:
    def then(before: DataFrame, name: str) -> DataFrame:
        function = FUNCTIONS[name]
        return before.mapInArrow(lambda batches: map(function, batches), "value long")

    parsed = then(frame, "parse")
    joined = then(then(parsed, "low").unionAll(then(parsed, "middle")).unionAll(then(parsed, "high")), "join")
    return then(then(then(joined, "left").unionAll(then(joined, "right")), "meet"), "last")


def seconds_a_batch(
    spark: SparkSession, build: Callable[[DataFrame], DataFrame], rows: int, batches: int, folder: Path
) -> float:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    checkpoint = folder / f"checkpoint-{time.monotonic_ns()}"
    writer = build(source.select("value")).writeStream.format("noop").trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        return median_batch(query, 1, batches, rows)
    finally:
        query.stop()


def measure(arguments: argparse.Namespace) -> Report:
    with local_session("fusion") as (spark, folder):
        report = Report(environment={"master": spark.sparkContext.master})
        one_stage = fused(spark)
        numbers = spark.range(0, 10_000, 1, 2).toDF("value")
        same = Counter(one_stage(numbers).toArrow().column("value").to_pylist())
        assert same == Counter(as_unions(numbers).toArrow().column("value").to_pylist()), "the two plans differ"
        for rows in SIZES:
            rounds, batches = (2, 2) if arguments.quick else (5, 8 if rows < 10_000 else 4)
            sides = interleaved(
                partial(seconds_a_batch, spark, as_unions, rows, batches, folder),
                partial(seconds_a_batch, spark, one_stage, rows, batches, folder),
                rounds,
                f"{rows:,} records a batch, seconds of a batch as unions and fused:",
            )
            report.figures[str(rows)] = sides.figures("unions", "fused")
            report.figures[str(rows)]["fused records/s"] = rows / statistics.median(sides.b)
            report.median_at_least(f"fused over unions, {rows:,} records a batch", sides.ratios, BAR)
    return report


if __name__ == "__main__":
    main("fusion", __doc__, measure)
