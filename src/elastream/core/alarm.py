"""Faults that do not end a run but that a person must see: a thread that died, a policy that keeps failing.

An alarm is active from `sound` until `clear`; every observation has the active ones, so the live view, the metrics, the
recording and `elastream explain` show them.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastream.errors import in_one_line

log = logging.getLogger(__name__)

PAUSES = (0.1, 1.0, 10.0, 60.0)
"""Seconds before a thread that died begins again, for each of its deaths in a row: most faults pass."""
CALM = 120.0
"""Seconds without a death after which a thread counts as well again: twice the longest pause."""


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
    """A daemon thread that does not pass away unnoticed: an exception sounds an alarm under its name, and it begins again.

    It does so after each of `pauses`; the alarm is cleared once it has gone on for `calm` seconds. One that dies once more,
    without such a time in between, stays dead, and its alarm stands. target: can be called again after it has raised.
    """

    def __init__(
        self,
        alarms: Alarms,
        name: str,
        target: Callable[[], None],
        *,
        pauses: Sequence[float] = PAUSES,
        calm: float = CALM,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._alarms, self._work = alarms, target
        self._pauses, self._calm = pauses, calm

    def run(self) -> None:
        """Run the target to its end, or until it fails once too often."""
        deaths = 0
        while True:
            well = threading.Timer(self._calm, self._alarms.clear, [self.name])
            well.daemon = True
            if deaths:
                well.start()
            began = time.monotonic()
            try:
                self._work()
            except Exception as error:
                well.cancel()
                deaths = 1 if time.monotonic() - began > self._calm else deaths + 1
                said = f"thread {self.name} died: {in_one_line(error)}"
                if deaths > len(self._pauses):
                    self._alarms.sound(self.name, f"{said}; it is not started again", error)
                    return
                self._alarms.sound(self.name, said, error)
                time.sleep(self._pauses[deaths - 1])
            except BaseException as error:
                self._alarms.sound(self.name, f"thread {self.name} died: {in_one_line(error)}", error)
                return
            else:
                well.cancel()
                return
