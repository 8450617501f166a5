"""Where tasks should lie: an even spread over the cores to be had, by as few moves as that takes.

Spark never rebalances state partitions by itself, so a host that joins a running query stays idle until its tasks are moved
there. Pure: from an observation to moves.
"""

import math
from collections.abc import Sequence

import numpy as np

from elastream.model.action import MoveTask
from elastream.model.observation import Floats, Integers, Metric, Observation
from elastream.planning.measures import host_capacity

__all__ = ["balance", "imbalance"]


def balance(observation: Observation, *, weigh: bool = True, tolerance: float = 0.25) -> list[MoveTask]:
    """Moves that even out the tasks of each operator per usable core; none where they are even.

    Operators are evened out one by one, because the stages of a micro-batch run one after another: a host with all tasks of
    one operator and none of another is idle half of the time. Only hosts that take tasks give and get; what a draining host
    holds is moved by its drain. A task goes from the host with most load a core to the one with least, as long as that
    leaves the receiver below what the giver had.

    weigh: by the BUSY_CORES of the tasks, where those of all are known; else every task weighs the same, and the moves are
    the fewest that leave no two hosts of equal capacity more than one task apart. tolerance: by weight, a spread whose
    highest load a core is within this fraction of the mean is even enough, so that noise moves nothing.
    """
    usable = observation.usable
    if len(usable) < 2 or not len(observation.tasks):
        return []
    tasks = observation.tasks
    column = {observation.hosts.rows[host]: number for number, host in enumerate(usable)}
    place = np.array([column.get(row, -1) for row in tasks.host.tolist()], dtype=np.int64)
    cores = np.array([host_capacity(observation, host) for host in usable])
    total = np.bincount(place[place >= 0], minlength=len(usable)).astype(np.float64)
    moves: list[MoveTask] = []
    for operator in np.unique(tasks.operator).tolist():
        rows = np.flatnonzero((tasks.operator == operator) & (place >= 0))
        if not len(rows):
            continue  # all of them are on hosts that are being drained, which moves them by itself
        busy = tasks.column(Metric.BUSY_CORES)[rows]
        weighed = weigh and not np.isnan(busy).any() and bool(busy.sum() > 0)
        weights = busy if weighed else np.ones(len(rows))
        for row, target in _even_out(place[rows], weights, cores, total, tolerance if weighed else 0.0):
            task = tasks.tasks[rows[row]]
            moves.append(MoveTask(task, usable[target], why="tasks spread evenly over the hosts"))
    return moves


def imbalance(place: Sequence[int], weights: Sequence[float], cores: Sequence[float]) -> float:
    """Highest load a core over the mean load a core: 1 where all is even, NaN where there is no load."""
    load = np.bincount(np.asarray(place, dtype=np.int64), np.asarray(weights), len(cores))
    mean = load.sum() / math.fsum(cores)
    return float((load / np.asarray(cores)).max() / mean) if mean > 0 else math.nan


def _even_out(place: Integers, weights: Floats, cores: Floats, total: Floats, tolerance: float) -> list[tuple[int, int]]:
    """(task, host) moves for the tasks of one operator; `total`, tasks by host, breaks ties and is brought up to date."""
    at = place.copy()
    load = np.bincount(at, weights, len(cores)).astype(np.float64)
    enough = (1 + tolerance) * load.sum() / cores.sum() + 1e-9
    # Each step leaves giver and receiver below what the giver had, so no spread comes twice and the loop ends.
    while step := _step(at, weights, load, cores, total, enough):
        task, receiver = step
        giver = at[task]
        load[giver] -= weights[task]
        load[receiver] += weights[task]
        total[giver] -= 1
        total[receiver] += 1
        at[task] = receiver
    return [(int(task), int(at[task])) for task in np.flatnonzero(at != place)]


def _step(
    at: Integers, weights: Floats, load: Floats, cores: Floats, total: Floats, enough: float
) -> tuple[int, int] | None:
    """The one move that evens out most, from the fullest host that can give to the emptiest that can take."""
    givers = np.lexsort((total / cores, load / cores))[::-1]
    receivers = np.lexsort((total / cores, (load + weights.min()) / cores))
    for giver in givers[load[givers] / cores[givers] > enough].tolist():
        held = np.flatnonzero((at == giver) & (weights > 0))
        for receiver in receivers[receivers != giver].tolist():
            room = load[giver] / cores[giver] * cores[receiver] - load[receiver]
            fitting = held[weights[held] < room - 1e-9]
            if len(fitting):
                # The task that brings the two closest together; of equal ones the first.
                left = (load[giver] - weights[fitting]) / cores[giver]
                got = (load[receiver] + weights[fitting]) / cores[receiver]
                return int(fitting[np.argmin(np.maximum(left, got))]), receiver
    return None
