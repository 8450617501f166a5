"""Optimal placements of small cases, as a reference for placement policies.

OR-Tools CP-SAT returns a placement and a proven bound. It works on integers, with loads rounded down, so that the bound
holds for real loads.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from elastream.core.frames import Floats, Integers
from elastream.errors import InputError
from elastream.policies.elastic_allocator.policy import columns, deviation
from elastream.units import ROUNDING

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

# Integer units of the largest load in the solver; rounding stays below a millionth per task.
RESOLUTION = 1_000_000
# Relative gap to the bound that counts as optimal: finer than any measured load.
ENOUGH = 1e-4
# Integer units of a host's capacity for squared loads, which must fit in 64 bits.
STEPS = 2_000


@dataclass(frozen=True, slots=True)
class Proven:
    """Placement with its quality."""

    place: Integers  # host of each task
    value: float  # minimised objective
    bound: float  # proven lower bound of it
    optimal: bool  # the gap is proven to be at most ENOUGH, or rounding

    @property
    def gap(self) -> float:
        """Relative gap between value and bound; 0 if optimal."""
        return 0.0 if self.optimal or self.value <= self.bound else (self.value - self.bound) / max(self.bound, 1e-12)


def pack(weights: ArrayLike, capacities: ArrayLike | int, *, seconds: float = 10.0) -> Proven:
    """Return the placement with the least highest utilisation.

    Args:
        weights: Load of each task.
        capacities: Of each host, or a number of hosts of capacity 1.
        seconds: Time limit of the solver.

    Raises:
        InputError: A weight is unknown or negative, or there is no host.
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
    solution, bound, proven = _solve(model, chosen, seconds)
    best = place if solution is None or _busiest(loads, sizes, solution) > value else solution
    return Proven(best, _busiest(loads, sizes, best), max(bound / scale, least), proven)


def packed_greedily(weights: ArrayLike, capacities: ArrayLike | int) -> Integers:
    """Return the host of each task by LPT: heaviest first, to the host with the lowest utilisation.

    Within 4/3 of the optimum on equal hosts (Graham, 1969).
    """
    loads, sizes = _checked(weights, capacities)
    load, place = np.zeros(sizes.size), np.zeros(loads.size, dtype=np.int64)
    for task in np.argsort(-loads, kind="stable").tolist():
        host = int(np.argmin((load + loads[task]) / sizes))
        place[task] = host
        load[host] += loads[task]
    return place


def least_deviation(
    needs: ArrayLike, base: ArrayLike, capacities: ArrayLike, *, seconds: float = 10.0, slots: ArrayLike | None = None
) -> Proven:
    """Return the placement with the least `deviation` and no host above its capacity.

    Args:
        needs: Shape (tasks, resources).
        base: Capacity in use before, shape (hosts, resources).
        capacities: Shape (hosts, resources).
        seconds: Time limit of the solver.
        slots: Tasks that each host can take; None for any number.

    Raises:
        InputError: Shapes differ, or no placement fits.
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
    solution, bound, proven = _solve(model, chosen, seconds)
    if solution is None:
        raise InputError("no placement within the capacities was found")
    loads = used.copy()
    np.add.at(loads, solution, wants)
    value = deviation(loads, sizes)
    least = float(np.sqrt(max(0.0, bound) / len(sizes))) / STEPS
    return Proven(solution, value, min(least, value), proven)


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
    chosen = [[model.new_bool_var(f"{task} on {host}") for host in range(hosts)] for task in range(tasks)]
    for row in chosen:
        model.add_exactly_one(row)
    return chosen


def _hint(model: "CpModel", chosen: list[list["IntVar"]], place: Integers) -> None:
    for row, at in zip(chosen, place.tolist(), strict=True):
        for host, variable in enumerate(row):
            model.add_hint(variable, int(host == at))


def _solve(model: "CpModel", chosen: list[list["IntVar"]], seconds: float) -> tuple[Integers | None, float, bool]:
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
