"""Log of a run's guard versions: the command line appends one, the run loads it in its next round.

A version holds a whole guard file and its path, so that a run needs nothing but its folder.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.formats import unmarked
from elastream.recording.lines import Lines
from elastream.systems import lock


@dataclass(frozen=True, slots=True)
class GuardVersion:
    """One version of the guards.

    Attributes:
        number: From 1.
        time: Of its append, in epoch seconds.
        by: Who appended it.
        file: Source of `text`.
    """

    number: int
    time: float
    by: str
    file: str
    text: str


class GuardLog:
    """Versions in the file `path`, one JSON line each; without a path in memory, for runs without a folder.

    Several processes may append and read: each appends whole lines under a lock.

    Raises:
        EnvironmentProblem: if the file cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._offset = 0  # of the first version that `newer` has not returned, in bytes of the file or in versions
        self._memory: list[GuardVersion] = []

    def append(self, text: str, file: Path | str, by: str) -> GuardVersion:
        """Append a version, on disk before this returns."""
        at = time.time()
        if self.path is None:
            version = GuardVersion(len(self._memory) + 1, at, by, str(file), text)
            self._memory.append(version)
            return version
        with self._locked():
            lines = Lines(self.path, "the versions of the guards")
            try:
                last = max((version.number for version in self.versions), default=0)
                version = GuardVersion(last + 1, at, by, str(Path(file).resolve()), text)
                lines.append(asdict(version))
            finally:
                lines.close()
        return version

    def newer(self) -> list[GuardVersion | str]:
        """Return the versions since the last call, and a sentence for each damaged line."""
        if self.path is None:
            versions: list[GuardVersion | str] = [*self._memory[self._offset :]]
            self._offset = len(self._memory)
            return versions
        try:
            size = self.path.stat().st_size
            if size <= self._offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EnvironmentProblem(f"the versions of the guards {self.path} cannot be read: {error.strerror}") from error
        whole = content[: content.rfind(b"\n") + 1]  # the rest is an append under way
        self._offset += len(whole)
        return [_version(line) for line in whole.splitlines()]

    @property
    def versions(self) -> tuple[GuardVersion, ...]:
        """All versions, oldest first; damaged lines are skipped."""
        each = self._memory if self.path is None else GuardLog(self.path).newer()
        return tuple(version for version in each if isinstance(version, GuardVersion))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        assert self.path is not None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("ab")
        except OSError as error:
            raise EnvironmentProblem(f"the versions of guards {self.path} cannot be written: {error.strerror}") from None
        with file:
            lock(file)
            yield


def _version(line: bytes) -> GuardVersion | str:
    try:
        fields: dict[str, Any] = unmarked(json.loads(line), "a line of the versions of the guards")
        return GuardVersion(
            int(fields["number"]), float(fields["time"]), str(fields["by"]), str(fields["file"]), str(fields["text"])
        )
    except InputError as error:
        return str(error)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"a line of the versions of the guards is damaged ({type(error).__name__}: {error})"
