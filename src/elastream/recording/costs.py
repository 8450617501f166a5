"""Split of a run's cost between queries, which share hosts, by the cores that each keeps busy; equally if none is known."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from elastream.core.frames import Floats, known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import MicroBatch, Observation


def split(costs: Floats, busy: Floats) -> Floats:
    """Return money by query, shape (queries,). NaN counts as zero."""
    costs, busy = np.nan_to_num(costs), np.nan_to_num(busy)
    total = busy.sum(axis=0)
    parts = np.where(total > 0, busy / np.where(total > 0, total, 1.0), 1.0 / max(1, len(busy)))
    costs_by_query: Floats = parts @ costs
    return costs_by_query


def queries_of(stages: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """Return the operators of each query, from the stages of a run's header."""
    operators_of: dict[str, list[str]] = {}
    for stage in stages:
        operators = stage["operators"]
        assert isinstance(operators, list | tuple)
        operators_of.setdefault(str(stage["segment"]), []).extend(map(str, operators))
    return operators_of


def records_from_sources(
    batches: Iterable[MicroBatch],
    queries: Mapping[str, Collection[str]],
    sources: Collection[str],
    behind_edges: Collection[str],
) -> float:
    """Return the records that `batches` took from sources.

    0 if a query reads a durable edge besides: its batches count both together.
    """
    reading = {query: {*names} for query, names in queries.items() if not {*sources}.isdisjoint(names)}
    if any(not names.isdisjoint(behind_edges) for names in reading.values()):
        return 0.0
    return math.fsum(batch.records for batch in batches if batch.segment in reading)


class CostSplit:
    """Cost and records of a run so far; `by_query` adds up to its cost."""

    def __init__(self) -> None:
        self.by_query: dict[str, float] = {}
        self._counted = self._rated = self._cost = self._time = 0.0

    @property
    def records(self) -> float:
        return self._counted or self._rated

    def observed(self, observation: Observation) -> None:
        cost, layout = observation.overall(Metric.COST), observation.context.layout
        records = observation.overall(Metric.THROUGHPUT) * (observation.time - self._time)
        self._rated += records if records > 0 else 0.0
        self._counted += records_from_sources(
            observation.batches,
            {segment.name: segment.operators for segment in layout.segments},
            [source.name for source in layout.graph.sources],
            [edge.target for edge in layout.graph.edges if edge.durable],
        )
        self._time = observation.time
        if not cost > self._cost or not layout.segments:
            return
        busy = [
            known_sum([observation.operators.value(name, Metric.BUSY_CORES) for name in segment.operators])
            for segment in layout.segments
        ]
        parts = split(np.array([cost - self._cost]), np.array(busy).reshape(-1, 1)).tolist()
        for segment, part in zip(layout.segments, parts, strict=True):
            self.by_query[segment.name] = self.by_query.get(segment.name, 0.0) + part
        self._cost = cost
