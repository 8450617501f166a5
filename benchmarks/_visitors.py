"""The jobs of `against_spark.py`: requests to a web site, robots left out.

One counts requests and bytes of each visitor in state, the other writes each request and keeps nothing. Both are written as
PySpark and as a dataflow, with one function and one replayable source, whose offsets are record numbers.
"""

import hmac
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
from _common import write_changes
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from elastream import Dataflow
from elastream.dataflow.endpoints import ArrivalPattern, parquet, records
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.sinks import latest
from elastream.spark.dataflow.sources import HOLD, open_source

STATE_PARTITIONS = 4  # one per host at the peak: more would slow each batch, fewer would leave hosts without state
SOURCE_TASKS = 4  # of the plain job: one per host at the peak, like the partitions of a topic
RETURNS = "visitor string, bytes bigint"
REQUEST = r'^(\S+) \S+ \S+ \[[^\]]+\] "[A-Z]+ (\S+) [^"]*" (\d{3}) (\d+) "[^"]*" "([^"]*)"$'
ROBOT = "bot|crawl|spider"
SECRET = b"of this benchmark"
DIFFERENT, VISITORS, SEED = 20_000, 3_000, 1


def visits(frame: pd.DataFrame) -> pd.DataFrame:
    found = frame["value"].str.extract(REQUEST)
    found = found[found[2].str.startswith("2") & ~found[4].str.contains(ROBOT, case=False, regex=True)]
    who = [
        hmac.digest(SECRET, f"{address} {agent}".encode(), "sha256").hex()[:16]
        for address, agent in zip(found[0], found[4], strict=True)
    ]
    return pd.DataFrame({"visitor": pd.Series(who, dtype=object), "bytes": found[3].astype("int64").to_numpy()})


@lru_cache(maxsize=1)
def access_log() -> tuple[Mapping[str, object], ...]:
    chance = random.Random(SEED)
    agents = ("Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0) Safari/605.1",
              "Mozilla/5.0 (compatible; ExampleBot/2.1)", "curl/8.5.0")  # fmt: skip
    lines = []
    for number in range(DIFFERENT):
        visitor = int(VISITORS * chance.random() ** 2)
        address = f"10.{visitor % 7}.{visitor // 256}.{visitor % 256}"
        path = f"/shop/{chance.choice(('books', 'music', 'garden'))}/{chance.randrange(10_000)}?ref={chance.randrange(99)}"
        status = chance.choices((200, 204, 304, 404, 500), (80, 5, 8, 6, 1))[0]
        at = f"21/Nov/2026:{number % 24:02}:{number % 60:02}:{chance.randrange(60):02} +0000"
        lines.append(
            f'{address} - - [{at}] "GET {path} HTTP/1.1" {status} {chance.randrange(200, 90_000)} "-" '
            f'"{agents[visitor % len(agents)]}"'
        )
    return tuple({"value": line} for line in lines)


def expected(taken: int) -> dict[str, tuple[int, int]]:
    rounds, rest = divmod(taken, DIFFERENT)
    lines = [str(row["value"]) for row in access_log()]
    found: dict[str, tuple[int, int]] = {}
    for part, times in ((lines, rounds), (lines[:rest], 1)):
        if times and part:
            grouped = visits(pd.DataFrame({"value": part})).groupby("visitor")["bytes"].agg(["size", "sum"])
            for visitor, requests, size in zip(grouped.index, grouped["size"], grouped["sum"], strict=True):
                before = found.get(visitor, (0, 0))
                found[visitor] = (before[0] + int(requests) * times, before[1] + int(size) * times)
    return found


@dataclass(frozen=True)
class Job:
    """A job on the log. counts: it counts by visitor, else it writes each visit."""

    name: str
    counts: bool

    def as_dataflow(self, load: ArrivalPattern, out: Path) -> Dataflow:
        flow = Dataflow(self.name)
        log = flow.source(records(access_log(), "value string"), load=load, name="log")
        seen = log.map_pandas(visits, returns=RETURNS, name="visits", cores=0.35)
        if self.counts:
            seen = seen.key_by("visitor").aggregate({"requests": "count(*)", "bytes": "sum(bytes)"})
        seen.sink(parquet(out))
        return flow

    def start_plain(self, spark: SparkSession, root: Path, load: ArrivalPattern, trigger: float) -> "Plain":
        out, control = root / "out", root / "control"
        control.mkdir(parents=True)
        (control / HOLD).touch()

        def run(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            yield from map(visits, frames)

        (operator,) = self.as_dataflow(load, out).graph.sources
        commits = root / "checkpoint"
        steering = Steering(operator.name, control / "wanted.json", SOURCE_TASKS)
        lines = open_source(spark, operator, control=control, checkpoint=commits, steering=steering, batch_seconds=trigger)
        seen = lines.select("value").mapInPandas(run, RETURNS)
        if self.counts:
            totals = seen.groupBy("visitor").agg(F.count("*").alias("requests"), F.sum("bytes").alias("bytes"))
            writer = totals.writeStream.outputMode("update").foreachBatch(partial(write_changes, out))
        else:
            writer = seen.writeStream.foreachBatch(partial(write_rows, out))
        writer = writer.trigger(processingTime=f"{trigger} seconds").queryName(self.name)
        return Plain(writer.option("checkpointLocation", str(commits)).start(), control / HOLD, out)

    def is_exact(self, out: Path, taken: int) -> bool:
        if self.counts:
            rows = latest(out, key="visitor")
        else:
            seen = pq.read_table(written(out), columns=["visitor", "bytes"], partitioning=None).to_pandas()
            rows = seen.groupby("visitor")["bytes"].agg(requests="size", bytes="sum").reset_index()
        columns = (rows[name].tolist() for name in ("visitor", "requests", "bytes"))
        return {visitor: (requests, size) for visitor, requests, size in zip(*columns, strict=True)} == expected(taken)


def written(out: Path) -> list[str]:
    """Return the files of committed batches: by the log of Spark's file sink, if a dataflow wrote them."""
    logs = (log for log in (out / "_spark_metadata").glob("[0-9]*") if log.suffix != ".crc")
    lines = {line for log in logs for line in log.read_text().splitlines()[1:]}
    listed = sorted({json.loads(line)["path"].removeprefix("file://") for line in lines})
    return listed or sorted(map(str, out.glob("batch=*/*.parquet")))


def write_rows(out: Path, frame: DataFrame, batch: int) -> None:
    """Write the rows of a batch from the executors, as a dataflow without state does."""
    frame.write.mode("overwrite").parquet(str(out / f"batch={batch}"))


JOBS = {each.name: each for each in (Job("visitors", counts=True), Job("visits", counts=False))}


@dataclass(frozen=True)
class Plain:
    """A running plain job, the file that holds back its load while it exists, and the folder of its results."""

    query: StreamingQuery
    hold: Path
    out: Path

    def begin(self) -> None:
        self.hold.unlink()
