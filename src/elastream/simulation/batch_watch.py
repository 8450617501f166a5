"""Observes a simulated micro-batch dataflow with the metrics that Spark's telemetry reports (`spark.telemetry`).

Figures cover the batches of the last `WINDOW` seconds, keep their values while no batch commits and are unknown before
the first commit, so that policies see the same lag and staleness as on Spark.
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from elastream.model.cloud import HostState
from elastream.model.observation import Context, Floats, Metric, MicroBatch
from elastream.simulation.microbatch import FusedNetwork, StageStation
from elastream.simulation.pool import SimulatedHosts
from elastream.simulation.settings import Settings
from elastream.simulation.watching import Watch

WINDOW = 3.0
"""Seconds of batches that one observation covers, and over which CPU use is averaged, as on Spark."""


class BatchWatch(Watch):
    """`Watch` for a `FusedNetwork`: rates, latencies and compliance come from committed batches."""

    def __init__(self, context: Context, network: FusedNetwork, pool: SimulatedHosts, settings: Settings) -> None:
        super().__init__(context, network, pool, settings)
        self.fused = network
        periods = max(1, round(WINDOW / settings.monitor))
        self._hosts: deque[Floats] = deque(maxlen=periods)
        self._stages: deque[Floats] = deque(maxlen=periods)

    def tick(self, now: float) -> None:
        super().tick(now)
        self._hosts.append(self.host_busy)
        size = self.host_busy.size
        self.host_busy = np.mean([np.pad(busy, (0, size - busy.size)) for busy in self._hosts], axis=0)

    def _take(self, station: StageStation, period: float) -> None:  # type: ignore[override]
        super()._take(station, period)
        row, columns = self.rows[station.name], self.columns
        rate = self._rate(station.stage.segment) * self.fused.segments[station.stage.segment].volume[station.name]
        columns[Metric.PROCESSED_RATE][row] = columns[Metric.EMITTED_RATE][row] = rate
        if math.isnan(rate) or station.name != station.stage.segment:
            # Only what leads a query has a queue that records arrive at; the others take what a batch brings them.
            columns[Metric.ARRIVAL_RATE][row] = rate

    def _take_sources(self, period: float) -> None:
        super()._take_sources(period)
        for name in self.network.sources:
            row, segment = self.rows[name], self.context.layout.stage_of[name].segment
            self.columns[Metric.EMITTED_RATE][row] = self.columns[Metric.PROCESSED_RATE][row] = self._rate(segment)
            if not self._window(segment):
                self.columns[Metric.ARRIVAL_RATE][row] = math.nan
        # Work is charged evenly over a batch's duration; the reported value is its mean over the window.
        busy = self.columns[Metric.BUSY_CORES]
        self._stages.append(busy.copy())
        busy[:] = np.mean(self._stages, axis=0)
        usable = math.fsum(lease.type.cores for lease in self.pool.leases if lease.state is HostState.RUNNING)
        if usable > 0:
            self.columns[Metric.UTILISATION][:] = busy / usable
        for station in self.fused.stations:
            tasks = len(station.crew)
            self.task_busy[station.name] = np.full(tasks, busy[self.rows[station.name]] / max(1, tasks))

    def _take_application(self, period: float, kept: float, within: float) -> None:
        super()._take_application(period, kept, within)
        first = {self.context.layout.stage_of[name].segment for name in self.network.sources}
        batches = [batch for segment in first for batch in self._window(segment)]
        self.application = {
            Metric.ARRIVAL_RATE: self.application[Metric.ARRIVAL_RATE] if batches else math.nan,
            Metric.THROUGHPUT: sum(self._rate(segment) for segment in first),
            Metric.LATENCY_P50: latency_quantile(batches, 0.5),
            Metric.LATENCY_P99: latency_quantile(batches, 0.99),
        }
        if batches:
            counts = [batch.records for batch in batches]
            means = [(batch.oldest + batch.newest) / 2 for batch in batches]
            self.application[Metric.LATENCY] = float(np.average(means, weights=counts))
            self.application[Metric.BATCH_DURATION] = float(np.median([batch.seconds for batch in batches]))
            if (target := self.context.target_latency) is not None:
                self.application[Metric.COMPLIANCE] = latency_share(batches, target)

    def _window(self, segment: str) -> list[MicroBatch]:
        """Batches committed in the last WINDOW seconds; if none, the newest batch."""
        recent = self.fused.segments[segment].recent
        since = self.ticks * self.settings.monitor - WINDOW
        return [batch for batch in recent if batch.end >= since] or list(recent)[-1:]

    def _rate(self, segment: str) -> float:
        """Records/s of `_window`, measured from the end of the batch before it, at most WINDOW before it began."""
        batches = self._window(segment)
        if not batches:
            return math.nan
        earlier = [batch.end for batch in self.fused.segments[segment].recent if batch.start < batches[0].start]
        since = min(batches[0].start, max(earlier[-1], batches[0].start - WINDOW)) if earlier else batches[0].start
        return sum(batch.records for batch in batches) / max(1e-3, batches[-1].end - since)


def latency_quantile(batches: Sequence[MicroBatch], q: float) -> float:
    """The `q` quantile of all records' latencies, seconds; NaN if no batch reports when its records were due.

    Latencies within a batch are taken as uniform between that of its newest and that of its oldest record.
    """
    counts, low, wide = _spreads(batches)
    if not counts.size:
        return math.nan
    knots = np.unique(np.concatenate([low, low + wide]))
    return float(np.interp(q, _below(knots, counts, low, wide), knots))


def latency_share(batches: Sequence[MicroBatch], limit: float) -> float:
    """Fraction of records whose latency is at most `limit` seconds, under the assumptions of `latency_quantile`."""
    counts, low, wide = _spreads(batches)
    return float(_below(np.array([limit]), counts, low, wide)[0]) if counts.size else math.nan


def _spreads(batches: Sequence[MicroBatch]) -> tuple[Floats, Floats, Floats]:
    """(records, least latency, spread of latencies), shape (batches,) each, of batches with known due times."""
    known = [batch for batch in batches if batch.records > 0 and not math.isnan(batch.oldest + batch.newest)]
    low = np.array([min(batch.newest, batch.oldest) for batch in known])
    # The spread is 0 for one record or simultaneous arrivals; the floor avoids dividing by it.
    wide = np.maximum(np.array([batch.oldest for batch in known]) - low, 1e-6)
    return np.array([batch.records for batch in known]), low, wide


def _below(values: Floats, counts: Floats, low: Floats, wide: Floats) -> Floats:
    """Fraction of records with a latency of at most each of `values`; shape (values,)."""
    share: Floats = (np.clip((values[:, None] - low) / wide, 0, 1) * counts).sum(axis=1) / counts.sum()
    return share
