"""Size of a stage's state and of each checkpoint, from names and sizes of the files that Spark's state stores write.

`checkpoints.state` describes the files. Cf. thesis, 6.4.3.
"""

import json
import math
import os
import re
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from elastream.core.frames import Floats, known_sum
from elastream.core.wording import counted

if TYPE_CHECKING:
    from elastream.spark.jvm.state_partitions import SavedState, StatefulStage

# Name of such a file; format 2 of checkpoints appends a commit id to the version.
STATE_FILE_NAME = re.compile(r"(\d+)(?:_[\w-]+)?\.(delta|changelog|snapshot|zip)")
WHOLE = ("snapshot", "zip")
# End of the names of a join's stores that count the rows of each key.
COUNTS = "keyToNumValues"
LOCAL = re.compile(r"(?:file:(?://)?)?(/.*)", re.DOTALL)
# This store's files are directly in the folder of a partition; other stores have a subfolder of their name.
DEFAULT = "default"
MEGABYTE = 1e6
# Changes between two snapshots, by default (spark.sql.streaming.stateStore.minDeltasForSnapshot).
DELTAS = 10
# MB of changes below which a snapshot is not worth the wait for a batch.
FEW_MB = 10.0
# Cores that listing may take: with hundreds of partitions some looks are skipped.
LISTING_CORES = 0.005
NAN = math.nan


# Version, True if it is the whole state, path.
Listed: TypeAlias = tuple[int, bool, str]


class StateDisk(Protocol):
    """Files of a checkpoint's state. Folders are relative to it; paths are those that `files` yields.

    Attributes:
        current: True if `files` shows the newest ones.
    """

    current: ClassVar[bool]

    def look(self) -> int:
        """Bring what is listed up to date, without waiting; return a number that is new with each listing."""

    def files(self, folder: str) -> Iterable[Listed]:
        """Return the files of a store; nothing if there is no such folder."""

    def modified(self, path: str) -> float:
        """Return when a file was written (epoch seconds); 0 if it is gone."""

    def size_and_rows(self, path: str) -> tuple[float, float]:
        """Return the bytes of a file, with those that a RocksDB snapshot names, and its rows; NaN if unknown."""


@dataclass(frozen=True)
class LocalDisk:
    """Implements StateDisk in a folder of this machine."""

    root: str
    current: ClassVar[bool] = True

    def look(self) -> int:
        return time.monotonic_ns()

    def files(self, folder: str) -> Iterator[Listed]:
        return written_files(f"{self.root}/{folder}")

    def modified(self, path: str) -> float:
        return modified(path)

    def size_and_rows(self, path: str) -> tuple[float, float]:
        return size_and_rows(path)


def folders_of(stage: "StatefulStage") -> tuple[tuple[str, ...], ...]:
    """Return the store folders of each partition of `stage`, relative to the state's."""
    stores = [(each.id, store) for each in stage.operators for store in each.stores]
    return tuple(
        tuple(_store_folder(operator, partition, store) for operator, store in stores)
        for partition in range(stage.partitions)
    )


@dataclass
class _Store:
    folder: str
    disk: StateDisk
    version: int = 0  # newest that is listed
    whole: tuple[int, float] = (0, 0.0)  # version and bytes of the newest snapshot
    rows: float = NAN  # rows of the newest snapshot
    deltas: dict[int, float] = field(default_factory=dict)  # bytes of changes by version, since then

    def look(self, version: int) -> None:
        listed = [each for each in self.disk.files(self.folder) if each[0] <= version]
        self.version = max((each[0] for each in listed), default=0)
        unread = math.isnan(self.whole[1])
        snapshots = [each for each in listed if each[1] and each[0] >= self.whole[0] + (not unread)]
        if snapshots:
            newest, _, path = max(snapshots)
            size, self.rows = self.disk.size_and_rows(path)
            self.whole = (newest, size)
        self.deltas = {v: size for v, size in self.deltas.items() if v >= self.whole[0]}
        changes = [(number, path) for number, whole, path in listed if not whole and number >= self.whole[0]]
        for number, path in _newest_of([each for each in changes if each[0] not in self.deltas], self.disk).items():
            self.deltas[number] = self.disk.size_and_rows(path)[0]

    @property
    def size(self) -> float:
        """Bytes of the state; NaN if unknown."""
        since = [self.deltas.get(number, NAN) for number in range(self.whole[0] + 1, self.version + 1)]
        return self.whole[1] + sum(since) if self.version else NAN

    @property
    def changed(self) -> float:
        """Bytes of the newest change; NaN if unknown."""
        return self.deltas.get(self.version, NAN)


class StateSizes:
    """State sizes of one run of a stage, as of the newest batch passed to `look` whose files are listed."""

    def __init__(self, stage: "StatefulStage", disk: StateDisk, *, listing_cores: float = LISTING_CORES) -> None:
        self._disk, self._listing_cores = disk, listing_cores
        self._stores = [[_Store(folder, disk) for folder in stores] for stores in folders_of(stage)]
        self._seen, self._not_before = (0, 0), 0.0

    def look(self, batch: int) -> None:
        began = time.monotonic()
        if batch < self._seen[0] or began < self._not_before or (now := (batch, self._disk.look())) == self._seen:
            return
        self._seen = now
        for stores in self._stores:
            for store in stores:
                store.look(batch + 1)
        spent = time.monotonic() - began
        self._not_before = began + spent / self._listing_cores

    @property
    def megabytes(self) -> Floats:
        """State of each partition, shape (partitions,): its newest snapshot and later changes."""
        return self._bytes / MEGABYTE

    @property
    def rows(self) -> Floats:
        """Rows of each partition's newest snapshot, shape (partitions,); NaN unless RocksDB counted them."""
        return np.array([known_sum([each.rows for each in stores if has_rows(each.folder)]) for stores in self._stores])

    @property
    def _bytes(self) -> Floats:
        return np.array([math.fsum(store.size for store in stores) for stores in self._stores])

    @property
    def delta(self) -> float:
        """Size of the newest batch's changes relative to the state; NaN if the state is empty or no changes are written."""
        whole = float(self._bytes.sum())
        changed = [store.changed for stores in self._stores for store in stores]
        return math.fsum(changed) / whole if whole > 0 else NAN


