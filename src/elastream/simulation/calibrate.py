"""From a recorded run to a simulation of it, and how far the two are apart.

What a run shows of its operators, hosts and batches replaces what the simulator would otherwise assume; then the run's own
load and its own actions are played through the simulated plant, so that the drift is the simulator's and not a policy's.
Recordings belong to `control`, which this package does not import: `Recorded` says what is read of one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Protocol

import numpy as np

from elastream.model.action import Outcome
from elastream.model.cloud import HostType, Lease
from elastream.model.errors import InputError
from elastream.model.graph import Kind
from elastream.model.observation import Floats, Metric
from elastream.model.stages import Layout
from elastream.simulation.arrivals import Emissions
from elastream.simulation.plant import SimulatedPlant, make_plant
from elastream.simulation.settings import Service, Settings
from elastream.simulation.stations import Flow
from elastream.simulation.watching import quantiles

__all__ = ["Calibration", "Drift", "Recorded", "calibrate", "drift_of", "replay"]

BEGINNING = 1.0
"""Seconds up to which a lease counts as there from the start."""


class Done(Protocol):
    """What is read of a planning round."""

    @property
    def time(self) -> float:
        """When it was."""
        ...

    @property
    def done(self) -> Sequence[Outcome]:
        """What took effect."""
        ...


class Recorded(Protocol):
    """What is read of a recording; `control.recording.Recording` is one."""

    @property
    def times(self) -> Floats:
        """Times of the observations, seconds."""
        ...

    @property
    def hosts(self) -> Sequence[Lease]:
        """Every lease."""
        ...

    @property
    def decisions(self) -> Sequence[Any]:
        """Planning rounds, see `Done`."""
        ...

    @property
    def end(self) -> float:
        """When it ended."""
        ...

    def application(self, metric: Metric) -> Floats:
        """A metric of the dataflow over time."""
        ...

    def operator(self, name: str, metric: Metric) -> Floats:
        """A metric of an operator over time."""
        ...

    def parallelism(self, operator: str) -> Floats:
        """Its instances over time."""
        ...


@dataclass(frozen=True)
class Calibration:
    """What a recording says about the simulator's constants. `unknown` names what it could not say, left as assumed."""

    settings: Settings
    host_types: tuple[HostType, ...]
    loads: Mapping[str, Emissions]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """One figure of a run as measured and as simulated; `relative` is simulated over measured, less 1."""

    metric: str
    unit: str
    measured: float
    simulated: float

    @property
    def relative(self) -> float:
        """NaN where the measured figure is 0 or unknown."""
        return self.simulated / self.measured - 1 if self.measured else math.nan


def calibrate(
    recording: Recorded, layout: Layout, host_types: Sequence[HostType], settings: Settings | None = None
) -> Calibration:
    """Constants from a recording of `layout` on hosts of `host_types`.

    An operator's cost is the median of its SERVICE_TIME; its selectivity all it emitted over all it got. A batch is taken
    to last for a constant and so much a record; the constant, shared by the stages, is the overhead, and what a record
    takes beyond its operators' costs (transport between processes) is charged to the operator that costs most. A host
    type starts in the median of what its leases took. Raises InputError for a recording with fewer than three observations
    or with no arrivals at a source.
    """
    settings = settings or Settings()
    if len(recording.times) < 3:
        raise InputError(f"a recording of {len(recording.times)} observations is too short to calibrate the simulator with")
    widths = np.diff(recording.times, prepend=0.0)
    unknown: list[str] = []
    services = dict(settings.services)
    for operator in layout.graph.operators:
        if operator.kind not in (Kind.TRANSFORM, Kind.KEYED):
            continue
        name = operator.name
        cost = _median(recording.operator(name, Metric.SERVICE_TIME))
        came = np.nansum(recording.operator(name, Metric.PROCESSED_RATE) * widths)
        went = np.nansum(recording.operator(name, Metric.EMITTED_RATE) * widths)
        if cost is None:
            unknown.append(f"the cost of {name}")
            cost = next((a.cost for a in operator.alternates if a.cost is not None), 0.0)
        services[name] = settings.service(name).costing(cost, float(went / came) if came > 0 and went > 0 else None)
    fixed, each = _batch_line(recording)
    if fixed is None or each is None:
        unknown.append("the overhead of a batch")
    else:
        settings = replace(settings, batch_overhead=fixed / max(1, len(layout.stages)))
        _charge_transport(services, each, recording, layout, host_types)
    started = []
    for kind in host_types:
        seconds = [
            ready - lease.since
            for lease in recording.hosts
            if lease.type.name == kind.name and lease.since > BEGINNING and (ready := lease.ready_at()) is not None
        ]
        if seconds:
            started.append(replace(kind, start=float(np.median(seconds))))
        else:
            unknown.append(f"the start-up of a {kind.name} host")
            started.append(kind)
    step = float(np.median(np.diff(recording.times)))
    settings = replace(settings, services=services, monitor=max(step, 1e-3), host_start_spread=0.0)
    return Calibration(settings, tuple(started), _loads(recording, layout), tuple(unknown))


