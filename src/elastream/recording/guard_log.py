"""Log of a run's guard versions, whole files: the command line appends one, the run loads it in its next round."""

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.formats import unmarked
from elastream.recording.lines import Lines, appended, locked


@dataclass(frozen=True, slots=True)
class GuardVersion:
    number: int  # from 1
    time: float  # of its append, in epoch seconds
    by: str  # who appended it
    file: str  # source of `text`
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
        try:
            with locked(self.path), contextlib.closing(Lines(self.path, "the versions of the guards")) as lines:
                last = max((version.number for version in self.versions), default=0)
                version = GuardVersion(last + 1, at, by, str(Path(file).resolve()), text)
                lines.append(asdict(version))
        except OSError as error:
            raise EnvironmentProblem(f"the versions of guards {self.path} cannot be written: {error.strerror}") from None
        return version

    def newer(self) -> list[GuardVersion | str]:
        """Return the versions since the last call, and a sentence for each damaged line."""
        if self.path is None:
            versions: list[GuardVersion | str] = [*self._memory[self._offset :]]
            self._offset = len(self._memory)
            return versions
        try:
            lines = appended(self.path, self._offset)
        except OSError as error:
            raise EnvironmentProblem(f"the versions of the guards {self.path} cannot be read: {error.strerror}") from error
        self._offset += sum(map(len, lines))
        return [_version(line) for line in lines]

    @property
    def versions(self) -> tuple[GuardVersion, ...]:
        each = self._memory if self.path is None else GuardLog(self.path).newer()
        return tuple(version for version in each if isinstance(version, GuardVersion))


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
