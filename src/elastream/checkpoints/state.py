"""State of a checkpoint, from its files alone.

For each batch, Spark's stores write the changes (`7.changelog`, `7.delta`) or the whole state (`7.zip`, `7.snapshot`).
RocksDB keeps the data of snapshots in shared files (`SSTs`), which a snapshot lists.
"""

import io
import json
import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from elastream.core.wording import counted, percent
from elastream.errors import InputError, in_one_line
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import APPLICATION, directory_of, read_manifest
from elastream.recording.mirror import COPY
from elastream.recording.paths import AnyPath, FolderEntry, names_in, path_of, tree
from elastream.spark.telemetry.state_files import NAN, Listed, files_of, has_rows, named_files, packed_size_and_rows

ROCKSDB = "RocksDBStateStoreProvider"
PROVIDER, WIDTH = "spark.sql.streaming.stateStore.providerClass", "spark.sql.shuffle.partitions"
# Names of the copy that a repartition makes, and of the checkpoint before it.
BESIDE = re.compile(r".+\.(repartitioning|\d+-partitions)")
# A partition with more than this multiple of the mean is named.
SKEWED = 2.0
# Change logs from which loading a partition takes long, ten times Spark's default between two snapshots.
MANY_LOGS = 100
# Folders of a checkpoint, in the order in which they are listed.
PARTS = ("offsets", "commits", "state")
# Snapshots that are read at once.
READERS = 8

P = TypeVar("P", bound=AnyPath)


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
class CheckpointState(Generic[P]):
    """State of a query's checkpoint.

    Attributes:
        committed: Newest committed batch; -1 before the first.
    """

    folder: P
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


class CheckpointFiles:
    """Implements StateDisk. `look` lists all of PARTS."""

    current: ClassVar[bool] = False

    def __init__(self, folder: AnyPath) -> None:
        self.folder = folder
        self.look()

    def look(self) -> int:
        self._entries: dict[str, FolderEntry] = {}
        for part in PARTS:
            with suppress(FileNotFoundError):
                self._entries |= {f"{part}/{each.name}": each for each in tree(self.folder / part)}
        self._names: dict[str, set[str]] = {}
        for path in self._entries:
            while path:
                folder, _, name = path.rpartition("/")
                names = self._names.setdefault(folder, set())
                if name in names:
                    break
                names.add(name)
                path = folder
        return time.monotonic_ns()

    def names(self, folder: str) -> Collection[str]:
        return self._names.get(folder, ())

    def numbers(self, folder: str) -> Sequence[int]:
        return sorted(int(name) for name in self.names(folder) if name.isdecimal())

    def below(self, folder: str) -> Sequence[str]:
        return sorted(path for path in self._entries if path.startswith(f"{folder}/"))

    def files(self, folder: str) -> Sequence[Listed]:
        return list(named_files(f"{folder}/{name}" for name in self.names(folder)))

    def modified(self, path: str) -> float:
        return self._entries[path].modified

    def content(self, path: str) -> bytes:
        return self.folder.joinpath(path).read_bytes()

    def size_and_rows(self, path: str) -> tuple[float, float]:
        size = float(self._entries[path].bytes)
        if not path.endswith(".zip"):
            return size, NAN
        try:
            return packed_size_and_rows(size, io.BytesIO(self.content(path)))
        except OSError:
            return NAN, NAN


def checkpoint_root(place: Path) -> AnyPath:
    """Return the checkpoint at `place`, or the folder of a run's checkpoints."""
    folder = path_of(place)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if is_checkpoint(folder):
        return folder
    if not isinstance(folder, Path):
        if not (folder / COPY / "run.json").is_file():
            raise _neither(folder)
        return folder / "checkpoint"
    directory = RunDirectory(folder)
    if not directory.manifest.is_file():
        if whole := next((each for each in folder.parents if is_checkpoint(each)), None):
            raise InputError(f"{folder} is a part of the checkpoint {whole}: name that one")
        raise _neither(folder)
    if APPLICATION in read_manifest(directory).identity:
        raise InputError(f"{folder} records an Autopilot: name the checkpoint of one of its queries")
    return directory_of(folder).reached / "checkpoint"


def _neither(folder: AnyPath) -> InputError:
    return InputError(f"{folder} is neither a checkpoint nor a run: it has neither offsets and metadata nor run.json")


def local_path(place: Path) -> Path:
    if not isinstance(folder := path_of(place), Path):
        raise InputError(f"{folder} is not on this machine: copy the checkpoint to a local disk and repartition the copy")
    return folder


