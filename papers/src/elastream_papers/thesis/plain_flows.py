"""Equations 4.4 to 4.7 as a plain loop, to compare `elastream.core.qos.flows` with."""

from collections.abc import Sequence
from typing import NamedTuple


class Plain(NamedTuple):
    """Records/s finished by operator, relative throughput, the application's, with the queue and without it."""

    processed: list[list[float]]
    relative: list[list[float]]
    application: list[float]
    fresh: list[float]


def plainly(  # noqa: PLR0913
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
