"""The region manager: keeps C_r slots spare, and would give back what is empty or hardly used (E2DF, section 4.1).

It sees the hosts of its region and acts only on orders. What all regions propose is one pass over columns (`survey`); what
one of them says, hears and remembers is a small value (`Region`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostType
from elastream.policies.e2df.columns import Booleans, Snapshot
from elastream.sharing.messages import RegionOrder, RegionReport


@dataclass(frozen=True, slots=True)
class RegionRules:
    """spare: C_r, slots that must be free (paper: 5). low: utilisation at or below which a host is drained (paper: 0.1).

    settle: seconds within which a host that was ordered must show among the leased ones, else it counts as lost.
    """

    spare: int = 5
    low: float = 0.1
    settle: float = 60.0


@dataclass(frozen=True)
class Survey:
    """What the region managers find. lacking: slots, by region. release, drain: by host. utilisation, idlest: by region.

    empty: hosts that are up and hold nothing, by host. idlest: row of the least used host in use, -1 where none is.
    """

    lacking: Integers
    release: Booleans
    drain: Booleans
    utilisation: Floats
    idlest: Integers
    empty: Booleans


@dataclass(frozen=True)
class Region:
    """What a region manager remembers: the last order (term, hosts with the time they were ordered), reports so far."""

    name: str
    term: int = 0
    number: int = 0
    hosts: Mapping[str, float] = field(default_factory=dict)


def smallest(types: Iterable[HostType]) -> dict[str, HostType]:
    """By region the type of least slots (E2DF: for fine-grained control), the cheaper one on a tie."""
    found: dict[str, HostType] = {}
    for kind in sorted(types, key=lambda t: (t.slots, t.price / t.billing.unit, t.name)):
        found.setdefault(kind.region, kind)
    return found


def survey(rules: RegionRules, snapshot: Snapshot, withheld: Booleans) -> Survey:
    """What each region lacks and could do without; `withheld`, shape (hosts,), are hosts on their way out.

    The sum of C_n - A_n over the hosts of a region, coming ones included, must reach C_r. Where it is above, empty hosts
    are given back, the youngest first. Then hosts at or below the low threshold are drained, the least used first, as long
    as C_r slots stay free without them: the paper drains them in any case, and would lease them again a minute later.
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
    known = occupied & ~np.isnan(hosts.cpu)
    number = np.bincount(hosts.region[known], minlength=regions)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(hosts.region[known], hosts.cpu[known], minlength=regions) / number
    idlest = np.full(regions, -1, dtype=np.int64)
    by_use = np.flatnonzero(known)
    by_use = by_use[np.argsort(-hosts.cpu[by_use], kind="stable")]
    idlest[hosts.region[by_use]] = by_use  # the last written, the least used, stays
    return Survey(np.maximum(-excess, 0), release, drain, mean, idlest, empty)


def _fitting(rows: Integers, region: Integers, slots: Integers, excess: Integers, hosts: int) -> tuple[Booleans, Integers]:
    """Of `rows`, in order of preference, those whose slots their region can spare; and what it can spare then."""
    mask = np.zeros(hosts, dtype=np.bool_)
    if not len(rows) or not (excess > 0).any():
        return mask, excess
    order = np.argsort(region[rows], kind="stable")
    ordered = rows[order]
    taken = np.cumsum(slots[ordered])
    first = np.r_[True, region[ordered][1:] != region[ordered][:-1]]
    before = np.repeat((taken - slots[ordered])[first], np.diff(np.r_[np.flatnonzero(first), len(ordered)]))
    chosen = ordered[taken - before <= excess[region[ordered]]]
    mask[chosen] = True
    return mask, excess - np.bincount(region[chosen], slots[chosen], minlength=len(excess)).astype(np.int64)


def report(
    rules: RegionRules,
    region: Region,
    now: float,
    leased: Mapping[str, bool],
    *,
    add: tuple[str, ...] = (),
    release: tuple[str, ...] = (),
    drain: tuple[str, ...] = (),
    utilisation: float | None = None,
    idlest: str = "",
    empty: tuple[str, ...] = (),
) -> tuple[Region, RegionReport]:
    """The region's next report: what the survey found for it, and how its hosts are.

    leased: its leased hosts by name, True where up. A host that was ordered and is not leased counts as coming for
    `settle` seconds, and as lost from then on. One ordered in the future, before the machine's clock was set back and the
    manager started again, counts as ordered now.
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
    said = RegionReport(
        region.name, number, region.term, tuple(up), tuple(coming), add, release, drain, utilisation, idlest, empty
    )
    return Region(region.name, region.term, number, hosts), said


def reports(
    rules: RegionRules,
    regions: Sequence[Region],
    snapshot: Snapshot,
    found: Survey,
    leased: Mapping[str, bool],
    kinds: Mapping[str, HostType],
) -> tuple[list[Region], list[RegionReport]]:
    """The next report of each region of the snapshot, from what the survey found. kinds: the type that each adds."""
    release, drain, empty = (_by_region(snapshot, mask) for mask in (found.release, found.drain, found.empty))
    kept, said = [], []
    for row, region in enumerate(regions):
        kind, mean, idlest = kinds.get(region.name), float(found.utilisation[row]), int(found.idlest[row])
        after, message = report(
            rules,
            region,
            snapshot.time,
            leased,
            add=(kind.name,) * math.ceil(int(found.lacking[row]) / kind.slots) if kind is not None else (),
            release=release.get(row, ()),
            drain=drain.get(row, ()),
            utilisation=None if math.isnan(mean) else mean,
            idlest=snapshot.hosts.names[idlest] if idlest >= 0 else "",
            empty=empty.get(row, ()),
        )
        kept.append(after)
        said.append(message)
    return kept, said


def _by_region(snapshot: Snapshot, mask: Booleans) -> dict[int, tuple[str, ...]]:
    """Names of the hosts in `mask` by the row of their region, in the order of rows."""
    found: dict[int, list[str]] = {}
    rows = np.flatnonzero(mask)
    for row, region in zip(rows.tolist(), snapshot.hosts.region[rows].tolist(), strict=True):
        found.setdefault(region, []).append(snapshot.hosts.names[row])
    return {region: tuple(names) for region, names in found.items()}


def hear(region: Region, order: RegionOrder, now: float) -> tuple[Region, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """The region after an order: (region, hosts to lease as (name, type), hosts to release). An old order is no news."""
    if order.term <= region.term:
        return region, (), ()
    lease = tuple((host, kind) for host, kind in order.hosts if host not in region.hosts)
    wanted = {host: region.hosts.get(host, now) for host, _ in order.hosts}
    release = tuple(host for host in region.hosts if host not in wanted)
    return replace(region, term=order.term, hosts=wanted), lease, release
