"""Log of a run's key tables: `tables.jsonl` names the versions, `tables/` holds them.

A version's file is on disk before its line.
"""

import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elastream.dataflow.key_table import KeyTable, Selection
from elastream.errors import DataflowError, EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.formats import unmarked
from elastream.recording.lines import append_at, appended, locked, replace_whole
from elastream.recording.observer import Header

if TYPE_CHECKING:
    import pyarrow as pa

# Last column of a table's file; the columns before it are the key.
ALTERNATE = "alternate"
# Hexadecimal digits of the content's hash in a file's name.
HASHED = 16


@dataclass(frozen=True, slots=True)
class KeyTableVersion:
    operator: str
    version: int
    file: str  # path below the run's folder
    sha256: str
    keys: int
    written: float  # epoch seconds
    who: str = ""  # appended it, for people


class KeyTableLog:
    """Key tables of the run in `directory`; they must fit `selections`, by operator.

    Thread-safe, also against other processes that append. A version's file never changes.

    Raises:
        EnvironmentProblem: If files cannot be read or written.
        InputError: For damage, with the line.
        DataflowError: For a table that does not fit.
    """

    def __init__(self, directory: RunDirectory, selections: Mapping[str, Selection]) -> None:
        self._directory, self.selections = directory, dict(selections)
        self._lock = threading.Lock()
        self._versions: dict[str, list[KeyTableVersion]] = {}
        self._read = 0

    def append(self, table: KeyTable, who: str = "") -> int:
        """Write `table` as its operator's next version, synced to disk; return the version."""
        if table.operator not in self.selections:
            raise DataflowError(
                f"operator {table.operator!r} does not choose its alternate by key"
                + (f" (those that do: {', '.join(self.selections)})" if self.selections else "")
            )
        table.check(self.selections[table.operator])
        content = written_rows(table)
        digest = hashlib.sha256(content).hexdigest()
        try:
            with self._lock, locked(self._directory.key_table_log) as file:
                self._take_over()
                version = len(self._versions.get(table.operator, ())) + 1
                path = self._directory.key_tables(table.operator) / f"{version:06d}-{digest[:HASHED]}.arrow"
                replace_whole(path, content)
                named = str(path.relative_to(self._directory.root))
                entry = KeyTableVersion(table.operator, version, named, digest, len(table), time.time(), who)
                append_at(file, self._read, asdict(entry))
                self._take_over()
                return version
        except OSError as error:
            raise self._problem(error) from error

    def has(self, table: KeyTable) -> bool:
        digest = hashlib.sha256(written_rows(table)).hexdigest()
        return any(version.sha256 == digest for version in self._all().get(table.operator, ()))

    def newest(self) -> Mapping[str, int]:
        return {operator: len(versions) for operator, versions in self._all().items()}

    def versions(self) -> Sequence[KeyTableVersion]:
        by_operator = self._all()
        return [version for operator in sorted(by_operator) for version in by_operator[operator]]

    def entry(self, operator: str, version: int) -> KeyTableVersion:
        versions = self._all().get(operator, [])
        if not 1 <= version <= len(versions):
            raise DataflowError(f"operator {operator!r} has no key table of version {version}")
        return versions[version - 1]

    def file(self, operator: str, version: int) -> Path:
        return self._directory.root / self.entry(operator, version).file

    def find(self, operator: str, version: int) -> KeyTable:
        """Return the table of a version. Raises DataflowError without one, InputError if its file has changed."""
        entry, file = self.entry(operator, version), self.file(operator, version)
        try:
            content = file.read_bytes()
        except OSError as error:
            raise self._problem(error) from error
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise InputError(f"{file} is not the key table that was written: its content has another hash")
        columns, rows = read_rows(content)
        return KeyTable(self.selections[operator].dataflow, operator, columns, rows)

    def _all(self) -> dict[str, list[KeyTableVersion]]:
        try:
            with self._lock:
                self._take_over()
                return {operator: list(versions) for operator, versions in self._versions.items()}
        except OSError as error:
            raise self._problem(error) from error

    def _take_over(self) -> None:
        path = self._directory.key_table_log
        for each in appended(path, self._read):
            number = 1 + sum(map(len, self._versions.values()))
            try:
                fields = json.loads(each)
                entry = KeyTableVersion(**(fields if self._read else unmarked(fields, path)))
                if entry.version != len(self._versions.get(entry.operator, ())) + 1:
                    raise ValueError(f"version {entry.version} is out of order")
            except (ValueError, TypeError) as error:
                raise InputError(f"{path}, line {number}: not a version of a key table ({error})") from error
            self._versions.setdefault(entry.operator, []).append(entry)
            self._read += len(each)

    def _problem(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"the key tables of {self._directory.root} are not usable: {error.strerror or error}")


def selections_recorded(header: Header) -> Mapping[str, Selection]:
    """Return what key tables of a recorded run must fit, by operator. Raises KeyError or TypeError for other headers."""
    return {
        each["name"]: Selection(header.flow, each["name"], dict(each["selects"]), tuple(each["alternates"]))
        for each in header.operators
        if each.get("selects")
    }


def written_rows(table: KeyTable) -> bytes:
    """Return the rows as an Arrow file in key order: equal rows give equal bytes."""
    import pyarrow as pa

    keys = sorted(table.rows)
    columns: list[pa.Array] = [pa.array([key[at] for key in keys]) for at in range(len(table.columns))]
    columns.append(pa.array([table.rows[key] for key in keys], pa.string()))
    whole = pa.Table.from_arrays(columns, names=[*table.columns, ALTERNATE])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_rows(content: "bytes | pa.Buffer") -> tuple[tuple[str, ...], dict[tuple[object, ...], str]]:
    import pyarrow as pa

    whole = pa.ipc.open_file(content).read_all()
    *keys, alternates = (column.to_pylist() for column in whole.columns)
    return tuple(whole.schema.names[:-1]), dict(zip(zip(*keys, strict=True), alternates, strict=True))


def key_tables(run: Path | str) -> KeyTableLog:
    """Return the key tables of the run in the folder `run`; other processes may append to them.

    Raises:
        InputError: for a run that has ended, or a folder that is no run's.
    """
    # Workers import this module: they need no recorder.
    from elastream.recording.recorder import Recording, check_live

    folder = Path(run)
    recording = Recording.outline(folder)
    check_live(folder, recording, "key tables")
    return KeyTableLog(RunDirectory(folder), selections_recorded(recording.header))
