"""The few sums over an observation that policies and the decision record both go by, unknown carried through as NaN."""

import math
from collections.abc import Iterable

import numpy as np

from elastream.model.cloud import HostState
from elastream.model.observation import Floats, Frame, Metric, Observation

__all__ = ["capacity", "host_capacity", "known_sum", "seen", "source_sum", "tasks_on"]


def known_sum(values: Floats) -> float:
    """Sum of what is known in `values`; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else math.nan


def source_sum(observation: Observation, metric: Metric, operators: Frame | None = None) -> float:
    """`metric` summed over the dataflow's sources, in `operators` (those of now by default); NaN where one is unknown."""
    frame = observation.operators if operators is None else operators
    return math.fsum(frame.value(source.name, metric) for source in observation.context.graph.sources)


def host_capacity(observation: Observation, host: str) -> float:
    """Cores of speed 1 that `host` amounts to: its cores times its speed, as measured where it was measured."""
    kind = observation.leases[host].type
    speed = observation.hosts.value(host, Metric.SPEED)
    return kind.cores * (kind.speed if math.isnan(speed) else speed)


def capacity(observation: Observation, hosts: Iterable[str]) -> float:
    """Cores of speed 1 of `hosts` together."""
    return math.fsum(host_capacity(observation, host) for host in hosts)


def tasks_on(observation: Observation, host: str) -> int:
    """Tasks that `host` holds, counted in the placement."""
    row = observation.hosts.rows.get(host, -1)
    return int(np.count_nonzero(observation.tasks.host == row)) if row >= 0 else 0


def seen(observation: Observation) -> dict[str, float]:
    """What a decision rests on, for its record: load, backlog, latency, cores in use and to be had, hosts by state."""
    states = [lease.state for lease in observation.leases.values()]
    application = observation.application
    row = application.ids[0] if application.ids else ""
    return {
        "arrival_rate": source_sum(observation, Metric.ARRIVAL_RATE),
        "processed_rate": source_sum(observation, Metric.PROCESSED_RATE),
        "throughput": application.value(row, Metric.THROUGHPUT),
        "backlog": known_sum(observation.operators.column(Metric.BACKLOG)),
        "latency_p50": application.value(row, Metric.LATENCY_P50),
        "latency_p99": application.value(row, Metric.LATENCY_P99),
        "busy_cores": known_sum(observation.operators.column(Metric.BUSY_CORES)),
        "usable_cores": capacity(observation, observation.usable),
        "hosts_usable": float(len(observation.usable)),
        "hosts_coming": float(len(observation.coming)),
        "hosts_draining": float(states.count(HostState.DRAINING)),
        "cost": application.value(row, Metric.COST),
    }
