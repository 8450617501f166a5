"""Balances tasks over the usable cores with as few moves as possible.

Open-source Spark does not rebalance state partitions, so that a host that joins a running query stays idle until tasks are
moved there. `balance` goes by task counts, `balance_by_load` by measured loads. Pure functions of an observation.
"""

from collections.abc import Iterator

import numpy as np

from elastream.core.action import MoveTask
from elastream.core.frames import Floats, Integers
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.policies.common.measures import host_capacity
from elastream.units import ROUNDING

PREFERENCE = 0.002
"""Fraction of the highest load by which an exchange of tasks must beat a single move, and any step no step."""
IDLE = 1e-9
"""Busy cores up to which an operator counts as idle."""
SURE = 2.0
"""Standard errors from which a difference counts as significant (about 5 % error)."""
SLACK, UNSURE = 0.5, 0.25
"""Tasks that a host must have too many, beside the one that moves, at most, and as a part of what would lie on the other at
its level. Hosts of equal capacity differ by whole tasks; between those whose capacities are measured, and differ by about a
task, one would go to and fro with each measurement. For a small host beside a large one half a task is much."""
ENOUGH = 0.01
"""Fraction above the mean load at which the fullest host is left as it is: further moves would cost more than they gain."""


def balance(observation: Observation) -> list[MoveTask]:
    """Moves that balance the number of tasks per usable core, for each operator; empty if balanced.

    Operators are balanced separately, because the stages of a micro-batch run one after another: a host with all tasks of
    one operator and none of another idles half of the time. Only usable hosts take part; tasks on a draining host are moved
    by its drain. The moves are the fewest after which no two hosts of equal capacity differ by more than one task. Between
    those of unlike capacity, up to half a task more than one is left as it is (SLACK).
    """
    moves: list[MoveTask] = []
    if not len(observation.tasks):
        return moves
    spread = _Spread(observation)
    total = spread.tasks_by_host
    for rows in spread.operators:
        for row, target in _even_out(spread.place[rows], spread.cores, total):
            moves.append(spread.move(rows[row], target, "tasks spread evenly over the hosts"))
    return moves


def balance_by_load(observation: Observation, *, gain: float = 0.03, worth: float = 0.0) -> list[MoveTask]:
    """Moves that balance the load per usable core, for each operator, largest benefit first; empty if the gain is small.

    Operators and hosts as in `balance`. In each step, a task of the fullest host is moved, or exchanged for a lighter one
    of another host, whichever makes the higher load of the two lowest, while that lowers the highest load per core.

    An operator is skipped while the load of one of its tasks is unknown, and if all its moves together would lower its
    highest load per core by less than the fraction `gain` of it, by less than `worth` busy cores per core, or by less than
    SURE standard errors of it (if BUSY_CORES_ERROR is known), so that neither idle tasks nor noise cause moves.
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


class _Spread:
    """Placement of tasks on usable hosts. place: number of each task's host, -1 if not on one. cores: capacity by host."""

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
        """Rows of the tasks on usable hosts, per operator; empty with fewer than two usable hosts."""
        operator = self._observation.tasks.operator
        if len(self._usable) > 1:
            yield from (
                np.flatnonzero((operator == each) & (self.place >= 0)) for each in np.unique(operator[self.place >= 0])
            )

    def move(self, row: int, column: int, why: str) -> MoveTask:
        return MoveTask(self._observation.tasks.tasks[row], self._usable[column], why=why)


def _even_out(place: Integers, cores: Floats, total: Floats) -> list[tuple[int, int]]:
    """(task, host) moves that balance the counts of one operator's tasks; total: tasks by host, breaks ties, updated."""
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
    """The (task, host) move from the fullest possible giver to the emptiest possible receiver; None if balanced."""
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
    """(task, host) moves that balance the load of one operator's tasks, and the highest load per core after them."""
    at = place.copy()
    load = np.bincount(at, weights, len(cores)).astype(np.float64)
    enough = (1 + ENOUGH) * weights.sum() / cores.sum()
    while (peak := (load / cores).max()) > enough:
        fullest = int(np.argmax(load / cores))
        given = np.flatnonzero(at == fullest)
        others = np.flatnonzero(at != fullest)
        empty = np.setdiff1d(np.arange(len(cores)), [fullest])
        # Rows: a task of the fullest host. Columns: another host without return, or a task of another host in exchange.
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
