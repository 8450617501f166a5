"""Recorded observations as columns: one array of float64 for each row and metric.

A run of weeks has hundreds of thousands of observations. Kept as the entries that they were written as they take a hundred
times the memory, so each entry is taken apart as it is read.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch

Json: TypeAlias = dict[str, Any]
NAN = float("nan")
Numbers: TypeAlias = "array[float]"


class Columns:
    """Values over time of one kind of row, such as operators, by row and name of the metric.

    A column begins with its first known value: what stood before, behind its end and between two values is unknown.
    """

    def __init__(self) -> None:
        self.rows: dict[str, None] = {}
        self.metrics: dict[str, None] = {}
        self._columns: dict[tuple[str, str], tuple[int, Numbers]] = {}

    def add(self, number: int, rows: Sequence[str], values: Mapping[str, Sequence[float | None]]) -> None:
        """Take the values of observation `number`, from 0."""
        for row in rows:
            self.rows.setdefault(row)
        for metric, column in values.items():
            self.metrics.setdefault(metric)
            for row, value in zip(rows, column, strict=True):
                if value is None or value != value:
                    continue
                known = self._columns.get((row, metric))
                if known is None:
                    known = self._columns[row, metric] = (number, array("d"))
                first, kept = known
                if missing := number - first - len(kept):
                    kept.extend([NAN] * missing)
                kept.append(value)

    def column(self, row: str | None, metric: str, count: int) -> Floats:
        """Values over `count` observations, shape (count,), NaN where unknown. row: None for the first row."""
        found = np.full(count, np.nan)
        name = next(iter(self.rows), "") if row is None else row
        if (known := self._columns.get((name, metric))) is not None:
            first, kept = known
            found[first : first + len(kept)] = kept
        return found


class Readings:
    """Readings of signals as they were recorded, a row each, in order: whenever a newer one was there, or none any more."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._numbers, self._of, self._taken = array("q"), array("q"), array("d")
        self._values: list[float | bool | str | None] = []

    def add(self, number: int, read: Mapping[str, Sequence[Any]], gone: Sequence[str]) -> None:
        """Take what is new at observation `number`: value and time by name, and names without a reading from now on."""
        for name, (value, taken) in (*read.items(), *((name, (None, NAN)) for name in gone)):
            self._numbers.append(number)
            self._of.append(self.names.setdefault(name, len(self.names)))
            self._taken.append(taken)
            self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    def rows(self) -> Iterator[tuple[int, str, float | bool | str | None, float]]:
        """Number of the observation, name, value and time of each; the time is NaN where there is no reading any more."""
        names = list(self.names)
        for number, of, value, taken in zip(self._numbers, self._of, self._values, self._taken, strict=True):
            yield number, names[of], value, taken


