"""Refuses to go on with a run whose folder has lost, or torn, what it goes on from: before any host is started.

Spark would fail later, with a traceback; and a reader of a durable edge whose files are gone would take what is written
anew for what it has read already.
"""

import logging

from elastream.model.errors import InputError
from elastream.model.stages import Layout
from elastream.model.wording import counted
from elastream.recording.directory import RunDirectory
from elastream.recording.places import Place, names_in
from elastream.spark.dataflow.edge_log import EdgeLog
from elastream.spark.dataflow.edges import edge_name
from elastream.spark.queries.segments import committed_offsets
from elastream.spark.worker.composition import latest_batch, read_wanted

__all__ = ["refuse_damaged"]

METADATA = "metadata"
"""File in a checkpoint: which query it is of."""
log = logging.getLogger(__name__)


def refuse_damaged(layout: Layout, directory: RunDirectory) -> None:
    """Raise InputError, with the file, where the run of `layout` in `directory` cannot go on from what is there."""
    read_wanted(directory.wanted)
    committed = {each.name: _committed(directory, each.name) for each in layout.segments}
    for segment in layout.segments:
        taken = {}
        if committed[segment.name] >= 0:
            offsets = committed_offsets(directory.checkpoint(segment.name))
            taken = {str(offset["edge"]): int(offset["n"]) for offset in offsets if "edge" in offset}
        for edge in segment.inputs:
            if edge.durable != "parquet":
                continue
            writer = next(each.name for each in layout.segments if edge.source in each.operators)
            folder = directory.edge(edge.source, edge.target)
            edge_log = EdgeLog(folder)
            there, read = edge_log.refresh(), taken.get(edge_name(edge), 0)
            if read > there:
                lost = f"{counted(there, 'record')} of the {read:,} that {segment.name!r} has read"
                raise _damaged(directory, f"{folder} has {lost}")
            if edge_log.batches <= committed[writer]:
                raise _damaged(directory, f"{folder} has no batch={edge_log.batches}, which {writer!r} wrote")


def _committed(directory: RunDirectory, query: str) -> int:
    """The last batch that `query` committed, -1 for none; its checkpoint is looked at."""
    checkpoint = directory.checkpoint(query)
    committed = latest_batch(checkpoint, "commits")
    if max(committed, latest_batch(checkpoint)) < 0:
        if directory.recording.exists():
            log.warning("there is no checkpoint of %r: it begins anew", query)
        return -1
    if METADATA not in names_in(checkpoint):
        raise _damaged(directory, f"{checkpoint / METADATA} is missing")
    if committed >= 0:
        offsets = checkpoint / "offsets" / str(committed)
        if (wrong := _torn(offsets)) is not None:
            raise _damaged(directory, f"{offsets} is {wrong}, and batch {committed} is committed")
    return committed


def _torn(offsets: Place) -> str | None:
    try:
        lines = offsets.read_text().splitlines()
    except FileNotFoundError:
        return "missing"
    return None if len(lines) > 2 and lines[0].startswith("v") else "cut off"


def _damaged(directory: RunDirectory, what: str) -> InputError:
    return InputError(f"the run in {directory.root} cannot go on: {what}; restore it, or start the run anew")
