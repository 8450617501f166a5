"""Sums over an observation, shared by policies and the decision record; unknown values propagate as NaN."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from elastream.core.decision import Unknown
from elastream.core.frames import Frame, known_sum
from elastream.core.hosts import HostType, by_zones
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation

TICK = 1e-6
"""Seconds by which a round may come early: times are sums of fractions."""


def spread(observation: Observation, kind: HostType, count: int) -> tuple[HostType, ...]:
    """What is leased where `count` hosts of `kind` are wanted: of like types those in whose zones fewest hosts are."""
    if count <= 0:
        return ()
    context, there = observation.context, [lease.zone for lease in observation.leases.values()]
    return by_zones(context.host_types.values(), count, kind, copies=context.replicas, there=there)


def source_sum(observation: Observation, metric: Metric, operators: Frame | None = None) -> float:
    """`metric` summed over the sources, in `operators` (by default the observation's); NaN if one is unknown."""
    frame = observation.operators if operators is None else operators
    return total_of(frame, metric, [source.name for source in observation.context.graph.sources])


def total_of(frame: Frame, metric: Metric, names: Iterable[str]) -> float:
    """Sum of `metric` over the operators `names`; NaN if one is unknown."""
    return math.fsum([frame.value(name, metric) for name in names])


def cycle(observation: Observation) -> tuple[Frame, ...]:
    """The operators as they were seen during a micro-batch's time, this observation last; that alone apart.

    Where a batch ends, what waits and what hosts are busy with is another than where it begins: what is read at one moment
    says where in its batches a query is, and not how it does.
    """
    lasts = 0.0 if observation.context.layout.unchained else observation.latency(Metric.BATCH_DURATION).value or 0.0
    since = observation.time - lasts
    return (*(sample.operators for sample in observation.history if sample.time >= since), observation.operators)


def sum_of(frame: Frame, metric: Metric, names: Iterable[str]) -> float:
    """Sum of the known values of `metric` over the operators `names`; NaN if none is known."""
    return known_sum([frame.value(name, metric) for name in names])


def host_capacity(observation: Observation, host: str) -> float:
    """Capacity of `host` in cores of speed 1: its cores times its speed, measured if known, else nominal."""
    return observation.cores.each[host]


def capacity(observation: Observation, hosts: Iterable[str]) -> float:
    """Total capacity of `hosts` in cores of speed 1."""
    return observation.cores.of(tuple(hosts))


def speeds_by_operator(observation: Observation) -> dict[str, tuple[float, float]]:
    """Mean and least speed of the cores of the hosts that an operator's instances are on, by operator.

    Of its own hosts: of all, a need would change with every host that comes for another operator.
    """
    tasks, each = observation.tasks, [*observation.speeds.values()]
    if each and min(each) == max(each):
        return dict.fromkeys(observation.operators.ids, (each[0], each[0]))
    speeds = np.array(each)
    found: dict[str, tuple[float, float]] = {}
    for row, name in enumerate(observation.operators.ids):
        at = tasks.host[(tasks.operator == row) & (tasks.host >= 0)]
        if at.size:
            found[name] = mean_and_least(speeds[at].tolist())
    return found


def mean_and_least(speeds: Sequence[float]) -> tuple[float, float]:
    """Mean and least of `speeds`; 1 without any."""
    return (math.fsum(speeds) / len(speeds), min(speeds)) if speeds else (1.0, 1.0)


def tasks_on(observation: Observation, host: str) -> int:
    """Number of tasks placed on `host`."""
    row = observation.hosts.rows.get(host, -1)
    return int(observation.tasks.per_host[row]) if 0 <= row < observation.tasks.per_host.size else 0


def unsized(observation: Observation) -> tuple[Unknown, ...]:
    """The metrics of this observation for want of which hosts cannot be sized by rates and busy cores."""
    graph, frame = observation.context.graph, observation.operators
    found = [
        Unknown(metric, Rows.OPERATOR, source.name)
        for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE)
        for source in graph.sources
        if math.isnan(frame.value(source.name, metric))
    ]
    if math.isnan(sum_of(frame, Metric.BUSY_CORES, [operator.name for operator in graph.operators if not operator.waits])):
        found.append(Unknown(Metric.BUSY_CORES, Rows.OPERATOR))
    return tuple(found)


def seen(observation: Observation) -> dict[str, float]:
    """The figures for a decision's record: load, backlog, latency, busy and usable cores, hosts by state, cost."""
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
