"""Converts an observation of one application for the managers: its replicas, hosts and response time, in columns."""

import math
from typing import TypeAlias

import numpy as np

from elastream.model.cloud import HostState
from elastream.model.observation import Floats, Integers, Metric, Observation
from elastream.planning.algorithms.measures import capacity, host_capacity, known_sum
from elastream.planning.managers.columns import Applications, LeasedHosts, Operators, Replicas, Snapshot, identities

__all__ = ["floating", "snapshot_of", "width"]


def snapshot_of(observation: Observation) -> Snapshot:
    """What the managers see of an observation, for one application.

    A replica is an instance of an operator that can be scaled. Of any other operator it is all that one host holds of it
    (on Spark: its state partitions there), with the operator's busy cores dealt over its tasks; of a scalable operator
    whose instances the plant places nowhere, each instance, all as used as the operator's stage is on average.

    Where instances are placed nowhere, the stages of a query take turns on the same slots: a replica then is as used as
    all turns together are long, its own and those of the other stages that it waits for. One stage at half of its slots'
    cores and another at half of its own use all of the time.
    """
    context = observation.context
    leases = {h: lease for h, lease in observation.leases.items() if lease.state is not HostState.RELEASING}
    regions = tuple(sorted({*(x.type.region for x in leases.values()), *(t.region for t in context.host_types.values())}))
    at = {region: row for row, region in enumerate(regions)}
    hosts = LeasedHosts(
        tuple(leases),
        np.array([at[lease.type.region] for lease in leases.values()], dtype=np.int64),
        np.array([lease.type.slots for lease in leases.values()], dtype=np.int64),
        np.array([observation.hosts.value(host, Metric.CPU) for host in leases], dtype=np.float64),
        np.array([x.state in (HostState.RUNNING, HostState.DRAINING) for x in leases.values()], dtype=np.bool_),
    )
    names = observation.operators.ids
    response = observation.latency(Metric.LATENCY).value
    target = context.target_latency
    return Snapshot(
        observation.time,
        regions,
        hosts,
        _replicas(observation, hosts),
        Operators(names, np.zeros(len(names), dtype=np.int64), identities([f"{context.graph.name}/{n}" for n in names])),
        Applications(
            (context.graph.name,),
            np.array([math.nan if response is None else response]),
            np.array([math.nan if target is None else target]),
        ),
    )


_Part: TypeAlias = tuple[Integers, Integers, Integers, Floats]
"""Columns of replicas: operator, index, host, utilisation."""


def _replicas(observation: Observation, hosts: LeasedHosts) -> Replicas:
    context, tasks, names = observation.context, observation.tasks, observation.operators.ids
    row_of = np.array([hosts.rows.get(host, -1) for host in observation.hosts.ids] or [-1], dtype=np.int64)
    host = np.where(tasks.host >= 0, row_of[tasks.host], -1)
    scalable = np.array([name in context.scalable for name in names], dtype=np.bool_)
    own = scalable[tasks.operator]
    used = tasks.column(Metric.UTILISATION)
    placed: list[_Part] = [(tasks.operator[own], tasks.index[own], host[own], used[own])]
    afloat = floating(observation)
    shares = [_shares(observation, hosts, row, host) for row in np.unique(tasks.operator[~own]).tolist()]
    turns = [*shares, *(_instances(observation, row) for row in afloat)]
    if afloat:
        # A turn of unknown length is none: what no meter sees of it is in the busy cores of the others.
        lengths = [float(np.nan_to_num(part[3]).max()) for part in turns]
        turns = [(*part[:3], part[3] + sum(lengths) - length) for part, length in zip(turns, lengths, strict=True)]
    pools = [_instances(observation, row) for row in _unplaced(observation) if _waits(observation, row)]
    operator, index, on, utilisation = (np.concatenate(each) for each in zip(*placed, *turns, *pools, strict=True))
    return Replicas(operator, index, on, utilisation)


def _shares(observation: Observation, hosts: LeasedHosts, operator: int, host: Integers) -> _Part:
    """By host that holds some of an operator's tasks, all that it holds as one replica; `host`: row of each task."""
    mine = host[observation.tasks.operator == operator]
    rows, count = np.unique(mine[mine >= 0], return_counts=True)
    busy = _stage_sum(observation, observation.operators.ids[operator], Metric.BUSY_CORES)
    cores = np.array([host_capacity(observation, hosts.names[row]) for row in rows.tolist()])
    return np.full(len(rows), operator), rows, rows, busy * count / len(mine) / cores


def _unplaced(observation: Observation) -> list[int]:
    """Operators that can be scaled and whose instances stand nowhere."""
    scalable, placed = observation.context.scalable, set(observation.tasks.operator.tolist())
    return [
        row
        for row, name in enumerate(observation.operators.ids)
        if name in scalable and row not in placed and width(observation, row)
    ]


def floating(observation: Observation) -> list[int]:
    """Those of them whose instances take turns on slots."""
    return [row for row in _unplaced(observation) if not _waits(observation, row)]


def _instances(observation: Observation, operator: int) -> _Part:
    """Instances that are placed nowhere, each as used as all are on average.

    Threads of an operator that waits take no slot, and are used while they wait.
    """
    n, usable, name = int(width(observation, operator)), observation.usable, observation.operators.ids[operator]
    if _waits(observation, operator):
        each = observation.operators.value(name, Metric.UTILISATION)
    else:
        slots = sum(observation.leases[host].type.slots for host in usable)
        given = n * capacity(observation, usable) / slots if slots else math.nan
        each = _stage_sum(observation, name, Metric.BUSY_CORES) / given
    return np.full(n, operator), np.arange(n), np.full(n, -1), np.full(n, each)


def width(observation: Observation, operator: int) -> float:
    """Instances of an operator; 0 where that is unknown."""
    return float(np.nan_to_num(observation.operators.column(Metric.PARALLELISM)[operator]))


def _waits(observation: Observation, operator: int) -> bool:
    return observation.context.graph.operator(observation.operators.ids[operator]).waits


def _stage_sum(observation: Observation, operator: str, metric: Metric) -> float:
    stage = observation.context.layout.stage_of[operator]
    return known_sum(np.array([observation.operators.value(name, metric) for name in stage.operators]))
