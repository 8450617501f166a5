"""The change log of an updated result: a file for each batch with the rows that changed, and the newest row of each key.

A run of months has millions of batches. So every RUN of them are merged beside the log, in `_merged`, into files of the
newest row of each key, each at least twice as large as the one after it: `latest` reads a dozen files and the batches
since. Batches that are older than the retention are put together into the youngest of them, so that whoever reads the
folder itself sees the newest row of every key, and each change of the time that is kept.
"""

import logging
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from elastream.errors import InputError
from elastream.recording.places import FolderEntry, Place, names_in, readable, remove_tree, scanned, write_whole

BATCH = re.compile(r"batch=(\d+)$")
MERGED = "_merged"
"""Folder of merged files, which Spark's readers skip."""
RUN = 100
"""Batches that are merged at a time."""
SPARE = 10
"""Newest batches that are left alone: the last one may be written again."""
MOST = 10_000
"""Batches past the retention that are put together, however small they are."""
FIRST = "__first"
"""Column of merged files: when a key first appeared, as batch and row."""

log = logging.getLogger(__name__)


class _Run(NamedTuple):
    """A merged file of batches `first` to `last`."""

    first: int
    last: int
    file: Place


def write_changes(frame: DataFrame, path: Place, batch: int, key: Sequence[str], retention: float) -> None:
    """Write the changes of one batch to the single file `path/batch=N/changes.parquet`, through the driver.

    A batch changes one row per key in it, and one small file per batch keeps the log fast to read; a replay replaces the
    file atomically. key: the key columns. retention: seconds for which changes are kept as they came.
    """
    _write(frame.toArrow(), path / f"batch={batch}" / "changes.parquet")
    if batch % RUN == 0:
        try:
            tidy(path, batch, key, time.time() - retention)
        except OSError:  # a full disk: the batch is written, and the next try is soon
            log.warning("the change log %s was not tidied up", path, exc_info=True)


def tidy(
    path: Place, batch: int, key: Sequence[str], before: float, *, run: int = RUN, spare: int = SPARE, most: int = MOST
) -> None:
    """Merge batches up to `spare` before `batch`, and put those together that were written before epoch second `before`.

    Args:
        run: Fewest past batches that are put together.
        spare: Newest batches that are left alone.
        most: Past batches that are put together, however small they are.
    """
    folders, runs = _batches(path), _runs(path)
    upto = runs[-1].last if runs else -1
    fresh = [(number, folder) for number, folder in folders if upto < number <= batch - spare]
    if parts := _read(fresh):
        fresh_run = _Run(fresh[0][0], upto := fresh[-1][0], path / MERGED)
        runs.append(_merged(fresh_run, newest(parts, key), path))
    while len(runs) > 1 and _bytes(runs[-2].file) < 2 * _bytes(runs[-1].file):
        younger, older = runs.pop(), runs.pop()
        parts = [(each.first, pq.ParquetFile(readable(each.file)).read()) for each in (older, younger)]
        runs.append(_merged(_Run(older.first, younger.last, path / MERGED), newest(parts, key), path))
        for each in (older, younger):
            each.file.unlink()
    _put_together([each for each in folders if each[0] <= upto], key, before, run, most)


def newest_rows(path: Place, key: Sequence[str]) -> pd.DataFrame | None:
    """The newest row of each key, keys in order of first appearance; None where the log has no row.

    Raises InputError where there is no such column.
    """
    while True:
        runs = _runs(path)
        upto = runs[-1].last if runs else -1
        try:
            parts = [(run.first, pq.ParquetFile(readable(run.file)).read()) for run in runs]
            parts += _read((number, folder) for number, folder in _batches(path) if number > upto)
        except FileNotFoundError:
            continue  # merged meanwhile
        if not parts:
            return None
        found = newest(parts, key)
        frame: pd.DataFrame = found.take(pc.sort_indices(found, [(FIRST, "ascending")])).drop_columns([FIRST]).to_pandas()
        return frame


