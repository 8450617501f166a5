"""Replay of a recorded run on the simulated plant, and comparison of both.

With recorded actions, differences are the simulator's error alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from elastream.core.action import Switch
from elastream.core.frames import Floats
from elastream.core.hosts import Lease
from elastream.core.latency import spread_quantiles
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.dataflow.stages import Layout
from elastream.recording.recorder import Recording
from elastream.simulator.calibrate import Calibration
from elastream.simulator.plant import SimulatedPlant, make_plant


@dataclass(frozen=True, slots=True)
class Drift:
    metric: str
    unit: str
    measured: float
    simulated: float

    @property
    def relative(self) -> float:
        return self.simulated / self.measured - 1 if self.measured else math.nan


def recorded_plant(
    recording: Recording,
    layout: Layout,
    calibration: Calibration,
    *,
    seed: int,
    target_latency: float | None = None,
    max_hosts: int = 1_000_000,
) -> SimulatedPlant:
    """Build a plant with the recorded load and first hosts, starting at `calibration.origin`.

    The hosts run at time 0, because the load waited for them.
    """
    first = min((batch.start for batch in recording.batches), default=math.inf)
    initial = [lease for lease in recording.hosts if lease.since <= first]
    widths = {stage.name: recording.parallelism(stage.name) for stage in layout.stages}
    return make_plant(
        layout,
        host_types=calibration.host_types,
        loads=calibration.loads,
        seed=seed,
        settings=calibration.settings,
        hosts=min(max_hosts, max(1, len(initial))),
        parallelism={name: int(of[0]) for name, of in widths.items() if of.size and of[0] >= 1},
        max_hosts=max_hosts,
        target_latency=target_latency,
    )


def replay(
    recording: Recording, plant: SimulatedPlant, origin: float, watch: Callable[[Observation], None] = lambda _: None
) -> None:
    """Apply the recorded actions to a plant with time 0 at `origin`.

    `watch` receives an observation at each recorded time.
    """
    actions = [(d.time - origin, 1, d) for d in recording.decisions if d.done]
    observations = [(float(time) - origin, 0, None) for time in recording.times]
    for time, _, decision in sorted([*actions, *observations], key=lambda event: event[:2]):
        plant.advance(time)
        if decision is None:
            watch(plant.observe())
        else:
            done = [outcome.action for outcome in decision.done]
            plant.switch([action for action in done if isinstance(action, Switch)])
            for action in done:
                if not isinstance(action, Switch):
                    plant.apply(action)
    plant.advance(recording.end - origin)


def drift_of(
    measured: Recording, simulated: Recording, sources: Sequence[str], *, origin: float = 0.0
) -> tuple[Drift, ...]:
    """Compare both runs; the simulated one begins at measured time `origin`."""
    begins = min((batch.start for batch in measured.batches), default=origin)
    ours = figures_of(measured, sources, begins=begins, origin=origin)
    theirs = figures_of(simulated, sources, begins=begins - origin)
    return tuple(Drift(metric, unit, value, other) for (metric, unit, value), (*_, other) in zip(ours, theirs, strict=True))


def figures_of(
    run: Recording, sources: Sequence[str], *, begins: float | None = None, origin: float = 0.0
) -> tuple[tuple[str, str, float], ...]:
    since = min((batch.start for batch in run.batches), default=origin) if begins is None else begins
    working = [batch for batch in run.batches if batch.records > 0]
    rows = [(each.records, each.oldest, each.newest) for each in run.batches if each.oldest == each.oldest]
    records, oldest, newest = np.array(rows).reshape(-1, 3).T
    middle, late = spread_quantiles(records, oldest, newest, (0.5, 0.99))
    return (
        ("latency p50", "s", middle),
        ("latency p99", "s", late),
        ("backlog, mean", "records", _mean_backlog(run, sources, since)),
        ("host time", "min", math.fsum(_leased(lease, run.end) for lease in run.hosts) / 60),
        ("batch, mean", "s", float(np.mean([batch.seconds for batch in working] or [math.nan]))),
        ("batches", "", float(len(working))),
        ("records", "", float(sum(batch.records for batch in working))),
        ("run", "s", run.end - origin),
    )


def _leased(lease: Lease, end: float) -> float:
    return max(0.0, min(end if lease.until is None else lease.until, end) - lease.since)


def _mean_backlog(run: Recording, sources: Sequence[str], since: float) -> float:
    """Return the mean number of waiting records, by Little's law, or by observations without due times."""
    took = [batch for batch in run.batches if batch.records > 0 and batch.end > since]
    waited = [batch.records * (batch.start - batch.end + (batch.oldest + batch.newest) / 2) for batch in took]
    if took and not any(map(math.isnan, waited)):
        return math.fsum(max(0.0, each) for each in waited) / max(took[-1].end - since, 1e-9)
    queued = np.sum([np.nan_to_num(run.operator(name, Metric.BACKLOG)) for name in sources], axis=0)
    return _mean_over_time(run.times, queued, since)


def _mean_over_time(times: Floats, values: Floats, begins: float) -> float:
    widths = np.diff(times, prepend=begins)
    widths = np.where(times > begins, np.minimum(widths, times - begins), 0.0)
    return float(np.average(values, weights=widths)) if widths.sum() > 0 else math.nan
