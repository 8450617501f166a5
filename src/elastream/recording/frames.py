"""A recording as pandas DataFrames, made when they are asked for: what a notebook plots and a program evaluates.

Times are seconds since the start of the run, metrics have the names and units of `elastream.model.metrics`, and what is
unknown is NaN.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from elastream.model.action import describe
from elastream.model.cloud import HostState
from elastream.model.observation import Floats, Metric, MicroBatch
from elastream.recording.recorder import Recording
from elastream.recording.series import Columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Frames"]


@dataclass(frozen=True)
class Frames:
    """The frames of one recording: `frames.application["latency_p99"].plot()`."""

    recording: Recording

    @cached_property
    def application(self) -> "pd.DataFrame":
        """The whole dataflow: a row per observation (index `time`), a column per metric, and `hosts_ready`, `hosts_leased`.

        Arrival rate and backlog are the sum over the sources where the plant has no figure for the whole.
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
        """A row per observation and host of which something was measured (index `time`, `host`), a column per metric."""
        return self._rows(self.recording.series.hosts, "host", everywhere=False)

    @cached_property
    def leases(self) -> "pd.DataFrame":
        """A row per lease (index `host`): type, state, when it began, was ready and ended, seconds, units paid, cost."""
        import pandas as pd

        end = self.recording.end
        rows = [
            {
                "host": lease.host,
                "type": lease.type.name,
                "state": lease.state.value,
                "since": lease.since,
                "ready": np.nan if (ready := lease.ready_at()) is None else ready,
                "until": np.nan if lease.until is None else lease.until,
                "seconds": lease.seconds(end),
                "units": lease.units(end),
                "cost": lease.cost(end),
            }
            for lease in self.recording.hosts
        ]
        columns = ["host", "type", "state", "since", "ready", "until", "seconds", "units", "cost"]
        return pd.DataFrame(rows, columns=columns).set_index("host")

    @cached_property
    def decisions(self) -> "pd.DataFrame":
        """A row per planning round (index `round`): time, what was done and refused, the note, and what was seen.

        What was seen, predicted and then measured stands in columns such as `seen.arrival_rate`.
        """
        import pandas as pd

        rows = [
            {
                "round": each.round,
                "time": each.time,
                "done": "; ".join(describe(outcome.action) for outcome in each.done),
                "refused": "; ".join(f"{describe(p.action)}: {p.refused}" for p in each.proposals if p.refused),
                "note": each.note,
                "planning_seconds": each.seconds,
                **{f"{kind}.{n}": v for kind in ("seen", "predicted", "actual") for n, v in getattr(each, kind).items()},
            }
            for each in self.recording.decisions
        ]
        first = ["round", "time", "done", "refused", "note", "planning_seconds"]
        return (pd.DataFrame(rows) if rows else pd.DataFrame(columns=first)).set_index("round")

    @cached_property
    def batches(self) -> "pd.DataFrame":
        """A row per micro-batch: query, start, seconds, records, latency of its oldest and of its newest record."""
        import pandas as pd

        columns = {"segment": "query", **{name: name for name in ("start", "seconds", "records", "oldest", "newest")}}
        batches: tuple[MicroBatch, ...] = self.recording.batches
        return pd.DataFrame({shown: [getattr(each, name) for each in batches] for name, shown in columns.items()})

    @cached_property
    def alarms(self) -> "pd.DataFrame":
        """A row per alarm: source, text, since when, and when it was cleared."""
        import pandas as pd

        rows: list[tuple[Any, ...]] = [
            (alarm.source, alarm.said, alarm.since, np.nan if cleared is None else cleared)
            for alarm, cleared in self.recording.alarms
        ]
        return pd.DataFrame(rows, columns=["source", "said", "since", "cleared"])

    def _rows(self, columns: Columns, name: str, *, everywhere: bool) -> "pd.DataFrame":
        """A frame of (time, row); without `everywhere`, times at which nothing of a row is known are left out."""
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
