"""How a running dataflow changes from one composition to the next: how long that takes, and which records meet both.

The thesis weighs one against the other (p. 50): what is updated at once mixes, what is drained first takes long.
"""

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
    """A change of the composition. epoch: its number. version: of the new composition. requested: seconds.

    waiting: queries with a changed element that committed nothing under it yet. newest: when the last of the others first
    did. until: when the last record was committed that an operator
    processed under an older composition. mixed: records that met changed operators under the old and under the new one.
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
        """When each query with a changed element had committed records under it; NaN while one has not."""
        return self.newest if not self.waiting and self.newest > -math.inf else math.nan

    @property
    def latency(self) -> float:
        """Seconds from the request until nothing worked under an older composition any more (update latency)."""
        return max(0.0, self.until - self.requested) if not math.isnan(self.until) else 0.0


class Updates:
    """The updates of a run, oldest first. `running`: those that are not in force everywhere yet."""

    def __init__(self) -> None:
        self.all: list[PendingUpdate] = []
        self.running: list[PendingUpdate] = []

    def request(self, update: PendingUpdate) -> None:
        """Begin `update`; it overtakes those that still wait."""
        self.all.append(update)
        self.running.append(update)

    def committed(self, query: str, epoch: int, since: float, until: float) -> None:
        """Note that `query` committed records from `since` to `until`, processed under the composition of `epoch`."""
        for update in self.running:
            if epoch < update.epoch:
                update.until = until if math.isnan(update.until) else max(update.until, until)
            elif query in update.waiting:
                update.waiting.remove(query)
                update.newest = max(update.newest, since)

    @property
    def figures(self) -> dict[Metric, float]:
        """Latency of the newest update that is in force, and records mixed so far; empty before the first is requested."""
        if not self.all:
            return {}
        latency = next((each.latency for each in reversed(self.all) if not math.isnan(each.in_force)), math.nan)
        return {Metric.UPDATE_LATENCY: latency, Metric.MIXED_RECORDS: math.fsum(each.mixed for each in self.all)}

    def settle(self, oldest: int) -> None:
        """Close the updates that are in force everywhere; oldest: the lowest epoch under which anything still works."""
        self.running = [update for update in self.running if update.waiting or update.epoch > oldest]


class Passed(NamedTuple):
    """Part of the records that passed a changed operator: of those that arrive at each operator, and that leave it."""

    arriving: Mapping[str, float]
    leaving: Mapping[str, float]


def passed(
    graph: Graph,
    rates: Mapping[str, float],
    selectivity: Mapping[str, float],
    composition: Composition,
    changed: Collection[str],
) -> Passed:
    """Of records that enter at `rates` (by source, in any unit), those that pass one of `changed`."""
    live = live_edges(graph, composition)
    came = {name: rates.get(name, 0.0) for name in graph.by_name}
    met = dict.fromkeys(graph.by_name, 0.0)
    arriving, leaving = {}, {}
    for name in graph.order:
        arriving[name] = met[name] / came[name] if came[name] > 0 else 0.0
        leaving[name] = 1.0 if name in changed else arriving[name]
        for edge, part in live[name]:
            emitted = came[name] * selectivity.get(name, 1.0) * part
            came[edge.target] += emitted
            met[edge.target] += emitted * leaving[name]
    return Passed(arriving, leaving)


def ahead(graph: Graph, composition: Composition, changed: Collection[str]) -> frozenset[str]:
    """Operators that lie before one of `changed`, or are one of them."""
    live = live_edges(graph, composition)
    found = set(changed)
    for name in reversed(graph.order):
        if any(edge.target in found for edge, _ in live[name]):
            found.add(name)
    return frozenset(found)
