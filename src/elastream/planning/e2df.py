"""E2DF as a policy for one application: the four managers in one process, against a plant.

This turns an observation into the columns that managers see, and their plan into actions. What is decided is
`elastream.planning.hierarchy`'s.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from elastream.model.action import (
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    ReleaseHost,
    SetParallelism,
    TaskId,
)
from elastream.model.cloud import HostState
from elastream.model.decision import Report
from elastream.model.observation import Context, Floats, Integers, Metric, Observation
from elastream.planning.hierarchy.applications import ApplicationRules, initial_placement
from elastream.planning.hierarchy.columns import Applications, Hosts, Operators, Replicas, Snapshot, identities
from elastream.planning.hierarchy.infrastructure import InfrastructureRules, RegionFacts
from elastream.planning.hierarchy.operators import OperatorRules
from elastream.planning.hierarchy.regions import RegionRules, smallest
from elastream.planning.hierarchy.rounds import Hierarchy, Plan, Rules, begin, planning_round
from elastream.planning.hierarchy.telling import told
from elastream.planning.measures import capacity, host_capacity, known_sum

__all__ = ["E2df", "snapshot_of"]

TICK = 1e-6
"""Seconds by which a round may come early: times are sums of fractions."""


@dataclass
class E2df:
    """The policy.

    scale_out, scale_in: S_s-out and c. spare: C_r. initial: R_init, hosts over which replicas are first spread, by count.
    low: utilisation of a host at which it is drained.

    infrastructure: whether hosts follow (False: only replicas do, on the hosts that are there). period,
    infrastructure_period: seconds between rounds of the application and of the infrastructure level. tokens: at most that
    many reconfigurations in `window` seconds; None: no limit. patience: seconds to leave a host that is to be drained.
    prefer: regions that grow before all others. max_price, max_latency: a region whose smallest host costs more (a second),
    or that is further away (seconds, as `latency` has it by region), does not grow; None: any may. capacity: hosts that a
    region can have, where it is bounded. consolidate_below: mean utilisation of a region's hosts at or below which its
    least used one is to be left too; None: never. seed: of the replica that goes. Defaults are the paper's, section 5.

    What managers remember is one value, replaced once a round; asked again about the same moment, it answers the same.
    """

    scale_out: float = 0.7
    scale_in: float = 0.75
    spare: int = 5
    initial: int = 5
    low: float = 0.1
    infrastructure: bool = True
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
    _state: Hierarchy | None = field(default=None, init=False, repr=False, compare=False)
    _spread: bool = field(default=False, init=False, repr=False, compare=False)
    _due: float = field(default=-math.inf, init=False, repr=False, compare=False)
    _hosts_due: float = field(default=-math.inf, init=False, repr=False, compare=False)
    _last: tuple[float, tuple[Action, ...]] = field(default=(-math.inf, ()), init=False, repr=False, compare=False)
    _said: Report = field(default_factory=Report, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """What people call it."""
        return "e2df"

    def plan(self, observation: Observation) -> Sequence[Action]:
        """Actions for this round; none between two rounds of the application level."""
        now = observation.time
        if now == self._last[0]:
            return self._last[1]
        actions: tuple[Action, ...] = ()
        self._said = Report()
        if now >= self._due - TICK:
            self._due = _next(self._due, self.period, now)
            hosts_too = self.infrastructure and now >= self._hosts_due - TICK
            if hosts_too:
                self._hosts_due = _next(self._hosts_due, self.infrastructure_period, now)
            actions = tuple(self._round(observation, hosts_too))
        self._last = (now, actions)
        return actions

    def report(self, observation: Observation, actions: Sequence[Action]) -> Report:
        """What its managers refused each other in the round about `observation`, and operators and hosts that are stuck."""
        return self._said if observation.time == self._last[0] else Report()

    def rules(self, observation: Observation) -> Rules:
        """The rules of its managers under what the plant allows."""
        context = observation.context
        # A host that shuts down still counts for the plant, and no more for the infrastructure manager.
        ending = sum(lease.state is HostState.RELEASING for lease in observation.leases.values())
        # Until the first placement, R_init hosts must be there, whatever is spare.
        spare = self.spare if self._spread else max(self.spare, self.initial - len(observation.tasks))
        return Rules(
            OperatorRules(self.scale_out, self.scale_in, self.seed),
            ApplicationRules(math.inf if self.tokens is None else self.tokens, self.window),
            RegionRules(spare, self.low, self.infrastructure_period),
            InfrastructureRules(
                self.patience,
                self.prefer,
                self._region_facts(context),
                math.inf if self.max_price is None else self.max_price,
                math.inf if self.max_latency is None else self.max_latency,
                context.max_hosts - ending,
                context.min_hosts,
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

    def _round(self, observation: Observation, hosts_too: bool) -> list[Action]:
        if moves := self._first_placement(observation):
            return moves
        snapshot, rules = snapshot_of(observation), self.rules(observation)
        if self._state is None or not self.infrastructure:
            # Where hosts do not follow, the application may use whatever is there.
            self._state = self._begin(observation, snapshot, rules, self._state)
        context = observation.context
        most = max(operator.cores for operator in context.graph.operators)
        types = {name: kind for name, kind in context.host_types.items() if kind.cores >= most} or context.host_types
        self._state, plan = planning_round(rules, self._state, snapshot, types, hosts_too=hosts_too)
        actions = self._scalings(observation, snapshot, plan)
        if self.infrastructure:
            actions += self._host_actions(observation, snapshot, plan, self._state, hosts_too)
        kinds = {region: kind.name for region, kind in smallest(types.values()).items()}
        name = f"h{self._state.infrastructure.next_number}"
        self._said = told(snapshot, plan, kinds, name)
        return actions

    def _first_placement(self, observation: Observation) -> list[Action]:
        """Moves that put all replicas on the first R_init hosts, once these run; none where these have their share.

        A fixed number of tasks may lie on more hosts, each holding a replica; they are brought together.
        """
        hosts = observation.usable[: self.initial]
        if self._spread or (self.infrastructure and len(hosts) < min(self.initial, observation.context.max_hosts)):
            return []
        self._spread = True
        tasks, names = observation.tasks, observation.hosts.ids
        at = {task: names[row] for task, row in zip(tasks.tasks, tasks.host.tolist(), strict=True) if row >= 0}
        wanted = initial_placement([str(task) for task in at], hosts)
        held, limit = Counter(at.values()), Counter(wanted.values())
        shared = {host for task, host in at.items() if task.operator not in observation.context.scalable}
        if max(held.values(), default=0) <= max(limit.values(), default=0) and len(shared) <= len(hosts):
            return []
        return [
            MoveTask(task, wanted[str(task)], why=f"first placement, over {len(hosts)} hosts")
            for task, host in at.items()
            if wanted[str(task)] != host
        ]

    def _begin(self, observation: Observation, snapshot: Snapshot, rules: Rules, before: Hierarchy | None) -> Hierarchy:
        leases = [observation.leases[host] for host in snapshot.hosts.names]
        draining = [lease.host for lease in leases if lease.state is HostState.DRAINING]
        owner = np.where(snapshot.hosts.up, 0, -1)
        kinds = [lease.type.name for lease in leases]
        begun = begin(rules, snapshot, kinds, owner, observation.next_host, draining)
        if before is None:
            return begun
        kept = replace(before.applications[0], hosts=begun.applications[0].hosts)
        return replace(begun, applications=(kept,))

    def _scalings(self, observation: Observation, snapshot: Snapshot, plan: Plan) -> list[Action]:
        """Replicas more, fewer and elsewhere."""
        actions: list[Action] = []
        proposals, seats = plan.grants.proposals, _Seats(observation, snapshot)
        for row in np.flatnonzero(plan.grants.granted).tolist():
            operator = snapshot.operators.names[int(proposals.operator[row])]
            used = f"a replica is used at {proposals.utilisation[row]:.0%}"
            count, replica = int(proposals.replicas[row]), int(proposals.replica[row])
            if proposals.change[row] > 0:
                host = int(proposals.host[row])
                on = snapshot.hosts.names[host] if host >= 0 else ""
                actions += seats.add(operator, count, on, f"{used}, above {self.scale_out:.0%}")
            else:
                why = f"{used} at most, {count} would be used below {self.scale_in * self.scale_out:.1%}"
                actions += seats.remove(operator, count, replica, why)
        for shift in plan.shifts:
            left = snapshot.hosts.names[int(snapshot.replicas.host[shift.replica])]
            actions += seats.move(shift.replica, snapshot.hosts.names[shift.host], f"{left} is to be left")
        return seats.within_slots(actions)

    def _host_actions(
        self, observation: Observation, snapshot: Snapshot, plan: Plan, state: Hierarchy, hosts_too: bool
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
                ReleaseHost(host, why="nobody holds it, and it is not needed as spare")
                for host in leases
                if host not in known
            ]
        for host, kind in plan.lease:
            region = observation.context.host_types[kind].region
            actions.append(LeaseHost(host, kind, region, why=f"fewer than {self.spare} slots are free in {region}"))
        return actions


def snapshot_of(observation: Observation) -> Snapshot:
    """What the managers see of an observation, for one application.

    A replica is an instance of an operator that can be scaled. Of any other operator it is all that one host holds of it
    (on Spark: its state partitions there), with the operator's busy cores dealt over its tasks; of a scalable operator
    whose instances the plant places nowhere, each instance, all as used as the operator's stage is on average.

    Where instances are placed nowhere, the stages of a query take turns on the same slots: a replica then is as used as
    all turns together are long, its own and those of the other stages that it waits for. One stage at half of its slots'
    cores and another at half of its own leave nobody any time.
    """
    context = observation.context
    leases = {h: lease for h, lease in observation.leases.items() if lease.state is not HostState.RELEASING}
    regions = tuple(sorted({*(x.type.region for x in leases.values()), *(t.region for t in context.host_types.values())}))
    at = {region: row for row, region in enumerate(regions)}
    hosts = Hosts(
        tuple(leases),
        np.array([at[lease.type.region] for lease in leases.values()], dtype=np.int64),
        np.array([lease.type.slots for lease in leases.values()], dtype=np.int64),
        np.array([observation.hosts.value(host, Metric.CPU) for host in leases], dtype=np.float64),
        np.array([x.state in (HostState.RUNNING, HostState.DRAINING) for x in leases.values()], dtype=np.bool_),
    )
    names = observation.operators.ids
    response = observation.latency(Metric.LATENCY).value
    target = context.target_latency
    return Snapshot(
        observation.time,
        regions,
        hosts,
        _replicas(observation, hosts),
        Operators(names, np.zeros(len(names), dtype=np.int64), identities([f"{context.graph.name}/{n}" for n in names])),
        Applications(
            (context.graph.name,),
            np.array([math.nan if response is None else response]),
            np.array([math.nan if target is None else target]),
        ),
    )


_Part: TypeAlias = tuple[Integers, Integers, Integers, Floats]
"""Columns of replicas: operator, index, host, utilisation."""


def _replicas(observation: Observation, hosts: Hosts) -> Replicas:
    context, tasks, names = observation.context, observation.tasks, observation.operators.ids
    row_of = np.array([hosts.rows.get(host, -1) for host in observation.hosts.ids] or [-1], dtype=np.int64)
    host = np.where(tasks.host >= 0, row_of[tasks.host], -1)
    scalable = np.array([name in context.scalable for name in names], dtype=np.bool_)
    own = scalable[tasks.operator]
    used = tasks.column(Metric.UTILISATION)
    placed: list[_Part] = [(tasks.operator[own], tasks.index[own], host[own], used[own])]
    floating = _floating(observation)
    shares = [_shares(observation, hosts, row, host) for row in np.unique(tasks.operator[~own]).tolist()]
    turns = [*shares, *(_instances(observation, row) for row in floating)]
    if floating:
        # A turn of unknown length is none: what no meter sees of it is in the busy cores of the others.
        lengths = [float(np.nan_to_num(part[3]).max()) for part in turns]
        turns = [(*part[:3], part[3] + sum(lengths) - length) for part, length in zip(turns, lengths, strict=True)]
    pools = [_threads(observation, row) for row in _unplaced(observation) if _waits(observation, row)]
    operator, index, on, utilisation = (np.concatenate(each) for each in zip(*placed, *turns, *pools, strict=True))
    return Replicas(operator, index, on, utilisation)


def _shares(observation: Observation, hosts: Hosts, operator: int, host: Integers) -> _Part:
    """By host that holds some of an operator's tasks, all that it holds as one replica; `host`: row of each task."""
    mine = host[observation.tasks.operator == operator]
    rows, count = np.unique(mine[mine >= 0], return_counts=True)
    busy = _stage_sum(observation, observation.operators.ids[operator], Metric.BUSY_CORES)
    cores = np.array([host_capacity(observation, hosts.names[row]) for row in rows.tolist()])
    return np.full(len(rows), operator), rows, rows, busy * count / len(mine) / cores


