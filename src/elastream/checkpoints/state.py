"""State of a checkpoint, from its files alone: no Spark is needed, and nothing is written.

For each batch, Spark's stores write the changes (`7.changelog`, `7.delta`) or the whole state (`7.zip`, `7.snapshot`).
RocksDB keeps the data of snapshots in shared files (`SSTs`), which a snapshot lists.
"""

import json
import math
import re
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastream.core.wording import counted, percent
from elastream.errors import InputError, in_one_line
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import read_manifest
from elastream.spark.telemetry.state_files import STATE_FILE_NAME, WHOLE

ROCKSDB = "RocksDBStateStoreProvider"
PROVIDER, WIDTH = "spark.sql.streaming.stateStore.providerClass", "spark.sql.shuffle.partitions"
# Name of the checkpoint before a repartition, beside the one after it.
BEFORE = re.compile(r".+\.\d+-partitions")
# A partition with more than this multiple of the mean is named.
SKEWED = 2.0
# Change logs from which loading a partition takes long, ten times Spark's default between two snapshots.
MANY_LOGS = 100


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of one partition of an operator.

    Attributes:
        bytes: Of the newest snapshot and of the changes since then.
        rows: Of the newest snapshot; NaN where the store does not tell.
        logs: Files of changes since the newest snapshot. Loading reads all of them.
        snapshot_age: Seconds since the newest snapshot was written; NaN without one.
    """

    bytes: int
    rows: float
    logs: int
    snapshot_age: float


@dataclass(frozen=True, slots=True)
class OperatorState:
    """State of one stateful operator of a query."""

    number: int
    name: str
    partitions: tuple[PartitionState, ...]

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    @property
    def rows(self) -> float:
        return math.fsum(each.rows for each in self.partitions)

    @property
    def skew(self) -> float:
        """Bytes of the largest partition over their mean; NaN without state."""
        mean = self.bytes / len(self.partitions) if self.partitions else 0.0
        return max(each.bytes for each in self.partitions) / mean if mean else math.nan


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """State of a query's checkpoint.

    Attributes:
        batch: Newest planned batch.
        committed: Newest committed batch; -1 before the first.
        width: State partitions, fixed in the checkpoint.
        provider: Class of the state store.
    """

    folder: Path
    batch: int
    committed: int
    width: int
    provider: str
    operators: tuple[OperatorState, ...]

    @property
    def rocksdb(self) -> bool:
        return self.provider.endswith(ROCKSDB)

    def remarks(self) -> Sequence[str]:
        """Return what the figures mean for the query, as sentences."""
        sentences = []
        for each in self.operators:
            if each.skew > SKEWED:
                largest = max(range(len(each.partitions)), key=lambda number: each.partitions[number].bytes)
                share = percent(each.partitions[largest].bytes / each.bytes)
                sentences.append(
                    f"{each.name}: partition {largest} holds {share} of the bytes: few keys hold most of the state"
                )
            logs = max((part.logs for part in each.partitions), default=0)
            if logs >= MANY_LOGS:
                sentences.append(
                    f"{each.name}: a partition that moves loads {counted(logs, 'change log')}; "
                    "spark.sql.streaming.stateStore.minDeltasForSnapshot and the maintenance interval bound their number"
                )
        if self.operators and not self.rocksdb:
            sentences.append("the number of partitions is fixed: Spark changes it for RocksDB only")
        return sentences


def checkpoints_of(place: Path) -> Mapping[str, Path]:
    """Return the checkpoints in a run's folder by query, or the checkpoint `place` itself under an empty name.

    Raises:
        InputError: `place` is neither a run nor a checkpoint, or the run keeps its checkpoints elsewhere.
    """
    if is_checkpoint(place):
        return {"": place}
    directory = RunDirectory(place)
    if not directory.manifest.is_file():
        raise InputError(f"{place} is no checkpoint and no run: it has neither offsets and metadata nor run.json")
    if address := read_manifest(directory).files:
        raise InputError(f"the checkpoints of {place} are at {address}: only local ones can be read")
    folder = place / "checkpoint"
    checkpoints = (
        {each.name: each for each in sorted(folder.iterdir()) if is_checkpoint(each) and not BEFORE.fullmatch(each.name)}
        if folder.is_dir()
        else {}
    )
    if not checkpoints:
        raise InputError(f"{place} has no checkpoint: no batch of the run has begun")
    return checkpoints


def is_checkpoint(folder: Path) -> bool:
    """Return True if `folder` has the layout of a streaming query's checkpoint."""
    return (folder / "metadata").is_file() and (folder / "offsets").is_dir()


