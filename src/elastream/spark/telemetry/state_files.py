"""Size of a stage's state and of each checkpoint, from names and sizes of the files that Spark's state stores write.

`checkpoints.state` describes the files. Cf. thesis, 6.4.3. Unknown unless the checkpoint is on this machine.
"""

import json
import math
import os
import re
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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


def folders_of(stage: "StatefulStage") -> tuple[tuple[Path, ...], ...]:
    """Return the store folders of each partition of `stage`; empty unless they are on a file system of this machine."""
    if (local := local_path(stage.root)) is None:
        return ()
    root = Path(local)
    stores = [(each.id, store) for each in stage.operators for store in each.stores]
    return tuple(
        tuple(_store_folder(root, operator, partition, store) for operator, store in stores)
        for partition in range(stage.partitions)
    )


@dataclass
class _Store:
    folder: Path
    whole: tuple[int, float] = (0, 0.0)  # version and bytes of the newest snapshot
    rows: float = NAN  # rows of the newest snapshot
    deltas: dict[int, float] = field(default_factory=dict)  # bytes of changes by version, since then

    def look(self, version: int) -> None:
        listed = [each for each in written_files(self.folder) if each[0] <= version]
        snapshots = [each for each in listed if each[1] and each[0] > self.whole[0]]
        if snapshots:
            newest, _, path = max(snapshots)
            size, self.rows = size_and_rows(path)
            self.whole = (newest, size)
        self.deltas = {v: size for v, size in self.deltas.items() if v >= self.whole[0]}
        changes = [(number, path) for number, whole, path in listed if not whole and number >= self.whole[0]]
        for number, path in newest_of([each for each in changes if each[0] not in self.deltas]).items():
            self.deltas[number] = file_size(path)

    def size(self, version: int) -> float:
        """Return the bytes of the state at `version`, or NaN."""
        since = [self.deltas.get(number, NAN) for number in range(self.whole[0] + 1, version + 1)]
        return self.whole[1] + sum(since)

    def changed(self, version: int) -> float:
        """Return the bytes that the batch before `version` changed, or NaN."""
        return self.deltas.get(version, NAN)


class StateSizes:
    """State sizes of one run of a stage, as of the newest batch passed to `look`."""

    def __init__(self, stage: "StatefulStage", *, listing_cores: float = LISTING_CORES) -> None:
        self._listing_cores = listing_cores
        self._unknown = np.full(stage.partitions, NAN)
        self._stores = [[_Store(folder) for folder in stores] for stores in folders_of(stage)]
        self._version, self._not_before = 0, 0.0

    def look(self, batch: int) -> None:
        began = time.monotonic()
        if batch < self._version or began < self._not_before:
            return
        self._version = batch + 1
        for stores in self._stores:
            for store in stores:
                store.look(self._version)
        spent = time.monotonic() - began
        self._not_before = began + spent / self._listing_cores

    @property
    def megabytes(self) -> Floats:
        """State of each partition, shape (partitions,): its newest snapshot and later changes."""
        return self._bytes / MEGABYTE

    @property
    def rows(self) -> Floats:
        """Rows of each partition's newest snapshot, shape (partitions,); NaN unless RocksDB counted them."""
        if not self._stores:
            return self._unknown
        return np.array([known_sum([each.rows for each in stores if has_rows(each.folder)]) for stores in self._stores])

    @property
    def _bytes(self) -> Floats:
        if not self._version or not self._stores:
            return self._unknown
        return np.array([math.fsum(store.size(self._version) for store in stores) for stores in self._stores])

    @property
    def delta(self) -> float:
        """Size of the newest batch's changes relative to the state; NaN if the state is empty or no changes are written."""
        whole = float(self._bytes.sum())
        changed = [store.changed(self._version) for stores in self._stores for store in stores]
        return math.fsum(changed) / whole if whole > 0 else NAN


def local_path(address: str) -> str | None:
    """Return the path in an address of Hadoop, which escapes nothing; None unless it is on this machine."""
    match = LOCAL.fullmatch(address)
    return match[1] if match else None


