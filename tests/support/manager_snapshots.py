"""Snapshots for tests of the managers, written as who is where; and what managers propose and answer, as values."""

from dataclasses import dataclass

import numpy as np

from elastream.policies.e2df.applications import Grants, Proposals, Refusal
from elastream.policies.e2df.snapshot import Applications, Instances, LeasedHosts, Operators, Snapshot, identities


def snapshot(
    hosts: dict[str, tuple[str, int, float]],
    replicas: list[tuple[str, str, float]],
    *,
    response: dict[str, float] | None = None,
    coming: tuple[str, ...] = (),
    time: float = 0.0,
) -> Snapshot:
    """hosts: name -> (region, slots, cpu). replicas: ("application/operator", host or "", utilisation).

    response: by application, in units of its target; unknown where not given.
    """
    regions = tuple(sorted({region for region, _, _ in hosts.values()}))
    operators = tuple(dict.fromkeys(operator for operator, _, _ in replicas))
    applications = tuple(dict.fromkeys(operator.partition("/")[0] for operator in operators)) or tuple(response or ("a",))
    rows = {name: row for row, name in enumerate(hosts)}
    seen: dict[str, int] = {}
    index = []
    for operator, _, _ in replicas:
        index.append(seen.get(operator, 0))
        seen[operator] = index[-1] + 1
    late = response or {}
    return Snapshot(
        time,
        regions,
        LeasedHosts(
            tuple(hosts),
            np.array([regions.index(region) for region, _, _ in hosts.values()], dtype=np.int64),
            np.array([slots for _, slots, _ in hosts.values()], dtype=np.int64),
            np.array([cpu for _, _, cpu in hosts.values()], dtype=np.float64),
            np.array([name not in coming for name in hosts], dtype=np.bool_),
        ),
        Instances(
            np.array([operators.index(operator) for operator, _, _ in replicas], dtype=np.int64),
            np.array(index, dtype=np.int64),
            np.array([rows.get(host, -1) for _, host, _ in replicas], dtype=np.int64),
            np.array([used for _, _, used in replicas], dtype=np.float64),
        ),
        Operators(
            operators,
            np.array([applications.index(operator.partition("/")[0]) for operator in operators], dtype=np.int64),
            identities(operators),
        ),
        Applications(
            applications,
            np.array([late.get(name, np.nan) for name in applications]),
            np.array([1.0 if name in late else np.nan for name in applications]),
        ),
    )


def everyones(seen: Snapshot, owner: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(owner, withheld): all hosts belong to one application, none is withheld."""
    return np.full(len(seen.hosts.names), owner, dtype=np.int64), np.zeros(len(seen.hosts.names), dtype=np.bool_)


@dataclass(frozen=True)
class ScaleOut:
    """An operator would have `instances` in all, the new one on `host` (empty: anywhere)."""

    application: str
    operator: str
    instances: int
    host: str


@dataclass(frozen=True)
class ScaleIn:
    """An operator would have `instances` in all, without the one of index `without`."""

    application: str
    operator: str
    instances: int
    without: int


def messages(proposals: Proposals, snapshot: Snapshot) -> tuple[ScaleOut | ScaleIn, ...]:
    """Proposals as values."""
    found: list[ScaleOut | ScaleIn] = []
    for operator, change, replicas, host, replica in zip(
        proposals.operator.tolist(),
        proposals.change.tolist(),
        proposals.instances.tolist(),
        proposals.host.tolist(),
        proposals.instance.tolist(),
        strict=True,
    ):
        name = snapshot.operators.names[operator]
        application = snapshot.applications.names[int(snapshot.operators.application[operator])]
        if change > 0:
            where = snapshot.hosts.names[host] if host >= 0 else ""
            found.append(ScaleOut(application, name, replicas, where))
        else:
            found.append(ScaleIn(application, name, replicas, int(snapshot.instances.index[replica])))
    return tuple(found)


def refusals(grants: Grants, snapshot: Snapshot) -> dict[str, str]:
    """By operator why its proposal is refused, empty where it is granted."""
    said = messages(grants.proposals, snapshot)
    return {m.operator: Refusal(refusal).reason for m, refusal in zip(said, grants.refusals.tolist(), strict=True)}
