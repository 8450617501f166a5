"""Value and work of compositions: alternates and branches at the present rates.

Costs and selectivities are an alternate's own: measured while it ran, else declared.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from elastream.core.action import Switch, SwitchAlternate, SwitchEdge
from elastream.core.frames import Frame, known_sum
from elastream.core.guarding import GuardDecision
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Observation
from elastream.core.qos import offered_rates
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind, Operator
from elastream.policies.common.measures import frames_of_batch, known_mean, speeds_by_operator

# Newest observations over which a rate is averaged: a single one may show a slow batch.
SAMPLES = 3
# Newest observations over which the selectivity of a window is averaged: all that a simulated plant keeps.
LONGER = 40

# Last known (core-seconds of speed 1 per record, records out per record in) by `operator.alternate`; NaN if unknown.
Costs: TypeAlias = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class DynamicElement:
    """An operator with alternates, or a choice of branches, that can be switched now.

    Attributes:
        options: Relative value of each one that may run, NaN if unknown. Lacks `active` if that may not run.
        choice: True for a choice of branches.
        standing: Decision of the guards; None without guards.
    """

    name: str
    active: str
    options: Mapping[str, float]
    choice: bool = False
    standing: GuardDecision | None = None

    @property
    def must(self) -> bool:
        """True if the active option may not continue."""
        return self.active not in self.options

    def value(self, option: str) -> float:
        value = self.options.get(option, math.nan)
        return -1.0 if math.isnan(value) else value

    @property
    def ranked(self) -> tuple[str, ...]:
        """The options, highest value first; of equal ones the active first."""
        return tuple(sorted(self.options, key=lambda option: (-self.value(option), option != self.active)))

    def switch(self, option: str, why: str) -> Switch:
        return SwitchEdge(self.name, option, why) if self.choice else SwitchAlternate(self.name, option, why)


def elements(observation: Observation) -> Iterator[DynamicElement]:
    """Yield the elements that can be switched.

    A guarded element needs a non-empty allowed set. An operator with a key table is left out while the alternate for its
    other keys may run.
    """
    graph, composition = observation.context.graph, observation.composition
    for operator in graph.operators:
        if len(operator.alternates) > 1:
            values = {alternate.name: alternate.value for alternate in operator.alternates}
            element = _element(observation, operator.name, values, composition.alternate(operator).name, choice=False)
            if element is not None and (element.must or not composition.tables.get(operator.name)):
                yield element
    branches: dict[str, dict[str, float]] = {}
    for edge in graph.edges:
        if edge.choice is not None:
            branches.setdefault(edge.choice, {})[edge.target] = edge.value
    for choice, values in branches.items():
        active = composition.choices.get(choice, next(iter(values)))
        element = _element(observation, choice, values, active, choice=True)
        if element is not None:
            yield element


def _element(
    observation: Observation, name: str, declared: Mapping[str, float], active: str, *, choice: bool
) -> DynamicElement | None:
    standing = observation.standings.get(name)
    if standing is None:
        return DynamicElement(name, active, declared, choice)
    if not standing.allowed:
        return None
    return DynamicElement(
        name, active, {each: standing.values.get(each, math.nan) for each in standing.allowed}, choice, standing
    )


def with_option(composition: Composition, element: DynamicElement, option: str) -> Composition:
    if element.choice:
        return replace(composition, choices={**composition.choices, element.name: option})
    return replace(composition, alternates={**composition.alternates, element.name: option})


def is_under_way(observation: Observation, element: DynamicElement) -> bool:
    """Return True if the element's last switch is not in a committed batch yet."""
    if not observation.effective:
        return False
    (query,) = element.switch(element.active, "").segments(observation.context.layout)
    effective = observation.effective.get(query)
    if effective is None:
        return False
    runs = effective.choices if element.choice else effective.alternates
    return runs.get(element.name, element.active) != element.active


def recent_rate(observation: Observation, operator: str) -> float:
    return known_mean(observation.series(operator, Metric.ARRIVAL_RATE, SAMPLES)[1])


