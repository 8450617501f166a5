"""Placement of instances that share cores and links: costs and transit times of records.

Within a machine with several hosts (`TaskSettings.machine_link`) records need neither time nor link.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge
from elastream.simulator.pool import SimulatedHosts
from elastream.units import ROUNDING
from elastream_papers.tasks.settings import Background, TaskSettings
from elastream_papers.tasks.station import TaskStation


@dataclass(frozen=True)
class SharedHosts:
    """Placement of all instances, as arrays by instance (`room`: by host, `link`: by link).

    slices: of each operator. host: row or -1. cost: core-seconds per record. limit: usable cores. wire: row of its link.
    carried: bytes per record. room: cores. link: bytes/s. shares: of the operator's records. travelled: mean seconds by
    edge. away: seconds until a source record's last effect.
    """

    slices: Mapping[str, slice]
    host: Integers
    cost: Floats
    limit: Floats
    wire: Integers
    carried: Floats
    room: Floats
    link: Floats
    shares: Floats
    travelled: Mapping[Edge, float]
    away: float


class Connected(Protocol):
    """Members of a task network that placement needs."""

    settings: TaskSettings
    graph: Graph
    live: dict[str, list[Edge]]

    def inputs_of(self, name: str) -> Sequence[Edge]:
        """Return the current input edges of an operator."""
        ...

    def part_of(self, edge: Edge) -> float:
        """Return the fraction of a source's output that travels over `edge`."""
        ...


def shared_hosts(
    network: Connected, tasks: Sequence[TaskStation], volumes: Mapping[str, float], pool: SimulatedHosts, now: float
) -> SharedHosts:
    """Return the placement of `tasks` (topological order) at `now`. volumes: records per source record."""
    settings = network.settings
    ends = np.cumsum([0, *(len(station.crew) for station in tasks)]).tolist()
    slices = {station.name: slice(a, b) for station, a, b in zip(tasks, ends, ends[1:], strict=False)}
    host = np.concatenate([station.crew.host for station in tasks])
    hosts = max(1, len(pool))
    at = np.where(host >= 0, host, 0)
    speed = pool.speeds(now)[at] if len(pool) else np.ones(host.size)
    up = pool.up[at]
    shares = np.concatenate([station.shares for station in tasks])
    cost = np.concatenate([np.maximum(s.work * s.efforts, ROUNDING) for s in tasks]) / speed
    limit = np.where(up, np.concatenate([np.full(len(s.crew), s.operator.cores) for s in tasks]), 0.0)
    machine, link = _links(settings, pool, hosts)
    wire = machine[at]
    # Fraction of each operator's records that each machine handles; shape (machines,) each.
    spread = {
        s.name: np.bincount(wire[slices[s.name]], shares[slices[s.name]] * (host[slices[s.name]] >= 0), link.size)
        for s in tasks
    }
    carried = np.zeros(host.size)
    travelled: dict[Edge, float] = {}
    arrived: dict[str, float] = {}
    for station in tasks:
        rows, reached = slices[station.name], 0.0
        for edge in network.inputs_of(station.name):
            there = spread.get(edge.source, np.zeros(link.size))
            size = _known_or_zero(settings.record_size(network.graph.by_name[edge.source]))
            carried[rows] += size * (1 - there[wire[rows]])
            same = min(1.0, float((there * spread[station.name]).sum()))
            travelled[edge] = settings.message_overhead + settings.latency * (1 - same)
            several = max(1.0, volumes.get(station.name, 1.0) * network.part_of(edge))
            longest = settings.message_overhead + settings.latency * (1 - same**several)
            reached = max(reached, arrived.get(edge.source, 0.0) + longest)
        arrived[station.name] = reached
        size = _known_or_zero(settings.record_size(station.operator)) * station.selectivity
        for edge in network.live[station.name]:
            if edge.target in spread:
                carried[rows] += size * network.part_of(edge) * (1 - spread[edge.target][wire[rows]])
    cores = pool.cores[:hosts]
    if settings.background:
        taken, sent = background_of(settings, [lease.host for lease in pool.leases])
        cores = np.maximum(0.0, cores - taken)
        link = np.maximum(ROUNDING, link - np.bincount(machine, sent, link.size))
    room = np.where(pool.up[:hosts], cores, 0.0) * settings.delivered
    return SharedHosts(
        slices, host, cost, limit, wire, carried, room, link, shares, travelled, max(arrived.values(), default=0.0)
    )


def background_of(settings: TaskSettings, hosts: Sequence[str]) -> tuple[Floats, Floats]:
    """Return (cores, bytes/s) of other processes on each of `hosts`; shape (hosts,) each."""
    loads = [settings.background.get(host, Background()) for host in hosts]
    return np.array([each.cores for each in loads]), np.array([each.link for each in loads])


def _links(settings: TaskSettings, pool: SimulatedHosts, hosts: int) -> tuple[Integers, Floats]:
    """Return (link row by host; bytes/s by link, inf without a limit)."""
    if settings.machine_link is None:
        return np.arange(hosts), np.where(pool.bandwidth[:hosts] > 0, pool.bandwidth[:hosts], math.inf)
    regions = [lease.type.region for lease in pool.leases] or [""]
    numbers = {region: number for number, region in enumerate(dict.fromkeys(regions))}
    return np.array([numbers[region] for region in regions]), np.full(len(numbers), settings.machine_link)


def _known_or_zero(size: float) -> float:
    return 0.0 if math.isnan(size) else size
