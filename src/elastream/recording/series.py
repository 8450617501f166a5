"""Recorded observations as columns: one float64 array for each row and metric, a hundredth of their memory as entries."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
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
    """Values over time of one kind of row, such as operators, by row and metric name.

    A column begins with its first known value; before it, after its end and in gaps the value is unknown.
    """

    def __init__(self) -> None:
        self.rows: dict[str, None] = {}
        self.metrics: dict[str, None] = {}
        self._columns: dict[tuple[str, str], tuple[int, Numbers]] = {}

    def add(self, number: int, rows: Sequence[str], values: Mapping[str, Sequence[float | None]]) -> None:
        for row in rows:
            self.rows.setdefault(row)
        for metric, column in values.items():
            self.metrics.setdefault(metric)
            for row, value in zip(rows, column, strict=True):
                if value is None or value != value:
                    continue
                stored = self._columns.get((row, metric))
                if stored is None:
                    stored = self._columns[row, metric] = (number, array("d"))
                first, values_so_far = stored
                if missing := number - first - len(values_so_far):
                    values_so_far.extend([NAN] * missing)
                values_so_far.append(value)

    def column(self, row: str | None, metric: str, count: int) -> Floats:
        """Return the values over `count` observations, NaN if unknown; `row` None: of the first row."""
        values = np.full(count, np.nan)
        name = next(iter(self.rows), "") if row is None else row
        if (column := self._columns.get((name, metric))) is not None:
            first, recorded = column
            values[first : first + len(recorded)] = recorded
        return values


class Readings:
    """Recorded readings of signals, a row each, in order: each newer reading, or the loss of one."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._numbers, self._of, self._times = array("q"), array("q"), array("d")
        self._values: list[float | bool | str | None] = []

    def add(self, number: int, read: Mapping[str, Sequence[Any]], lost: Sequence[str]) -> None:
        """Add what is new at observation `number`: (value, time) by name, and names that lost their reading."""
        for name, (value, time) in (*read.items(), *((name, (None, NAN)) for name in lost)):
            self._numbers.append(number)
            self._of.append(self.names.setdefault(name, len(self.names)))
            self._times.append(time)
            self._values.append(value)

    def __len__(self) -> int:
        return len(self._values)

    def rows(self) -> Iterator[tuple[int, str, float | bool | str | None, float]]:
        """Yield observation number, name, value and time of each; the time is NaN if a reading was lost."""
        names = list(self.names)
        for number, of, value, time in zip(self._numbers, self._of, self._values, self._times, strict=True):
            yield number, names[of], value, time


@dataclass
class Series:
    """All observations of a run; `add` appends one. "By change" means: (number of the observation, value) per change."""

    times: Numbers = field(default_factory=lambda: array("d"))
    # its metrics, as for operators, hosts, links and alternates (`"operator.alternate"`)
    application: Columns = field(default_factory=Columns)
    operators: Columns = field(default_factory=Columns)
    hosts: Columns = field(default_factory=Columns)
    links: Columns = field(default_factory=Columns)
    composed: Columns = field(default_factory=Columns)  # parallelism by the composition, as metric "parallelism"
    # per observation, host by (row of the operator, task index); one shared value while nothing moves
    placed: list[Mapping[tuple[int, int], str]] = field(default_factory=list)
    # per observation, number of hosts in each state
    states: dict[str, Numbers] = field(default_factory=lambda: {each.value: array("d") for each in HostState})
    leases: dict[str, Json] = field(default_factory=dict)  # the last entry of each host
    batches: list[MicroBatch] = field(default_factory=list)
    alarms: list[tuple[float, list[Json]]] = field(default_factory=list)  # (time, alarms) per change
    bases: list[Mapping[str, str]] = field(default_factory=list)  # basis of latencies by source, per change
    alternates: Columns = field(default_factory=Columns)
    signals: Readings = field(default_factory=Readings)  # readings available to guards
    # by change, an element and its standing (None once it has no guards)
    standings: list[tuple[int, str, Json | None]] = field(default_factory=list)
    guards: list[tuple[int, int]] = field(default_factory=list)  # by change, the version of the guards
    # by change, a query and its composition in force; query "" for the requested one
    compositions: list[tuple[int, str, Json]] = field(default_factory=list)
    # by change, tokens by operator
    rings: list[tuple[int, Mapping[str, Mapping[str, float]]]] = field(default_factory=list)
    # largest lag [checkpoints] of the replicas that would take over, by operator
    behind: Columns = field(default_factory=Columns)
    # by change, state partitions with a standby replica, by operator and host
    replicas: list[tuple[int, Mapping[str, Mapping[str, list[int]]]]] = field(default_factory=list)
    lacking: list[tuple[int, str]] = field(default_factory=list)  # by change, why standby replicas are missing
    _requested: Json | None = None
    _leased: Set[str] = frozenset()

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add an entry. Raises KeyError, TypeError or ValueError for others."""
        number, time = len(self.times), float(entry["time"])
        for name in ("application", "operators", "hosts", "links", "alternates"):
            frame = entry.get(name, {}) if name in ("links", "alternates") else entry[name]
            if frame:
                getattr(self, name).add(number, frame["ids"], frame["values"])
        if "rings" in entry:
            self.rings.append((number, entry["rings"]))
        if "standby" in entry:
            self._copy(number, entry["standby"])
        parallelism = entry["composition"]["parallelism"]
        self.composed.add(number, list(parallelism), {"parallelism": list(parallelism.values())})
        self._place(entry["tasks"], entry["hosts"]["ids"])
        states = Counter(lease["state"] for lease in entry["leases"])
        for state, counts in self.states.items():
            counts.append(float(states[state]))
        leases = {lease["host"]: lease for lease in entry["leases"]}
        for host in self._leased - leases.keys():
            self.leases[host] = _ended(self.leases[host], time)
        self._leased = leases.keys()
        self.leases |= leases
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
            self.replicas.append((number, standby["held"]))
        if "why" in standby:
            self.lacking.append((number, standby["why"]))

    def _guard(self, number: int, entry: Mapping[str, Any]) -> None:
        if (requested := entry["composition"]) != self._requested:
            self._requested = requested
            self.compositions.append((number, "", requested))
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


def _ended(lease: Json, time: float) -> Json:
    leaving = lease["state"] in (HostState.RELEASING, HostState.REQUESTED)
    state = (HostState.RELEASED if leaving else HostState.LOST).value
    return {**lease, "state": state, "history": [*lease["history"], [time, state]], "until": time}


def _batch(row: Sequence[Any]) -> MicroBatch:
    return MicroBatch(row[0], *(NAN if value is None else value for value in row[1:]))
