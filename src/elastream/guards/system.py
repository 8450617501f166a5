"""System signals: the metrics of an observation that guards can read by name."""

import re
from collections.abc import Iterator

from elastream.guards.language import RESERVED
from elastream.model.graph import Graph
from elastream.model.metrics import Metric
from elastream.model.promises import PLANTS, Rows
from elastream.model.signals import Signal

__all__ = ["system_signals"]

_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def system_signals(graph: Graph | None = None) -> Iterator[Signal]:
    """`latency_p99`, `backlog`, ... of the application, and with `graph` `OPERATOR.METRIC` of every operator whose name is
    one in CEL, too."""
    plants = tuple(PLANTS.values())
    for metric in Metric:
        if any(metric.promised(Rows.APPLICATION, plant) for plant in plants):
            yield Signal(metric.value)
    for operator in graph.operators if graph is not None else ():
        if not _PART.match(operator.name) or operator.name in RESERVED:
            continue
        for metric in Metric:
            if any(metric.promised(Rows.OPERATOR, plant, operator) for plant in plants):
                yield Signal(f"{operator.name}.{metric.value}")
