"""Durable JSON lines: a line is on disk before `append` returns. A line torn by a crash is cut off on reopening."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import create_private
from elastream.recording.formats import marked, unmarked
from elastream.systems import lock


def _write(file: FileIO, content: bytes) -> int:
    return file.write(content)


WRITE: Callable[[FileIO, bytes], int] = _write
# Writes and syncs of all files that must survive a crash; the fault campaign replaces them.
SYNC: Callable[[int], None] = os.fsync


class JournalProblem(EnvironmentProblem):
    """A line could not be written to disk: the caller must not act on it or answer with it."""


class Lines:
    """JSON lines in the file `path`, created if missing; errors call it `what`. Raises JournalProblem."""

    def __init__(self, path: Path | str, what: str) -> None:
        self.path = Path(path)
        self.what = what
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._content = self.path.read_bytes() if self.path.is_file() else b""
            if self._content:
                whole = self._content.rfind(b"\n") + 1
                self._content = self._content[:whole]
                os.truncate(self.path, whole)
            self.count = self._content.count(b"\n")
            # Unbuffered: close must not retry a failed write.
            self._file: FileIO = create_private(self.path).open("ab", buffering=0)
        except OSError as error:
            raise self._problem(error) from error

    def read(self) -> list[dict[str, Any]]:
        """Return the lines present when the file was opened, on the first call only. Raises InputError as `whole_lines`."""
        content, self._content = self._content, b""
        return list(whole_lines(content, self.path))

    def append(self, fields: Mapping[str, Any]) -> None:
        end = None
        try:
            end = self._file.seek(0, os.SEEK_END)
            write_whole(self._file, line(fields if end else marked(fields)))
            self.count += 1
        except OSError as error:
            if end is not None:
                # Half a line would spoil the next one, should there be room again; the problem is raised in any case.
                with contextlib.suppress(OSError):
                    self._file.truncate(end)
            raise self._problem(error) from error

    def replace(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Replace all lines atomically."""
        content = b"".join(line(marked(each) if not number else each) for number, each in enumerate(entries))
        try:
            replace_whole(self.path, content)
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)  # or the next lines might survive a power failure in a file without a name
            os.close(folder)
            fresh = create_private(self.path).open("ab", buffering=0)
        except OSError as error:
            raise self._problem(error) from error
        self._file.close()
        self._file, self.count = fresh, content.count(b"\n")

    def close(self) -> None:
        self._file.close()

    def _problem(self, error: OSError) -> JournalProblem:
        return JournalProblem(f"{self.what} {self.path} cannot be written: {error.strerror or error}")


def whole_lines(content: bytes, place: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of `content` of the file `place`. Raises InputError for malformed ones or a newer format."""
    for number, each in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            fields = json.loads(each)
        except ValueError as error:
            raise InputError(f"{place}, line {number}: not JSON ({error})") from error
        if not isinstance(fields, dict):
            raise InputError(f"{place}, line {number}: not a JSON object")
        yield unmarked(fields, place) if number == 1 else fields


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Lock the file `path`, created if missing, against other writers; yield its descriptor. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(create_private(path), os.O_RDWR | os.O_CLOEXEC)
    try:
        lock(file)
        yield file
    finally:
        os.close(file)  # which releases the lock


def append_at(file: int, end: int, fields: Mapping[str, Any]) -> None:
    """Append a line to a locked file whose whole lines end at byte `end`: half a line of a crash is cut off."""
    os.ftruncate(file, end)
    os.lseek(file, 0, os.SEEK_END)
    with open(file, "ab", buffering=0, closefd=False) as raw:
        write_whole(raw, line(fields if end else marked(fields)))


def appended(path: Path, offset: int) -> list[bytes]:
    """Return the complete lines of a file, if it exists, from byte `offset` on."""
    try:
        if path.stat().st_size <= offset:
            return []
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return []
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def line(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, separators=(",", ":")) + "\n").encode()


def write_whole(file: FileIO, content: bytes) -> None:
    """Write all of `content` to an unbuffered file and sync it to disk."""
    while content:
        content = content[WRITE(file, content) :]
    SYNC(file.fileno())


def replace_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, also across a crash. Creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with create_private(temporary).open("wb", buffering=0) as file:
        write_whole(file, content)
    os.replace(temporary, path)
