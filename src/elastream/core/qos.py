"""Analytic model by the equations of Kumbhare's thesis: rates, throughput, waiting times, value and profit.

Rows are instants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from elastream.core.frames import Floats, Integers
from elastream.core.observation import Composition
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Delivery, Edge
from elastream.units import ROUNDING

# Limits of no edge.
UNLIMITED: Floats = np.zeros((0, 0))


def live_edges(graph: Graph, composition: Composition | None = None) -> dict[str, list[tuple[Edge, float]]]:
    """Return active edges by upstream operator, with shares of its records.

    Round-robin edges share records, a choice has one active edge, others carry all.
    """
    chosen = composition.choices if composition else {}
    shares = {}
    for name, edges in graph.outputs.items():
        live = [
            edge
            for edge in edges
            if edge.choice is None or chosen.get(edge.choice, graph.choices[edge.choice][0]) == edge.target
        ]
        dealt = sum(edge.delivery is Delivery.ROUND_ROBIN for edge in live)
        shares[name] = [(edge, 1 / dealt if edge.delivery is Delivery.ROUND_ROBIN else 1.0) for edge in live]
    return shares


def offered_rates(
    graph: Graph,
    source_rates: Mapping[str, float],
    selectivity: Mapping[str, float],
    composition: Composition | None = None,
) -> dict[str, float]:
    """Return the arrival rate of each operator without queueing (records/s).

    Args:
        selectivity: Records out per record in, by operator; default 1.
        composition: Selected branches; default: first of each choice.
    """
    return rates_over(graph, live_edges(graph, composition), source_rates, selectivity)


def rates_over(
    graph: Graph,
    live: Mapping[str, Sequence[tuple[Edge, float]]],
    source_rates: Mapping[str, float],
    selectivity: Mapping[str, float],
) -> dict[str, float]:
    arriving = {name: source_rates.get(name, 0.0) for name in graph.by_name}
    for name in graph.order:
        emitted = arriving[name] * selectivity.get(name, 1.0)
        for edge, part in live[name]:
            arriving[edge.target] += emitted * part
    return arriving


def outputs_of(graph: Graph) -> tuple[str, ...]:
    """Return the operators through which records leave: sinks, except signals and empty branches.

    Without any, return all sinks, or else operators without successors.
    """
    sinks = [each for each in graph.sinks if not graph.empty(each.name)]
    written = [each.name for each in sinks if not isinstance(each.writes, DomainSignal)]
    last = [name for name in graph.order if not graph.outputs[name]]
    return tuple(written or [each.name for each in graph.sinks] or last)


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability of waiting in M/M/c (Erlang C). `offered`: arrival rate x service time."""
    if offered >= servers:
        return 1.0
    term, total = 1.0, 1.0
    for k in range(1, servers):
        term *= offered / k
        total += term
    last = term * offered / servers / (1 - offered / servers)
    return last / (total + last)


def waiting_time(
    arrival_rate: float,
    service_time: float,
    servers: int,
    variation: Floats | float = 1.0,
    chance: float | None = None,
) -> float:
    """Return the mean time in queue (seconds): M/M/c scaled by (1 + variation) / 2 (Allen-Cunneen).

    Args:
        variation: Squared coefficients of variation of service and interarrival times, summed, less 1.
        chance: Probability of waiting, if known.
    """
    offered = arrival_rate * service_time
    if offered >= servers:
        return float("inf")
    waits = erlang_c(servers, offered) if chance is None else chance
    return waits * service_time / (servers - offered) * (1 + float(np.asarray(variation))) / 2


class FlowNetwork:
    """Operators in topological order with edges, by level.

    Attributes:
        edges: Rows of operators, int64, shape (edges, 2).
        parts: Share of emissions over each edge.
    """

    def __init__(self, operators: int, edges: Integers, parts: Floats, sources: Integers, outputs: Integers) -> None:
        self.operators = operators
        self.edges = np.array(edges, dtype=np.int64, order="C").reshape(-1, 2)
        self.parts = np.array(parts, dtype=np.float64)
        self.sources = np.array(sources, dtype=np.int64)
        self.outputs = np.array(outputs, dtype=np.int64)
        self.weights: Floats = np.zeros((operators, operators))
        np.add.at(self.weights, (self.edges[:, 1], self.edges[:, 0]), self.parts)

    @cached_property
    def incoming(self) -> tuple[Integers, Integers]:
        """Return the in-edges by operator, preceded by each operator's start in them."""
        targets = self.edges[:, 1]
        return np.searchsorted(np.sort(targets), np.arange(self.operators + 1)), np.argsort(targets, kind="stable")

    @cached_property
    def levels(self) -> tuple[Integers, ...]:
        depth = [0] * self.operators
        for source, target in sorted(self.edges.tolist()):
            depth[target] = max(depth[target], depth[source] + 1)
        return tuple(np.flatnonzero(np.array(depth) == level) for level in range(max(depth, default=-1) + 1))

    def unlimited(self, inputs: Floats, selectivities: Floats) -> Floats:
        """Return the arrival rates without limits (records/s)."""
        arriving, sent = np.array(inputs), np.zeros(self.operators)
        for rows in self.levels:
            arriving[rows] += self.weights[rows] @ sent
            sent[rows] = arriving[rows] * selectivities[rows]
        return arriving


