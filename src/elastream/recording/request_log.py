"""Log of what people requested of a live run. The loop reads it in each round."""

import contextlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from elastream.core.wording import counted
from elastream.errors import EnvironmentProblem
from elastream.recording.lines import Lines, appended, locked


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a person.

    Attributes:
        action: "pause", "unpause", "bounds", "drain", "repartition", "alternate" or "approve".
        min_hosts, max_hosts: Bounds of the number of hosts; 0 for those of the run itself.
        alternate: Of `operator`; empty for the policy's choice.
        hourly: Cost of all hosts up to which leases are approved (money/h).
    """

    action: str
    by: str
    time: float = 0.0
    host: str = ""
    min_hosts: int = 0
    max_hosts: int = 0
    partitions: int = 0
    operator: str = ""
    alternate: str = ""
    hourly: float = 0.0

    @property
    def bounds(self) -> str:
        """Return the bounds in words, or ""."""
        least = f"at least {counted(self.min_hosts, 'host')}" if self.min_hosts else ""
        most = f"at most {counted(self.max_hosts, 'host')}" if self.max_hosts else ""
        return " and ".join(filter(None, [least, most]))


class RequestLog:
    """Requests in the file `path`. Several processes may append and read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def append(self, request: Request) -> Request:
        """Append a request, synced to disk; return it with its time."""
        request = replace(request, time=time.time())
        try:
            with locked(self._path), contextlib.closing(Lines(self._path, "the requests")) as lines:
                lines.append(asdict(request))
        except OSError as error:
            raise EnvironmentProblem(f"the requests {self._path} cannot be written: {error.strerror or error}") from None
        return request

    def newer(self) -> list[Request]:
        """Return the requests since the last call; a damaged line is skipped."""
        with contextlib.suppress(OSError):
            lines = appended(self._path, self._offset)
            self._offset += sum(map(len, lines))
            return [request for line in lines if (request := _request(line)) is not None]
        return []


def _request(line: bytes) -> Request | None:
    try:
        fields = json.loads(line)
        return Request(**{name: fields[name] for name in Request.__dataclass_fields__ if name in fields})
    except (ValueError, TypeError):
        return None
