"""Figures of groups that scale together: all hosts if chained, else the instances of each operator."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Frame
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.qos import offered_rates
from elastream.dataflow.operators import Operator
from elastream.policies.common.draft import observed_instances
from elastream.policies.common.measures import known_mean

# Name of the group of all hosts.
HOSTS = "hosts"
METRICS = (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.EMITTED_RATE, Metric.BUSY_CORES, Metric.BACKLOG)
ARRIVING, PROCESSED, EMITTED, BUSY, BACKLOG = range(len(METRICS))


@dataclass(frozen=True, eq=False)
class Window:
    """Operators' metrics since hosts or instances last changed.

    Attributes:
        times: Shape (samples,).
        values: Shape (samples, metrics, operators).
        measured: True if known at any time of the run; shape (metrics, operators).
        changed: Time of the last change of `fleet`.
    """

    names: tuple[str, ...]
    times: Floats
    values: Floats
    measured: NDArray[np.bool_]
    fleet: tuple[object, ...]
    changed: float

    @classmethod
    def after(cls, before: "Window | None", observation: Observation, keep: float) -> "Window":
        """Return the window of the last `keep` seconds after `observation`."""
        now, names = observation.time, observation.operators.ids
        fleet: tuple[object, ...] = observation.usable
        if observation.context.layout.unchained:
            units = observation.context.units
            counts = before.fleet if before is not None and len(before.fleet) == len(units) else [0] * len(units)
            # An unknown number is the last known one.
            fleet = tuple(observed_instances(observation, each) or old for each, old in zip(units, counts, strict=True))
        if before is None or before.names != names or before.fleet != fleet:
            values = _values([observation.operators])
            measured = ~np.isnan(values[0])
            if before is not None and before.names == names:
                measured |= before.measured
            return cls(names, np.array([now]), values, measured, fleet, now)
        between = [each for each in observation.history if before.times[-1] < each.time < now]
        samples = [each for each in between if each.operators.ids == names]
        new = _values([*(each.operators for each in samples), observation.operators])
        times = np.concatenate([before.times, [each.time for each in samples], [now]])
        values, first = np.concatenate([before.values, new]), int(np.searchsorted(times, now - keep))
        measured = before.measured | np.logical_not(np.isnan(new)).any(axis=0)
        return cls(names, times[first:], values[first:], measured, fleet, before.changed)

    def total(self, metric: int, operators: Sequence[str]) -> Floats:
        """Return each sample's sum over the operators that measure it; NaN if one is unknown."""
        rows = [self.names.index(name) for name in operators if self.measured[metric, self.names.index(name)]]
        return np.asarray(self.values[:, metric, rows].sum(axis=1)) if rows else np.full(self.times.size, np.nan)


def _values(frames: Sequence[Frame]) -> Floats:
    return np.array([[frame.column(metric) for metric in METRICS] for frame in frames], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Group:
    """All hosts, or the instances of one operator, with samples of its `Window`.

    Attributes:
        count: Hosts or instances that work.
        coming: Requested ones that do not work yet.
        changed: Time when `count` last changed.
        arriving: Records/s that would arrive if no queue held records back.
        busy: Part of the cores that is busy.
    """

    name: str
    count: int
    coming: int
    changed: float
    times: Floats
    arriving: Floats
    processed: Floats
    busy: Floats
    waiting: Floats

    @cached_property
    def rate(self) -> float:
        return known_mean(self.arriving)

    @cached_property
    def load(self) -> float:
        return known_mean(self.busy)

    @cached_property
    def capacity(self) -> float:
        """True processing rate: records/s processed over the busy part."""
        done = known_mean(self.processed)
        if done == 0 or self.load == 0:
            return math.inf if self.load == 0 else math.nan
        return done / self.load

    @property
    def backlog(self) -> float:
        """Newest known `waiting`; NaN if never known."""
        measured = self.waiting[~np.isnan(self.waiting)]
        return float(measured[-1]) if measured.size else math.nan

    def unknown(self, needs: Iterable[Metric]) -> tuple[Metric, ...]:
        needed = set(needs)
        figures = {
            Metric.ARRIVAL_RATE: self.rate,
            Metric.PROCESSED_RATE: known_mean(self.processed),
            Metric.BUSY_CORES: self.load,
            Metric.BACKLOG: self.backlog,
        }
        return tuple(metric for metric in METRICS if metric in needed and math.isnan(figures[metric]))


def groups_of(observation: Observation, window: Window) -> list[Group]:
    """Return the groups; none if no query runs or no host works.

    Hosts that drain are not counted: the others must carry the whole load.
    """
    context, graph = observation.context, observation.context.graph
    sources = [source.name for source in graph.sources]
    if not sources:
        return []
    arriving = window.total(ARRIVING, sources)
    if not context.layout.unchained:
        cores = observation.usable_cores[0]
        busy = window.total(BUSY, [o.name for o in graph.operators if not o.waits])
        count, coming = len(observation.usable), len(observation.coming)
        if not count:
            return []
        processed, waiting = window.total(PROCESSED, sources), window.total(BACKLOG, graph.order)
        return [Group(HOSTS, count, coming, window.changed, window.times, arriving, processed, busy / cores, waiting)]
    rates = {name: known_mean(window.total(ARRIVING, [name])) for name in sources}
    total = math.fsum(rates.values())
    gains = {o.name: _selectivity(window, observation, o) for o in graph.operators if o.alternates}
    offered = offered_rates(graph, rates, gains, observation.composition)
    groups = []
    for unit in context.units:
        name, instances = unit.name, observed_instances(observation, unit)
        if not unit.scalable or not instances:
            continue
        share = offered[name] / total if total > 0 else 0.0 * total
        busy = window.total(BUSY, [name]) / (instances * (unit.cores or 1.0))
        processed, waiting = window.total(PROCESSED, [name]), window.total(BACKLOG, [name])
        groups.append(Group(name, instances, 0, window.changed, window.times, arriving * share, processed, busy, waiting))
    return groups


def _selectivity(window: Window, observation: Observation, operator: Operator) -> float:
    done, emitted = (known_mean(window.total(metric, [operator.name])) for metric in (PROCESSED, EMITTED))
    if done > 0 and not math.isnan(emitted):
        return emitted / done
    declared = observation.composition.alternate(operator).selectivity
    return 1.0 if declared is None else declared
