"""Common part of the rivals: a number for each group, and the actions towards it. Hosts go when their paid time ends."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost
from elastream.core.decision import Unknown
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.wording import counted
from elastream.errors import ElastreamError
from elastream.policies.common import unchained
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import (
    TICK,
    cheapest_type,
    due_back,
    emptied,
    missing_metrics,
    missing_type_reason,
    tasks_on,
    types_to_lease,
)
from elastream.policies.common.placement import balance
from elastream.policies.rivals.groups import HOSTS, Group, Window, groups_of
from elastream.policies.static import filling

# Seconds between the first two rounds.
FIRST_PACE_S = 2.0
# Metrics of each rival; some need the backlog, too.
RATES: Needs = frozenset((Rows.OPERATOR, each) for each in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE, Metric.BUSY_CORES))
RATES_AND_BACKLOG: Needs = RATES | {(Rows.OPERATOR, Metric.BACKLOG)}


class Target(NamedTuple):
    """Decision of a rival about a group.

    Attributes:
        number: Hosts or instances to have; None: the number decided before.
    """

    number: int | None
    memory: object = None
    why: str = ""


@dataclass(frozen=True, eq=False)
class State:
    window: Window | None = None
    time: float = math.nan
    decided: float = -math.inf
    targets: Mapping[str, Target] = field(default_factory=dict)


@dataclass(frozen=True)
class Rival(Policy):
    """Policy that decides a number for each `Group`, and keeps to it until it decides again.

    Raises:
        ElastreamError: A parameter is outside its range.
    """

    host_type: str | None = None

    needs: ClassVar[Needs] = RATES
    # Parameters that are a part of a whole.
    shares: ClassVar[frozenset[str]] = frozenset()
    may_be_zero: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float):
                zero, most = name in self.may_be_zero, 1 if name in self.shares else math.inf
                if not 0 <= value <= most or value == math.inf or (value == 0 and not zero):
                    least = "0 or more" if zero else "above 0"
                    limit = "at most 1" if name in self.shares else "finite"
                    raise ElastreamError(f"{name} is {value:g}; it must be {least}, and {limit}")

    def unsupported_reason(self, context: Context) -> str | None:
        return missing_type_reason(context, self.host_type)

    @property
    @abstractmethod
    def timing(self) -> tuple[float, float]:
        """Seconds that its figures cover, and seconds between decisions."""

    @abstractmethod
    def target(self, group: Group, memory: object, observation: Observation) -> Target:
        """Return the number for `group`, whose figures are all known."""

    def tasks(self, observation: Observation) -> list[Action]:
        """Return changes of chained tasks: one for each slot."""
        return filling(observation)

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Decide if it is time, then act towards the targets. The memory is a `State`."""
        state = memory if isinstance(memory, State) else State()
        (covers, every), now = self.timing, observation.time
        window = Window.after(state.window, observation, covers)
        if not observation.context.graph.sources:
            return Plan(memory=State(window, now))
        groups = groups_of(observation, window)
        targets, unknown, decided = dict(state.targets), list[Unknown](), state.decided
        if now - decided >= every - TICK:
            for group in groups:
                if missing := group.unknown(metric for _, metric in self.needs):
                    unknown += _unknown(observation, group, missing)
                    continue
                before = targets.get(group.name, Target(None))
                made = self.target(group, before.memory, observation)
                targets[group.name] = before._replace(memory=made.memory) if made.number is None else made
            decided = decided if unknown else now
        actions = self._actions(observation, groups, targets, now - state.time if now > state.time else FIRST_PACE_S)
        number = targets.get(HOSTS, Target(None)).number
        recommended = None if number is None else float(number)
        return Plan(tuple(actions), State(window, now, decided, targets), unknown=tuple(unknown), hosts=recommended)

    def _actions(
        self, observation: Observation, groups: list[Group], targets: Mapping[str, Target], pace: float
    ) -> list[Action]:
        kind = cheapest_type(observation.context, self.host_type)
        if observation.context.layout.unchained:
            decided = {each.name: targets[each.name] for each in groups if each.name in targets}
            return instance_actions(observation, decided, kind, pace)
        actions = host_actions(observation, targets.get(HOSTS, Target(None)), kind, pace)
        drains = any(isinstance(action, DrainHost) for action in actions)
        return [*actions, *self.tasks(observation), *([] if drains else balance(observation))]


class ChainedRival(Rival):
    """Rival whose measure exists for micro-batches only."""

    def unsupported_reason(self, context: Context) -> str | None:
        if context.layout.unchained:
            return "it measures the tasks of micro-batches, and operators with queues of their own have none: use --fused"
        return super().unsupported_reason(context)


def host_actions(observation: Observation, target: Target, kind: HostType, pace: float) -> list[Action]:
    """Return actions towards `target` hosts: cancelled drains, leases, withdrawn requests, drains, and releases.

    Args:
        pace: Seconds until the next round.
    """
    context, usable, coming = observation.context, observation.usable, observation.coming
    host_count = len(usable) + len(coming)
    number = min(max(host_count if target.number is None else target.number, context.min_hosts, 1), context.max_hosts)
    cancelled = observation.recoverable[: max(0, number - host_count)]
    why = target.why or f"at least {counted(context.min_hosts, 'host')}"
    missing = min(number - host_count - len(cancelled), context.max_hosts - len(observation.leases))
    actions: list[Action] = [CancelDrain(host, why=why) for host in cancelled]
    for n, each in enumerate(types_to_lease(observation, kind, missing)):
        actions.append(LeaseHost(observation.host_name(n), each.name, each.region, why=why))
    actions += [action for action in emptied(observation) if action.host not in cancelled]
    surplus = host_count - number
    withdrawn = observation.waiting[::-1][: max(0, surplus)]
    actions += [ReleaseHost(host, why=why) for host in withdrawn]
    leases, now = observation.leases, observation.time
    due = [host for host in usable if due_back(leases[host], now, pace, pace)]
    due.sort(key=lambda host: (tasks_on(observation, host), leases[host].remaining(now), -usable.index(host)))
    drains = min(surplus - len(withdrawn), len(usable) - number)  # hosts that start carry nothing yet
    return actions + [DrainHost(host, why=why) for host in due[: max(0, drains)]]


def instance_actions(observation: Observation, targets: Mapping[str, Target], kind: HostType, pace: float) -> list[Action]:
    """Return actions towards `targets` by operator; a host goes when the instances fit on the others."""
    units = [unit for unit in observation.context.units if unit.scalable]
    draft = Draft(observation)
    counts = {name: max(1, target.number) for name, target in targets.items() if target.number is not None}
    surplus = {name: max(0, draft.instances[name] - count) for name, count in counts.items()}
    releases: list[Action] = [*emptied(observation)]
    if unchained.may_enlarge(observation, counts, draft.instances, 0):
        why = {name: target.why for name, target in targets.items()}
        unchained.enlarge(draft, counts, surplus, why, kind.name, 0)
    elif not observation.coming and unchained.may_reduce(observation, units, draft.instances, surplus, pace):
        releases += unchained.reduce(draft, surplus, pace, 0)
    return [*draft.plan, *releases]


def _unknown(observation: Observation, group: Group, missing: tuple[Metric, ...]) -> list[Unknown]:
    if group.name != HOSTS:
        return [Unknown(metric, Rows.OPERATOR, group.name) for metric in missing]
    return [*missing_metrics(observation)] or [Unknown(metric, Rows.OPERATOR) for metric in missing]
