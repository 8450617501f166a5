"""Recorded host speeds and links: CSV files of factors. Errors name file and line.

A line holds one measurement: a time, one or two hosts, the factor.
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
from elastream.loads.columns import TIME_UNITS, words_in
from elastream.loads.links import LinkTrace, pairs_of
from elastream.loads.moments import seconds_of
from elastream.loads.pattern import Floats
from elastream.loads.speeds import GENERATED_HOSTS, SpeedTrace
from elastream.loads.tables import read_lines

INTERVAL_TOLERANCE = 1e-6  # part of an interval by which two lines may miss a whole number of intervals
SCORE_COLUMNS = ("value", "score", "speed")
MACHINE_COLUMNS = ("vm_id", "vm", "host", "machine")  # column names of benchmark results and of their machines


class RecordedLine(NamedTuple):
    """Line of a file: its number, time (seconds) and values."""

    number: int
    time: float
    values: tuple[float, ...]


def recorded_speeds(path: str | Path) -> SpeedTrace:
    """Read host speeds from a CSV file (`.gz` too) with columns `host` and `speed`, a factor on the type's speed.

    A column of times is named as for loads; without one, speeds are constant. Hosts are `h1`, `h2`, ... in the order of
    their first lines. Every host needs a value at every time, at equal distances.

    Raises:
        InputError: A gap, or a factor that is not above 0; names file and line.
    """
    file = Path(path)
    lines_by_host = _read(file, ("host",), ("speed",))
    interval, table = _slots(file, {f"host {host!r}": lines for (host,), lines in lines_by_host.items()})
    return SpeedTrace(table[:, :, 0], interval)


def recorded_links(path: str | Path) -> LinkTrace:
    """Read links from a CSV file with columns `from`, `to`, `latency` and `bandwidth`, as `recorded_speeds` does.

    A latency of 2 is twice as long, a bandwidth of 0.5 half as wide. Every pair of hosts is listed once, in either
    direction.
    """
    file = Path(path)
    lines_by_pair = _read(file, ("from", "to"), ("latency", "bandwidth"))
    hosts = list(dict.fromkeys(host for pair in lines_by_pair for host in pair))
    ordered: dict[str, Sequence[RecordedLine]] = {}
    for earlier, later in pairs_of(len(hosts)):
        pair, back = (hosts[earlier], hosts[later]), (hosts[later], hosts[earlier])
        if pair in lines_by_pair and back in lines_by_pair:
            twice = max(lines_by_pair[pair][0].number, lines_by_pair[back][0].number)
            raise InputError(f"{file}, line {twice}: the link {pair[0]}>{pair[1]} is listed as {back[0]}>{back[1]} as well")
        if pair not in lines_by_pair and back not in lines_by_pair:
            raise InputError(f"{file} has no line of the link {pair[0]}>{pair[1]}: every pair of its hosts is needed")
        ordered[f"the link {pair[0]}>{pair[1]}"] = lines_by_pair[pair] if pair in lines_by_pair else lines_by_pair[back]
    interval, table = _slots(file, ordered)
    return LinkTrace(table[:, :, 0], table[:, :, 1], interval)


@dataclass(frozen=True, slots=True)
class SpeedSpread:
    """Constant speeds of hosts that differ as in a benchmark.

    A machine's factor is its mean result over the best machine's. Hosts are drawn from the machines, with repetition.
    """

    file: str | Path
    hosts: int = GENERATED_HOSTS
    seed: int = 1

    def over(self, seconds: float) -> SpeedTrace:
        scores: dict[str, list[float]] = {}
        for machine, lines in _read(Path(self.file), (MACHINE_COLUMNS,), (SCORE_COLUMNS,)).items():
            scores.setdefault(machine[0], []).extend(line.values[0] for line in lines)
        means = np.array([statistics.fmean(each) for each in scores.values()])
        rows = np.random.default_rng(self.seed).integers(means.size, size=self.hosts)
        return SpeedTrace((means / means.max())[rows, None], math.inf)


Name: TypeAlias = str | tuple[str, ...]  # name of a column, or several alternatives


def _read(file: Path, keys: Sequence[Name], values: Sequence[Name]) -> Mapping[tuple[str, ...], list[RecordedLine]]:
    """Return lines by their keys; the column of times is the first unused one with a time's name."""
    lines = read_lines(file)
    _, header = next(lines, (0, []))
    names = [name.strip().lower() for name in header]
    key_columns = [_column(file, names, each) for each in keys]
    value_columns = [_column(file, names, each) for each in values]
    named_times = (at for at, name in enumerate(names) if TIME_UNITS.keys() & set(words_in(name)))
    times = next((at for at in named_times if at not in key_columns), None)
    groups: dict[tuple[str, ...], list[RecordedLine]] = {}
    for number, fields in lines:
        place = f"{file}, line {number}"
        if len(fields) != len(names):
            raise InputError(f"{place}: {counted(len(fields), 'field')}, and the first line names {len(names)}")
        when = 0.0 if times is None else _time(fields[times], names[times], place)
        key = tuple(fields[at].strip() for at in key_columns)
        factors = tuple(_factor(fields[at], names[at], place) for at in value_columns)
        groups.setdefault(key, []).append(RecordedLine(number, when, factors))
    if not groups:
        raise InputError(f"{file} holds no value: it needs a line for each, below a line with the names of the columns")
    return groups


