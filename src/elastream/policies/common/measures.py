"""Figures of an observation for policies and the decision record, and the rule for returning a paid host.

Unknown values propagate as NaN.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from elastream.core.action import ReleaseHost
from elastream.core.decision import Unknown
from elastream.core.frames import Floats, Frame, known_sum
from elastream.core.hosts import HostType, Lease, by_zones
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Context, Observation

# Seconds by which a round may come early, because times are sums of fractions.
TICK = 1e-6


def price_of_core(kind: HostType) -> float:
    return kind.price_rate / (kind.cores * kind.speed)


def cheapest_type(context: Context, only: str | None = None) -> HostType:
    """Return the type `only`, else the one with the lowest price per core, speed and second; ties go to the smallest."""
    if only is not None:
        return context.host_types[only]
    return min(context.leasable.values(), key=lambda kind: (price_of_core(kind), kind.cores))


def missing_type_reason(context: Context, name: str | None) -> str | None:
    if name is None or not context.host_types or name in context.host_types:
        return None
    return f"there is no host type {name!r} (there are: {', '.join(context.host_types)})"


def emptied(observation: Observation) -> list[ReleaseHost]:
    """Return releases of draining hosts that hold no more tasks, and no work of others."""
    return [
        ReleaseHost(host, why="it holds no more tasks")
        for host in observation.draining
        if host not in observation.pinned and not tasks_on(observation, host)
    ]


def types_to_lease(observation: Observation, kind: HostType, count: int) -> tuple[HostType, ...]:
    """Return the types of `count` hosts: `kind`, or equal types of the zones with the fewest hosts."""
    if count <= 0:
        return ()
    context, there = observation.context, [lease.zone for lease in observation.leases.values()]
    return by_zones(context.leasable.values(), count, kind, copies=context.replicas, there=there)


def source_sum(observation: Observation, metric: Metric) -> float:
    return total_of(observation.operators, metric, [source.name for source in observation.context.graph.sources])


def total_of(frame: Frame, metric: Metric, names: Iterable[str]) -> float:
    """Return `metric` summed over `names`; NaN if one is unknown."""
    return math.fsum([frame.value(name, metric) for name in names])


def frames_of_batch(observation: Observation) -> tuple[Frame, ...]:
    """Return the operators' frames during the last micro-batch, the newest last.

    Unchained operators have no batches: returns only the newest frame.
    """
    lasts = 0.0 if observation.context.layout.unchained else observation.latency(Metric.BATCH_DURATION).value or 0.0
    since = observation.time - lasts
    return (*(sample.operators for sample in observation.history if sample.time >= since), observation.operators)


def sum_of(frame: Frame, metric: Metric, names: Iterable[str]) -> float:
    """Return the sum of the known values of `metric` over `names`; NaN if none is known."""
    return known_sum([frame.value(name, metric) for name in names])


def known_mean(values: Floats) -> float:
    measured = values[~np.isnan(values)]
    return float(measured.mean()) if measured.size else math.nan


def host_capacity(observation: Observation, host: str) -> float:
    """Return the cores of `host` times its speed, measured if known, else nominal."""
    return observation.cores.each[host]


def capacity(observation: Observation, hosts: Iterable[str]) -> float:
    return observation.cores.of(tuple(hosts))


def speeds_by_operator(observation: Observation) -> dict[str, tuple[float, float]]:
    """Return the (mean, least) speed of the cores under each operator's placed tasks."""
    tasks, by_host = observation.tasks, [*observation.speeds.values()]
    if by_host and min(by_host) == max(by_host):
        return dict.fromkeys(observation.operators.ids, (by_host[0], by_host[0]))
    speeds = np.array(by_host)
    speeds_of: dict[str, tuple[float, float]] = {}
    for row, name in enumerate(observation.operators.ids):
        at = tasks.host[(tasks.operator == row) & (tasks.host >= 0)]
        if at.size:
            speeds_of[name] = mean_and_least(speeds[at].tolist())
    return speeds_of


def mean_and_least(speeds: Sequence[float]) -> tuple[float, float]:
    return (math.fsum(speeds) / len(speeds), min(speeds)) if speeds else (1.0, 1.0)


def tasks_on(observation: Observation, host: str) -> int:
    row = observation.hosts.rows.get(host, -1)
    return int(observation.tasks.per_host[row]) if 0 <= row < observation.tasks.per_host.size else 0


def missing_metrics(observation: Observation) -> tuple[Unknown, ...]:
    """Return the unknown metrics without which hosts cannot be sized by rates and busy cores."""
    graph, frame = observation.context.graph, observation.operators
    missing = [
        Unknown(metric, Rows.OPERATOR, source.name)
        for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE)
        for source in graph.sources
        if math.isnan(frame.value(source.name, metric))
    ]
    if math.isnan(sum_of(frame, Metric.BUSY_CORES, [operator.name for operator in graph.operators if not operator.waits])):
        missing.append(Unknown(Metric.BUSY_CORES, Rows.OPERATOR))
    return tuple(missing)


def decision_figures(observation: Observation) -> dict[str, float]:
    return {
        "arrival_rate": source_sum(observation, Metric.ARRIVAL_RATE),
        "processed_rate": source_sum(observation, Metric.PROCESSED_RATE),
        "throughput": observation.overall(Metric.THROUGHPUT),
        "backlog": observation.backlog,
        "latency_p50": observation.overall(Metric.LATENCY_P50),
        "latency_p99": observation.overall(Metric.LATENCY_P99),
        "busy_cores": known_sum(observation.operators.column(Metric.BUSY_CORES)),
        "usable_cores": capacity(observation, observation.usable),
        "hosts_usable": float(len(observation.usable)),
        "hosts_coming": float(len(observation.coming)),
        "hosts_draining": float(len(observation.draining)),
        "cost": observation.overall(Metric.COST),
    }


# Seconds for moving tasks off a host: state partitions move one per batch.
DRAIN_S = 30.0


def due_back(lease: Lease, now: float, pace: float, empties: float = 0.0) -> bool:
    """Return True if releasing `lease` wastes no paid time, or if the next round is too late.

    An earlier release would pay a whole billing time unit again after a short lull. If the unit is shorter than a host
    takes to stop, only the minimum counts.

    Args:
        pace: Seconds until the next round.
        empties: Seconds from now until the release: of a host that is drained first, until the next round.
    """
    kind = lease.type
    if kind.price == 0:
        return True
    if lease.seconds(now) + kind.stop < kind.billing.minimum:
        return False
    takes = kind.stop + empties
    if kind.billing.unit <= takes + pace:
        return True
    return takes <= lease.remaining(now) <= takes + pace + min(DRAIN_S, kind.billing.unit / 10)
