"""Rules for the number of hosts (`core.scaling`), applied to any policy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, Outcome, ReleaseHost, SetParallelism
from elastream.core.frames import known_sum
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.memory import MOVING
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.core.plant import Policy
from elastream.core.scaling import APPROVAL, NO_RULES, ScalingRules
from elastream.core.wording import counted, money
from elastream.units import ROUNDING, format_duration


def with_window(rules: ScalingRules, policy: Policy, seconds: float) -> ScalingRules:
    """Return `rules` with the cloud's scale-down window (seconds), unless user or policy chose one."""
    if not seconds > 0 or rules.stabilization_down is not None or not policy.default_window:
        return rules
    return replace(rules, stabilization_down=seconds)


@dataclass(frozen=True, slots=True)
class ScalingLimits:
    rules: ScalingRules = NO_RULES
    host_count: int = 0  # hosts that take tasks or are starting
    base: int = 0
    draining: int = 0
    recommended: float = math.nan  # recommended hosts; NaN if unknown
    lowest: float = math.inf  # lowest recommendation in the scale-up window
    highest: float = 0.0  # highest recommendation in the scale-down window
    excluded: str = ""  # expression of the excluded period, or empty
    frozen_hosts: int = 0  # hosts at the excluded period's start
    since: float = math.inf  # time since hosts were removed (seconds)
    waiting: float = math.nan  # time to process the backlog (seconds); NaN if unknown
    first: bool = False
    money: "BudgetAccount | None" = None
    needed: int = 0  # hosts that state needs; 0 if those that are there suffice

    def refusal(self, action: Action, observation: Observation, granted: Sequence[Action]) -> str:
        """Return why `action` may not join those `granted`, beginning with the rule's name, or ""."""
        if not self.rules.set:
            return ""
        if isinstance(action, SetParallelism):
            return f"excluded_periods: nothing is scaled while '{self.excluded}' holds" if self.excluded else ""
        if not isinstance(action, LeaseHost | DrainHost | ReleaseHost):
            return ""
        adding = sum(isinstance(each, LeaseHost | CancelDrain) for each in granted)
        removed = {each.host for each in granted if takes_away(each, observation)}
        if isinstance(action, LeaseHost):
            return self._too_many(action, observation, adding, len(removed), granted)
        if takes_away(action, observation) and action.host not in removed:
            return self._too_few(adding, len(removed))
        return ""

    def _too_many(
        self, action: LeaseHost, observation: Observation, adding: int, going: int, granted: Sequence[Action]
    ) -> str:
        after = self.host_count + adding - going
        if self.money is not None and (reason := self.money.refusal(action, observation, granted)):
            return f"budget: {reason}"
        if after < max(observation.context.min_hosts, self.needed):
            return ""
        if self.excluded and after >= self.frozen_hosts:
            return f"excluded_periods: nothing is scaled while '{self.excluded}' holds"
        # What was lost meanwhile is replaced: that is no scaling.
        reason = "" if self.first or self.excluded else self._too_fast(after)
        return reason or approval_needed(action, observation, granted)

    def _too_fast(self, after: int) -> str:
        rules = self.rules
        if after >= self.lowest:
            window = format_duration(rules.stabilization_up or 0.0)
            return f"stabilization_up: within the last {window} {counted(int(self.lowest), 'host')} sufficed"
        if rules.max_scale_up is not None and after >= self.base + (most := _part(rules.max_scale_up, self.base)):
            working = f"{counted(self.base, 'host')} work" + ("s" if self.base == 1 else "")
            return f"max_scale_up: {working}, and at most {most} more may start at a time"
        return self._tolerance_refusal()

    def _too_few(self, adding: int, going: int) -> str:
        rules, left = self.rules, self.host_count + adding - going - 1
        if self.excluded:
            return f"excluded_periods: nothing is scaled while '{self.excluded}' holds"
        if left < self.highest:
            window = format_duration(rules.stabilization_down or 0.0)
            return f"stabilization_down: within the last {window} up to {counted(int(self.highest), 'host')} were wanted"
        if rules.scale_down_interval is not None and self.since < rules.scale_down_interval:
            every = format_duration(rules.scale_down_interval)
            return f"scale_down_interval: hosts went {format_duration(self.since)} ago, and the next may go after {every}"
        if rules.max_scale_down is not None:
            most = _part(rules.max_scale_down, self.base)
            if going + self.draining >= most:
                return f"max_scale_down: at most {most} of {counted(self.base, 'host')} may go at a time"
        if rules.catch_up and self.waiting > rules.catch_up:
            takes, within = format_duration(self.waiting), format_duration(rules.catch_up)
            return f"catch_up: the backlog takes {takes} to process, and at most {within} is allowed"
        return self._tolerance_refusal()

    def _tolerance_refusal(self) -> str:
        tolerance = self.rules.tolerance
        if (
            tolerance is None
            or not self.host_count
            or not abs(self.recommended / self.host_count - 1) <= tolerance + ROUNDING
        ):
            return ""
        present = counted(self.host_count, "host")
        return f"tolerance: {self.recommended:.3g} hosts are wanted against {present} now, which is within {tolerance:.0%}"


