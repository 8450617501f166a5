"""Size of one checkpoint relative to the whole state, from the files of a stage's partitions (Fig. 6.12)."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from elastream.spark.telemetry.state_files import file_size, written_files


class StateFile(NamedTuple):
    """A file of one partition's state, written at epoch second `at`. Batch b creates version b + 1."""

    version: int
    whole: bool  # the whole state, not a change
    bytes: float
    at: float


def state_files(folder: Path) -> tuple[StateFile, ...]:
    """Return the state files in a partition's `folder` by version; the newest if two attempts wrote one."""
    files: dict[tuple[int, bool], StateFile] = {}
    for version, whole, path in written_files(folder):
        try:
            at, size = os.stat(path).st_mtime, file_size(path)
        except OSError:  # cleaned up since it was listed
            continue
        other = files.get((version, whole))
        if other is None or other.at < at:
            files[version, whole] = StateFile(version, whole, size, at)
    return tuple(files[key] for key in sorted(files))


def delta_over_full(partitions: Sequence[Sequence[StateFile]]) -> float:
    """Return the size of one checkpoint relative to the state it left; NaN before every partition has a snapshot.

    The newest version of each partition counts that was written both as a change and whole.
    """
    changed = full = 0.0
    for files in partitions:
        changes = {file.version: file.bytes for file in files if not file.whole}
        whole = {file.version: file.bytes for file in files if file.whole and file.version in changes}
        if not whole:
            return math.nan
        changed, full = changed + changes[max(whole)], full + whole[max(whole)]
    return changed / full if full > 0 else math.nan
