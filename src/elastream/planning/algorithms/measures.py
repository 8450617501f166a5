"""Sums over an observation, shared by policies and the decision record; unknown values propagate as NaN."""

import math
from collections.abc import Iterable

from elastream.model.cloud import HostState
from elastream.model.observation import Frame, Metric, Observation, known_sum

__all__ = ["TICK", "capacity", "host_capacity", "host_speeds", "seen", "source_sum", "tasks_on"]

TICK = 1e-6
"""Seconds by which a round may come early: times are sums of fractions."""


def source_sum(observation: Observation, metric: Metric, operators: Frame | None = None) -> float:
    """`metric` summed over the sources, in `operators` (by default the observation's); NaN if one is unknown."""
    frame = observation.operators if operators is None else operators
    return math.fsum([frame.value(source.name, metric) for source in observation.context.graph.sources])


def host_capacity(observation: Observation, host: str) -> float:
    """Capacity of `host` in cores of speed 1: its cores times its speed, measured if known, else nominal."""
    return observation.capacities[host]


def host_speeds(observation: Observation, hosts: Iterable[str]) -> list[float]:
    """Speed of the cores of each of `hosts`: measured if known, else nominal."""
    measured = [(host, observation.hosts.value(host, Metric.SPEED)) for host in hosts]
    return [observation.leases[host].type.speed if math.isnan(speed) else speed for host, speed in measured]


def capacity(observation: Observation, hosts: Iterable[str]) -> float:
    """Total capacity of `hosts` in cores of speed 1."""
    return math.fsum([observation.capacities[host] for host in hosts])


def tasks_on(observation: Observation, host: str) -> int:
    """Number of tasks placed on `host`."""
    row = observation.hosts.rows.get(host, -1)
    return int(observation.tasks.per_host[row]) if 0 <= row < observation.tasks.per_host.size else 0


def seen(observation: Observation) -> dict[str, float]:
    """The figures for a decision's record: load, backlog, latency, busy and usable cores, hosts by state, cost."""
    states = [lease.state for lease in observation.leases.values()]
    return {
        "arrival_rate": source_sum(observation, Metric.ARRIVAL_RATE),
        "processed_rate": source_sum(observation, Metric.PROCESSED_RATE),
        "throughput": observation.overall(Metric.THROUGHPUT),
        "backlog": known_sum(observation.operators.column(Metric.BACKLOG)),
        "latency_p50": observation.overall(Metric.LATENCY_P50),
        "latency_p99": observation.overall(Metric.LATENCY_P99),
        "busy_cores": known_sum(observation.operators.column(Metric.BUSY_CORES)),
        "usable_cores": capacity(observation, observation.usable),
        "hosts_usable": float(len(observation.usable)),
        "hosts_coming": float(len(observation.coming)),
        "hosts_draining": float(states.count(HostState.DRAINING)),
        "cost": observation.overall(Metric.COST),
    }
