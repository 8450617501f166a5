"""`run(flow, freshness=...)`: bounded runs of a dataflow, each in a process of its own, and their controller."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from elastream.dataflow.endpoints import Collected, Files, KafkaTopic, SourceSpec, TextFiles
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError, about
from elastream.freshness import wakes
from elastream.freshness.planner import HostBounds
from elastream.freshness.process import keep_fresh
from elastream.freshness.watching import bytes_read
from elastream.policies.static import Static
from elastream.recording.directory import RunDirectory
from elastream.recording.paths import is_address
from elastream.settings import CommandSettings
from elastream.spark.jvm.borrowed import open_in_process
from elastream.spark.jvm.session import BOUNDED_SETTINGS
from elastream.spark.queries.compiled import CompiledQueries
from elastream.systems import check_system

KAFKA_LOGIN = "the topic needs a login, which only Spark has"


def check_sleeps(graph: Graph) -> None:
    """Raise InputError if the dataflow cannot sleep between bounded runs."""
    layout = lay_out(graph)
    for source in graph.sources:
        if (why := unwatched_reason(source.reads)) is not None:
            with about("operators", source.name, "source"):
                raise InputError(f"freshness: source {source.name!r} cannot be watched between runs: {why}")
    for segment in layout.segments:
        outside = [name for name in segment.operators if graph.operator(name).reads is not None]
        if outside and segment.inputs:
            raise InputError(
                f"freshness: one query reads the source {outside[0]!r} and a durable edge, and never ends by itself"
            )
    for sink in graph.sinks:
        if isinstance(sink.writes, Collected):
            raise InputError(f"freshness: sink {sink.name!r} collects rows in memory, which each run loses")


def check_resident(settings: CommandSettings) -> None:
    """Raise InputError if a setting beside a freshness needs a continuous run."""
    check_system("freshness")
    resident: dict[str, object] = {"page": settings.page, "traces": settings.traces, "record": settings.record}
    resident |= {"metrics": settings.metrics, "metrics_port": settings.metrics_port}
    if names := [name for name, value in resident.items() if value]:
        raise InputError(
            f"freshness: {names[0]} needs a continuous run; `elastream serve RUN` shows the run's folder", ("freshness",)
        )
    if is_address(settings.runs):
        raise InputError("freshness: the run's folder must be on this machine", ("freshness",))
    if open_in_process() is not None:
        raise InputError(
            "freshness: each run opens a session of its own; stop the open one before run(...)", ("freshness",)
        )


def unwatched_reason(reads: SourceSpec | None) -> str | None:
    """Return why a source's backlog cannot be read without Spark, or None."""
    match reads:
        case KafkaTopic(options=options):
            return KAFKA_LOGIN if any(key.startswith(("kafka.security.", "kafka.sasl.")) for key in options) else None
        case TextFiles(path, None) | Files(path, load=None):
            return (
                f"{path} is on another file system, and only files of this machine can be listed"
                if is_address(path)
                else None
            )
        case TextFiles() | Files():
            return "a declared load arrives only while a run generates it"
    return "only files and Kafka topics can"


def watch_spec(operator: Operator, checkpoint: str, number: int) -> wakes.SourceSpec:
    """Return how a controller watches a source that has passed `check_sleeps`."""
    reads = operator.reads
    if isinstance(reads, KafkaTopic):
        return wakes.SourceSpec("kafka", reads.topic, checkpoint, number, servers=reads.servers)
    assert isinstance(reads, TextFiles | Files)
    place = Path(reads.path).expanduser().absolute()
    if place.is_file():
        return wakes.SourceSpec("files", str(place.parent), checkpoint, number, names=place.name)
    return wakes.SourceSpec("files", str(place), checkpoint, number)


def watched(queries: CompiledQueries) -> Iterator[tuple[StreamingQuery, list[wakes.SourceSpec]]]:
    graph = queries.layout.graph
    for each in queries.running:
        names = [(number, name) for number, name in enumerate(each.reads) if isinstance(name, str)]
        yield each.query, [watch_spec(graph.operator(name), str(each.checkpoint), number) for number, name in names]


def report_caught_up(
    reporter: wakes.RunReporter, queries: Iterable[tuple[StreamingQuery, Sequence[wakes.SourceSpec]]]
) -> None:
    """Write what the queries of a bounded run have read, and how to watch their sources."""
    rows: dict[str, float] = {}
    amounts: dict[str, float] = {}
    every: list[wakes.SourceSpec] = []
    committed = 0.0
    for query, specs in queries:
        recent = query.recentProgress
        for spec in specs:
            if spec.kind == "files" and recent:
                amounts[spec.name] = bytes_read(spec, entry_of(recent[0]["sources"][spec.number]["startOffset"]))
            rows[spec.name] = sum(each["sources"][spec.number]["numInputRows"] for each in recent)
        committed = max([committed, *(ended_at(each) for each in recent if each["numInputRows"] > 0)])
        every += specs
    reporter.caught_up(committed or time.time(), rows, amounts, every)


def entry_of(offset: Any) -> int:
    """Return the entry of a file source's log that an offset names; -1 before the first."""
    fields = json.loads(offset) if isinstance(offset, str) else offset
    return int(fields["logOffset"]) if isinstance(fields, Mapping) and "logOffset" in fields else -1


def ended_at(progress: Any) -> float:
    start = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return start + float(progress["durationMs"].get("triggerExecution", 0)) / 1e3


def keep_dataflow_fresh(
    directory: RunDirectory,
    settings: CommandSettings,
    carry_out: Callable[[CommandSettings, wakes.WakeOrder], object],
) -> None:
    """Wake and end bounded runs of a dataflow in `directory`.

    Args:
        carry_out: Carries out one of them.
    """
    assert settings.freshness is not None
    assert settings.cloud is not None
    cloud, freshness = settings.cloud, float(settings.freshness)
    # The freshness is the target latency of each run, so that reports have the share of records that met it.
    own = replace(
        settings,
        freshness=None,
        target_latency=freshness,
        resume=directory.root,
        fresh=False,
        limit=None,
        show=False,
        settings={**BOUNDED_SETTINGS, **(settings.settings or {})},
    )
    bounds = HostBounds(cloud.types[0], max(1, cloud.min_hosts), max(1, cloud.max_hosts))
    limit = None if settings.limit is None else float(settings.limit)

    def work(order: wakes.WakeOrder) -> None:
        carry_out(replace(own, policy=Static(hosts=order.hosts)), order)

    keep_fresh(directory, freshness, bounds, work, limit)
