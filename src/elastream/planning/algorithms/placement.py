"""Where tasks should lie: an even spread over the cores to be had, by as few moves as that takes.

Spark never rebalances state partitions by itself, so a host that joins a running query stays idle until its tasks are moved
there. By count where all that is known is that tasks are there, by load where what each takes has been measured. Pure: from
an observation to moves.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from elastream.model.action import MoveTask
from elastream.model.observation import Floats, Integers, Metric, Observation
from elastream.planning.algorithms.measures import host_capacity

__all__ = ["balance", "balance_by_load", "imbalance"]

PREFERENCE = 0.002
"""Of the highest load, what an exchange of two tasks must be better by than a move of one, and any step than none."""
IDLE = 1e-9
"""Busy cores of an operator that are none at all."""
SURE = 2.0
"""Standard errors beyond which a difference is taken for one: 1 in 20 is not."""
ENOUGH = 0.01
"""Of the mean load, what the fullest host may have above it: the moves that are left would gain less than they cost."""


def balance(observation: Observation) -> list[MoveTask]:
    """Moves that even out the number of tasks of each operator per usable core; none where they are even.

    Operators are evened out one by one, because the stages of a micro-batch run one after another: a host with all tasks of
    one operator and none of another is idle half of the time. Only hosts that take tasks give and get; what a draining host
    holds is moved by its drain. The moves are the fewest that leave no two hosts of equal capacity over one task apart.
    """
    moves: list[MoveTask] = []
    spread = _Spread(observation)
    total = spread.tasks_by_host
    for rows in spread.operators:
        for row, target in _even_out(spread.place[rows], spread.cores, total):
            moves.append(spread.move(rows[row], target, "tasks spread evenly over the hosts"))
    return moves


def balance_by_load(observation: Observation, *, gain: float = 0.03, worth: float = 0.0) -> list[MoveTask]:
    """Moves that even out the load of each operator per usable core, biggest benefit first; none where that gains little.

    Operators one by one, and hosts as in `balance`. The fullest host gives a task away, or changes one for a lighter one
    of another host, whichever brings the two of them lowest, for as long as that lowers the highest load a core.

    An operator is left alone while the load of one of its tasks is unknown, and while all its moves together would lower
    its highest load a core by less than the fraction `gain` of what it is, by less than `worth` busy cores per core, or by
    less than SURE standard errors of that load, where BUSY_CORES_ERROR is known: what is idle stays where it is, and noise
    moves nothing.
    """
    moves: list[tuple[float, MoveTask]] = []
    spread = _Spread(observation)
    busy = observation.tasks.column(Metric.BUSY_CORES)
    errors = observation.tasks.column(Metric.BUSY_CORES_ERROR)
    for rows in spread.operators:
        weights = busy[rows]
        if np.isnan(weights).any() or not weights.sum() > IDLE:
            continue
        place, cores = spread.place[rows], spread.cores
        a_core = np.bincount(place, weights, len(cores)) / cores
        fullest, before = int(np.argmax(a_core)), float(a_core.max())
        noise = SURE * np.sqrt(np.nansum(errors[rows[place == fullest]] ** 2)) / cores[fullest]
        needed = max(gain * before, worth, float(noise))
        if before - max(weights.sum() / cores.sum(), weights.max() / cores.max()) <= needed:
            continue
        steps, after = _level(place, weights, cores)
        if before - after <= needed:
            continue
        why = f"the fullest host has {before:.3g} busy cores a core, and can have {after:.3g}"
        moves += [(float(weights[row]), spread.move(rows[row], target, why)) for row, target in steps]
    return [move for _, move in sorted(moves, key=lambda pair: -pair[0])]


def imbalance(place: Sequence[int], weights: Sequence[float], cores: Sequence[float]) -> float:
    """Highest load a core over the mean load a core: 1 where all is even, NaN where there is no load."""
    load = np.bincount(np.asarray(place, dtype=np.int64), np.asarray(weights), len(cores))
    mean = load.sum() / math.fsum(cores)
    return float((load / np.asarray(cores)).max() / mean) if mean > 0 else math.nan


class _Spread:
    """Where tasks lie among the hosts that take tasks: `place` holds the number of each one's host, -1 for none of them."""

    def __init__(self, observation: Observation) -> None:
        self._observation, self._usable = observation, observation.usable
        column = {observation.hosts.rows[host]: number for number, host in enumerate(self._usable)}
        self.place: Integers = np.array([column.get(row, -1) for row in observation.tasks.host.tolist()], dtype=np.int64)
        self.cores: Floats = np.array([host_capacity(observation, host) for host in self._usable])

    @property
    def tasks_by_host(self) -> Floats:
        return np.bincount(self.place[self.place >= 0], minlength=len(self._usable)).astype(np.float64)

    @property
    def operators(self) -> Iterator[Integers]:
        """Rows of the tasks of each operator; of those on hosts that are being drained the drain takes care."""
        operator = self._observation.tasks.operator
        if len(self._usable) > 1:
            yield from (
                np.flatnonzero((operator == each) & (self.place >= 0)) for each in np.unique(operator[self.place >= 0])
            )

    def move(self, row: int, column: int, why: str) -> MoveTask:
        return MoveTask(self._observation.tasks.tasks[row], self._usable[column], why=why)


