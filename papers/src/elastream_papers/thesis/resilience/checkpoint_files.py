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


def state_files(folder: Path | str) -> tuple[StateFile, ...]:
    """Return the state files in a partition's `folder`, in order of versions. Of two attempts, the later file is used."""
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
    """Return the ratio of the bytes of changes to the bytes of whole states, summed over partitions.

    Of each partition, the newest version that has both files is used. NaN if a partition has no such version.
    """
    changed = full = 0.0
    for files in partitions:
        changes = {file.version: file.bytes for file in files if not file.whole}
        whole = {file.version: file.bytes for file in files if file.whole and file.version in changes}
        if not whole:
            return math.nan
        changed, full = changed + changes[max(whole)], full + whole[max(whole)]
    return changed / full if full > 0 else math.nan
