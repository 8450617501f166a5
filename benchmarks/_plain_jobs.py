"""Jobs of plain PySpark, with one fault each and without, and their event logs."""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState

from elastream.clouds.local.java import cache_folder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ.setdefault("JARS_OF_TESTS", str(cache_folder() / "tests"))

from support.clusters import kafka_broker, kafka_connector  # type: ignore[import-not-found]  # the broker of the tests
from support.shared_session import forget_jvm  # type: ignore[import-not-found]

TOPIC, SERVERS = "records", "spark.stranger.servers"
QUIET = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4", "spark.driver.host": "127.0.0.1"}


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        start: Starts its queries in a folder.
        feed: Files a second of its source, if it reads files, and `first` at once.
        burst: Times as many come in 3 of 30 seconds.
        topic: Records a second in each partition of its Kafka topic.
        stops: False if its queries run until the session stops.
    """

    start: Callable[[SparkSession, Path], object]
    seconds: float = 40.0
    settings: Mapping[str, str] = field(default_factory=dict)
    feed: float = 0.0
    first: int = 0
    burst: float = 1.0
    topic: Sequence[float] = ()
    stops: bool = True


def rate(spark: SparkSession, rows: int = 500, partitions: int = 2) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", rows).option("numPartitions", partitions).load()


def files(spark: SparkSession, folder: Path, **options: int) -> DataFrame:
    reader = spark.readStream.schema("a long, b string").options(**options)
    return reader.json(str(folder / "in"))


def topic(spark: SparkSession, **options: int) -> DataFrame:
    servers = {"kafka.bootstrap.servers": spark.conf.get(SERVERS) or ""}
    reader = spark.readStream.format("kafka").options(subscribe=TOPIC, startingOffsets="earliest", **servers)
    return reader.options(**options).load().selectExpr("cast(string(value) as long) as value", "timestamp")


def write(frame: DataFrame, folder: Path, every: str | None = "2 seconds", mode: str = "append", name: str = "q",
          form: str = "noop", **more: str) -> StreamingQuery:  # fmt: skip
    writer = frame.writeStream.format(form).outputMode(mode).queryName(name)
    writer = writer.options(checkpointLocation=str(folder / f"checkpoint-{name}"), **more)
    return (writer if every is None else writer.trigger(processingTime=every)).start()


def each_batch(
    frame: DataFrame, folder: Path, function: Callable[[DataFrame, int], None], every: str = "3 seconds"
) -> StreamingQuery:
    writer = (
        frame.writeStream.foreachBatch(function).queryName("q").option("checkpointLocation", str(folder / "checkpoint"))
    )
    return writer.trigger(processingTime=every).start()


def counts(frame: DataFrame, delay: str = "5 seconds") -> DataFrame:
    return frame.withWatermark("timestamp", delay).groupBy(f.window("timestamp", "5 seconds"), f.expr("value % 20")).count()


def work(frame: DataFrame, numbers: str) -> DataFrame:
    """Return work on so many numbers for each record."""
    frame = frame.withColumn("value", f.expr("value % 40"))
    return (
        frame.select("*", f.explode(f.expr(f"sequence(1, {numbers})")).alias("i"))
        .groupBy("value")
        .agg(f.sum(f.hash("i", "value")))
    )


def sleep(ms: str) -> Column:
    return f.expr(f"reflect('java.lang.Thread', 'sleep', cast({ms} as bigint))")


def slow(frame: DataFrame, ms: int) -> DataFrame:
    return frame.withColumn("w", sleep(str(ms)))


def keyed(frame: DataFrame, keys: int) -> DataFrame:
    groups = frame.withWatermark("timestamp", "5 seconds").groupBy(
        f.window("timestamp", "5 seconds"), f.expr(f"value % {keys}")
    )
    return groups.agg(f.count("w"), f.max("w"))


def feed(folder: Path, number: int) -> None:
    (folder / f".{number}").write_text("".join(json.dumps({"a": n, "b": str(n % 9)}) + "\n" for n in range(40)))
    os.rename(folder / f".{number}", folder / f"{number}.json")


@contextmanager
def producing(job: Job, servers: str) -> Iterator[None]:
    """Send a topic its records as they fall due."""
    from kafka import KafkaProducer

    producer, ends, began = KafkaProducer(bootstrap_servers=servers, linger_ms=10), threading.Event(), time.monotonic()
    sent = [0] * len(job.topic)

    def send(seconds: float) -> None:
        for partition, rate in enumerate(job.topic):
            due = job.first + int(rate * seconds)
            for number in range(sent[partition], due):
                producer.send(TOPIC, str(number).encode(), partition=partition)
            sent[partition] = due
        producer.flush()

    def go_on() -> None:
        while not ends.wait(0.1):
            send(time.monotonic() - began)

    send(0.0)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        producer.close()


def with_topic(job: Job, folder: Path, opened: ExitStack) -> Mapping[str, str]:
    """Start a broker; return the settings of a session that reads it."""
    from kafka.admin import KafkaAdminClient, NewTopic

    jars, servers = kafka_connector(), opened.enter_context(kafka_broker(folder / "kafka"))
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(TOPIC, len(job.topic), 1)])
    admin.close()
    return {"spark.jars": jars, SERVERS: servers}


def logged(job: Job, folder: Path, cores: int = 2) -> Path:
    """Run a job, and return its event log."""
    with ExitStack() as opened:
        more = with_topic(job, folder, opened) if job.topic else {}
        if more:
            forget_jvm()  # a JVM finds the jars that it is started with
        log = _logged(job, folder, cores, more)
        if more:
            forget_jvm()
    return log


def _logged(job: Job, folder: Path, cores: int, more: Mapping[str, str]) -> Path:
    (folder / "logs").mkdir()
    (folder / "in").mkdir()
    logging = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "logs").as_uri()}
    settings = {**QUIET, **more, **job.settings, **logging}
    settings = {"spark.master": f"local[{cores}]", **settings}
    builder = SparkSession.builder.appName("stranger")
    for key, value in settings.items():
        builder = builder.config(key, value)
    numbers = itertools.count()
    for _ in range(0 if job.topic else job.first):
        feed(folder / "in", next(numbers))
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("FATAL")
        if "cluster" in settings["spark.master"]:
            spark.range(0, 1, 1, 1).count()  # the first executor takes long to start
        with producing(job, more[SERVERS]) if job.topic else nullcontext():
            job.start(spark, folder)
            end = time.monotonic() + job.seconds
            while time.monotonic() < end:
                if job.feed:
                    feed(folder / "in", next(numbers))
                burst = job.burst if (end - time.monotonic()) % 30 < 3 else 1.0
                time.sleep(1 / (burst * job.feed or 1.0))
        for query in spark.streams.active if job.stops else ():
            with suppress(Exception):
                query.stop()
    finally:
        spark.stop()
    (log,) = (folder / "logs").iterdir()
    return log


def starved(spark: SparkSession, folder: Path) -> None:
    write(rate(spark, 8, 8).withColumn("s", sleep("150")), folder, "24 seconds", name="heavy")
    write(rate(spark, 100), folder, name="light")


def two(spark: SparkSession, folder: Path) -> None:
    write(rate(spark), folder, name="a")
    write(counts(rate(spark)), folder, mode="update", name="b")


def joined(spark: SparkSession, folder: Path) -> None:
    left = rate(spark).withWatermark("timestamp", "5 seconds").selectExpr("value as a", "timestamp as at")
    right = rate(spark, 200).withWatermark("timestamp", "5 seconds").selectExpr("value as b", "timestamp as bt")
    within = "a = b and bt between at - interval 5 seconds and at + interval 5 seconds"
    write(left.join(right, f.expr(within)), folder)


def joined_without_range(spark: SparkSession, folder: Path) -> None:
    left = rate(spark, 100).withWatermark("timestamp", "1 second").selectExpr("value as a", "timestamp as at")
    right = rate(spark, 100).withWatermark("timestamp", "1 second").selectExpr("value as b", "timestamp as bt")
    write(left.join(right, f.expr("a = b")), folder)


def many_files(frame: DataFrame, number: int) -> None:
    with TemporaryDirectory() as folder:
        frame.repartition(12).write.mode("append").parquet(folder)


def write_slowly(frame: DataFrame, number: int) -> None:
    frame.withColumn("s", sleep("50")).write.format("noop").mode("append").save()


def sorted_in_parts(frame: DataFrame, number: int) -> None:
    frame.withColumn("i", f.expr("explode(sequence(1, 100))")).orderBy(f.rand()).write.format("noop").mode("append").save()


def flaky(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    attempt = TaskContext.get()
    if attempt is not None and attempt.attemptNumber() == 0:
        raise ValueError("connection reset")
    yield from batches


def batch_jobs(spark: SparkSession, folder: Path) -> None:
    def repeat() -> None:
        with suppress(Exception):
            while True:
                spark.range(0, 64, 1, 16).withColumn("s", sleep("250")).write.format("noop").mode("overwrite").save()

    threading.Thread(target=repeat, daemon=True).start()
    write(rate(spark, 50), folder, "1 second")


def failing(spark: SparkSession, folder: Path) -> None:
    write(rate(spark).withColumn("x", f.expr("if(value > 9000, raise_error('no'), 1)")), folder)


def broken(frame: DataFrame, number: int) -> None:
    frame.count()
    if number > 3:
        raise ValueError("no such price")


def behind_another(spark: SparkSession, folder: Path) -> None:
    def fill(frame: DataFrame, number: int) -> None:
        frame.count()
        spark.range(0, 8, 1, 8).withColumn("s", sleep("1200")).write.format("noop").mode("append").save()

    each_batch(rate(spark, 20, 1), folder, fill, "1 second")
    write(rate(spark, 100), folder, name="light")


def each_row_slowly(spark: SparkSession, folder: Path) -> None:
    frame = rate(spark, 20).writeStream.foreach(lambda row: time.sleep(0.08)).queryName("q")
    frame.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="3 seconds").start()


def ranked(frame: DataFrame, number: int) -> None:
    of_key = Window.partitionBy("key").orderBy("i")
    frame = frame.select(f.expr("value % 2").alias("key"), f.expr("explode(sequence(1, 20))").alias("i"))
    frame.withColumn("rank", f.row_number().over(of_key)).write.format("noop").mode("append").save()


def collect_garbage(frame: DataFrame, number: int) -> None:
    frame.count()
    six = frame.sparkSession.range(0, 6, 1, 2).withColumn("s", f.expr("reflect('java.lang.System', 'gc')"))
    six.write.format("noop").mode("append").save()


def append(folder: Path, files: int) -> None:
    """Add so many files at once after 12 seconds."""

    def add() -> None:
        time.sleep(12.0)
        for number in range(files):
            feed(folder / "in", 10_000 + number)

    threading.Thread(target=add, daemon=True).start()


def burst_of_files(spark: SparkSession, folder: Path) -> None:
    append(folder, 150)
    write(files(spark, folder).withColumn("s", sleep("4")), folder, "1 second")


def again(start: Callable[[], StreamingQuery], seconds: float) -> None:
    """Start a query, stop it after so many seconds, and start it again."""

    def restart() -> None:
        time.sleep(seconds)
        with suppress(Exception):
            query.stop()
            start()

    query = start()
    threading.Thread(target=restart, daemon=True).start()


def sums(key: tuple[int], batches: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the records of a key, which ends after two seconds."""
    if state.hasTimedOut:
        state.remove()
        return
    total = sum(len(each) for each in batches) + (state.get[0] if state.exists else 0)
    state.update((total,))
    state.setTimeoutDuration(2000)
    yield pd.DataFrame({"key": [key[0]], "total": [total]})