NO_LIMITS = ScalingLimits()


def _part(factor: float, hosts: int) -> int:
    return max(1, math.floor(factor * hosts + ROUNDING))


def approval_needed(action: LeaseHost, observation: Observation, granted: Sequence[Action]) -> str:
    """Return why a lease beside those `granted` waits for approval, or ""."""
    most = observation.context.scaling.approved
    if most == math.inf:
        return ""
    kinds = hosts_after(observation.leases.values(), (*granted, action), observation.context.host_types)
    hourly = 3600 * math.fsum(kind.price_rate for kind in kinds)
    if hourly <= 3600 * most * (1 + ROUNDING):
        return ""
    cost = f"{counted(len(kinds), 'host')} would cost {money(hourly)}/h, above {money(3600 * most)}/h"
    return f"{APPROVAL}: {cost}: someone must approve it"


def hosts_after(leases: Iterable[Lease], actions: Sequence[Action], types: Mapping[str, HostType]) -> list[HostType]:
    """Return the types of the hosts after `actions`."""
    leaving = {each.host for each in actions if isinstance(each, DrainHost | ReleaseHost)}
    back = {each.host for each in actions if isinstance(each, CancelDrain)}
    there = {
        each.host: each.type
        for each in leases
        if each.until is None and ((each.state not in MOVING and each.host not in leaving) or each.host in back)
    }
    new = {each.host: types[each.type] for each in actions if isinstance(each, LeaseHost) and each.type in types}
    return list({**new, **there}.values())


def staying(observation: Observation) -> dict[str, Lease]:
    """Return the leases of hosts that do not leave."""
    return {host: each for host, each in observation.leases.items() if each.state not in MOVING}


def takes_away(action: Action, observation: Observation) -> TypeGuard[DrainHost | ReleaseHost]:
    lease = observation.leases.get(action.host) if isinstance(action, DrainHost | ReleaseHost) else None
    return lease is not None and lease.state in (HostState.REQUESTED, HostState.STARTING, HostState.RUNNING)


@dataclass(slots=True)
class Scaling:
    rules: ScalingRules = NO_RULES
    epoch: float = 0.0  # time 0 of the run, in seconds since 1970
    recommended: float = math.nan  # hosts recommended last; NaN at first
    _recommendations: list[tuple[float, float]] = field(default_factory=list)
    _low: bool = False
    _down: float = -math.inf
    _frozen_hosts: int = -1
    _contexts: tuple[Context, Context] | None = None
    _has_rules: bool = False
    _money: "BudgetAccount | None" = None

    def __post_init__(self) -> None:
        self._has_rules = bool(self.rules.set)
        if (terms := self.rules.budget_terms) is not None:
            self._money = BudgetAccount(*terms)

    def bounded(self, observation: Observation) -> Observation:
        if self._money is not None:
            self._money.record(observation.time, observation.leases.values())
        if not self._has_rules:
            return observation
        context = observation.context
        if self._contexts is None or self._contexts[0] is not context:
            rules = self.rules
            most = context.max_hosts if rules.max_hosts is None else min(context.max_hosts, rules.max_hosts)
            least = context.min_hosts if rules.min_hosts is None else max(context.min_hosts, rules.min_hosts)
            self._contexts = context, replace(context, max_hosts=most, min_hosts=min(least, most), scaling=rules)
        return replace(observation, context=self._contexts[1])

    def limits(
        self,
        actions: Iterable[Action],
        recommended: float | None,
        observation: Observation,
        first: bool = False,
        needed: int = 0,
    ) -> ScalingLimits:
        """Return the limits of a round. `recommended` None: derived from `actions`; `needed`: hosts for state."""
        rules, now = self.rules, observation.time
        host_count = len(observation.usable) + len(observation.coming)
        recommendation = self._follow(tuple(actions), recommended, observation, host_count, first)
        if not self._has_rules:
            return NO_LIMITS
        excluded = rules.excluded(self.epoch + now) if rules.excluded_periods else ""
        self._frozen_hosts = (host_count if self._frozen_hosts < 0 else self._frozen_hosts) if excluded else -1
        lowest = min(self._within(rules.stabilization_up, now)) if rules.stabilization_up else math.inf
        highest = max(self._within(rules.stabilization_down, now)) if rules.stabilization_down else 0.0
        return ScalingLimits(
            rules,
            host_count,
            len(observation.working),
            len(observation.draining),
            recommendation,
            lowest,
            highest,
            excluded,
            self._frozen_hosts,
            now - self._down,
            _waiting(observation) if rules.catch_up else math.nan,
            first,
            self._money,
            needed,
        )

    def done(self, outcomes: Iterable[Outcome], observation: Observation, now: float) -> None:
        for outcome in outcomes:
            if not outcome.succeeded:
                continue
            if takes_away(outcome.action, observation):
                self._down = now
            if isinstance(outcome.action, LeaseHost) and self._money is not None:
                kind = observation.context.host_types[outcome.action.type]
                self._money.record(now, [Lease(outcome.action.host, kind, now)], complete=False)

    def _follow(
        self, actions: Sequence[Action], hosts: float | None, observation: Observation, host_count: int, first: bool
    ) -> float:
        """Record and return the recommended hosts; without a number, present and newly leased ones."""
        # A policy that removes hosts one by one recommends an unknown smaller number until it leases.
        now = observation.time
        more = sum(isinstance(each, LeaseHost | CancelDrain) for each in actions)
        fewer = sum(takes_away(each, observation) for each in actions)
        self.recommended = float(host_count + more - fewer)
        if first or not self._recommendations:
            self._recommendations.append((now, float(host_count)))
        if hosts is not None and math.isfinite(hosts):
            self.recommended = hosts
            recommendation = float(math.ceil(hosts - ROUNDING))
        else:
            self._low = bool(fewer) and not more if more or fewer else self._low
            recommendation = 0.0 if self._low else self.recommended
        self._recommendations.append((now, recommendation))
        longest = max(self.rules.stabilization_up or 0.0, self.rules.stabilization_down or 0.0)
        self._recommendations = [each for each in self._recommendations if each[0] >= now - longest]
        return math.nan if self._low and hosts is None else self.recommended

    def _within(self, window: float, now: float) -> list[float]:
        return [hosts for at, hosts in self._recommendations if at >= now - window]