def _even_out(place: Integers, cores: Floats, total: Floats) -> list[tuple[int, int]]:
    """(task, host) moves for the tasks of one operator; `total`, tasks by host, breaks ties and is brought up to date."""
    at = place.copy()
    load = np.bincount(at, minlength=len(cores)).astype(np.float64)
    # Each step leaves giver and receiver below what the giver had, so no spread comes twice and the loop ends.
    while step := _step(at, load, cores, total):
        task, receiver = step
        giver = at[task]
        load[giver] -= 1
        load[receiver] += 1
        total[giver] -= 1
        total[receiver] += 1
        at[task] = receiver
    return [(int(task), int(at[task])) for task in np.flatnonzero(at != place)]


def _step(at: Integers, load: Floats, cores: Floats, total: Floats) -> tuple[int, int] | None:
    """The one move that evens out most, from the fullest host that can give to the emptiest that can take."""
    givers = np.lexsort((total / cores, load / cores))[::-1]
    receivers = np.lexsort((total / cores, (load + 1) / cores))
    mean = load.sum() / cores.sum() + 1e-9
    for giver in givers[load[givers] / cores[givers] > mean].tolist():
        for receiver in receivers[receivers != giver].tolist():
            if load[giver] / cores[giver] * cores[receiver] - load[receiver] > 1 + 1e-9:
                return int(np.flatnonzero(at == giver)[0]), receiver
    return None


def _level(place: Integers, weights: Floats, cores: Floats) -> tuple[list[tuple[int, int]], float]:
    """(task, host) moves for the tasks of one operator, and the highest load a core behind them."""
    at = place.copy()
    load = np.bincount(at, weights, len(cores)).astype(np.float64)
    enough = (1 + ENOUGH) * weights.sum() / cores.sum()
    while (peak := (load / cores).max()) > enough:
        fullest = int(np.argmax(load / cores))
        given = np.flatnonzero(at == fullest)
        others = np.flatnonzero(at != fullest)
        empty = np.setdiff1d(np.arange(len(cores)), [fullest])
        # A task for nothing, to each other host; or for a task of another host. Columns: host, and what comes back.
        hosts = np.concatenate([empty, at[others]])
        back = np.concatenate([np.zeros(len(empty)), weights[others]])
        change = weights[given][:, None] - back[None, :]
        left = (load[fullest] - change) / cores[fullest]
        got = (load[hosts] + change) / cores[hosts]
        reached = np.maximum(left, got)
        reached[:, len(empty) :] += PREFERENCE * peak
        best = int(np.argmin(reached))
        task, column = divmod(best, reached.shape[1])
        if not reached[task, column] < peak * (1 - PREFERENCE):
            break
        at[given[task]] = hosts[column]
        if column >= len(empty):
            at[others[column - len(empty)]] = fullest
        load = np.bincount(at, weights, len(cores)).astype(np.float64)
    return [(int(row), int(at[row])) for row in np.flatnonzero(at != place)], float(peak)