def checkpoint_state(folder: Path) -> CheckpointState:
    """Read the state of the checkpoint in `folder`.

    Raises:
        InputError: It is none, or its files cannot be read.
    """
    if not is_checkpoint(folder):
        raise InputError(f"{folder} is no checkpoint of a streaming query: it has no offsets and metadata")
    try:
        batch, committed = _newest(folder / "offsets"), _newest(folder / "commits")
        if batch < 0:
            raise InputError(f"{folder} has no batch yet: the query has not begun")
        lines = (folder / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
        if len(lines) < 2 or not lines[0].startswith("v"):
            raise InputError(f"{folder / 'offsets' / str(batch)} is torn, or of a Spark that is not supported")
        settings = json.loads(lines[1]).get("conf", {})
        width = int(settings.get(WIDTH, 0))
        operators = tuple(_operators(folder, committed, width))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"{folder} cannot be read as a checkpoint: {in_one_line(error)}") from error
    return CheckpointState(folder, batch, committed, width, str(settings.get(PROVIDER, "")), operators)


def _newest(folder: Path) -> int:
    return max((int(each.name) for each in folder.glob("*") if each.name.isdigit()), default=-1)


def _operators(folder: Path, committed: int, width: int) -> Sequence[OperatorState]:
    state, operators = folder / "state", []
    for place in sorted((each for each in state.glob("*") if each.name.isdigit()), key=lambda each: int(each.name)):
        name = _operator_name(place)
        parts = [_partition(place / str(number), committed + 1) for number in range(width)]
        operators.append(OperatorState(int(place.name), name, tuple(parts)))
    return operators


def _operator_name(place: Path) -> str:
    """Return Spark's name of an operator; its number where no file tells."""
    files = [each for each in (place / "_metadata").rglob("*") if each.is_file() and not each.name.endswith(".crc")]
    for file in sorted(files):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"operatorName"' in line:
                info: Mapping[str, Any] = json.loads(line)
                return str(info["operatorInfo"]["operatorName"])
    return f"operator {place.name}"


def _partition(place: Path, version: int) -> PartitionState:
    stores = [place, *(each for each in place.glob("*") if each.is_dir() and each.name not in ("SSTs", "_metadata"))]
    parts = [part for store in stores if (part := _store(store, version)) is not None]
    known = [part.rows for part in parts if not math.isnan(part.rows)]
    ages = [part.snapshot_age for part in parts if not math.isnan(part.snapshot_age)]
    return PartitionState(
        sum(part.bytes for part in parts),
        math.fsum(known) if known else math.nan,
        max((part.logs for part in parts), default=0),
        max(ages, default=math.nan),
    )


def _store(place: Path, version: int) -> PartitionState | None:
    whole: tuple[int, Path] | None = None
    changes: dict[int, int] = {}
    for file in place.glob("*"):
        named = STATE_FILE_NAME.fullmatch(file.name)
        if named is None or int(named[1]) > version:
            continue
        number = int(named[1])
        if named[2] not in WHOLE:
            changes[number] = file.stat().st_size
        elif whole is None or number > whole[0]:
            whole = (number, file)
    if whole is None and not changes:
        return None
    since = {number: size for number, size in changes.items() if whole is None or number > whole[0]}
    if whole is None:
        return PartitionState(sum(since.values()), math.nan, len(since), math.nan)
    size, rows = _snapshot(whole[1], place)
    return PartitionState(size + sum(since.values()), rows, len(since), max(0.0, time.time() - whole[1].stat().st_mtime))


def _snapshot(file: Path, place: Path) -> tuple[int, float]:
    """Return the bytes of a snapshot with the shared files that it lists, and its rows (NaN if unknown)."""
    size = file.stat().st_size
    if file.suffix != ".zip":
        return size, math.nan
    with zipfile.ZipFile(file) as packed:
        listed = json.loads(packed.read("metadata").decode().split("\n", 1)[1])
    size += sum(int(each.get("sizeBytes", 0)) for each in listed.get("sstFiles", ()))
    rows = int(listed.get("numKeys", -1))  # -1 where RocksDB does not track rows
    return size, float(rows) if rows >= 0 else math.nan