def _unplaced(observation: Observation) -> list[int]:
    """Operators that can be scaled and whose instances stand nowhere."""
    scalable, placed = observation.context.scalable, set(observation.tasks.operator.tolist())
    return [
        row
        for row, name in enumerate(observation.operators.ids)
        if name in scalable and row not in placed and _width(observation, row)
    ]


def _floating(observation: Observation) -> list[int]:
    """Those of them whose instances take turns on slots."""
    return [row for row in _unplaced(observation) if not _waits(observation, row)]


def _instances(observation: Observation, operator: int) -> _Part:
    """Instances that stand nowhere, each as used as all are on average."""
    n, usable = int(_width(observation, operator)), observation.usable
    slots = sum(observation.leases[host].type.slots for host in usable)
    given = n * capacity(observation, usable) / slots if slots else math.nan
    each = _stage_sum(observation, observation.operators.ids[operator], Metric.BUSY_CORES) / given
    return np.full(n, operator), np.arange(n), np.full(n, -1), np.full(n, each)


def _threads(observation: Observation, operator: int) -> _Part:
    """Threads of an operator that waits: they take no slot, and are used while they wait."""
    n, used = int(_width(observation, operator)), observation.operators.value
    each = used(observation.operators.ids[operator], Metric.UTILISATION)
    return np.full(n, operator), np.arange(n), np.full(n, -1), np.full(n, each)