@dataclass
class Series:
    """All observations of a run; `add` takes the next.

    application, operators, hosts, links: their metrics. composed: parallelism by the composition, under the name
    "parallelism". placed: of each observation, the host of each placed task by (row of its operator, its index); one value
    as long as nothing moves. states: of each observation, how many hosts are in each state. leases: the last entry of each
    host. alarms: (time, alarms) whenever those that stand have changed. bases: what latency was measured from, by source,
    whenever that has changed. alternates: metrics of each, `"operator.alternate"`. signals: what guards could read.
    standings, guards, compositions: (number of the observation, ...) whenever the standing of an element (None: it has none
    any more), the version of the guards, or the composition wanted (query "") or in effect in a query is another one.
    rings: (number of the observation, tokens by operator) whenever one has changed. behind: of copies of state those that
    would take over, checkpoints that the last of each operator's is behind. held: (number of the observation, state
    partitions of which a host keeps copies, by operator and host) whenever that has changed. lacking: (number of the
    observation, why copies are missing) whenever that has changed.
    """

    times: Numbers = field(default_factory=lambda: array("d"))
    application: Columns = field(default_factory=Columns)
    operators: Columns = field(default_factory=Columns)
    hosts: Columns = field(default_factory=Columns)
    links: Columns = field(default_factory=Columns)
    composed: Columns = field(default_factory=Columns)
    placed: list[Mapping[tuple[int, int], str]] = field(default_factory=list)
    states: dict[str, Numbers] = field(default_factory=lambda: {each.value: array("d") for each in HostState})
    leases: dict[str, Json] = field(default_factory=dict)
    batches: list[MicroBatch] = field(default_factory=list)
    alarms: list[tuple[float, list[Json]]] = field(default_factory=list)
    bases: list[Mapping[str, str]] = field(default_factory=list)
    alternates: Columns = field(default_factory=Columns)
    signals: Readings = field(default_factory=Readings)
    standings: list[tuple[int, str, Json | None]] = field(default_factory=list)
    guards: list[tuple[int, int]] = field(default_factory=list)
    compositions: list[tuple[int, str, Json]] = field(default_factory=list)
    rings: list[tuple[int, Mapping[str, Mapping[str, float]]]] = field(default_factory=list)
    behind: Columns = field(default_factory=Columns)
    held: list[tuple[int, Mapping[str, Mapping[str, list[int]]]]] = field(default_factory=list)
    lacking: list[tuple[int, str]] = field(default_factory=list)
    _wanted: Json | None = None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take an entry. Raises KeyError, TypeError or ValueError where it is no observation."""
        number, time = len(self.times), float(entry["time"])
        for name in ("application", "operators", "hosts", "links", "alternates"):
            frame = entry.get(name, {}) if name in ("links", "alternates") else entry[name]
            if frame:
                getattr(self, name).add(number, frame["ids"], frame["values"])
        if "rings" in entry:
            self.rings.append((number, entry["rings"]))
        if "standby" in entry:
            self._copy(number, entry["standby"])
        wanted = entry["composition"]["parallelism"]
        self.composed.add(number, list(wanted), {"parallelism": list(wanted.values())})
        self._place(entry["tasks"], entry["hosts"]["ids"])
        states = Counter(lease["state"] for lease in entry["leases"])
        for state, counts in self.states.items():
            counts.append(float(states[state]))
        self.leases |= {lease["host"]: lease for lease in entry["leases"]}
        self.batches += [_batch(row) for row in entry.get("batches", ())]
        alarms = list(entry.get("alarms", ()))
        if alarms != (self.alarms[-1][1] if self.alarms else []):
            self.alarms.append((time, alarms))
        if (basis := entry.get("latency_basis", {})) != (self.bases[-1] if self.bases else {}):
            self.bases.append(basis)
        self._guard(number, entry)
        self.times.append(time)

    def _copy(self, number: int, standby: Mapping[str, Any]) -> None:
        if behind := standby.get("behind"):
            self.behind.add(number, list(behind), {Metric.STANDBY_LAG.value: list(behind.values())})
        if "held" in standby:
            self.held.append((number, standby["held"]))
        if "why" in standby:
            self.lacking.append((number, standby["why"]))

    def _guard(self, number: int, entry: Mapping[str, Any]) -> None:
        if (wanted := entry["composition"]) != self._wanted:
            self._wanted = wanted
            self.compositions.append((number, "", wanted))
        self.compositions += [(number, query, each) for query, each in entry.get("effective", {}).items()]
        self.signals.add(number, entry.get("signals", {}), entry.get("signals_gone", ()))
        self.standings += [(number, each["element"], each) for each in entry.get("standings", ())]
        self.standings += [(number, element, None) for element in entry.get("standings_gone", ())]
        if "guards" in entry:
            self.guards.append((number, int(entry["guards"])))

    def _place(self, tasks: Mapping[str, Sequence[int]], hosts: Sequence[str]) -> None:
        of, index, at = tasks["operator"], tasks["index"], tasks["host"]
        # A task without a host has row -1: the last host's, as lists have it, would be wrong.
        now = {(o, i): hosts[h] for o, i, h in zip(of, index, at, strict=True) if h >= 0}
        self.placed.append(self.placed[-1] if self.placed and self.placed[-1] == now else now)


def _batch(row: Sequence[Any]) -> MicroBatch:
    return MicroBatch(row[0], *(NAN if value is None else value for value in row[1:]))
