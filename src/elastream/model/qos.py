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

from elastream.model.graph import Delivery, Edge, Graph
from elastream.model.observation import Composition, Floats, Integers

__all__ = [
    "Flows",
    "Line",
    "Network",
    "application_value",
    "erlang_c",
    "flow_limits",
    "flows",
    "live_edges",
    "off_target",
    "offered_rates",
    "profit_so_far",
    "rates_over",
    "waiting_time",
    "worst_interval",
]

NEARLY = 1e-9
"""Sums of decimal fractions: rounding must not count as a difference."""


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
    """Mean seconds in queue: M/M/c scaled by (1 + variation) / 2 (Allen-Cunneen); inf at or above capacity.

    variation: squared coefficient of variation of the service time, plus that of interarrival times less 1.
    """
    offered = arrival_rate * service_time
    if offered >= servers:
        return float("inf")
    return erlang_c(servers, offered) * service_time / (servers - offered) * (1 + float(np.asarray(variation))) / 2


class Network:
    """Operators with their edges, divided into levels: what a level takes, earlier ones have emitted.

    edges: int64, shape (edges, 2), rows of operators in topological order. parts: part of a record's emissions that goes
    over each edge. sources, outputs: rows of operators.
    """

    def __init__(self, operators: int, edges: Integers, parts: Floats, sources: Integers, outputs: Integers) -> None:
        self.operators = operators
        self.edges = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        self.parts = np.asarray(parts, dtype=np.float64)
        self.sources = np.asarray(sources, dtype=np.int64)
        self.outputs = np.asarray(outputs, dtype=np.int64)
        depth = [0] * operators
        for source, target in sorted(self.edges.tolist()):
            depth[target] = max(depth[target], depth[source] + 1)
        self._depth = np.array(depth, dtype=np.int64)
        self.order: Integers = np.argsort(self._depth, kind="stable")
        self.place: Integers = np.argsort(self.order)
        self.back = slice(None) if bool((np.diff(self.order) > 0).all()) else self.place
        weights = np.zeros((operators, operators))
        np.add.at(weights, (self.place[self.edges[:, 1]], self.place[self.edges[:, 0]]), self.parts)
        self.weights: Floats = weights

    @cached_property
    def levels(self) -> tuple[tuple[slice, Integers, Floats], ...]:
        """Of each level: its operators in `order`, rows of the edges into them, and which edge leads to which of them."""
        ends = np.cumsum(np.bincount(self._depth)).tolist() if self.operators else []
        found = []
        for level, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
            into = np.flatnonzero(self._depth[self.edges[:, 1]] == level)
            leads = self.place[self.edges[into, 1]] == np.arange(first, last)[:, None]
            found.append((slice(first, last), into, leads.astype(np.float64)))
        return tuple(found)

    def unlimited(self, inputs: Floats, selectivities: Floats) -> Floats:
        """Records/s that arrive at each operator if nothing holds back `inputs`, of the same shape; operators in `order`."""
        found: Floats = np.linalg.solve(np.eye(self.operators) - self.weights * selectivities, inputs)
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
    network: Network,
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
    order, instants = network.order, rates.shape[0]
    inputs = np.zeros((network.operators, instants))
    inputs[network.place[network.sources]] = rates.T
    emits, works, waits = selectivities[order, None], costs[order, None], queues[order, None]
    coming = network.unlimited(np.concatenate([inputs, waits / seconds], axis=1), emits[:, 0])
    offered, late = coming[:, :-1], coming[:, -1:]
    room = np.broadcast_to(capacity, (instants, network.operators))[:, order].T
    if shared:
        room = room * _parts((offered + late) * works)
    # What can take more than ever comes is as good as what takes just that; infinite sums have no differences.
    ever = (offered.sum(axis=1, keepdims=True) + late) * (seconds * (1 + NEARLY))
    most = np.broadcast_to(ever, room.shape).copy()
    np.divide(room * seconds, works, out=most, where=(works > 0) & (room * seconds < most * works))
    bounds = None if limits is None else np.broadcast_to(limits, (instants, len(network.edges))).T
    arriving, takes, possible = inputs.copy(), np.zeros_like(inputs), inputs.copy()
    sent, walk = np.zeros((network.operators, 2 * instants)), np.empty((network.operators, instants + 1))
    for level, into, leads in network.levels:
        came, could, queued = arriving[level], possible[level], walk[level]
        if into.size:
            over = network.weights[level, : level.start] @ sent[: level.start]
            could += over[:, instants:]
            if bounds is None:
                came += over[:, :instants]
            else:
                flow = sent[network.place[network.edges[into, 0]], :instants] * network.parts[into, None]
                came += leads @ np.minimum(flow, bounds[into])
        # A queue that arrivals fill and service empties is a walk reflected at zero: how far the same walk without the
        # reflection is above its lowest point so far.
        records = came * seconds
        queued[:, :1] = waits[level]
        np.subtract(records, most[level], out=queued[:, 1:])
        np.cumsum(queued, axis=1, out=queued)
        queued -= np.minimum(np.minimum.accumulate(queued, axis=1), 0.0)
        could += queued[:, :-1] / seconds
        np.minimum(queued[:, :-1] + records, most[level], out=takes[level])
        np.multiply(takes[level], emits[level] / seconds, out=sent[level, :instants])
        np.multiply(could, emits[level], out=sent[level, instants:])
    processed, ends = takes / seconds, network.place[network.outputs]
    back = network.back
    return Flows(
        arriving[back].T,
        processed[back].T,
        sent[back, :instants].T,
        _ratio(processed, walk[:, :-1] / seconds + arriving)[back].T,
        possible[back].T,
        offered[back].T,
        walk[back].T,
        _mean_ratio(processed[ends], possible[ends]),
        _mean_ratio(processed[ends], offered[ends]),
    )


