"""The change log of an updated result: a file per batch with the changed rows.

Batches are merged into ever larger files in `_merged`, so that `latest` reads few files. Batches past the retention are
compacted into the youngest of them.
"""

import logging
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from elastream.errors import InputError
from elastream.recording.paths import AnyPath, FolderEntry, names_in, readable, remove_tree, scanned, write_whole

BATCH = re.compile(r"batch=(\d+)$")
# Folder of merged files, each at least twice as large as the next. Spark's readers skip it.
MERGED = "_merged"
MERGE_BATCHES = 100
# Newest batches that are left alone: the last one may be written again.
SPARE_BATCHES = 10
# Compact at least once for this many batches past the retention, however small they are.
MAX_PAST_BATCHES = 10_000
# Column of merged files: when a key first appeared, as batch and row.
FIRST_COLUMN = "__first"

log = logging.getLogger(__name__)


class _Run(NamedTuple):
    first: int
    last: int
    file: AnyPath


def write_changes(frame: DataFrame, path: AnyPath, batch: int, key: Sequence[str], retention: float) -> None:
    """Write the changes of one batch, through the driver, to one small file.

    Args:
        retention: Time for which single changes stay (seconds).
    """
    _write(frame.toArrow(), path / f"batch={batch}" / "changes.parquet")
    if batch % MERGE_BATCHES == 0:
        try:
            tidy(path, batch, key, time.time() - retention)
        except OSError:  # such as a full disk: the batch itself is written
            log.warning("cannot compact the change log %s; trying again with a later batch", path, exc_info=True)


def tidy(
    path: AnyPath,
    batch: int,
    key: Sequence[str],
    before: float,
    *,
    merge_batches: int = MERGE_BATCHES,
    spare_batches: int = SPARE_BATCHES,
    max_past_batches: int = MAX_PAST_BATCHES,
) -> None:
    """Merge older batches, and compact those written before epoch second `before`."""
    folders, runs = _batches(path), _runs(path)
    upto = runs[-1].last if runs else -1
    fresh = [(number, folder) for number, folder in folders if upto < number <= batch - spare_batches]
    if parts := _read(fresh):
        fresh_run = _Run(fresh[0][0], upto := fresh[-1][0], path / MERGED)
        runs.append(_merged(fresh_run, newest(parts, key), path))
    while len(runs) > 1 and _bytes(runs[-2].file) < 2 * _bytes(runs[-1].file):
        younger, older = runs.pop(), runs.pop()
        parts = [(each.first, pq.ParquetFile(readable(each.file)).read()) for each in (older, younger)]
        runs.append(_merged(_Run(older.first, younger.last, path / MERGED), newest(parts, key), path))
        for each in (older, younger):
            each.file.unlink()
    _put_together([each for each in folders if each[0] <= upto], key, before, merge_batches, max_past_batches)


def newest_rows(path: AnyPath, key: Sequence[str]) -> pd.DataFrame | None:
    """Return the newest row of each key, keys in order of first appearance; None for an empty log. Raises InputError."""
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
        rows = newest(parts, key).sort_by(FIRST_COLUMN)
        frame: pd.DataFrame = rows.drop_columns([FIRST_COLUMN]).to_pandas()
        return frame


def newest(parts: Iterable[tuple[int, pa.Table]], key: Sequence[str]) -> pa.Table:
    """Return the newest row of each key from (batch, rows), oldest first, with FIRST_COLUMN."""
    # Each file separately: as one dataset, `batch=N` would become a column, and small files are read more slowly.
    dated = [table if FIRST_COLUMN in table.column_names else _numbered(table, number) for number, table in parts]
    table = pa.concat_tables(dated, promote_options="permissive")
    columns = [name for name in table.column_names if name != FIRST_COLUMN]
    for name in key or ("",):
        if name not in columns:
            raise InputError(f"no key column {name!r} (it has: {', '.join(columns)})")
    marked = table.select([*key, FIRST_COLUMN]).append_column("_at", pa.array(range(table.num_rows), pa.int64()))
    grouped = marked.group_by(list(key)).aggregate([("_at", "max"), (FIRST_COLUMN, "min")]).sort_by("_at_max")
    rows = table.take(grouped.column("_at_max"))
    return rows.set_column(rows.column_names.index(FIRST_COLUMN), FIRST_COLUMN, grouped.column(f"{FIRST_COLUMN}_min"))


def _numbered(table: pa.Table, batch: int) -> pa.Table:
    return table.append_column(FIRST_COLUMN, pa.array(range(batch << 32, (batch << 32) + table.num_rows), pa.int64()))


def _batches(path: AnyPath) -> list[tuple[int, AnyPath]]:
    names = names_in(path) if path.is_dir() else ()
    return [(number, path / f"batch={number}") for number in sorted(int(m[1]) for m in map(BATCH.match, names) if m)]


def _read(folders: Iterable[tuple[int, AnyPath]]) -> list[tuple[int, pa.Table]]:
    files = ((number, folder / each.name) for number, folder in folders for each in _files(folder))
    return [(number, pq.ParquetFile(readable(file)).read()) for number, file in files]


def _runs(path: AnyPath) -> list[_Run]:
    """Return the merged files, oldest first, without those that a larger one covers."""
    files = []
    for file in path.joinpath(MERGED).glob("[0-9]*-*.parquet"):
        first, last = file.name.removesuffix(".parquet").split("-")
        files.append(_Run(int(first), int(last), file))
    runs: list[_Run] = []
    for run in sorted(files, key=lambda run: (run.first, -run.last)):
        if not runs or run.last > runs[-1].last:
            runs.append(run)
    return runs


def _merged(run: _Run, table: pa.Table, path: AnyPath) -> _Run:
    return run._replace(file=_write(table, path / MERGED / f"{run.first:012d}-{run.last:012d}.parquet"))


def _write(table: pa.Table, file: AnyPath) -> AnyPath:
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    write_whole(file, out.getvalue().to_pybytes())
    return file


def _bytes(file: AnyPath) -> int:
    return file.stat().st_size if isinstance(file, Path) else file.entry().bytes


def _written(folder: AnyPath) -> float:
    if isinstance(folder, Path):
        return folder.stat().st_mtime
    return max((entry.modified for entry in scanned(folder)), default=0.0)


def _files(folder: AnyPath) -> list[FolderEntry]:
    return sorted(each for each in scanned(folder) if each.name.endswith(".parquet") and each.name[0] != ".")


def _put_together(
    folders: Sequence[tuple[int, AnyPath]], key: Sequence[str], before: float, merge_batches: int, max_past_batches: int
) -> None:
    # The first may be an earlier compaction. It is rewritten only once the batches after it are as large.
    past = list(folders[:1])
    for each in folders[1:]:
        if _written(each[1]) >= before:
            break
        past.append(each)
    sizes = [sum(each.bytes for each in _files(folder)) for _, folder in past]
    if len(past) <= merge_batches or (sum(sizes[1:]) < sizes[0] and len(past) < max_past_batches):
        return
    _write(newest(_read(past), key).drop_columns([FIRST_COLUMN]), past[-1][1] / "changes.parquet")
    for _, folder in past[:-1]:
        remove_tree(folder)