def written_files(folder: Path) -> Iterator[tuple[int, bool, str]]:
    """Yield (version, True if whole state, path) of each file in `folder`; nothing if there is no such folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if match := STATE_FILE_NAME.fullmatch(name):
            yield int(match[1]), match[2] in WHOLE, f"{folder}/{name}"


class StateFiles(NamedTuple):
    """Files that an executor reads to open a store: the newest snapshot ("" without one) and the changes since."""

    snapshot: str
    changes: tuple[str, ...]


def files_of(folder: Path, version: int) -> StateFiles:
    """Return the files of the store in `folder` at `version`."""
    files = [each for each in written_files(folder) if each[0] <= version]
    newest, _, snapshot = max((each for each in files if each[1]), default=(0, True, ""))
    changes = newest_of([(number, path) for number, whole, path in files if not whole and number > newest])
    return StateFiles(snapshot, tuple(changes.values()))


def newest_of(files: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Return a file of changes for each version, in order.

    A batch that ran again leaves two in format 2; its commit names the one that was written last.
    """
    versions = Counter(number for number, _ in files)
    ordered = [(number, modified(path) if versions[number] > 1 else 0.0, path) for number, path in files]
    return {number: path for number, _, path in sorted(ordered)}


def modified(path: str) -> float:
    """Return when a file was written; 0 if it is gone."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


class MoveLoad(NamedTuple):
    """State that a move loads, in MB (NaN if unknown), the changes since the snapshot in it, and their files."""

    megabytes: float = NAN
    changed: float = 0.0
    logs: int = 0

    @property
    def worth_a_snapshot(self) -> bool:
        """Return True if Spark's own snapshot is overdue, and the changes outweigh the last one."""
        return self.logs > DELTAS and self.changed > FEW_MB and 2 * self.changed > self.megabytes

    @property
    def text(self) -> str:
        if self.megabytes != self.megabytes:
            return ""
        changes = f", with {counted(self.logs, 'change log')}" if self.logs else ""
        return f"it loads {self.megabytes:.3g} MB of state{changes}"


def move_load(saved: "SavedState | None", partition: int) -> MoveLoad:
    if saved is None or (local := local_path(saved.root)) is None:
        return MoveLoad()
    opened = [files_of(_store_folder(Path(local), at, partition, store), saved.version) for at, store in saved.stores]
    if not any(each.snapshot or each.changes for each in opened):
        return MoveLoad()
    whole = math.fsum(file_size(each.snapshot) for each in opened if each.snapshot) / MEGABYTE
    changed = math.fsum(file_size(path) for each in opened for path in each.changes) / MEGABYTE
    return MoveLoad(whole + changed, changed, max(len(each.changes) for each in opened))


def has_rows(store: Path) -> bool:
    """Return False for a store that counts the rows of another."""
    return not store.name.endswith(COUNTS)


def _store_folder(root: Path, operator: int, partition: int, store: str) -> Path:
    return root / str(operator) / str(partition) / ("" if store == DEFAULT else store)


def file_size(path: str) -> float:
    """Return the bytes of a file, and of the shared files that it names if it is a RocksDB snapshot; NaN if unreadable."""
    return size_and_rows(path)[0]


def size_and_rows(path: str) -> tuple[float, float]:
    """Return the bytes of `path` as `file_size` does, and its rows: NaN unless a RocksDB snapshot tells them."""
    try:
        size = float(os.stat(path).st_size)
        if not path.endswith(".zip"):
            return size, NAN
        with zipfile.ZipFile(path) as snapshot:
            about = json.loads(snapshot.read("metadata").decode().partition("\n")[2])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return NAN, NAN
    rows = about.get("numKeys", -1)  # -1 where RocksDB does not track them
    shared = [*(about.get("sstFiles") or ()), *(about.get("logFiles") or ())]
    return size + math.fsum(each["sizeBytes"] for each in shared), float(rows) if rows >= 0 else NAN
