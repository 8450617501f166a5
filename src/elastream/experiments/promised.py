"""Whether what a plant promises is observed: each metric of its table, while records pass."""

import math
from collections.abc import Iterator

import numpy as np

from elastream.core.decision import Unknown
from elastream.core.hosts import HostState
from elastream.core.metrics import Given, Metric, PlantKind, Rows
from elastream.core.observation import Observation
from elastream.dataflow.operators import Kind, Operator
from elastream.dataflow.stages import Layout

ROUNDS = 3
"""Rounds for which a promised metric is not unknown."""


def is_unknown(seen: Observation, said: Unknown) -> bool:
    """Whether a metric that a policy says it lacks is unknown in the observation that it planned for."""
    frame = seen.frames[said.rows]
    if said.row:
        return math.isnan(frame.value(said.row, said.metric))
    return bool(np.isnan(frame.column(said.metric)).all())


class Promised:
    """Counts for how many rounds a metric that the plant promises is unknown while records pass. broken: a sentence each.

    Records pass in a round if a micro-batch with records was committed, or, apart, if some left the operator; of the
    application, if some came to a sink: where the only instance of an operator is moved from host to host, no record has a
    latency. Hosts count while they are up.
    """

    def __init__(self, layout: Layout, target: float | None, kind: PlantKind) -> None:
        self.layout, self.kind, self.broken = layout, kind, list[str]()

        def holds(rows: Rows, metric: Metric, operator: Operator | None) -> bool:
            return any(
                all(each is Given.UP or each.holds(layout, target, operator) is True for each in promise.given)
                for promise in metric.promised(rows, kind, operator)
            )

        names = layout.graph.by_name
        self.operators = {
            rows: {metric: {o for o in names if holds(rows, metric, names[o])} for metric in Metric}
            for rows in (Rows.OPERATOR, Rows.TASK)
        }
        self.others = {
            rows: [metric for metric in Metric if holds(rows, metric, None)] for rows in (Rows.APPLICATION, Rows.HOST)
        }
        sinks = [operator.name for operator in layout.graph.operators if operator.kind is Kind.SINK]
        self.before_sinks = {edge.source for name in sinks for edge in layout.graph.inputs[name]}
        self.lacked: dict[tuple[Rows, Metric, str], int] = {}

    def look(self, seen: Observation) -> None:
        """Take an observation."""
        passed = self._passed(seen)
        if not passed:
            return
        lacked: dict[tuple[Rows, Metric, str], int] = {}
        for key in self._unknown(seen, passed):
            lacked[key] = self.lacked.get(key, 0) + 1
            if lacked[key] == ROUNDS:
                rows, metric, row = key
                self.broken.append(f"{metric} of {rows} {row!r} is promised and unknown until {seen.time:g} s")
        self.lacked = lacked

    def _passed(self, seen: Observation) -> set[str]:
        names = set(seen.operators.ids)
        if self.kind is PlantKind.APART:
            rates = seen.operators.column(Metric.PROCESSED_RATE)
            working = {name for name, rate in zip(seen.operators.ids, rates.tolist(), strict=True) if rate > 0}
            return working | {source.name for source in self.layout.graph.sources} if working else set()
        segments = {batch.segment for batch in seen.batches if batch.records > 0}
        return {name for name in names if self.layout.stage_of[name].segment in segments}

    def _unknown(self, seen: Observation, passed: set[str]) -> Iterator[tuple[Rows, Metric, str]]:
        for rows, metrics in self.others.items():
            if rows is Rows.APPLICATION and not passed & self.before_sinks:
                continue
            frame = seen.frames[rows]
            for metric in metrics:
                column = frame.column(metric)
                if np.isnan(column).any():
                    for row in np.flatnonzero(np.isnan(column)).tolist():
                        name = frame.ids[row]
                        if rows is Rows.APPLICATION or seen.leases[name].state in (HostState.RUNNING, HostState.DRAINING):
                            yield rows, metric, name
        for metric, operators in self.operators[Rows.OPERATOR].items():
            column = seen.operators.column(metric)
            for row in np.flatnonzero(np.isnan(column)).tolist() if operators else ():
                if (name := seen.operators.ids[row]) in operators and name in passed:
                    yield Rows.OPERATOR, metric, name
        for metric, operators in self.operators[Rows.TASK].items():
            column = seen.tasks.column(metric)
            for row in np.flatnonzero(np.isnan(column)).tolist() if operators else ():
                name = seen.operators.ids[int(seen.tasks.operator[row])]
                if name in operators and name in passed:
                    yield Rows.TASK, metric, str(seen.tasks.tasks[row])
