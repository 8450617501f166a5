"""Checks of a run's folder before it is resumed, and before any host starts.

A reader of a durable edge whose files are lost would take new records for those it has already read.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from elastream.core.wording import counted
from elastream.dataflow.stages import Layout
from elastream.errors import InputError, in_one_line
from elastream.recording.directory import RunDirectory
from elastream.recording.paths import AnyPath, names_in, remove_tree
from elastream.spark.dataflow.change_log import BATCH
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.dataflow.sinks import skip_batch
from elastream.spark.queries.segments import committed_offsets
from elastream.spark.worker.composition import latest_batch, read_request

# File in a checkpoint that names its query.
METADATA = "metadata"
# Setting in the offsets of a batch: its number of state partitions.
WIDTH = "spark.sql.shuffle.partitions"
log = logging.getLogger(__name__)


class QueryProgress(NamedTuple):
    committed: int = -1  # its last committed batch; -1 before the first
    newest: int = -1  # its last planned batch; -1 before the first
    read_of_edge: Mapping[str, int] = MappingProxyType({})  # committed records of each durable edge, by name


NOWHERE = QueryProgress()


def check_not_damaged(layout: Layout, directory: RunDirectory) -> None:
    """Raise InputError, with the file, if the run of `layout` cannot continue from its folder.

    A query without a checkpoint begins anew, with a warning if others have begun. It may not if a durable edge has begun:
    it would take rewritten records for earlier ones.
    """
    read_request(directory.composition_request)
    complete_edges(layout, directory)
    progress = {each.name: _progress_of(directory, each.name) for each in layout.segments}
    for query, at in progress.items():
        if at == NOWHERE and any(each.committed >= 0 for each in progress.values()):
            log.warning("there is no checkpoint of %r: it begins anew", query)
    for segment in layout.segments:
        for edge in segment.inputs:
            if edge.durable == "parquet":
                writer = next(each.name for each in layout.segments if edge.source in each.operators)
                folder = directory.edge(edge.source, edge.target)
                read = progress[segment.name].read_of_edge.get(edge_name(edge), 0)
                if wrong := _lost(folder, read, segment.name, writer, progress[writer]):
                    raise _damaged(directory, f"{folder} {wrong}")


def complete_edges(layout: Layout, directory: RunDirectory) -> None:
    """Write the empty batches that repartitions left out of durable edges, and remove those of one that was undone."""
    for segment in layout.segments:
        for edge in segment.inputs:
            if edge.durable == "parquet":
                writer = next(each.name for each in layout.segments if edge.source in each.operators)
                checkpoint, folder = directory.checkpoint(writer), directory.edge(edge.source, edge.target)
                _remove_undone(folder, max(latest_batch(checkpoint), latest_batch(checkpoint, "commits")))
                for batch in _without_records(checkpoint):
                    skip_batch(folder, batch)


def _remove_undone(folder: AnyPath, newest: int) -> None:
    """Remove batches without records that are newer than the writer's `newest`."""
    for name in names_in(folder) if newest >= 0 and folder.is_dir() else ():
        batch = BATCH.match(name)
        if batch and int(batch[1]) > newest and not any(each.endswith(".parquet") for each in names_in(folder / name)):
            remove_tree(folder / name)


def _without_records(checkpoint: AnyPath) -> Sequence[int]:
    """Return the newest batches of which each is a repartition, or what one has skipped."""
    batch, batches = latest_batch(checkpoint, "commits"), list[int]()
    while True:
        try:
            before, now = ((checkpoint / "offsets" / str(each)).read_text().splitlines() for each in (batch - 1, batch))
            widths = [json.loads(lines[1]).get("conf", {}).get(WIDTH) for lines in (before, now)]
        except (OSError, ValueError, IndexError, AttributeError):
            return batches
        if widths[0] == widths[1]:
            return batches
        skipped = () if before[2:] == now[2:] else (batch - 1,)
        batches += [batch, *skipped]
        batch -= 1 + len(skipped)


def _lost(folder: AnyPath, read: int, reader: str, writer: str, wrote: QueryProgress) -> str:
    edge_log = EdgeLog(folder)
    try:
        edge_log.refresh()
        there = edge_log.refresh()  # the first call stops at a gap of removed batches, which the second skips
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        return f"cannot be read ({in_one_line(error)})"
    if read > there:
        return f"has {counted(there, 'record')} of the {read:,} that {reader!r} has read"
    if edge_log.batches <= wrote.committed:
        return f"has no batch={edge_log.batches}, which {writer!r} wrote"
    if edge_log.batches > wrote.newest + 1:
        has = counted(edge_log.batches, "batch", "batches")
        return f"has {has}, and the checkpoint of {writer!r} knows of {wrote.newest + 1}"
    if read < (gone := edge_log.forgotten):
        return f"has no records before number {gone:,} any more, and the checkpoint of {reader!r} is at {read:,}"
    return ""


def _progress_of(directory: RunDirectory, query: str) -> QueryProgress:
    checkpoint = directory.checkpoint(query)
    committed, planned = latest_batch(checkpoint, "commits"), latest_batch(checkpoint)
    if max(committed, planned) < 0:
        return NOWHERE
    if METADATA not in names_in(checkpoint):
        raise _damaged(directory, f"{checkpoint / METADATA} is missing")
    looked = [(checkpoint / "offsets" / str(batch), 3) for batch in {committed, planned} if batch >= 0]
    looked += [(checkpoint / "commits" / str(committed), 1)] if committed >= 0 else []
    for file, lines in [(checkpoint / METADATA, 0), *looked]:
        if (wrong := _damage_of(file, lines)) is not None:
            raise _damaged(directory, f"{file} is {wrong}")
    try:
        read_of_edge = {str(each["edge"]): int(each["n"]) for each in committed_offsets(checkpoint) if "edge" in each}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(directory, f"the offsets of {checkpoint} cannot be read ({in_one_line(error)})") from None
    return QueryProgress(committed, max(committed, planned), read_of_edge)


def _damage_of(file: AnyPath, lines: int) -> str | None:
    """Return what is wrong with a checkpoint file of at least `lines` lines beside a version (0: one value), or None."""
    try:
        content = file.read_text().splitlines()
        if lines and not (len(content) >= lines and content[0].startswith("v")):
            return "cut off"
        for line in content[1:] if lines else ["\n".join(content)]:
            if not lines or line.startswith(("{", "[")):  # offsets of foreign sources may have any form
                json.loads(line)
    except FileNotFoundError:
        return "missing"
    except ValueError:
        return "cut off"
    return None


def _damaged(directory: RunDirectory, what: str) -> InputError:
    return InputError(f"the run in {directory.root} cannot go on: {what}; restore it, or start the run anew")
