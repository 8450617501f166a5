"""Eqs. 4.4 to 4.7 over many instants: as `elastream.core.qos` computes them, and as a plain loop does.

The loop goes through instants, operators and edges in Python, as the equations are written, and keeps what waits. Tests
compare with it, too. Part of `value_cost.py`.
"""

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from elastream.core.qos import FlowNetwork, flows

if TYPE_CHECKING:
    from _common import Report

INSTANTS = 144
"""Of five minutes: twelve hours."""
BAR = 1 / 20
STAGES, WIDTH = 10, 3
"""Of the synthetic dataflow of Fig. 5.2: each operator of a stage sends to each of the next."""
ROUNDS, QUICK = 41, 11


class Plain(NamedTuple):
    """Of each instant: records/s finished by operator, its relative throughput, and that of the application, with what
    waited and without."""

    processed: list[list[float]]
    relative: list[list[float]]
    application: list[float]
    fresh: list[float]


def plainly(
    edges: Sequence[tuple[int, int]],
    parts: Sequence[float],
    sources: Sequence[int],
    outputs: Sequence[int],
    rates: Sequence[Sequence[float]],
    costs: Sequence[float],
    selectivities: Sequence[float],
    capacity: Sequence[Sequence[float]],
    queues: Sequence[float],
    seconds: float,
) -> Plain:
    """Arguments as for `elastream.core.qos.flows`, as lists; operators are in topological order."""
    count = len(costs)
    into: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for (source, target), part in zip(edges, parts, strict=True):
        into[target].append((source, part))
    waiting = list(queues)
    found = Plain([], [], [], [])
    for instant, rate in enumerate(rates):
        arriving, possible, offered = [0.0] * count, [0.0] * count, [0.0] * count
        for source, records in zip(sources, rate, strict=True):
            arriving[source] = possible[source] = offered[source] = records
        emitted, could, would = [0.0] * count, [0.0] * count, [0.0] * count
        processed, relative = [0.0] * count, [1.0] * count
        room = capacity[instant]
        for operator in range(count):
            for source, part in into[operator]:
                arriving[operator] += emitted[source] * part
                possible[operator] += could[source] * part
                offered[operator] += would[source] * part
            there = waiting[operator] + arriving[operator] * seconds
            takes = there if costs[operator] <= 0 else min(there, room[operator] * seconds / costs[operator])
            possible[operator] += waiting[operator] / seconds
            waiting[operator] = there - takes
            processed[operator] = takes / seconds
            if there > 0:
                relative[operator] = takes / there
            emitted[operator] = processed[operator] * selectivities[operator]
            could[operator] = possible[operator] * selectivities[operator]
            would[operator] = offered[operator] * selectivities[operator]
        found.processed.append(processed)
        found.relative.append(relative)
        for kept, whole in ((found.application, possible), (found.fresh, offered)):
            ratios = [min(1.0, processed[output] / whole[output]) for output in outputs if whole[output] > 0]
            kept.append(sum(ratios) / len(ratios) if ratios else 1.0)
    return found


def compared(report: "Report", *, quick: bool) -> None:
    """Check that both give the same, and that one takes at most a twentieth of the other's processor time."""
    rng = np.random.default_rng(1)
    count = STAGES * WIDTH
    first = [WIDTH * stage for stage in range(STAGES - 1)]
    edges = [(at + a, at + WIDTH + b) for at in first for a in range(WIDTH) for b in range(WIDTH)]
    parts = [1 / WIDTH] * len(edges)
    sources, outputs = list(range(WIDTH)), list(range(count - WIDTH, count))
    rates = rng.uniform(2.0, 75.0, (INSTANTS, WIDTH))
    costs, selectivities = rng.uniform(0.1, 1.0, count), rng.uniform(0.8, 1.2, count)
    capacity, queues = rng.uniform(5.0, 40.0, (INSTANTS, count)), rng.uniform(0.0, 100.0, count)
    network = FlowNetwork(count, np.array(edges), np.array(parts), np.array(sources), np.array(outputs))
    plain = (edges, parts, sources, outputs, rates.tolist(), costs.tolist(), selectivities.tolist(), capacity.tolist())
    ratios, loops, vectors = [], [], []
    for _ in range(QUICK if quick else ROUNDS):
        began = time.process_time()
        one = plainly(*plain, queues.tolist(), 300.0)
        between = time.process_time()
        for _ in range(10):
            other = flows(network, rates, costs, selectivities, capacity, queues, 300.0)
        ended = time.process_time()
        loops.append(between - began)
        vectors.append((ended - between) / 10)
        ratios.append(vectors[-1] / loops[-1])
    apart = float(np.abs(other.relative - np.array(one.relative)).max())
    report.figures["throughput"] = {
        "instants": INSTANTS,
        "operators": count,
        "loop_seconds": statistics.median(loops),
        "vectorised_seconds": statistics.median(vectors),
        "ratio": statistics.median(ratios),
    }
    report.at_most("difference of Eqs. 4.4 to 4.7 from a plain loop", apart, 1e-9, "the project's bar")
    report.median_at_most("Eqs. 4.4 to 4.7 over 144 instants, of a plain loop", ratios, BAR, "the project's bar")
