"""Too few state partitions that keep records late for a day, and their alarm."""

import math
from collections.abc import Mapping

from elastream.control.extension import LoopExtension
from elastream.core.alarm import Alarms
from elastream.core.observation import Observation
from elastream.policies.common.reach import width_binds
from elastream.units import format_duration

# Source of the alarm.
WIDTH_ALARM = "state width"
# Seconds between the first and the last episode from which width counts as too small. Also the longest gap between two:
# most loads have a daily peak.
DAY_S = 86_400.0
# Shortest episode in seconds. Less is a burst or a slow batch.
EPISODE_S = 600.0


class WidthHistory:
    """Episodes in which the number of state partitions kept records late.

    Attributes:
        since: Start of the first (seconds), without a gap of a day since; NaN without any.
        reason: Sentence about the last one.
    """

    def __init__(self) -> None:
        self.since, self._last, self._began, self.reason = math.nan, math.nan, math.nan, ""

    def add(self, time: float, reason: str) -> None:
        if not reason:
            self._began = math.nan
        elif math.isnan(self._began):
            self._began = time
        if time - self._last > DAY_S:
            self.since = math.nan
        if time - self._began >= EPISODE_S:
            self.since = self._began if math.isnan(self.since) else self.since
            self._last, self.reason = time, reason

    @property
    def too_small(self) -> bool:
        return self._last - self.since >= DAY_S


ON_DISK = "elastream repartition gives a run or a stopped query more, with state_store='disk' and Spark 4.2"


class WidthAdvice(LoopExtension):
    """Alarm while the state has too few partitions. `help` says what to do."""

    def __init__(self, help: str = ON_DISK) -> None:
        self.history, self._help = WidthHistory(), help
        self._widths: Mapping[str, int] = {}

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        widths = observation.context.partitions
        if widths and widths != self._widths:
            self.history, self._widths = WidthHistory(), dict(widths)
        self.history.add(observation.time, width_binds(observation))
        if self.history.too_small:
            period = format_duration(DAY_S)
            alarms.sound(WIDTH_ALARM, f"records have been late for {period} or longer: {self.history.reason}; {self._help}")
        else:
            alarms.clear(WIDTH_ALARM)
        return observation
