"""Changes between compositions: their latency, and records processed under both."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from elastream.core.metrics import Metric
from elastream.core.observation import Composition
from elastream.core.qos import live_edges
from elastream.dataflow.graph import Graph


@dataclass
class PendingUpdate:
    """A change of the composition.

    Attributes:
        requested: Time of the request (seconds).
        waiting: Queries with a changed element and no commit yet.
        newest: First commit of the last query to adopt it.
        mixed: Records that changed operators processed under both compositions.
    """

    epoch: int
    version: int
    requested: float
    waiting: set[str] = field(default_factory=set)
    newest: float = -math.inf
    until: float = math.nan
    mixed: float = 0.0

    @property
    def in_force(self) -> float:
        """Time at which each changed query had committed; NaN before."""
        return self.newest if not self.waiting and self.newest > -math.inf else math.nan

    @property
    def latency(self) -> float:
        """Seconds until nothing ran under an older composition."""
        return max(0.0, self.until - self.requested) if not math.isnan(self.until) else 0.0


class Updates:
    """The updates of a run; `running` are not in force everywhere."""

    def __init__(self) -> None:
        self.all: list[PendingUpdate] = []
        self.running: list[PendingUpdate] = []

    def request(self, update: PendingUpdate) -> None:
        self.all.append(update)
        self.running.append(update)

    def committed(self, query: str, epoch: int, since: float, until: float) -> None:
        for update in self.running:
            if epoch < update.epoch:
                update.until = until if math.isnan(update.until) else max(update.until, until)
            elif query in update.waiting:
                update.waiting.remove(query)
                update.newest = max(update.newest, since)

    @property
    def figures(self) -> dict[Metric, float]:
        if not self.all:
            return {}
        latency = next((each.latency for each in reversed(self.all) if not math.isnan(each.in_force)), math.nan)
        return {Metric.UPDATE_LATENCY: latency, Metric.MIXED_RECORDS: math.fsum(each.mixed for each in self.all)}

    def settle(self, oldest: int) -> None:
        """Close updates in force everywhere, given the `oldest` epoch in use."""
        self.running = [update for update in self.running if update.waiting or update.epoch > oldest]


class UpdatedFractions(NamedTuple):
    """Fraction of each operator's arriving and leaving records that passed a changed operator."""

    arriving: Mapping[str, float]
    leaving: Mapping[str, float]


def updated_fractions(
    graph: Graph,
    rates: Mapping[str, float],
    selectivity: Mapping[str, float],
    composition: Composition,
    changed: Collection[str],
) -> UpdatedFractions:
    """Return the fractions of records, entering at `rates` by source, that pass one of `changed`."""
    live = live_edges(graph, composition)
    offered = {name: rates.get(name, 0.0) for name in graph.by_name}
    met = dict.fromkeys(graph.by_name, 0.0)
    arriving, leaving = {}, {}
    for name in graph.order:
        arriving[name] = met[name] / offered[name] if offered[name] > 0 else 0.0
        leaving[name] = 1.0 if name in changed else arriving[name]
        for edge, part in live[name]:
            emitted = offered[name] * selectivity.get(name, 1.0) * part
            offered[edge.target] += emitted
            met[edge.target] += emitted * leaving[name]
    return UpdatedFractions(arriving, leaving)


def ahead(graph: Graph, composition: Composition, changed: Collection[str]) -> frozenset[str]:
    """Return `changed` and all operators upstream."""
    live = live_edges(graph, composition)
    upstream = set(changed)
    for name in reversed(graph.order):
        if any(edge.target in upstream for edge, _ in live[name]):
            upstream.add(name)
    return frozenset(upstream)
