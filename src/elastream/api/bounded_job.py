"""Queries of a user's job that runs bounded: what they read, for the controller that restarts the job.

A job starts its queries with `trigger(availableNow=True)` and ends with them. So does Spark for the flows of a pipeline.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, cast
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from elastream.api.freshness import report_caught_up
from elastream.errors import InputError
from elastream.freshness.wakes import RunReporter, SourceSpec
from elastream.spark.jvm.driver_side import Java, StartedQueries
from elastream.spark.jvm.session import BOUNDED_SETTINGS
from elastream.spark.telemetry.state_files import local_path

# Formats of Spark's file source.
FILES = frozenset({"text", "csv", "json", "parquet", "orc", "xml", "avro", "binaryfile"})
SCHEME = re.compile(r"[a-zA-Z][\w+.-]*:")
FILE_SINK = re.compile(r"FileSink\[(.*)\]")
# Name of a checkpoint that Spark deletes with its query.
TEMPORARY = "temporary-"


@dataclass
class JobQueries:
    """The queries that a job starts after `follow`, with their sources."""

    reporter: RunReporter
    _queries: list[tuple[StreamingQuery, list[SourceSpec]]] = field(default_factory=list)
    _of_pipeline: StartedQueries | None = None

    def follow_pipeline(self, session: SparkSession) -> None:
        """Remember every query of the session's application."""
        for name, value in BOUNDED_SETTINGS.items():
            session._jsc.sc().conf().set(name, value)  # for the sessions of its flows
        self._of_pipeline = StartedQueries(session)

    def follow(self) -> None:
        """Check and remember every query that this process starts from now on.

        Starting a query raises InputError if it does not end by itself, if the next run could not continue it, or if its
        sources cannot be watched.
        """
        bounded: WeakSet[DataStreamWriter] = WeakSet()
        trigger = DataStreamWriter.trigger

        @wraps(trigger)
        def triggered(writer: DataStreamWriter, *arguments: Any, **options: Any) -> DataStreamWriter:
            bounded.discard(writer)
            if options.get("availableNow"):
                bounded.add(writer)
            return trigger(writer, *arguments, **options)

        DataStreamWriter.trigger = triggered  # type: ignore[method-assign,assignment]
        for name in ("start", "toTable"):
            self._wrap(name, bounded)

    def _wrap(self, name: str, bounded: WeakSet[DataStreamWriter]) -> None:
        method = getattr(DataStreamWriter, name)

        @wraps(method)
        def start(writer: DataStreamWriter, *arguments: Any, **options: Any) -> StreamingQuery:
            if writer not in bounded:
                raise InputError("freshness: a query of the job has no trigger(availableNow=True), so its run never ends")
            for name, value in BOUNDED_SETTINGS.items():
                writer._spark.conf.set(name, value)
            query = cast(StreamingQuery, method(writer, *arguments, **options))
            self._check(query)
            return query

        setattr(DataStreamWriter, name, start)

    def _check(self, query: StreamingQuery) -> None:
        try:
            self._add(query, query._jsq.streamingQuery())
        except InputError:
            query.stop()
            raise
        if len(self._queries) == 1:
            self.reporter.started()

    def _add(self, query: StreamingQuery, execution: Java) -> None:
        address = str(execution.resolvedCheckpointRoot())
        if (checkpoint := local_path(address)) is None:
            raise InputError(f"freshness: the checkpoint {address} is not on this machine")
        if checkpoint.rpartition("/")[2].startswith(TEMPORARY):
            raise InputError("freshness: a query has no checkpointLocation, from which the next run would continue")
        specs = [spec_of(source, checkpoint, number) for number, source in enumerate(sources_of(execution))]
        self._queries.append((query, specs))

    def _add_pipeline(self, executions: Sequence[Java]) -> None:
        """Add the queries of flows, without sources that another flow writes."""
        written = {local_path(match[1]) for each in executions if (match := FILE_SINK.fullmatch(str(each.sink())))}
        for execution in executions:
            self._add(StreamingQuery(execution), execution)
            query, specs = self._queries.pop()
            self._queries.append((query, [spec for spec in specs if spec.place not in written]))

    def report(self) -> None:
        """Wait for the queries, and report what they read.

        Raises:
            InputError: The job started none.
            StreamingQueryException: One failed.
        """
        if self._of_pipeline:
            self._add_pipeline(self._of_pipeline.executions())
        if not self._queries:
            raise InputError("freshness: the job started no streaming query")
        if self._of_pipeline:  # it has ended, and tried failed flows again
            self.reporter.started(min(started_at(query) for query, _ in self._queries))
        else:
            for query, _ in self._queries:
                query.awaitTermination()
        report_caught_up(self.reporter, self._queries)


def started_at(query: StreamingQuery) -> float:
    """Return when a query began its first batch, or now if it had none (epoch seconds)."""
    recent = query.recentProgress
    return datetime.fromisoformat(recent[0]["timestamp"]).timestamp() if recent else time.time()


def sources_of(execution: Java) -> list[Java]:
    """Return the streaming relations of a query, each once, in the order of their numbers in its checkpoint."""
    relations: list[Java] = []
    for leaf in _listed(execution.analyzedPlan().collectLeaves()):
        if str(leaf.getClass().getSimpleName()).startswith("StreamingRelation") and leaf not in relations:
            relations.append(leaf)
    return relations


def _listed(sequence: Java) -> Iterator[Java]:
    for number in range(sequence.size()):
        yield sequence.apply(number)


def spec_of(relation: Java, checkpoint: str, number: int) -> SourceSpec:
    if str(relation.getClass().getSimpleName()) == "StreamingRelationV2":
        name, options = str(relation.sourceName()), relation.extraOptions()
        topics, servers = options.get("subscribe"), options.get("kafka.bootstrap.servers")
        if name == "kafka" and topics and servers and not options.get("kafka.security.protocol"):
            return SourceSpec("kafka", str(topics), checkpoint, number, servers=str(servers))
    else:
        source = relation.dataSource()
        name, options = str(source.className()), source.options()
        path = options.get("path")
        given = str(path.get()) if path.isDefined() else ""
        place = local_path(given if SCHEME.match(given) else os.path.abspath(given)) if given else None
        if name.lower() in FILES and place is not None:
            pattern = options.get("pathGlobFilter")
            names = str(pattern.get()) if pattern.isDefined() else ""
            return SourceSpec("files", place, checkpoint, number, names=names)
    raise InputError(
        f"freshness: source {number} of a query ({name}) cannot be watched between runs: only files of this machine and "
        "subscribed Kafka topics without a login can"
    )