def newest(parts: Iterable[tuple[int, pa.Table]], key: Sequence[str]) -> pa.Table:
    """The newest row of each key in tables of (batch, rows), oldest first, in the order of change; with FIRST."""
    # Each file separately: as one dataset, `batch=N` would become a column, and small files are read more slowly.
    dated = [table if FIRST in table.column_names else _dated(table, number) for number, table in parts]
    table = pa.concat_tables(dated, promote_options="permissive")
    known = [name for name in table.column_names if name != FIRST]
    for name in key or ("",):
        if name not in known:
            raise InputError(f"no key column {name!r} (it has: {', '.join(known)})")
    marked = table.select([*key, FIRST]).append_column("_at", pa.array(range(table.num_rows), pa.int64()))
    grouped = marked.group_by(list(key)).aggregate([("_at", "max"), (FIRST, "min")]).sort_by("_at_max")
    rows = table.take(grouped.column("_at_max"))
    return rows.set_column(rows.column_names.index(FIRST), FIRST, grouped.column(f"{FIRST}_min"))


def _dated(table: pa.Table, batch: int) -> pa.Table:
    return table.append_column(FIRST, pa.array(range(batch << 32, (batch << 32) + table.num_rows), pa.int64()))


def _batches(path: Place) -> list[tuple[int, Place]]:
    """Number and folder of each batch that is there."""
    names = names_in(path) if path.is_dir() else ()
    return [(number, path / f"batch={number}") for number in sorted(int(m[1]) for m in map(BATCH.match, names) if m)]


def _read(folders: Iterable[tuple[int, Place]]) -> list[tuple[int, pa.Table]]:
    files = ((number, folder / each.name) for number, folder in folders for each in _files(folder))
    return [(number, pq.ParquetFile(readable(file)).read()) for number, file in files]


def _runs(path: Place) -> list[_Run]:
    """The merged files, oldest first; of one that others were merged into, these are left out."""
    found = []
    for file in path.joinpath(MERGED).glob("[0-9]*-*.parquet"):
        first, last = file.name.removesuffix(".parquet").split("-")
        found.append(_Run(int(first), int(last), file))
    kept: list[_Run] = []
    for run in sorted(found, key=lambda run: (run.first, -run.last)):
        if not kept or run.last > kept[-1].last:
            kept.append(run)
    return kept


def _merged(run: _Run, table: pa.Table, path: Place) -> _Run:
    return run._replace(file=_write(table, path / MERGED / f"{run.first:012d}-{run.last:012d}.parquet"))


def _write(table: pa.Table, file: Place) -> Place:
    """Write a file that is there as a whole or not at all."""
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    write_whole(file, out.getvalue().to_pybytes())
    return file


def _bytes(file: Place) -> int:
    return file.stat().st_size if isinstance(file, Path) else file.entry().bytes


def _written(folder: Place) -> float:
    """Epoch second at which the changes in `folder` were written."""
    if isinstance(folder, Path):
        return folder.stat().st_mtime
    return max((entry.modified for entry in scanned(folder)), default=0.0)


def _files(folder: Place) -> list[FolderEntry]:
    return sorted(each for each in scanned(folder) if each.name.endswith(".parquet") and each.name[0] != ".")


def _put_together(folders: Sequence[tuple[int, Place]], key: Sequence[str], before: float, run: int, most: int) -> None:
    """Let the youngest of the batches that were written before epoch second `before` hold the newest rows of them all.

    Where earlier ones were put together, the first holds them. All is written anew only once as much has come as it has.
    """
    past = list(folders[:1])
    for each in folders[1:]:
        if _written(each[1]) >= before:
            break
        past.append(each)
    sizes = [sum(each.bytes for each in _files(folder)) for _, folder in past]
    if len(past) <= run or (sum(sizes[1:]) < sizes[0] and len(past) < most):
        return
    _write(newest(_read(past), key).drop_columns([FIRST]), past[-1][1] / "changes.parquet")
    for _, folder in past[:-1]:
        remove_tree(folder)
