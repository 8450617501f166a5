"""Finds optimal placements of small cases, as a reference for placement policies.

A constraint solver (OR-Tools CP-SAT) returns a placement and a proven bound; after its time limit, the best found so far.
It works on integers: loads are rounded down, so that the bound holds for the real loads, and the value is recomputed from
those. The solver is imported on use, because its import is slow.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from elastream.core.frames import Floats, Integers
from elastream.errors import InputError
from elastream.units import ROUNDING

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

RESOLUTION = 1_000_000
"""Integer units of the largest load in the solver: the rounding error is below a millionth of it per task."""
ENOUGH = 1e-4
"""Relative gap to the bound below which a placement counts as optimal: more precise than any measured load."""
STEPS = 2_000
"""Integer units of a host's capacity for squared loads, which must fit in 64 bits and stay small for the solver."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A placement with its quality. place: int64, shape (tasks,), host of each task. value: the minimised objective.
    bound: proven lower bound of the objective. optimal: whether the gap is proven to be at most ENOUGH, or rounding."""

    place: Integers
    value: float
    bound: float
    optimal: bool

    @property
    def gap(self) -> float:
        """Relative gap between value and bound; 0 if optimal."""
        return 0.0 if self.optimal or self.value <= self.bound else (self.value - self.bound) / max(self.bound, 1e-12)


def pack(weights: ArrayLike, capacities: ArrayLike | int, *, seconds: float = 10.0) -> Proven:
    """Place tasks such that the highest utilisation of a host (load over capacity, the value) is minimal.

    weights: float64, shape (tasks,), >= 0. capacities: shape (hosts,), > 0; or a number of hosts with capacity 1. seconds:
    time limit of the solver. If greedy placement (`packed_greedily`) meets the trivial bound, it is returned without the
    solver.

    Raises InputError for unknown or negative weights, and without hosts.
    """
    loads, sizes = _checked(weights, capacities)
    place = packed_greedily(loads, sizes)
    value, least = _busiest(loads, sizes, place), max(loads.sum() / sizes.sum(), loads.max(initial=0.0) / sizes.max())
    if value <= least * (1 + ROUNDING):
        return Proven(place, value, value, True)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = _choices(model, loads.size, sizes.size)
    scale = RESOLUTION / value
    parts = np.floor(loads[:, None] / sizes[None, :] * scale).astype(np.int64)
    top = model.new_int_var(0, RESOLUTION, "busiest")
    for host in range(sizes.size):
        model.add(cp_model.LinearExpr.weighted_sum([row[host] for row in chosen], parts[:, host].tolist()) <= top)
    if (sizes == sizes[0]).all():
        # Equal hosts are interchangeable (symmetry): the k-th heaviest task is on one of the first k hosts.
        for rank, task in enumerate(np.argsort(-loads, kind="stable")[: sizes.size - 1].tolist()):
            for host in range(rank + 1, sizes.size):
                model.add(chosen[task][host] == 0)
    else:
        _hint(model, chosen, place)
    model.minimize(top)
    found, bound, proven = _solve(model, chosen, seconds)
    best = place if found is None or _busiest(loads, sizes, found) > value else found
    return Proven(best, _busiest(loads, sizes, best), max(bound / scale, least), proven)


def packed_greedily(weights: ArrayLike, capacities: ArrayLike | int) -> Integers:
    """LPT: heaviest task first, each on the host with the lowest resulting utilisation; within 4/3 of the optimum on equal
    hosts (Graham, 1969). Returns the host of each task, shape (tasks,)."""
    loads, sizes = _checked(weights, capacities)
    held, place = np.zeros(sizes.size), np.zeros(loads.size, dtype=np.int64)
    for task in np.argsort(-loads, kind="stable").tolist():
        host = int(np.argmin((held + loads[task]) / sizes))
        place[task] = host
        held[host] += loads[task]
    return place


def deviation(loads: Floats, capacities: Floats) -> float:
    """Elastic Allocator's R_dev: root of the sum of squared differences between utilisation and its mean over hosts.

    loads, capacities: shape (hosts,) or (hosts, resources); the squares of all resources are summed.
    """
    used = loads / capacities
    return float(np.sqrt(((used - used.mean(axis=0)) ** 2).sum()))


def least_deviation(
    needs: ArrayLike, base: ArrayLike, capacities: ArrayLike, *, seconds: float = 10.0, slots: ArrayLike | None = None
) -> Proven:
    """Place tasks such that `deviation` (the value) is minimal, and no host is above its capacity.

    needs: float64, shape (tasks, resources). base: capacity used before, shape (hosts, resources). capacities: same shape.
    slots: how many of these tasks each host can take, shape (hosts,); None: any number.
    Squares use utilisation in units of 1/STEPS, so that small values and bounds differ by rounding.

    Raises InputError for incompatible shapes, and if no placement within the capacities was found.
    """
    wants, used, sizes = columns(needs, base, capacities)
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = _choices(model, len(wants), len(sizes))
    for host, free in enumerate([] if slots is None else np.asarray(slots).tolist()):
        model.add(cp_model.LinearExpr.sum([row[host] for row in chosen]) <= int(free))
    terms: list[LinearExpr] = []
    fine = RESOLUTION // STEPS
    for kind in range(wants.shape[1]):
        totals = []
        for host in range(len(sizes)):
            size = sizes[host, kind]
            parts = np.rint(wants[:, kind] / size * RESOLUTION).astype(np.int64)
            begin = round(float(used[host, kind] / size * RESOLUTION))
            most = max(RESOLUTION, begin) // fine + 1
            load = model.new_int_var(0, most, f"load {kind} {host}")
            exact = begin + cp_model.LinearExpr.weighted_sum([row[host] for row in chosen], parts.tolist())
            model.add(exact <= max(RESOLUTION, begin))
            # Loads in units of 1/RESOLUTION, rounded to units of 1/STEPS for squaring.
            model.add(fine * load <= exact + fine // 2)
            model.add(fine * load > exact - fine // 2)
            square = model.new_int_var(0, most**2, f"square {kind} {host}")
            model.add_multiplication_equality(square, [load, load])
            totals.append(load)
            terms.append(len(sizes) * square)
        total = model.new_int_var(0, len(sizes) * STEPS * 10, f"total {kind}")
        model.add(total == sum(totals))
        squared = model.new_int_var(0, (len(sizes) * STEPS * 10) ** 2, f"total squared {kind}")
        model.add_multiplication_equality(squared, [total, total])
        terms.append(-1 * squared)
    model.minimize(cp_model.LinearExpr.sum(terms))
    found, bound, proven = _solve(model, chosen, seconds)
    if found is None:
        raise InputError("no placement within the capacities was found")
    loads = used.copy()
    np.add.at(loads, found, wants)
    value = deviation(loads, sizes)
    least = float(np.sqrt(max(0.0, bound) / len(sizes))) / STEPS
    return Proven(found, value, min(least, value), proven)


def columns(needs: ArrayLike, base: ArrayLike, capacities: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Needs of tasks, and base loads and capacities of hosts, by resource; raises InputError where their shapes differ."""
    wants, used, sizes = (np.ascontiguousarray(a, dtype=np.float64) for a in (needs, base, capacities))
    if wants.ndim != 2 or used.shape != sizes.shape or used.ndim != 2 or wants.shape[1] != used.shape[1] or not len(used):
        raise InputError(f"needs of shape {wants.shape} do not match hosts of shapes {used.shape} and {sizes.shape}")
    return wants, used, sizes