def summed(frame: DataFrame) -> DataFrame:
    state = "total long", "update", "ProcessingTimeTimeout"
    return frame.groupBy("value").applyInPandasWithState(sums, "key long, total long", *state)


def beside_a_cached_table(spark: SparkSession, folder: Path, ms: int) -> None:
    """Start a query whose tasks prefer the executor that has a table in memory."""
    table = spark.range(0, 2, 1, 2).cache()
    table.count()

    def read(frame: DataFrame, number: int) -> None:
        frame.count()
        table.withColumn("s", sleep(str(ms))).write.format("noop").mode("append").save()

    each_batch(rate(spark, 20, 1), folder, read)


TWO = {"spark.master": "local-cluster[2,1,900]", "spark.executor.memory": "900m", "spark.executor.cores": "1"}
# Two executors, of which the second comes when tasks wait.
GROWING = {
    **TWO,
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.executorIdleTimeout": "10min",
}
FAULTS: dict[str, Job] = {
    "partitions": Job(
        lambda s, d: write(counts(rate(s)), d, mode="update"), settings={"spark.sql.shuffle.partitions": "100"}
    ),
    "state": Job(lambda s, d: write(rate(s).groupBy("value").count(), d, mode="update")),
    "state, watermark unused": Job(
        lambda s, d: write(rate(s).withWatermark("timestamp", "2 seconds").groupBy("value").count(), d, mode="update")
    ),
    "limit": Job(lambda s, d: write(files(s, d, maxFilesPerTrigger=1), d, "1 second"), feed=2.0),
    "small files": Job(lambda s, d: write(rate(s).repartition(8), d, "1 second", form="parquet", path=str(d / "out"))),
    "short trigger": Job(lambda s, d: write(files(s, d), d, None), feed=8.0),
    "trigger": Job(lambda s, d: write(rate(s), d, "20 seconds"), seconds=125.0),
    "long_task": Job(
        lambda s, d: write(work(rate(s, 40), "if(value % 40 = 0, 20000000, 10)"), d, "4 seconds", mode="update")
    ),
    "driver": Job(lambda s, d: each_batch(rate(s), d, lambda frame, number: time.sleep(1.8 + 0 * len(frame.collect())))),
    "wait": Job(lambda s, d: write(rate(s, 20).withColumn("s", sleep("80")), d, "3 seconds")),
    "sink": Job(lambda s, d: each_batch(rate(s, 20), d, write_slowly)),
    "sink, in Python": Job(
        lambda s, d: each_batch(rate(s), d, lambda frame, number: frame.foreachPartition(lambda rows: time.sleep(2.2)))
    ),
    "slots": Job(starved, seconds=110.0),
    "few_tasks": Job(lambda s, d: write(work(rate(s, 100, 1), "400000"), d, "2 seconds", mode="update"), seconds=90.0),
    "surge": Job(lambda s, d: write(files(s, d).withColumn("s", sleep("4")), d, "1 second"), feed=1.0, first=200),
    "failure": Job(failing),
    "state, join without a range": Job(joined_without_range, seconds=60.0),
    "state, keys of a deduplication": Job(
        lambda s, d: write(rate(s).withWatermark("timestamp", "2 seconds").dropDuplicates(["value"]), d)
    ),
    "limit, without a trigger": Job(lambda s, d: write(files(s, d, maxFilesPerTrigger=1), d, None), feed=16.0, first=40),
    "small files, of a function": Job(lambda s, d: each_batch(rate(s), d, many_files)),
    "spill": Job(
        lambda s, d: each_batch(rate(s), d, sorted_in_parts),
        settings={"spark.shuffle.spill.numElementsForceSpillThreshold": "2000"},
    ),
    "failed tasks": Job(
        lambda s, d: write(rate(s, 20).mapInPandas(flaky, "timestamp timestamp, value long"), d),
        settings={"spark.master": "local[2,6]"},
    ),
    "slots, batch jobs": Job(batch_jobs, seconds=60.0),
    "growth": Job(
        lambda s, d: write(slow(rate(s, 100).groupBy(f.expr("value % 40")).count(), 80), d, "4 seconds", "update"),
        30.0, {"spark.master": "local[8]", "spark.sql.shuffle.partitions": "2"},
    ),
    "growth, of a source": Job(
        lambda s, d: write(slow(rate(s, 20), 45), d, "4 seconds"), 30.0, {"spark.master": "local[8]"}
    ),
    "idle executors, state": Job(
        lambda s, d: write(slow(rate(s, 100, 1).groupBy(f.expr("value % 20")).count(), 120), d, "4 seconds", "update"),
        60.0, {**GROWING, "spark.sql.shuffle.partitions": "2"},
    ),
    "idle executors, a cached table": Job(lambda s, d: beside_a_cached_table(s, d, 900), 60.0, GROWING),
    "locality": Job(lambda s, d: beside_a_cached_table(s, d, 1500), 45.0, {**GROWING, "spark.locality.wait": "1s"}),
    "dynamic allocation": Job(
        lambda s, d: write(counts(rate(s)), d, "4 seconds", "update"),
        40.0, {**GROWING, "spark.master": "local-cluster[3,1,900]", "spark.dynamicAllocation.initialExecutors": "3",
               "spark.sql.shuffle.partitions": "1"},
    ),
    "garbage": Job(lambda s, d: each_batch(rate(s), d, collect_garbage)),
    "slots, behind another query": Job(behind_another),
    "sink, each row": Job(each_row_slowly, 30.0),
    "spill, in a window": Job(
        lambda s, d: each_batch(rate(s), d, ranked), 25.0,
        {"spark.sql.windowExec.buffer.in.memory.threshold": "500", "spark.sql.windowExec.buffer.spill.threshold": "1000"},
    ),
    "small files, JSON": Job(lambda s, d: write(rate(s), d, "1 second", form="json", path=str(d / "out")), 25.0),
    "partitions, of distinct records": Job(
        lambda s, d: write(rate(s).withWatermark("timestamp", "2 seconds").dropDuplicates(["timestamp"]), d),
        30.0, {"spark.sql.shuffle.partitions": "50"},
    ),
    "state, distinct without a watermark": Job(lambda s, d: write(rate(s).dropDuplicates(["value"]), d), 25.0),
    "state, restarted": Job(
        lambda s, d: again(lambda: write(rate(s).groupBy("value").count(), d, mode="update"), 15.0), 35.0
    ),
    "failure, of a function": Job(lambda s, d: each_batch(rate(s), d, broken), 25.0),
    "surge, in the middle": Job(burst_of_files, 40.0, feed=1.0),
    "long_task, of a source": Job(
        lambda s, d: write(rate(s, 60, 4).withColumn("s", sleep("if(spark_partition_id() = 0, 50, 1)")), d, "3 seconds"),
        30.0,
    ),
    "partition lag": Job(
        lambda s, d: write(topic(s, maxOffsetsPerTrigger=200), d, "1 second"), 60.0, topic=(500, 10, 10, 10)
    ),
    "limit, of Kafka": Job(
        lambda s, d: write(topic(s, maxOffsetsPerTrigger=100), d, "1 second"), 60.0, topic=(60, 70, 80)
    ),
    "large limit": Job(
        lambda s, d: write(slow(topic(s, maxOffsetsPerTrigger=4000), 7), d, None), 90.0, topic=(5,) * 4, first=8000
    ),
    "long_task, of Kafka": Job(lambda s, d: write(slow(topic(s), 6), d, "3 seconds"), 60.0, topic=(120, 3, 3, 3)),
}  # fmt: skip