def replay(
    recording: Recorded, layout: Layout, calibration: Calibration, *, seed: int = 0, until: float | None = None
) -> SimulatedPlant:
    """The recorded load and the recorded actions on the simulated plant, up to `until` or the end of the recording."""
    first = [lease for lease in recording.hosts if lease.since <= BEGINNING]
    widths = {stage.name: _first(recording.parallelism(stage.name)) for stage in layout.stages}
    plant = make_plant(
        layout,
        host_types=calibration.host_types,
        loads=calibration.loads,
        seed=seed,
        settings=calibration.settings,
        hosts=max(1, len(first)),
        parallelism={name: int(width) for name, width in widths.items() if not math.isnan(width)},
    )
    for decision in recording.decisions:
        plant.advance(decision.time)
        for outcome in decision.done:
            plant.apply(outcome.action)
    plant.advance(recording.end if until is None else until)
    return plant


def drift_of(recording: Recorded, plant: SimulatedPlant) -> tuple[Drift, ...]:
    """Measured against simulated: median latency, mean backlog at the sources, host-minutes, batch length and records.

    The measured median is the median over observations, weighted by the records of each; the simulated one likewise.
    """
    times, end = recording.times, recording.end
    widths = np.diff(times, prepend=0.0)
    weights = np.nan_to_num(recording.application(Metric.THROUGHPUT)) * widths
    sources = [source.name for source in plant.context.graph.sources]
    backlog = sum(np.nan_to_num(recording.operator(name, Metric.BACKLOG)) for name in sources)
    samples = plant.watch.applications
    simulated = {
        metric: np.array([sample.get(metric, math.nan) for sample in samples])
        for metric in (Metric.LATENCY_P50, Metric.THROUGHPUT, Metric.BATCH_DURATION)
    }
    return (
        Drift(
            "latency p50",
            "s",
            _weighted(recording.application(Metric.LATENCY_P50), weights),
            _weighted(simulated[Metric.LATENCY_P50], simulated[Metric.THROUGHPUT]),
        ),
        Drift(
            "backlog, mean",
            "records",
            float(np.average(backlog, weights=widths)),
            float(plant.result().series[:, 4].mean()),
        ),
        Drift(
            "host time",
            "min",
            math.fsum(lease.seconds(end) for lease in recording.hosts) / 60,
            math.fsum(lease.seconds(plant.time) for lease in plant.ledger) / 60,
        ),
        Drift(
            "batch, mean",
            "s",
            _mean(recording.application(Metric.BATCH_DURATION)),
            _mean(simulated[Metric.BATCH_DURATION]),
        ),
        Drift("records", "", float(weights.sum()), plant.result().committed),
    )


def _loads(recording: Recorded, layout: Layout) -> dict[str, Emissions]:
    """Arrivals of each source as recorded: so many in each observation period, evenly."""
    edges = np.concatenate([[0.0], recording.times])
    found = {}
    for source in layout.graph.sources:
        rates = np.nan_to_num(recording.operator(source.name, Metric.ARRIVAL_RATE))
        due = np.floor(np.cumsum(rates * np.diff(edges)) + 1e-6).astype(np.int64)
        if not due[-1]:
            raise InputError(f"the recording shows no arrivals at source {source.name!r}")
        found[source.name] = Emissions(edges[:-1], np.diff(due, prepend=0), float(np.median(np.diff(edges))))
    return found


def _batch_line(recording: Recorded) -> tuple[float | None, float | None]:
    """(seconds of an empty batch, seconds a record): the Theil-Sen line through the observations' mean batches."""
    lasted = recording.application(Metric.BATCH_DURATION)
    records = recording.application(Metric.THROUGHPUT) * lasted
    known = np.flatnonzero(np.isfinite(lasted) & np.isfinite(records) & (records > 0))
    chosen = known[:: max(1, known.size // 200)]
    pairs = list(combinations(zip(records[chosen].tolist(), lasted[chosen].tolist(), strict=True), 2))
    slopes = [(t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in pairs if abs(n2 - n1) > 0.1 * max(n1, n2)]
    if not slopes:
        return None, None
    each = max(0.0, float(np.median(slopes)))
    return max(0.0, float(np.median(lasted[chosen] - each * records[chosen]))), each


def _charge_transport(
    services: dict[str, Service], each: float, recording: Recorded, layout: Layout, host_types: Sequence[HostType]
) -> None:
    """Add what a record takes beyond its operators to the operator that costs most, in core-seconds of the mean hosts."""
    power = {kind.name: kind.cores * kind.speed for kind in host_types}
    held = math.fsum(lease.seconds(recording.end) * power.get(lease.type.name, 1.0) for lease in recording.hosts)
    cores = held / recording.end if recording.end > 0 else 1.0
    records = sum(float(np.nansum(recording.operator(s.name, Metric.ARRIVAL_RATE))) for s in layout.graph.sources)
    spent: dict[str, float] = {}
    for name, service in services.items():
        came = float(np.nansum(recording.operator(name, Metric.PROCESSED_RATE)))
        spent[name] = (service.cost or 0.0) * came / records if records > 0 else 0.0
    missing = each * cores - sum(spent.values())
    if spent and missing > 0:
        name = max(spent, key=spent.__getitem__)
        came = float(np.nansum(recording.operator(name, Metric.PROCESSED_RATE))) / records
        if came > 0:
            service = services[name]
            services[name] = service.costing((service.cost or 0.0) + missing / came, service.selectivity)


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else None


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan


def _first(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known[0]) if known.size else math.nan


def _weighted(values: Floats, weights: Floats) -> float:
    known = np.isfinite(values) & (weights > 0)
    if not known.any():
        return math.nan
    return quantiles([Flow(values[known], values[known], weights[known])], (0.5,))[0]
