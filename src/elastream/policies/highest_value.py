"""Selection among alternates and branches by value.

From Kumbhare, "Adaptive and resilient stream processing on cloud infrastructure" (2016), 3.2.4 and 3.5.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastream.core.decision import Unknown
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Composition, Context, Observation
from elastream.core.plant import Plan, Policy, Prospect, as_policy
from elastream.errors import InputError
from elastream.policies.common.alternates import CompositionWork, Costs, DynamicElement, elements, is_under_way, with_option
from elastream.policies.common.provision import TARGET_UTILISATION

# Part of the usable cores up to which the running composition stays: the upper end of the band of Flink's autoscaler (0.7 +
# 0.3).
CARRIED = 1.0
# Consecutive rounds in which a small lead must hold; fewer are noise.
ROUNDS = 3
# Compositions whose work is computed in a round; the rest is left for the next.
MOST_TRIED = 200


@dataclass(frozen=True)
class HighestValue(Policy):
    """Run the alternates and branches of the highest relative value that the usable cores carry.

    Values are those of the guards, else declared. A composition is carried if its work at the present rates is at most
    `fill` of the usable cores; the running one up to all of them. If it needs more, the alternates that free most cores for
    the value lost go first. An option that may not run is left at once. A higher value is taken at once if its lead exceeds
    `gain`, else after `settle` seconds and three rounds, but not while records are late if it needs more work.

    Args:
        fill: Part of the usable cores (Flink's autoscaler: 0.7).
        gain: Lead in relative value.
        settle: Seconds; also the least time between two such switches.
        sizing: Policy for hosts and instances, such as `Threshold()`; both plan each round. None: these stay as they are.
    """

    fill: float = TARGET_UTILISATION
    gain: float = 0.05
    settle: float = 60.0
    sizing: Policy | None = None

    def __post_init__(self) -> None:
        if self.sizing is not None:
            object.__setattr__(self, "sizing", as_policy(self.sizing))
        if not 0 < self.fill <= CARRIED:
            raise InputError(f"fill is {self.fill:g}; it must be above 0 and at most {CARRIED:g}")
        if not 0 <= self.gain <= 1:
            raise InputError(f"gain is {self.gain:g}; it must be 0 to 1")
        if not 0 <= self.settle < math.inf:
            raise InputError(f"settle is {self.settle:g}; it must be 0 or more seconds")

    @property
    def name(self) -> str:
        return "highest_value" if self.sizing is None else f"highest_value + {self.sizing.name}"

    @property
    def default_window(self) -> bool:
        return self.sizing is not None and self.sizing.default_window

    @property
    def needs(self) -> Needs:
        own: Needs = frozenset({(Rows.OPERATOR, Metric.ARRIVAL_RATE)})
        return own if self.sizing is None else own | self.sizing.needs

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Plan switches, then hosts. The memory is a `ChoiceMemory` and that of the sizing policy."""
        before, sized = memory if isinstance(memory, tuple) else (ChoiceMemory(), None)
        rest = Plan() if self.sizing is None else self.sizing.plan(observation, sized)
        own = _Round(self, observation, before).plan()
        return replace(
            rest,
            actions=(*own.actions, *rest.actions),
            memory=(own.memory, rest.memory),
            unknown=(*own.unknown, *rest.unknown),
        )

    def unsupported_reason(self, context: Context) -> str | None:
        graph = context.graph
        if not graph.choices and all(len(operator.alternates) < 2 for operator in graph.operators):
            return "no operator has several alternates, and there is no choice: it has nothing to choose from"
        return None if self.sizing is None else self.sizing.unsupported_reason(context)

    def prepared(self, prospect: Prospect) -> "HighestValue":
        return self if self.sizing is None else replace(self, sizing=self.sizing.prepared(prospect))


@dataclass(frozen=True)
class ChoiceMemory:
    """Memory of the policy. `leads` by element: option of a higher value, time of its first round, number of rounds."""

    guards: int = 0
    costs: Costs = field(default_factory=dict)
    leads: Mapping[str, tuple[str, float, int]] = field(default_factory=dict)
    switched: Mapping[str, float] = field(default_factory=dict)


class _Round:
    def __init__(self, policy: HighestValue, observation: Observation, before: ChoiceMemory) -> None:
        self.policy, self.observation = policy, observation
        self.before = before if before.guards == observation.guards else ChoiceMemory(observation.guards, before.costs)
        self.load = CompositionWork(observation, before.costs)
        self.elements = {element.name: element for element in elements(observation)}
        self.composition = observation.composition
        self.work = math.nan
        self.tried = 0
        self.targets: dict[str, str] = {}
        self.why: dict[str, str] = {}
        self.leads: dict[str, tuple[str, float, int]] = {}

    def plan(self) -> Plan:
        better = [each for each in self.elements.values() if not each.must and _higher(each, each.active)]
        unknown = [name for name, rate in self.load.rates.items() if math.isnan(rate)]
        for element in self.elements.values():
            if element.must:
                self._leave(element)
        if not unknown and self.load.usable > 0 and self.elements:
            self.work = self._tried(self.composition)
            if self.work > CARRIED * self.load.usable:
                self._give_up()
                better = list(self.elements.values())
            self._raise(better)
        actions = tuple(
            self.elements[name].switch(option, self.why[name])
            for name, option in self.targets.items()
            if option != self.elements[name].active
        )
        time = self.observation.time
        followed = {name: time for name in self.leads if name in self.targets}
        after = replace(
            self.before,
            costs=self.load.costs,
            leads={name: lead for name, lead in self.leads.items() if name not in self.targets},
            switched={**self.before.switched, **followed},
        )
        return Plan(actions, after, unknown=self._lacking(unknown) if better else ())

    def _lacking(self, sources: list[str]) -> tuple[Unknown, ...]:
        frame = self.observation.operators
        return tuple(
            Unknown(Metric.ARRIVAL_RATE, Rows.OPERATOR, name, "cannot choose")
            for name in sources
            if math.isnan(frame.value(name, Metric.ARRIVAL_RATE))
        )

    def _tried(self, composition: Composition) -> float:
        self.tried += 1
        return self.load.cores(composition)

    def _select(self, element: DynamicElement, option: str, why: str) -> None:
        self.composition = with_option(self.composition, element, option)
        self.targets[element.name], self.why[element.name] = option, why

    def _leave(self, element: DynamicElement) -> None:
        """Replace an option that may not run: by the highest value carried, else by the least work."""
        most = self.policy.fill * self.load.usable if self.load.usable > 0 else math.inf
        works: dict[str, float] = {}
        carried: str | None = None
        for option in element.ranked:
            works[option] = work = self._tried(with_option(self.composition, element, option))
            if not work > most or self.tried >= MOST_TRIED:
                carried = option
                break
        option = min(works, key=works.__getitem__) if carried is None else carried
        value_text = f"value {max(0.0, element.value(option)):.3g}"
        if carried is None:
            value_text = f"it works least: {works[option]:.3g} of {self.load.usable:.3g} cores"
        refused = "" if element.standing is None else element.standing.refusal(element.active)
        self._select(element, option, f"{refused or f'{element.active} may not run'}; {option}: {value_text}")

    def _give_up(self) -> None:
        needed, most = self.work, self.policy.fill * self.load.usable
        why = f"{needed:.3g} cores are needed with {{}}, and {self.load.usable:.3g} are usable"
        while self.work > most and self.tried < MOST_TRIED:
            best: tuple[float, float, DynamicElement, str] | None = None
            for element in self.elements.values():
                runs = self._runs(element)
                for option in element.options:
                    if option == runs or self.tried >= MOST_TRIED:
                        continue
                    saved = self.work - self._tried(with_option(self.composition, element, option))
                    lost = max(0.0, element.value(runs) - element.value(option))
                    if saved > 0 and (best is None or (lost / saved, -saved) < best[:2]):
                        best = (lost / saved, -saved, element, option)
            if best is None:
                break
            _, freed, element, option = best
            self._select(element, option, self.why.get(element.name, why.format(element.active)))
            self.work += freed

    def _raise(self, among: list[DynamicElement]) -> None:
        for element in sorted(among, key=lambda each: each.value(self._runs(each)) - each.value(each.ranked[0])):
            for option in _higher(element, self._runs(element)):
                if self.tried >= MOST_TRIED:
                    return
                changed = with_option(self.composition, element, option)
                work = self._tried(changed)
                if work <= self.policy.fill * self.load.usable:
                    if element.name in self.targets:  # it is switched in any case
                        self._select(element, option, self.why[element.name])
                        self.work = work
                    elif self._leads(element, option, more=not work <= self.work):
                        self._select(element, option, self._reason(element, option, work))
                        self.work = work
                    break

    def _runs(self, element: DynamicElement) -> str:
        return self.targets.get(element.name, element.active)

    def _leads(self, element: DynamicElement, option: str, *, more: bool) -> bool:
        time, policy, name = self.observation.time, self.policy, element.name
        last, since, rounds = self.before.leads.get(name, (option, time, 0))
        if last != option:
            since, rounds = time, 0
        self.leads[name] = (option, since, rounds + 1)
        if (
            (more and self.observation.late)
            or is_under_way(self.observation, element)
            or time < self.before.switched.get(name, -math.inf) + policy.settle
        ):
            return False
        lead = element.value(option) - max(0.0, element.value(element.active))
        return lead > policy.gain or (time - since >= policy.settle and rounds + 1 >= ROUNDS)

    def _reason(self, element: DynamicElement, option: str, work: float) -> str:
        values = f"{element.value(option):.3g} instead of {max(0.0, element.value(element.active)):.3g}"
        sentence = f"value {values}; {work:.3g} of {self.load.usable:.3g} cores"
        operator = None if element.choice else self.observation.context.graph.by_name[element.name]
        if operator is not None and math.isnan(self.load.cost(operator, with_option(self.composition, element, option))):
            sentence += f", and the cost of {option} is unknown until it runs"
        return sentence


def _higher(element: DynamicElement, than: str) -> tuple[str, ...]:
    return tuple(option for option in element.ranked if element.value(option) > element.value(than))
