"""Files that Spark's file source took, batch by batch, and those that no batch has taken, without a look into any of them.

Spark logs every file that it takes, with the time of its last modification, under the query's checkpoint. Sizes come from
the file system: where it is not the local one they are unknown, and so is what has not been taken.
"""

import glob
import json
import math
import os
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from elastream.recording.places import Place, names_in

KEPT = 1000
"""Newest entries of the log whose files are remembered; a batch adds one."""


class TakenFile(NamedTuple):
    """A file that a batch took. modified: epoch seconds. bytes: its size, NaN if unknown."""

    modified: float
    bytes: float


class FileLog:
    """The log of a file source in `folder` (`sources/N` in a checkpoint).

    place: the local file, folder or glob that the source reads; None where it is not known or not local.
    """

    def __init__(self, folder: Place, place: str | None = None) -> None:
        self._folder, self._place = folder, place
        self._entries: dict[int, tuple[TakenFile, ...]] = {}
        self._seen: set[str] = set()
        self._next = 0

    def refresh(self) -> None:
        """Read what the log has got since the last call."""
        while (found := self._read(self._next)) is not None:
            self._entries[self._next] = found
            self._entries.pop(self._next - KEPT, None)
            self._next += 1

    def taken(self, after: int, upto: int) -> tuple[TakenFile, ...]:
        """Files of the entries behind number `after` up to number `upto`, as far as remembered."""
        return tuple(file for number in range(after + 1, upto + 1) for file in self._entries.get(number, ()))

    def waiting(self) -> list[TakenFile] | None:
        """Files that no batch has taken; None where they cannot be listed."""
        if self._place is None:
            return None
        try:
            return [TakenFile(*_status(path)) for path in files_in(self._place) if path not in self._seen]
        except OSError:  # a folder is removed while it is listed
            return None

    def _names(self) -> list[str]:
        try:
            return names_in(self._folder)
        except OSError:
            return []

    def _read(self, number: int) -> tuple[TakenFile, ...] | None:
        """Files of one entry; every tenth repeats all files before it, its own last."""
        for name in (str(number), f"{number}.compact"):
            try:
                lines = (self._folder / name).read_text().splitlines()[1:]
            except OSError:  # not written yet, or only the compact one is left
                continue
            files = []
            for line in reversed(lines):
                entry = json.loads(line)
                path = unquote(urlsplit(entry["path"]).path)
                if entry["batchId"] != number and path in self._seen:
                    break
                self._seen.add(path)
                if entry["batchId"] == number:
                    files.append(TakenFile(entry["timestamp"] / 1e3, _status(path)[1]))
            return tuple(files)
        later = sorted(int(name.partition(".")[0]) for name in self._names() if name.endswith(".compact"))
        if later and later[-1] > number:  # entries of an earlier run, of which only the compact ones are left
            self._next = later[-1]
            return self._read(later[-1])
        return None


def files_in(place: str) -> Iterator[str]:
    """Paths of the files that Spark's file source finds at `place`, a file, folder or glob: hidden ones are left out."""
    for root in glob.glob(place) if glob.has_magic(place) else [place]:
        if os.path.isfile(root):
            yield os.path.abspath(root)
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            yield from (os.path.abspath(f"{folder}/{name}") for name in names if not name.startswith(("_", ".")))


def _status(path: str) -> tuple[float, float]:
    try:
        found = os.stat(path)
    except OSError:  # not local, or cleaned up after it was taken
        return math.nan, math.nan
    return found.st_mtime, float(found.st_size)
