"""The analytic model: what a plan would give, by arithmetic alone.

Planners score plans with it and the simulator takes its equations from it, so that both mean the same by utilisation
and capacity. Pure and vectorised; no engine, no clock.
"""

from collections.abc import Mapping

import numpy as np

from elastream.model.graph import Delivery, Graph
from elastream.model.observation import Composition, Floats

__all__ = ["erlang_c", "instances_needed", "offered_rates", "waiting_time"]


def offered_rates(
    graph: Graph,
    source_rates: Mapping[str, float],
    selectivity: Mapping[str, float],
    composition: Composition | None = None,
) -> dict[str, float]:
    """Records/s that would arrive at each operator if none were held up.

    `source_rates` by source, `selectivity` (records out per record in) by operator, 1 where missing. Duplicate and keyed
    edges carry all that an operator emits, round-robin edges share it, and of a choice only the selected edge carries.
    """
    chosen = composition.choices if composition else {}
    arriving = {name: source_rates.get(name, 0.0) for name in graph.by_name}
    for name in graph.order:
        emitted = arriving[name] * selectivity.get(name, 1.0)
        live = [
            edge
            for edge in graph.outputs[name]
            if edge.choice is None or chosen.get(edge.choice, graph.choices[edge.choice][0]) == edge.target
        ]
        dealt = sum(edge.delivery is Delivery.ROUND_ROBIN for edge in live)
        for edge in live:
            arriving[edge.target] += emitted / dealt if edge.delivery is Delivery.ROUND_ROBIN else emitted
    return arriving


def instances_needed(busy_cores: float, cores_each: float, target_utilisation: float) -> int:
    """Instances that keep utilisation at or below `target_utilisation`: at least 1; NaN in gives 1."""
    if not busy_cores > 0:
        return 1
    return max(1, int(np.ceil(busy_cores / (cores_each * target_utilisation) - 1e-9)))


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
    """Mean seconds in queue, M/M/c scaled by (1 + cv^2) / 2 for other service distributions (Allen-Cunneen).

    `variation` is the squared coefficient of variation of the service time; inf where the queue has no limit.
    """
    offered = arrival_rate * service_time
    if offered >= servers:
        return float("inf")
    return erlang_c(servers, offered) * service_time / (servers - offered) * (1 + float(np.asarray(variation))) / 2