def local_path(address: str) -> str | None:
    """Return the path in an address of Hadoop, which escapes nothing; None unless it is on this machine."""
    match = LOCAL.fullmatch(address)
    return match[1] if match else None


def written_files(folder: Path | str) -> Iterator[Listed]:
    """Yield the files in `folder`; nothing if there is no such folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    yield from named_files(f"{folder}/{name}" for name in names)


def named_files(paths: Iterable[str]) -> Iterator[Listed]:
    """Yield those of `paths` whose names a store gives."""
    for path in paths:
        if match := STATE_FILE_NAME.fullmatch(path.rpartition("/")[2]):
            yield int(match[1]), match[2] in WHOLE, path


class StateFiles(NamedTuple):
    """Files that an executor reads to open a store: the newest snapshot ("" without one) and the changes since."""

    snapshot: str
    changes: tuple[str, ...]


def files_of(folder: str, version: int, disk: StateDisk) -> StateFiles:
    """Return the files of the store in `folder` at `version`."""
    files = [each for each in disk.files(folder) if each[0] <= version]
    newest, _, snapshot = max((each for each in files if each[1]), default=(0, True, ""))
    changes = _newest_of([(number, path) for number, whole, path in files if not whole and number > newest], disk)
    return StateFiles(snapshot, tuple(changes.values()))


def _newest_of(files: Sequence[tuple[int, str]], disk: StateDisk) -> dict[int, str]:
    """Return a file of changes for each version, in order.

    A batch that ran again leaves two in format 2; its commit names the one that was written last.
    """
    versions = Counter(number for number, _ in files)
    ordered = [(number, disk.modified(path) if versions[number] > 1 else 0.0, path) for number, path in files]
    return {number: path for number, _, path in sorted(ordered)}


def modified(path: str) -> float:
    """Return when a file was written (epoch seconds); 0 if it is gone."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


class MoveLoad(NamedTuple):
    """State that a move loads.

    Attributes:
        megabytes: NaN if unknown.
        changed: MB of the changes since the snapshot in it.
        logs: Files of these changes.
        current: False if the files were listed a while ago.
    """

    megabytes: float = NAN
    changed: float = 0.0
    logs: int = 0
    current: bool = True

    @property
    def worth_a_snapshot(self) -> bool:
        """Return True if Spark's own snapshot is overdue, and the changes outweigh the last one."""
        return self.current and self.logs > DELTAS and self.changed > FEW_MB and 2 * self.changed > self.megabytes

    @property
    def text(self) -> str:
        if self.megabytes != self.megabytes:
            return ""
        changes = f", with {counted(self.logs, 'change log')}" if self.logs else ""
        return f"it loads {self.megabytes:.3g} MB of state{changes}"


def move_load(saved: "SavedState | None", partition: int) -> MoveLoad:
    if saved is None:
        return MoveLoad()
    disk = saved.disk
    opened = [files_of(_store_folder(at, partition, store), saved.version, disk) for at, store in saved.stores]
    if not any(each.snapshot or each.changes for each in opened):
        return MoveLoad()
    whole = math.fsum(disk.size_and_rows(each.snapshot)[0] for each in opened if each.snapshot) / MEGABYTE
    changed = math.fsum(disk.size_and_rows(path)[0] for each in opened for path in each.changes) / MEGABYTE
    return MoveLoad(whole + changed, changed, max(len(each.changes) for each in opened), disk.current)


def has_rows(store: str) -> bool:
    """Return False for a store that counts the rows of another."""
    return not store.endswith(COUNTS)


def _store_folder(operator: int, partition: int, store: str) -> str:
    return f"{operator}/{partition}" + ("" if store == DEFAULT else f"/{store}")


def file_size(path: str) -> float:
    """Return the bytes of a file, and of the shared files that it names if it is a RocksDB snapshot; NaN if unreadable."""
    return size_and_rows(path)[0]


def size_and_rows(path: str) -> tuple[float, float]:
    """Return `file_size`, and rows: NaN unless a RocksDB snapshot tells them."""
    try:
        size = float(os.stat(path).st_size)
    except OSError:
        return NAN, NAN
    return packed_size_and_rows(size, path) if path.endswith(".zip") else (size, NAN)


def packed_size_and_rows(size: float, snapshot: str | IO[bytes]) -> tuple[float, float]:
    """Return `size` with a RocksDB snapshot's shared files, and its rows; NaN if unreadable."""
    try:
        with zipfile.ZipFile(snapshot) as packed:
            metadata = packed.read("metadata").decode()
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
        return NAN, NAN
    shared, rows = shared_and_rows(metadata)
    return size + shared, rows


def shared_and_rows(metadata: str) -> tuple[float, float]:
    """Return the bytes of the shared files that a RocksDB snapshot's metadata names, and its rows; NaN if unknown."""
    try:
        about = json.loads(metadata.partition("{")[1] + metadata.partition("{")[2])  # after a line with its version
        rows = about.get("numKeys", -1)  # -1 where RocksDB does not track them
        shared = [*(about.get("sstFiles") or ()), *(about.get("logFiles") or ())]
        return math.fsum(each["sizeBytes"] for each in shared), float(rows) if rows >= 0 else NAN
    except (ValueError, KeyError, TypeError, AttributeError):
        return NAN, NAN
