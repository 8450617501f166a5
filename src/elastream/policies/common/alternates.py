"""What compositions are worth and what they work: relative values of alternates and branches, and cores at present rates.

Costs and selectivities are an alternate's own, as measured while it ran, else as declared.
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
from elastream.policies.common.measures import cycle, speeds_by_operator

SAMPLES = 3
"""Newest observations over which a rate is a mean: a single one may be that of a slow batch."""
LONGER = 40
"""As many over which what a window emits is one: as many as a simulated plant keeps."""

Costs: TypeAlias = Mapping[str, tuple[float, float]]
"""Last known (core-seconds of speed 1 per record, records out per record in) by `operator.alternate`; NaN where unknown."""


@dataclass(frozen=True)
class Choosable:
    """A dynamic element as it may be switched now.

    active: what the composition selects. options: relative value of each alternate or branch that may run, NaN where
    unknown; without `active` where that may not run. standing: what its guards say, None without guards.
    """

    name: str
    active: str
    options: Mapping[str, float]
    choice: bool = False
    standing: GuardDecision | None = None

    @property
    def must(self) -> bool:
        """Whether it cannot go on as it is."""
        return self.active not in self.options

    def value(self, option: str) -> float:
        """The value of `option`; -1 where it is unknown, so that any known one is higher."""
        value = self.options.get(option, math.nan)
        return -1.0 if math.isnan(value) else value

    @property
    def ranked(self) -> tuple[str, ...]:
        """The options, the highest value first; of equals the active one, then in their order."""
        return tuple(sorted(self.options, key=lambda option: (-self.value(option), option != self.active)))

    def switch(self, option: str, why: str) -> Switch:
        """The action that selects `option`."""
        return SwitchEdge(self.name, option, why) if self.choice else SwitchAlternate(self.name, option, why)


def elements(observation: Observation) -> Iterator[Choosable]:
    """Dynamic elements of which something may be switched: guarded ones with a non-empty allowed set, and unguarded ones.

    An operator whose keys choose by a table is left to it for as long as what runs for the other keys may run.
    """
    graph, composition = observation.context.graph, observation.composition
    for operator in graph.operators:
        if len(operator.alternates) > 1:
            values = {alternate.name: alternate.value for alternate in operator.alternates}
            found = _element(observation, operator.name, values, composition.alternate(operator).name, choice=False)
            if found is not None and (found.must or not composition.tables.get(operator.name)):
                yield found
    branches: dict[str, dict[str, float]] = {}
    for edge in graph.edges:
        if edge.choice is not None:
            branches.setdefault(edge.choice, {})[edge.target] = edge.value
    for choice, values in branches.items():
        active = composition.choices.get(choice, next(iter(values)))
        found = _element(observation, choice, values, active, choice=True)
        if found is not None:
            yield found


def _element(
    observation: Observation, name: str, declared: Mapping[str, float], active: str, *, choice: bool
) -> Choosable | None:
    standing = observation.standings.get(name)
    if standing is None:
        return Choosable(name, active, declared, choice)
    if not standing.allowed:
        return None
    return Choosable(
        name, active, {each: standing.values.get(each, math.nan) for each in standing.allowed}, choice, standing
    )


def selected(composition: Composition, element: Choosable, option: str) -> Composition:
    """`composition` with `option` of `element`."""
    if element.choice:
        return replace(composition, choices={**composition.choices, element.name: option})
    return replace(composition, alternates={**composition.alternates, element.name: option})


def under_way(observation: Observation, element: Choosable) -> bool:
    """Whether the element was switched, and no batch has been committed yet that ran so; False where that is not known."""
    if not observation.effective:
        return False
    effective = observation.effective.get(element.switch(element.active, "").segment(observation.context.layout))
    if effective is None:
        return False
    runs = effective.choices if element.choice else effective.alternates
    return runs.get(element.name, element.active) != element.active


class Worked:
    """What compositions work at the rates of an observation. before: costs known earlier, for what has not run lately."""

    def __init__(self, observation: Observation, before: Costs) -> None:
        self.observation = observation
        self.costs: dict[str, tuple[float, float]] = dict(before)
        self._graph: Graph = observation.context.graph
        frame, composition = observation.alternates, observation.composition
        for name in frame:
            operator, alternate = self._graph.by_alternate.get(name, (None, None))
            if operator is None or alternate is None:
                continue
            known = self.costs.get(name)
            runs = composition.alternate(operator) is alternate or composition.tables.get(operator.name, 0) > 0
            if known is not None and not runs:
                continue  # the figure is of when it ran, and of the speeds of then
            cost, emitted = frame.value(name, Metric.SERVICE_TIME), frame.value(name, Metric.SELECTIVITY)
            cost *= self._speed(operator.name)
            known = known or (math.nan, math.nan)
            self.costs[name] = (known[0] if math.isnan(cost) else cost, known[1] if math.isnan(emitted) else emitted)

    @cached_property
    def _speeds(self) -> Mapping[str, float]:
        """Speed of the cores on which each operator runs, where they are its own."""
        if not self.observation.context.layout.unchained:
            return {}
        return {name: mean for name, (mean, _) in speeds_by_operator(self.observation).items()}

    def _speed(self, name: str) -> float:
        """Speed of the cores on which an operator works: its figures are theirs, whatever their speed."""
        return self._speeds.get(name, self.observation.mean_speed)

    @cached_property
    def rates(self) -> Mapping[str, float]:
        """Records/s that arrive at each source, mean of the newest samples; NaN where unknown."""
        found = {}
        for source in self._graph.sources:
            _, rates = self.observation.series(source.name, Metric.ARRIVAL_RATE, SAMPLES)
            known = rates[~(rates != rates)]
            found[source.name] = float(known.mean()) if known.size else math.nan
        return found

    @cached_property
    def usable(self) -> float:
        """Cores of speed 1 of the hosts that take tasks."""
        return math.fsum([self.observation.capacities[host] for host in self.observation.usable])

    @cached_property
    def ends(self) -> Mapping[str, float]:
        """Core-seconds of speed 1 that each source and sink works on a record, which no alternate changes; 0 if unknown."""
        return {
            operator.name: self._beside(operator) / self._usual(operator.name, Metric.PROCESSED_RATE)
            for operator in self._graph.operators
            if operator.kind in (Kind.SOURCE, Kind.SINK) and self._beside(operator) > 0
        }

    @cached_property
    def overheads(self) -> Mapping[str, float]:
        """Cores of speed 1 that each other operator takes beside what its alternate works; 0 if unknown.

        Where tasks share cores: what the hosts use for an operator and its alternate's own figure has not. Most of it is of
        each micro-batch, whatever its records: a mean over one's time.
        """
        if self.observation.context.layout.unchained:
            return {}
        working = [each for each in self._graph.operators if each.alternates and not each.waits]
        return {operator.name: self._beside(operator) for operator in working}

    def _beside(self, operator: Operator) -> float:
        """Cores of speed 1 that an operator is busy with beside its alternate; 0 where unknown.

        Where a stage's figure is one for all its operators, that of its first, what the others work is not its own.
        """
        layout, composition = self.observation.context.layout, self.observation.composition
        frame = self.observation.operators
        busy, done = (self._usual(operator.name, each) for each in (Metric.BUSY_CORES, Metric.PROCESSED_RATE))
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
    def cycle(self) -> tuple[Frame, ...]:
        """The operators as they were seen during a micro-batch's time."""
        return cycle(self.observation)

    def _usual(self, operator: str, metric: Metric) -> float:
        """Mean of `metric` over a micro-batch's time; NaN where it is unknown now."""
        values = [frame.value(operator, metric) for frame in self.cycle]
        known = [value for value in values if not math.isnan(value)]
        return math.nan if math.isnan(values[-1]) else math.fsum(known) / len(known)

    @cached_property
    def _emitted(self) -> Mapping[str, float]:
        """Selectivity of each operator as it runs."""
        working = [each for each in self._graph.operators if each.alternates]
        return {each.name: self.selectivity(each, self.observation.composition) for each in working}

    def cost(self, operator: Operator, composition: Composition) -> float:
        """Core-seconds per record of what `composition` runs; NaN if neither measured nor declared."""
        alternate = composition.alternate(operator)
        known = self.costs.get(f"{operator.name}.{alternate.name}", (math.nan, math.nan))[0]
        if math.isnan(known) and len(operator.alternates) == 1:
            known = self.observation.operators.value(operator.name, Metric.SERVICE_TIME) * self._speed(operator.name)
        return known if not math.isnan(known) else math.nan if alternate.cost is None else alternate.cost

    def selectivity(self, operator: Operator, composition: Composition) -> float:
        """Records out per record in of what `composition` runs; 1 if neither measured nor declared."""
        alternate = composition.alternate(operator)
        known = self.costs.get(f"{operator.name}.{alternate.name}", (math.nan, math.nan))[1]
        if len(operator.alternates) == 1 and (math.isnan(known) or operator.window is not None):
            known = self._over_time(operator)
        return known if not math.isnan(known) else 1.0 if alternate.selectivity is None else alternate.selectivity

    def _over_time(self, operator: Operator) -> float:
        """Records out per record in over the newest samples: windows emit all at once, and nothing in between."""
        last = LONGER if operator.window is not None else SAMPLES
        sums = [
            float(np.nansum(self.observation.series(operator.name, metric, last)[1]))
            for metric in (Metric.EMITTED_RATE, Metric.PROCESSED_RATE)
        ]
        return sums[0] / sums[1] if sums[1] > 0 else math.nan

    def cores(self, composition: Composition) -> float:
        """Cores of speed 1 that `composition` works at these rates; NaN where these are unknown.

        An alternate of unknown cost counts as free, and an operator without alternates with what it works now: one is
        measured as soon as it runs, and of the other nothing else will be known.
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
