"""Events of the benchmark in Kafka: topics of a run, a producer process, and streams that read them.

Each kind of event has a topic, made for the run and deleted after it. Events are JSON; the closing row follows the last.
"""

import base64
import json
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from elastream.bench.workload import BEGAN, EVENTS, Numbered, closing_row
from elastream.dataflow.endpoints import KafkaTopic
from elastream.errors import EnvironmentProblem, first_line
from elastream.spark.dataflow.kafka import source_options
from elastream.spark.dataflow.sources import HOLD

TOPIC = "topic.json"
PACE_S = 0.1  # between two looks at what is due
END_S, BOOTSTRAP_MS = 10.0, 10_000
CLOSING_PARTITION = 0


@dataclass(frozen=True)
class Topic:
    """Topic of a kind of event, and its name as Spark's offsets have it."""

    servers: str
    name: str
    partitions: int

    @classmethod
    def of(cls, control: Path) -> "Topic":
        return cls(**json.loads((control / TOPIC).read_text()))


def read_topic(spark: SparkSession, events: Numbered[Any], kind: str, servers: str, control: Path, tasks: int) -> DataFrame:
    """Create a topic for one kind of event, and return its stream.

    Raises:
        EnvironmentProblem: No broker answers at `servers`, or it makes no topic.
    """
    from kafka.admin import NewTopic

    topic = Topic(servers, f"elastream-bench-{kind}-{uuid.uuid4().hex[:12]}", tasks)
    with _administering(servers) as admin:
        admin.create_topics([NewTopic(topic.name, topic.partitions, 1)])
    (control / TOPIC).write_text(json.dumps(vars(topic)))
    lines = spark.readStream.format("kafka").options(**source_options(KafkaTopic(topic.name, servers))).load()
    columns = from_arrow_schema(events.schema(kind))
    plain = StructType([StructField(each.name, _in_json(each.dataType)) for each in columns])
    row = lines.select(F.from_json(F.col("value").cast("string"), plain).alias("row"))
    return row.select(*(_restored(each).alias(each.name) for each in columns))


def _in_json(kind: Any) -> Any:
    return LongType() if isinstance(kind, TimestampType) else StringType() if isinstance(kind, BinaryType) else kind


def _restored(column: StructField) -> Column:
    value = F.col(f"row.{column.name}")
    if isinstance(column.dataType, TimestampType):
        return F.timestamp_micros(value)
    return F.unbase64(value) if isinstance(column.dataType, BinaryType) else value


def sending_rate(servers: str, events: Iterable[pa.RecordBatch]) -> float:
    """Return how many events a core makes and sends a second. Raises EnvironmentProblem."""
    from kafka.admin import NewTopic

    topic, count = f"elastream-bench-rate-{uuid.uuid4().hex[:12]}", 0
    with _administering(servers) as admin, closing(_producer(servers)) as producer:
        admin.create_topics([NewTopic(topic, 1, 1)])
        try:
            since = time.process_time()
            for count, message in enumerate(chain.from_iterable(map(messages, events)), start=1):  # noqa: B007
                producer.send(topic, message)
            producer.flush()
            return count / max(time.process_time() - since, 1e-9)
        finally:
            admin.delete_topics([topic])


def _producer(servers: str) -> Any:
    from kafka import KafkaProducer

    return KafkaProducer(bootstrap_servers=servers, linger_ms=20, batch_size=1 << 17, acks=1)


@contextmanager
def _administering(servers: str) -> Iterator[Any]:
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        admin = KafkaAdminClient(bootstrap_servers=servers, bootstrap_timeout_ms=BOOTSTRAP_MS)
        try:
            yield admin
        finally:
            admin.close()
    except KafkaError as error:
        raise EnvironmentProblem(f"no topic can be made at the Kafka broker {servers}: {first_line(error)}") from None


@contextmanager
def producing(control: Path) -> Iterator[None]:
    """Produce the events of all topics below `control` once no kind is held; delete the topics at the end."""
    folders = [each.parent for each in control.glob(f"*/{TOPIC}")]
    if not folders:
        yield
        return
    with (control / "producer.log").open("wb") as log:
        command = [sys.executable, "-m", "elastream.bench.kafka", *map(str, folders)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()
        topics = [Topic.of(folder) for folder in folders]
        # A broker that is gone has no topics of ours.
        with suppress(EnvironmentProblem), _administering(topics[0].servers) as admin:
            admin.delete_topics([topic.name for topic in topics])


def messages(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Yield events as JSON; times are microseconds since 1970, bytes are base64."""
    columns = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            columns[name] = column.cast(pa.int64()).to_pylist()
        elif pa.types.is_binary(column.type):
            columns[name] = [base64.b64encode(each).decode() for each in column.to_pylist()]
        else:
            columns[name] = column.to_pylist()
    for values in zip(*columns.values(), strict=True):
        yield json.dumps(dict(zip(columns, values, strict=True)), separators=(",", ":")).encode()


def reached_in(control: Path, offsets: Mapping[str, Mapping[str, int]]) -> tuple[int, float] | None:
    """Return the events that a stream has had, from Spark's offsets of its topic, and when the load began (0: not yet).

    Partitions are filled in turn, so that an event is counted with all before it.
    """
    for folder in (each.parent for each in control.glob(f"*/{TOPIC}")):
        if (name := Topic.of(folder).name) in offsets:
            events: Numbered[str] = pickle.loads((folder / EVENTS).read_bytes())
            began = folder / BEGAN
            read = sum(map(int, offsets[name].values()))
            return events.reached(folder.name, read), float(began.read_text()) if began.exists() else 0.0
    return None


def produce(folders: Sequence[Path]) -> None:
    """Produce what falls due, until all events and the closing rows are sent."""
    kinds = [folder.name for folder in folders]
    topics = [Topic.of(folder) for folder in folders]
    events: Numbered[str] = pickle.loads((folders[0] / EVENTS).read_bytes())
    load = events.load
    total = load.count(load.seconds)
    producer = _producer(topics[0].servers)
    while any((folder / HOLD).exists() for folder in folders):
        time.sleep(PACE_S)
    began, made = time.time(), 0
    for folder in folders:
        (folder / BEGAN).write_text(str(began))
    sent = dict.fromkeys(kinds, 0)
    while made < total:
        due = min(total, load.count(time.time() - began))
        for kind, topic in zip(kinds, topics, strict=True):
            for rows in events.batches(kind, made, due):
                for message in messages(rows):
                    producer.send(topic.name, message, partition=sent[kind] % topic.partitions)
                    sent[kind] += 1
        made = due
        time.sleep(PACE_S)
    producer.flush()
    for kind, topic in zip(kinds, topics, strict=True):
        (message,) = messages(closing_row(events.schema(kind)))
        producer.send(topic.name, message, partition=CLOSING_PARTITION)
    producer.flush()


if __name__ == "__main__":
    produce([Path(folder) for folder in sys.argv[1:]])
