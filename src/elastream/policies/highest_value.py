"""Chooses among alternates and branches: of what their guards allow, the highest value that the usable cores carry.

From "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), 3.2.4 and 3.5: value-based guards
leave the choice to the system, which is to maximise the value obtained under the resources there are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastream.core.decision import Unknown
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Composition, Context, Observation
from elastream.core.plant import Plan, Policy, as_policy
from elastream.core.prospect import Prospect
from elastream.errors import InputError
from elastream.policies.common.alternates import Choosable, Costs, Worked, elements, selected, under_way
from elastream.policies.common.provision import TARGET_UTILISATION

CARRIED = 1.0
"""Part of the usable cores up to which what runs goes on: the upper end of the band around the target of Flink's autoscaler
(`job.autoscaler.target.utilization` 0.7, `job.autoscaler.target.utilization.boundary` 0.3)."""
ROUNDS = 3
"""Rounds in a row in which a small lead must have stood: fewer are noise."""
MOST_TRIED = 200
"""Compositions whose work is computed in a round: what is left is for the next."""


@dataclass(frozen=True)
class HighestValue(Policy):
    """Of the allowed alternates and branches, run those of the highest relative value that the usable cores carry.

    **Values** are those of the guards, else declared ones; an element without guards may run all that it has. Where nothing
    is allowed, or what is allowed is unknown, what runs stays.

    **Cores.** A composition is carried if its work at the present rates (the alternates' own costs and selectivities, as
    measured, else declared) is at most `fill` of the usable cores. An alternate whose cost is neither is taken to be
    carried until it has run. What runs already goes on up to all usable cores. Beyond that, alternates are given up,
    those first that free most cores for the value lost; then the highest values that fit are taken. Where not even the
    cheapest fit, these run.

    **Rest.** What may not run, or is not carried, is left at once. For a higher value alone an element is switched at once
    where the lead is above `gain`, else when it has stood for `settle` seconds and three rounds; and not again within
    `settle` seconds, unless new guards came, nor while its last switch is under way, nor for one that works more while
    records are late: cores that the rate leaves are for those that wait. Of equal values what runs stays.

    With `sizing`, a policy for hosts and instances, both plan each round: the usable cores are those of its hosts, and it
    sizes for what runs.

    fill: part of the usable cores (Flink's autoscaler: 0.7). gain: lead in relative value. settle: seconds. sizing: such as
    `Threshold()`; None: hosts and instances stay as they are.
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
        """Both names where there are two."""
        return "highest_value" if self.sizing is None else f"highest_value + {self.sizing.name}"

    @property
    def default_window(self) -> bool:
        """That of the sizing."""
        return self.sizing is not None and self.sizing.default_window

    @property
    def needs(self) -> Needs:
        """Arrival rates, and what the sizing needs."""
        own: Needs = frozenset({(Rows.OPERATOR, Metric.ARRIVAL_RATE)})
        return own if self.sizing is None else own | self.sizing.needs

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Switches, then what the sizing plans. memory: a `Chosen` and the memory of the sizing."""
        before, sized = memory if isinstance(memory, tuple) else (Chosen(), None)
        rest = Plan() if self.sizing is None else self.sizing.plan(observation, sized)
        own = _Round(self, observation, before).plan()
        return replace(
            rest,
            actions=(*own.actions, *rest.actions),
            memory=(own.memory, rest.memory),
            unknown=(*own.unknown, *rest.unknown),
        )

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why it can do nothing, or None."""
        graph = context.graph
        if not graph.choices and all(len(operator.alternates) < 2 for operator in graph.operators):
            return "no operator has several alternates, and there is no choice: it has nothing to choose from"
        return None if self.sizing is None else self.sizing.unsupported_reason(context)

    def prepared(self, prospect: Prospect) -> "HighestValue":
        """With its sizing prepared."""
        return self if self.sizing is None else replace(self, sizing=self.sizing.prepared(prospect))


@dataclass(frozen=True)
class Chosen:
    """What the policy remembers of a run. guards: version that was in force. costs: known of alternates.

    leads: by element the option of a higher value, since when and for how many rounds. switched: when it was last switched
    for a higher value.
    """

    guards: int = 0
    costs: Costs = field(default_factory=dict)
    leads: Mapping[str, tuple[str, float, int]] = field(default_factory=dict)
    switched: Mapping[str, float] = field(default_factory=dict)


class _Round:
    """One planning round. wanted: options that are to run in place of others; why: by element."""

    def __init__(self, policy: HighestValue, observation: Observation, before: Chosen) -> None:
        self.policy, self.observation = policy, observation
        self.before = before if before.guards == observation.guards else Chosen(observation.guards, before.costs)
        self.load = Worked(observation, before.costs)
        self.elements = {element.name: element for element in elements(observation)}
        self.composition = observation.composition
        self.work = math.nan
        self.tried = 0
        self.wanted: dict[str, str] = {}
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
            for name, option in self.wanted.items()
            if option != self.elements[name].active
        )
        time = self.observation.time
        followed = {name: time for name in self.leads if name in self.wanted}
        after = replace(
            self.before,
            costs=self.load.costs,
            leads={name: lead for name, lead in self.leads.items() if name not in self.wanted},
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

    def _select(self, element: Choosable, option: str, why: str) -> None:
        self.composition = selected(self.composition, element, option)
        self.wanted[element.name], self.why[element.name] = option, why

    def _leave(self, element: Choosable) -> None:
        """Select what is carried of the highest value, else what works least, for what may not run any more."""
        most = self.policy.fill * self.load.usable if self.load.usable > 0 else math.inf
        works: dict[str, float] = {}
        carried: str | None = None
        for option in element.ranked:
            works[option] = work = self._tried(selected(self.composition, element, option))
            if not work > most or self.tried >= MOST_TRIED:
                carried = option
                break
        option = min(works, key=works.__getitem__) if carried is None else carried
        said = f"value {max(0.0, element.value(option)):.3g}"
        if carried is None:
            said = f"it works least: {works[option]:.3g} of {self.load.usable:.3g} cores"
        refused = "" if element.standing is None else element.standing.refusal(element.active)
        self._select(element, option, f"{refused or f'{element.active} may not run'}; {option}: {said}")

    def _give_up(self) -> None:
        """Select what frees most cores for the value that it costs, until the rest fills no more than it may."""
        needed, most = self.work, self.policy.fill * self.load.usable
        why = f"{needed:.3g} cores are needed with {{}}, and {self.load.usable:.3g} are usable"
        while self.work > most and self.tried < MOST_TRIED:
            found: tuple[float, float, Choosable, str] | None = None
            for element in self.elements.values():
                runs = self._runs(element)
                for option in element.options:
                    if option == runs or self.tried >= MOST_TRIED:
                        continue
                    saved = self.work - self._tried(selected(self.composition, element, option))
                    lost = max(0.0, element.value(runs) - element.value(option))
                    if saved > 0 and (found is None or (lost / saved, -saved) < found[:2]):
                        found = (lost / saved, -saved, element, option)
            if found is None:
                break
            _, freed, element, option = found
            self._select(element, option, self.why.get(element.name, why.format(element.active)))
            self.work += freed

    def _raise(self, among: list[Choosable]) -> None:
        """Select higher values that are carried, the greatest gains first."""
        for element in sorted(among, key=lambda each: each.value(self._runs(each)) - each.value(each.ranked[0])):
            for option in _higher(element, self._runs(element)):
                if self.tried >= MOST_TRIED:
                    return
                changed = selected(self.composition, element, option)
                work = self._tried(changed)
                if work <= self.policy.fill * self.load.usable:
                    if element.name in self.wanted:  # it is switched in any case
                        self._select(element, option, self.why[element.name])
                        self.work = work
                    elif self._leads(element, option, more=not work <= self.work):
                        self._select(element, option, self._said(element, option, work))
                        self.work = work
                    break

    def _runs(self, element: Choosable) -> str:
        return self.wanted.get(element.name, element.active)

    def _leads(self, element: Choosable, option: str, *, more: bool) -> bool:
        """Note the lead of `option`; whether it is to be followed now. more: whether it works more than what runs."""
        time, policy, name = self.observation.time, self.policy, element.name
        last, since, rounds = self.before.leads.get(name, (option, time, 0))
        if last != option:
            since, rounds = time, 0
        self.leads[name] = (option, since, rounds + 1)
        if (
            (more and self.observation.late)
            or under_way(self.observation, element)
            or time < self.before.switched.get(name, -math.inf) + policy.settle
        ):
            return False
        lead = element.value(option) - max(0.0, element.value(element.active))
        return lead > policy.gain or (time - since >= policy.settle and rounds + 1 >= ROUNDS)

    def _said(self, element: Choosable, option: str, work: float) -> str:
        values = f"{element.value(option):.3g} instead of {max(0.0, element.value(element.active)):.3g}"
        said = f"value {values}; {work:.3g} of {self.load.usable:.3g} cores"
        operator = None if element.choice else self.observation.context.graph.by_name[element.name]
        if operator is not None and math.isnan(self.load.cost(operator, selected(self.composition, element, option))):
            said += f", and the cost of {option} is unknown until it runs"
        return said


def _higher(element: Choosable, than: str) -> tuple[str, ...]:
    """Options of a value above that of `than`, the highest first."""
    return tuple(option for option in element.ranked if element.value(option) > element.value(than))
