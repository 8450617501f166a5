"""E2DF as a policy for one application: the four managers in one process, against a plant."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetParallelism
from elastream.core.decision import Proposal
from elastream.core.hosts import HostState, HostType
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.dataflow.operators import Kind
from elastream.errors import InputError
from elastream.policies.common.measures import TICK, host_capacity
from elastream.policies.e2df.applications import ApplicationRules, OperatorRules, Refusal, initial_placement
from elastream.policies.e2df.regions import RegionRules, smallest
from elastream.policies.e2df.rounds import Hierarchy, HierarchyRules, RoundPlan, begin, planning_round
from elastream.policies.e2df.snapshot import Snapshot, floating, holds, lacking, snapshot_of, width
from elastream.sharing.rules import ArbiterRules, RegionFacts


class InstanceActions:
    """Actions for instances: set their number, or move a host's share of tasks."""

    def __init__(self, observation: Observation, snapshot: Snapshot) -> None:
        self.observation = observation
        self.snapshot = snapshot

    def add(self, operator: str, count: int, host: str, why: str) -> list[Action]:
        """Return actions for one instance more, `count` in all, on `host` (empty: anywhere).

        Fixed tasks move to a host without any, from hosts with most tasks for their capacity.
        """
        if self._scalable(operator):
            return [SetParallelism(operator, count, on=(host,) if host else (), why=why)]
        by_host = self._tasks_by_host(operator)
        if host in by_host:
            hosts, others = self.observation.hosts, self.without(operator)
            used = {other: hosts.value(other, Metric.CPU) for other in others}
            host = min(others, key=lambda other: (math.isnan(used[other]), used[other]), default="")
        if not host:
            return []
        share = max(1, sum(map(len, by_host.values())) // count)
        moves: list[Action] = []
        while len(moves) < share:
            giver = max(by_host, key=lambda each: self._load(each, len(by_host[each])))
            if not self._load(giver, len(by_host[giver])) > self._load(host, len(moves) + 1):
                break  # no other host has more load per capacity than this one would get
            moves.append(MoveTask(by_host[giver].pop(), host, why=why))
        return moves

    def without(self, operator: str) -> list[str]:
        tasks_by_host = self._tasks_by_host(operator)
        return [host for host in self.observation.usable if host not in tasks_by_host]

    def remove(self, operator: str, count: int, instance: int, why: str, growth: float) -> list[Action]:
        """Return actions for one instance fewer, `count` in all; none if another's use grew beyond `growth`."""
        instances = self.snapshot.instances
        if self._scalable(operator):
            placed = instances.host[instance] >= 0
            removed = (TaskId(operator, int(instances.index[instance])),) if placed else ()
            return [SetParallelism(operator, count, without=removed, why=why)]
        by_host = self._tasks_by_host(operator)
        most = max(self._load(each, len(tasks)) for each, tasks in by_host.items())
        moves: list[Action] = []
        for task in by_host.pop(self.snapshot.hosts.names[int(instances.host[instance])]):
            taker = min(by_host, key=lambda each: self._load(each, len(by_host[each]) + 1))
            by_host[taker].append(task)
            moves.append(MoveTask(task, taker, why=why))
        return moves if max(self._load(each, len(tasks)) for each, tasks in by_host.items()) <= growth * most else []

    def move(self, instance: int, host: str, why: str) -> list[Action]:
        instances = self.snapshot.instances
        operator = self.snapshot.operators.names[int(instances.operator[instance])]
        if self._scalable(operator):
            return [MoveTask(TaskId(operator, int(instances.index[instance])), host, why=why)]
        return [
            MoveTask(task, host, why=why)
            for task in self._tasks_by_host(operator)[self.snapshot.hosts.names[int(instances.host[instance])]]
        ]

    def within_slots(self, actions: Sequence[Action]) -> list[Action]:
        """Return `actions` with floating operators limited to the number of slots."""
        observation = self.observation
        slots = max(1, sum(observation.leases[host].type.slots for host in observation.usable))
        scalings = {action.operator: action for action in actions if isinstance(action, SetParallelism)}
        others: list[Action] = [action for action in actions if not isinstance(action, SetParallelism)]
        for row in floating(observation):
            operator, now = observation.operators.ids[row], int(width(observation, row))
            scaling = scalings.pop(operator, None)
            if (scaling.instances if scaling else now) <= slots:
                others += [scaling] if scaling else []
            elif now != slots:
                others.append(SetParallelism(operator, slots, why=f"there are {slots} slots"))
        return [*others, *scalings.values()]

    def _scalable(self, operator: str) -> bool:
        return operator in self.observation.context.scalable

    def _load(self, host: str, tasks: int) -> float:
        return tasks / host_capacity(self.observation, host)

    def _tasks_by_host(self, operator: str) -> dict[str, list[TaskId]]:
        names, tasks = self.observation.hosts.ids, self.observation.tasks
        by_host: dict[str, list[TaskId]] = {}
        for task, row in zip(tasks.tasks, tasks.host.tolist(), strict=True):
            if task.operator == operator and row >= 0:
                by_host.setdefault(names[row], []).append(task)
        return by_host


def refusals(snapshot: Snapshot, plan: RoundPlan, kinds: Mapping[str, str], name: str) -> Plan:
    """Return a plan of refused proposals, and remarks on stuck operators and hosts."""
    refused = (*_refused_instances(snapshot, plan), *_refused_hosts(snapshot, plan, kinds, name))
    return Plan(remarks=_stuck(snapshot, plan), refused=refused)


def _refused_instances(snapshot: Snapshot, plan: RoundPlan) -> list[Proposal]:
    proposals, refusals = plan.grants.proposals, plan.grants.refusals
    refused = []
    for row in np.flatnonzero(~plan.grants.granted).tolist():
        operator, host = snapshot.operators.names[int(proposals.operator[row])], int(proposals.host[row])
        on = (snapshot.hosts.names[host],) if host >= 0 else ()
        action = SetParallelism(operator, int(proposals.instances[row]), on=on)
        why = f"application manager: {Refusal(int(refusals[row])).reason}"
        refused.append(Proposal(action, f"operator manager of {operator}", why))
    return refused


def _refused_hosts(snapshot: Snapshot, plan: RoundPlan, kinds: Mapping[str, str], name: str) -> list[Proposal]:
    refused = [
        Proposal(LeaseHost(name, kinds[region], region), f"region manager of {region}", f"infrastructure manager: {why}")
        for region, why in plan.refused.items()
    ]
    for host, manager, why in plan.refused_releases:
        row = snapshot.hosts.rows.get(host)
        if row is None:
            continue  # the host is lost: no manager would free it
        action = DrainHost(host) if snapshot.placed[row] else ReleaseHost(host)
        by = f"region manager of {snapshot.regions[int(snapshot.hosts.region[row])]}"
        refused.append(Proposal(action, by, f"{manager}: {why}"))
    return refused


def _stuck(snapshot: Snapshot, plan: RoundPlan) -> tuple[str, ...]:
    operators = [snapshot.operators.names[row] for row in plan.grants.proposals.stuck.tolist()]
    remarks = [f"{name} would have a replica more, and no host of its region has a free slot" for name in operators]
    instances, hosts = snapshot.instances, snapshot.hosts
    leaves = {int(instances.host[shift.instance]) for shift in plan.shifts}
    critical = bool(snapshot.critical.any())
    for host in sorted(plan.leaving):
        row = hosts.rows.get(host)
        if row is not None and snapshot.placed[row] and row not in leaves and not critical:
            remarks.append(f"{host} is to be left, and there is no room elsewhere for what it holds")
    return tuple(remarks)


def requests(observation: Observation, snapshot: Snapshot, plan: RoundPlan, types: tuple[HostType, ...]) -> list[Action]:
    """Return a request for one host if an operator finds no free slot; its region first, then others by price."""
    operators = _short_of_slots(observation, snapshot, plan)
    if (
        not operators
        or len([lease for lease in observation.leases.values() if lease.active]) >= observation.context.max_hosts
    ):
        return []
    kinds = smallest(types)
    instances, hosts = snapshot.instances, snapshot.hosts
    row = snapshot.operators.names.index(operators[0])
    on = instances.host[(instances.operator == row) & (instances.host >= 0)]
    home = {snapshot.regions[region] for region in hosts.region[on].tolist()}
    for region in sorted(kinds, key=lambda name: (name not in home, kinds[name].price_rate, name)):
        coming = [
            lease
            for lease in observation.leases.values()
            if lease.type.region == region and lease.state in (HostState.REQUESTED, HostState.STARTING)
        ]
        if not coming:
            why = f"{operators[0]} would have a replica more, and no host has a free slot"
            return [LeaseHost(f"h{observation.next_host}", kinds[region].name, region, why=why)]
        if not all(lease.refused for lease in coming):
            return []
    return []


def surplus(observation: Observation, snapshot: Snapshot, plan: RoundPlan, settle: float) -> list[Action]:
    """Return releases of hosts empty for `settle` seconds, unless an operator lacks a slot."""
    if _short_of_slots(observation, snapshot, plan):
        return []
    into = {snapshot.hosts.names[row] for row in plan.grants.proposals.host[plan.grants.granted].tolist() if row >= 0}
    usable = observation.usable
    spared = len(usable) - max(1, observation.context.min_hosts)
    releases: list[Action] = []
    for host in reversed(usable):
        since = observation.leases[host].ready_at()
        row = snapshot.hosts.rows[host]
        empty = not snapshot.placed[row] and host not in into
        if len(releases) < spared and empty and since is not None and observation.time - since >= settle:
            releases.append(ReleaseHost(host, why="it holds nothing"))
    return releases


def arbiter_messages(observation: Observation) -> tuple[tuple[Proposal, ...], tuple[str, ...]]:
    """Return waiting requests with the arbiter's reason, and remarks on recalls."""
    refused, recalled = [], []
    for name, lease in observation.leases.items():
        if lease.note and lease.state is HostState.REQUESTED:
            request = LeaseHost(name, lease.type.name, lease.type.region)
            refused.append(Proposal(request, "application manager", f"infrastructure manager: {lease.note}"))
        elif lease.note and lease.active:
            recalled.append(f"{name} is recalled: {lease.note}")
    return tuple(refused), tuple(recalled)


def _short_of_slots(observation: Observation, snapshot: Snapshot, plan: RoundPlan) -> list[str]:
    proposals = plan.grants.proposals
    operators = [snapshot.operators.names[row] for row in proposals.stuck.tolist()]
    slots = sum(observation.leases[host].type.slots for host in observation.usable)
    for row in floating(observation):
        grows = (proposals.operator == row) & (proposals.change > 0)
        if np.any(grows) and width(observation, row) >= slots:
            operators.append(observation.operators.ids[row])
    return operators


def measured_latencies(observation: Observation) -> dict[str, float]:
    """Return by region the median latency (s) measured from the region of most tasks."""
    regions, names = {host: lease.type.region for host, lease in observation.leases.items()}, observation.hosts.ids
    homes = Counter(regions.get(names[row]) for row in observation.tasks.host.tolist() if row >= 0)
    measured: dict[str, list[float]] = defaultdict(list)
    links, home = observation.links, max(homes, key=homes.__getitem__, default=None)
    for link, seconds in zip(links.ids, links.column(Metric.NETWORK_LATENCY).tolist(), strict=True):
        source, target = (regions.get(host) for host in link.split(">"))
        if target is not None and source == home and not math.isnan(seconds):
            measured[target].append(seconds)
    return {region: statistics.median(each) for region, each in measured.items()}


@dataclass(frozen=True, slots=True)
class E2dfMemory:
    state: Hierarchy | None = None
    spread: bool = False  # the first placement is done
    due: float = -math.inf  # next round of the application level
    hosts_due: float = -math.inf  # next round of the infrastructure level


@dataclass(frozen=True)
class E2df(Policy):
    """E2DF policy. Defaults are the paper's, section 5.

    Args:
        scale_out: Utilisation above which an operator gets an instance (S_s-out).
        scale_in: Fraction of it below which an instance goes (c).
        spare: Slots to keep free in a region (C_r).
        initial: Hosts of the first placement (R_init).
        low: Utilisation that drains a host.
        infrastructure: True scales hosts too, False only instances. "shared" requests hosts from a pool's arbiter and
            returns empty ones.
        period: Time between rounds of the application level (s).
        infrastructure_period: Time between rounds of the infrastructure level (s).
        tokens: Reconfigurations allowed in `window` seconds; None for no limit.
        patience: Time to leave a draining host (s).
        prefer: Regions that grow first.
        max_price: Largest price per second in a growing region.
        max_latency: Largest latency of a growing region (s).
        latency: Latency by region (s), where none is measured.
        capacity: Largest number of hosts by region.
        consolidate_below: Mean utilisation at which a region's least used host is left too.
        seed: For the choice of the instance to remove.
    """

    scale_out: float = 0.7
    scale_in: float = 0.75
    spare: int = 5
    initial: int = 5
    low: float = 0.1
    infrastructure: bool | Literal["shared"] = True
    period: float = 30.0
    infrastructure_period: float = 60.0
    tokens: float | None = None
    window: float = 60.0
    patience: float = 120.0
    prefer: tuple[str, ...] = ()
    max_price: float | None = None
    max_latency: float | None = None
    latency: Mapping[str, float] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    consolidate_below: float | None = None
    seed: int = 0

    needs: ClassVar[Needs] = frozenset(
        {(Rows.APPLICATION, Metric.LATENCY), (Rows.OPERATOR, Metric.BUSY_CORES), (Rows.HOST, Metric.CPU)}
    )

    def __post_init__(self) -> None:
        if self.infrastructure not in (True, False, "shared"):
            raise InputError(f"e2df: infrastructure is {self.infrastructure!r}: it must be true, false or 'shared'")

    name: ClassVar = "e2df"

    def plan(self, observation: Observation, memory: E2dfMemory | None = None) -> Plan:
        memory, now = memory or E2dfMemory(), observation.time
        if now < memory.due - TICK or not observation.context.graph.operators:
            return Plan(memory=memory)
        hosts_too = bool(self.infrastructure) and now >= memory.hosts_due - TICK
        hosts_due = _next(memory.hosts_due, self.infrastructure_period, now) if hosts_too else memory.hosts_due
        memory = replace(memory, due=_next(memory.due, self.period, now), hosts_due=hosts_due)
        if not memory.spread and self._may_place(observation):
            memory = replace(memory, spread=True)
            if moves := self._first_placement(observation):
                return Plan(tuple(moves), memory)
        return self._round(observation, memory, hosts_too)

    def rules(self, observation: Observation, spread: bool) -> HierarchyRules:
        context = observation.context
        # A host that shuts down still counts for the plant, but no longer for the infrastructure manager.
        ending = sum(lease.state is HostState.RELEASING for lease in observation.leases.values())
        # Until the first placement, R_init hosts are needed, however many slots are spare.
        spare = self.spare if spread else max(self.spare, self.initial - len(observation.tasks))
        return HierarchyRules(
            OperatorRules(self.scale_out, self.scale_in, self.seed),
            ApplicationRules(math.inf if self.tokens is None else self.tokens, self.window),
            RegionRules(spare, self.low, self.infrastructure_period),
            ArbiterRules(
                self.patience,
                by_spare=True,
                prefer=self.prefer,
                regions=self.region_facts(observation),
                max_price=math.inf if self.max_price is None else self.max_price,
                max_latency=math.inf if self.max_latency is None else self.max_latency,
                max_hosts=context.max_hosts - ending,
                min_hosts=context.min_hosts,
                consolidate_below=self.consolidate_below,
            ),
        )

    def region_facts(self, observation: Observation) -> dict[str, RegionFacts]:
        latency = {**self.latency, **measured_latencies(observation)}
        return {
            region: RegionFacts(kind.price_rate, latency.get(region, 0.0), self.capacity.get(region, math.inf))
            for region, kind in smallest(observation.context.host_types.values()).items()
        }

    def _round(self, observation: Observation, memory: E2dfMemory, hosts_too: bool) -> Plan:
        snapshot, rules, state = snapshot_of(observation), self.rules(observation, memory.spread), memory.state
        own = self.infrastructure is True
        if state is None or not own:
            # Without a host manager here, the application may use every host.
            state = self._begin(observation, snapshot, rules, state)
        if own and (wanting := self._unscalable_full(observation, snapshot)):
            # An operator can use a free slot only on a host without its tasks. So lease one more host, and release none.
            free = int(np.bincount(snapshot.hosts.region, np.maximum(snapshot.spare, 0)).max(initial=0))
            scaling = InstanceActions(observation, snapshot)
            lacks = not observation.coming and any(not scaling.without(name) for name in wanting)
            rules = replace(rules, regions=replace(rules.regions, spare=max(rules.regions.spare, free + lacks)))
        context = observation.context
        most = max(operator.cores for operator in context.graph.operators)
        types = {name: kind for name, kind in context.host_types.items() if kind.cores >= most} or context.host_types
        types = {name: replace(kind, slots=holds(observation, kind)) for name, kind in types.items()}
        state, plan = planning_round(rules, state, snapshot, types, hosts_too=hosts_too and own)
        actions = self._scalings(observation, snapshot, plan)
        if own:
            actions += self._host_actions(observation, snapshot, plan, state, hosts_too)
        elif self.infrastructure:
            actions += requests(observation, snapshot, plan, tuple(types.values()))
            if hosts_too:
                actions += surplus(observation, snapshot, plan, self.infrastructure_period)
        kinds = {region: kind.name for region, kind in smallest(types.values()).items()}
        messages = refusals(snapshot, plan, kinds, f"h{state.infrastructure.next_number}")
        if not own:
            refused, recalled = arbiter_messages(observation)
            messages = replace(messages, refused=(*messages.refused, *refused), remarks=(*messages.remarks, *recalled))
        unknown = tuple(lacking(observation, snapshot))
        return replace(messages, actions=tuple(actions), memory=replace(memory, state=state), unknown=unknown)

    def _unscalable_full(self, observation: Observation, snapshot: Snapshot) -> list[str]:
        instances, names = snapshot.instances, snapshot.operators.names
        full = np.unique(instances.operator[instances.above(self.scale_out)]).tolist()
        return [names[row] for row in full if names[row] not in observation.context.scalable]

    def _may_place(self, observation: Observation) -> bool:
        """Return True if the first hosts are up and placed tasks are known (on Spark after the first batch)."""
        context = observation.context
        fixed = any(each.kind is Kind.KEYED and each.name not in context.scalable for each in context.graph.operators)
        enough = min(self.initial, context.max_hosts)
        up = self.infrastructure is not True or len(observation.usable) >= enough
        return up and (len(observation.tasks) > 0 or not fixed)

    def _first_placement(self, observation: Observation) -> list[Action]:
        hosts = observation.usable[: self.initial]
        tasks, names = observation.tasks, observation.hosts.ids
        at = {task: names[row] for task, row in zip(tasks.tasks, tasks.host.tolist(), strict=True) if row >= 0}
        target = initial_placement([str(task) for task in at], hosts)
        current, limit = Counter(at.values()), Counter(target.values())
        shared = {host for task, host in at.items() if task.operator not in observation.context.scalable}
        if max(current.values(), default=0) <= max(limit.values(), default=0) and len(shared) <= len(hosts):
            return []
        return [
            MoveTask(task, target[str(task)], why=f"first placement, over {counted(len(hosts), 'host')}")
            for task, host in at.items()
            if target[str(task)] != host
        ]

    def _begin(
        self, observation: Observation, snapshot: Snapshot, rules: HierarchyRules, before: Hierarchy | None
    ) -> Hierarchy:
        leases = [observation.leases[host] for host in snapshot.hosts.names]
        draining = [lease.host for lease in leases if lease.state is HostState.DRAINING]
        owner = np.where(snapshot.hosts.up, 0, -1)
        kinds = [lease.type.name for lease in leases]
        begun = begin(rules, snapshot, kinds, owner, observation.next_host, draining)
        if before is None:
            return begun
        application = replace(before.applications[0], hosts=begun.applications[0].hosts)
        return replace(begun, applications=(application,))

    def _scalings(self, observation: Observation, snapshot: Snapshot, plan: RoundPlan) -> list[Action]:
        actions: list[Action] = []
        proposals, scaling = plan.grants.proposals, InstanceActions(observation, snapshot)
        for row in np.flatnonzero(plan.grants.granted).tolist():
            operator = snapshot.operators.names[int(proposals.operator[row])]
            used = f"a replica is used at {proposals.utilisation[row]:.0%}"
            count, instance = int(proposals.instances[row]), int(proposals.instance[row])
            if proposals.change[row] > 0:
                host = int(proposals.host[row])
                on = snapshot.hosts.names[host] if host >= 0 else ""
                actions += scaling.add(operator, count, on, f"{used}, above {self.scale_out:.0%}")
            else:
                why = f"{used} at most, {count} would be used below {self.scale_in * self.scale_out:.1%}"
                growth = self.scale_out / float(proposals.utilisation[row]) if proposals.utilisation[row] > 0 else math.inf
                actions += scaling.remove(operator, count, instance, why, growth)
        for shift in plan.shifts:
            left = snapshot.hosts.names[int(snapshot.instances.host[shift.instance])]
            actions += scaling.move(shift.instance, snapshot.hosts.names[shift.host], f"{left} is to be left")
        return scaling.within_slots(actions)

    def _host_actions(
        self, observation: Observation, snapshot: Snapshot, plan: RoundPlan, state: Hierarchy, hosts_too: bool
    ) -> list[Action]:
        leases = {host: observation.leases[host] for host in snapshot.hosts.names}
        ordered = state.infrastructure.hosts
        # The application moves the instances off the host; the drain keeps the plant from placing others there.
        left = {snapshot.hosts.names[int(snapshot.instances.host[shift.instance])] for shift in plan.shifts}
        actions: list[Action] = [
            CancelDrain(host, why="it was not left in time, or its application is critical")
            for host in leases
            if host in observation.recoverable and host in ordered and host not in plan.leaving
        ]
        actions += [
            DrainHost(host, why=f"used at {self.low:.0%} or less")
            for host in sorted(left)
            if leases[host].state is HostState.RUNNING
        ]
        if hosts_too:
            # Release every leased host that is not on the region's order, also if an earlier release had no effect.
            actions += [
                ReleaseHost(host, why="no application holds it, and it is not needed as spare")
                for host in leases
                if host not in ordered
            ]
        for host, kind in plan.lease:
            region = observation.context.host_types[kind].region
            actions.append(LeaseHost(host, kind, region, why=f"fewer than {self.spare} slots are free in {region}"))
        return actions


def _next(due: float, period: float, now: float) -> float:
    return now + period if math.isinf(due) else due + period * max(1, math.ceil((now - due) / period + TICK))
