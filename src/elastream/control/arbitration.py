"""Decides which of the proposed actions are applied: E2DF's application and infrastructure managers.

Pure. Proposals are checked in the order given, so earlier proposers have precedence: the policy before local
proposers (E2DF, section 3: higher levels steer), both before what an earlier controller left undone.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace

from elastream.control.progress import parallelism, wanted
from elastream.control.scaling import ScalingLimits
from elastream.core.action import (
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    ReleaseHost,
    RenewHost,
    SetKeyTable,
    SetParallelism,
    SetTokens,
    SwitchAlternate,
    SwitchEdge,
    TaskId,
    describe,
)
from elastream.core.composition import refusal
from elastream.core.decision import Proposal
from elastream.core.hosts import HostState
from elastream.core.observation import Observation
from elastream.core.plant import Plan
from elastream.core.ring import tokens_refusal
from elastream.core.wording import at_most, counted
from elastream.units import format_duration

LEAST, TIMES = 4, 20
"""Hosts that a round may add at least, and how many times as many as before it there may be at most.

Four, as in HPA's default for scaling up. Twenty, as the default policy is to answer a tenfold burst in one round, with what
waits until hosts come. HPA doubles in 15 s: bounded so, 95.1 % of its records were in time instead of 97.0 %, and
with ten times 96.3 % (benchmarks/promise.py --quick, operators apart).
"""
COMPATIBLE = frozenset({(DrainHost, ReleaseHost), (CancelDrain, RenewHost), (RenewHost, CancelDrain)})
"""Pairs of actions on one host that may stand in one plan, in this order."""


def arbitrate(
    proposals: Iterable[Proposal],
    observation: Observation,
    under_way: Collection[Action] = (),
    first: bool = False,
    limits: ScalingLimits | None = None,
) -> tuple[Proposal, ...]:
    """The same proposals in the same order, `refused` filled in where one may not be tried.

    Refused is what the plant cannot do, what names a thing that is not there, a switch outside the allowed set of its
    guards, what is in force or under way already, what is repeated in the plan or contradicts an earlier part of it,
    taking a working host away while a batch hangs, what would leave more than `max_hosts` leased or fewer than
    `min_hosts` working, more hosts at once than TIMES as many as there are, and what the user's rules do not allow: the
    refusal begins with the rule's name. under_way: actions accepted earlier and not in force yet. first: whether it is a
    run's first round, which is not bounded so: it deploys. limits: what the user's rules come to in this round.
    """
    growth = math.inf if first else max(LEAST, (TIMES - 1) * len(observation.leases))
    plan = _Plan(observation, under_way, growth, limits or ScalingLimits())
    answered = []
    for proposal in proposals:
        refused = proposal.refused or next((reason for rule in RULES if (reason := rule(proposal.action, plan))), "")
        if not refused:
            plan.grant(proposal.action)
        answered.append(replace(proposal, refused=refused))
    return tuple(answered)


def subject(action: Action) -> tuple[Hashable, ...]:
    """What an action is about: two different actions about one subject contradict each other."""
    match action:
        case SwitchAlternate(operator):
            return ("alternate", operator)
        case SwitchEdge(choice):
            return ("choice", choice)
        case SetKeyTable(operator):
            return ("key table", operator)
        case SetParallelism(operator):
            return ("parallelism", operator)
        case SetTokens(operator):
            return ("ring", operator)
        case MoveTask(task):
            return ("task", task)
        case LeaseHost(host) | RenewHost(host) | DrainHost(host) | CancelDrain(host) | ReleaseHost(host):
            return ("host", host)


class _Plan:
    """The part of a plan granted so far, and what it is granted against; kept by what later parts may contradict."""

    def __init__(
        self, observation: Observation, under_way: Collection[Action], growth: float, limits: ScalingLimits
    ) -> None:
        self.observation, self.growth, self.limits = observation, growth, limits
        self.under_way = frozenset(under_way)
        self.granted: dict[Action, int] = {}
        self._about: dict[tuple[Hashable, ...], list[Action]] = {}
        self._onto: dict[str, Action] = {}
        self._of_task: dict[TaskId, list[Action]] = {}
        self._ringed: dict[str, Action] = {}
        self._moved: dict[str, Action] = {}
        self._leaving: set[str] = set()
        self._released: set[str] = set()
        self.leased: set[str] = set()

    def grant(self, action: Action) -> None:
        """Make `action` part of the plan."""
        self.granted[action] = len(self.granted)
        self._about.setdefault(subject(action), []).append(action)
        match action:
            case MoveTask(task, host):
                self._onto.setdefault(host, action)
                self._of_task.setdefault(task, []).append(action)
                self._moved.setdefault(task.operator, action)
            case SetTokens(operator, tokens):
                self._ringed.setdefault(operator, action)
                for host, _ in tokens:
                    self._onto.setdefault(host, action)
            case SetParallelism(on=hosts, without=tasks):
                for host in hosts:
                    self._onto.setdefault(host, action)
                for task in tasks:
                    self._of_task.setdefault(task, []).append(action)
            case LeaseHost(host):
                self.leased.add(host)
            case DrainHost(host):
                self._leaving.add(host)
            case ReleaseHost(host):
                self._leaving.add(host)
                self._released.add(host)

    def contradicting(self, action: Action) -> Action | None:
        """The first action granted that `action` contradicts; None if there is none."""
        found = [other for other in self._about.get(subject(action), ()) if (type(other), type(action)) not in COMPATIBLE]
        match action:
            case DrainHost(host) | ReleaseHost(host) if host in self._onto:
                found.append(self._onto[host])
            case MoveTask(task):
                found += [other for other in self._of_task.get(task, ()) if isinstance(other, SetParallelism)]
                found += [self._ringed[task.operator]] if task.operator in self._ringed else []
            case SetTokens(operator) if operator in self._moved:
                found.append(self._moved[operator])
            case SetParallelism(without=tasks):
                others = (other for task in tasks for other in self._of_task.get(task, ()))
                found += [other for other in others if isinstance(other, MoveTask)]
        return min(found, key=self.granted.__getitem__, default=None)

    def state(self, host: str) -> HostState | None:
        lease = self.observation.leases.get(host)
        return lease.state if lease else None

    def takes_tasks(self, host: str) -> bool:
        """Whether `host` will take tasks once the plan is done."""
        running = self.state(host) is HostState.RUNNING
        return host not in self._leaving and (running or CancelDrain(host) in self.granted)

    def will_take_tasks(self, host: str) -> bool:
        """The same, or `host` is on its way up."""
        coming = self.state(host) in (HostState.REQUESTED, HostState.STARTING)
        return self.takes_tasks(host) or ((coming or host in self.leased) and host not in self._released)


def _cannot(action: Action, plan: _Plan) -> str:
    kind = type(action).__name__
    return "" if kind in plan.observation.context.capabilities else f"this plant has no {kind}"


def _unknown(action: Action, plan: _Plan) -> str:
    context, leases = plan.observation.context, plan.observation.leases
    operators = context.graph.by_name
    match action:
        case SwitchAlternate() | SwitchEdge() | SetKeyTable():
            return refusal(context.graph, action)
        case SetParallelism(operator):
            if operator not in operators:
                return f"there is no operator {operator}"
            if operator not in context.scalable:
                return f"the parallelism of {operator} cannot be changed"
        case MoveTask(task) if task.operator not in operators:
            return f"there is no operator {task.operator}"
        case SetTokens(operator):
            return tokens_refusal(action, context.partitions)
        case LeaseHost(_, kind) if kind not in context.host_types:
            return f"there is no host type {kind}"
        case RenewHost(host) | DrainHost(host) | CancelDrain(host) | ReleaseHost(host) if host not in leases:
            return f"host {host} is not leased"
    return ""


def _not_allowed(action: Action, plan: _Plan) -> str:
    standings = plan.observation.standings
    match action:
        case SwitchAlternate(element, target) | SwitchEdge(element, target) if element in standings:
            return standings[element].refusal(target)
        case SetKeyTable(element) if element in standings and not standings[element].allowed:
            return standings[element].why
    return ""


def _repeated(action: Action, plan: _Plan) -> str:
    if action in plan.granted:
        return "the plan has it already"
    return "it is under way already" if action in plan.under_way else ""


def _contradicted(action: Action, plan: _Plan) -> str:
    other = plan.contradicting(action)
    return "" if other is None else f"it contradicts '{describe(other)}'"


def _senseless(action: Action, plan: _Plan) -> str:
    match action:
        case SwitchAlternate() | SetKeyTable():
            return "it runs so already" if wanted(action, plan.observation) else ""
        case SwitchEdge():
            return "it is sent there already" if wanted(action, plan.observation) else ""
        case SetParallelism(operator, instances):
            if instances < 1:
                return f"{instances} instances: an operator needs at least one"
            if parallelism(plan.observation, operator) == instances and not action.on and not action.without:
                return "it has that parallelism already"
            gone = [host for host in action.on if not plan.will_take_tasks(host)]
            return f"host {gone[0]} takes no tasks" if gone else ""
        case MoveTask(_, host):
            return "" if plan.takes_tasks(host) else f"host {host} takes no tasks"
        case SetTokens(operator, tokens):
            if operator in plan.observation.rings and plan.observation.rings[operator].tokens == dict(tokens):
                return "it has those tokens already"
            gone = [host for host, _ in tokens if not plan.takes_tasks(host)]
            return f"host {gone[0]} takes no tasks" if gone else ""
        case LeaseHost(host):
            return f"host {host} is leased already" if host in plan.observation.leases else ""
        case DrainHost(host):
            return _unless(plan, host, HostState.RUNNING)
        case CancelDrain(host):
            return _unless(plan, host, HostState.DRAINING)
        case ReleaseHost(host):
            return f"host {host} is on its way out" if plan.state(host) is HostState.RELEASING else ""
        case RenewHost():
            return ""


def _unless(plan: _Plan, host: str, wanted: HostState) -> str:
    state = plan.state(host)
    return "" if state is wanted else f"host {host} is {state}, not {wanted}"


def _unproven(action: Action, plan: _Plan) -> str:
    """Nothing is taken away while nothing gets on: tasks of a batch that hangs have not reported what they take."""
    working = isinstance(action, DrainHost | ReleaseHost) and plan.state(action.host) is HostState.RUNNING
    for query, seconds in plan.observation.stalled.items() if working else ():
        so_far = format_duration(round(seconds))
        return f"no batch of {query!r} has ended for {so_far}: what its hosts are needed for is unknown"
    return ""


def bound(observation: Observation, plan: Plan) -> str:
    """That no more hosts may be leased while records are late; empty where that is not so, and where `plan` says or does
    anything about it: what a policy that keeps to the bound leaves unsaid is said for it."""
    context = observation.context
    if "LeaseHost" not in context.capabilities or len(observation.usable) < context.max_hosts:
        return ""  # what still comes may suffice, and what leaves is given back
    late = unanswered(observation, plan)
    return f"{at_most(context.max_hosts)}, and {late}" if late else ""


def unanswered(observation: Observation, plan: Plan) -> str:
    """That records are late and wait; empty where that is not so, and where `plan` says or does anything about it."""
    proposed = (*plan.actions, *(each.action for each in plan.refused))
    if plan.remarks or plan.unknown or not all(isinstance(each, MoveTask | RenewHost) for each in proposed):
        return ""
    target, latency = observation.context.target_latency, observation.latency().value
    if not observation.late or target is None or latency is None:
        return ""
    return f"records take {format_duration(latency)}, and {format_duration(target)} is the target"


def _out_of_bounds(action: Action, plan: _Plan) -> str:
    observation, context = plan.observation, plan.observation.context
    match action:
        case LeaseHost():
            if len(plan.leased) >= plan.growth:
                return (
                    f"at most {counted(int(plan.growth), 'host')} may be added in one round, to {len(observation.leases)}"
                )
            leased = len(observation.leases) + len(plan.leased)
            return at_most(context.max_hosts) if leased >= context.max_hosts else ""
        case DrainHost(host) | ReleaseHost(host):
            # A working host may only go while enough others work; one that is coming may also lean on others coming.
            if plan.state(host) is HostState.DRAINING or DrainHost(host) in plan.granted:
                return ""
            others = {other for other in observation.leases if other != host}
            works = plan.takes_tasks if plan.state(host) is HostState.RUNNING else plan.will_take_tasks
            left = sum(works(other) for other in others)
            least = f"min_hosts: at least {counted(context.min_hosts, 'host')} must stay"
            return least if left < context.min_hosts else ""
    return ""


def _limited(action: Action, plan: _Plan) -> str:
    return plan.limits.refusal(action, plan.observation, tuple(plan.granted)) if plan.limits.rules.set else ""


RULES: Sequence[Callable[[Action, _Plan], str]] = (
    _cannot,
    _unknown,
    _not_allowed,
    _repeated,
    _contradicted,
    _senseless,
    _unproven,
    _out_of_bounds,
    _limited,
)
