"""Figures of a whole run: records served, latency, and cost.

The recording is the only input, so that finished, killed and simulated runs are summarised alike.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from elastream.core.decision import Unknown
from elastream.core.hosts import EndedLeases, HostState, known_cost, total_cost
from elastream.core.latency import Basis, mixture_quantile
from elastream.policies.savings import PEAK, FleetCost
from elastream.recording.recorder import Recording
from elastream.report.tally import Totals, tally_of


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run; NaN if unknown."""

    status: str  # "finished", "stopped", "failed", or "died" if the recording has no end
    seconds: float  # length of the run
    records: float  # taken from the sources and committed
    batches: float
    latency_p50: float  # seconds, over all records
    latency_p99: float  # seconds, over all records
    records_within_target: float  # share of records with known latency that were in time
    within_target: float  # share of the time with a known 99th percentile in which it was within the target
    longest_batch: float  # seconds, of all queries
    host_seconds: float  # of all leases
    cost: float
    static_hosts: float  # hosts of the fleet fixed at the peak
    static_cost: float  # its cost over the run's length
    leases: int  # hosts requested
    releases: int  # hosts released
    lost: int  # hosts failed
    peak_hosts: int  # most hosts leased at once
    moves: int  # tasks moved; also by rings and drains if the plant counts them
    rounds: int  # planning rounds
    refused: int  # proposals refused
    latency_basis: Mapping[str, Basis] = field(default_factory=dict)  # basis of latencies by source
    lacked: tuple[Unknown, ...] = ()  # metrics that the policy lacked, each with the longest time
    static_rate: float = math.nan  # peak load [records/s]
    static_cores: float = math.nan  # cores of speed 1 that the peak needs
    costs: Mapping[str, float] = field(default_factory=dict)  # by query if there are several; they add up to `cost`
    currency: str = ""  # of all money
    fleets: tuple[FleetCost, ...] = ()  # costs of other fleets on the same load

    @property
    def cost_per_million(self) -> float:
        return 1e6 * self.cost / self.records if self.records > 0 else math.nan

    @property
    def host_minutes(self) -> float:
        return self.host_seconds / 60


def summarise(recording: Recording, tally: Totals | None = None) -> Summary:
    """Summarise a run.

    `records`, `batches`, latencies and cost are the ending's facts where a plant or pool reported them, for a resumed
    run also the micro-batches' records. Otherwise records are throughput over time, cost is that of the leases, and
    quantiles are those of the mixture of all periods (`mixture_quantile`). Totals replace what a long run has dropped.
    """
    ending, end, tally = recording.ending, recording.end, tally or tally_of(recording)
    facts = ending.facts if ending else {}
    served, p50, p99 = tally.weights, tally.p50, tally.p99

    def fact(name: str, otherwise: float) -> float:
        value = facts.get(name)
        return float(value) if isinstance(value, int | float) else otherwise

    fleets = tally.savings.fleets(recording.host_types, end) if len(tally.weights) > 1 else ()
    static = tally.savings.provision(recording.host_types[0]) if fleets else None
    peak = next((each for each in fleets if each.name == PEAK), FleetCost(PEAK, math.nan, math.nan))
    ended = [lease.state for lease in recording.hosts]
    earlier = EndedLeases.of(facts)
    types = [*recording.host_types, *(lease.type for lease in recording.hosts)]
    cost = known_cost(fact("owed", earlier.cost + total_cost(recording.hosts, end)), types)
    return Summary(
        status=ending.status if ending else "died",
        seconds=end,
        records=_records(fact("records", math.nan), tally, resumed=bool(recording.header.resumed)),
        batches=fact("batches", math.nan),
        latency_p50=fact("latency_p50", mixture_quantile(0.5, served, p50, p99)),
        latency_p99=fact("latency_p99", mixture_quantile(0.99, served, p50, p99)),
        records_within_target=tally.in_time.records,
        within_target=tally.in_time.time,
        longest_batch=fact("longest batch", math.nan) if math.isnan(tally.longest_batch) else tally.longest_batch,
        host_seconds=math.fsum([earlier.seconds, *(lease.seconds(end) for lease in recording.hosts)]),
        cost=cost,
        static_hosts=peak.hosts,
        static_cost=peak.cost,
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
        fleets=fleets,
    )


def _records(reported: float, tally: Totals, *, resumed: bool) -> float:
    """Return the records of a run: those `reported` by the plant; in a resumed run at least those of its micro-batches."""
    counted = tally.counted if (resumed or math.isnan(reported)) and tally.counted > 0 else math.nan
    most = float(np.fmax(reported, counted))
    return tally.served if math.isnan(most) else most


def _by_query(costs: Mapping[str, float], cost: float) -> Mapping[str, float]:
    """Return `costs` scaled to add up to `cost`; empty for a single query."""
    total = math.fsum(costs.values())
    return {query: each * cost / total for query, each in costs.items()} if len(costs) > 1 and total > 0 else {}
