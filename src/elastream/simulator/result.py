"""Figures of a simulated run, in VISP's terms (Tables 3 to 6)."""

import math
from dataclasses import dataclass, field

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import HostState, Lease
from elastream.simulator.staffing import Staffing
from elastream.simulator.watching import MetricsCollector


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """Items of an operator; `within` counts judged items by factor of the service level."""

    arrived: float
    done: float
    judged: float
    emitted: float
    within: dict[float, float]
    mean_duration: float
    queued: float
    in_service: float
    scalings: int


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of a simulated run.

    Attributes:
        leases: Hosts leased, including the first.
        prolongings: Billing time units beyond each lease's first.
        upscalings, downscalings: Instances added and removed on request.
        time_to_adapt: Mean seconds above the service level; NaN if never.
        series: Rows of (time, offered records/s, hosts, instances, backlog, compliance, committed records).
    """

    seconds: float
    operators: dict[str, OperatorResult]
    cost: float
    leases: int
    prolongings: int
    early_releases: int
    upscalings: int
    downscalings: int
    migrations: int
    time_to_adapt: float
    host_seconds: float
    committed: float
    ledger: tuple[Lease, ...] = field(repr=False)
    series: Floats = field(repr=False, compare=False)

    @property
    def judged(self) -> float:
        """Items of known duration with a service level."""
        return sum(each.judged for each in self.operators.values() if each.within)

    def late(self, factor: float) -> float:
        return sum(each.judged - each.within[factor] for each in self.operators.values() if each.within)

    def compliance(self, factor: float = 1.0) -> float:
        """Return the fraction of items within `factor` times their service level."""
        return 1 - self.late(factor) / self.judged if self.judged else math.nan


def result_of(now: float, staffing: Staffing, watch: MetricsCollector) -> Result:
    pool, settings = staffing.pool, staffing.settings
    operators = {}
    for station in staffing.network.stations:
        arrived, done, judged, emitted, delay = (
            getattr(station.total, name) + getattr(station.period, name)
            for name in ("arrived", "done", "judged", "emitted", "delay")
        )
        within = station.total.within + station.period.within
        promised = station.operator.max_duration is not None
        operators[station.name] = OperatorResult(
            arrived,
            done,
            judged,
            emitted,
            dict(zip(settings.factors, within.tolist(), strict=True)) if promised else {},
            delay / judged if judged else math.nan,
            station.queued,
            station.in_service,
            station.scalings,
        )
    return Result(
        seconds=now,
        operators=operators,
        cost=pool.cost(now),
        leases=len(pool),
        prolongings=sum(lease.units(now) - 1 for lease in pool.leases),
        early_releases=sum(released_early(lease, settings.early_margin) for lease in pool.leases),
        upscalings=staffing.upscalings,
        downscalings=staffing.downscalings,
        migrations=staffing.migrations,
        time_to_adapt=float(np.mean(watch.adapted)) if watch.adapted else math.nan,
        host_seconds=math.fsum(
            lease.seconds(now) for lease in pool.leases if HostState.RUNNING in {state for _, state in lease.history}
        ),
        committed=staffing.network.committed,
        ledger=tuple(pool.leases),
        series=np.array(watch.series).reshape(-1, 7),
    )


def released_early(lease: Lease, margin: float) -> bool:
    """Return True if release left more than `margin` of a paid billing time unit.

    The end of a run is no release.
    """
    begun = next((at for at, state in lease.history if state is HostState.RELEASING), None)
    return begun is not None and lease.remaining(begun) > margin * lease.type.billing.unit + 1e-6
