"""Work of records that pass several queries on shared hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from elastream.core.frames import Floats, Frame, known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.dataflow.operators import Kind
from elastream.dataflow.stages import Layout, Segment
from elastream.policies.common.measures import sum_of, total_of

# Rounds with commits over which work is counted, and seconds for which rounds are kept. Queries take turns, so that each
# round shows the work of another query. Work is therefore counted from commit to commit.
COMMITS, KEPT_S = 4, 600.0


@dataclass(frozen=True, slots=True)
class RecordWork:
    """Work of a source record in all queries.

    Attributes:
        cores: Core-seconds of speed 1 for a record, in the mix that arrives.
        left: Work ahead of a record that waits for a query, as a part of a source record's.
    """

    cores: float
    left: Mapping[str, float]


@dataclass(frozen=True, eq=False, slots=True)
class QueryWork:
    """Records and work of each query, round by round.

    Attributes:
        names: Queries, upstream first.
        times: Ends of the rounds; shape (rounds,).
        figures: Records from sources, arrived, processed (by rates) and committed; core-seconds of speed 1. Shape (5,
            queries, rounds).
    """

    names: tuple[str, ...]
    times: Floats
    figures: Floats

    @classmethod
    def after(
        cls,
        before: "QueryWork | None",
        observation: Observation,
        frames: Sequence[tuple[float, Frame]],
        speed: float,
        since: float | None,
    ) -> "QueryWork":
        """Return the figures with those of `frames` added, later than `since`; `speed`: the mean of the cores."""
        segments = observation.context.layout.segments
        names = tuple(segment.name for segment in segments)
        if before is not None and before.names != names:
            before = None  # the set of watched queries changes
        times = np.array([time for time, _ in frames])
        figures = np.zeros((5, len(names), times.size))
        if times.size:
            # How long the first round of a run lasted is not known.
            seconds = np.diff(times, prepend=times[0] - 1.0 if since is None else since)
            for row, segment in enumerate(segments):
                rates = np.array([_rates(observation, segment, frame) for _, frame in frames])
                figures[[0, 1, 2, 4], row] = rates.T * seconds
            figures[4] *= speed
        for batch in observation.batches if times.size else ():
            if batch.segment in names and (since is not None or times[0] <= batch.end):
                place = names.index(batch.segment), min(int(times.searchsorted(batch.end)), times.size - 1)
                rated = figures[(2, *place)]  # unknown if a batch read records several times
                figures[(3, *place)] += batch.records if batch.records == batch.records else np.nan_to_num(rated)
        if before is not None:
            first = int(before.times.searchsorted(observation.time - KEPT_S))
            times = np.concatenate([before.times[first:], times])
            figures = np.concatenate([before.figures[:, :, first:], figures], axis=2)
        return cls(names, times, figures)

    def of_record(self, layout: Layout) -> RecordWork | None:
        """Return the work of a source record; None while that of a query is unknown."""
        own, arrived, rated, committed, cores = self.figures
        done = np.where(np.nansum(committed, axis=1, keepdims=True) > 0, committed, rated)
        rows = range(len(self.names))
        used = [row for row in rows if np.nansum(arrived[row]) > 0 or np.nansum(done[row]) > 0]
        spans, each = {row: _span(done[row]) for row in used}, [0.0] * len(rows)
        for row, (first, end) in spans.items():
            each[row] = _ratio(cores[row, first:end], done[row, first:end])
        now = self.times.size
        # A query without records for a while says nothing about the mix that arrives now.
        busy = [first for row, (first, end) in spans.items() if end >= now - 1 or np.nansum(arrived[row, end:]) > 0]
        since = min(busy, default=0)
        if not used or any(each[row] != each[row] or np.isnan(arrived[row, since:]).all() for row in used):
            return None
        read, came, went = (np.nansum(figure[:, since:], axis=1).tolist() for figure in (own, arrived, done))
        before = [[self.names.index(name) for name in _before(layout, segment)] for segment in layout.segments]
        offered, total, work = came, sum(read), 0.0
        for row in rows:
            if before[row] and not read[row] and (passed := sum(went[earlier] for earlier in before[row])) > 0:
                # Records that a late query has not passed on yet are still to come.
                offered[row] *= sum(offered[earlier] for earlier in before[row]) / passed
            work += offered[row] * each[row]
        if not work > 0 or not total > 0:
            return None
        ahead = list(each)
        for row in reversed(rows):
            fed = sum(offered[earlier] for earlier in before[row])
            for earlier in before[row] if fed > 0 else ():
                ahead[earlier] += offered[row] / fed * ahead[row]
        left = {name: ahead[row] * total / work if row in spans else 1.0 for row, name in enumerate(self.names)}
        return RecordWork(work / total, left)


def waiting_work(observation: Observation, record: RecordWork) -> float:
    """Return the queued records, each as a part of a source record; NaN if none is known."""
    frame, stages = observation.operators, observation.context.layout.stage_of
    waiting = zip(frame.ids, frame.column(Metric.BACKLOG).tolist(), strict=True)
    return known_sum([records * record.left[stages[name].segment] for name, records in waiting])


def _rates(observation: Observation, segment: Segment, frame: Frame) -> tuple[float, float, float, float]:
    """Return the rates from sources, of arrival and of processing (records/s), and the busy cores."""
    by_name = observation.context.graph.by_name
    sources = [name for name in segment.operators if by_name[name].kind is Kind.SOURCE]
    entries = [*sources, *dict.fromkeys(edge.target for edge in segment.inputs)]
    read = total_of(frame, Metric.ARRIVAL_RATE, sources)
    arrived, done = (total_of(frame, metric, entries) for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
    working = [name for name in segment.operators if not by_name[name].waits]
    return read, arrived, done, sum_of(frame, Metric.BUSY_CORES, working)


def _before(layout: Layout, segment: Segment) -> list[str]:
    """Return the queries that feed `segment` and do not follow it."""
    rank = {each.name: place for place, each in enumerate(layout.segments)}
    feeding = dict.fromkeys(layout.stage_of[edge.source].segment for edge in segment.inputs)
    return [name for name in feeding if rank[name] < rank[segment.name]]


def _span(done: Floats) -> tuple[int, int]:
    """Return the first row that shows a query's work, and the end."""
    commits = np.flatnonzero(done > 0)
    if not commits.size:
        return done.size, done.size
    first = int(commits[-COMMITS - 1]) + 1 if commits.size > COMMITS else 0
    return first, int(commits[-1]) + 1


def _ratio(cores: Floats, records: Floats) -> float:
    both = np.isfinite(cores) & np.isfinite(records)
    total = float(records[both].sum())
    return float(cores[both].sum()) / total if total > 0 else np.nan
