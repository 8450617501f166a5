"""Alarms: faults that do not end a run. Observations carry the active ones."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastream.errors import in_one_line

log = logging.getLogger(__name__)

# Pauses before a failed thread restarts (seconds), by its number of failures in a row.
RESTART_PAUSES_S = (0.1, 1.0, 10.0, 60.0)
# Time without a failure after which a thread counts as healthy (seconds): twice the longest pause.
HEALTHY_AFTER_S = 120.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """Active fault.

    Attributes:
        source: Faulty part, unique among active alarms.
        since: Start (seconds of the run).
        traceback: Traceback of the exception, if any.
    """

    source: str
    said: str
    since: float
    traceback: str = ""


class Alarms:
    """Active alarms by source. Thread-safe. `clock` returns seconds of the run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._active: dict[str, Alarm] = {}

    @property
    def active(self) -> tuple[Alarm, ...]:
        with self._lock:
            return tuple(self._active.values())

    def sound(self, source: str, message: str, error: BaseException | None = None) -> None:
        """Activate the alarm of `source`. A repeated one keeps its time; `error` is logged."""
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        with self._lock:
            before = self._active.get(source)
            since = self._clock() if before is None else before.since
            self._active[source] = Alarm(source, message, since, trace)
        if before is None or before.said != message:
            log.error("%s", message, exc_info=error)

    def clear(self, source: str) -> None:
        with self._lock:
            cleared = self._active.pop(source, None)
        if cleared is not None:
            log.warning("%s recovered (was: %s)", source, cleared.said)


class AlarmedThread(threading.Thread):
    """Daemon thread that raises an alarm under its name on failure, and restarts.

    Args:
        target: Work; callable again after it has raised.
        pauses: Pauses before restarts (seconds), by failures in a row; then the thread stays dead.
        healthy_after: Time without failure that clears the alarm (seconds).
    """

    def __init__(
        self,
        alarms: Alarms,
        name: str,
        target: Callable[[], None],
        *,
        pauses: Sequence[float] = RESTART_PAUSES_S,
        healthy_after: float = HEALTHY_AFTER_S,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._alarms, self._work = alarms, target
        self._pauses, self._healthy_after = pauses, healthy_after

    def run(self) -> None:
        """Run the target until it ends or fails once too often."""
        failures = 0
        while True:
            recovery = threading.Timer(self._healthy_after, self._alarms.clear, [self.name])
            recovery.daemon = True
            if failures:
                recovery.start()
            began = time.monotonic()
            try:
                self._work()
            except Exception as error:
                recovery.cancel()
                failures = 1 if time.monotonic() - began > self._healthy_after else failures + 1
                message = f"thread {self.name} died: {in_one_line(error)}"
                if failures > len(self._pauses):
                    self._alarms.sound(self.name, f"{message}; it is not started again", error)
                    return
                self._alarms.sound(self.name, message, error)
                time.sleep(self._pauses[failures - 1])
            except BaseException as error:
                self._alarms.sound(self.name, f"thread {self.name} died: {in_one_line(error)}", error)
                return
            else:
                recovery.cancel()
                return
