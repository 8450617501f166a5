"""Computes OTD's allocation score of tasks on nodes, and its change by a move.

Equations 4 and 5 of "Online nonstop task management for Storm-based distributed stream processing engines" (JCST, 2024), as
sums over a sparse table. The policy `otd` chooses moves from it.
"""

from dataclasses import dataclass

import numpy as np

from elastream.model.observation import Exchange, Floats, Integers

__all__ = ["Attraction", "allocation_score", "attraction", "score_changes", "touching"]


@dataclass(frozen=True)
class Attraction:
    """Bytes/s that each task exchanges with all tasks on a node; sorted by task and node, pairs without traffic omitted."""

    task: Integers
    node: Integers
    rate: Floats

    def at(self, task: Integers, node: Integers, nodes: int) -> Floats:
        """Rates of these pairs of task and node; shape (pairs,), 0 without traffic. nodes: number of nodes."""
        keys, wanted = self.task * nodes + self.node, task * nodes + node
        if not keys.size:
            return np.zeros(wanted.size)
        found = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        return np.where(keys[found] == wanted, self.rate[found], 0.0)


def attraction(exchange: Exchange, place: Integers, nodes: int) -> Attraction:
    """The sums of Equation 4 for all tasks and nodes with traffic. place: node of each task, -1 if unplaced.

    Traffic with unplaced tasks is ignored.
    """
    source, target, rate = exchange.source, exchange.target, exchange.rate
    between = (source >= 0) & (target >= 0) & (source != target)
    source, target, rate = source[between], target[between], rate[between]
    task, other = np.concatenate([source, target]), np.concatenate([target, source])
    node, both = place[other], np.concatenate([rate, rate])
    placed = node >= 0
    keys = task[placed] * nodes + node[placed]
    order = np.argsort(keys)
    keys, both = keys[order], both[placed][order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = np.add.reduceat(both, first) if first.size else np.zeros(0)
    return Attraction(keys[first] // nodes, keys[first] % nodes, sums)


def allocation_score(exchange: Exchange, place: Integers, task: int, node: int) -> float:
    """AS of Equation 4: the traffic of `task` within `node` minus that with all other nodes, if it were on `node`."""
    touching = (exchange.source == task) ^ (exchange.target == task)
    other = np.where(exchange.source == task, exchange.target, exchange.source)[touching]
    rate = exchange.rate[touching]
    there = np.append(place, -1)[other]
    placed = there >= 0
    within = rate[placed & (there == node)].sum()
    return float(within - rate[placed & (there != node)].sum())


def score_changes(pulls: Attraction, place: Integers, task: Integers, node: Integers, nodes: int) -> Floats:
    """ASC of Equation 5 for moving each of `task` alone to the corresponding `node`; shape (moves,)."""
    return np.asarray(pulls.at(task, node, nodes) - pulls.at(task, place[task], nodes))


def touching(exchange: Exchange, tasks: Integers, count: int) -> Exchange:
    """The entries with one of `tasks` as source or target."""
    mine = np.zeros(count + 1, dtype=np.bool_)
    mine[tasks] = True
    rows = mine[exchange.source] | mine[exchange.target]
    return Exchange(exchange.source[rows], exchange.target[rows], exchange.rate[rows])
