"""Region manager: keeps C_r slots spare, and gives back hosts that are empty or hardly used (E2DF, section 4.1)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.policies.e2df.snapshot import Booleans, Snapshot
from elastream.sharing.messages import RegionOrder, RegionReport


@dataclass(frozen=True, slots=True)
class RegionRules:
    """Rules of region managers.

    Args:
        spare: C_r, slots to keep free (paper: 5).
        low: Utilisation at or below which a host is drained (paper: 0.1).
        settle: Time for an ordered host to appear as leased before it counts as lost (s).
    """

    spare: int = 5
    low: float = 0.1
    settle: float = 60.0


@dataclass(frozen=True)
class Survey:
    """Findings by region (`lacking` slots, `utilisation`, `idlest`) and by host (`release`, `drain`, `empty`).

    `idlest` is the row of a region's least used occupied host, -1 if none.
    """

    lacking: Integers
    release: Booleans
    drain: Booleans
    utilisation: Floats
    idlest: Integers
    empty: Booleans


@dataclass(frozen=True)
class Region:
    """State of a region manager: last order (term, hosts with order times) and number of reports."""

    name: str
    term: int = 0
    number: int = 0
    hosts: Mapping[str, float] = field(default_factory=dict)


def smallest(types: Iterable[HostType]) -> dict[str, HostType]:
    """Return the type with the fewest slots by region, for fine-grained control as in E2DF; ties by price."""
    by_region: dict[str, HostType] = {}
    for kind in sorted(types, key=lambda t: (t.slots, t.price_rate, t.name)):
        by_region.setdefault(kind.region, kind)
    return by_region


def survey(rules: RegionRules, snapshot: Snapshot, withheld: Booleans) -> Survey:
    """Return what each region lacks and could release.

    Free slots (C_n - A_n), starting hosts included, must reach C_r. Above it, empty hosts go, the youngest first, then
    hosts at or below the low threshold while C_r slots stay free. The paper drains those in any case, and would lease
    again.
    """
    hosts, regions = snapshot.hosts, len(snapshot.regions)
    stays = ~withheld
    free = np.bincount(hosts.region, snapshot.spare * stays, minlength=regions).astype(np.int64)
    excess = free - rules.spare
    empty = stays & hosts.up & (snapshot.placed == 0)
    release, left = _fitting(np.flatnonzero(empty)[::-1], hosts.region, hosts.slots, excess, len(hosts.names))
    occupied = stays & hosts.up & (snapshot.placed > 0)
    rows = np.flatnonzero(occupied & (hosts.cpu <= rules.low))
    rows = rows[np.argsort(hosts.cpu[rows], kind="stable")]
    drain, _ = _fitting(rows, hosts.region, hosts.slots, left, len(hosts.names))
    measured = occupied & ~np.isnan(hosts.cpu)
    number = np.bincount(hosts.region[measured], minlength=regions)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(hosts.region[measured], hosts.cpu[measured], minlength=regions) / number
    idlest = np.full(regions, -1, dtype=np.int64)
    by_use = np.flatnonzero(measured)
    by_use = by_use[np.argsort(-hosts.cpu[by_use], kind="stable")]
    idlest[hosts.region[by_use]] = by_use  # the last assignment wins: the least used host
    return Survey(np.maximum(-excess, 0), release, drain, mean, idlest, empty)


def _fitting(rows: Integers, region: Integers, slots: Integers, excess: Integers, hosts: int) -> tuple[Booleans, Integers]:
    mask = np.zeros(hosts, dtype=np.bool_)
    if not len(rows) or not (excess > 0).any():
        return mask, excess
    order = np.argsort(region[rows], kind="stable")
    ordered = rows[order]
    total = np.cumsum(slots[ordered])
    first = np.r_[True, region[ordered][1:] != region[ordered][:-1]]
    before = np.repeat((total - slots[ordered])[first], np.diff(np.r_[np.flatnonzero(first), len(ordered)]))
    chosen = ordered[total - before <= excess[region[ordered]]]
    mask[chosen] = True
    return mask, excess - np.bincount(region[chosen], slots[chosen], minlength=len(excess)).astype(np.int64)


def report(rules: RegionRules, region: Region, now: float, leased: Mapping[str, bool]) -> tuple[Region, RegionReport]:
    """Return the region's next state, and its report without proposals.

    An ordered host that is not leased counts as starting for `settle` seconds, then as lost.
    """
    up: list[str] = []
    coming: list[str] = []
    hosts = {host: min(since, now) for host, since in region.hosts.items()}
    for host, since in hosts.items():
        ready = leased.get(host)
        if ready:
            up.append(host)
        elif ready is not None or now - since < rules.settle:
            coming.append(host)
    number = region.number + 1
    message = RegionReport(region.name, number, region.term, tuple(up), tuple(coming))
    return Region(region.name, region.term, number, hosts), message


def reports(
    rules: RegionRules,
    regions: Sequence[Region],
    snapshot: Snapshot,
    result: Survey,
    leased: Mapping[str, bool],
    kinds: Mapping[str, HostType],
) -> tuple[list[Region], list[RegionReport]]:
    """Return each region's state and next report. `kinds` is the type that each adds."""
    release, drain, empty = (_by_region(snapshot, mask) for mask in (result.release, result.drain, result.empty))
    states, messages = [], []
    for row, region in enumerate(regions):
        kind, mean, idlest = kinds.get(region.name), float(result.utilisation[row]), int(result.idlest[row])
        after, message = report(rules, region, snapshot.time, leased)
        message = replace(
            message,
            add=(kind.name,) * math.ceil(int(result.lacking[row]) / kind.slots) if kind is not None else (),
            release=release.get(row, ()),
            drain=drain.get(row, ()),
            utilisation=None if math.isnan(mean) else mean,
            idlest=snapshot.hosts.names[idlest] if idlest >= 0 else "",
            empty=empty.get(row, ()),
        )
        states.append(after)
        messages.append(message)
    return states, messages


def _by_region(snapshot: Snapshot, mask: Booleans) -> dict[int, tuple[str, ...]]:
    names: dict[int, list[str]] = {}
    rows = np.flatnonzero(mask)
    for row, region in zip(rows.tolist(), snapshot.hosts.region[rows].tolist(), strict=True):
        names.setdefault(region, []).append(snapshot.hosts.names[row])
    return {region: tuple(hosts) for region, hosts in names.items()}


def receive(region: Region, order: RegionOrder, now: float) -> tuple[Region, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the region after an order, hosts to lease as (name, type), and hosts to release. Old orders change nothing."""
    if order.term <= region.term:
        return region, (), ()
    lease = tuple((host, kind) for host, kind in order.hosts if host not in region.hosts)
    hosts = {host: region.hosts.get(host, now) for host, _ in order.hosts}
    release = tuple(host for host in region.hosts if host not in hosts)
    return replace(region, term=order.term, hosts=hosts), lease, release
