"""Requests of people: bounds of the number of hosts, drains, alternates, approvals and state partitions."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from elastream.control.extension import LoopExtension, required_switches
from elastream.control.scaling import staying
from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, ReleaseHost, Repartition
from elastream.core.alarm import Alarms
from elastream.core.decision import Proposal
from elastream.core.guarding import GuardDecision
from elastream.core.hosts import HostState
from elastream.core.observation import Context, Observation
from elastream.core.wording import counted
from elastream.policies.common.measures import types_to_lease
from elastream.recording.directory import RunDirectory
from elastream.recording.request_log import Request, RequestLog
from elastream.units import ROUNDING

# Proposer in decision records and in the journal.
BY = "page"
REQUESTED = "requested on the page"
# Seconds for which an approval waits for a lease.
APPROVAL_S = 600.0
# Seconds for which a refused drain is proposed again.
PATIENCE_S = 60.0
# Seconds for which a repartition waits for the first batch of a driver, which tells the number of partitions.
FIRST_BATCH_S = 60.0


class RequestExtension(LoopExtension):
    """Applies requests to the run of `directory`. Requests to an earlier driver do not count."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory, self._log = directory, RequestLog(directory.requests)
        self._since = directory.lock.stat().st_mtime if directory.lock.exists() else time.time()
        self._bounds: Request | None = None
        self._alternates: dict[str, str] = {}  # empty: the policy's choice
        # Money per second, whether the cost was above the run's own limit, and when an unused approval ends.
        self._approved, self._above, self._approval_ends = 0.0, False, math.inf
        self._drains: dict[str, float] = {}
        self._repartitions: list[Proposal] = []
        self._refuse_at = 0.0
        self._contexts: tuple[Context, Context] | None = None
        self._news = False

    def observed(self, observation: Observation, alarms: Alarms) -> Observation:
        for request in self._log.newer():
            if request.time >= self._since:
                self._news, self._contexts = True, None
                self._read(request, observation.time)
        self._check_approval(observation)
        observation = self._with_alternates(observation)
        context, bounds = observation.context, self._bounds
        if bounds is None and not self._approved:
            return observation
        if self._contexts is None or self._contexts[0] is not context:
            own = context
            if bounds is not None:
                most = min(context.max_hosts, bounds.max_hosts or context.max_hosts)
                own = replace(own, min_hosts=min(most, bounds.min_hosts or context.min_hosts), max_hosts=most)
            if self._approved > own.scaling.approved:
                own = replace(own, scaling=replace(own.scaling, approve=f"{3600 * self._approved!r}/h"))
            self._contexts = context, own
        return replace(observation, context=self._contexts[1])

    def _read(self, request: Request, now: float) -> None:
        match request.action:
            case "bounds":
                self._bounds = request
            case "approve":
                self._approved, self._above, self._approval_ends = request.hourly / 3600, False, now + APPROVAL_S
            case "alternate":
                self._alternates[request.operator] = request.alternate
            case "drain":
                self._drains[request.host] = now + PATIENCE_S
            case "repartition":
                action = Repartition(request.partitions, f"requested by {request.by}", request.time)
                self._repartitions = [Proposal(action, request.by)]  # an earlier one was withdrawn
                self._refuse_at = now + FIRST_BATCH_S

    def _check_approval(self, observation: Observation) -> None:
        """End an approval once the cost has exceeded the run's own limit and fallen again, or if unused."""
        if not self._approved:
            return
        cost = math.fsum(lease.type.price_rate for lease in staying(observation).values())
        above = cost > observation.context.scaling.approved * (1 + ROUNDING)
        if not above and (self._above or observation.time >= self._approval_ends):
            self._approved, self._contexts = 0.0, None
        self._above = above

    def _with_alternates(self, observation: Observation) -> Observation:
        """Return `observation` with requested alternates as standings, where guards allow them."""
        standings, graph = dict(observation.standings), observation.context.graph
        for operator, alternate in self._alternates.items():
            standing = standings.get(operator)
            if alternate and operator in graph.by_name and (standing is None or alternate in standing.allowed):
                texts, values = {alternate: REQUESTED}, {alternate: math.nan}
                standings[operator] = GuardDecision(operator, (alternate,), values, {}, texts, BY)
        return replace(observation, standings=standings) if self._alternates else observation

    def urgent(self, observation: Observation) -> bool:
        """Return True in the round that reads a request."""
        news, self._news = self._news, False
        return news

    def proposals(self, observation: Observation, planned: Sequence[Action], alarms: Alarms) -> Sequence[Proposal]:
        """Return drains until in force, for at most `PATIENCE_S`, drains and leases for bounds, and a new repartition."""
        leases, now = observation.leases, observation.time
        running = [host for host, lease in leases.items() if lease.state is HostState.RUNNING]
        if self._directory.is_paused:
            self._drains = dict.fromkeys(self._drains, now + PATIENCE_S)
        self._drains = {host: until for host, until in self._drains.items() if host in running and now < until}
        drains, missing = [DrainHost(host, why=REQUESTED) for host in self._drains], list[LeaseHost]()
        if self._bounds is not None:
            most = observation.context.max_hosts
            leaving = {action.host for action in (*planned, *drains) if isinstance(action, DrainHost | ReleaseHost)}
            surplus = len(running) + len(observation.coming) - len(leaving) - most
            newest = [host for host in sorted(running, key=lambda host: -leases[host].since) if host not in leaving]
            why = f"at most {counted(most, 'host')}: {REQUESTED}"
            drains += [DrainHost(host, why=why) for host in newest[: max(0, surplus)]]
            missing = _leases_for_minimum(observation, planned, min(most, self._bounds.min_hosts))
        repartitions: list[Proposal] = []
        if observation.context.partitions:  # known with the first batch
            repartitions, self._repartitions = self._repartitions, []
        elif now >= self._refuse_at:
            refused = "no batch has ended since the driver started"
            repartitions = [replace(each, refused=refused) for each in self._repartitions]
            self._repartitions = []
        switches = required_switches(observation, planned, BY)
        return [*(Proposal(each, BY) for each in (*drains, *missing, *switches)), *repartitions]


def _leases_for_minimum(observation: Observation, planned: Sequence[Action], least: int) -> list[LeaseHost]:
    """Return leases up to `least` hosts."""
    # Planned drains do not count: the bound forbids those below it.
    there = len(observation.usable) + len(observation.coming)
    leases, context = sum(isinstance(action, LeaseHost) for action in planned), observation.context
    back = sum(isinstance(action, CancelDrain) for action in planned)
    kind, why = next(iter(context.leasable.values()), None), f"at least {counted(least, 'host')}: {REQUESTED}"
    if kind is None or "LeaseHost" not in context.capabilities:
        return []
    kinds = types_to_lease(observation, kind, least - there - leases - back)
    return [LeaseHost(observation.host_name(leases + n), each.name, each.region, why) for n, each in enumerate(kinds)]
