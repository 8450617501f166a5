"""Where instances are that share the cores and links of their hosts: what a record costs each, and how long it travels.

A link is a host's, or that of a machine with several hosts, such as Storm's workers on a worker node
(`TaskSettings.machine_link`): what stays within a machine then takes neither time nor link.
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
    """Current placement of all instances. Arrays by instance, except `room`, by host, and `link`, by link.

    slices: instances of each operator. host: row of the host, -1 if unplaced. cost: core-seconds per record. limit: cores
    that an instance can use. wire: row of its link. carried: bytes per record over that link. room: cores. link: bytes/s,
    inf without a limit. shares: fraction of the operator's records. travelled: mean seconds in transit over each edge.
    away: seconds that a source's record is in transit, until the last of what it brings has arrived.
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
    """What is read of a network of tasks."""

    settings: TaskSettings
    graph: Graph
    live: dict[str, list[Edge]]

    def inputs_of(self, name: str) -> Sequence[Edge]:
        """Edges over which records reach an operator now."""
        ...

    def part_of(self, edge: Edge) -> float:
        """Fraction of what the source of `edge` emits that travels over `edge`."""
        ...


def shared_hosts(
    network: Connected, tasks: Sequence[TaskStation], volumes: Mapping[str, float], pool: SimulatedHosts, now: float
) -> SharedHosts:
    """Where the instances of `tasks`, operators in topological order, are at `now`.

    volumes: records at an operator for each of a source.
    """
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
            size = _known(settings.record_size(network.graph.by_name[edge.source]))
            carried[rows] += size * (1 - there[wire[rows]])
            same = min(1.0, float((there * spread[station.name]).sum()))
            travelled[edge] = settings.message_overhead + settings.latency * (1 - same)
            several = max(1.0, volumes.get(station.name, 1.0) * network.part_of(edge))
            longest = settings.message_overhead + settings.latency * (1 - same**several)
            reached = max(reached, arrived.get(edge.source, 0.0) + longest)
        arrived[station.name] = reached
        size = _known(settings.record_size(station.operator)) * station.selectivity
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
    """Return the load of other processes on each of `hosts`: (cores, bytes/s), 0 by default; shape (hosts,) each."""
    loads = [settings.background.get(host, Background()) for host in hosts]
    return np.array([each.cores for each in loads]), np.array([each.link for each in loads])


def _links(settings: TaskSettings, pool: SimulatedHosts, hosts: int) -> tuple[Integers, Floats]:
    """(Row of each host's link; bytes/s of each link, inf without a limit)."""
    if settings.machine_link is None:
        return np.arange(hosts), np.where(pool.bandwidth[:hosts] > 0, pool.bandwidth[:hosts], math.inf)
    regions = [lease.type.region for lease in pool.leases] or [""]
    numbers = {region: number for number, region in enumerate(dict.fromkeys(regions))}
    return np.array([numbers[region] for region in regions]), np.full(len(numbers), settings.machine_link)


def _known(size: float) -> float:
    return 0.0 if math.isnan(size) else size
