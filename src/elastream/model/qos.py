"""The analytic model: predicts rates, instances and waiting times of a plan by closed formulas.

Planners and the simulator share these equations, so that utilisation and capacity mean the same in both. Pure functions.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from elastream.model.graph import Delivery, Edge, Graph
from elastream.model.observation import Composition, Floats

__all__ = ["erlang_c", "live_edges", "offered_rates", "rates_over", "waiting_time"]


def live_edges(graph: Graph, composition: Composition | None = None) -> dict[str, list[tuple[Edge, float]]]:
    """Edges that carry records, by the operator that they leave, each with the part of its records that goes over it.

    Duplicate and keyed edges carry all emitted records, round-robin edges share them, and in a choice only the selected
    edge carries records.
    """
    chosen = composition.choices if composition else {}
    found = {}
    for name, edges in graph.outputs.items():
        live = [
            edge
            for edge in edges
            if edge.choice is None or chosen.get(edge.choice, graph.choices[edge.choice][0]) == edge.target
        ]
        dealt = sum(edge.delivery is Delivery.ROUND_ROBIN for edge in live)
        found[name] = [(edge, 1 / dealt if edge.delivery is Delivery.ROUND_ROBIN else 1.0) for edge in live]
    return found


def offered_rates(
    graph: Graph,
    source_rates: Mapping[str, float],
    selectivity: Mapping[str, float],
    composition: Composition | None = None,
) -> dict[str, float]:
    """Records/s that arrive at each operator if no queue holds records back.

    source_rates: by source. selectivity: records out per record in, by operator, default 1.
    """
    return rates_over(graph, live_edges(graph, composition), source_rates, selectivity)


def rates_over(
    graph: Graph,
    live: Mapping[str, Sequence[tuple[Edge, float]]],
    source_rates: Mapping[str, float],
    selectivity: Mapping[str, float],
) -> dict[str, float]:
    """The same over the edges `live`, for who asks several times under one composition."""
    arriving = {name: source_rates.get(name, 0.0) for name in graph.by_name}
    for name in graph.order:
        emitted = arriving[name] * selectivity.get(name, 1.0)
        for edge, part in live[name]:
            arriving[edge.target] += emitted * part
    return arriving


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits in M/M/c with `offered` = arrival rate x service time (Erlang's C formula)."""
    if offered >= servers:
        return 1.0
    term, total = 1.0, 1.0
    for k in range(1, servers):
        term *= offered / k
        total += term
    last = term * offered / servers / (1 - offered / servers)
    return last / (total + last)


def waiting_time(arrival_rate: float, service_time: float, servers: int, variation: Floats | float = 1.0) -> float:
    """Mean seconds in queue: M/M/c scaled by (1 + variation) / 2 (Allen-Cunneen); inf at or above capacity.

    variation: squared coefficient of variation of the service time, plus that of interarrival times less 1.
    """
    offered = arrival_rate * service_time
    if offered >= servers:
        return float("inf")
    return erlang_c(servers, offered) * service_time / (servers - offered) * (1 + float(np.asarray(variation))) / 2