def count(frame: DataFrame, number: int) -> None:
    frame.count()


def five(spark: SparkSession, folder: Path) -> None:
    for number in range(5):
        write(rate(spark, 20), folder, "4 seconds", name=f"q{number}")


def each_row(spark: SparkSession, folder: Path) -> None:
    def work(row: Row) -> None:
        sum(range(20_000))

    frame = rate(spark, 200).writeStream.foreach(work)
    frame.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="4 seconds").start()


def once(frame: DataFrame, folder: Path, mode: str = "append") -> StreamingQuery:
    """Start a query that ends when it has read what is there."""
    writer = frame.writeStream.format("noop").outputMode(mode).queryName("q")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()


def hourly(spark: SparkSession, folder: Path) -> None:
    """Run a bounded query every 6 seconds."""
    for _ in range(4):
        once(files(spark, folder), folder).awaitTermination()
        time.sleep(6.0)


def joined_within_an_hour(spark: SparkSession, folder: Path) -> None:
    left = rate(spark, 100).withWatermark("timestamp", "1 second").selectExpr("value as a", "timestamp as at")
    right = rate(spark, 50).withWatermark("timestamp", "1 second").selectExpr("value as b", "timestamp as bt")
    write(left.join(right, f.expr("a = b and bt between at - interval 1 hour and at + interval 30 minutes")), folder)


