"""Dead letters of a run on disk: a JSON line for each batch of which operators left records out.

A line is written whole or not at all, and names its batch: so a batch that is taken in again, after a crash in between, is
not doubled. The newest are kept: a file that is full takes the place of the one before it. Each line has the counts so far.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastream.errors import InputError
from elastream.recording.lines import Lines, whole_lines

FULL = 32_000_000
"""Bytes of a file; of two files at most."""
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LeftOutBatch:
    """What operators left out of one batch. query: its segment. counts: records by operator. letters: those kept."""

    query: str
    batch: int
    counts: Mapping[str, int]
    letters: Sequence[Json] = ()


@dataclass
class DeadLetters:
    """The file `path` of dead letters, which is made with the first of them.

    Raises InputError where it cannot be understood, JournalProblem where it cannot be read or written.
    """

    path: Path
    full: int = FULL
    counts: dict[str, int] = field(default_factory=dict)
    """Records left out so far, by operator."""
    _newest: dict[str, int] = field(default_factory=dict)
    _lines: Lines | None = None

    def __post_init__(self) -> None:
        if self.path.exists():
            self._lines = Lines(self.path, "the dead letters")
            found = self._lines.read()
        else:
            found = []
        for last in found[-1:] or list(_read(_older(self.path)))[-1:]:
            self.counts, self._newest = dict(last["so_far"]), dict(last["newest"])

    def has(self, query: str, batch: int) -> bool:
        """Whether that batch was taken in."""
        return batch <= self._newest.get(query, -1)

    def take(self, found: LeftOutBatch) -> None:
        """Append a batch; it is on disk when this returns. Not twice: see `has`."""
        if self._lines is not None and self.path.stat().st_size >= self.full:
            self._lines.close()
            os.replace(self.path, _older(self.path))
            self._lines = None
        counts = {name: self.counts.get(name, 0) + found.counts.get(name, 0) for name in {**self.counts, **found.counts}}
        newest = {**self._newest, found.query: found.batch}
        if self._lines is None:
            self._lines = Lines(self.path, "the dead letters")
        fields = {"query": found.query, "batch": found.batch, "counts": dict(found.counts), "letters": list(found.letters)}
        self._lines.append({**fields, "so_far": counts, "newest": newest})
        self.counts, self._newest = counts, newest

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._lines is not None:
            self._lines.close()


def letters(path: Path) -> Iterator[Json]:
    """The dead letters that are kept, the oldest first: query, batch, operator, alternate, error, record, and key if any.

    Raises InputError for damage, but not for a last line that a crash has torn.
    """
    for line in (*_read(_older(path)), *_read(path)):
        yield from ({"query": line["query"], "batch": line["batch"], **letter} for letter in line["letters"])


def _older(path: Path) -> Path:
    return path.with_name(f"{path.stem}.1{path.suffix}")


def _read(path: Path) -> Iterator[Json]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    yield from whole_lines(content, path)
