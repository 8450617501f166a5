"""A recording as pandas DataFrames, for notebooks and evaluations. Times are seconds since the start; unknown is NaN."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from elastream.core.frames import Floats
from elastream.core.guarding import GuardDecision
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch
from elastream.recording.form import read_standing
from elastream.recording.recorder import Recording
from elastream.recording.series import Columns

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Frames:
    """The frames of one recording: `frames.application["latency_p99"].plot()`."""

    recording: Recording

    @cached_property
    def application(self) -> "pd.DataFrame":
        """The whole dataflow: a row per observation (index `time`), a column per metric, and `hosts_ready`, `hosts_leased`.

        Arrival rate and backlog are sums over the sources if the plant reports none for the whole.
        """
        import pandas as pd

        recording, count = self.recording, len(self.recording.times)
        names = recording.series.application.metrics
        columns = {name: recording.series.application.column(None, name, count) for name in names}
        columns |= {each.value: recording.whole(each) for each in (Metric.ARRIVAL_RATE, Metric.BACKLOG)}
        columns["hosts_ready"] = recording.host_count()[HostState.RUNNING]
        columns["hosts_leased"] = recording.leased
        return pd.DataFrame(columns, index=pd.Index(recording.times, name="time"))

    @cached_property
    def operators(self) -> "pd.DataFrame":
        """A row per observation and operator (index `time`, `operator`), a column per metric.

        `frames.operators["busy_cores"].unstack()` has a column per operator.
        """
        return self._rows(self.recording.series.operators, "operator", everywhere=True)

    @cached_property
    def hosts(self) -> "pd.DataFrame":
        """A row per observation and measured host (index `time`, `host`), a column per metric."""
        return self._rows(self.recording.series.hosts, "host", everywhere=False)

    @cached_property
    def leases(self) -> "pd.DataFrame":
        """A row per lease (index `host`): type, state, times [s], paid units and cost."""
        end, rows = self.recording.end, []
        for each in self.recording.hosts:
            ready, until = (math.nan if at is None else at for at in (each.ready_at(), each.until))
            paid = (each.seconds(end), each.units(end), each.cost(end))
            rows.append((each.host, each.type.name, each.state.value, each.since, ready, until, *paid))
        return _table(rows, "host", "type", "state", "since", "ready", "until", "seconds", "units", "cost")

    @cached_property
    def decisions(self) -> "pd.DataFrame":
        """A row per planning round (index `round`): time, actions done and refused, and the note.

        Observed, predicted and later actual figures are columns such as `seen.arrival_rate`.
        """
        import pandas as pd

        rows = [
            {
                "round": each.round,
                "time": each.time,
                "done": "; ".join(outcome.action.describe() for outcome in each.done),
                "refused": "; ".join(f"{p.action.describe()}: {p.refused}" for p in each.proposals if p.refused),
                "note": each.note,
                "guards": each.guards,
                "planning_seconds": each.seconds,
                **{f"{kind}.{n}": v for kind in ("seen", "predicted", "actual") for n, v in getattr(each, kind).items()},
            }
            for each in self.recording.decisions
        ]
        first = ["round", "time", "done", "refused", "note", "guards", "planning_seconds"]
        return (pd.DataFrame(rows) if rows else pd.DataFrame(columns=first)).set_index("round")

    @cached_property
    def batches(self) -> "pd.DataFrame":
        """A row per micro-batch: query, start, seconds, records, latency of oldest and newest record, number, version."""
        import pandas as pd

        same = ("start", "seconds", "records", "oldest", "newest", "number", "version")
        columns = {"segment": "query", **{name: name for name in same}}
        batches: tuple[MicroBatch, ...] = self.recording.batches
        return pd.DataFrame({shown: [getattr(each, name) for each in batches] for name, shown in columns.items()})

    @cached_property
    def alarms(self) -> "pd.DataFrame":
        """A row per alarm: source, text, start, and time of clearance."""
        rows = [
            (alarm.source, alarm.said, alarm.since, math.nan if cleared is None else cleared)
            for alarm, cleared in self.recording.alarms
        ]
        return _table(rows, "source", "said", "since", "cleared", keys=0)

    @cached_property
    def alternates(self) -> "pd.DataFrame":
        """A row per observation and alternate that has run (index `time`, `alternate`), such as `forecast.arima`."""
        return self._rows(self.recording.series.alternates, "alternate", everywhere=False)

    @cached_property
    def signals(self) -> "pd.DataFrame":
        """A row per new reading of a signal (index `time` of the observation, `signal`): value, time `taken`, and `age`.

        An unknown value is None; the time is NaN once a signal has no reading.
        """
        times = self.recording.series.times
        rows = [
            (times[number], name, value, at, max(times[number] - at, 0.0))
            for number, name, value, at in self.recording.series.signals.rows()
        ]
        frame = _table(rows, "time", "signal", "value", "taken", "age", keys=2)
        return frame.astype({"value": object})

    @cached_property
    def standings(self) -> "pd.DataFrame":
        """A row per change of an element's guard decision (index `time`, `element`).

        why: what is unknown, or why none may run.
        """
        series = self.recording.series
        rows: list[tuple[Any, ...]] = []
        stood: dict[str, GuardDecision] = {}
        for number, element, fields in series.standings:
            version = next((each for at, each in reversed(series.guards) if at <= number), 0)
            if fields is None:
                stood.pop(element, None)
                rows.append((series.times[number], element, version, (), {}, "it has no guards any more"))
                continue
            stood[element] = now = read_standing(fields, stood.get(element))
            rows.append((series.times[number], element, version, now.allowed, dict(now.values), now.why))
        return _table(rows, "time", "element", "guards", "allowed", "values", "why", keys=2)

    @cached_property
    def compositions(self) -> "pd.DataFrame":
        """A row per element and change of a composition (index `time`, `query`, `element`): version, and what runs.

        The query is empty for the requested composition, else the one in whose last committed batch it was in force.
        """
        rows = [
            (self.recording.series.times[number], query, element, composition["version"], runs)
            for number, query, composition in self.recording.series.compositions
            for element, runs in {
                **composition["alternates"],
                **composition["choices"],
                **{f"{name} by key": f"table {table}" for name, table in composition.get("tables", {}).items()},
            }.items()
        ]
        return _table(rows, "time", "query", "element", "version", "runs", keys=3)

    def _rows(self, columns: Columns, name: str, *, everywhere: bool) -> "pd.DataFrame":
        """Return a frame of (time, row); without `everywhere`, of known rows."""
        import pandas as pd

        times = self.recording.times
        parts: list[pd.DataFrame] = []
        for row in columns.rows:
            values: dict[str, Floats] = {each: columns.column(row, each, len(times)) for each in columns.metrics}
            index = pd.MultiIndex.from_product([times.tolist(), [row]], names=["time", name])
            part = pd.DataFrame(values, index=index)
            parts.append(part if everywhere else part.dropna(how="all"))
        if not parts:
            return pd.DataFrame(index=pd.MultiIndex.from_arrays([[], []], names=["time", name]))
        return pd.concat(parts).sort_index(level="time", sort_remaining=False, kind="stable")


def _table(rows: Sequence[tuple[Any, ...]], *columns: str, keys: int = 1) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.set_index(list(columns[:keys])) if keys else frame