class CompositionWork:
    """Work of compositions at the rates of an observation.

    Args:
        before: Costs from earlier rounds, for alternates that have not run lately.
    """

    def __init__(self, observation: Observation, before: Costs) -> None:
        self.observation = observation
        self.costs: dict[str, tuple[float, float]] = dict(before)
        self._graph: Graph = observation.context.graph
        frame, composition = observation.alternates, observation.composition
        for name in frame:
            operator, alternate = self._graph.by_alternate.get(name, (None, None))
            if operator is None or alternate is None:
                continue
            earlier = self.costs.get(name)
            runs = composition.alternate(operator) is alternate or composition.tables.get(operator.name, 0) > 0
            if earlier is not None and not runs:
                continue  # keep the cost from when it ran, measured at the host speeds of that time
            cost, emitted = frame.value(name, Metric.SERVICE_TIME), frame.value(name, Metric.SELECTIVITY)
            cost *= self._speed(operator.name)
            earlier = earlier or (math.nan, math.nan)
            self.costs[name] = (earlier[0] if math.isnan(cost) else cost, earlier[1] if math.isnan(emitted) else emitted)

    @cached_property
    def _speeds(self) -> Mapping[str, float]:
        if not self.observation.context.layout.unchained:
            return {}
        return {name: mean for name, (mean, _) in speeds_by_operator(self.observation).items()}

    def _speed(self, name: str) -> float:
        return self._speeds.get(name, self.observation.mean_speed)

    @cached_property
    def rates(self) -> Mapping[str, float]:
        """Mean records/s that arrive at each source; NaN if unknown."""
        return {source.name: recent_rate(self.observation, source.name) for source in self._graph.sources}

    @cached_property
    def usable(self) -> float:
        return math.fsum([self.observation.capacities[host] for host in self.observation.usable])

    @cached_property
    def ends(self) -> Mapping[str, float]:
        """Core-seconds of speed 1 per record of each source and sink. They do not depend on alternates."""
        return {
            operator.name: self._overhead(operator) / self._batch_mean(operator.name, Metric.PROCESSED_RATE)
            for operator in self._graph.operators
            if operator.kind in (Kind.SOURCE, Kind.SINK) and self._overhead(operator) > 0
        }

    @cached_property
    def overheads(self) -> Mapping[str, float]:
        """Cores of speed 1 that each operator needs beside its alternate; 0 if unknown. Chained only.

        Averaged over a micro-batch.
        """
        if self.observation.context.layout.unchained:
            return {}
        working = [each for each in self._graph.operators if each.alternates and not each.waits]
        return {operator.name: self._overhead(operator) for operator in working}

    def _overhead(self, operator: Operator) -> float:
        """Return the cores that an operator needs beside its alternate, less the rest of its stage; 0 if unknown."""
        layout, composition = self.observation.context.layout, self.observation.composition
        frame = self.observation.operators
        busy, done = (self._batch_mean(operator.name, each) for each in (Metric.BUSY_CORES, Metric.PROCESSED_RATE))
        if not (busy >= 0 and done > 0):
            return 0.0
        volumes = offered_rates(self._graph, {operator.name: done}, self._emitted, composition)
        counted = [
            self._graph.by_name[name]
            for name in layout.stage_of[operator.name].operators
            if name == operator.name or not frame.value(name, Metric.BUSY_CORES) >= 0
        ]
        theirs = known_sum([volumes[each.name] * self.cost(each, composition) for each in counted if each.alternates])
        return max(0.0, busy * self._speed(operator.name) - (0.0 if math.isnan(theirs) else theirs))

    @cached_property
    def frames(self) -> tuple[Frame, ...]:
        return frames_of_batch(self.observation)

    def _batch_mean(self, operator: str, metric: Metric) -> float:
        """Return the mean over a micro-batch; NaN if its end is unknown."""
        values = [frame.value(operator, metric) for frame in self.frames]
        measured = [value for value in values if not math.isnan(value)]
        return math.nan if math.isnan(values[-1]) else math.fsum(measured) / len(measured)

    @cached_property
    def _emitted(self) -> Mapping[str, float]:
        working = [each for each in self._graph.operators if each.alternates]
        return {each.name: self.selectivity(each, self.observation.composition) for each in working}

    def cost(self, operator: Operator, composition: Composition) -> float:
        """Return the core-seconds per record in `composition`; NaN if neither measured nor declared."""
        alternate = composition.alternate(operator)
        measured = self.costs.get(f"{operator.name}.{alternate.name}", (math.nan, math.nan))[0]
        if math.isnan(measured) and len(operator.alternates) == 1:
            measured = self.observation.operators.value(operator.name, Metric.SERVICE_TIME) * self._speed(operator.name)
        return measured if not math.isnan(measured) else math.nan if alternate.cost is None else alternate.cost

    def selectivity(self, operator: Operator, composition: Composition) -> float:
        """Return the selectivity in `composition`; 1 if neither measured nor declared."""
        alternate = composition.alternate(operator)
        measured = self.costs.get(f"{operator.name}.{alternate.name}", (math.nan, math.nan))[1]
        if len(operator.alternates) == 1 and (math.isnan(measured) or operator.window is not None):
            measured = self._over_time(operator)
        return measured if not math.isnan(measured) else 1.0 if alternate.selectivity is None else alternate.selectivity

    def _over_time(self, operator: Operator) -> float:
        """Return the selectivity over the newest samples. Windows emit all at once and nothing in between."""
        last = LONGER if operator.window is not None else SAMPLES
        sums = [
            float(np.nansum(self.observation.series(operator.name, metric, last)[1]))
            for metric in (Metric.EMITTED_RATE, Metric.PROCESSED_RATE)
        ]
        return sums[0] / sums[1] if sums[1] > 0 else math.nan

    def cores(self, composition: Composition) -> float:
        """Return the cores of speed 1 that `composition` needs; NaN if a rate is unknown.

        An alternate of unknown cost counts as free: it is measured as soon as it runs. An operator without alternates
        counts with its present busy cores.
        """
        working = [each for each in self._graph.operators if each.alternates]
        emitted = {each.name: self.selectivity(each, composition) for each in working}
        arriving = offered_rates(self._graph, self.rates, emitted, composition)
        total = math.fsum([arriving[name] * each for name, each in self.ends.items()])
        for operator in working:
            if operator.waits or arriving[operator.name] == 0:
                continue
            each = self.cost(operator, composition)
            if math.isnan(each):
                busy = self.observation.operators.value(operator.name, Metric.BUSY_CORES) * self._speed(operator.name)
                total += busy if len(operator.alternates) == 1 and not math.isnan(busy) else 0.0
            else:
                total += arriving[operator.name] * each
        return total
