"""Files that Spark's file source has read, from its log under the query's checkpoint, and those that wait.

Sizes of files that are not on this machine are unknown.
"""

import glob
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from elastream.recording.paths import AnyPath, names_in
from elastream.spark.telemetry.batches import SourceLimit, SourceProgress

NAN = float("nan")

# Newest log entries whose files are remembered; a batch adds one.
REMEMBERED_ENTRIES = 1000


class InputFile(NamedTuple):
    """A file. modified: epoch seconds. bytes: size, NaN if unknown."""

    modified: float
    bytes: float
    path: str


class FileLog:
    """The log of a file source in `folder` (`sources/N` in a checkpoint).

    place: local file, folder or glob that the source reads; None if unknown or not local. names: glob of names of files.
    """

    def __init__(self, folder: AnyPath, place: str | None = None, names: str = "") -> None:
        self._folder, self._place, self._names = folder, place, names or "*"
        self._entries: dict[int, tuple[InputFile, ...]] = {}
        self._paths: set[str] = set()
        self._next = 0

    def refresh(self) -> None:
        """Read the new entries of the log."""
        while (entry := self._read(self._next)) is not None:
            self._entries[self._next] = entry
            self._entries.pop(self._next - REMEMBERED_ENTRIES, None)
            self._next += 1

    def files(self, after: int, upto: int) -> tuple[InputFile, ...]:
        """Return the files of entries after number `after` up to number `upto`, as far as remembered."""
        return tuple(file for number in range(after + 1, upto + 1) for file in self._entries.get(number, ()))

    def waiting(self) -> list[InputFile] | None:
        """Return the files that no batch has read; None if they cannot be listed."""
        if self._place is None:
            return None
        try:
            paths = (path for path in files_in(self._place) if path not in self._paths)
            return [InputFile(*_status(path), path) for path in paths if fnmatchcase(os.path.basename(path), self._names)]
        except OSError:  # a folder is removed while it is listed
            return None

    def _read(self, number: int) -> tuple[InputFile, ...] | None:
        """Return the files of one entry. Every tenth entry repeats all earlier files, its own last."""
        for name in (str(number), f"{number}.compact"):
            try:
                lines = (self._folder / name).read_text().splitlines()[1:]
            except OSError:  # not written yet, or only the compact one is left
                continue
            files = []
            for line in reversed(lines):
                entry = json.loads(line)
                path = unquote(urlsplit(entry["path"]).path)
                if entry["batchId"] != number and path in self._paths:
                    break
                self._paths.add(path)
                if entry["batchId"] == number:
                    files.append(InputFile(entry["timestamp"] / 1e3, _status(path)[1], path))
            return tuple(files)
        try:
            later = max(int(name.partition(".")[0]) for name in names_in(self._folder) if name.endswith(".compact"))
        except (OSError, ValueError):  # no folder, or no such entry
            return None
        if later <= number:
            return None
        self._next = later  # entries of an earlier run, of which only the compact ones are left
        return self._read(later)


def files_in(place: str) -> Iterator[str]:
    """Yield the paths that Spark's file source reads at `place` (file, folder or glob), without hidden files."""
    for root in glob.glob(place) if glob.has_magic(place) else [place]:
        if os.path.isfile(root):
            yield os.path.abspath(root)
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            yield from (os.path.abspath(f"{folder}/{name}") for name in names if not name.startswith(("_", ".")))


def _status(path: str) -> tuple[float, float]:
    try:
        status = os.stat(path)
    except OSError:  # not local, or cleaned up after it was taken
        return math.nan, math.nan
    return status.st_mtime, float(status.st_size)


class HeldFiles:
    """Files that a file source with a limit still holds back, which no progress reports.

    A file that a look does not list comes later, whatever its modification time. Files of the first look count from `since`
    at the earliest.
    """

    def __init__(self, log: FileLog, limit: SourceLimit, since: float) -> None:
        self._log, self._limit, self._looked = log, limit, since
        self._came: dict[str, float] = {}
        self._bytes = self._records = 0.0

    def dated(self, progress: SourceProgress) -> SourceProgress:
        """Return the progress of a batch, with the time since when its files wait and if it took all."""
        if "logOffset" not in progress.end:
            return progress
        self._log.refresh()
        files = self._log.files(int(progress.start.get("logOffset", -1)), int(progress.end["logOffset"]))
        if not files:
            return progress
        came = [self._came.pop(file.path, max(self._looked, file.modified)) for file in files]
        size = math.fsum(file.bytes for file in files)
        if size > 0 and progress.rows > 0:
            self._bytes, self._records = self._bytes + size, self._records + progress.rows
        all_taken = True if self._limit.unit == "files" and len(files) < self._limit.most else None
        return self.looked(replace(progress, waiting=min(came), everything=all_taken))

    def looked(self, progress: SourceProgress, now: float = NAN) -> SourceProgress:
        """Return the progress of the newest batch with what waits as of now (epoch seconds)."""
        waiting = self._log.waiting()
        if waiting is None:
            return progress
        for file in waiting:
            self._came.setdefault(file.path, max(self._looked, file.modified))
        if now == now:
            self._looked = now
        each = self._records / self._bytes if self._bytes > 0 else NAN
        behind = each * math.fsum(file.bytes for file in waiting) if waiting else 0.0
        return replace(progress, behind=behind, everything=not waiting)


def held_files(checkpoint: str, number: int, description: str, limit: SourceLimit, since: float) -> HeldFiles | None:
    """Return what source `number` of a query holds back, if it is a limited file source with a checkpoint on this machine.

    Args:
        checkpoint: The query's, as a URI.
        description: The source's, with its folder.
        limit: Limit of its reads.
        since: Epoch second at which the query was first seen.
    """
    folder, place = _local(checkpoint), re.fullmatch(r"FileStreamSource\[(.*)\]", description)
    if limit.unit == "all" or folder is None or place is None:
        return None
    # Spark reads a sink's folder by the sink's log. Hadoop's globs have alternatives, Python's do not.
    local = _local(place[1])
    listed = local is not None and limit.files != "?" and "{" not in limit.files + local
    if local is not None and os.path.isdir(os.path.join(local, "_spark_metadata")):
        listed = False
    log = FileLog(Path(folder) / "sources" / str(number), local if listed else None, limit.files)
    return HeldFiles(log, limit, since)


def _local(address: str) -> str | None:
    parts = urlsplit(address)
    return unquote(parts.path) if parts.scheme in ("", "file") and parts.path else None
