"""Where results end up, written such that a replayed batch changes nothing.

Results that only grow use Spark's own sinks. Results that change are a change log: one folder a batch, moved into place
whole; `latest` reads the newest row of each key from it, with no Spark session. Which sink a query needs is settled in
`compile`.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from elastream.model.errors import EnvironmentProblem, InputError

__all__ = [
    "as_messages",
    "as_records",
    "begin_appending",
    "begin_change_log",
    "collect_batch",
    "collected",
    "forget_collected",
    "latest",
    "write_batch",
    "write_changes",
]

KEY_FILE = "_key.json"
"""Beside a change log's folders: the columns that it has one newest row of each value of."""

_BATCH = re.compile(r"batch=(\d+)$")


def begin_change_log(path: Path, key: Sequence[str], fresh: bool) -> None:
    """Make `path` ready for a change log keyed by `key`; a `fresh` run replaces the change log of an earlier one.

    Raises EnvironmentProblem where the folder holds something else, or cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if fresh:
            strangers = sorted(each.name for each in path.iterdir() if not _is_ours(each))
            if strangers:
                raise EnvironmentProblem(
                    f"{path} holds other files ({strangers[0]}): write the results to a folder of their own"
                )
            for each in path.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        temporary = path / f".{KEY_FILE}"
        temporary.write_text(json.dumps({"key": list(key)}))
        os.replace(temporary, path / KEY_FILE)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write results to {path}: {error.strerror or error}") from None


def begin_appending(path: Path, fresh: bool) -> None:
    """Make `path` ready for rows to be appended.

    Raises EnvironmentProblem where a `fresh` run finds the rows of an earlier one: both number their batches from 0, so
    that Spark would take the new ones for written and drop them.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        earlier = sorted(each.name for each in path.iterdir() if each.name == "_spark_metadata" or _BATCH.search(each.name))
    except OSError as error:
        raise EnvironmentProblem(f"cannot write results to {path}: {error.strerror or error}") from None
    if fresh and earlier:
        raise EnvironmentProblem(
            f"{path} holds the results of an earlier run ({earlier[0]}): choose another folder, or move it away"
        )


def _is_ours(entry: Path) -> bool:
    return bool(_BATCH.search(entry.name)) or entry.name in (KEY_FILE, f".{KEY_FILE}") or entry.name.startswith(".batch=")


def write_changes(frame: DataFrame, path: Path, batch: int) -> None:
    """The changes of one batch as `path/batch=N/changes.parquet`, in one file: they pass through the driver.

    What a batch changes is one row a key that it touched, and a folder of one small file keeps the log cheap to read; a
    replay replaces it in one step.
    """
    table = frame.toArrow()
    folder = path / f"batch={batch}"
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / ".changes.parquet"
    pq.write_table(table, temporary)
    os.replace(temporary, folder / "changes.parquet")


def write_batch(frame: DataFrame, path: Path, batch: int) -> None:
    """The rows of one batch as the folder `path/batch=N`, written by the workers and moved into place whole.

    A batch that is there already was written before a crash and is left as it is: a query reading the folder may have
    read it.
    """
    folder, temporary = path / f"batch={batch}", path / f".batch={batch}"
    if folder.exists():
        return
    frame.write.mode("overwrite").parquet(str(temporary))
    os.replace(temporary, folder)


def latest(path: str | os.PathLike[str], key: str | Sequence[str] | None = None) -> pd.DataFrame:
    """The newest row of each key in the change log at `path`, keys in order of first appearance.

    `key` names the key columns; by default they are what the log was written with. Raises InputError where there is no
    change log, or it has no such column.
    """
    root = Path(path)
    folders = sorted((int(match[1]), each) for each in root.glob("batch=*") if (match := _BATCH.search(each.name)))
    files = [file for _, folder in folders for file in sorted(folder.glob("[!.]*.parquet"))]
    if not files and not (root / KEY_FILE).exists():
        raise InputError(f"{root} holds no change log: there is no folder batch=0 in it")
    columns = _key_columns(root, key)
    if not files:
        return pd.DataFrame(columns=columns)
    # Each file on its own: as one dataset, `batch=N` would become a column, and small files are read faster this way.
    table = pa.concat_tables([pq.ParquetFile(file).read() for file in files], promote_options="permissive")
    missing = [name for name in columns if name not in table.column_names]
    if missing or not columns:
        wanted = missing[0] if missing else ""
        raise InputError(
            f"{root} has no column {wanted!r} to be keyed by (it has: {', '.join(table.column_names)}): "
            "say latest(path, key=...)"
        )
    positions = pa.array(range(table.num_rows), pa.int64())
    grouped = table.select(columns).append_column("_at", positions).group_by(columns).aggregate([("_at", "max")])
    newest: pd.DataFrame = table.take(grouped.column("_at_max")).to_pandas()
    return newest


def _key_columns(root: Path, key: str | Sequence[str] | None) -> list[str]:
    if key is not None:
        return [key] if isinstance(key, str) else list(key)
    try:
        return list(json.loads((root / KEY_FILE).read_text())["key"])
    except FileNotFoundError:
        raise InputError(f"{root} does not say what it is keyed by: say latest(path, key=...)") from None


# -- rows kept in memory -----------------------------------------------------------------------------------------------

_collected: dict[str, dict[int, pa.Table]] = {}
_collecting = Lock()


def collect_batch(frame: DataFrame, name: str, batch: int) -> None:
    """Keep the rows of one batch; a replay replaces them."""
    table = frame.toArrow()
    with _collecting:
        _collected.setdefault(name, {})[batch] = table


def forget_collected(name: str) -> None:
    """Drop the rows kept under `name`: a new run starts from nothing."""
    with _collecting:
        _collected.pop(name, None)


def collected(name: str) -> pa.Table:
    """The rows kept under `name` by this process so far, in order of batches; raises InputError where there are none."""
    with _collecting:
        batches = dict(_collected.get(name, {}))
    if not batches:
        raise InputError(f"nothing has been collected under {name!r}")
    return pa.concat_tables([batches[number] for number in sorted(batches)])


# -- Kafka -------------------------------------------------------------------------------------------------------------


def as_records(frame: DataFrame) -> DataFrame:
    """Rows as Kafka messages that a query downstream reads back column by column: all of them as JSON."""
    return frame.select(F.to_json(F.struct("*")).alias("value"))


def as_messages(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Rows as Kafka messages, columns `key` and `value`: a column `value` as it is, else all columns as JSON.

    The key is the column `key` where there is one, else the values of the key columns.
    """
    value = F.col("value").cast("string") if "value" in frame.columns else F.to_json(F.struct("*"))
    known = [name for name in key if name in frame.columns]
    if "key" in frame.columns:
        return frame.select(F.col("key").cast("string").alias("key"), value.alias("value"))
    if known:
        return frame.select(
            F.concat_ws("|", *(F.col(name).cast("string") for name in known)).alias("key"), value.alias("value")
        )
    return frame.select(value.alias("value"))