def _parts(work: Floats) -> Floats:
    """Part of all work that each operator has, by instant; all of it where there is none."""
    total = work.sum(axis=0)
    return np.divide(work, total, out=np.ones_like(work), where=total > 0)


def _ratio(part: Floats, whole: Floats) -> Floats:
    """`part` over `whole`, at most 1, and 1 where there is nothing."""
    return np.minimum(np.divide(part, whole, out=np.ones_like(part), where=whole > 0), 1.0)


def _mean_ratio(part: Floats, whole: Floats) -> Floats:
    """Mean over the rows of `part` over `whole` where `whole` is above 0; 1 where none is; shape (T,)."""
    there = whole > 0
    counts = there.sum(axis=0)
    total = np.where(there, _ratio(part, whole), 0.0).sum(axis=0)
    return np.divide(total, counts, out=np.ones_like(total), where=counts > 0)


def flow_limits(edges: Integers, working: Floats, bandwidth: Floats, record_bytes: Floats) -> Floats:
    """Records/s that the links let over each edge (4.5), shape (T, edges); inf where none limits it.

    working: capacity of each operator on each host, shape (hosts, operators); records spread in proportion to it.
    bandwidth: bytes/s from each host to each other, shape (T, hosts, hosts). record_bytes: of a record that each operator
    emits.

    What stays on a host is handed over in memory; the rest has the bandwidth of all pairs of hosts between which the edge
    leads, together ("available cumulative bandwidth between all instances").
    """
    found = np.full((bandwidth.shape[0], len(edges)), np.inf)
    elsewhere = ~np.eye(working.shape[0], dtype=np.bool_)
    for edge, (source, target) in enumerate(edges.tolist()):
        sends, takes = working[:, source], working[:, target]
        size = float(record_bytes[source])
        if not (size > 0 and sends.sum() > 0 and takes.sum() > 0):
            continue
        crossing = 1.0 - float(sends @ takes) / float(sends.sum() * takes.sum())
        if crossing > NEARLY:
            pairs = np.outer(sends > 0, takes > 0) & elsewhere
            found[:, edge] = bandwidth[:, pairs].sum(axis=1) / (size * crossing)
    return found


def application_value(values: Sequence[float], branches: Sequence[float] = ()) -> float:
    """Normalised application value (4.3): the mean of the relative values of the alternates that run; 1 without any.

    branches: relative values of the branches that run, which count as alternates do.
    """
    every = [*values, *branches]
    return math.fsum(every) / len(every) if every else 1.0


@dataclass(frozen=True, slots=True)
class Line:
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


def profit_so_far(line: Line, period: float, ends: ArrayLike, values: ArrayLike, costs: ArrayLike) -> Floats:
    """Profit up to each of the times `ends`, seconds since the period of `period` seconds began (5.2, p. 103); shape (T,).

    values: mean value of each instant up to its end. costs: money spent since the period began. The same values break even
    at a part of the costs as large as the part of the period that has passed. At its end this is 4.8.
    """
    times, value = np.asarray(ends, dtype=np.float64), np.asarray(values, dtype=np.float64)
    mean = np.cumsum(value * np.diff(times, prepend=0.0)) / times
    whole = np.asarray(costs, dtype=np.float64) * period / times
    found: Floats = mean - (line.sigma * (whole - line.at_highest) + line.highest)
    return found


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
    return int((np.abs(np.asarray(throughput, dtype=np.float64) - target) > tolerance + NEARLY).sum())