def local_root(place: Path) -> Path:
    if not isinstance(root := checkpoint_root(place), Path):
        raise InputError(f"{root} is not on this machine: its partitions stay; start a new run with other state_partitions")
    return root


def checkpoints_of(root: P) -> Mapping[str, P]:
    """Return the checkpoints in `root` by query, or `root` itself under an empty name."""
    if is_checkpoint(root):
        return {"": root}
    names = [name for name in names_in(root) if not BESIDE.fullmatch(name)] if root.is_dir() else []
    checkpoints = {name: folder for name in sorted(names) if is_checkpoint(folder := root / name)}
    if not checkpoints:
        raise InputError(f"{root.parent} has no checkpoint: no batch of the run has begun")
    return cast(Mapping[str, P], checkpoints)


def is_checkpoint(folder: AnyPath) -> bool:
    return (folder / "metadata").is_file() and (folder / "offsets").is_dir()


def checkpoint_state(folder: P) -> CheckpointState[P]:
    """Read the state of the checkpoint in `folder`. Raises InputError."""
    if not is_checkpoint(folder):
        raise InputError(f"{folder} is not a checkpoint of a streaming query: it has no offsets and metadata")
    try:
        files = CheckpointFiles(folder)
        batch = max(files.numbers("offsets"), default=-1)
        if batch < 0:
            raise InputError(f"{folder} has no batch yet: the query has not begun")
        # A commit may be newer than the listing of the offsets.
        committed = min(max(files.numbers("commits"), default=-1), batch)
        offsets = f"offsets/{batch}"
        lines = files.content(offsets).decode().splitlines()
        if len(lines) < 2 or not lines[0].startswith("v"):
            raise InputError(f"{folder / offsets} is torn, or of a Spark that is not supported")
        settings = json.loads(lines[1]).get("conf", {})
        if (width := int(settings.get(WIDTH, 0))) < 1:
            raise InputError(
                f"{folder / offsets} names no number of state partitions: it is of a Spark that is not supported"
            )
        operators = tuple(_operators(files, committed, width))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} cannot be read as a checkpoint: {in_one_line(error)}") from error
    return CheckpointState(folder, batch, committed, width, str(settings.get(PROVIDER, "")), operators)


def _operators(files: CheckpointFiles, committed: int, width: int) -> Sequence[OperatorState]:
    operators = []
    with ThreadPoolExecutor(READERS) as readers:
        for number in files.numbers("state"):
            place = f"state/{number}"
            # Without keys, an aggregate or a limit keeps its state in partition 0, whatever the width.
            parts = [part for part in range(width) if str(part) in files.names(place)]
            parts = parts if parts == [0] else list(range(width))
            read = partial(_partition, files, committed + 1)
            states = tuple(readers.map(read, [f"{place}/{part}" for part in parts]))
            operators.append(OperatorState(number, _operator_name(files, place), states))
    return operators


def _operator_name(files: CheckpointFiles, place: str) -> str:
    # Names of checksums, and of files that Spark is about to rename, begin with a dot.
    # Spark removes the oldest.
    for path in reversed([each for each in files.below(f"{place}/_metadata") if "/." not in each]):
        with suppress(FileNotFoundError):
            for line in files.content(path).decode(errors="replace").splitlines():
                if '"operatorName"' in line:
                    info: Mapping[str, Any] = json.loads(line)
                    return str(info["operatorInfo"]["operatorName"])
    return f"operator {place.rpartition('/')[2]}"


def _partition(files: CheckpointFiles, version: int, place: str) -> PartitionState:
    stores = [place, *(f"{place}/{name}" for name in files.names(place) if name not in ("SSTs", "_metadata"))]
    found = [(store, part) for store in stores if (part := _store(files, version, store)) is not None]
    parts = [part for _, part in found]
    rows = [part.rows for store, part in found if not math.isnan(part.rows) and has_rows(store)]
    ages = [part.snapshot_age for part in parts if not math.isnan(part.snapshot_age)]
    return PartitionState(
        math.fsum(part.bytes for part in parts),
        math.fsum(rows) if rows else math.nan,
        max((part.logs for part in parts), default=0),
        max(ages, default=math.nan),
    )


def _store(files: CheckpointFiles, version: int, place: str) -> PartitionState | None:
    snapshot, changes = files_of(place, version, files)
    since = math.fsum(files.size_and_rows(each)[0] for each in changes)
    if not snapshot:
        return PartitionState(since, math.nan, len(changes), math.nan) if changes else None
    size, rows = files.size_and_rows(snapshot)
    modified = files.modified(snapshot)  # 0 if the file system does not tell it
    age = max(0.0, time.time() - modified) if modified else math.nan
    return PartitionState(size + since, rows, len(changes), age)
