"""Refuses to go on with a run whose folder has lost, or torn, what it goes on from: before any host is started.

Spark would fail later, with a traceback; and a reader of a durable edge whose files are gone would take what is written
anew for what it has read already.
"""

import json
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from elastream.core.wording import counted
from elastream.dataflow.stages import Layout
from elastream.errors import InputError, in_one_line
from elastream.recording.directory import RunDirectory
from elastream.recording.places import Place, names_in
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.queries.segments import committed_offsets
from elastream.spark.worker.composition import latest_batch, read_request

METADATA = "metadata"
"""File in a checkpoint: which query it is of."""
log = logging.getLogger(__name__)


class Came(NamedTuple):
    """How far a query came. committed: its last batch; newest: or planned; -1 before the first. taken: records that it has
    committed of each durable edge, by name."""

    committed: int = -1
    newest: int = -1
    taken: Mapping[str, int] = MappingProxyType({})


NOWHERE = Came()


def refuse_damaged(layout: Layout, directory: RunDirectory) -> None:
    """Raise InputError, with the file, where the run of `layout` in `directory` cannot go on from what is there.

    A query without a checkpoint begins anew, with a warning where others have begun; not where a durable edge has, which
    would take what is written and read anew for what was before.
    """
    read_request(directory.wanted)
    came = {each.name: _came(directory, each.name) for each in layout.segments}
    for query, at in came.items():
        if at == NOWHERE and any(each.committed >= 0 for each in came.values()):
            log.warning("there is no checkpoint of %r: it begins anew", query)
    for segment in layout.segments:
        for edge in segment.inputs:
            if edge.durable == "parquet":
                writer = next(each.name for each in layout.segments if edge.source in each.operators)
                folder = directory.edge(edge.source, edge.target)
                read = came[segment.name].taken.get(edge_name(edge), 0)
                if wrong := _lost(folder, read, segment.name, writer, came[writer]):
                    raise _damaged(directory, f"{folder} {wrong}")


def _lost(folder: Place, read: int, reader: str, writer: str, wrote: Came) -> str:
    """What an edge lacks, or has too much, for its reader and its writer; empty where it fits both."""
    edge_log = EdgeLog(folder)
    try:
        edge_log.refresh()
        there = edge_log.refresh()  # the first stops at a gap of what was removed, which the second skips
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


def _came(directory: RunDirectory, query: str) -> Came:
    """How far `query` came; the files of its checkpoint that it goes on from are looked at."""
    checkpoint = directory.checkpoint(query)
    committed, planned = latest_batch(checkpoint, "commits"), latest_batch(checkpoint)
    if max(committed, planned) < 0:
        return NOWHERE
    if METADATA not in names_in(checkpoint):
        raise _damaged(directory, f"{checkpoint / METADATA} is missing")
    looked = [(checkpoint / "offsets" / str(batch), 3) for batch in {committed, planned} if batch >= 0]
    looked += [(checkpoint / "commits" / str(committed), 1)] if committed >= 0 else []
    for file, lines in [(checkpoint / METADATA, 0), *looked]:
        if (wrong := _torn(file, lines)) is not None:
            raise _damaged(directory, f"{file} is {wrong}")
    try:
        taken = {str(each["edge"]): int(each["n"]) for each in committed_offsets(checkpoint) if "edge" in each}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(directory, f"the offsets of {checkpoint} cannot be read ({in_one_line(error)})") from None
    return Came(committed, max(committed, planned), taken)


def _torn(file: Place, lines: int) -> str | None:
    """What is wrong with a file of a checkpoint: with a version and so many lines at least, or, of 0, all one value."""
    try:
        found = file.read_text().splitlines()
        if lines and not (len(found) >= lines and found[0].startswith("v")):
            return "cut off"
        for line in found[1:] if lines else ["\n".join(found)]:
            if not lines or line.startswith(("{", "[")):  # offsets of others may be anything
                json.loads(line)
    except FileNotFoundError:
        return "missing"
    except ValueError:
        return "cut off"
    return None


def _damaged(directory: RunDirectory, what: str) -> InputError:
    return InputError(f"the run in {directory.root} cannot go on: {what}; restore it, or start the run anew")
