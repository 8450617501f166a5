"""E2DF as a policy for one application: the four managers in one process, against a plant.

What managers see of an observation, what they decide, and what that is as actions is `elastream.planning.managers`'s; here
is when each of them plans, and what it may not do.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from elastream.model.action import Action, CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost
from elastream.model.cloud import HostState
from elastream.model.errors import InputError
from elastream.model.metrics import Metric, Needs
from elastream.model.observation import Context, Observation
from elastream.model.plant import Plan
from elastream.model.promises import Rows
from elastream.model.wording import counted
from elastream.planning.algorithms.measures import TICK
from elastream.planning.managers.applications import ApplicationRules, initial_placement
from elastream.planning.managers.columns import Snapshot
from elastream.planning.managers.operators import OperatorRules
from elastream.planning.managers.regions import RegionRules, smallest
from elastream.planning.managers.replica_actions import ReplicaActions
from elastream.planning.managers.rounds import Hierarchy, HierarchyRules, RoundPlan, begin, planning_round
from elastream.planning.managers.seen import holds, lacking, snapshot_of
from elastream.planning.managers.shared import heard, requests, surplus
from elastream.planning.managers.telling import told
from elastream.planning.sharing.rules import ArbiterRules, RegionFacts

__all__ = ["E2df", "E2dfMemory"]


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
class E2df:
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
