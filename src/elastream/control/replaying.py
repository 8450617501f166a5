"""Guards of a recorded run, evaluated again in a simulation."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from elastream.control.extension import LoopExtension
from elastream.control.guarding import GuardExtension
from elastream.dataflow.signals import Signal, SignalReading, Signals
from elastream.guards.subject import Subject, system_signals
from elastream.recording.guard_log import GuardLog, GuardVersion
from elastream.recording.recorder import Recording


def guarding_again(
    recording: Recording, versions: Sequence[GuardVersion], now: Callable[[], float], origin: float
) -> tuple[LoopExtension, ...]:
    """Return the guards of a recorded run for its simulation.

    Versions, domain and external signals are the recorded ones.

    Args:
        now: Returns simulated time (seconds).
        origin: Recorded time at simulated time 0 (seconds).
    """
    if not recording.series.guards:
        return ()
    about = Subject.recorded(recording.header)
    return (GuardExtension(_Versions(recording, versions, now, origin), _Signals(recording, about, now, origin), about),)


class _Versions(GuardLog):
    def __init__(
        self, recording: Recording, versions: Sequence[GuardVersion], now: Callable[[], float], origin: float
    ) -> None:
        super().__init__()
        by_number = {version.number: version for version in versions}
        times = recording.series.times
        self._coming = [
            (times[at] - origin, by_number[number]) for at, number in recording.series.guards if number in by_number
        ]
        self._now = now

    def newer(self) -> list[GuardVersion | str]:
        versions: list[GuardVersion | str] = []
        while self._coming and self._coming[0][0] <= self._now():
            versions.append(self._coming.pop(0)[1])
        return versions


class _Signals:
    def __init__(self, recording: Recording, about: Subject, now: Callable[[], float], origin: float) -> None:
        system = {signal.name for signal in system_signals(about)} - about.signals.keys()
        self._now, self._origin = now, origin
        self._times = [time - origin for time in recording.series.times]
        self._rounds = [
            {name: each for name, each in signals.items() if name not in system}
            for _, _, signals in recording.signal_rounds()
        ]

    def follow(self, signals: Iterable[Signal]) -> None:
        """Do nothing: all signals are recorded."""

    def newest(self) -> Signals:
        number = bisect_right(self._times, self._now())
        if not number:
            return {}
        return {
            name: SignalReading(each.value, each.time - self._origin) for name, each in self._rounds[number - 1].items()
        }

    def close(self) -> None:
        """Do nothing."""
