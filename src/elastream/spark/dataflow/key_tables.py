"""Puts key tables where workers find them, before a composition that names them is requested."""

from collections.abc import Iterable
from pathlib import Path

from elastream.model.errors import DataflowError
from elastream.model.observation import Composition
from elastream.recording.key_tables import KeyTableLog
from elastream.spark.worker.composition import LIVE_TABLES, table_digit
from elastream.spark.worker.key_table import put_in_use

__all__ = ["bring_into_use"]


def bring_into_use(tables: KeyTableLog, folder: Path, operator: str, version: int, live: Iterable[Composition]) -> str:
    """Why batches cannot run under that version; empty where they can from now on.

    live: compositions that a batch may still run under. Of two versions that have one digit only one can be in use.
    """
    if version == 0:
        return ""
    try:
        tables.find(operator, version)
        file = tables.file(operator, version)
    except DataflowError as error:
        return str(error)
    for composition in live:
        other = composition.tables.get(operator, 0)
        if other not in (0, version) and table_digit(other) == table_digit(version):
            return f"batches may still run under key table {other} of {operator!r}, {LIVE_TABLES} versions or a multiple away"
    put_in_use(folder, operator, version, file)
    return ""
