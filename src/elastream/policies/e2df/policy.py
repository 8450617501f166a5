"""E2DF as a policy for one application: the four managers in one process, against a plant.

What managers see of an observation, what they decide, and what that is as actions is `elastream.policies.e2df`'s; here
is when each of them plans, and what it may not do.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from elastream.core.action import Action, CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetParallelism
from elastream.core.decision import Proposal
from elastream.core.hosts import HostState, HostType
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.errors import InputError
from elastream.policies.common.measures import TICK, host_capacity
from elastream.policies.e2df.applications import ApplicationRules, Refusal, initial_placement
from elastream.policies.e2df.columns import Snapshot
from elastream.policies.e2df.operators import OperatorRules
from elastream.policies.e2df.regions import RegionRules, smallest
from elastream.policies.e2df.rounds import Hierarchy, HierarchyRules, RoundPlan, begin, planning_round
from elastream.policies.e2df.snapshot import floating, holds, lacking, snapshot_of, width
from elastream.sharing.rules import ArbiterRules, RegionFacts


class ReplicaActions:
    """Replicas as the plant knows them: instances whose number is set, or a host's share of tasks, which are moved."""

    def __init__(self, observation: Observation, snapshot: Snapshot) -> None:
        self.observation = observation
        self.snapshot = snapshot

    def add(self, operator: str, count: int, host: str, why: str) -> list[Action]:
        """One replica more, `count` in all, on `host` (empty: anywhere).

        A host holds one replica of a fixed number of tasks: one more is on a host without, and none where there is no such.
        It takes its share of them from those hosts that hold most of them for what they can do.
        """
        if self._scalable(operator):
            return [SetParallelism(operator, count, on=(host,) if host else (), why=why)]
        held = self._held(operator)
        if host in held:
            hosts, others = self.observation.hosts, self.without(operator)
            used = {other: hosts.value(other, Metric.CPU) for other in others}
            host = min(others, key=lambda other: (math.isnan(used[other]), used[other]), default="")
        if not host:
            return []
        share = max(1, sum(map(len, held.values())) // count)
        moves: list[Action] = []
        while len(moves) < share:
            giver = max(held, key=lambda each: self._load(each, len(held[each])))
            if not self._load(giver, len(held[giver])) > self._load(host, len(moves) + 1):
                break  # as many hosts as tasks, and none of them slower than this one
            moves.append(MoveTask(held[giver].pop(), host, why=why))
        return moves

    def without(self, operator: str) -> list[str]:
        """Usable hosts that hold none of an operator's tasks."""
        held = self._held(operator)
        return [host for host in self.observation.usable if host not in held]

    def remove(self, operator: str, count: int, replica: int, why: str, growth: float) -> list[Action]:
        """One replica fewer, `count` in all: the one in row `replica`.

        growth: none where tasks are whole and one of the others would be used more than so many times as much.
        """
        replicas = self.snapshot.replicas
        if self._scalable(operator):
            placed = replicas.host[replica] >= 0
            gone = (TaskId(operator, int(replicas.index[replica])),) if placed else ()
            return [SetParallelism(operator, count, without=gone, why=why)]
        held = self._held(operator)
        most = max(self._load(each, len(tasks)) for each, tasks in held.items())
        moves: list[Action] = []
        for task in held.pop(self.snapshot.hosts.names[int(replicas.host[replica])]):
            taker = min(held, key=lambda each: self._load(each, len(held[each]) + 1))
            held[taker].append(task)
            moves.append(MoveTask(task, taker, why=why))
        return moves if max(self._load(each, len(tasks)) for each, tasks in held.items()) <= growth * most else []

    def move(self, replica: int, host: str, why: str) -> list[Action]:
        """The replica in row `replica` to `host`."""
        replicas = self.snapshot.replicas
        operator = self.snapshot.operators.names[int(replicas.operator[replica])]
        if self._scalable(operator):
            return [MoveTask(TaskId(operator, int(replicas.index[replica])), host, why=why)]
        return [
            MoveTask(task, host, why=why)
            for task in self._held(operator)[self.snapshot.hosts.names[int(replicas.host[replica])]]
        ]

    def within_slots(self, actions: Sequence[Action]) -> list[Action]:
        """`actions` with no operator whose instances stand nowhere left with more of them than there are slots."""
        observation = self.observation
        slots = max(1, sum(observation.leases[host].type.slots for host in observation.usable))
        wanted = {action.operator: action for action in actions if isinstance(action, SetParallelism)}
        kept: list[Action] = [action for action in actions if not isinstance(action, SetParallelism)]
        for row in floating(observation):
            operator, now = observation.operators.ids[row], int(width(observation, row))
            asked = wanted.pop(operator, None)
            if (asked.instances if asked else now) <= slots:
                kept += [asked] if asked else []
            elif now != slots:
                kept.append(SetParallelism(operator, slots, why=f"there are {slots} slots"))
        return [*kept, *wanted.values()]

    def _scalable(self, operator: str) -> bool:
        return operator in self.observation.context.scalable

    def _load(self, host: str, tasks: int) -> float:
        """How much so many tasks use a host, over what one uses a core of speed 1."""
        return tasks / host_capacity(self.observation, host)

    def _held(self, operator: str) -> dict[str, list[TaskId]]:
        """Tasks of an operator by host."""
        names, tasks = self.observation.hosts.ids, self.observation.tasks
        found: dict[str, list[TaskId]] = {}
        for task, row in zip(tasks.tasks, tasks.host.tolist(), strict=True):
            if task.operator == operator and row >= 0:
                found.setdefault(names[row], []).append(task)
        return found


def told(snapshot: Snapshot, plan: RoundPlan, kinds: Mapping[str, str], name: str) -> Plan:
    """A plan without actions: refused proposals of operator and region managers, remarks on stuck operators and hosts.

    kinds: type that each region adds. name: of the next host, which a refused one would have had.
    """
    refused = (*_refused_replicas(snapshot, plan), *_refused_hosts(snapshot, plan, kinds, name))
    return Plan(remarks=_stuck(snapshot, plan), refused=refused)


def _refused_replicas(snapshot: Snapshot, plan: RoundPlan) -> list[Proposal]:
    """What operator managers proposed and the application manager refused."""
    proposals, refusals = plan.grants.proposals, plan.grants.refusals
    found = []
    for row in np.flatnonzero(~plan.grants.granted).tolist():
        operator, host = snapshot.operators.names[int(proposals.operator[row])], int(proposals.host[row])
        on = (snapshot.hosts.names[host],) if host >= 0 else ()
        wanted = SetParallelism(operator, int(proposals.replicas[row]), on=on)
        why = f"application manager: {Refusal(int(refusals[row])).reason}"
        found.append(Proposal(wanted, f"operator manager of {operator}", why))
    return found


def _refused_hosts(snapshot: Snapshot, plan: RoundPlan, kinds: Mapping[str, str], name: str) -> list[Proposal]:
    """What region managers proposed and the infrastructure manager, or for it an application manager, refused."""
    found = [
        Proposal(LeaseHost(name, kinds[region], region), f"region manager of {region}", f"infrastructure manager: {why}")
        for region, why in plan.refused.items()
    ]
    for host, manager, why in plan.kept:
        row = snapshot.hosts.rows.get(host)
        if row is None:
            continue  # the host is lost: no manager would free it
        wanted = DrainHost(host) if snapshot.placed[row] else ReleaseHost(host)
        by = f"region manager of {snapshot.regions[int(snapshot.hosts.region[row])]}"
        found.append(Proposal(wanted, by, f"{manager}: {why}"))
    return found


def _stuck(snapshot: Snapshot, plan: RoundPlan) -> tuple[str, ...]:
    """Operators that would have a replica more, and hosts that are to be left, where there is no room for it."""
    operators = [snapshot.operators.names[row] for row in plan.grants.proposals.stuck.tolist()]
    remarks = [f"{name} would have a replica more, and no host of its region has a free slot" for name in operators]
    replicas, hosts = snapshot.replicas, snapshot.hosts
    leaves = {int(replicas.host[shift.replica]) for shift in plan.shifts}
    critical = bool(snapshot.critical.any())
    for host in sorted(plan.leaving):
        row = hosts.rows.get(host)
        if row is not None and snapshot.placed[row] and row not in leaves and not critical:
            remarks.append(f"{host} is to be left, and there is no room elsewhere for what it holds")
    return tuple(remarks)


def requests(observation: Observation, snapshot: Snapshot, plan: RoundPlan, types: tuple[HostType, ...]) -> list[Action]:
    """One host for an operator that would have a replica more and finds no free slot; none while another is on its way.

    In the region where the operator is; where a request there is refused, in the next region, by price.
    """
    operators = _short_of_slots(observation, snapshot, plan)
    if (
        not operators
        or len([lease for lease in observation.leases.values() if lease.active]) >= observation.context.max_hosts
    ):
        return []
    kinds = smallest(types)
    replicas, hosts = snapshot.replicas, snapshot.hosts
    row = snapshot.operators.names.index(operators[0])
    on = replicas.host[(replicas.operator == row) & (replicas.host >= 0)]
    home = {snapshot.regions[region] for region in hosts.region[on].tolist()}
    for region in sorted(kinds, key=lambda name: (name not in home, kinds[name].price / kinds[name].billing.unit, name)):
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
    """Hosts that have held nothing, for `settle` seconds since they came up at least, while no operator lacks a slot."""
    if _short_of_slots(observation, snapshot, plan):
        return []
    into = {snapshot.hosts.names[row] for row in plan.grants.proposals.host[plan.grants.granted].tolist() if row >= 0}
    usable = observation.usable
    spared = len(usable) - max(1, observation.context.min_hosts)
    found: list[Action] = []
    for host in reversed(usable):
        since = observation.leases[host].ready_at()
        row = snapshot.hosts.rows[host]
        empty = not snapshot.placed[row] and host not in into
        if len(found) < spared and empty and since is not None and observation.time - since >= settle:
            found.append(ReleaseHost(host, why="it holds nothing"))
    return found


def heard(observation: Observation) -> tuple[tuple[Proposal, ...], tuple[str, ...]]:
    """(requests that wait, each with what the arbiter says of it; recalls, as sentences)."""
    refused, recalled = [], []
    for name, lease in observation.leases.items():
        if lease.note and lease.state is HostState.REQUESTED:
            wanted = LeaseHost(name, lease.type.name, lease.type.region)
            refused.append(Proposal(wanted, "application manager", f"infrastructure manager: {lease.note}"))
        elif lease.note and lease.active:
            recalled.append(f"{name} is recalled: {lease.note}")
    return tuple(refused), tuple(recalled)


def _short_of_slots(observation: Observation, snapshot: Snapshot, plan: RoundPlan) -> list[str]:
    """Operators that would have a replica more and have no slot for it."""
    proposals = plan.grants.proposals
    found = [snapshot.operators.names[row] for row in proposals.stuck.tolist()]
    slots = sum(observation.leases[host].type.slots for host in observation.usable)
    for row in floating(observation):
        grows = (proposals.operator == row) & (proposals.change > 0)
        if np.any(grows) and width(observation, row) >= slots:
            found.append(observation.operators.ids[row])
    return found


@dataclass(frozen=True, slots=True)
class E2dfMemory:
    """What `E2df` remembers of a run. state: of all managers. spread: whether the first placement is done.

    due, hosts_due: times of the next rounds of the application and of the infrastructure level.
    """

    state: Hierarchy | None = None
    spread: bool = False
    due: float = -math.inf
    hosts_due: float = -math.inf


@dataclass(frozen=True)
class E2df(Policy):
    """The policy.

    scale_out, scale_in: S_s-out and c. spare: C_r. initial: R_init, hosts over which replicas are first spread, by count.
    low: utilisation of a host at which it is drained.

    infrastructure: whether hosts follow. True: region managers and the infrastructure manager are here, too. False: only
    replicas follow, on the hosts that are there. "shared": these managers are elsewhere, the arbiter of hosts that several
    applications share and its regions; the policy requests a host where an operator finds no free slot, gives back what is
    empty, and leaves what is recalled. period, infrastructure_period: seconds between rounds of the application and of the
    infrastructure level. tokens: at most that many reconfigurations in `window` seconds; None: no limit. patience: seconds
    to leave a host that is to be drained. prefer: regions that grow before all others. max_price, max_latency: a region
    whose smallest host costs more (a second), or that is further away (seconds, as `latency` has it by region), does not
    grow; None: any may. capacity: hosts that a region can have, where it is bounded. consolidate_below: mean utilisation of
    a region's hosts at or below which its least used one is to be left too; None: never. seed: of the replica that goes.
    Defaults are the paper's, section 5.

    What its managers remember of a run is one value, `E2dfMemory`.
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
        """The plan of this round; no actions between two rounds of the application level."""
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
        """The rules of its managers under what the plant allows. spread: whether the first placement is done."""
        context = observation.context
        # A host that shuts down still counts for the plant, and no more for the infrastructure manager.
        ending = sum(lease.state is HostState.RELEASING for lease in observation.leases.values())
        # Until the first placement, R_init hosts must be there, whatever is spare.
        spare = self.spare if spread else max(self.spare, self.initial - len(observation.tasks))
        return HierarchyRules(
            OperatorRules(self.scale_out, self.scale_in, self.seed),
            ApplicationRules(math.inf if self.tokens is None else self.tokens, self.window),
            RegionRules(spare, self.low, self.infrastructure_period),
            ArbiterRules(
                self.patience,
                by_spare=True,
                prefer=self.prefer,
                regions=self._region_facts(context),
                max_price=math.inf if self.max_price is None else self.max_price,
                max_latency=math.inf if self.max_latency is None else self.max_latency,
                max_hosts=context.max_hosts - ending,
                min_hosts=context.min_hosts,
                consolidate_below=self.consolidate_below,
            ),
        )

    def _region_facts(self, context: Context) -> dict[str, RegionFacts]:
        return {
            region: RegionFacts(
                kind.price / kind.billing.unit, self.latency.get(region, 0.0), self.capacity.get(region, math.inf)
            )
            for region, kind in smallest(context.host_types.values()).items()
        }

    def _round(self, observation: Observation, memory: E2dfMemory, hosts_too: bool) -> Plan:
        snapshot, rules, state = snapshot_of(observation), self.rules(observation, memory.spread), memory.state
        own = self.infrastructure is True
        if state is None or not own:
            # Without a host manager here, the application may use every host.
            state = self._begin(observation, snapshot, rules, state)
        if own and (wanting := self._wanting(observation, snapshot)):
            # A free slot is of use only on a host that holds none of its tasks: one more is leased, and none given back.
            free = int(np.bincount(snapshot.hosts.region, np.maximum(snapshot.spare, 0)).max(initial=0))
            replicas = ReplicaActions(observation, snapshot)
            lacks = not observation.coming and any(not replicas.without(name) for name in wanting)
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
        said = told(snapshot, plan, kinds, f"h{state.infrastructure.next_number}")
        if not own:
            refused, recalled = heard(observation)
            said = replace(said, refused=(*said.refused, *refused), remarks=(*said.remarks, *recalled))
        unknown = tuple(lacking(observation, snapshot))
        return replace(said, actions=tuple(actions), memory=replace(memory, state=state), unknown=unknown)

    def _wanting(self, observation: Observation, snapshot: Snapshot) -> list[str]:
        """Operators with a fixed number of tasks that would have a replica more."""
        replicas, names = snapshot.replicas, snapshot.operators.names
        full = np.unique(replicas.operator[replicas.above(self.scale_out)]).tolist()
        return [names[row] for row in full if names[row] not in observation.context.scalable]

    def _may_place(self, observation: Observation) -> bool:
        """Whether the first R_init hosts run, or hosts do not follow."""
        wanted = min(self.initial, observation.context.max_hosts)
        return self.infrastructure is not True or len(observation.usable) >= wanted

    def _first_placement(self, observation: Observation) -> list[Action]:
        """Moves that put all replicas on the first R_init hosts; none where these have their share.

        A fixed number of tasks may lie on more hosts, each holding a replica; they are brought together.
        """
        hosts = observation.usable[: self.initial]
        tasks, names = observation.tasks, observation.hosts.ids
        at = {task: names[row] for task, row in zip(tasks.tasks, tasks.host.tolist(), strict=True) if row >= 0}
        wanted = initial_placement([str(task) for task in at], hosts)
        held, limit = Counter(at.values()), Counter(wanted.values())
        shared = {host for task, host in at.items() if task.operator not in observation.context.scalable}
        if max(held.values(), default=0) <= max(limit.values(), default=0) and len(shared) <= len(hosts):
            return []
        return [
            MoveTask(task, wanted[str(task)], why=f"first placement, over {counted(len(hosts), 'host')}")
            for task, host in at.items()
            if wanted[str(task)] != host
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
        kept = replace(before.applications[0], hosts=begun.applications[0].hosts)
        return replace(begun, applications=(kept,))

    def _scalings(self, observation: Observation, snapshot: Snapshot, plan: RoundPlan) -> list[Action]:
        """Replicas more, fewer and elsewhere."""
        actions: list[Action] = []
        proposals, replicas = plan.grants.proposals, ReplicaActions(observation, snapshot)
        for row in np.flatnonzero(plan.grants.granted).tolist():
            operator = snapshot.operators.names[int(proposals.operator[row])]
            used = f"a replica is used at {proposals.utilisation[row]:.0%}"
            count, replica = int(proposals.replicas[row]), int(proposals.replica[row])
            if proposals.change[row] > 0:
                host = int(proposals.host[row])
                on = snapshot.hosts.names[host] if host >= 0 else ""
                actions += replicas.add(operator, count, on, f"{used}, above {self.scale_out:.0%}")
            else:
                why = f"{used} at most, {count} would be used below {self.scale_in * self.scale_out:.1%}"
                growth = self.scale_out / float(proposals.utilisation[row]) if proposals.utilisation[row] > 0 else math.inf
                actions += replicas.remove(operator, count, replica, why, growth)
        for shift in plan.shifts:
            left = snapshot.hosts.names[int(snapshot.replicas.host[shift.replica])]
            actions += replicas.move(shift.replica, snapshot.hosts.names[shift.host], f"{left} is to be left")
        return replicas.within_slots(actions)

    def _host_actions(
        self, observation: Observation, snapshot: Snapshot, plan: RoundPlan, state: Hierarchy, hosts_too: bool
    ) -> list[Action]:
        """Drains begun and cancelled; where the infrastructure level had its round, releases and leases."""
        leases = {host: observation.leases[host] for host in snapshot.hosts.names}
        known = state.infrastructure.hosts
        # Its application sends the replicas of a host elsewhere; the drain then keeps the plant from putting others there.
        left = {snapshot.hosts.names[int(snapshot.replicas.host[shift.replica])] for shift in plan.shifts}
        actions: list[Action] = [
            CancelDrain(host, why="it was not left in time, or its application is critical")
            for host, lease in leases.items()
            if lease.state is HostState.DRAINING and host in known and host not in plan.leaving
        ]
        actions += [
            DrainHost(host, why=f"used at {self.low:.0%} or less")
            for host in sorted(left)
            if leases[host].state is HostState.RUNNING
        ]
        if hosts_too:
            # Whatever is leased and not on the region's order goes, also what an earlier release did not rid us of.
            actions += [
                ReleaseHost(host, why="no application holds it, and it is not needed as spare")
                for host in leases
                if host not in known
            ]
        for host, kind in plan.lease:
            region = observation.context.host_types[kind].region
            actions.append(LeaseHost(host, kind, region, why=f"fewer than {self.spare} slots are free in {region}"))
        return actions


def _next(due: float, period: float, now: float) -> float:
    """The first multiple of `period` after `due` that is after `now`; from now on where there was none."""
    return now + period if math.isinf(due) else due + period * max(1, math.ceil((now - due) / period + TICK))
