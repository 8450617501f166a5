"""Records of one task that an operator left out, as its function raised on them: counted, and kept where that is wanted.

A task writes a file of its own as it goes, so that all of it is there before its batch is committed; the driver takes in
the files of committed batches (`spark.telemetry.left_out`). A file is that of one attempt: of a task that ran again the
newest attempt says what holds, also where it left nothing out. Nothing is written while nothing is left out. On a file
system that is not mounted all of a file is written when the task says so (`flush`).
"""

import json
import threading
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO, FileIO
from typing import Any, TypeAlias
from urllib.parse import quote

from pyspark import TaskContext

from elastream.errors import first_line
from elastream.recording.places import Place, RemotePath

KEPT = 1000
"""Dead letters that one task of a batch keeps; those beyond are counted."""
BYTES = 1_000_000
"""Bytes of them."""
LONGEST = 10_000
"""Most characters of a record, or of a key."""
SAID = 500
"""Most characters of an error."""
DIGITS = 12
"""Width of a count, which is written over as it grows."""

LeaveOut: TypeAlias = Callable[[BaseException | str, Sequence[Any]], None]
"""Takes an error, and the records that are left out because of it."""


class LeftOut:
    """What one task leaves out. folder: of its query; None: it is counted here only. lead: of the task's stage."""

    def __init__(
        self, folder: Place | None, batch: int, lead: str, task: int, attempt: tuple[int, bool] = (0, False)
    ) -> None:
        number, again = attempt
        self._path = (
            None if folder is None or batch < 0 else folder / str(batch) / f"{quote(lead, safe='')}-{task}.{number}"
        )
        self._file: FileIO | BytesIO | None = None
        self._lock = threading.Lock()  # functions that wait run on several threads
        self._places: dict[tuple[str, str], int] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self._kept = self._bytes = 0
        if again and self._path is not None:
            self._open()

    def by(self, operator: str, alternate: str, *, keep: bool) -> LeaveOut:
        """What takes the records that `alternate` of `operator` raises on; keep: as dead letters."""
        return partial(self.add, operator, alternate, keep)

    def add(
        self, operator: str, alternate: str, keep: bool, error: BaseException | str, records: Sequence[Any], key: Any = None
    ) -> None:
        """Count `records`, of `key` if they have one, and keep them with `error` if `keep`. Raises OSError."""
        with self._lock:
            self._count((operator, alternate), len(records))
            what = error if isinstance(error, str) else _said(error)
            for record in records if keep else ():
                letter = {"operator": operator, "alternate": alternate, "error": what[:SAID], "record": _shown(record)}
                letter |= {} if key is None else {"key": _shown(key)}
                line = json.dumps(letter, default=repr).encode() + b"\n"
                if self._kept == KEPT or self._bytes + len(line) > BYTES:
                    return
                self._kept, self._bytes = self._kept + 1, self._bytes + len(line)
                self._append(line)

    def flush(self) -> None:
        """Let all that was left out so far be in the file. Raises OSError."""
        if isinstance(self._file, BytesIO) and self._path is not None:
            self._path.write_bytes(self._file.getvalue())

    def _count(self, what: tuple[str, str], more: int) -> None:
        self.counts[what] = count = self.counts.get(what, 0) + more
        if what not in self._places:
            head = json.dumps({"operator": what[0], "alternate": what[1]})[:-1].encode() + b', "count": '
            self._places[what] = self._append(head + f"{count:>{DIGITS}}".encode() + b"}\n") + len(head)
        elif self._file is not None:
            self._file.seek(self._places[what])
            self._file.write(f"{count:>{DIGITS}}".encode())

    def _append(self, line: bytes) -> int:
        """Append a line; where in the file it begins."""
        if self._path is None:
            return 0
        file = self._file or self._open()
        at = file.seek(0, 2)
        if file.write(line) != len(line):  # a disk that is full takes a part first
            raise OSError(28, "No space left on device", str(self._path))
        return at

    def _open(self) -> FileIO | BytesIO:
        assert self._path is not None
        if isinstance(self._path, RemotePath):
            self._file = BytesIO()
            return self._file
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("wb", buffering=0)
        return self._file


def attempt_of(context: TaskContext | None) -> tuple[int, bool]:
    """Number of a task's attempt, unique in its application, and whether one failed before it."""
    if context is None:
        return 0, False
    return int(context.taskAttemptId()), context.attemptNumber() > 0


def _said(error: BaseException) -> str:
    name, said = type(error).__name__, first_line(error)
    return said if said == name else f"{name}: {said}"


def _shown(record: Any) -> Any:
    """A record as JSON has it; as text, cut off, where it is long or JSON cannot have it."""
    try:
        text = json.dumps(record, default=repr)
    except (TypeError, ValueError):
        text = repr(record)
    else:
        if len(text) <= LONGEST:
            return record
    return text[:LONGEST]
