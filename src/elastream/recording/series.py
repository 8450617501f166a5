"""Recorded observations as columns: one array of float64 for each row and metric.

A run of weeks has hundreds of thousands of observations. Kept as the entries that they were written as they take a hundred
times the memory, so each entry is taken apart as it is read.
"""

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from elastream.model.cloud import HostState
from elastream.model.observation import Floats, MicroBatch

__all__ = ["Columns", "Series"]

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


@dataclass
class Series:
    """All observations of a run; `add` takes the next.

    application, operators, hosts, links: their metrics. composed: parallelism by the composition, under the name
    "parallelism". placed: of each observation, the host of each placed task by (row of its operator, its index); one value
    as long as nothing moves. states: of each observation, how many hosts are in each state. leases: the last entry of each
    host. alarms: (time, alarms) whenever those that stand have changed. bases: what latency was measured from, by source,
    whenever that has changed.
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

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take an entry. Raises KeyError, TypeError or ValueError where it is no observation."""
        number, time = len(self.times), float(entry["time"])
        for name in ("application", "operators", "hosts", "links"):
            frame = entry.get(name, {}) if name == "links" else entry[name]
            if frame:
                getattr(self, name).add(number, frame["ids"], frame["values"])
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
        self.times.append(time)

    def _place(self, tasks: Mapping[str, Sequence[int]], hosts: Sequence[str]) -> None:
        of, index, at = tasks["operator"], tasks["index"], tasks["host"]
        # A task without a host has row -1: the last host's, as lists have it, would be wrong.
        now = {(o, i): hosts[h] for o, i, h in zip(of, index, at, strict=True) if h >= 0}
        self.placed.append(self.placed[-1] if self.placed and self.placed[-1] == now else now)


def _batch(row: Sequence[Any]) -> MicroBatch:
    return MicroBatch(row[0], *(NAN if value is None else value for value in row[1:]))
