"""Time that only moves when told, so that tests of the loop take no time.

Every plant brings the clock that it runs by: the Spark plant the machine's, the simulator one whose `sleep_until` runs the
simulated system.
"""

from collections.abc import Callable

__all__ = ["FakeClock"]


class FakeClock:
    """A clock that only `sleep` and `advance` move; `on_sleep` receives the time of waking."""

    def __init__(self, start: float = 0.0, on_sleep: Callable[[float], None] | None = None) -> None:
        self._now = start
        self._on_sleep = on_sleep

    def now(self) -> float:
        """The clock's time."""
        return self._now

    def sleep_until(self, time: float) -> None:
        """Jump to `time`; never backwards."""
        self._now = max(self._now, time)
        if self._on_sleep is not None:
            self._on_sleep(self._now)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, as work that takes long does."""
        self._now += seconds
