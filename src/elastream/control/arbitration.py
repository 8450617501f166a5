"""Decides which of the proposed actions are applied: E2DF's application and infrastructure managers.

`checked` tests that a plan is well formed, `BackOff` refuses actions that failed recently, and `arbitrate` checks the
proposals against the observation. It is pure. Earlier proposers have precedence: the policy before local proposers (E2DF,
section 3: higher levels steer), both before what an earlier controller left undone.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from elastream.control.scaling import ScalingLimits
from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost, malformed
from elastream.core.decision import Proposal, Unknown
from elastream.core.hosts import HostState
from elastream.core.observation import Observation
from elastream.core.plant import Plan
from elastream.core.wording import at_most, counted
from elastream.units import format_duration

LEAST, TIMES = 4, 20
"""Hosts that a round may add at least, and how many times as many as before it there may be at most.

Four, as in HPA's default for scaling up. Twenty, as the default policy is to answer a tenfold burst in one round, with what
waits until hosts come. HPA doubles in 15 s: bounded so, 95.1 % of its records were in time instead of 97.0 %, and
with ten times 96.3 % (benchmarks/promise.py --quick, operators apart).
"""


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


class _Plan:
    """The part of a plan granted so far, and the state that it is granted against."""

    def __init__(
        self, observation: Observation, under_way: Collection[Action], growth: float, limits: ScalingLimits
    ) -> None:
        self.observation, self.growth, self.limits = observation, growth, limits
        self.under_way = frozenset(under_way)
        self.granted: dict[Action, int] = {}
        self._by_key: dict[Hashable, list[Action]] = {}
        self._leaving: set[str] = set()
        self._released: set[str] = set()
        self.leased: set[str] = set()

    def grant(self, action: Action) -> None:
        """Make `action` part of the plan."""
        self.granted[action] = len(self.granted)
        for key in (action.subject, *action.claims(), *(("onto", host) for host in action.onto)):
            self._by_key.setdefault(key, []).append(action)
        match action:
            case LeaseHost(host):
                self.leased.add(host)
            case DrainHost(host):
                self._leaving.add(host)
            case ReleaseHost(host):
                self._leaving.add(host)
                self._released.add(host)

    def contradicted_by(self, action: Action) -> Action | None:
        """Return the first granted action that `action` contradicts; None if there is none."""
        same = (other for other in self._by_key.get(action.subject, ()) if other.kind not in action.follows)
        others = (other for key in action.contradicts() for other in self._by_key.get(key, ()))
        return min((*same, *others), key=self.granted.__getitem__, default=None)

    def state(self, host: str) -> HostState | None:
        lease = self.observation.leases.get(host)
        return lease.state if lease else None

    def takes_tasks(self, host: str) -> bool:
        """Return True if `host` will take tasks once the plan is done."""
        running = self.state(host) is HostState.RUNNING
        return host not in self._leaving and (running or CancelDrain(host) in self.granted)

    def will_take_tasks(self, host: str) -> bool:
        """Return True if `host` takes tasks then, or is on its way up."""
        coming = self.state(host) in (HostState.REQUESTED, HostState.STARTING)
        return self.takes_tasks(host) or ((coming or host in self.leased) and host not in self._released)


def unsupported(action: Action, plan: _Plan) -> str:
    context = plan.observation.context
    if action.kind not in context.capabilities:
        return f"this plant has no {action.kind}"
    return action.unsupported(context) or action.missing(plan.observation)


def forbidden(action: Action, plan: _Plan) -> str:
    return action.forbidden(plan.observation.standings)


def repeated(action: Action, plan: _Plan) -> str:
    if action in plan.granted:
        return "the plan has it already"
    return "it is under way already" if action in plan.under_way else ""


def contradicts_plan(action: Action, plan: _Plan) -> str:
    other = plan.contradicted_by(action)
    return "" if other is None else f"it contradicts '{other.describe()}'"


def already_in_force(action: Action, plan: _Plan) -> str:
    return action.already_in_force(plan.observation)


def hosts_closed(action: Action, plan: _Plan) -> str:
    takes = plan.will_take_tasks if action.awaits_hosts else plan.takes_tasks
    closed = next((host for host in action.onto if not takes(host)), None)
    return "" if closed is None else f"host {closed} takes no tasks"


def batch_stalled(action: Action, plan: _Plan) -> str:
    """Refuse to remove a host while a batch hangs: its tasks have not reported what they take."""
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
    if plan.remarks or plan.unknown or any(each.relieves for each in proposed):
        return ""
    target, latency = observation.context.target_latency, observation.latency().value
    if not observation.late or target is None or latency is None:
        return ""
    return f"records take {format_duration(latency)}, and {format_duration(target)} is the target"


def out_of_bounds(action: Action, plan: _Plan) -> str:
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


def limited(action: Action, plan: _Plan) -> str:
    return plan.limits.refusal(action, plan.observation, tuple(plan.granted)) if plan.limits.rules.set else ""


RULES: Sequence[Callable[[Action, _Plan], str]] = (
    unsupported,
    forbidden,
    repeated,
    contradicts_plan,
    already_in_force,
    hosts_closed,
    batch_stalled,
    out_of_bounds,
    limited,
)


@dataclass(slots=True)
class BackOff:
    """Refuses actions that failed recently: the wait doubles with each failure in a row, up to `attempts` of them.

    first: seconds to wait after the first failure. rest: seconds after which an abandoned action may be tried
    again, because in a run of days the cause may be gone.
    """

    first: float = 2.0
    attempts: int = 5
    rest: float = 600.0
    _failures: dict[Hashable, tuple[int, float, str]] = field(default_factory=dict)

    def refusal(self, action: Action, now: float, *, vital: bool = False) -> str:
        """Why `action` must wait; empty if it need not. vital: nothing goes on without it, so that it is never given up."""
        count, last, reason = self._failures.get(action.failure_key, (0, 0.0, ""))
        rest = self.first * 2**self.attempts if vital else self.rest
        if count >= self.attempts and now < last + rest:
            return f"given up until {last + rest:.0f} s: it failed {count} times in a row, last: {reason}"
        if 0 < count < self.attempts and now < (retry := last + self.first * 2 ** (count - 1)):
            times = "once" if count == 1 else f"{count} times in a row"
            return f"tried again from {retry:.0f} s on: it failed {times}, last: {reason}"
        return ""

    def failed(self, action: Action, now: float, reason: str) -> None:
        """Note a failure; several at one time (three leases of a type, say) are one."""
        count, last, _ = self._failures.get(action.failure_key, (0, -1.0, ""))
        if count >= self.attempts and now >= last + self.rest:
            count = 0
        self._failures[action.failure_key] = (count if count and last == now else count + 1, now, reason)

    def succeeded(self, action: Action) -> None:
        """Forget the failures of `action`."""
        self._failures.pop(action.failure_key, None)


class Lacked:
    """Counts for how long, and in how many rounds in a row, a policy has lacked each metric."""

    def __init__(self) -> None:
        self._since: dict[Hashable, tuple[float, int]] = {}

    def after(self, unknown: Iterable[Unknown], now: float) -> tuple[Unknown, ...]:
        """What the policy lacks in this round, each once and with its time."""
        each = {one.key: one for one in unknown}
        begun = {key: self._since.get(key, (now, 0)) for key in each}
        self._since = {key: (since, rounds + 1) for key, (since, rounds) in begun.items()}
        return tuple(
            replace(one, seconds=now - self._since[key][0], rounds=self._since[key][1]) for key, one in each.items()
        )


def checked(plan: Any) -> Plan:
    """`plan` if it is a `Plan` of well-formed parts; else raises TypeError with a sentence that names the field.

    Actions are values of declared types: one made with a text for a number, or a list for a tuple, would fail much later,
    in the journal or inside the plant.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan() returned {_shown(plan)}; it returns a Plan, such as Plan((LeaseHost('h2', 'small'),))")
    for action in _tuple("actions", plan.actions):
        _check_action(f"actions holds {_shown(action)}", action)
    for name, value in plan.predicted.items() if isinstance(plan.predicted, Mapping) else [("predicted", plan.predicted)]:
        if not isinstance(name, str) or not isinstance(value, Real):
            raise TypeError(f"predicted is {_shown(plan.predicted)}; it maps names to numbers")
    for remark in _tuple("remarks", plan.remarks):
        if not isinstance(remark, str):
            raise TypeError(f"remarks holds {_shown(remark)}; each is a sentence")
    for proposal in _tuple("refused", plan.refused):
        if not isinstance(proposal, Proposal):
            raise TypeError(f"refused holds {_shown(proposal)}; each is a Proposal")
        _check_action(f"refused holds {_shown(proposal.action)}", proposal.action)
    for each in _tuple("unknown", plan.unknown):
        if not isinstance(each, Unknown):
            raise TypeError(f"unknown holds {_shown(each)}; each is an Unknown, with a metric and the rows that lack it")
    return plan


def _check_action(where: str, action: Any) -> None:
    if wrong := malformed(action):
        raise TypeError(f"{where}{wrong}")


def _tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise TypeError(f"{name} is {_shown(value)}, not a tuple")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
