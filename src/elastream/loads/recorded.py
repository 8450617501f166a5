"""Reads recorded speeds of hosts and links between them: CSV files of factors; errors name file and line.

A line a value, as measuring programs write them: a time, the host or the two hosts, the factor. What a file lacks is not
made up: a gap is refused.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from elastream.core.wording import counted
from elastream.errors import InputError
from elastream.loads.links import LinkTrace, pairs_of
from elastream.loads.pattern import Floats
from elastream.loads.speeds import HOSTS, SpeedTrace
from elastream.loads.trace import UNITS, lines_of, seconds_of, words_in

INTERVAL_TOLERANCE = 1e-6
"""Error of the distance of two lines, as a part of an interval."""
SCORES = ("value", "score", "speed")
MACHINES = ("vm_id", "vm", "host", "machine")
"""Names of the columns of a benchmark's results, and of the machines that it ran on."""


class RecordedLine(NamedTuple):
    """A line of a file: its number, its time in seconds and its values."""

    number: int
    time: float
    values: tuple[float, ...]


def recorded_speeds(path: str | Path) -> SpeedTrace:
    """Speeds of hosts from a CSV file (`.gz` too) with the columns `host` and `speed`, a factor on what its type declares.

    A column of times (`seconds`, `minutes`, `time`, ... as for loads) says when; without one each host has one value for
    good. Hosts in the order of their first lines are `h1`, `h2`, ... of a run. Every host needs a value at every time,
    and times are equally far apart. Raises InputError with file and line for a gap, and for what is no factor above 0.
    """
    file = Path(path)
    found = _read(file, ("host",), ("speed",))
    interval, table = _slots(file, {f"host {host!r}": lines for (host,), lines in found.items()})
    return SpeedTrace(table[:, :, 0], interval)


def recorded_links(path: str | Path) -> LinkTrace:
    """Links from a CSV file as `recorded_speeds` reads it, with `from`, `to`, `latency` and `bandwidth`.

    The last two are factors on what is declared: a latency of 2 is twice as long, a bandwidth of 0.5 half as wide. A link
    is the same in both directions and is listed once; every pair of the hosts in the file is needed.
    """
    file = Path(path)
    found = _read(file, ("from", "to"), ("latency", "bandwidth"))
    hosts = list(dict.fromkeys(host for pair in found for host in pair))
    ordered: dict[str, Sequence[RecordedLine]] = {}
    for earlier, later in pairs_of(len(hosts)):
        pair, back = (hosts[earlier], hosts[later]), (hosts[later], hosts[earlier])
        if pair in found and back in found:
            twice = max(found[pair][0].number, found[back][0].number)
            raise InputError(f"{file}, line {twice}: the link {pair[0]}>{pair[1]} is listed as {back[0]}>{back[1]} as well")
        if pair not in found and back not in found:
            raise InputError(f"{file} has no line of the link {pair[0]}>{pair[1]}: every pair of its hosts is needed")
        ordered[f"the link {pair[0]}>{pair[1]}"] = found[pair] if pair in found else found[back]
    interval, table = _slots(file, ordered)
    return LinkTrace(table[:, :, 0], table[:, :, 1], interval)


@dataclass(frozen=True, slots=True)
class SpeedSpread:
    """Hosts that differ as those of a benchmark did, each the same all the time: only their spread is taken of the file.

    file: a CSV file (`.gz` too) with the results (`value`, more is faster) by machine (`VM_id`); further columns are
    ignored. A machine's factor is its mean over the best machine's. Hosts are drawn from them, with repetition.
    """

    file: str | Path
    hosts: int = HOSTS
    seed: int = 1

    def over(self, seconds: float) -> SpeedTrace:
        """Each host for good; raises InputError with file and line for a result that is no number above 0."""
        scores: dict[str, list[float]] = {}
        for machine, lines in _read(Path(self.file), (MACHINES,), (SCORES,)).items():
            scores.setdefault(machine[0], []).extend(line.values[0] for line in lines)
        means = np.array([statistics.fmean(each) for each in scores.values()])
        drawn = np.random.default_rng(self.seed).integers(means.size, size=self.hosts)
        return SpeedTrace((means / means.max())[drawn, None], math.inf)