def _checked(weights: ArrayLike, capacities: ArrayLike | int) -> tuple[Floats, Floats]:
    loads = np.asarray(weights, dtype=np.float64)
    sizes = np.ones(capacities) if isinstance(capacities, int) else np.asarray(capacities, dtype=np.float64)
    if loads.ndim != 1 or not (loads >= 0).all():
        raise InputError("the load of a task to be placed is unknown or negative; it must be 0 or more")
    if sizes.ndim != 1 or not sizes.size or not (sizes > 0).all():
        raise InputError("tasks cannot be placed: there is no host, or one without capacity")
    return loads, sizes


def _busiest(loads: Floats, sizes: Floats, place: Integers) -> float:
    return float((np.bincount(place, loads, sizes.size) / sizes).max())


def _choices(model: "CpModel", tasks: int, hosts: int) -> list[list["IntVar"]]:
    """A boolean variable per task and host, exactly one of them true per task."""
    chosen = [[model.new_bool_var(f"{task} on {host}") for host in range(hosts)] for task in range(tasks)]
    for row in chosen:
        model.add_exactly_one(row)
    return chosen


def _hint(model: "CpModel", chosen: list[list["IntVar"]], place: Integers) -> None:
    for row, at in zip(chosen, place.tolist(), strict=True):
        for host, variable in enumerate(row):
            model.add_hint(variable, int(host == at))


def _solve(model: "CpModel", chosen: list[list["IntVar"]], seconds: float) -> tuple[Integers | None, float, bool]:
    """(host of each task or None, bound, whether optimality is proven)."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1  # deterministic, unless the time limit is reached
    solver.parameters.random_seed = 0
    solver.parameters.relative_gap_limit = ENOUGH
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, float(solver.best_objective_bound), False
    place = [next(host for host, truth in enumerate(row) if solver.boolean_value(truth)) for row in chosen]
    return np.array(place, dtype=np.int64), float(solver.best_objective_bound), status == cp_model.OPTIMAL
