"""One planning round of all four kinds of managers in one process, and what is to be done after it.

Messages are delivered at once here; the arbiter and its parties hold for any delay, loss or doubling, so that the same
managers can sit in processes of their own. Plans are applied by the owner of the plant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.policies.e2df import applications, operators, regions
from elastream.policies.e2df.applications import Application, ApplicationRules, Grants, Shift
from elastream.policies.e2df.columns import Booleans, Snapshot
from elastream.policies.e2df.operators import OperatorRules
from elastream.policies.e2df.regions import Region, RegionRules
from elastream.sharing import holder
from elastream.sharing.arbiter import decide
from elastream.sharing.messages import Claim, RegionOrder, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Arbiter, HostRecord, Tenure, adopt


@dataclass(frozen=True)
class HierarchyRules:
    """The rules of the four kinds of managers."""

    operators: OperatorRules = field(default_factory=OperatorRules)
    applications: ApplicationRules = field(default_factory=ApplicationRules)
    regions: RegionRules = field(default_factory=RegionRules)
    infrastructure: ArbiterRules = field(default_factory=lambda: ArbiterRules(by_spare=True))


@dataclass(frozen=True)
class Hierarchy:
    """What all managers remember; applications and regions in the order of the snapshot."""

    applications: tuple[Application, ...]
    regions: tuple[Region, ...]
    infrastructure: Arbiter


@dataclass(frozen=True)
class RoundPlan:
    """What is to be done. grants: on operators' proposals. shifts: replicas that leave a host that is to be left.

    lease: (host, type). release: hosts without a holder. leaving: hosts that applications are requested to leave.
    refused: by region why it did not get all that it asked for. kept: (host, manager, reason) of hosts that a region would
    have freed, with the manager that refused.
    """

    grants: Grants
    shifts: tuple[Shift, ...] = ()
    lease: tuple[tuple[str, str], ...] = ()
    release: tuple[str, ...] = ()
    leaving: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[tuple[str, str, str], ...] = ()


def begin(
    rules: HierarchyRules,
    snapshot: Snapshot,
    host_types: Sequence[str],
    owner: Integers,
    next_number: int,
    needed: Sequence[str] = (),
) -> Hierarchy:
    """Managers that take over hosts that are there. host_types: of each host. owner: row of its application, -1 for none.

    needed: hosts that are being drained already; their applications are requested again to leave them.
    """
    hosts, names = snapshot.hosts, snapshot.applications.names
    region_of, owners, up = hosts.region.tolist(), owner.tolist(), hosts.up.tolist()
    records: dict[str, HostRecord] = {}
    held: list[dict[str, str]] = [{} for _ in names]
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
            held[owners[row]][name] = host_types[row]
            records[name] = HostRecord(region, host_types[row], Tenure.HELD, names[owners[row]])
            if name in needed:
                records[name] = replace(records[name], tenure=Tenure.RECALLED, until=until, why="it is drained", goes=True)
    tokens = rules.applications.tokens
    return Hierarchy(
        tuple(
            Application(
                name, 1, 0, mine, {h: "it is drained" for h in needed if h in mine}, tokens=tokens, refilled=snapshot.time
            )
            for name, mine in zip(names, held, strict=True)
        ),
        tuple(Region(name, 1, 0, mine) for name, mine in zip(snapshot.regions, ordered, strict=True)),
        adopt(records, snapshot.regions, dict.fromkeys(names, 1.0), next_number),
    )


def planning_round(
    rules: HierarchyRules, state: Hierarchy, snapshot: Snapshot, types: Mapping[str, HostType], *, hosts_too: bool
) -> tuple[Hierarchy, RoundPlan]:
    """Operators propose, applications grant; with `hosts_too`, regions report and the infrastructure manager decides.

    types: what can be leased; the smallest of a region is what it adds.
    """
    owner, withheld = _ownership(state, snapshot)
    proposals = operators.propose(rules.operators, snapshot, owner, withheld)
    tokens = applications.refilled(rules.applications, state.applications, snapshot.time)
    grants = applications.grant(snapshot, proposals, tokens)
    shifts = _shifts(state, snapshot, grants, owner, withheld)
    state = replace(state, applications=_remember(state, snapshot, grants, shifts, tokens))
    plan = RoundPlan(grants, shifts)
    if hosts_too:
        state, plan = _infrastructure_round(rules, state, snapshot, types, owner, withheld, plan)
    return state, replace(plan, leaving=_leaving(state))


def _ownership(state: Hierarchy, snapshot: Snapshot) -> tuple[Integers, Booleans]:
    """(row of the application that holds each host, hosts withheld from placement), each of shape (hosts,)."""
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
    """Replicas that leave hosts that are to be left, into slots that the grants left; none of a critical application."""
    rows = snapshot.hosts.rows
    shifts: list[Shift] = []
    leaving = [n for n, each in enumerate(state.applications) if each.leave and not snapshot.critical[n]]
    if not leaving:
        return ()
    free = snapshot.free.copy()
    into = grants.proposals.host[grants.granted & (grants.proposals.host >= 0)]
    np.subtract.at(free, into, 1)
    going = {int(replica) for replica in grants.proposals.replica[grants.granted] if replica >= 0}
    usable = np.flatnonzero((owner >= 0) & ~withheld & snapshot.hosts.up & (free > 0))
    usable = usable[np.argsort(owner[usable], kind="stable")]
    bounds = np.searchsorted(owner[usable], np.arange(len(state.applications) + 1))
    for number in leaving:
        left = [row for host in state.applications[number].leave if (row := rows.get(host)) is not None]
        occupied = sorted(row for row in left if snapshot.placed[row])
        own = usable[bounds[number] : bounds[number + 1]]
        shifts += applications.move_off(snapshot, occupied, own, free)
    return tuple(shift for shift in shifts if shift.replica not in going)


def _remember(
    state: Hierarchy, snapshot: Snapshot, grants: Grants, shifts: Sequence[Shift], tokens: Floats
) -> tuple[Application, ...]:
    """Applications with the placements that they granted, and the tokens that it took."""
    given = grants.proposals.operator[grants.granted]
    spent = np.bincount(snapshot.operators.application[given], minlength=len(state.applications))
    placements: dict[int, list[str]] = {}
    into = grants.proposals.host[grants.granted]
    for operator, host in zip(given.tolist(), into.tolist(), strict=True):
        if host >= 0:
            application = int(snapshot.operators.application[operator])
            placements.setdefault(application, []).append(snapshot.hosts.names[host])
    for shift in shifts:
        application = int(snapshot.operators.application[snapshot.replicas.operator[shift.replica]])
        placements.setdefault(application, []).append(snapshot.hosts.names[shift.host])
    found = list(state.applications)
    for row in np.flatnonzero(spent).tolist() + [row for row in placements if not spent[row]]:
        mine = dict.fromkeys(placements.get(row, ()), snapshot.time)
        found[row] = replace(
            found[row],
            tokens=float(tokens[row] - spent[row]),
            refilled=snapshot.time,
            granted={**found[row].granted, **mine},
        )
    return tuple(found)


def _infrastructure_round(
    rules: HierarchyRules,
    state: Hierarchy,
    snapshot: Snapshot,
    types: Mapping[str, HostType],
    owner: Integers,
    withheld: Booleans,
    plan: RoundPlan,
) -> tuple[Hierarchy, RoundPlan]:
    """Reports and claims go up, orders and views come down, twice: so an empty host is let go in the same round."""
    now = snapshot.time
    found = regions.survey(rules.regions, snapshot, withheld)
    leased = dict(zip(snapshot.hosts.names, snapshot.hosts.up.tolist(), strict=True))
    smallest = regions.smallest(types.values())
    kept_regions, reports = regions.reports(rules.regions, state.regions, snapshot, found, leased, smallest)
    kept, claims = _claims(rules, state.applications, snapshot, _spare(snapshot, owner, withheld))
    manager, sent = decide(rules.infrastructure, state.infrastructure, now, [*reports, *claims])
    by_region = {region.name: number for number, region in enumerate(kept_regions)}
    by_application = {application.name: number for number, application in enumerate(kept)}
    lease: list[tuple[str, str]] = []
    release: list[str] = []
    refused: dict[str, str] = {}
    kept_hosts: list[tuple[str, str, str]] = []
    asked: list[int] = []

    def deliver(messages: Sequence[RegionOrder | View]) -> None:
        for message in messages:
            if isinstance(message, View):
                number = by_application[message.application]
                kept[number] = holder.hear(kept[number], message)
                asked.append(number)
                continue
            number = by_region[message.region]
            kept_regions[number], more, less = regions.hear(kept_regions[number], message, now)
            lease.extend(more)
            release.extend(less)
            kept_hosts.extend(message.kept)
            if message.refused:
                refused[message.region] = message.refused

    deliver(sent)
    again = [kept[number] for number in dict.fromkeys(asked)]
    answered, claims = _claims(rules, again, snapshot, {})
    for application in answered:
        kept[by_application[application.name]] = application
    manager, sent = decide(rules.infrastructure, manager, now, claims)
    deliver(sent)
    plan = replace(plan, lease=tuple(lease), release=tuple(release), refused=refused, kept=tuple(kept_hosts))
    return Hierarchy(tuple(kept), tuple(kept_regions), manager), plan


def _spare(snapshot: Snapshot, owner: Integers, withheld: Booleans) -> dict[str, tuple[tuple[str, int], ...]]:
    """By application: its free slots in each region where it has a host."""
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
    """What each application of `among` says about its hosts."""
    rows, placed = snapshot.hosts.rows, snapshot.placed
    critical = dict(zip(snapshot.applications.names, snapshot.critical.tolist(), strict=True))
    kept, claims = [], []
    for application in among:
        occupied = frozenset(host for host in application.leave if (row := rows.get(host)) is not None and placed[row] > 0)
        one, said = applications.answer(
            rules.applications, application, snapshot.time, occupied, critical[application.name],
            spare.get(application.name, ()),
        )  # fmt: skip
        kept.append(one)
        claims.append(said)
    return kept, claims
