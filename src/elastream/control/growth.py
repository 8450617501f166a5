"""Forecast of state that grows until executors are full, and its alarm.

State of most queries rises and falls: with the day, with windows that end, with collections. So only a rise of both the
lowest and the highest values of long windows counts.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import replace

import numpy as np

from elastream.control.extension import LoopExtension
from elastream.core.alarm import Alarms
from elastream.core.memory import DECLARED, RESERVE, MemoryUse, memory_uses
from elastream.core.observation import Observation
from elastream.core.wording import counted

# Source of the alarm.
GROWTH_ALARM = "state growth"
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
# Most seconds of history: the last day is compared with the one before.
HISTORY_S = 2 * DAY_S
# Longest of two windows in a row, and horizon of the fast forecast (seconds). In a run's first hours both are shares of its
# age, so that a state that fills its first window is not taken for one that grows for ever.
WINDOW_S, HORIZON_S = 2 * HOUR_S, 3.5 * HOUR_S
WINDOW_SHARE, HORIZON_SHARE = 1 / 3, 1 / 4
YOUNGEST_S = 10 * MINUTE_S
DAILY_HORIZON_S = DAY_S / 2
# Growth of less than this share of the state between two windows is noise.
NOISE = 0.002


class StateGrowth:
    """Lowest and highest size of a state in each minute."""

    def __init__(self) -> None:
        self._times, self._low, self._high = array("d"), array("d"), array("d")
        self._first = math.nan

    def add(self, time: float, megabytes: float) -> bool:
        """Add a size; return True if a minute has begun."""
        start = math.floor(time / MINUTE_S) * MINUTE_S
        if self._times and self._times[-1] == start:
            self._low[-1], self._high[-1] = min(self._low[-1], megabytes), max(self._high[-1], megabytes)
            return False
        self._first = self._first if self._times else start
        if self._times and self._times[0] < start - 2 * HISTORY_S:
            old = bisect_left(self._times, start - HISTORY_S)
            for column in (self._times, self._low, self._high):
                del column[:old]
        for column, value in ((self._times, start), (self._low, megabytes), (self._high, megabytes)):
            column.append(value)
        return True

    def full_in(self, room: float) -> float:
        """Return the seconds until the state grows by `room` MB, 0 in the last tenth; inf beyond the horizon."""
        age = self._times[-1] - self._first
        if (1 - RESERVE) * room <= RESERVE * self._high[-1]:  # never true of endless room
            return 0.0
        if age < YOUNGEST_S:
            return math.inf
        fast = self._seconds_to(room, min(WINDOW_S, WINDOW_SHARE * age))
        daily = self._seconds_to(room, DAY_S) if age >= HISTORY_S else math.inf
        fast = fast if fast <= min(HORIZON_S, HORIZON_SHARE * age) else math.inf
        return min(fast, daily if daily <= DAILY_HORIZON_S else math.inf)

    @property
    def rate(self) -> float:
        """Growth between the last two windows (MB/s)."""
        age = self._times[-1] - self._first
        window = min(WINDOW_S, WINDOW_SHARE * age)
        return self._gain(window)[0] / window if age >= YOUNGEST_S else 0.0

    def _seconds_to(self, room: float, window: float) -> float:
        """Return the seconds until `room` MB are gone, at the rate between the last two windows."""
        gained, fallen = self._gain(window)
        return max(0.0, room - fallen) * window / gained if gained > 0 else math.inf

    def _gain(self, window: float) -> tuple[float, float]:
        """Return the MB gained between the last two windows, 0 if noise, and the MB below the last one's peak now."""
        now, end = self._times[-1], len(self._times)
        since, begin = (bisect_right(self._times, now - each) for each in (window, 2 * window))
        if begin == since:
            return 0.0, 0.0
        low, high = np.frombuffer(self._low), np.frombuffer(self._high)
        peak = float(high[since:end].max())
        gained = min(float(low[since:end].min() - low[begin:since].min()), peak - float(high[begin:since].max()))
        return gained if gained > NOISE * peak else 0.0, peak - float(high[-1])


class GrowthForecast(LoopExtension):
    """Adds the growth of state to observations; alarms while it fills an executor within the horizon."""

    def __init__(self) -> None:
        self._growth: dict[str, StateGrowth] = {}
        self._announced: dict[str, float] = {}
        self._growing: dict[str, float] = {}

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        """Return `observation` with the growth; sound or clear the alarm once a minute."""
        uses = [use for use in memory_uses(observation) if use.kind != DECLARED and use.total > 0]
        for use in uses:
            self._look(use, observation, alarms)
        for kind in self._announced.keys() - {use.kind for use in uses}:
            del self._announced[kind]
            self._growing.pop(kind, None)
            alarms.clear(f"{GROWTH_ALARM} ({kind})")
        return replace(observation, growth=dict(self._growing)) if self._growing else observation

    def _look(self, use: MemoryUse, observation: Observation, alarms: Alarms) -> None:
        growth = self._growth.setdefault(use.kind, StateGrowth())
        if not growth.add(observation.time, use.total):
            return
        self._growing.pop(use.kind, None)
        if (rate := growth.rate) > 0:
            self._growing[use.kind] = rate
        seconds, source = growth.full_in(use.until_full(observation.tasks.host)), f"{GROWTH_ALARM} ({use.kind})"
        announced = self._announced.get(use.kind)
        if seconds == math.inf:
            self._announced.pop(use.kind, None)
            alarms.clear(source)
        elif announced is None or seconds < announced / 2:  # each text is a series in Prometheus
            self._announced[use.kind] = seconds
            hosts = counted(len(observation.usable), "host")
            when = f"at this rate executors are full in {hours(seconds)}" if seconds else "executors are nearly full"
            help = "more or larger hosts, a watermark or a timeout help"
            alarms.sound(source, f"{when}: {use.total:.0f} MB of state in {use.kind} of {hosts}; {help}")


def hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.0f} h" if seconds >= 1.5 * HOUR_S else f"{seconds / MINUTE_S:.0f} min"