@dataclass(frozen=True)
class Flows:
    """Flows over T instants; shape (T, operators) unless stated."""

    arriving: Floats  # arrivals (records/s; 4.6)
    processed: Floats  # completions (records/s)
    emitted: Floats  # emissions (records/s; 4.4)
    relative: Floats  # throughput relative to arrivals and queue
    possible: Floats  # completions without limits, with initial queues (records/s)
    offered: Floats  # likewise, without queues
    waiting: Floats  # queued records before and after; shape (T + 1, operators)
    application: Floats  # throughput with queues; shape (T,) (4.7)
    fresh: Floats  # throughput of new arrivals; shape (T,)


def flows(  # noqa: PLR0913
    network: FlowNetwork,
    rates: Floats,
    costs: Floats,
    selectivities: Floats,
    capacity: Floats,
    queues: Floats,
    seconds: float,
    *,
    limits: Floats | None = None,
    shared: bool = False,
) -> Flows:
    """Return the flows of Eqs. 4.4 to 4.7 over T instants, with queues carried over.

    Application throughput is the mean over outputs of completions relative to unlimited ones (Def. 5): literally, 4.7 is 1
    behind a blocked operator.

    Args:
        rates: Source rates (records/s), shape (T, sources).
        capacity: Cores of speed 1, shape (operators,) or (T, operators).
        limits: Link limits per edge (records/s), shape (T, edges).
        shared: True if operators share all cores by their work.
    """
    from elastream.core.throughput import run

    inputs = np.zeros((rates.shape[0], network.operators))
    inputs[:, network.sources] = rates
    # Copies: of read-only arrays, or of another order, the loop would be compiled once more.
    return Flows(
        *run(
            *network.incoming,
            network.edges,
            network.parts,
            network.outputs,
            inputs,
            np.array(costs, dtype=np.float64),
            np.array(selectivities, dtype=np.float64),
            np.array(np.broadcast_to(capacity, inputs.shape), dtype=np.float64, order="C"),
            np.array(queues, dtype=np.float64),
            float(seconds),
            UNLIMITED if limits is None else np.array(limits, dtype=np.float64, order="C"),
            shared,
        )
    )


def flow_limits(
    edges: Integers, instances: Floats | Integers, bandwidth: Floats, record_bytes: Floats, regions: Sequence[str]
) -> Floats:
    """Return the link limits on each edge (records/s; 4.5), shape (T, edges); inf without a limit.

    Records spread evenly over instances; those that stay on a host need no link. The receiving links of a region count
    together.

    Args:
        bandwidth: Between hosts (bytes/s), shape (T, hosts, hosts).
    """
    limits, place = np.full((bandwidth.shape[0], len(edges)), np.inf), np.unique(regions, return_inverse=True)[1]
    for edge, (source, target) in enumerate(edges.tolist()):
        sends, takes = np.flatnonzero(instances[:, source]), np.flatnonzero(instances[:, target])
        size = float(record_bytes[source])
        pairs = np.outer(instances[sends, source], instances[takes, target]).astype(np.float64)
        pairs[sends[:, None] == takes] = 0.0
        if not (size > 0 and pairs.any()):
            continue
        pairs /= instances[sends, source].sum() * instances[takes, target].sum()
        receives = pairs.any(axis=0)
        wide = np.bincount(place[takes[receives]], minlength=place.max() + 1)[place[takes]]
        over = pairs / np.maximum(1, wide)
        per_byte = np.divide(
            over, bandwidth[:, sends[:, None], takes], out=np.zeros((len(limits), *over.shape)), where=over > 0
        )
        each = size * per_byte.sum(axis=(1, 2))
        np.divide(1.0, each, out=limits[:, edge], where=each > 0)
    return limits


def application_value(values: Sequence[float], branches: Sequence[float] = ()) -> float:
    """Return the mean of running alternates' and branches' values (4.3); 1 without any."""
    every = [*values, *branches]
    return math.fsum(every) / len(every) if every else 1.0


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Line between the costs at which lowest and highest value break even in a period (Fig. 4.3)."""

    lowest: float  # lowest value (Gamma_min)
    highest: float  # highest value (Gamma_max)
    at_lowest: float  # break-even cost (C_max) at the lowest
    at_highest: float

    @property
    def sigma(self) -> float:
        """Return the value of a unit of money (4.9).

        If all values are equal, 4.9 is 0; the line then starts at no value for no money.
        """
        if self.highest > self.lowest:
            return (self.highest - self.lowest) / (self.at_highest - self.at_lowest)
        return (self.highest or 1.0) / self.at_highest

    def profit(self, value: float, cost: float) -> float:
        """Return the profit of a mean value at a cost (4.8): value - (sigma (cost - C_max) + Gamma_max).

        The thesis prints `+ 1` outside the parentheses, which breaks even nowhere on the line.
        """
        return value - (self.sigma * (cost - self.at_highest) + self.highest)


def worst_interval(throughput: ArrayLike, instants: int) -> float:
    """Return the least mean throughput over consecutive intervals of `instants` (5.2); NaN without any."""
    values = np.asarray(throughput, dtype=np.float64)
    if not values.size:
        return math.nan
    starts = np.arange(0, values.size, instants)
    return float((np.add.reduceat(values, starts) / np.diff(np.append(starts, values.size))).min())


def off_target(throughput: ArrayLike, target: float, tolerance: float) -> int:
    """Return the number of instants off `target` by more than `tolerance` (chi, p. 111)."""
    return int((np.abs(np.asarray(throughput, dtype=np.float64) - target) > tolerance + ROUNDING).sum())
