"""Work of records that pass several queries on shared hosts.

Batches of the queries take turns, so one round shows the work of one query, and the next that of another. Work is therefore
counted from commit to commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elastream.core.frames import Floats, Frame
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.dataflow.operators import Kind
from elastream.dataflow.stages import Layout, Segment
from elastream.policies.common.measures import sum_of, total_of

# Rounds with commits of a query from which its work follows, and seconds for which rounds are kept.
COMMITS, KEPT_S = 4, 600.0


@dataclass(frozen=True, slots=True)
class RecordWork:
    """Work of a source record in all queries.

    Attributes:
        cores: Core-seconds of speed 1 for a record, in the mix that arrives.
        left: Work that a record waiting for a query has ahead, in parts of that of a source record.
    """

    cores: float
    left: Mapping[str, float]


@dataclass(frozen=True, eq=False, slots=True)
class QueryWork:
    """Records and work of each query, round by round.

    Attributes:
        times: Ends of the rounds; shape (rounds,).
        figures: Records that arrived from sources, arrived, were processed by the rates told, and were committed;
            core-seconds of speed 1. Shape (5, queries, rounds).
    """

    times: Floats
    figures: Floats

    @classmethod
    def after(
        cls, before: "QueryWork | None", observation: Observation, frames: Sequence[tuple[float, Frame]], speed: float
    ) -> "QueryWork":
        """Return the figures with those of `frames` added.

        Args:
            frames: (time, metrics of operators) of the rounds since then, oldest first.
            speed: Mean speed of the cores.
        """
        if not frames:
            return cls(np.zeros(0), np.zeros((5, 0, 0))) if before is None else before
        segments = observation.context.layout.segments
        times = np.array([time for time, _ in frames])
        figures = np.zeros((5, len(segments), times.size))
        # How long the first round of a run lasted is not known.
        seconds = np.diff(times, prepend=times[0] - 1.0 if before is None else before.times[-1])
        for row, segment in enumerate(segments):
            rates = np.array([_rates(observation, segment, frame) for _, frame in frames])
            figures[[0, 1, 2, 4], row] = rates.T * seconds
        figures[4] *= speed
        rows = {segment.name: row for row, segment in enumerate(segments)}
        for batch in observation.batches:
            if batch.segment in rows and (before is not None or times[0] <= batch.end):
                round_ = min(int(times.searchsorted(batch.end)), times.size - 1)
                figures[3, rows[batch.segment], round_] += batch.records
        if before is not None:
            first = int(before.times.searchsorted(times[-1] - KEPT_S))
            times = np.concatenate([before.times[first:], times])
            figures = np.concatenate([before.figures[:, :, first:], figures], axis=2)
        return cls(times, figures)

    def of_record(self, layout: Layout) -> RecordWork | None:
        """Return the work of a source record; None while it is unknown for a query that works."""
        own, arrived, told, committed, cores = self.figures
        done = np.where(np.nansum(committed, axis=1, keepdims=True) > 0, committed, told)
        firsts = [_first(row) for row in done]
        each = [_ratio(cores[row, first:last], done[row, first:last]) for row, (first, last) in enumerate(firsts)]
        if any(np.isnan(each)):
            return None
        # Of the mix that arrives a query tells nothing that has had no records for a while.
        now = self.times.size
        busy = [first for row, (first, last) in enumerate(firsts) if last >= now - 1 or np.nansum(arrived[row, last:]) > 0]
        since = min(busy, default=max(first for first, _ in firsts))
        read, came, went = (np.nansum(figure[:, since:], axis=1).tolist() for figure in (own, arrived, done))
        rows = {segment.name: row for row, segment in enumerate(layout.segments)}
        before = [[rows[name] for name in _before(layout, segment)] for segment in layout.segments]
        offered, total, work = came, sum(read), 0.0
        for row, feeding in enumerate(before):
            if feeding and not read[row] and (passed := sum(went[earlier] for earlier in feeding)) > 0:
                # What a query that falls behind has not passed on is on its way.
                offered[row] *= sum(offered[earlier] for earlier in feeding) / passed
            work += offered[row] * each[row] if offered[row] > 0 else 0.0
        if not work > 0 or not total > 0:
            return None
        ahead = [0.0] * len(rows)
        for row in reversed(range(len(rows))):
            ahead[row] += each[row]
            fed = sum(offered[earlier] for earlier in before[row])
            for earlier in before[row] if fed > 0 else ():
                ahead[earlier] += offered[row] / fed * ahead[row]
        return RecordWork(work / total, {name: ahead[row] * total / work for name, row in rows.items()})


def _rates(observation: Observation, segment: Segment, frame: Frame) -> tuple[float, float, float, float]:
    """Return the rates of arrival from sources, of arrival and of processing (records/s), and the busy cores of a query."""
    by_name = observation.context.graph.by_name
    sources = [name for name in segment.operators if by_name[name].kind is Kind.SOURCE]
    entries = [*sources, *dict.fromkeys(edge.target for edge in segment.inputs)]
    read = total_of(frame, Metric.ARRIVAL_RATE, sources)
    arrived, done = (total_of(frame, metric, entries) for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
    working = [name for name in segment.operators if not by_name[name].waits]
    return read, arrived, done, sum_of(frame, Metric.BUSY_CORES, working)


def _before(layout: Layout, segment: Segment) -> list[str]:
    """Return the queries that feed `segment`, without those behind it in a circle."""
    rank = {each.name: place for place, each in enumerate(layout.segments)}
    feeding = dict.fromkeys(layout.stage_of[edge.source].segment for edge in segment.inputs)
    return [name for name in feeding if rank[name] < rank[segment.name]]


def _first(done: Floats) -> tuple[int, int]:
    """Return the rounds from which the work of a query follows: first, and one after the last."""
    commits = np.flatnonzero(done > 0)
    if not commits.size:
        return 0, done.size
    first = int(commits[-COMMITS - 1]) + 1 if commits.size > COMMITS else 0
    return first, int(commits[-1]) + 1


def _ratio(cores: Floats, records: Floats) -> float:
    total = float(np.nansum(records))
    return float(np.nansum(cores)) / total if total > 0 else 0.0 if not np.nansum(cores) > 0 else np.nan