def joined_with_a_table(spark: SparkSession, folder: Path) -> None:
    table = spark.range(100).withColumn("name", f.expr("concat('n', id)"))
    write(rate(spark).withColumn("id", f.expr("value % 100")).join(table, "id"), folder)


def three(spark: SparkSession, folder: Path) -> None:
    write(rate(spark, 50), folder, "4 seconds", name="a")
    write(counts(rate(spark, 50)), folder, "4 seconds", "update", name="b")
    write(files(spark, folder).select("b"), folder, "4 seconds", name="c")


def to_files(frame: DataFrame, number: int) -> None:
    with TemporaryDirectory() as folder:
        frame.coalesce(1).write.mode("append").parquet(folder)


def twice(frame: DataFrame, number: int) -> None:
    frame.persist()
    for _ in range(2):
        frame.write.format("noop").mode("append").save()
    frame.unpersist()


def sessions(frame: DataFrame) -> DataFrame:
    key = f.expr("value % 20").alias("key")
    return frame.withWatermark("timestamp", "1 second").groupBy(f.session_window("timestamp", "10 minutes"), key).count()


def of_users(frame: DataFrame, *window: str) -> DataFrame:
    return frame.withWatermark("timestamp", "1 second").groupBy(f.window("timestamp", *window), "value").count()


