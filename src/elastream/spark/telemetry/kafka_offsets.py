"""Commits of Kafka offsets to consumer groups, for lag monitors: a query always continues from its checkpoint.

They follow the newest ended batch by some seconds; if several queries read a topic, the least offset counts.
"""

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.dataflow.endpoints import KafkaTopic
from elastream.errors import in_one_line
from elastream.spark.dataflow.kafka import kafka_admin
from elastream.spark.jvm.driver_side import java_queries, jvm_of, why_in_java
from elastream.spark.jvm.session import session_stopped

log = logging.getLogger(__name__)

# Seconds between two commits (Kafka's own `auto.commit.interval.ms`), and timeout of a request to a broker.
EVERY, PATIENCE = 5.0, 10.0
SOON = {f"{what}.timeout.ms": f"{1e3 * PATIENCE:.0f}" for what in ("request", "default.api")}


def offsets_read(progresses: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    """Return by topic and partition the offset up to which all queries have read. progresses: the newest of each query."""
    read: dict[str, dict[int, int]] = {}
    for progress in progresses:
        for source in progress.get("sources") or ():
            end = source.get("endOffset")
            if not str(source.get("description")).startswith("KafkaV2") or not isinstance(end, Mapping):
                continue
            for topic, partitions in end.items():
                mine = read.setdefault(topic, {})
                for partition, offset in ((int(each), int(at)) for each, at in partitions.items()):
                    mine[partition] = min(offset, mine.get(partition, offset))
    return read


class OffsetCommits:
    """Commits new offsets to the consumer groups of `topics`."""

    def __init__(self, spark: SparkSession, topics: Sequence[KafkaTopic]) -> None:
        self._spark, self._topics, self._unread = spark, topics, False
        self._committed: dict[tuple[str, str, str], dict[int, int]] = {}
        self._failing: set[str] = set()

    def commit(self) -> None:
        """Commit new offsets. Failures are logged and tried again next time."""
        try:
            newest = [query.lastProgress() for query in java_queries(self._spark).values()]
            read = offsets_read([json.loads(str(each.json())) for each in newest if each is not None])
        except Exception as error:
            if not self._unread and not session_stopped(self._spark):
                log.warning("how far topics have been read is unknown: %s", in_one_line(error), exc_info=True)
                self._unread = True
            return
        for topic in self._topics:
            offsets, key = read.get(topic.topic, {}), (topic.servers, topic.topic, topic.group)
            if not offsets or self._committed.get(key) == offsets:
                continue
            try:
                self._write(topic, offsets)
            except Py4JError as error:
                if topic.topic not in self._failing:
                    why = why_in_java(error)
                    log.warning("offsets of %r are not committed to the group %r: %s", topic.topic, topic.group, why)
                self._failing.add(topic.topic)
                continue
            self._failing.discard(topic.topic)
            self._committed[key] = offsets

    def _write(self, topic: KafkaTopic, offsets: Mapping[int, int]) -> None:
        jvm = jvm_of(self._spark)
        commits = jvm.java.util.HashMap()
        for partition, offset in offsets.items():
            where = jvm.org.apache.kafka.common.TopicPartition(topic.topic, partition)
            commits.put(where, jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset))
        with kafka_admin(self._spark, topic, SOON) as admin:
            admin.alterConsumerGroupOffsets(topic.group, commits).all().get()


@contextmanager
def committing(spark: SparkSession, topics: Iterable[KafkaTopic]) -> Iterator[None]:
    """Commit the offsets of topics with a group periodically inside the context, and once at its end."""
    grouped = [topic for topic in topics if topic.group]
    if not grouped:
        yield
        return
    commits, over = OffsetCommits(spark, grouped), threading.Event()

    def work() -> None:
        while not over.wait(EVERY):
            commits.commit()

    thread = threading.Thread(target=work, name="kafka-offsets", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * PATIENCE)
        commits.commit()
