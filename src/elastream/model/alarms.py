"""Faults that do not end a run but that a person must see: a thread that died, a policy that keeps failing.

An alarm is active from `sound` until `clear`; every observation has the active ones, so the live view, the metrics, the
recording and `elastream explain` show them.
"""

import logging
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from elastream.model.errors import in_one_line

__all__ = ["Alarm", "AlarmedThread", "Alarms"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A standing fault. source: the part that is at fault, unique among standing alarms. said: one sentence.

    since: seconds of the run. traceback: of the exception behind it, empty where there is none.
    """

    source: str
    said: str
    since: float
    traceback: str = ""


class Alarms:
    """Standing alarms by source. Thread-safe. clock: seconds of the run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._standing: dict[str, Alarm] = {}

    @property
    def standing(self) -> tuple[Alarm, ...]:
        """Alarms that stand, the oldest first."""
        with self._lock:
            return tuple(self._standing.values())

    def sound(self, source: str, said: str, error: BaseException | None = None) -> None:
        """Let an alarm of `source` stand; a repeated one keeps its time. `error` is logged with its traceback."""
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        with self._lock:
            before = self._standing.get(source)
            since = self._clock() if before is None else before.since
            self._standing[source] = Alarm(source, said, since, trace)
        if before is None or before.said != said:
            log.error("%s", said, exc_info=error)

    def clear(self, source: str) -> None:
        """Let the alarm of `source` stand no longer; nothing where there is none."""
        with self._lock:
            cleared = self._standing.pop(source, None)
        if cleared is not None:
            log.warning("%s recovered (was: %s)", source, cleared.said)


class AlarmedThread(threading.Thread):
    """A daemon thread whose death by an exception sounds an alarm under its name instead of passing unnoticed."""

    def __init__(self, alarms: Alarms, name: str, target: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._alarms, self._work = alarms, target

    def run(self) -> None:
        """Run the target to its end, or to its fault."""
        try:
            self._work()
        except BaseException as error:
            self._alarms.sound(self.name, f"thread {self.name} died: {in_one_line(error)}", error)
