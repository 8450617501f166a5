"""The application manager where hosts are shared: what it requests of the arbiter, and what it gives back unasked.

The infrastructure manager and the managers of regions are elsewhere then (`elastream.planning.sharing`). A request is a
lease that waits until it is granted; refusals and recalls are read from the notes of leases.
"""

import numpy as np

from elastream.model.action import Action, LeaseHost, ReleaseHost
from elastream.model.cloud import HostState, HostType
from elastream.model.decision import Proposal
from elastream.model.observation import Observation
from elastream.planning.managers.columns import Snapshot
from elastream.planning.managers.regions import smallest
from elastream.planning.managers.rounds import RoundPlan
from elastream.planning.managers.seen import floating, width

__all__ = ["heard", "requests", "surplus"]


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
