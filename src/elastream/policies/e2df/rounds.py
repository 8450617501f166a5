"""One planning round of all managers in one process, where messages arrive at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.policies.e2df import applications, regions
from elastream.policies.e2df.applications import Application, ApplicationRules, Grants, OperatorRules, Shift
from elastream.policies.e2df.regions import Region, RegionRules
from elastream.policies.e2df.snapshot import Booleans, Snapshot
from elastream.sharing import holder
from elastream.sharing.arbiter import decide
from elastream.sharing.messages import Claim, RegionOrder, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Arbiter, HostRecord, Tenure, adopt


@dataclass(frozen=True)
class HierarchyRules:
    operators: OperatorRules = field(default_factory=OperatorRules)
    applications: ApplicationRules = field(default_factory=ApplicationRules)
    regions: RegionRules = field(default_factory=RegionRules)
    infrastructure: ArbiterRules = field(default_factory=lambda: ArbiterRules(by_spare=True))


@dataclass(frozen=True)
class Hierarchy:
    """State of all managers; applications and regions in snapshot order."""

    applications: tuple[Application, ...]
    regions: tuple[Region, ...]
    infrastructure: Arbiter


@dataclass(frozen=True)
class RoundPlan:
    grants: Grants  # verdicts on operators' proposals
    shifts: tuple[Shift, ...] = ()  # instances that move off hosts
    lease: tuple[tuple[str, str], ...] = ()  # hosts to lease as (name, type)
    release: tuple[str, ...] = ()  # hosts without a holder
    leaving: frozenset[str] = frozenset()  # hosts that applications must leave
    refused: Mapping[str, str] = field(default_factory=dict)  # reason by region for hosts it did not get
    # (host, manager, reason) of hosts that a region may not release
    refused_releases: tuple[tuple[str, str, str], ...] = ()


def begin(
    rules: HierarchyRules,
    snapshot: Snapshot,
    host_types: Sequence[str],
    owner: Integers,
    next_number: int,
    needed: Sequence[str] = (),
) -> Hierarchy:
    """Return managers that take over the leased hosts."""
    hosts, names = snapshot.hosts, snapshot.applications.names
    region_of, owners, up = hosts.region.tolist(), owner.tolist(), hosts.up.tolist()
    records: dict[str, HostRecord] = {}
    owned: list[dict[str, str]] = [{} for _ in names]
    ordered: list[dict[str, float]] = [{} for _ in snapshot.regions]
    until = snapshot.time + rules.infrastructure.patience
    for row, name in enumerate(hosts.names):
        region = snapshot.regions[region_of[row]]
        ordered[region_of[row]][name] = snapshot.time
        if not up[row] and name not in needed:
            records[name] = HostRecord(region, host_types[row])
        elif owners[row] < 0:
            records[name] = HostRecord(region, host_types[row], Tenure.FREE)
        else:
            owned[owners[row]][name] = host_types[row]
            records[name] = HostRecord(region, host_types[row], Tenure.HELD, names[owners[row]])
            if name in needed:
                records[name] = replace(records[name], tenure=Tenure.RECALLED, until=until, why="it is drained", goes=True)
    tokens = rules.applications.tokens
    return Hierarchy(
        tuple(
            Application(
                name, 1, 0, mine, {h: "it is drained" for h in needed if h in mine}, tokens=tokens, refilled=snapshot.time
            )
            for name, mine in zip(names, owned, strict=True)
        ),
        tuple(Region(name, 1, 0, mine) for name, mine in zip(snapshot.regions, ordered, strict=True)),
        adopt(records, snapshot.regions, dict.fromkeys(names, 1.0), next_number),
    )


def planning_round(
    rules: HierarchyRules, state: Hierarchy, snapshot: Snapshot, types: Mapping[str, HostType], *, hosts_too: bool
) -> tuple[Hierarchy, RoundPlan]:
    """Let operators propose and applications grant.

    With `hosts_too`, regions report and the infrastructure manager decides.
    """
    owner, withheld = _ownership(state, snapshot)
    proposals = applications.propose(rules.operators, snapshot, owner, withheld)
    tokens = applications.refilled(rules.applications, state.applications, snapshot.time)
    grants = applications.grant(snapshot, proposals, tokens)
    shifts = _shifts(state, snapshot, grants, owner, withheld)
    state = replace(state, applications=_remember(state, snapshot, grants, shifts, tokens))
    plan = RoundPlan(grants, shifts)
    if hosts_too:
        state, plan = _infrastructure_round(rules, state, snapshot, types, owner, withheld, plan)
    return state, replace(plan, leaving=_leaving(state))


def _ownership(state: Hierarchy, snapshot: Snapshot) -> tuple[Integers, Booleans]:
    rows = snapshot.hosts.rows
    owner = np.full(len(rows), -1, dtype=np.int64)
    withheld = np.zeros(len(rows), dtype=np.bool_)
    for number, application in enumerate(state.applications):
        mine = [row for host in application.hosts if (row := rows.get(host)) is not None]
        owner[mine] = number
        if application.leave:
            withheld[[row for host in application.leave if (row := rows.get(host)) is not None]] = True
    return owner, withheld


def _leaving(state: Hierarchy) -> frozenset[str]:
    return frozenset().union(*(application.leave for application in state.applications if application.leave))


def _shifts(state: Hierarchy, snapshot: Snapshot, grants: Grants, owner: Integers, withheld: Booleans) -> tuple[Shift, ...]:
    rows = snapshot.hosts.rows
    shifts: list[Shift] = []
    leaving = [n for n, each in enumerate(state.applications) if each.leave and not snapshot.critical[n]]
    if not leaving:
        return ()
    free = snapshot.free.copy()
    into = grants.proposals.host[grants.granted & (grants.proposals.host >= 0)]
    np.subtract.at(free, into, 1)
    going = {int(instance) for instance in grants.proposals.instance[grants.granted] if instance >= 0}
    usable = np.flatnonzero((owner >= 0) & ~withheld & snapshot.hosts.up & (free > 0))
    usable = usable[np.argsort(owner[usable], kind="stable")]
    bounds = np.searchsorted(owner[usable], np.arange(len(state.applications) + 1))
    for number in leaving:
        left = [row for host in state.applications[number].leave if (row := rows.get(host)) is not None]
        occupied = sorted(row for row in left if snapshot.placed[row])
        own = usable[bounds[number] : bounds[number + 1]]
        shifts += applications.move_off(snapshot, occupied, own, free)
    return tuple(shift for shift in shifts if shift.instance not in going)


def _remember(
    state: Hierarchy, snapshot: Snapshot, grants: Grants, shifts: Sequence[Shift], tokens: Floats
) -> tuple[Application, ...]:
    rows = grants.proposals.operator[grants.granted]
    spent = np.bincount(snapshot.operators.application[rows], minlength=len(state.applications))
    placements: dict[int, list[str]] = {}
    into = grants.proposals.host[grants.granted]
    for operator, host in zip(rows.tolist(), into.tolist(), strict=True):
        if host >= 0:
            application = int(snapshot.operators.application[operator])
            placements.setdefault(application, []).append(snapshot.hosts.names[host])
    for shift in shifts:
        application = int(snapshot.operators.application[snapshot.instances.operator[shift.instance]])
        placements.setdefault(application, []).append(snapshot.hosts.names[shift.host])
    result = list(state.applications)
    for row in np.flatnonzero(spent).tolist() + [row for row in placements if not spent[row]]:
        mine = dict.fromkeys(placements.get(row, ()), snapshot.time)
        result[row] = replace(
            result[row],
            tokens=float(tokens[row] - spent[row]),
            refilled=snapshot.time,
            granted={**result[row].granted, **mine},
        )
    return tuple(result)


def _infrastructure_round(
    rules: HierarchyRules,
    state: Hierarchy,
    snapshot: Snapshot,
    types: Mapping[str, HostType],
    owner: Integers,
    withheld: Booleans,
    plan: RoundPlan,
) -> tuple[Hierarchy, RoundPlan]:
    """Exchange messages twice, so that an empty host goes in the same round."""
    now = snapshot.time
    survey = regions.survey(rules.regions, snapshot, withheld)
    leased = dict(zip(snapshot.hosts.names, snapshot.hosts.up.tolist(), strict=True))
    smallest = regions.smallest(types.values())
    region_states, reports = regions.reports(rules.regions, state.regions, snapshot, survey, leased, smallest)
    states, claims = _claims(rules, state.applications, snapshot, _spare_slots(snapshot, owner, withheld))
    manager, sent = decide(rules.infrastructure, state.infrastructure, now, [*reports, *claims])
    by_region = {region.name: number for number, region in enumerate(region_states)}
    by_application = {application.name: number for number, application in enumerate(states)}
    lease: list[tuple[str, str]] = []
    release: list[str] = []
    refused: dict[str, str] = {}
    refused_releases: list[tuple[str, str, str]] = []
    viewed: list[int] = []

    def deliver(messages: Sequence[RegionOrder | View]) -> None:
        for message in messages:
            if isinstance(message, View):
                number = by_application[message.application]
                states[number] = holder.receive(states[number], message)
                viewed.append(number)
                continue
            number = by_region[message.region]
            region_states[number], more, less = regions.receive(region_states[number], message, now)
            lease.extend(more)
            release.extend(less)
            refused_releases.extend(message.kept)
            if message.refused:
                refused[message.region] = message.refused

    deliver(sent)
    again = [states[number] for number in dict.fromkeys(viewed)]
    answered, claims = _claims(rules, again, snapshot, {})
    for application in answered:
        states[by_application[application.name]] = application
    manager, sent = decide(rules.infrastructure, manager, now, claims)
    deliver(sent)
    plan = replace(
        plan, lease=tuple(lease), release=tuple(release), refused=refused, refused_releases=tuple(refused_releases)
    )
    return Hierarchy(tuple(states), tuple(region_states), manager), plan


def _spare_slots(snapshot: Snapshot, owner: Integers, withheld: Booleans) -> dict[str, tuple[tuple[str, int], ...]]:
    mine = np.flatnonzero((owner >= 0) & ~withheld)
    group, at = np.unique(owner[mine] * len(snapshot.regions) + snapshot.hosts.region[mine], return_inverse=True)
    slots = np.bincount(at, snapshot.spare[mine], minlength=len(group)).astype(np.int64)
    application, region = np.divmod(group, len(snapshot.regions))
    pairs = list(zip([snapshot.regions[r] for r in region.tolist()], slots.tolist(), strict=True))
    bounds = np.searchsorted(application, np.arange(len(snapshot.applications.names) + 1)).tolist()
    return {
        name: tuple(pairs[bounds[number] : bounds[number + 1]]) for number, name in enumerate(snapshot.applications.names)
    }


def _claims(
    rules: HierarchyRules,
    among: Sequence[Application],
    snapshot: Snapshot,
    spare: Mapping[str, tuple[tuple[str, int], ...]],
) -> tuple[list[Application], list[Claim]]:
    rows, placed = snapshot.hosts.rows, snapshot.placed
    critical = dict(zip(snapshot.applications.names, snapshot.critical.tolist(), strict=True))
    states, claims = [], []
    for application in among:
        occupied = frozenset(host for host in application.leave if (row := rows.get(host)) is not None and placed[row] > 0)
        one, claim = applications.answer(
            rules.applications, application, snapshot.time, occupied, critical[application.name],
            spare.get(application.name, ()),
        )  # fmt: skip
        states.append(one)
        claims.append(claim)
    return states, claims
