"""Stores key tables for the workers before a composition that uses them is requested."""

from collections.abc import Callable, Collection, Iterable

from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import selections_of
from elastream.errors import DataflowError
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.mirror import copy_now
from elastream.spark.worker.composition import MAX_LIVE_TABLES, table_digit
from elastream.spark.worker.table_lookup import publish_table


def table_publisher(
    graph: Graph, directory: RunDirectory
) -> Callable[[str, int, Iterable[Composition], Collection[str]], str] | None:
    """Return a function that brings a table version into use; None if no operator selects by key.

    It takes operator, version, pending compositions and alternates, and returns the reason for a refusal or "".
    """
    selections = selections_of(graph)
    if not selections:
        return None
    tables = KeyTableLog(directory, selections)

    def bring(operator: str, version: int, live: Iterable[Composition], alternates: Collection[str]) -> str:
        try:
            named = set(tables.find(operator, version).rows.values())  # checks its content
        except DataflowError as error:
            return str(error)
        if gone := sorted(named.difference(alternates)):
            lacks = f"names the alternate {gone[0]!r}, which it does not have with that code"
            return f"key table {version} of {operator!r} {lacks}"
        for composition in live:
            other = composition.tables.get(operator, 0)
            if other not in (0, version) and table_digit(other) == table_digit(version):
                away = f"{MAX_LIVE_TABLES} versions or a multiple away"
                return f"batches may still run under key table {other} of {operator!r}, {away}"
        file = tables.file(operator, version)
        # Copy now, so that a version in use is never reassigned to another table.
        copy_now(directory, file, directory.key_table_log)
        publish_table(directory.tables_in_use, operator, version, file)
        return ""

    return bring
