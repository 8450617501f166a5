"""What is to happen at which moment of a simulated run; what is due at one moment happens in the order of its entry."""

import heapq
import math
from collections.abc import Callable
from typing import TypeAlias

Event: TypeAlias = Callable[[float], None]
"""Called with the moment."""


class Agenda:
    """Events by time."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Event]] = []
        self._entered = 0

    def at(self, time: float, event: Event) -> None:
        """Have `event` happen at `time`, seconds."""
        heapq.heappush(self._events, (time, self._entered, event))
        self._entered += 1

    @property
    def next(self) -> float:
        """When the next event is due; inf without one."""
        return self._events[0][0] if self._events else math.inf

    def happen(self, now: float) -> None:
        """Let everything happen that is due by `now`, what comes to be due meanwhile included."""
        while self._events and self._events[0][0] <= now:
            time, _, event = heapq.heappop(self._events)
            event(time)
