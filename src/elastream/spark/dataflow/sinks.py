"""Writes results idempotently, so that a replayed batch changes nothing, and reads them back.

Append-only results use Spark's own sinks, updated results a change log.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from elastream.dataflow.endpoints import KafkaTopic, ParquetSink, SinkSpec
from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.formats import marked, unmarked
from elastream.recording.paths import (
    AnyPath,
    RemotePath,
    is_address,
    mark_whole,
    names_in,
    path_of,
    remove_tree,
    there_as_a_whole,
    write_whole,
)
from elastream.spark.dataflow.change_log import BATCH, MERGED, newest_rows
from elastream.spark.dataflow.edge_log import note_composition
from elastream.spark.dataflow.kafka import check_topic
from elastream.spark.worker.composition import BatchComposition

# File in a sink's folder, which Spark's readers skip: the run that wrote it, and the key columns of a change log.
KEY_FILE = "_key.json"

# Files of Spark's own sink.
_PART = re.compile(r"\.?part-\d{5}-[0-9a-f-]{36}.*\.parquet(\.crc)?$")


def check_sink(sink: SinkSpec | None, *, changes: bool, run: str | None = "") -> None:
    """Raise ElastreamError for a folder or topic that a run cannot write."""
    match sink:
        case ParquetSink(path) if path and is_address(path):
            if changes:  # appended rows are written by Spark alone
                try:
                    _refuse_occupied(path_of(path), changes, run)
                except OSError as error:
                    raise EnvironmentProblem(f"cannot write results to {path}: {error.strerror or error}") from None
        case ParquetSink(path) if path:
            place = Path(path)
            _refuse_occupied(place, changes, run)
            there = next(each for each in (place, *place.absolute().parents) if each.exists())
            if not there.is_dir():
                raise EnvironmentProblem(f"cannot write results to {path}: {there} is a file")
            if not os.access(there, os.W_OK | os.X_OK):
                raise EnvironmentProblem(f"cannot write results to {path}: {there} may not be written")
        case KafkaTopic() as topic:
            check_topic(topic)
            if topic.group:
                raise InputError(f"the Kafka topic {topic.topic!r} is written: only what is read has offsets for a group")


def _refuse_occupied(path: AnyPath, changes: bool, run: str | None) -> None:
    # Both runs number batches from 0: Spark would skip new batches as written, and readers would mix old with new.
    entries = sorted(names_in(path)) if path.is_dir() else []
    others = [name for name in entries if not _in_change_log(name)]
    if changes and others:
        raise EnvironmentProblem(f"{path} holds other files ({others[0]}): write the results to a separate folder")
    earlier = [name for name in entries if name == "_spark_metadata" or BATCH.match(name)]
    if earlier and run is not None and not (run and run == _read_metadata(path).get("run")):
        raise EnvironmentProblem(
            f"{path} holds the results of an earlier run ({earlier[0]}): --resume RUN continues it, --fresh replaces"
            " its results; or choose another folder"
        )


def _read_metadata(path: AnyPath) -> dict[str, Any]:
    try:
        return unmarked(dict(json.loads((path / KEY_FILE).read_text())), path / KEY_FILE)
    except (FileNotFoundError, ValueError, TypeError):
        return {}


def replace_results(sinks: Iterable[SinkSpec | None]) -> None:
    """Remove results of earlier runs from the folders of `sinks`. Raises EnvironmentProblem."""
    for path in {path_of(sink.path) for sink in sinks if isinstance(sink, ParquetSink) and sink.path}:
        try:
            for name in names_in(path) if path.is_dir() else ():
                if _in_change_log(name) or name == "_spark_metadata" or _PART.match(name):
                    remove_tree(path / name)
        except OSError as error:
            raise EnvironmentProblem(f"the results in {path} cannot be replaced: {error.strerror or error}") from None


def begin_results(path: AnyPath, key: Sequence[str], *, run: str = "", fresh: bool = True) -> None:
    """Prepare `path` for the results of `run`; with `key` as a change log. Raises EnvironmentProblem."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if fresh or run:
            _refuse_occupied(path, bool(key), run)
        write_whole(path / KEY_FILE, json.dumps(marked({"run": run, "key": list(key)})).encode())
    except OSError as error:
        raise EnvironmentProblem(f"cannot write results to {path}: {error.strerror or error}") from None