def _waiting(observation: Observation) -> float:
    waits = known_sum(observation.operators.column(Metric.BACKLOG))
    sources = [source.name for source in observation.context.graph.sources]
    rate = known_sum([observation.operators.value(name, Metric.PROCESSED_RATE) for name in sources])
    if not waits > 0:
        return waits
    return waits / rate if rate > 0 else math.inf if rate == 0 else math.nan


class BudgetAccount:
    """Account of a budget: at most `amount` per `period` (seconds).

    A billing time unit counts where it begins. A lease must fit this and all later periods.
    """

    def __init__(self, amount: float, period: float) -> None:
        self._amount, self._period = amount, period
        self._leases: dict[tuple[str, float], Lease] = {}
        self._updated = 0.0

    def record(self, now: float, leases: Iterable[Lease], *, complete: bool = True) -> None:
        """Record the leases at `now`; absent ones end then, unless not `complete`."""
        begun = {lease.host: key for key, lease in self._leases.items() if lease.until is None}
        hosts = set()
        for lease in leases:
            hosts.add(lease.host)
            key = begun.get(lease.host, (lease.host, lease.since))
            # Asked for here before the plant wrote it down: one lease, from the earlier moment on.
            since = min(lease.since, self._leases[key].since) if key in self._leases else lease.since
            self._leases[key] = replace(lease, since=since)
        if not complete:
            return
        for host, key in begun.items():
            if host not in hosts:
                self._leases[key] = replace(self._leases[key], until=now)
        start = self._start(now)
        self._leases = {
            key: lease for key, lease in self._leases.items() if lease.until is None or lease.paid_until(now) >= start
        }
        self._updated = now

    def spent(self, now: float) -> float:
        return self._between(self._leases.values(), self._start(now), now)

    def refusal(self, action: LeaseHost, observation: Observation, granted: Sequence[Action]) -> str:
        now, types = observation.time, observation.context.host_types
        requests = [each for each in granted if isinstance(each, LeaseHost)]
        new = [Lease(each.host, types[each.type], now) for each in (*requests, action) if each.type in types]
        leased = [lease for lease in self._leases.values() if lease.until is None] + new
        start = self._start(now)
        # A unit that begins at the very end is the next period's.
        here = self._between([*self._leases.values(), *new], start, start + self._period - ROUNDING * self._period)
        later = math.fsum(each.type.price * math.ceil(self._period / each.type.billing.unit - ROUNDING) for each in leased)
        per = {3600.0: "hour", 86400.0: "day"}.get(self._period, format_duration(self._period))
        if max(here, later) <= self._amount * (1 + ROUNDING):
            return ""
        hosts, when = counted(len(leased), "host"), "this" if here >= later else "a whole"
        return f"{hosts} would cost {money(max(here, later))} in {when} {per}, and the budget is {money(self._amount)}"

    def _start(self, now: float) -> float:
        return math.floor(now / self._period) * self._period

    @staticmethod
    def _between(leases: Iterable[Lease], begin: float, end: float) -> float:
        total = []
        for lease in leases:
            before = 0.0 if lease.since >= begin else _paid(lease, begin)
            total.append(_paid(lease, end) - before)
        return math.fsum(total)


def _paid(lease: Lease, at: float) -> float:
    return 0.0 if at < lease.since else lease.cost(at)
