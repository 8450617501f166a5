"""Compiled loop of Eqs. 4.4 to 4.7. `elastream.core.qos` imports it on use, because the compiler loads slowly."""

import numpy as np
from numba import njit

from elastream.core.frames import Floats, Integers


@njit(cache=True)
def run(  # noqa: PLR0913
    first: Integers,
    into: Integers,
    edges: Integers,
    parts: Floats,
    outputs: Integers,
    inputs: Floats,
    costs: Floats,
    selectivities: Floats,
    capacity: Floats,
    queues: Floats,
    seconds: float,
    limits: Floats,
    shared: bool,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats, Floats]:
    """Return the fields of `elastream.core.qos.Flows` in order.

    Edges into operator p are `into[first[p]:first[p + 1]]`. `limits` of shape (0, 0) are none.
    """
    instants, operators = inputs.shape
    arriving, possible, offered = inputs.copy(), inputs.copy(), inputs.copy()
    processed, emitted = np.zeros_like(inputs), np.zeros_like(inputs)
    relative = np.ones_like(inputs)
    waiting = np.empty((instants + 1, operators))
    waiting[0] = queues
    application, fresh = np.ones(instants), np.ones(instants)
    for t in range(instants):
        work = 0.0
        for p in range(operators):
            for e in into[first[p] : first[p + 1]]:
                source = edges[e, 0]
                part = selectivities[source] * parts[e]
                possible[t, p] += possible[t, source] * part
                offered[t, p] += offered[t, source] * part
            possible[t, p] += waiting[t, p] / seconds
            work += possible[t, p] * costs[p]
        for p in range(operators):
            for e in into[first[p] : first[p + 1]]:
                flow = emitted[t, edges[e, 0]] * parts[e]
                if limits.shape[0] > 0 and limits[t, e] < flow:
                    flow = limits[t, e]
                arriving[t, p] += flow
            there = waiting[t, p] + arriving[t, p] * seconds
            takes = there
            if costs[p] > 0:
                room = capacity[t, p]
                if shared and work > 0:
                    room *= possible[t, p] * costs[p] / work
                takes = min(there, room * seconds / costs[p])
            waiting[t + 1, p] = there - takes
            processed[t, p] = takes / seconds
            emitted[t, p] = processed[t, p] * selectivities[p]
            if there > 0:
                relative[t, p] = takes / there
        application[t] = _mean(processed[t], possible[t], outputs)
        fresh[t] = _mean(processed[t], offered[t], outputs)
    return arriving, processed, emitted, relative, possible, offered, waiting, application, fresh


@njit(cache=True)
def _mean(part: Floats, whole: Floats, rows: Integers) -> float:
    """Return the mean over `rows` of `part` / `whole`, at most 1; 1 without any."""
    total, count = 0.0, 0
    for row in rows:
        if whole[row] > 0:
            total += min(1.0, part[row] / whole[row])
            count += 1
    return total / count if count else 1.0
