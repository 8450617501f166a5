"""Latencies' basis, and the formulas for their quantiles, means and shares in time.

Three forms: weighted samples, batches with records spread evenly between the newest and the oldest, and periods with known
median and 99th percentile.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

import numpy as np

from elastream.core.frames import Floats
from elastream.core.metrics import Metric


class Basis(StrEnum):
    """Moment from which the latency of a source's records counts, the most exact first."""

    # The load that the source declares makes each record due.
    DUE = "due times"
    # Each record carries the time of its origin; one from before the run counts from the start of the run.
    TIMESTAMPS = "record timestamps"
    # Last write of a record's file; one from before the run counts from the start of the run.
    FILES = "file modification times"
    # The latest poll of the source that cannot have read the record: it came after that, so that it took no longer.
    BOUND = "upper bound"


def is_bound(bases: Mapping[str, Basis]) -> bool:
    """Return True if the latencies of at least one source are upper bounds."""
    return Basis.BOUND in bases.values()


def basis_text(bases: Mapping[str, Basis]) -> str:
    """Return `bases`, by source, for people: `"from due times"`, `"upper bound"`, or each source with its own."""
    kinds = set(bases.values())
    if len(kinds) < 2:
        return "".join(each.value if each is Basis.BOUND else f"from {each.value}" for each in kinds)
    return ", ".join(f"{source}: {basis.value}" for source, basis in bases.items())


def weakest(several: Iterable[Mapping[str, Basis]]) -> dict[str, Basis]:
    """Return the least exact basis of each source, which a figure over `several` has."""
    rank = {basis: number for number, basis in enumerate(Basis)}
    result: dict[str, Basis] = {}
    for bases in several:
        result |= {name: max(basis, result.get(name, basis), key=rank.__getitem__) for name, basis in bases.items()}
    return result


# -- weighted samples --------------------------------------------------------------------------------------------------


def weighted_quantiles(values: Floats, weights: Floats, levels: Floats) -> Floats:
    """Return for each of `levels` the smallest value with at least that share of the weight at or below it.

    NaN if there are no values. The simulator compiles this function.
    """
    quantiles = np.full(levels.size, np.nan)
    if values.size:
        order = np.argsort(values)
        reached = np.cumsum(weights[order])
        for number in range(levels.size):
            need = levels[number] * reached[-1] * (1 - 1e-12)  # a sum of weights may be off by its rounding
            quantiles[number] = values[order[min(values.size - 1, np.searchsorted(reached, need))]]
    return quantiles


def weighted_share(values: Floats, weights: Floats, limit: float) -> float:
    """Return the share of the weight of values that are at most `limit`; NaN if there are none."""
    return float(weights[values <= limit].sum()) / float(weights.sum()) if values.size else math.nan


HALF_AND_99: Floats = np.array([0.5, 0.99])


# Metrics of the time at an operator, by those of `figures`.
DURATIONS = {
    Metric.DURATION: Metric.LATENCY, Metric.DURATION_P50: Metric.LATENCY_P50, Metric.DURATION_P99: Metric.LATENCY_P99,
}  # fmt: skip


def figures(seconds: Floats, weights: Floats, target: float | None = None, every: int = 1) -> dict[Metric, float]:
    """Return mean, median, 99th percentile and compliance of latencies.

    Args:
        seconds: latencies, shape (samples,).
        weights: records that each sample stands for.
        target: [s]; None leaves out compliance.
        every: quantiles are those of each `every`-th sample.
    """
    middle, late = weighted_quantiles(seconds[::every], weights[::every], HALF_AND_99).tolist()
    result = {
        Metric.LATENCY: float(seconds @ weights) / float(weights.sum()) if seconds.size else math.nan,
        Metric.LATENCY_P50: middle,
        Metric.LATENCY_P99: late,
    }
    if target is not None and seconds.size:
        result[Metric.COMPLIANCE] = weighted_share(seconds, weights, target)
    return result


# -- batches -----------------------------------------------------------------------------------------------------------


def share_within(level: float | None, oldest: float, newest: float) -> float:
    """Return the share of a batch's latencies within `level` seconds; None: no level, all are within.

    Args:
        level: seconds.
        oldest: latency of its oldest record, the highest [s].
        newest: latency of its newest record [s].
    """
    if level is None or oldest <= level or newest > level:
        return float(level is None or oldest <= level)
    return (level - newest) / (oldest - newest)


