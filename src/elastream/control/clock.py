"""Time for the loop: the real one, and one that only moves when told, so that tests of the loop take no time.

The simulator has a clock of its own, whose `sleep_until` runs the simulated system.
"""

import time as machine
from collections.abc import Callable

__all__ = ["FakeClock", "SystemClock"]


class SystemClock:
    """Seconds since it was made, by the monotonic clock: unmoved by corrections of the machine's date."""

    def __init__(self) -> None:
        self._start = machine.monotonic()

    def now(self) -> float:
        """Seconds since the clock was made."""
        return machine.monotonic() - self._start

    def sleep_until(self, time: float) -> None:
        """Return at `time`, or at once where it has passed."""
        machine.sleep(max(0.0, time - self.now()))


class FakeClock:
    """A clock that stands still until someone sleeps on it or advances it; `on_sleep` is told where it wakes up."""

    def __init__(self, start: float = 0.0, on_sleep: Callable[[float], None] | None = None) -> None:
        self._now = start
        self._on_sleep = on_sleep

    def now(self) -> float:
        """Where the clock stands."""
        return self._now

    def sleep_until(self, time: float) -> None:
        """Jump to `time`; never backwards."""
        self._now = max(self._now, time)
        if self._on_sleep is not None:
            self._on_sleep(self._now)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, as work that takes long does."""
        self._now += seconds
