"""The analytic model: rates, throughput, waiting times, value and profit of a plan by closed formulas.

Planners and the simulator share these equations, so that utilisation and capacity mean the same in both. Pure functions.
Numbers of equations are those of Kumbhare's thesis (4.5, 4.6, 5.2). Time comes first: instants are the rows of arrays.
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

UNLIMITED: Floats = np.zeros((0, 0))
"""Limits of no edge."""


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


def outputs_of(graph: Graph) -> tuple[str, ...]:
    """Operators that records leave by: sinks, but for those that write nothing and for signals, which are read here.

    Without any of these all sinks; without a sink, those that send nothing on.
    """
    sinks = [each for each in graph.sinks if not graph.empty(each.name)]
    written = [each.name for each in sinks if not isinstance(each.writes, DomainSignal)]
    last = [name for name in graph.order if not graph.outputs[name]]
    return tuple(written or [each.name for each in graph.sinks] or last)


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


def waiting_time(
    arrival_rate: float,
    service_time: float,
    servers: int,
    variation: Floats | float = 1.0,
    chance: float | None = None,
) -> float:
    """Mean seconds in queue: M/M/c scaled by (1 + variation) / 2 (Allen-Cunneen); inf at or above capacity.

    variation: squared coefficient of variation of the service time, plus that of interarrival times less 1. chance: that
    an arrival waits, where it is known (`erlang_c`).
    """
    offered = arrival_rate * service_time
    if offered >= servers:
        return float("inf")
    waits = erlang_c(servers, offered) if chance is None else chance
    return waits * service_time / (servers - offered) * (1 + float(np.asarray(variation))) / 2


class FlowNetwork:
    """Operators in topological order with their edges, divided into levels: what a level takes, earlier ones have emitted.

    edges: int64, shape (edges, 2), rows of operators. parts: part of a record's emissions that goes over each edge.
    sources, outputs: rows of operators. weights: part of what each operator (column) emits that reaches each (row).
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
        """Where the edges into each operator begin in the second array, and these edges, by operator."""
        targets = self.edges[:, 1]
        return np.searchsorted(np.sort(targets), np.arange(self.operators + 1)), np.argsort(targets, kind="stable")

    @cached_property
    def levels(self) -> tuple[Integers, ...]:
        """Rows of the operators of each level, those that nothing leads to first."""
        depth = [0] * self.operators
        for source, target in sorted(self.edges.tolist()):
            depth[target] = max(depth[target], depth[source] + 1)
        return tuple(np.flatnonzero(np.array(depth) == level) for level in range(max(depth, default=-1) + 1))

    def unlimited(self, inputs: Floats, selectivities: Floats) -> Floats:
        """Records/s that arrive at each operator if nothing holds back `inputs`; both of shape (operators,)."""
        found, sent = np.array(inputs), np.zeros(self.operators)
        for rows in self.levels:
            found[rows] += self.weights[rows] @ sent
            sent[rows] = found[rows] * selectivities[rows]
        return found


@dataclass(frozen=True)
class Flows:
    """What operators take and emit in each of T instants; arrays of shape (T, operators) but where said.

    arriving, processed, emitted: records/s that come in (4.6), are finished, and go out (4.4). relative: throughput of the
    operator, of what came in and what waited. possible: records/s that would be finished in the instant if nothing limited
    it, with all that waits anywhere when it begins; offered: the same without what waits. waiting: records in queue when
    each instant begins, and after the last, shape (T + 1, operators). application: shape (T,), throughput of the
    application (4.7), with what waited; fresh: of what came in alone.
    """

    arriving: Floats
    processed: Floats
    emitted: Floats
    relative: Floats
    possible: Floats
    offered: Floats
    waiting: Floats
    application: Floats
    fresh: Floats


