"""How large the state of a stage is, and what each checkpoint adds, by the files that Spark's state stores write.

Under the version that a batch makes, both stores write what it changed (`7.delta` in the executors' heap, `7.changelog` of
RocksDB) and from time to time all there is (`7.snapshot`; `7.zip`, which names the shared files that belong to it). So what
an incremental checkpoint saves is known without a look into any state (thesis, 6.4.3 and Fig. 6.12). Names are listed and
sizes asked for; where the checkpoint is not on a file system of this machine, all of it is unknown.
"""

import json
import math
import os
import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np

from elastream.core.frames import Floats
from elastream.spark.jvm.stateful import StatefulStage

WRITTEN = re.compile(r"(\d+)(?:_[\w-]+)?\.(delta|changelog|snapshot|zip)")
"""Name of such a file; format 2 of checkpoints writes an id of the commit behind the version."""
WHOLE = ("snapshot", "zip")
DEFAULT = "default"
"""The store whose files are directly in the folder of a partition; those of others are in one of their name."""
MEGABYTE = 1e6
SHARE = 0.005
"""Cores that listing may take: with hundreds of partitions a look is left out until it may be had again."""
NAN = math.nan


class StateFile(NamedTuple):
    """A file of one partition's state. version: of the state; batch b makes version b + 1. whole: all of the state, not a
    change. bytes: its size, with the shared files that it names. at: epoch second at which it was written.
    """

    version: int
    whole: bool
    bytes: float
    at: float


def folders_of(stage: StatefulStage) -> tuple[tuple[Path, ...], ...]:
    """The folders with the stores of each partition of `stage`; none where they are on no file system of this machine."""
    root = _local(stage.root)
    if root is None:
        return ()
    stores = [(str(each.id), "" if store == DEFAULT else store) for each in stage.operators for store in each.stores]
    return tuple(
        tuple(root / operator / str(partition) / store for operator, store in stores)
        for partition in range(stage.partitions)
    )


def state_files(folder: Path) -> tuple[StateFile, ...]:
    """All files of the state in `folder`, a partition's, by version; of one that two attempts wrote, the newest."""
    found: dict[tuple[int, bool], StateFile] = {}
    for version, whole, path in _written(folder):
        try:
            at, size = os.stat(path).st_mtime, _size(path)
        except OSError:  # cleaned up since it was listed
            continue
        known = found.get((version, whole))
        if known is None or known.at < at:
            found[version, whole] = StateFile(version, whole, size, at)
    return tuple(found[key] for key in sorted(found))


def delta_over_full(partitions: Sequence[Sequence[StateFile]]) -> float:
    """What one checkpoint wrote over the whole state that it left, NaN before every partition has a snapshot.

    partitions: `state_files` of each, of which the newest version counts that was written both as a change and whole.
    """
    changed = full = 0.0
    for files in partitions:
        changes = {file.version: file.bytes for file in files if not file.whole}
        whole = {file.version: file.bytes for file in files if file.whole and file.version in changes}
        if not whole:
            return NAN
        changed, full = changed + changes[max(whole)], full + whole[max(whole)]
    return changed / full if full > 0 else NAN


@dataclass
class _Store:
    """What is known of the store in one folder. whole: version and bytes of the newest snapshot; at first there is nothing.

    deltas: bytes by version of what was written with it and since.
    """

    folder: Path
    whole: tuple[int, float] = (0, 0.0)
    deltas: dict[int, float] = field(default_factory=dict)

    def look(self, version: int) -> None:
        """Take in what was written up to `version`."""
        listed = [each for each in _written(self.folder) if each[0] <= version]
        snapshots = [each for each in listed if each[1] and each[0] > self.whole[0]]
        if snapshots:
            newest, _, path = max(snapshots)
            self.whole = (newest, _size(path))
        self.deltas = {v: size for v, size in self.deltas.items() if v >= self.whole[0]}
        for number, whole, path in listed:
            if not whole and number >= self.whole[0] and number not in self.deltas:
                self.deltas[number] = _size(path)

    def size(self, version: int) -> float:
        """Bytes of the state as of `version`; NaN where a file that it needs is not there."""
        since = [self.deltas.get(number, NAN) for number in range(self.whole[0] + 1, version + 1)]
        return self.whole[1] + sum(since)

    def changed(self, version: int) -> float:
        """Bytes of what the batch behind `version` changed; NaN where no such file is there."""
        return self.deltas.get(version, NAN)


class StateSizes:
    """Sizes of the state of one run of a stage, as of the newest batch that `look` was told of."""

    def __init__(self, stage: StatefulStage, *, listing_cores: float = SHARE) -> None:
        self._listing_cores = listing_cores
        self._unknown = np.full(stage.partitions, NAN)
        self._stores = [[_Store(folder) for folder in stores] for stores in folders_of(stage)]
        self._version, self._not_before = 0, 0.0

    def look(self, batch: int) -> None:
        """Take in what was written up to `batch`, the newest that was committed."""
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
        """The whole state of each partition, shape (partitions,): its newest snapshot and what was written since."""
        return self._bytes / MEGABYTE

    @property
    def _bytes(self) -> Floats:
        if not self._version or not self._stores:
            return self._unknown
        return np.array([math.fsum(store.size(self._version) for store in stores) for stores in self._stores])

    @property
    def delta(self) -> float:
        """What the newest batch wrote over the whole state; NaN where that is empty, or the store writes no changes."""
        whole = float(self._bytes.sum())
        changed = [store.changed(self._version) for stores in self._stores for store in stores]
        return math.fsum(changed) / whole if whole > 0 else NAN


def _local(root: str) -> Path | None:
    parts = urlsplit(root)
    return Path(unquote(parts.path)) if parts.scheme in ("", "file") else None


def _written(folder: Path) -> Iterator[tuple[int, bool, str]]:
    """(version, whether it is all of the state, path) of each file in `folder`; nothing where there is no such folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if match := WRITTEN.fullmatch(name):
            yield int(match[1]), match[2] in WHOLE, f"{folder}/{name}"


def _size(path: str) -> float:
    """Bytes of a file, with the shared ones that a snapshot of RocksDB names; NaN where it is gone, or cannot be read."""
    try:
        size = float(os.stat(path).st_size)
        if not path.endswith(".zip"):
            return size
        with zipfile.ZipFile(path) as snapshot:
            about = json.loads(snapshot.read("metadata").decode().partition("\n")[2])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return NAN
    shared = [*(about.get("sstFiles") or ()), *(about.get("logFiles") or ())]
    return size + math.fsum(each["sizeBytes"] for each in shared)
