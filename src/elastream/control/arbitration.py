"""Arbitration of proposed actions (E2DF's application and infrastructure managers).

Earlier proposers have precedence (E2DF, section 3).
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any

from elastream.control.scaling import ScalingLimits
from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, malformed
from elastream.core.decision import Proposal, Unknown
from elastream.core.hosts import HostState
from elastream.core.memory import StateMoves, shortage
from elastream.core.observation import Observation
from elastream.core.plant import Plan
from elastream.core.wording import at_most, counted
from elastream.units import format_duration

# Hosts that any round may add, and the growth that a round may reach. Four as in HPA. Twenty, so that
# `threshold` answers a tenfold burst and its backlog in one round: with HPA's doubling 95.1 % of records were in
# time instead of 97.0 %, with ten times 96.3 % (benchmarks/promise.py --quick, unchained).
MIN_GROWTH_HOSTS, MAX_GROWTH_FACTOR = 4, 20


def arbitrate(
    proposals: Iterable[Proposal],
    observation: Observation,
    under_way: Collection[Action] = (),
    first: bool = False,
    limits: ScalingLimits | None = None,
) -> tuple[Proposal, ...]:
    """Return the proposals in order, with a reason in `refused` where RULES forbid one. Pure.

    Args:
        first: True in the first round, which may add any number of hosts.
    """
    if not (proposals := tuple(proposals)):
        return ()
    growth = math.inf if first else max(MIN_GROWTH_HOSTS, (MAX_GROWTH_FACTOR - 1) * len(observation.leases))
    plan = _Plan(observation, under_way, growth, limits or ScalingLimits())
    answered = []
    for proposal in proposals:
        refused = proposal.refused or next((reason for rule in RULES if (reason := rule(proposal.action, plan))), "")
        if not refused:
            plan.grant(proposal.action)
        answered.append(replace(proposal, refused=refused))
    return tuple(answered)


class _Plan:
    def __init__(
        self, observation: Observation, under_way: Collection[Action], growth: float, limits: ScalingLimits
    ) -> None:
        self.observation, self.growth, self.limits = observation, growth, limits
        self.under_way = frozenset(under_way)
        self.granted: dict[Action, int] = {}
        self._by_key: dict[Hashable, list[Action]] = {}
        self.leaving: set[str] = set()
        self._released: set[str] = set()
        self.leased: set[str] = set()

    @cached_property
    def state_moves(self) -> StateMoves:
        return StateMoves(self.observation)

    def grant(self, action: Action) -> None:
        self.granted[action] = len(self.granted)
        for key in (action.subject, *action.claims(), *(("onto", host) for host in action.onto)):
            self._by_key.setdefault(key, []).append(action)
        match action:
            case LeaseHost(host):
                self.leased.add(host)
            case DrainHost(host):
                self.leaving.add(host)
            case ReleaseHost(host):
                self.leaving.add(host)
                self._released.add(host)
            case MoveTask(task, host):
                self.state_moves.accept(task, host)

    def contradicted_by(self, action: Action) -> Action | None:
        same = (other for other in self._by_key.get(action.subject, ()) if other.kind not in action.follows)
        others = (other for key in action.contradicts() for other in self._by_key.get(key, ()))
        return min((*same, *others), key=self.granted.__getitem__, default=None)

    def state(self, host: str) -> HostState | None:
        lease = self.observation.leases.get(host)
        return lease.state if lease else None

    def takes_tasks(self, host: str) -> bool:
        running = self.state(host) is HostState.RUNNING
        return host not in self.leaving and (running or CancelDrain(host) in self.granted)

    def will_take_tasks(self, host: str) -> bool:
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
    """Refuse to remove a host while a batch hangs: its load is unknown."""
    working = isinstance(action, DrainHost | ReleaseHost) and plan.state(action.host) is HostState.RUNNING
    for query, seconds in plan.observation.stalled.items() if working else ():
        so_far = format_duration(round(seconds))
        return f"no batch of {query!r} has ended for {so_far}: the need for its hosts is unknown"
    return ""


def pinned(action: Action, plan: _Plan) -> str:
    why = plan.observation.pinned.get(action.host) if isinstance(action, DrainHost | ReleaseHost) else None
    return f"it must stay: {why}" if why else ""


def bound_remark(observation: Observation, plan: Plan) -> str:
    """Return a remark if records are late, no more hosts are allowed, and `plan` says nothing; otherwise ""."""
    context = observation.context
    if "LeaseHost" not in context.capabilities or len(observation.usable) < context.max_hosts:
        return ""  # what still comes may suffice, and what leaves is given back
    late = lateness_remark(observation, plan)
    return f"{at_most(context.max_hosts, context.limit)}, and {late}" if late else ""


def lateness_remark(observation: Observation, plan: Plan) -> str:
    proposed = (*plan.actions, *(each.action for each in plan.refused))
    if plan.remarks or plan.unknown or any(each.relieves for each in proposed):
        return ""
    target, latency = observation.context.target_latency, observation.latency().value
    if not observation.late or target is None or latency is None:
        return ""
    return f"records take {format_duration(latency)}, above the target of {format_duration(target)}"


def out_of_bounds(action: Action, plan: _Plan) -> str:
    observation, context = plan.observation, plan.observation.context
    match action:
        case LeaseHost():
            if len(plan.leased) >= plan.growth:
                return (
                    f"at most {counted(int(plan.growth), 'host')} may be added in one round, to {len(observation.leases)}"
                )
            leased = len(observation.leases) + len(plan.leased)
            return at_most(context.max_hosts, context.limit) if leased >= context.max_hosts else ""
        case CancelDrain(host) if host in observation.leases and observation.leases[host].deadline is not None:
            return observation.leases[host].note or "its owner takes it away"
        case CancelDrain():
            # Only a bound that was lowered meanwhile can be exceeded so.
            host_count = sum(map(plan.will_take_tasks, (*observation.leases, *plan.leased)))
            return at_most(context.max_hosts, context.limit) if host_count >= context.max_hosts else ""
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


def short_of_memory(action: Action, plan: _Plan) -> str:
    if isinstance(action, MoveTask):
        return plan.state_moves.refusal(action.task, action.host)
    if not isinstance(action, DrainHost | ReleaseHost) or plan.state(action.host) is not HostState.RUNNING:
        return ""
    return "" if DrainHost(action.host) in plan.granted else shortage(plan.observation, {action.host, *plan.leaving})


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
    pinned,
    out_of_bounds,
    short_of_memory,
    limited,
)


@dataclass(slots=True)
class BackOff:
    """Refusal of recently failed actions; the wait doubles with each failure."""

    first: float = 2.0  # wait after the first failure (seconds)
    attempts: int = 5  # failures in a row before giving up
    rest: float = 600.0  # time before another try (seconds)
    _failures: dict[Hashable, tuple[int, float, str]] = field(default_factory=dict)

    def refusal(self, action: Action, now: float, *, vital: bool = False) -> str:
        """Return why `action` must wait, or "". A `vital` action is never given up."""
        count, last, reason = self._failures.get(action.failure_key, (0, 0.0, ""))
        rest = self.first * 2**self.attempts if vital else self.rest
        if count >= self.attempts and now < last + rest:
            return f"given up until {last + rest:.0f} s: it failed {count} times in a row, last: {reason}"
        if 0 < count < self.attempts and now < (retry := last + self.first * 2 ** (count - 1)):
            times = "once" if count == 1 else f"{count} times in a row"
            return f"tried again from {retry:.0f} s on: it failed {times}, last: {reason}"
        return ""

    def gives_up(self, action: Action) -> bool:
        return self._failures.get(action.failure_key, (0, 0.0, ""))[0] >= self.attempts

    def failed(self, action: Action, now: float, reason: str) -> None:
        """Record a failure. Simultaneous ones count once."""
        count, last, _ = self._failures.get(action.failure_key, (0, -1.0, ""))
        if count >= self.attempts and now >= last + self.rest:
            count = 0
        self._failures[action.failure_key] = (count if count and last == now else count + 1, now, reason)

    def succeeded(self, action: Action) -> None:
        self._failures.pop(action.failure_key, None)


class MissingMetrics:
    """Counter of time and rounds without each metric."""

    def __init__(self) -> None:
        self._since: dict[Hashable, tuple[float, int]] = {}

    def after(self, unknown: Iterable[Unknown], now: float) -> tuple[Unknown, ...]:
        each = {one.key: one for one in unknown}
        begun = {key: self._since.get(key, (now, 0)) for key in each}
        self._since = {key: (since, rounds + 1) for key, (since, rounds) in begun.items()}
        return tuple(
            replace(one, seconds=now - self._since[key][0], rounds=self._since[key][1]) for key, one in each.items()
        )


def check_plan(plan: Any) -> Plan:
    """Return `plan`, or raise TypeError that names a malformed field."""
    if not isinstance(plan, Plan):
        raise TypeError(f"plan() returned {_shown(plan)}; it returns a Plan, such as Plan((LeaseHost('h2', 'small'),))")
    for action in _tuple("actions", plan.actions):
        _check_action(f"actions holds {_shown(action)}", action)
    for name, value in plan.predicted.items() if isinstance(plan.predicted, Mapping) else [("predicted", plan.predicted)]:
        if not isinstance(name, str) or not (type(value) is float or isinstance(value, Real)):
            raise TypeError(f"predicted is {_shown(plan.predicted)}; it maps names to numbers")
    _check_members("remarks", plan.remarks, str, "a sentence")
    _check_members("refused", plan.refused, Proposal, "a Proposal")
    for proposal in plan.refused:
        _check_action(f"refused holds {_shown(proposal.action)}", proposal.action)
    _check_members("unknown", plan.unknown, Unknown, "an Unknown, with a metric and the rows that lack it")
    return plan


def _check_members(name: str, values: Any, kind: type, expected: str) -> None:
    for value in _tuple(name, values):
        if not isinstance(value, kind):
            raise TypeError(f"{name} holds {_shown(value)}; each is {expected}")


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
