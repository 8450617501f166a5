"""Computes the figures of a whole run: records served, latency, and cost.

The recording is the only input, so that finished, killed and simulated runs are summarised in the same way.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from elastream.model.action import MoveTask
from elastream.model.cloud import HostState, total_cost
from elastream.model.latency import Basis
from elastream.model.observation import Floats, Metric
from elastream.recording.recorder import Recording

__all__ = ["Summary", "summarise"]


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run; NaN where unknown.

    status: "finished", "stopped", "failed", or "died" if the recording has no end. seconds: length of the run. records:
    taken from the sources and committed. latency_p50, latency_p99: seconds, over all records. within_target: fraction of
    the time with a known 99th percentile in which it was within the target latency. host_seconds, cost: of all leases.
    leases, releases, lost: hosts requested, released, and failed. peak_hosts: most hosts leased at once. moves, rounds:
    tasks moved and planning rounds. refused: proposals refused. latency_basis: what latencies count from, by source.
    """

    status: str
    seconds: float
    records: float
    batches: float
    latency_p50: float
    latency_p99: float
    within_target: float
    host_seconds: float
    cost: float
    leases: int
    releases: int
    lost: int
    peak_hosts: int
    moves: int
    rounds: int
    refused: int
    latency_basis: Mapping[str, Basis] = field(default_factory=dict)

    @property
    def host_minutes(self) -> float:
        return self.host_seconds / 60


def summarise(recording: Recording) -> Summary:
    """Summarise a run.

    `records`, `batches`, `latency_p50`, `latency_p99` and the cost come from the facts of its ending, if the plant counted
    them or a pool reported the amount owed. Otherwise records are the throughput integrated over the monitoring periods,
    the cost is that of the leases, and quantiles are those of the mixture of all periods (see `mixture_quantile`).
    """
    ending, end = recording.ending, recording.end
    facts = ending.facts if ending else {}
    widths = np.diff(recording.times, prepend=0.0)
    served = np.nan_to_num(recording.application(Metric.THROUGHPUT) * widths)
    p50, p99 = recording.application(Metric.LATENCY_P50), recording.application(Metric.LATENCY_P99)

    def fact(name: str, otherwise: float) -> float:
        value = facts.get(name)
        return float(value) if isinstance(value, int | float) else otherwise

    ended = [lease.state for lease in recording.hosts]
    return Summary(
        status=ending.status if ending else "died",
        seconds=end,
        records=fact("records", float(served.sum()) if len(served) else math.nan),
        batches=fact("batches", math.nan),
        latency_p50=fact("latency_p50", mixture_quantile(0.5, served, p50, p99)),
        latency_p99=fact("latency_p99", mixture_quantile(0.99, served, p50, p99)),
        within_target=_share_within(p99, recording.header.target_latency, widths),
        host_seconds=math.fsum(lease.seconds(end) for lease in recording.hosts),
        cost=fact("owed", total_cost(recording.hosts, end)),
        leases=len(recording.hosts),
        releases=ended.count(HostState.RELEASED),
        lost=ended.count(HostState.LOST),
        peak_hosts=int(max(sum(recording.host_count().values(), start=0 * recording.times), default=0)),
        moves=sum(isinstance(outcome.action, MoveTask) for d in recording.decisions for outcome in d.done),
        rounds=len(recording.decisions),
        refused=sum(bool(proposal.refused) for d in recording.decisions for proposal in d.proposals),
        latency_basis=recording.latency_basis,
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
    below = np.zeros_like(knots)
    for weight, median, high in zip(weights, p50, p99, strict=True):
        below += weight * np.interp(knots, [0.0, median, high], [0.0, 0.5, 0.99], right=1.0)
    return float(np.interp(q, below, knots))


def _share_within(p99: Floats, target: float | None, widths: Floats) -> float:
    known = ~np.isnan(p99)
    if target is None or not widths[known].sum() > 0:
        return math.nan
    return float(widths[known & (p99 <= target)].sum() / widths[known].sum())
