"""Dead letters of a run on disk: a JSON line for each batch in which operators left records out, with the counts so far.

A line names its batch, so that a repeated batch is not doubled. A full file replaces the one before it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elastream.errors import InputError
from elastream.recording.lines import Lines, whole_lines

# Bytes of a file; there are at most two.
FULL = 32_000_000
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LeftOutBatch:
    """Records that operators left out of one batch."""

    query: str  # its segment
    batch: int
    counts: Mapping[str, int]  # records by operator
    letters: Sequence[Json] = ()  # the dead letters, up to a limit


@dataclass
class DeadLetters:
    """Dead letters in the file `path`. Raises InputError for damage, JournalProblem without access."""

    path: Path
    full: int = FULL
    # Records left out so far, by operator.
    counts: dict[str, int] = field(default_factory=dict)
    _newest: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lines = Lines(self.path, "the dead letters") if self.path.exists() else None
        lines = [] if self._lines is None else self._lines.read()
        for last in lines[-1:] or list(_read(_older(self.path)))[-1:]:
            self.counts, self._newest = dict(last["so_far"]), dict(last["newest"])

    def has(self, query: str, batch: int) -> bool:
        return batch <= self._newest.get(query, -1)

    def take(self, left_out: LeftOutBatch) -> None:
        """Append a batch and sync it to disk. Call it once per batch; see `has`."""
        if self._lines is not None and self.path.stat().st_size >= self.full:
            self._lines.close()
            os.replace(self.path, _older(self.path))
            self._lines = None
        counts = {
            name: self.counts.get(name, 0) + left_out.counts.get(name, 0) for name in {**self.counts, **left_out.counts}
        }
        newest = {**self._newest, left_out.query: left_out.batch}
        if self._lines is None:
            self._lines = Lines(self.path, "the dead letters")
        self._lines.append({**asdict(left_out), "so_far": counts, "newest": newest})
        self.counts, self._newest = counts, newest

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


def letters(path: Path) -> Iterator[Json]:
    """Yield the stored dead letters, oldest first, as dicts. Raises InputError for damage other than a torn last line."""
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
