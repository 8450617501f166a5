"""What ran of each dynamic element over a run: shares of its time, switches, and for how long nothing was allowed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from elastream.recording.recorder import Recording


@dataclass(frozen=True, slots=True)
class Selected:
    """An operator with several alternates, or a choice. shares: part of the time for which each was selected.

    closed: part of the time for which its guards allowed nothing, so that what ran stayed; NaN where it has no guards.
    """

    element: str
    shares: tuple[tuple[str, float], ...]
    switches: int
    closed: float = math.nan


def ran(recording: Recording) -> tuple[Selected, ...]:
    """Every dynamic element of a recorded run, by the compositions that were wanted."""
    if not len(recording.times):
        return ()
    begin, end = float(recording.times[0]), max(recording.end, float(recording.times[-1]))
    whole = max(end - begin, 1e-9)
    found = []
    for element in _elements(recording):
        spans = list(_spans(recording, element, end))
        seconds: dict[str, float] = {}
        for option, since, until in spans:
            seconds[option] = seconds.get(option, 0.0) + until - since
        shares = sorted(((option, each / whole) for option, each in seconds.items()), key=lambda each: -each[1])
        found.append(Selected(element, tuple(shares), max(0, len(spans) - 1), _closed(recording, element, end) / whole))
    return tuple(found)


def _elements(recording: Recording) -> tuple[str, ...]:
    header = recording.header
    operators = [each["name"] for each in header.operators if len(each["alternates"]) > 1]
    return tuple(dict.fromkeys([*operators, *(each["choice"] for each in header.edges if each.get("choice"))]))


def _spans(recording: Recording, element: str, end: float) -> Iterator[tuple[str, float, float]]:
    """What was selected, from when until when."""
    times = recording.series.times
    changes: list[tuple[str, float]] = []
    for number, query, composition in recording.series.compositions:
        option = composition["alternates"].get(element) or composition["choices"].get(element)
        if not query and option is not None and (not changes or changes[-1][0] != option):
            changes.append((option, times[number]))
    for (option, since), (_, until) in pairwise([*changes, ("", end)]):
        yield option, since, until


def _closed(recording: Recording, element: str, end: float) -> float:
    """Seconds for which the guards of `element` allowed nothing; NaN without guards."""
    times = recording.series.times
    changes = [
        (fields is not None and not fields["allowed"], times[number])
        for number, name, fields in recording.series.standings
        if name == element
    ]
    if not changes:
        return math.nan
    return math.fsum(until - since for (closed, since), (_, until) in pairwise([*changes, (False, end)]) if closed)
