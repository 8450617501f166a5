"""Segments and the queries that run them, and the widths that can change while they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from elastream.core.observation import Composition
from elastream.dataflow.key_table import selections_of
from elastream.dataflow.operators import Edge
from elastream.dataflow.stages import Layout, Segment, Stage
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.paths import AnyPath
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionCodec,
    CompositionLog,
    composition_in_offsets,
    latest_batch,
    newest_composition,
    offsets_of,
    read_request,
    table_version,
)
from elastream.spark.worker.meter import Meter

# Most tasks that read a durable edge before a shuffle, and records that justify one: a task costs about 16 ms.
SHUFFLERS, SHUFFLED_EACH = 4, 1000


@dataclass(frozen=True)
class RunningSegment:
    segment: Segment
    query: StreamingQuery
    checkpoint: AnyPath  # Spark's folder
    inputs: AnyPath  # folder that tasks read
    composition_file: Path  # file with the composition requested of all segments; our own sources and edges read it
    own_source: bool  # True if the segment has such a source or edge: its offsets carry the composition. Else `log` does.
    began: Composition  # composition under which all segments started
    keyed: tuple[str, ...]  # its keyed operators, by name
    meter: Meter  # counts of all segments
    codec: CompositionCodec  # encodes compositions
    sources: Mapping[str, Path]  # control folders of our own sources, by name
    edges: Mapping[Edge, AnyPath]  # folders of the durable edges of files that it reads
    reads: tuple[str | Edge, ...]  # sources, by name, and durable edges, in the order in which the query reads them
    places: Mapping[str, str]  # local files that sources without a load read
    interval: float  # least time between two batches [s]
    bounded: bool = False  # True if its query ends once it has read what was there at its start

    @property
    def log(self) -> CompositionLog:
        """Composition by batch, if no source of ours carries it."""
        return log_of(self.inputs)

    def ran(self, batch: int) -> BatchComposition | None:
        """Return the composition of a batch; None if Spark has deleted its offsets."""
        try:
            return ran_under(self.checkpoint, self.inputs, self.own_source, batch)
        except FileNotFoundError:
            return None


def committed_offsets(checkpoint: AnyPath) -> Sequence[Mapping[str, Any]]:
    """Return the committed offsets of a query, one per source in reading order; none before the first commit."""
    committed = latest_batch(checkpoint, "commits")
    return offsets_of(checkpoint, committed) if committed >= 0 else ()


def composition_left(layout: Layout, directory: RunDirectory, new: Composition, codec: CompositionCodec) -> Composition:
    """Return the last composition requested by an earlier driver, or `new` if there was none. Its version increases."""
    requested = read_request(directory.composition_request)
    if not requested.partitions:
        return new
    widths = {name: width for name, width in requested.partitions.items() if name in layout.graph.by_name}
    for segment in layout.segments:
        for edge in segment.inputs:
            if not (stage := stage_behind(segment, edge)).keyed and edge_name(edge) in requested.partitions:
                widths[stage.operators[0]] = requested.partitions[edge_name(edge)]
    left = codec.decode(requested.code, requested.version + 1, {**new.parallelism, **widths})
    if not left.tables:
        return left
    newest = KeyTableLog(directory, selections_of(layout.graph)).newest()
    versions = {operator: table_version(digit, newest[operator]) for operator, digit in left.tables.items()}
    return replace(left, tables=versions)


def newest_version(layout: Layout, directory: RunDirectory) -> int:
    """Return the newest composition version that was requested or planned.

    If a run resumes from a copy of its driver's files, batches may have been planned under a later one than the copy holds.
    """
    versions = [read_request(directory.composition_request).version]
    for segment in layout.segments:
        checkpoint, inputs = directory.checkpoint(segment.name), directory.inputs(segment.name)
        if (planned := latest_batch(checkpoint)) >= 0:
            versions.append((newest_composition(offsets_of(checkpoint, planned)) or BatchComposition()).version)
        versions.append(log_of(inputs).newest().version)
    return max(versions)


def widths_of(layout: Layout, composition: Composition) -> Mapping[str, int]:
    widths = {source.name: composition.parallelism.get(source.name, 1) for source in layout.graph.sources}
    for segment in layout.segments:
        widths |= {edge_name(edge): edge_width(segment, edge, composition) for edge in segment.inputs}
    return widths


def scalable_operators(layout: Layout) -> frozenset[str]:
    """Return operators whose parallelism can change at run time.

    These are sources with a load, `led_by_edges`, and operators that wait, except those of single-task stages.
    """
    graph = layout.graph
    names = [*graph.loads, *led_by_edges(layout), *(o.name for o in graph.operators if o.waits)]
    return frozenset(name for name in names if layout.stage_of[name].name not in layout.single)


def led_by_edges(layout: Layout) -> tuple[str, ...]:
    """Return operators leading a stage that reads durable edges of files and no source; their width sets that stage's."""
    inputs = {edge.target: edge.durable for edge in layout.graph.edges if edge.durable is not None}
    heads = {operator.name for operator in layout.graph.sources}
    leads = [stage.operators[0] for stage in layout.stages if not stage.keyed and not heads & set(stage.operators)]
    return tuple(name for name in leads if inputs.get(name) == "parquet")


def edge_width(segment: Segment, edge: Edge, composition: Composition) -> int:
    """Return the most tasks that read a batch of `edge`: the parallelism of the stage behind it."""
    stage = stage_behind(segment, edge)
    return composition.parallelism.get(stage.operators[0], SHUFFLERS if stage.keyed else 1)


def stage_behind(segment: Segment, edge: Edge) -> Stage:
    (stage,) = (stage for stage in segment.stages if edge.target in stage.operators)
    return stage


def log_of(inputs: AnyPath) -> CompositionLog:
    return CompositionLog(inputs / "composition")


def ran_under(checkpoint: AnyPath, inputs: AnyPath, own: bool, batch: int) -> BatchComposition:
    """Return the composition of a batch, from the segment's folders. own: True if it has a source or an edge of ours."""
    return (composition_in_offsets(checkpoint, batch) if own else log_of(inputs).at(batch)) or BatchComposition()
