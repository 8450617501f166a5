"""Files that Spark's file source has read, from its log under the query's checkpoint, and those that wait.

Sizes of files that are not on this machine are unknown.
"""

import glob
import json
import math
import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from elastream.recording.paths import AnyPath, names_in

# Newest log entries whose files are remembered; a batch adds one.
REMEMBERED_ENTRIES = 1000


class InputFile(NamedTuple):
    """A file. modified: epoch seconds. bytes: size, NaN if unknown."""

    modified: float
    bytes: float
    path: str


class FileLog:
    """The log of a file source in `folder` (`sources/N` in a checkpoint).

    place: local path or glob that the source reads, or None. names: glob of names of files.
    """

    def __init__(self, folder: AnyPath, place: str | None = None, names: str = "") -> None:
        self._folder, self._place, self._names = folder, place, alternatives(names or "*")
        self._entries: dict[int, tuple[InputFile, ...]] = {}
        self._paths: set[str] = set()
        self._next = 0

    def refresh(self) -> None:
        while (entry := self._read(self._next)) is not None:
            self._entries[self._next] = entry
            self._entries.pop(self._next - REMEMBERED_ENTRIES, None)
            self._next += 1

    @property
    def newest(self) -> int:
        """Return the number of the newest entry that was read; -1 before the first."""
        return self._next - 1

    def files(self, after: int, upto: int) -> tuple[InputFile, ...]:
        """Return the files of entries after number `after` up to number `upto`, as far as remembered."""
        return tuple(file for number in range(after + 1, upto + 1) for file in self._entries.get(number, ()))

    def waiting(self) -> list[InputFile] | None:
        """Return the files that no batch has read; None if they cannot be listed."""
        if self._place is None:
            return None
        try:
            paths = (path for path in files_in(self._place) if path not in self._paths)
            return [InputFile(*_status(path), path) for path in paths if self._is_named(os.path.basename(path))]
        except OSError:  # a folder is removed while it is listed
            return None

    def _is_named(self, name: str) -> bool:
        return any(fnmatchcase(name, each) for each in self._names)

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


def alternatives(pattern: str) -> list[str]:
    """Return Python globs for one of Hadoop, which has `{a,b}` and `[^a]`."""
    if (braces := re.search(r"\{([^{}]*)\}", pattern)) is None:
        return [pattern.replace("[^", "[!")]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [each for choice in braces[1].split(",") for each in alternatives(before + choice + after)]


def files_in(place: str) -> Iterator[str]:
    """Yield the paths that Spark's file source reads at `place` (file, folder or glob), without hidden files."""
    patterns = alternatives(place)
    for root in dict.fromkeys(path for each in patterns for path in (glob.glob(each) if glob.has_magic(each) else [each])):
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
