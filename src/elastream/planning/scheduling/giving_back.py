"""Which hosts go: those whose paid time ends, if the others have room, or smaller ones do (thesis, 4.8.2).

Nothing is saved by giving a host back before. One that is to be replaced by a smaller one goes when that is up: it is
leased some rounds before, and what is on the other moves when its own time ends.
"""

import math
from collections.abc import Collection

import numpy as np

from elastream.model.cloud import HostType
from elastream.model.observation import Floats, Integers
from elastream.planning.scheduling.assembly import Assembly
from elastream.planning.scheduling.packing import NEARLY, packed, rate_of
from elastream.planning.scheduling.steps import cores_of, just_enough, shared_need, weights, without_spare

__all__ = ["replacements", "shut_down", "vacated"]

REPAID = 3600.0
"""Seconds within which a host that is leased in place of another has saved what both cost together: no less than the
billing time unit that the thesis has, so that where hosts are paid by the second none is exchanged for every small
gain."""


def vacated(assembly: Assembly, target: float, rows: Collection[int]) -> Assembly:
    """The same without those of the hosts in `rows` whose instances others have room for, or nobody needs, to keep
    `target`.

    For hosts whose paid time ends: to empty one earlier saves nothing. The least weight first (4.10); where all cores are
    shared, the dearest. Those that hold nothing are `shut_down`'s: one may have been leased for what is on another.
    """
    if assembly.problem.shared:
        dearest = sorted(rows, key=lambda each: -float(assembly.prices[each]))
        return without_spare(assembly, shared_need(assembly, target), dearest)
    floor = min(target, assembly.reached(assembly.limits()))
    by_weight, holds = weights(assembly), assembly.instances.sum(axis=1)
    gone: list[int] = []
    for row in sorted((each for each in rows if holds[each]), key=lambda each: float(by_weight[each])):
        if len(assembly.hosts) - len(gone) <= assembly.problem.min_hosts:
            break
        trial = _emptied(assembly, row, gone)
        if trial is not None and trial.reached(trial.limits()) >= floor - NEARLY:
            assembly = trial
            gone.append(row)
    return assembly.without(gone) if gone else assembly


def _emptied(assembly: Assembly, row: int, gone: Collection[int]) -> Assembly | None:
    """The same with the instances of a host on others, as far as these have room; None where one must stay that fits
    nowhere.

    gone: rows of hosts that take none.
    """
    trial = assembly.copy()
    for operator in np.flatnonzero(trial.instances[row]).tolist():
        for _ in range(int(trial.instances[row, operator])):
            trial.add(operator, row, -1)
            other = trial.place(operator, without=[row, *gone])
            if other is not None:
                trial.add(operator, other)
            elif not trial.sizable[operator] or not trial.total[operator]:
                return None
    return trial


def shut_down(assembly: Assembly) -> Assembly:
    """The same without hosts that hold nothing, but for `min_hosts`; the dearest go first."""
    if assembly.problem.shared:
        return assembly
    empty = np.flatnonzero(assembly.instances[:, assembly.problem.placed].sum(axis=1) == 0).tolist()
    empty.sort(key=lambda row: -float(assembly.prices[row]))
    gone = empty[: max(0, len(assembly.hosts) - assembly.problem.min_hosts)]
    return assembly.without(gone) if gone else assembly


def replacements(assembly: Assembly, target: float, rows: Collection[int]) -> list[HostType]:
    """Types of hosts to be leased beside those in `rows`, since they cost less for what the others have no room for.

    For hosts whose paid time ends when the new ones are up: what is on them stays there until `vacated` finds them due.
    Only where the new ones cost less, what both cost together included, within a unit of the old, or within an hour
    (`REPAID`).
    """
    problem, found = assembly.problem, list[HostType]()
    enough = np.zeros(0) if problem.shared or not rows else just_enough(assembly, target)
    for row in sorted(rows, key=lambda each: -float(assembly.prices[each])):
        rest = assembly.without([row])
        emptied = rest if problem.shared else _emptied(assembly, row, ())
        if emptied is not None and emptied.reached(emptied.limits()) >= target - NEARLY:
            continue  # it can go as it is
        bins = packed(
            problem, assembly.order, *_left_by(assembly, rest, row, enough, target), problem.max_hosts - len(assembly.hosts)
        )
        over = max(assembly.hosts[row].type.billing.unit, REPAID)
        rate = math.fsum([rate_of(each.type) for each in bins or ()])
        if bins and rate * (float(assembly.paid[row]) + over) < assembly.prices[row] * over - NEARLY:
            assembly = assembly.copy()
            for each in bins:
                assembly.lease(each.type)
                found.append(each.type)
    return found


def _left_by(assembly: Assembly, rest: Assembly, row: int, enough: Floats, target: float) -> tuple[Floats, Integers]:
    """What new hosts are to hold if that in `row` goes and `rest` stay: cores of speed 1, of the `enough` of each
    operator, and instances at least."""
    problem = assembly.problem
    if problem.shared:
        return np.array([max(0.0, shared_need(assembly, target) - cores_of(rest))]), np.zeros(1, dtype=np.int64)
    has = np.where(assembly.sizable, rest.capacity.mean(axis=0), 0.0)
    needs = np.where(assembly.sizable, np.maximum(enough - has, 0.0), 0.0)
    least = np.where(assembly.sizable, rest.total == 0, assembly.instances[row] * problem.placed)
    return needs, np.asarray(least, dtype=np.int64)
