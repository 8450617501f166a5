"""What managers refused each other in a round, for people: by manager and reason."""

from collections.abc import Mapping

import numpy as np

from elastream.model.action import DrainHost, LeaseHost, ReleaseHost, SetParallelism
from elastream.model.decision import Proposal
from elastream.model.plant import Plan
from elastream.planning.managers.applications import Refusal
from elastream.planning.managers.columns import Snapshot
from elastream.planning.managers.rounds import RoundPlan

__all__ = ["told"]


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
