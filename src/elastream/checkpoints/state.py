"""State of a checkpoint, from its files alone: no Spark is needed, and nothing is written.

For each batch, Spark's stores write the changes (`7.changelog`, `7.delta`) or the whole state (`7.zip`, `7.snapshot`).
RocksDB keeps the data of snapshots in shared files (`SSTs`), which a snapshot lists.
"""

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastream.core.wording import counted, percent
from elastream.errors import InputError, in_one_line
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import APPLICATION, read_manifest
from elastream.recording.paths import path_of
from elastream.spark.telemetry.state_files import LocalDisk, file_size, files_of, has_rows, size_and_rows
from elastream.spark.worker.composition import latest_batch

ROCKSDB = "RocksDBStateStoreProvider"
PROVIDER, WIDTH = "spark.sql.streaming.stateStore.providerClass", "spark.sql.shuffle.partitions"
# Names of the copy that a repartition makes, and of the checkpoint before it.
BESIDE = re.compile(r".+\.(repartitioning|\d+-partitions)")
# A partition with more than this multiple of the mean is named.
SKEWED = 2.0
# Change logs from which loading a partition takes long, ten times Spark's default between two snapshots.
MANY_LOGS = 100


@dataclass(frozen=True, slots=True)
class PartitionState:
    """State of one partition of an operator.

    Attributes:
        bytes: Of the newest snapshot and the changes since; NaN if a file cannot be read.
        rows: Of the newest snapshot; NaN if unknown.
        logs: Files of changes since the newest snapshot.
        snapshot_age: Seconds since the newest snapshot; NaN without one.
    """

    bytes: float
    rows: float
    logs: int
    snapshot_age: float


@dataclass(frozen=True, slots=True)
class OperatorState:
    number: int
    name: str
    partitions: tuple[PartitionState, ...]

    @property
    def bytes(self) -> float:
        return math.fsum(each.bytes for each in self.partitions)

    @property
    def rows(self) -> float:
        return math.fsum(each.rows for each in self.partitions)

    @property
    def skew(self) -> float:
        """Bytes of the largest partition over their mean; NaN without state."""
        mean = self.bytes / len(self.partitions) if self.partitions else 0.0
        return max(each.bytes for each in self.partitions) / mean if mean > 0 else math.nan


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """State of a query's checkpoint.

    Attributes:
        committed: Newest committed batch; -1 before the first.
    """

    folder: Path
    batch: int
    committed: int
    width: int
    provider: str
    operators: tuple[OperatorState, ...]

    @property
    def megabytes(self) -> float:
        return math.fsum(each.bytes for each in self.operators) / 1e6

    @property
    def rocksdb(self) -> bool:
        return self.provider.endswith(ROCKSDB)

    def remarks(self) -> Sequence[str]:
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


def local_folder(place: Path) -> Path:
    """Return the folder of a path or `file:` address."""
    folder = path_of(place)
    if not isinstance(folder, Path):
        raise InputError(f"{folder} is not on this machine: only checkpoints on a local disk can be read")
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    return folder


def checkpoints_of(place: Path) -> Mapping[str, Path]:
    """Return the checkpoints in a run's folder by query, or the checkpoint `place` itself under an empty name.

    Raises:
        InputError: `place` is neither a run nor a checkpoint, or the run keeps its checkpoints elsewhere.
    """
    if is_checkpoint(place):
        return {"": place}
    directory = RunDirectory(place)
    if not directory.manifest.is_file():
        if whole := next((each for each in place.parents if is_checkpoint(each)), None):
            raise InputError(f"{place} is a part of the checkpoint {whole}: name that one")
        raise InputError(f"{place} is neither a checkpoint nor a run: it has neither offsets and metadata nor run.json")
    manifest = read_manifest(directory)
    if APPLICATION in manifest.identity:
        raise InputError(f"{place} records an Autopilot: name the checkpoint of one of its queries")
    if address := manifest.files:
        raise InputError(f"the checkpoints of {place} are at {address}: only local ones can be read")
    folder = place / "checkpoint"
    checkpoints = (
        {each.name: each for each in sorted(folder.iterdir()) if is_checkpoint(each) and not BESIDE.fullmatch(each.name)}
        if folder.is_dir()
        else {}
    )
    if not checkpoints:
        raise InputError(f"{place} has no checkpoint: no batch of the run has begun")
    return checkpoints