Name: TypeAlias = str | tuple[str, ...]
"""Name of a column, or several that it may have."""


def _read(file: Path, keys: Sequence[Name], values: Sequence[Name]) -> Mapping[tuple[str, ...], list[RecordedLine]]:
    """Lines by what they are about. A column of times is one whose name is none of the others'."""
    lines = lines_of(file)
    _, header = next(lines, (0, []))
    names = [name.strip().lower() for name in header]
    about, wanted = [_column(file, names, each) for each in keys], [_column(file, names, each) for each in values]
    times = next((at for at, name in enumerate(names) if UNITS.keys() & set(words_in(name)) and at not in about), None)
    found: dict[tuple[str, ...], list[RecordedLine]] = {}
    for number, fields in lines:
        place = f"{file}, line {number}"
        if len(fields) < len(names):
            raise InputError(f"{place}: {counted(len(fields), 'field')}, and the first line names {len(names)}")
        when = 0.0 if times is None else _time(fields[times], names[times], place)
        key = tuple(fields[at].strip() for at in about)
        given = tuple(_factor(fields[at], names[at], place) for at in wanted)
        found.setdefault(key, []).append(RecordedLine(number, when, given))
    if not found:
        raise InputError(f"{file} holds no value: it needs a line for each, below a line with the names of the columns")
    return found


def _column(file: Path, names: Sequence[str], wanted: Name) -> int:
    choices = (wanted,) if isinstance(wanted, str) else wanted
    found = next((names.index(name) for name in choices if name in names), None)
    if found is None:
        there = ", ".join(map(repr, names)) or "nothing"
        raise InputError(f"{file}, line 1: no column is called {' or '.join(map(repr, choices))}; there is {there}")
    return found


def _time(text: str, name: str, place: str) -> float:
    try:
        return seconds_of(text, min(UNITS[word] for word in words_in(name) if word in UNITS), place)
    except ValueError:
        raise InputError(f"{place}: {text.strip()!r} is no time") from None


def _factor(text: str, name: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{place}: the {name} is {text.strip()!r}; it must be a number above 0")
    return value


def _slots(file: Path, found: Mapping[str, Sequence[RecordedLine]]) -> tuple[float, Floats]:
    """(Seconds of a slot, values of shape (rows, slots, values)); inf where there is one slot only."""
    times = sorted({line.time for lines in found.values() for line in lines})
    interval = statistics.median_low([b - a for a, b in pairwise(times)]) if len(times) > 1 else math.inf
    for what, lines in found.items():
        for before, line in pairwise(lines):
            place = f"{file}, line {line.number}"
            if not line.time > before.time:
                raise InputError(
                    f"{place}: {what} has a value at {line.time:g} s or later already, in line {before.number}"
                )
            apart = (line.time - before.time) / interval
            if abs(apart - round(apart)) > INTERVAL_TOLERANCE:
                raise InputError(
                    f"{place}: {line.time - before.time:g} s after the last line of {what}, no multiple of {interval:g} s"
                )
            if round(apart) > 1:
                raise _gap(file, line, what, round(apart) - 1, interval, "before it")
        for line, border, where in ((lines[0], times[0], "before it"), (lines[-1], times[-1], "after it")):
            if line.time != border:
                raise _gap(file, line, what, round(abs(line.time - border) / interval), interval, where)
    return interval, np.array([[line.values for line in lines] for lines in found.values()])


def _gap(file: Path, line: RecordedLine, what: str, missing: int, interval: float, where: str) -> InputError:
    intervals = f"{counted(missing, 'interval')} of {interval:g} s"
    return InputError(f"{file}, line {line.number}: a gap: {what} has no value for {intervals} {where}")