def same(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from batches


ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CLEAN: dict[str, Job] = {
    "map": Job(lambda s, d: write(rate(s, 5000), d)),
    "windows": Job(lambda s, d: write(counts(rate(s)), d, mode="update")),
    "windows, every second": Job(lambda s, d: write(counts(rate(s, 2000)), d, "1 second", mode="update")),
    "join": Job(joined),
    "distinct": Job(lambda s, d: write(rate(s).withWatermark("timestamp", "2 seconds").dropDuplicates(["timestamp"]), d)),
    "function": Job(lambda s, d: each_batch(rate(s), d, count)),
    "files in": Job(lambda s, d: write(files(s, d), d, "1 second"), feed=2.0),
    "files in, limited": Job(lambda s, d: write(files(s, d, maxFilesPerTrigger=50), d, "2 seconds"), feed=2.0),
    "files out": Job(
        lambda s, d: write(rate(s).coalesce(1), d, "10 seconds", form="parquet", path=str(d / "out")), seconds=90
    ),
    "two queries": Job(two),
    "steady work": Job(lambda s, d: write(work(rate(s, 100, 8), "2000"), d, "3 seconds", mode="update")),
    "one file for each trigger": Job(lambda s, d: write(files(s, d), d, "1 second"), feed=1.0),
    "trigger of 5 seconds": Job(lambda s, d: write(rate(s), d, "5 seconds"), seconds=60.0),
    "five queries": Job(five),
    "rows to Python": Job(each_row),
    "keys that fill up": Job(
        lambda s, d: write(rate(s, 100).groupBy(f.expr("cast(rand() * 500 as int)")).count(), d, mode="update")
    ),
    "continuous work": Job(lambda s, d: write(rate(s, 20_000), d, "1 second")),
    "default trigger": Job(lambda s, d: write(rate(s, 100), d, None), 25.0),
    "default trigger, files": Job(lambda s, d: write(files(s, d), d, None), 25.0, feed=1.0),
    "default trigger, windows": Job(lambda s, d: write(counts(rate(s, 100)), d, None, "update"), 25.0),
    "all that is there": Job(lambda s, d: once(files(s, d), d), 15.0, first=60),
    "all that is there, in parts": Job(lambda s, d: once(files(s, d, maxFilesPerTrigger=5), d), 25.0, first=100),
    "a bounded run now and then": Job(hourly, 5.0, first=60),
    "windows of an hour": Job(lambda s, d: write(of_users(rate(s), "1 hour"), d, mode="update"), 30.0),
    "windows that slide": Job(
        lambda s, d: write(of_users(rate(s, 100), "20 minutes", "10 minutes"), d, mode="update"), 25.0
    ),
    "sessions": Job(lambda s, d: write(sessions(rate(s)), d), 25.0),
    "join within an hour": Job(joined_within_an_hour, 30.0),
    "join with a table": Job(joined_with_a_table, 25.0),
    "distinct for a time": Job(
        lambda s, d: write(rate(s).withWatermark("timestamp", "4 seconds").dropDuplicatesWithinWatermark(["value"]), d),
        35.0,
    ),
    "restarted": Job(lambda s, d: again(lambda: write(counts(rate(s)), d, mode="update"), 12.0), 30.0),
    "stopped with its session": Job(lambda s, d: write(counts(rate(s)), d, mode="update"), 25.0, stops=False),
    "three queries": Job(three, 30.0),
    "queries in pools": Job(two, 30.0, {"spark.scheduler.mode": "FAIR"}),
    "function that writes files": Job(lambda s, d: each_batch(rate(s), d, to_files, "6 seconds"), 40.0),
    "function that writes twice": Job(lambda s, d: each_batch(rate(s), d, twice), 25.0),
    "Python": Job(lambda s, d: write(rate(s).mapInPandas(same, "timestamp timestamp, value long"), d), 25.0),
    "state with a time-out": Job(
        lambda s, d: write(summed(rate(s, 40)), d, mode="update"), 35.0
    ),
    "state in RocksDB": Job(
        lambda s, d: write(counts(rate(s)), d, mode="update"),
        25.0, {"spark.sql.streaming.stateStore.providerClass": ROCKSDB},
    ),
    "two executors": Job(lambda s, d: write(counts(rate(s)), d, mode="update"), 30.0, TWO),
    "executors of dynamic allocation": Job(
        lambda s, d: write(counts(rate(s)), d, mode="update"), 30.0,
        {**GROWING, "spark.dynamicAllocation.maxExecutors": "1"},
    ),
    "Kafka": Job(lambda s, d: write(counts(topic(s)), d, mode="update"), 60.0, topic=(100, 100, 100)),
    "Kafka, uneven": Job(lambda s, d: write(topic(s), d, "1 second"), 60.0, topic=(400, 10, 10, 10)),
    "Kafka, limited": Job(
        lambda s, d: write(topic(s, maxOffsetsPerTrigger=5000), d, "3 seconds"), 60.0, topic=(100, 100, 100), first=800
    ),
    "Kafka, all that is there": Job(
        lambda s, d: once(topic(s, maxOffsetsPerTrigger=500), d).awaitTermination(), 5.0, topic=(0, 0, 0), first=2000
    ),
}  # fmt: skip


def slowly_joined(spark: SparkSession, folder: Path) -> None:
    left = slow(rate(spark, 100, 4), 4).withWatermark("timestamp", "5 seconds")
    right = rate(spark, 300, 4).withWatermark("timestamp", "5 seconds").selectExpr("value as b", "timestamp as bt")
    within = "value = b and bt between timestamp - interval 5 seconds and timestamp + interval 5 seconds"
    write(left.join(right, f.expr(within)), folder, "3 seconds")


def wait(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for each in batches:
        time.sleep(0.003 * len(each))
        yield each


SMALL_FILES = {"spark.sql.files.maxPartitionBytes": "4096", "spark.sql.files.openCostInBytes": "4096"}
# Jobs that run on one core and on two.
FLEETS: dict[str, Job] = {
    "windows": Job(lambda s, d: write(keyed(slow(rate(s, 150, 4), 3), 50), d, mode="update"), seconds=90.0),
    "bursts": Job(
        lambda s, d: write(slow(files(s, d), 2).groupBy(f.expr("a % 20")).agg(f.max("w")), d, None, "update"),
        seconds=90.0, settings=SMALL_FILES, feed=4.0, burst=5.0,
    ),
    "join": Job(slowly_joined, seconds=90.0),
    "Python": Job(
        lambda s, d: write(rate(s, 150, 4).mapInPandas(wait, "timestamp timestamp, value long"), d, "1 second"),
        seconds=90.0,
    ),
    "work by key": Job(
        lambda s, d: write(slow(keyed(slow(rate(s, 100, 4), 3), 40), 12), d, "4 seconds", "update"),
        seconds=90.0, settings={"spark.sql.shuffle.partitions": "8"},
    ),
}  # fmt: skip