def is_checkpoint(folder: Path) -> bool:
    return (folder / "metadata").is_file() and (folder / "offsets").is_dir()


def checkpoint_state(folder: Path) -> CheckpointState:
    """Read the state of the checkpoint in `folder`. Raises InputError if that fails."""
    if not is_checkpoint(folder):
        raise InputError(f"{folder} is not a checkpoint of a streaming query: it has no offsets and metadata")
    try:
        batch, committed = latest_batch(folder), latest_batch(folder, "commits")
        if batch < 0:
            raise InputError(f"{folder} has no batch yet: the query has not begun")
        offsets = folder / "offsets" / str(batch)
        lines = offsets.read_text(encoding="utf-8").splitlines()
        if len(lines) < 2 or not lines[0].startswith("v"):
            raise InputError(f"{offsets} is torn, or of a Spark that is not supported")
        settings = json.loads(lines[1]).get("conf", {})
        if (width := int(settings.get(WIDTH, 0))) < 1:
            raise InputError(f"{offsets} names no number of state partitions: it is of a Spark that is not supported")
        operators = tuple(_operators(folder, committed, width))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} cannot be read as a checkpoint: {in_one_line(error)}") from error
    return CheckpointState(folder, batch, committed, width, str(settings.get(PROVIDER, "")), operators)


def _operators(folder: Path, committed: int, width: int) -> Sequence[OperatorState]:
    state, operators = folder / "state", []
    for place in sorted((each for each in state.glob("*") if each.name.isdigit()), key=lambda each: int(each.name)):
        name = _operator_name(place)
        # Without keys, an aggregate or a limit keeps its state in partition 0, whatever the width.
        parts = [number for number in range(width) if (place / str(number)).is_dir()]
        parts = parts if parts == [0] else list(range(width))
        states = tuple(_partition(place / str(number), committed + 1) for number in parts)
        operators.append(OperatorState(int(place.name), name, states))
    return operators


def _operator_name(place: Path) -> str:
    files = [each for each in (place / "_metadata").rglob("*") if each.is_file() and not each.name.endswith(".crc")]
    for file in sorted(files):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"operatorName"' in line:
                info: Mapping[str, Any] = json.loads(line)
                return str(info["operatorInfo"]["operatorName"])
    return f"operator {place.name}"


def _partition(place: Path, version: int) -> PartitionState:
    stores = [place, *(each for each in place.glob("*") if each.is_dir() and each.name not in ("SSTs", "_metadata"))]
    found = [(store, part) for store in stores if (part := _store(store, version)) is not None]
    parts = [part for _, part in found]
    rows = [part.rows for store, part in found if not math.isnan(part.rows) and has_rows(store.name)]
    ages = [part.snapshot_age for part in parts if not math.isnan(part.snapshot_age)]
    return PartitionState(
        math.fsum(part.bytes for part in parts),
        math.fsum(rows) if rows else math.nan,
        max((part.logs for part in parts), default=0),
        max(ages, default=math.nan),
    )


def _store(place: Path, version: int) -> PartitionState | None:
    files = files_of("", version, LocalDisk(str(place)))
    since = math.fsum(map(file_size, files.changes))
    if not files.snapshot:
        return PartitionState(since, math.nan, len(files.changes), math.nan) if files.changes else None
    size, rows = size_and_rows(files.snapshot)
    age = max(0.0, time.time() - Path(files.snapshot).stat().st_mtime)
    return PartitionState(size + since, rows, len(files.changes), age)
