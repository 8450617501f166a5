"""The best placement there is, for small cases: what policies of placement are measured by.

A constraint solver (OR-Tools CP-SAT) finds it and proves a bound on what nobody can be better than; where its time runs out
both are given as they stand. It works on whole numbers: loads are rounded down, so that the bound holds for the loads as
given, and the value is computed anew from these. Importing the solver takes a while, so that is done when it is asked.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from elastream.model.errors import InputError
from elastream.model.observation import Exchange, Floats, Integers

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

__all__ = ["Proven", "deviation", "least_crossing", "least_deviation", "pack", "packed_greedily"]

RESOLUTION = 1_000_000
"""Parts into which the largest load is cut for the solver: rounding is off by less than a millionth of it a task."""
ENOUGH = 1e-4
"""Fraction of the bound within which a placement counts as proven best: closer than any load is known."""
STEPS = 2_000
"""Parts of a whole host for squares of loads, which must stay well within 64 bits, and small for the solver's sake."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A placement and how good it is. place: int64, number of the host of each task. value: what was to be made small, of
    this placement. bound: what no placement is below. optimal: whether it is proven that none is better by more than a
    ten-thousandth, or than rounding tells."""

    place: Integers
    value: float
    bound: float
    optimal: bool

    @property
    def gap(self) -> float:
        """By what fraction of the bound the value is above it, at most; 0 where it is proven best."""
        return 0.0 if self.optimal or self.value <= self.bound else (self.value - self.bound) / max(self.bound, 1e-12)


def pack(weights: ArrayLike, capacities: ArrayLike | int, *, seconds: float = 10.0, seed: int = 0) -> Proven:
    """Place tasks such that the busiest host is as little busy as can be: the value is its load over its capacity.

    weights: float64 of shape (tasks,), not negative. capacities: of shape (hosts,), above 0; or a number of hosts that are
    all alike, each of capacity 1. seconds: what the solver may take. Where greedy placement (`packed_greedily`)
    meets the bound that arithmetic alone gives, that is the answer and the solver is not asked.

    Raises InputError for weights that are unknown or negative, and for no host.
    """
    loads, sizes = _checked(weights, capacities)
    place = packed_greedily(loads, sizes)
    value, least = _busiest(loads, sizes, place), max(loads.sum() / sizes.sum(), loads.max(initial=0.0) / sizes.max())
    if value <= least * (1 + 1e-9):
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
        # Hosts alike can change names: the k-th heaviest task is on one of the first k.
        for rank, task in enumerate(np.argsort(-loads, kind="stable")[: sizes.size - 1].tolist()):
            for host in range(rank + 1, sizes.size):
                model.add(chosen[task][host] == 0)
    else:
        _hint(model, chosen, place)
    model.minimize(top)
    found, bound, proven = _solve(model, chosen, seconds, seed)
    best = place if found is None or _busiest(loads, sizes, found) > value else found
    return Proven(best, _busiest(loads, sizes, best), max(bound / scale, least), proven)


def packed_greedily(weights: ArrayLike, capacities: ArrayLike | int) -> Integers:
    """Heaviest task first, each on the host that is least busy with it (LPT): within a third of the best (Graham, 1969)."""
    loads, sizes = _checked(weights, capacities)
    held, place = np.zeros(sizes.size), np.zeros(loads.size, dtype=np.int64)
    for task in np.argsort(-loads, kind="stable").tolist():
        host = int(np.argmin((held + loads[task]) / sizes))
        place[task] = host
        held[host] += loads[task]
    return place


def deviation(loads: Floats, capacities: Floats) -> float:
    """How unevenly hosts are used (Elastic Allocator's R_dev): root of the sum of squares of utilisation less its mean.

    loads, capacities: shape (hosts,) or (hosts, resources); over several resources the squares of all are summed.
    """
    used = loads / capacities
    return float(np.sqrt(((used - used.mean(axis=0)) ** 2).sum()))


def least_deviation(
    needs: ArrayLike, base: ArrayLike, capacities: ArrayLike, *, seconds: float = 10.0, seed: int = 0
) -> Proven:
    """Place tasks such that hosts are used as evenly as can be, and none above its capacity; the value is `deviation`.

    needs: float64 of shape (tasks, resources). base: what is used already, (hosts, resources). capacities: likewise.
    Squares are of utilisation in two-thousandths, so that value and bound may differ by rounding where both are small.

    Raises InputError for shapes that do not fit, and where there is no placement within the capacities.
    """
    wants, used, sizes = (np.asarray(a, dtype=np.float64) for a in (needs, base, capacities))
    if wants.ndim != 2 or used.shape != sizes.shape or used.ndim != 2 or wants.shape[1] != used.shape[1]:
        raise InputError(f"needs of shape {wants.shape} on hosts of shapes {used.shape} and {sizes.shape} do not fit")
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = _choices(model, len(wants), len(sizes))
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
            # Loads in millionths, rounded to the steps that squares are taken of.
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
    found, bound, proven = _solve(model, chosen, seconds, seed)
    if found is None:
        raise InputError("no placement within the capacities was found")
    loads = used.copy()
    np.add.at(loads, found, wants)
    value = deviation(loads, sizes)
    least = float(np.sqrt(max(0.0, bound) / len(sizes))) / STEPS
    return Proven(found, value, min(least, value), proven)


def least_crossing(
    exchange: Exchange, weights: ArrayLike, capacities: ArrayLike, *, seconds: float = 10.0, seed: int = 0
) -> Proven:
    """Place tasks such that as little as can be is sent from host to host, and none has more than its capacity.

    exchange: between rows of `weights`; what comes from nowhere crosses wherever a task stands, so it is left out.
    weights: load of each task, (tasks,). capacities: (hosts,). The value is bytes/s between hosts.

    Raises InputError for an unknown exchange, and where there is no placement within the capacities.
    """
    loads, sizes = _checked(weights, capacities)
    if not exchange.known:
        raise InputError("what tasks exchange is unknown: there is no best placement of them")
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = _choices(model, loads.size, sizes.size)
    scale = RESOLUTION / max(loads.max(initial=0.0), sizes.max())
    parts, rooms = np.rint(loads * scale).astype(np.int64), np.floor(sizes * scale).astype(np.int64)
    for host in range(sizes.size):
        weighed = cp_model.LinearExpr.weighted_sum([row[host] for row in chosen], parts.tolist())
        model.add(weighed <= int(rooms[host]) + loads.size)  # what rounding may add up to
    between = (exchange.source >= 0) & (exchange.target >= 0) & (exchange.source != exchange.target)
    low = np.minimum(exchange.source, exchange.target)[between]
    high = np.maximum(exchange.source, exchange.target)[between]
    pairs, position = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
    rates = np.bincount(position.ravel(), exchange.rate[between], len(pairs))
    unit = RESOLUTION / max(rates.max(initial=0.0), 1e-300)
    apart = []
    for first, second in pairs.tolist():
        cut = model.new_bool_var(f"apart {first} {second}")
        for host in range(sizes.size):
            model.add(cut >= chosen[first][host] - chosen[second][host])
        apart.append(cut)
    model.minimize(cp_model.LinearExpr.weighted_sum(apart, np.floor(rates * unit).astype(np.int64).tolist()))
    found, bound, proven = _solve(model, chosen, seconds, seed)
    if found is None:
        raise InputError("no placement within the capacities was found")
    _, value = exchange.split(found)
    return Proven(found, value, min(bound / unit, value), proven)


def _checked(weights: ArrayLike, capacities: ArrayLike | int) -> tuple[Floats, Floats]:
    loads = np.asarray(weights, dtype=np.float64)
    sizes = np.ones(capacities) if isinstance(capacities, int) else np.asarray(capacities, dtype=np.float64)
    if loads.ndim != 1 or not (loads >= 0).all():
        raise InputError("the load of a task to be placed is unknown or negative")
    if sizes.ndim != 1 or not sizes.size or not (sizes > 0).all():
        raise InputError("tasks cannot be placed: there is no host, or one without capacity")
    return loads, sizes


def _busiest(loads: Floats, sizes: Floats, place: Integers) -> float:
    return float((np.bincount(place, loads, sizes.size) / sizes).max())


def _choices(model: "CpModel", tasks: int, hosts: int) -> list[list["IntVar"]]:
    """One truth a task and host, of which exactly one a task holds."""
    chosen = [[model.new_bool_var(f"{task} on {host}") for host in range(hosts)] for task in range(tasks)]
    for row in chosen:
        model.add_exactly_one(row)
    return chosen


def _hint(model: "CpModel", chosen: list[list["IntVar"]], place: Integers) -> None:
    for row, at in zip(chosen, place.tolist(), strict=True):
        for host, variable in enumerate(row):
            model.add_hint(variable, int(host == at))


def _solve(
    model: "CpModel", chosen: list[list["IntVar"]], seconds: float, seed: int
) -> tuple[Integers | None, float, bool]:
    """(place of each task or None, bound, whether it is proven best)."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1  # the same answer each time, as far as time allows
    solver.parameters.random_seed = seed
    solver.parameters.relative_gap_limit = ENOUGH
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, float(solver.best_objective_bound), False
    place = [next(host for host, truth in enumerate(row) if solver.boolean_value(truth)) for row in chosen]
    return np.array(place, dtype=np.int64), float(solver.best_objective_bound), status == cp_model.OPTIMAL