def spread(records: Floats, oldest: Floats, newest: Floats, levels: Floats, limit: float) -> Floats:
    """Return quantiles of the latencies of all records of several batches, their share within `limit`, and their mean.

    NaN if no batch has a record with a latency; the mean, if one lacks it. The simulator compiles this function.

    Args:
        records: records of each batch, shape (batches,).
        oldest: latency of its oldest record [s], NaN where unknown; `newest`: of its newest.
        limit: seconds.
    """
    result = np.full(levels.size + 2, np.nan)
    usable = (records > 0) & ~np.isnan(oldest + newest)
    counts, high = records[usable], oldest[usable]
    if counts.size:
        low = np.minimum(newest[usable], high)
        # The spread is 0 for one record or simultaneous arrivals; the floor avoids dividing by it.
        width = np.maximum(high - low, 1e-6)
        knots = np.sort(np.concatenate((low, low + width)))
        values = np.append(knots, limit)
        below = np.minimum(np.maximum((values.reshape(-1, 1) - low) / width, 0.0), 1.0)
        shares = (below @ counts) / counts.sum()
        result[:-2], result[-2] = np.interp(levels, shares[:-1], knots), shares[-1]
        result[-1] = (records * (oldest + newest) / 2).sum() / records.sum()
    return result


def spread_quantiles(records: Floats, oldest: Floats, newest: Floats, levels: Iterable[float]) -> list[float]:
    quantiles: list[float] = spread(records, oldest, newest, np.array([*levels], dtype=np.float64), math.inf)[:-2].tolist()
    return quantiles


def spread_figures(
    records: Floats,
    oldest: Floats,
    newest: Floats,
    target: float | None = None,
    spread: Callable[[Floats, Floats, Floats, Floats, float], Floats] = spread,
) -> dict[Metric, float]:
    """Return mean, median, 99th percentile and compliance of the latencies of all records of several batches.

    Args:
        records: as in `spread`, like `oldest` and `newest`.
        oldest: latency of the oldest record of each batch [s].
        newest: latency of its newest record [s].
        target: target latency [s]; None leaves out compliance.
        spread: `spread`, or its compiled form.
    """
    limit = math.inf if target is None else target
    middle, late, share, mean = spread(records, oldest, newest, HALF_AND_99, limit).tolist()
    result = {Metric.LATENCY_P50: middle, Metric.LATENCY_P99: late}
    if records.size:
        result[Metric.LATENCY] = mean
        if target is not None:
            result[Metric.COMPLIANCE] = share
    return result


# -- periods -----------------------------------------------------------------------------------------------------------


def mixture_quantile(q: float, weights: Floats, p50: Floats, p99: Floats) -> float:
    """Return a quantile of a mixture of distributions with known median and 99th percentile; NaN if none is known.

    Each distribution function is taken as linear from (0, 0) over (p50, 0.5) to (p99, 0.99), then 1. For one distribution,
    or equal ones, the result is exact at both quantiles.

    Args:
        q: at most 0.99.
    """
    usable = (weights > 0) & np.isfinite(p50) & np.isfinite(p99)
    if not usable.any():
        return math.nan
    weights, p50, p99 = weights[usable] / weights[usable].sum(), p50[usable], p99[usable]
    knots = np.unique(np.concatenate([[0.0], p50, p99]))
    # Summed over all distributions at once, part by part: as many operations as knots, not as their square.
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(p50 > 0, 0.5 * weights / p50, 0.0)
        second = np.where(p99 > p50, 0.49 * weights / (p99 - p50), 0.0)
    rising = first.sum() - _up_to(p50, first, knots)
    within = _up_to(p50, second, knots) - _up_to(p99, second, knots)
    begun = _up_to(p50, second * p50, knots) - _up_to(p99, second * p50, knots)
    below = knots * rising + 0.5 * _up_to(p50, weights, knots) + knots * within - begun
    below += 0.49 * _up_to(p99, weights, knots) + 0.01 * _up_to(p99, weights, knots, before=True)
    return float(np.interp(q, np.maximum.accumulate(below), knots))


def _up_to(places: Floats, amounts: Floats, knots: Floats, *, before: bool = False) -> Floats:
    """Return per knot the sum of the `amounts` whose place lies at or before it; before: strictly before it."""
    order = np.argsort(places)
    total = np.append(0.0, np.cumsum(amounts[order]))
    sums: Floats = total[np.searchsorted(places[order], knots, side="left" if before else "right")]
    return sums
