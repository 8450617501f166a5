"""Computes the figures of a whole run: records served, latency, and cost.

The recording is the only input, so that finished, killed and simulated runs are summarised in the same way.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from elastream.model.action import MoveTask
from elastream.model.cloud import HostState, total_cost
from elastream.model.decision import Unknown, longest_lacked
from elastream.model.latency import Basis
from elastream.model.observation import Floats, Metric
from elastream.planning.provision import measured
from elastream.recording.recorder import Recording
from elastream.report.in_time import in_time

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run; NaN where unknown.

    status: "finished", "stopped", "failed", or "died" if the recording has no end. seconds: length of the run. records:
    taken from the sources and committed. latency_p50, latency_p99: seconds, over all records. records_within_target:
    fraction of the records whose latency is known that were in time. within_target: fraction of the time with a known 99th
    percentile in which it was within the target latency. longest_batch: seconds, of all queries. host_seconds, cost: of
    all leases. static_hosts, static_cost: the provision that the run's peak would have filled, and its cost over the run's
    length. static_rate, static_cores: that peak, records/s, and the cores of speed 1 that it works. leases, releases,
    lost: hosts requested, released, and failed. peak_hosts: most hosts leased at once. moves, rounds: tasks moved (where
    the plant counts them, also by rings and drains) and planning rounds. refused: proposals refused. latency_basis: what
    latencies count from, by source. lacked: metrics that the policy lacked for rounds, each with the longest time for which
    it did.
    """

    status: str
    seconds: float
    records: float
    batches: float
    latency_p50: float
    latency_p99: float
    records_within_target: float
    within_target: float
    longest_batch: float
    host_seconds: float
    cost: float
    static_hosts: float
    static_cost: float
    leases: int
    releases: int
    lost: int
    peak_hosts: int
    moves: int
    rounds: int
    refused: int
    latency_basis: Mapping[str, Basis] = field(default_factory=dict)
    lacked: tuple[Unknown, ...] = ()
    static_rate: float = math.nan
    static_cores: float = math.nan

    @property
    def host_minutes(self) -> float:
        return self.host_seconds / 60


def summarise(recording: Recording) -> Summary:
    """Summarise a run.

    `records`, `batches`, `latency_p50`, `latency_p99` and the cost come from the facts of its ending, if the plant counted
    them or a pool reported the amount owed. Otherwise records are the throughput integrated over the monitoring periods,
    the cost is that of the leases, and quantiles are those of the mixture of all periods (see `mixture_quantile`). The
    static provision is that of `planning.provision`, from the work that the run measured.
    """
    ending, end = recording.ending, recording.end
    facts = ending.facts if ending else {}
    widths = np.diff(recording.times, prepend=0.0)
    served = np.nan_to_num(recording.application(Metric.THROUGHPUT) * widths)
    p50, p99 = recording.application(Metric.LATENCY_P50), recording.application(Metric.LATENCY_P99)

    def fact(name: str, otherwise: float) -> float:
        value = facts.get(name)
        return float(value) if isinstance(value, int | float) else otherwise

    static = measured(recording)
    kept = in_time(recording)
    ended = [lease.state for lease in recording.hosts]
    return Summary(
        status=ending.status if ending else "died",
        seconds=end,
        records=fact("records", float(served.sum()) if len(served) else math.nan),
        batches=fact("batches", math.nan),
        latency_p50=fact("latency_p50", mixture_quantile(0.5, served, p50, p99)),
        latency_p99=fact("latency_p99", mixture_quantile(0.99, served, p50, p99)),
        records_within_target=kept.records,
        within_target=kept.time,
        longest_batch=max((batch.seconds for batch in recording.batches), default=fact("longest batch", math.nan)),
        host_seconds=math.fsum(lease.seconds(end) for lease in recording.hosts),
        cost=fact("owed", total_cost(recording.hosts, end)),
        static_hosts=math.nan if static is None else static.hosts,
        static_cost=math.nan if static is None else static.cost(recording.host_types[0], end),
        leases=len(recording.hosts),
        releases=ended.count(HostState.RELEASED),
        lost=ended.count(HostState.LOST),
        peak_hosts=int(max(recording.leased, default=0)),
        moves=int(fact("moves", sum(isinstance(each.action, MoveTask) for d in recording.decisions for each in d.done))),
        rounds=len(recording.decisions),
        refused=sum(bool(proposal.refused) for d in recording.decisions for proposal in d.proposals),
        latency_basis=recording.latency_basis,
        lacked=longest_lacked(recording.decisions),
        static_rate=math.nan if static is None else static.rate,
        static_cores=math.nan if static is None else static.cores,
    )


def mixture_quantile(q: float, weights: Floats, p50: Floats, p99: Floats) -> float:
    """The `q` quantile (q <= 0.99) of a mixture of distributions given by median and 99th percentile; NaN if none is known.

    weights, p50, p99: shape (distributions,). Each distribution function is taken as linear from (0, 0) over (p50, 0.5) to
    (p99, 0.99), then 1, so that for one distribution, or equal ones, the result is exact at both quantiles.
    """
    known = (weights > 0) & np.isfinite(p50) & np.isfinite(p99)
    if not known.any():
        return math.nan
    weights, p50, p99 = weights[known] / weights[known].sum(), p50[known], p99[known]
    knots = np.unique(np.concatenate([[0.0], p50, p99]))
    # Summed over all distributions at once, part by part: as many operations as knots, not as their square.
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(p50 > 0, 0.5 * weights / p50, 0.0)
        second = np.where(p99 > p50, 0.49 * weights / (p99 - p50), 0.0)
    rising = first.sum() - _up_to(p50, first, knots)
    within = _up_to(p50, second, knots) - _up_to(p99, second, knots)
    begun = _up_to(p50, second * p50, knots) - _up_to(p99, second * p50, knots)
    below = knots * rising + 0.5 * _up_to(p50, weights, knots) + knots * within - begun
    below += 0.49 * _up_to(p99, weights, knots) + 0.01 * _up_to(p99, weights, knots, above=True)
    return float(np.interp(q, np.maximum.accumulate(below), knots))


def _up_to(at: Floats, amounts: Floats, knots: Floats, *, above: bool = False) -> Floats:
    """Per knot the sum of the `amounts` whose place `at` lies at or before it; above: before it only."""
    order = np.argsort(at)
    total = np.append(0.0, np.cumsum(amounts[order]))
    found: Floats = total[np.searchsorted(at[order], knots, side="left" if above else "right")]
    return found
