"""A segment and the query that runs it, and what of its width can be set while it runs."""

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
from elastream.recording.places import Place
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

SHUFFLERS, SHUFFLED_EACH = 4, 1000
"""Tasks that read a durable edge whose records only pass to a shuffle, at most, and records that are worth one of them: a
task costs about 16 ms."""


@dataclass(frozen=True)
class RunningSegment:
    """A segment and the query that runs it.

    checkpoint, inputs: its folders, of what Spark keeps and of what tasks read. wanted: file of what is wanted of all
    segments, which sources and edges of ours read. own_source: whether it reads any, so that its offsets carry the
    composition, else `log` does. began: the composition that all segments started under. keyed: its keyed operators, by
    name. meter: counts of all segments together. sources: control folders of its sources of ours, by name. edges: folders
    of the durable edges of files that it reads. reads: sources, by name, and durable edges, in the order in which the query
    reads them. places: what sources without a load read, if local files. interval: seconds from one batch to the next, at
    least.
    """

    segment: Segment
    query: StreamingQuery
    checkpoint: Place
    inputs: Place
    wanted: Path
    own_source: bool
    began: Composition
    keyed: tuple[str, ...]
    meter: Meter
    codec: CompositionCodec
    sources: Mapping[str, Path]
    edges: Mapping[Edge, Place]
    reads: tuple[str | Edge, ...]
    places: Mapping[str, str]
    interval: float

    @property
    def log(self) -> CompositionLog:
        """The composition by batch, where no source of ours carries it."""
        return log_of(self.inputs)

    def ran(self, batch: int) -> BatchComposition | None:
        """What a batch ran under; None where Spark has deleted its offsets."""
        try:
            return ran_under(self.checkpoint, self.inputs, self.own_source, batch)
        except FileNotFoundError:
            return None


def committed_offsets(checkpoint: Place) -> Sequence[Mapping[str, Any]]:
    """The offsets up to which a query has committed, one a source in the order in which it reads them; none before that."""
    committed = latest_batch(checkpoint, "commits")
    return offsets_of(checkpoint, committed) if committed >= 0 else ()


def composition_left(layout: Layout, directory: RunDirectory, new: Composition) -> Composition:
    """The composition that an earlier driver wanted last; `new` where it had none yet. Its version goes on from there."""
    wanted = read_request(directory.wanted)
    if not wanted.partitions:
        return new
    widths = {name: width for name, width in wanted.partitions.items() if name in layout.graph.by_name}
    for segment in layout.segments:
        for edge in segment.inputs:
            if not (stage := stage_behind(segment, edge)).keyed and edge_name(edge) in wanted.partitions:
                widths[stage.operators[0]] = wanted.partitions[edge_name(edge)]
    left = CompositionCodec(layout.graph).decode(wanted.code, wanted.version + 1, {**new.parallelism, **widths})
    if not left.tables:
        return left
    newest = KeyTableLog(directory, selections_of(layout.graph)).newest()
    versions = {operator: table_version(digit, newest[operator]) for operator, digit in left.tables.items()}
    return replace(left, tables=versions)


def newest_version(layout: Layout, directory: RunDirectory) -> int:
    """The newest version of the composition that was wanted, or that a batch was planned under.

    Where a run goes on from a copy of its driver's files, batches may have been planned under a later one than that says.
    """
    found = [read_request(directory.wanted).version]
    for segment in layout.segments:
        checkpoint, inputs = directory.checkpoint(segment.name), directory.inputs(segment.name)
        if (planned := latest_batch(checkpoint)) >= 0:
            found.append((newest_composition(offsets_of(checkpoint, planned)) or BatchComposition()).version)
        found.append(log_of(inputs).newest().version)
    return max(found)


def widths_of(layout: Layout, composition: Composition) -> Mapping[str, int]:
    """Tasks of a batch, at most, by the name of a source or a durable edge."""
    widths = {source.name: composition.parallelism.get(source.name, 1) for source in layout.graph.sources}
    for segment in layout.segments:
        widths |= {edge_name(edge): edge_width(segment, edge, composition) for edge in segment.inputs}
    return widths


def scalable_operators(layout: Layout) -> frozenset[str]:
    """Operators whose parallelism can change while the queries run: sources with a load, what `led_by_edges` names, and
    operators that wait; but none of a stage that runs in one task."""
    graph = layout.graph
    found = [*graph.loads, *led_by_edges(layout), *(o.name for o in graph.operators if o.waits)]
    return frozenset(name for name in found if layout.stage_of[name].name not in layout.single)


def led_by_edges(layout: Layout) -> tuple[str, ...]:
    """Operators that lead a stage which reads durable edges of files and no source: its width is theirs, live."""
    inputs = {edge.target: edge.durable for edge in layout.graph.edges if edge.durable is not None}
    heads = {operator.name for operator in layout.graph.sources}
    return tuple(
        stage.operators[0]
        for stage in layout.stages
        if not stage.keyed and not heads & set(stage.operators) and inputs.get(stage.operators[0]) == "parquet"
    )


def edge_width(segment: Segment, edge: Edge, composition: Composition) -> int:
    """Tasks that read a batch of `edge`, at most: the parallelism of the stage that it leads to."""
    stage = stage_behind(segment, edge)
    return composition.parallelism.get(stage.operators[0], SHUFFLERS if stage.keyed else 1)


def stage_behind(segment: Segment, edge: Edge) -> Stage:
    (stage,) = (stage for stage in segment.stages if edge.target in stage.operators)
    return stage


def log_of(inputs: Place) -> CompositionLog:
    """The composition by batch of a segment whose tasks read that folder, where no source of ours carries it."""
    return CompositionLog(inputs / "composition")


def ran_under(checkpoint: Place, inputs: Place, own: bool, batch: int) -> BatchComposition:
    """What a batch of a segment runs under, by its folders. own: whether it has a source or an edge of ours."""
    return (composition_in_offsets(checkpoint, batch) if own else log_of(inputs).at(batch)) or BatchComposition()