def _width(observation: Observation, operator: int) -> float:
    """Instances of an operator; 0 where that is unknown."""
    return float(np.nan_to_num(observation.operators.column(Metric.PARALLELISM)[operator]))


def _waits(observation: Observation, operator: int) -> bool:
    return observation.context.graph.operator(observation.operators.ids[operator]).waits


def _stage_sum(observation: Observation, operator: str, metric: Metric) -> float:
    stage = observation.context.layout.stage_of[operator]
    return known_sum(np.array([observation.operators.value(name, metric) for name in stage.operators]))


class _Seats:
    """Replicas as the plant knows them: instances whose number is set, or a host's share of tasks, which are moved."""

    def __init__(self, observation: Observation, snapshot: Snapshot) -> None:
        self.observation = observation
        self.snapshot = snapshot

    def add(self, operator: str, count: int, host: str, why: str) -> list[Action]:
        """One replica more, `count` in all, on `host` (empty: anywhere)."""
        if self._scalable(operator):
            return [SetParallelism(operator, count, on=(host,) if host else (), why=why)]
        held = self._held(operator)
        share = sum(map(len, held.values())) // count
        moves: list[Action] = []
        for _ in range(share):
            giver = max(held, key=lambda each: len(held[each]))
            moves.append(MoveTask(held[giver].pop(), host, why=why))
        return moves

    def remove(self, operator: str, count: int, replica: int, why: str) -> list[Action]:
        """One replica fewer, `count` in all: the one in row `replica`."""
        replicas = self.snapshot.replicas
        if self._scalable(operator):
            placed = replicas.host[replica] >= 0
            gone = (TaskId(operator, int(replicas.index[replica])),) if placed else ()
            return [SetParallelism(operator, count, without=gone, why=why)]
        held = self._held(operator)
        moves: list[Action] = []
        for task in held.pop(self.snapshot.hosts.names[int(replicas.host[replica])]):
            taker = min(held, key=lambda each: len(held[each]))
            held[taker].append(task)
            moves.append(MoveTask(task, taker, why=why))
        return moves

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
        for row in _floating(observation):
            operator, now = observation.operators.ids[row], int(_width(observation, row))
            asked = wanted.pop(operator, None)
            if (asked.instances if asked else now) <= slots:
                kept += [asked] if asked else []
            elif now != slots:
                kept.append(SetParallelism(operator, slots, why=f"there are {slots} slots"))
        return [*kept, *wanted.values()]

    def _scalable(self, operator: str) -> bool:
        return operator in self.observation.context.scalable

    def _held(self, operator: str) -> dict[str, list[TaskId]]:
        """Tasks of an operator by host."""
        names, tasks = self.observation.hosts.ids, self.observation.tasks
        found: dict[str, list[TaskId]] = {}
        for task, row in zip(tasks.tasks, tasks.host.tolist(), strict=True):
            if task.operator == operator and row >= 0:
                found.setdefault(names[row], []).append(task)
        return found


def _next(due: float, period: float, now: float) -> float:
    """The first multiple of `period` after `due` that is after `now`; from now on where there was none."""
    return now + period if math.isinf(due) else due + period * max(1, math.ceil((now - due) / period + TICK))
