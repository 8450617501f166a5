"""Computes the figures of a whole run: records served, latency, and cost.

The recording is the only input, so that finished, killed and simulated runs are summarised in the same way.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from elastream.core.decision import Unknown
from elastream.core.hosts import EndedLeases, HostState, total_cost
from elastream.core.latency import Basis, mixture_quantile
from elastream.recording.recorder import Recording
from elastream.report.tally import Totals, tally_of


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
    it did. costs: by query, where there are several; they add up to `cost`. currency: of all money.
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
    costs: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""

    @property
    def cost_per_million(self) -> float:
        """Money for a million records; NaN where nothing was processed."""
        return 1e6 * self.cost / self.records if self.records > 0 else math.nan

    @property
    def host_minutes(self) -> float:
        return self.host_seconds / 60


def summarise(recording: Recording) -> Summary:
    """Summarise a run.

    `records`, `batches`, `latency_p50`, `latency_p99` and the cost come from the facts of its ending, if the plant counted
    them or a pool reported the amount owed; of a run that was resumed also from what micro-batches of all its drivers took.
    Otherwise records are the throughput integrated over the monitoring periods,
    the cost is that of the leases, and quantiles are those of the mixture of all periods (see `mixture_quantile`). The
    static provision is that of `policies.common.provision`, from the work that the run measured. Of what a long run
    has forgotten,
    its tally says what it came to.
    """
    ending, end, tally = recording.ending, recording.end, tally_of(recording)
    facts = ending.facts if ending else {}
    served, p50, p99 = tally.weights, tally.p50, tally.p99

    def fact(name: str, otherwise: float) -> float:
        value = facts.get(name)
        return float(value) if isinstance(value, int | float) else otherwise

    static = tally.work.provision(recording.host_types[0]) if recording.host_types and len(tally.weights) > 1 else None
    ended = [lease.state for lease in recording.hosts]
    earlier = EndedLeases.of(facts)
    cost = fact("owed", earlier.cost + total_cost(recording.hosts, end))
    return Summary(
        status=ending.status if ending else "died",
        seconds=end,
        records=_records(fact("records", math.nan), tally, resumed=bool(recording.header.resumed)),
        batches=fact("batches", math.nan),
        latency_p50=fact("latency_p50", mixture_quantile(0.5, served, p50, p99)),
        latency_p99=fact("latency_p99", mixture_quantile(0.99, served, p50, p99)),
        records_within_target=tally.kept.records,
        within_target=tally.kept.time,
        longest_batch=fact("longest batch", math.nan) if math.isnan(tally.longest_batch) else tally.longest_batch,
        host_seconds=math.fsum([earlier.seconds, *(lease.seconds(end) for lease in recording.hosts)]),
        cost=cost,
        static_hosts=math.nan if static is None else static.hosts,
        static_cost=math.nan if static is None else static.cost(recording.host_types[0], end),
        leases=earlier.leases + len(recording.hosts),
        releases=earlier.released + ended.count(HostState.RELEASED),
        lost=earlier.lost + ended.count(HostState.LOST),
        peak_hosts=tally.peak_hosts,
        moves=int(fact("moves", tally.moves)),
        rounds=tally.rounds,
        refused=tally.refused,
        latency_basis=tally.basis,
        lacked=tally.lacked,
        static_rate=math.nan if static is None else static.rate,
        static_cores=math.nan if static is None else static.cores,
        costs=_by_query(tally.costs, cost),
        currency=str(recording.header.environment.get("currency", "")),
    )


def _records(told: float, tally: Totals, *, resumed: bool) -> float:
    """Records of a run, of which its plant told `told`.

    What earlier drivers of a run read, the last one knows only of sources whose offsets count records: else micro-batches
    say it.
    """
    counted = tally.counted if (resumed or math.isnan(told)) and tally.counted > 0 else math.nan
    most = float(np.fmax(told, counted))
    return tally.served if math.isnan(most) else most


def _by_query(costs: Mapping[str, float], cost: float) -> Mapping[str, float]:
    """`costs` in the proportions that were seen, so that they add up to `cost`; empty for a single query."""
    seen = math.fsum(costs.values())
    return {query: each * cost / seen for query, each in costs.items()} if len(costs) > 1 and seen > 0 else {}
