"""Puts key tables where workers find them, before a composition that names them is requested."""

from collections.abc import Callable, Iterable
from functools import partial

from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import selections_of
from elastream.errors import DataflowError
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.mirror import copy_now
from elastream.spark.worker.composition import LIVE_TABLES, table_digit
from elastream.spark.worker.table_lookup import put_in_use


def bringing_into_use(graph: Graph, directory: RunDirectory) -> Callable[[str, int, Iterable[Composition]], str] | None:
    """What brings versions of the run's key tables into use; None where no operator of `graph` selects by key.

    It is given an operator, a version and the compositions that batches may still run under, and says why batches cannot
    run under that version; empty where they can from now on.
    """
    selections = selections_of(graph)
    if not selections:
        return None
    return partial(_bring, KeyTableLog(directory, selections), directory)


def _bring(tables: KeyTableLog, directory: RunDirectory, operator: str, version: int, live: Iterable[Composition]) -> str:
    try:
        tables.find(operator, version)  # which its content is checked by
    except DataflowError as error:
        return str(error)
    for composition in live:
        other = composition.tables.get(operator, 0)
        if other not in (0, version) and table_digit(other) == table_digit(version):
            return (
                f"batches may still run under key table {other} of {operator!r}, {LIVE_TABLES} versions or a multiple away"
            )
    file = tables.file(operator, version)
    copy_now(directory, file, directory.key_table_log)  # a version that batches run under is never given to another table
    put_in_use(directory.tables_in_use, operator, version, file)
    return ""
