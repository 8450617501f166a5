"""The clock of a run on Spark: the machine's own, counted from the start, and one that can be woken."""

import threading
import time

__all__ = ["RunClock"]


class RunClock:
    """Seconds since the run began, on the machine's monotonic clock; it can be woken early."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.epoch = time.time()
        self._wake = threading.Event()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start

    def sleep_until(self, time: float) -> None:
        """Return at `time`, or at once when woken."""
        self._wake.wait(max(0.0, time - self.now()))

    def wake(self) -> None:
        """End this and every later sleep: the run is over."""
        self._wake.set()
