"""Balancing of tasks over the usable cores with few moves.

Open-source Spark does not rebalance state partitions: a host that joins a running query stays idle until tasks move
there.
"""

from collections.abc import Iterator

import numpy as np

from elastream.core.action import MoveTask
from elastream.core.frames import Floats, Integers
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.policies.common.measures import host_capacity
from elastream.units import ROUNDING

# Part of the highest load that an exchange must gain over a single move, and any step over none.
PREFERENCE = 0.002
# Busy cores up to which an operator counts as idle.
IDLE = 1e-9
# Standard errors from which a difference is significant (about 5 % error).
SURE = 2.0
# Tasks beyond an even share that a host may hold, and the limit of that as a part of the even share. Measured capacities
# fluctuate: without slack a task would move to and fro. For a small host half a task is much.
SLACK, UNSURE = 0.5, 0.25
# MB of state that a core loads per second, and seconds within which better balance must repay that.
LOADED_MB_S, REPAID_S = 10.0, 600.0
# Busy cores per core from which a host is saturated.
SATURATED = 0.9
# Part above the mean load at which the fullest host stays as it is: further moves cost more than they gain.
ENOUGH = 0.01


def balance(observation: Observation) -> list[MoveTask]:
    """Return moves that balance each operator's tasks per usable core; empty if balanced.

    Operators are balanced one by one, as stages of a batch run in turn. Tasks on draining hosts move with the drain. Then
    equal hosts differ by at most one task, unequal ones by up to `SLACK` more.
    """
    moves: list[MoveTask] = []
    if not len(observation.tasks) or len(observation.usable) < 2:
        return moves
    spread = _Spread(observation)
    total = spread.tasks_by_host
    for rows in spread.operators:
        for row, target in _even_out(spread.place[rows], spread.cores, total):
            moves.append(spread.move(rows[row], target, "tasks spread evenly over the hosts"))
    return moves


def balance_by_load(observation: Observation, *, gain: float = 0.03, worth: float = 0.0) -> list[MoveTask]:
    """Return moves that balance each operator's load per usable core, heaviest tasks first.

    Each step moves a task of the fullest host, or exchanges it for a lighter one, whichever leaves the lower maximum. An
    operator is skipped if the load of a task is unknown, or if its moves improve the highest load by less than any limit.

    Args:
        gain: Least improvement as a part of the highest load per core.
        worth: Least improvement in busy cores per core. Others: `SURE` standard errors, and what repays loading the state.
    """
    moves: list[tuple[float, MoveTask]] = []
    spread = _Spread(observation)
    busy, sizes = observation.tasks.column(Metric.BUSY_CORES), observation.tasks.column(Metric.STATE_SIZE)
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
        moved, to = np.array(steps).T
        loading = float(np.nansum(sizes[rows[moved]])) / LOADED_MB_S / float(cores[np.unique(to)].sum())
        # How much a saturated host's load exceeds its cores is not known.
        if before < SATURATED and before - after <= loading / REPAID_S:
            continue
        why = f"the fullest host has {before:.3g} busy cores a core, and can have {after:.3g}"
        moves += [(float(weights[row]), spread.move(rows[row], target, why)) for row, target in steps]
    return [move for _, move in sorted(moves, key=lambda pair: -pair[0])]


class _Spread:
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
        operator = self._observation.tasks.operator
        if len(self._usable) > 1:
            yield from (
                np.flatnonzero((operator == each) & (self.place >= 0)) for each in np.unique(operator[self.place >= 0])
            )

    def move(self, row: int, column: int, why: str) -> MoveTask:
        return MoveTask(self._observation.tasks.tasks[row], self._usable[column], why=why)


def _even_out(place: Integers, cores: Floats, total: Floats) -> list[tuple[int, int]]:
    """Return (task, host) moves that balance one operator's counts. `total`: tasks by host, updated."""
    at = place.copy()
    load = np.bincount(at, minlength=len(cores)).astype(np.float64)
    # Each step leaves giver and receiver below the giver's former load, so that the loop terminates.
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
    """Return the (task, host) move from the fullest giver to the emptiest receiver; None if balanced."""
    givers = np.lexsort((total / cores, load / cores))[::-1]
    receivers = np.lexsort((total / cores, (load + 1) / cores))
    mean = load.sum() / cores.sum() + ROUNDING
    for giver in givers[load[givers] / cores[givers] > mean].tolist():
        for receiver in receivers[receivers != giver].tolist():
            alike = load[giver] / cores[giver] * cores[receiver]
            if alike - load[receiver] > 1 + min(SLACK, UNSURE * alike):
                return int(np.flatnonzero(at == giver)[0]), receiver
    return None


def _level(place: Integers, weights: Floats, cores: Floats) -> tuple[list[tuple[int, int]], float]:
    at = place.copy()
    load = np.bincount(at, weights, len(cores)).astype(np.float64)
    enough = (1 + ENOUGH) * weights.sum() / cores.sum()
    while (peak := (load / cores).max()) > enough:
        fullest = int(np.argmax(load / cores))
        tasks = np.flatnonzero(at == fullest)
        others = np.flatnonzero(at != fullest)
        empty = np.setdiff1d(np.arange(len(cores)), [fullest])
        # Rows: a task of the fullest host. Columns: a move to another host, or an exchange for a task of another host.
        hosts = np.concatenate([empty, at[others]])
        back = np.concatenate([np.zeros(len(empty)), weights[others]])
        change = weights[tasks][:, None] - back[None, :]
        left = (load[fullest] - change) / cores[fullest]
        got = (load[hosts] + change) / cores[hosts]
        reached = np.maximum(left, got)
        reached[:, len(empty) :] += PREFERENCE * peak
        best = int(np.argmin(reached))
        task, column = divmod(best, reached.shape[1])
        if not reached[task, column] < peak * (1 - PREFERENCE):
            break
        at[tasks[task]] = hosts[column]
        if column >= len(empty):
            at[others[column - len(empty)]] = fullest
        load = np.bincount(at, weights, len(cores)).astype(np.float64)
    return [(int(row), int(at[row])) for row in np.flatnonzero(at != place)], float(peak)