def _column(file: Path, names: Sequence[str], name: Name) -> int:
    choices = (name,) if isinstance(name, str) else name
    column = next((names.index(each) for each in choices if each in names), None)
    if column is None:
        present = ", ".join(map(repr, names)) or "nothing"
        raise InputError(f"{file}, line 1: no column is called {' or '.join(map(repr, choices))}; there is {present}")
    return column


def _time(text: str, name: str, place: str) -> float:
    try:
        return seconds_of(text, min(TIME_UNITS[word] for word in words_in(name) if word in TIME_UNITS), place)
    except ValueError:
        raise InputError(f"{place}: {text.strip()!r} is not a time") from None


def _factor(text: str, name: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{place}: the {name} is {text.strip()!r}; it must be a number above 0")
    return value


def _slots(file: Path, rows: Mapping[str, Sequence[RecordedLine]]) -> tuple[float, Floats]:
    """Return (seconds per slot, values of shape (rows, slots, values)); inf for a single slot."""
    times = sorted({line.time for lines in rows.values() for line in lines})
    interval = statistics.median_low([b - a for a, b in pairwise(times)]) if len(times) > 1 else math.inf
    for what, lines in rows.items():
        for before, line in pairwise(lines):
            place = f"{file}, line {line.number}"
            if not line.time > before.time:
                raise InputError(
                    f"{place}: {what} has a value at {line.time:g} s or later already, in line {before.number}"
                )
            intervals = (line.time - before.time) / interval
            if abs(intervals - round(intervals)) > INTERVAL_TOLERANCE:
                raise InputError(
                    f"{place}: {line.time - before.time:g} s after the last line of {what}, no multiple of {interval:g} s"
                )
            if round(intervals) > 1:
                raise _gap(file, line, what, round(intervals) - 1, interval, "before it")
        for line, border, where in ((lines[0], times[0], "before it"), (lines[-1], times[-1], "after it")):
            if line.time != border:
                raise _gap(file, line, what, round(abs(line.time - border) / interval), interval, where)
    return interval, np.array([[line.values for line in lines] for lines in rows.values()])


def _gap(file: Path, line: RecordedLine, what: str, missing: int, interval: float, where: str) -> InputError:
    intervals = f"{counted(missing, 'interval')} of {interval:g} s"
    return InputError(f"{file}, line {line.number}: a gap: {what} has no value for {intervals} {where}")
