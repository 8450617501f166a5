"""Log of a run's code: `code.jsonl` names the versions, `code/versions/` holds their pickled alternates.

Version 0 is that of the start. A file is on disk before its line and never changes.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.formats import marked, unmarked
from elastream.recording.lines import append_at, appended, line, locked, replace_whole


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """A version of a run's code.

    Attributes:
        alternates: By operator and alternate, a mark that differs for different code.
        changed: Operators that differ from the version before.
        fixed: Facts in words by subject that no version may change.
        repairs: True if a failed run got it: its functions replace earlier ones in replays.
    """

    version: int
    sha256: str
    alternates: Mapping[str, Mapping[str, str]]
    changed: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    written: float = 0.0  # epoch seconds
    who: str = ""
    repairs: bool = False


class CodeLog:
    """Code of the run in `directory`. Several processes may append.

    Raises:
        EnvironmentProblem: Files cannot be read or written.
        InputError: They are damaged.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._versions: list[CodeVersion] = []
        self._read = 0

    @property
    def versions(self) -> Sequence[CodeVersion]:
        try:
            self._take_over()
        except OSError as error:
            raise self._problem(error) from error
        return tuple(self._versions)

    def since(self, version: int) -> tuple[str, ...]:
        """Return the operators that differ from `version`, in order."""
        return tuple(dict.fromkeys(name for each in self.versions[version + 1 :] for name in each.changed))

    def begin(self, content: bytes, first: CodeVersion) -> None:
        """Write version 0 anew, unless there are later versions."""
        if len(self.versions) > 1:
            return
        try:
            replace_whole(self.file(0), content)
            replace_whole(self._directory.code_log, line(marked(self._fields(first, content))))
        except OSError as error:
            raise self._problem(error) from error
        self._versions, self._read = [], 0

    def append(self, content: bytes, fresh: CodeVersion) -> CodeVersion:
        """Append a version, synced to disk. Raises InputError if another one came first."""
        try:
            with locked(self._directory.code_log) as file:
                self._take_over()
                if fresh.version != len(self._versions):
                    raise InputError(f"version {len(self._versions) - 1} of the code was given meanwhile: give this again")
                replace_whole(self.file(fresh.version), content)
                append_at(file, self._read, self._fields(fresh, content))
                self._take_over()
        except OSError as error:
            raise self._problem(error) from error
        return self._versions[-1]

    def content(self, version: int) -> bytes:
        """Return the pickled alternates of a version."""
        try:
            content = self.file(version).read_bytes()
        except OSError as error:
            raise self._problem(error) from error
        if hashlib.sha256(content).hexdigest() != self.versions[version].sha256:
            raise InputError(f"{self.file(version)} is not the code that was written: its content has another hash")
        return content

    def file(self, version: int) -> Path:
        return self._directory.code_versions / f"{version:06d}.pickle"

    def _fields(self, version: CodeVersion, content: bytes) -> dict[str, Any]:
        return {**asdict(version), "sha256": hashlib.sha256(content).hexdigest(), "written": time.time()}

    def _take_over(self) -> None:
        path = self._directory.code_log
        for each in appended(path, self._read):
            try:
                fields = json.loads(each)
                fields = fields if self._read else unmarked(fields, path)
                entry = CodeVersion(**{**fields, "changed": tuple(fields["changed"])})
                if entry.version != len(self._versions):
                    raise ValueError(f"version {entry.version} is out of order")
            except (ValueError, TypeError, KeyError) as error:
                number = len(self._versions) + 1
                raise InputError(f"{path}, line {number}: not a version of the code ({error})") from error
            self._versions.append(entry)
            self._read += len(each)

    def _problem(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"the code of {self._directory.root} is not usable: {error.strerror or error}")
