"""Runs a query of Nexmark on tables, as a stream of files with a closing row, and returns its final rows."""

from itertools import pairwise

import pandas as pd
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.pandas.types import from_arrow_schema

from elastream.bench.comparison import BATCH, final_rows
from elastream.bench.nexmark.events import SCHEMAS, kind_of
from elastream.bench.nexmark.queries import QUERIES
from elastream.bench.nexmark.workload import SIDE, WATERMARK_DELAY
from elastream.bench.sources import with_watermark
from elastream.bench.workload import closing_row
from elastream.spark.jvm.session import STATE_STORES

# The shared session keeps state in the heap. What Python keeps needs RocksDB, and that another file system than the one
# which the session has opened.
ON_DISK = {
    **STATE_STORES["disk"],
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def write_tables(folder, tables, files=2):
    """Write a table of each kind as the files of a stream, and the closing row behind them."""
    for kind, table in tables.items():
        (folder / kind).mkdir(parents=True)
        edges = pairwise(table.num_rows * part // files for part in range(files + 1))
        for number, (first, last) in enumerate(edges):
            parquet.write_table(table.slice(first, last - first), folder / kind / f"{number:03}.parquet")
        closing = pa.Table.from_batches([closing_row(table.schema)])
        parquet.write_table(closing, folder / kind / f"{files:03}.parquet")
    return folder


def _read_files(spark, kind, folder):
    reader = spark.readStream.schema(from_arrow_schema(SCHEMAS[kind]))
    return reader.option("maxFilesPerTrigger", 1).parquet(str(folder / kind))


def stream_query(spark, name, folder, checkpoint, **variant):
    """Run a query over all files in `folder`, one a batch, and return its final rows in pandas."""
    query = QUERIES[name]
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        **(ON_DISK if query.python_state else {}),
    }
    rows = []

    def keep(frame, batch):
        rows.append(frame.toPandas().assign(**{BATCH: batch}))

    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        kinds = [kind_of(stream) for stream in query.streams]
        streams = [with_watermark(_read_files(spark, kind, folder), "date_time", WATERMARK_DELAY) for kind in kinds]
        side = {"side": spark.createDataFrame(SIDE)} if name == "q13" else {}
        writer = query.build(*streams, **side, **variant).writeStream.outputMode(query.mode).foreachBatch(keep)
        running = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        running.awaitTermination()
    finally:
        for key in settings:
            spark.conf.unset(key)
    return final_rows(pd.concat(rows), query.key, query.updates)
