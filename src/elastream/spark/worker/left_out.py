"""Records of one task that an operator left out because its function raised.

Each task attempt writes a file before its batch commits; the newest attempt counts.
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
from elastream.recording.paths import AnyPath, RemotePath

# Dead letters stored per task and batch; further ones are only counted.
MAX_LETTERS = 1000
MAX_LETTERS_BYTES = 1_000_000
# Of a record or a key.
MAX_RECORD_CHARS = 10_000
MAX_ERROR_CHARS = 500
# Fixed width, because a count is overwritten in place as it grows.
COUNT_WIDTH = 12

# Takes an error and the records that are left out because of it.
LeaveOut: TypeAlias = Callable[[BaseException | str, Sequence[Any]], None]


class LeftOut:
    """Records that one task of the stage of `lead` leaves out: counted, and stored in the query's `folder`, if any."""

    def __init__(
        self, folder: AnyPath | None, batch: int, lead: str, task: int, attempt: tuple[int, bool] = (0, False)
    ) -> None:
        number, again = attempt
        name = f"{quote(lead, safe='')}-{task}.{number}"
        self._path = None if folder is None or batch < 0 else folder / str(batch) / name
        self._file: FileIO | BytesIO | None = None
        self._lock = threading.Lock()  # waiting functions run on several threads
        self._places: dict[tuple[str, str], int] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self._letters = self._bytes = 0
        # The newest attempt's file replaces those before, so it exists even if nothing is left out.
        if again and self._path is not None:
            self._open()

    def by(self, operator: str, alternate: str, *, keep: bool) -> LeaveOut:
        """Return a function that leaves out records on which `alternate` raises."""
        return partial(self.add, operator, alternate, keep)

    def add(
        self, operator: str, alternate: str, keep: bool, error: BaseException | str, records: Sequence[Any], key: Any = None
    ) -> None:
        """Count `records`, and store them with `error` and `key` if `keep`. Raises OSError."""
        with self._lock:
            self._count((operator, alternate), len(records))
            what = error if isinstance(error, str) else _describe(error)
            for record in records if keep else ():
                letter = {"operator": operator, "alternate": alternate, "error": what[:MAX_ERROR_CHARS]}
                letter |= {"record": _as_json(record)} | ({} if key is None else {"key": _as_json(key)})
                line = json.dumps(letter, default=repr).encode() + b"\n"
                if self._letters == MAX_LETTERS or self._bytes + len(line) > MAX_LETTERS_BYTES:
                    return
                self._letters, self._bytes = self._letters + 1, self._bytes + len(line)
                self._append(line)

    def flush(self) -> None:
        """Write all records left out so far to the file. Raises OSError."""
        if isinstance(self._file, BytesIO) and self._path is not None:
            self._path.write_bytes(self._file.getvalue())

    def _count(self, what: tuple[str, str], more: int) -> None:
        self.counts[what] = count = self.counts.get(what, 0) + more
        if what not in self._places:
            head = json.dumps({"operator": what[0], "alternate": what[1]})[:-1].encode() + b', "count": '
            self._places[what] = self._append(head + f"{count:>{COUNT_WIDTH}}".encode() + b"}\n") + len(head)
        elif self._file is not None:
            self._file.seek(self._places[what])
            self._file.write(f"{count:>{COUNT_WIDTH}}".encode())

    def _append(self, line: bytes) -> int:
        if self._path is None:
            return 0
        file = self._file or self._open()
        at = file.seek(0, 2)
        if file.write(line) != len(line):  # a nearly full disk accepts a part
            raise OSError(28, "No space left on device", str(self._path))
        return at

    def _open(self) -> FileIO | BytesIO:
        assert self._path is not None
        if isinstance(self._path, RemotePath):
            self._file = BytesIO()
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb", buffering=0)
        return self._file


def attempt_of(context: TaskContext | None) -> tuple[int, bool]:
    """Return the unique number of a task attempt, and True if an earlier one failed."""
    if context is None:
        return 0, False
    return int(context.taskAttemptId()), context.attemptNumber() > 0


def _describe(error: BaseException) -> str:
    name, message = type(error).__name__, first_line(error)
    return message if message == name else f"{name}: {message}"


def _as_json(record: Any) -> Any:
    try:
        text = json.dumps(record, default=repr)
    except (TypeError, ValueError):
        text = repr(record)
    else:
        if len(text) <= MAX_RECORD_CHARS:
            return record
    return text[:MAX_RECORD_CHARS]