def _in_change_log(name: str) -> bool:
    return bool(BATCH.match(name)) or name in (KEY_FILE, MERGED) or name.startswith((".batch=", f".{KEY_FILE}"))


def write_batch(frame: DataFrame, path: AnyPath, batch: int, composition: BatchComposition | None = None) -> None:
    """Write one batch to `path/batch=N` on the workers, atomically. An existing batch stays."""
    # Keep a batch from before a crash: the downstream query may have read it.
    folder, written = _batch_folder(path, batch)
    if not there_as_a_whole(folder):
        frame.write.mode("overwrite").parquet(str(written))
        _appear(written, folder, composition)


def skip_batch(path: AnyPath, batch: int, composition: BatchComposition | None = None) -> None:
    folder, written = _batch_folder(path, batch)
    if not there_as_a_whole(folder):
        written.mkdir(parents=True, exist_ok=True)
        _appear(written, folder, composition)


def _batch_folder(path: AnyPath, batch: int) -> tuple[AnyPath, AnyPath]:
    folder = path / f"batch={batch}"
    return folder, folder if isinstance(path, RemotePath) and not path.renames else path / f".batch={batch}"


def _appear(written: AnyPath, folder: AnyPath, composition: BatchComposition | None) -> None:
    if composition is not None:
        note_composition(written, composition)
    mark_whole(written, folder)


def latest(path: str | os.PathLike[str], key: str | Sequence[str] | None = None) -> pd.DataFrame:
    """Return the newest row of each key in the change log at `path`, keys in order of first appearance."""
    root = path_of(path)
    if not (root / KEY_FILE).exists() and not any(BATCH.match(each.name) for each in root.glob("batch=*")):
        raise InputError(f"{root} holds no change log: it has no folder batch=0")
    columns = _key_columns(root, key)
    try:
        rows = newest_rows(root, columns)
    except InputError as error:
        raise InputError(f"{root} has {error}: name one with latest(path, key=...)") from None
    return pd.DataFrame(columns=columns) if rows is None else rows


def _key_columns(root: AnyPath, key: str | Sequence[str] | None) -> list[str]:
    if key is not None:
        return [key] if isinstance(key, str) else list(key)
    if not (columns := _read_metadata(root).get("key")):
        raise InputError(f"{root} does not name its key columns: use latest(path, key=...)")
    return list(columns)


# -- rows kept in memory -----------------------------------------------------------------------------------------------

_collected: dict[str, dict[int, pa.Table]] = {}
_collecting = Lock()


def collect_batch(frame: DataFrame, name: str, batch: int) -> None:
    """Store the rows of one batch in memory; a replay replaces them."""
    table = frame.toArrow()
    with _collecting:
        _collected.setdefault(name, {})[batch] = table


def forget_collected(name: str) -> None:
    """Drop the rows collected under `name`, at the start of a new run."""
    with _collecting:
        _collected.pop(name, None)


def collected(name: str) -> pa.Table:
    """Return the rows collected under `name` so far, in batch order."""
    with _collecting:
        batches = dict(_collected.get(name, {}))
    if not batches:
        raise InputError(f"nothing has been collected under {name!r}")
    return pa.concat_tables([batches[number] for number in sorted(batches)])


def tables_collected(names: Iterable[str]) -> dict[str, pa.Table]:
    """Return the rows collected under each name, possibly none."""
    with _collecting:
        present = {name for name in names if _collected.get(name)}
    return {name: collected(name) if name in present else pa.table({}) for name in names}


# -- Kafka -------------------------------------------------------------------------------------------------------------


def as_records(frame: DataFrame) -> DataFrame:
    return frame.select(F.to_json(F.struct("*")).alias("value"))


def as_messages(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows as Kafka messages: existing columns `key` and `value`, else the key columns and a JSON of all."""
    value = F.col("value").cast("string") if "value" in frame.columns else F.to_json(F.struct("*"))
    columns = [name for name in key if name in frame.columns]
    if "key" in frame.columns:
        return frame.select(F.col("key").cast("string").alias("key"), value.alias("value"))
    if columns:
        return frame.select(
            F.concat_ws("|", *(F.col(name).cast("string") for name in columns)).alias("key"), value.alias("value")
        )
    return frame.select(value.alias("value"))