def flows(
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
    """Eqs. 4.4 to 4.7 over T instants of `seconds` each; what one leaves in queues, the next begins with.

    rates: records/s, shape (T, sources). costs: core-seconds per record. selectivities: records out per record in.
    capacity: cores of speed 1, shape (operators,) or (T, operators). queues: records that wait at the start. limits:
    records/s that the links of each edge let through, shape (T, edges). shared: all cores are given for each operator,
    which has a part of them as large as its part of the work.

    The throughput of the application is the mean over its outputs of what they finish over what they would with no limit
    anywhere ("for the current input data rate", Def. 5): 4.7 read to the letter, with each output's own throughput, is 1
    where an operator before the outputs holds everything up. An output that nothing could reach does not count.
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
    """Records/s that the links let over each edge (4.5), shape (T, edges); inf where none limits it.

    instances: of each operator on each host, shape (hosts, operators). bandwidth: bytes/s from each host to each other,
    shape (T, hosts, hosts). record_bytes: of a record that each operator emits. regions: of each host.

    Records spread evenly over the instances of either side. What stays on a host is handed over in memory. The rest has the
    links of all hosts of a region that it comes to at once ("available cumulative bandwidth between all instances"): a
    host's link is one, however many hosts send to it, as in the simulation.
    """
    found, place = np.full((bandwidth.shape[0], len(edges)), np.inf), np.unique(regions, return_inverse=True)[1]
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
            over, bandwidth[:, sends[:, None], takes], out=np.zeros((len(found), *over.shape)), where=over > 0
        )
        each = size * per_byte.sum(axis=(1, 2))
        np.divide(1.0, each, out=found[:, edge], where=each > 0)
    return found


def application_value(values: Sequence[float], branches: Sequence[float] = ()) -> float:
    """Normalised application value (4.3): the mean of the relative values of the alternates that run; 1 without any.

    branches: relative values of the branches that run, which count as alternates do.
    """
    every = [*values, *branches]
    return math.fsum(every) / len(every) if every else 1.0


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The line between the costs at which the lowest and the highest value break even (Fig. 4.3), over one period.

    lowest, highest: Gamma_min and Gamma_max. at_lowest, at_highest: C_max at these, in money.
    """

    lowest: float
    highest: float
    at_lowest: float
    at_highest: float

    @property
    def sigma(self) -> float:
        """Value that is as good as a unit of money (4.9).

        Where all values are equal, 4.9 is 0 and money would not matter: then that of the line from no value for no money.
        """
        if self.highest > self.lowest:
            return (self.highest - self.lowest) / (self.at_highest - self.at_lowest)
        return (self.highest or 1.0) / self.at_highest

    def profit(self, value: float, cost: float) -> float:
        """Profit of a mean value at a cost (4.8), 0 on the line: value - (sigma (cost - C_max) + Gamma_max).

        Printed with `+ 1` outside of the parentheses, which breaks even nowhere on the line. Gamma_max is 1 in the thesis.
        """
        return value - (self.sigma * (cost - self.at_highest) + self.highest)


def profit_so_far(line: BreakEven, period: float, ends: ArrayLike, values: ArrayLike, costs: ArrayLike) -> Floats:
    """Profit up to each of the times `ends`, seconds since the period of `period` seconds began (5.2, p. 103); shape (T,).

    values: mean value of each instant up to its end. costs: money spent since the period began. The same values break even
    at a part of the costs as large as the part of the period that has passed. At its end this is 4.8.
    """
    times, value = np.asarray(ends, dtype=np.float64), np.asarray(values, dtype=np.float64)
    mean = np.cumsum(value * np.diff(times, prepend=0.0)) / times
    whole = np.asarray(costs, dtype=np.float64) * period / times
    return np.array([line.profit(*each) for each in zip(mean.tolist(), whole.tolist(), strict=True)])


def worst_interval(throughput: ArrayLike, instants: int) -> float:
    """Least mean relative throughput over consecutive intervals of `instants` (5.2: each is to reach the target); NaN
    without any. The last interval may be shorter."""
    found = np.asarray(throughput, dtype=np.float64)
    if not found.size:
        return math.nan
    starts = np.arange(0, found.size, instants)
    return float((np.add.reduceat(found, starts) / np.diff(np.append(starts, found.size))).min())


def off_target(throughput: ArrayLike, target: float, tolerance: float) -> int:
    """Number of instants whose relative throughput is off `target` by more than `tolerance` (stability chi, p. 111)."""
    return int((np.abs(np.asarray(throughput, dtype=np.float64) - target) > tolerance + ROUNDING).sum())
