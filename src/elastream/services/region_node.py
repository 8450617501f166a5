"""The manager of a region as a process: a journal, and hosts that a provider leases as the arbiter orders.

What it proposes is `elastream.planning.managers.regions`'. State is on disk before the arbiter hears of it and before
anything is done about it. Transport is left to `elastream.services.region_link`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from elastream.clouds.provider import HostStatus, Measured, Phase, Provider
from elastream.model.cloud import HostType
from elastream.model.errors import ElastreamError
from elastream.planning.managers import regions
from elastream.planning.managers.columns import Applications, LeasedHosts, Operators, Replicas, Snapshot, identities
from elastream.planning.managers.regions import Region, RegionRules
from elastream.planning.sharing.messages import RegionOrder, RegionReport
from elastream.services.state_log import StateLog

__all__ = ["RegionNode", "RegionState"]


@dataclass(frozen=True)
class RegionState:
    """What a region's process remembers. kinds: type of each host on the order. lease, release: of it not done yet.

    trying: the host that is being leased; after a crash nobody knows whether it was. leaving: hosts whose applications are
    asked to leave them.
    """

    region: Region
    kinds: Mapping[str, str] = field(default_factory=dict)
    lease: tuple[str, ...] = ()
    trying: str = ""
    release: tuple[str, ...] = ()
    leaving: frozenset[str] = frozenset()


class RegionNode:
    """The region manager `name`: reports what its hosts are like and what it would have, and does as ordered.

    types: what it may lease; the one of least slots is what it requests. Without orders it goes on with what it has.
    """

    def __init__(self, name: str, rules: RegionRules, types: Iterable[HostType], provider: Provider, log: StateLog) -> None:
        self.rules = rules
        self.types = {kind.name: kind for kind in types}
        self.provider = provider
        self.state = _region(name, log.read)
        self._used: Mapping[str, tuple[int, float]] | None = None
        """How used hosts are, by the last order; None before this process has heard one."""
        self._log = log
        log.known(_region_tables(self.state))

    def report(self, now: float) -> RegionReport:
        """The next report. Its number is on disk before it is sent."""
        mine = self.state.region
        there = {
            name: host
            for name, host in self.provider.hosts().items()
            if name in mine.hosts and (host.there or host.phase is Phase.REQUESTED)
        }
        snapshot = self._snapshot(now, there)
        found = regions.survey(
            self.rules, snapshot, np.array([h in self.state.leaving for h in mine.hosts], dtype=np.bool_)
        )
        names = snapshot.hosts.names
        # Who does not know yet how used its hosts are must take none for empty.
        knows = self._used is not None
        smallest = min(self.types.values(), key=lambda kind: (kind.slots, kind.price / kind.billing.unit, kind.name))
        region, said = regions.report(
            self.rules,
            mine,
            now,
            {name: host.phase is Phase.UP for name, host in there.items()},
            add=(smallest.name,) * math.ceil(int(found.lacking[0]) / smallest.slots),
            release=tuple(names[row] for row in np.flatnonzero(found.release & knows).tolist()),
            drain=tuple(names[row] for row in np.flatnonzero(found.drain & knows).tolist()),
            utilisation=None if math.isnan(found.utilisation[0]) else float(found.utilisation[0]),
            idlest=names[int(found.idlest[0])] if found.idlest[0] >= 0 and knows else "",
            empty=tuple(names[row] for row in np.flatnonzero(found.empty & knows).tolist()),
        )
        self._become(replace(self.state, region=region))
        return said

    def hear(self, order: RegionOrder, now: float) -> None:
        """Take an order in; what is to be done for it is on disk when this returns, and `act` does it.

        One that names a later report than this region remembers shows that its journal was lost: it counts on from there.
        """
        before = self.state
        if order.region != before.region.name or order.term < before.region.term:
            return
        self._used = {host: (replicas, math.nan if cpu is None else cpu) for host, replicas, cpu in order.used}
        region, lease, release = regions.hear(before.region, order, now)
        wanted = tuple(host for host in (*before.lease, *dict(lease)) if host in region.hosts)
        back = tuple(dict.fromkeys(h for h in (*before.release, *release) if h not in region.hosts))
        self._become(
            RegionState(
                replace(region, number=max(region.number, order.heard)),
                dict(order.hosts),
                wanted,
                before.trying,
                back,
                frozenset(order.leaving),
            )
        )

    def act(self) -> list[str]:
        """Lease and release what is left to do; a sentence for each that failed and is tried again next time.

        That a lease is tried is on disk first. One that a crash cut short is not tried again: either the host is there, or
        it counts as lost after a while, and the region requests another. So none is leased twice, whatever a provider does.
        """
        problems: list[str] = []
        if self.state.trying:
            self._become(replace(self.state, trying=""))
        for host in self.state.lease:
            kind = self.types.get(self.state.kinds[host])
            if kind is None:
                problems.append(f"{host} cannot be leased: there is no host type {self.state.kinds[host]!r} here")
                continue
            self._become(replace(self.state, lease=_without(self.state.lease, host), trying=host))
            try:
                self.provider.lease({host: kind})
            except ElastreamError as error:
                problems.append(f"{host} cannot be leased: {error}")
                self._become(replace(self.state, lease=(*self.state.lease, host), trying=""))
            else:
                self._become(replace(self.state, trying=""))
        for host in self.state.release:
            try:
                self.provider.release([host])
            except ElastreamError as error:
                problems.append(f"{host} cannot be released: {error}")
            else:
                self._become(replace(self.state, release=_without(self.state.release, host)))
        return problems

    def strays(self) -> tuple[str, ...]:
        """Hosts that are leased and on no order. They are left alone: that nobody uses them is not known here."""
        known = {*self.state.region.hosts, *self.state.release}
        return tuple(host for host in self.provider.hosts() if host not in known)

    def _become(self, state: RegionState) -> None:
        self._log.commit(_region_tables(state))
        self.state = state

    def _snapshot(self, now: float, there: Mapping[str, HostStatus]) -> Snapshot:
        """What the survey looks at: the hosts on the order, those that are not leased yet as coming.

        How used a host is, and by how many replicas, its provider says, or the application that holds it, by the order.
        """
        names = tuple(self.state.region.hosts)
        coming = (HostStatus(self.state.kinds.get(name, ""), Phase.REQUESTED) for name in names)
        hosts = [there.get(name, later) for name, later in zip(names, coming, strict=True)]
        slots = [self.types[host.type].slots if host.type in self.types else 0 for host in hosts]
        measured = self.provider.measure()
        seen = [measured.get(name, Measured()) for name in names]
        used = self._used or {}
        reported = [used.get(name, (0, math.nan)) for name in names]
        replicas = [mine.replicas or said[0] for mine, said in zip(seen, reported, strict=True)]
        cpu = [said[1] if math.isnan(mine.cpu) else mine.cpu for mine, said in zip(seen, reported, strict=True)]
        on = np.repeat(np.arange(len(hosts)), replicas).astype(np.int64)
        zeros = np.zeros(len(on), dtype=np.int64)
        return Snapshot(
            now,
            (self.state.region.name,),
            LeasedHosts(
                names,
                np.zeros(len(names), dtype=np.int64),
                np.array(slots, dtype=np.int64),
                np.array(cpu, dtype=np.float64),
                np.array([host.phase is Phase.UP for host in hosts], dtype=np.bool_),
            ),
            Replicas(zeros, zeros, on, np.full(len(on), math.nan)),
            Operators(("",), np.zeros(1, dtype=np.int64), identities([""])),
            Applications(("",), np.full(1, math.nan), np.full(1, math.nan)),
        )


def _without(hosts: tuple[str, ...], host: str) -> tuple[str, ...]:
    return tuple(each for each in hosts if each != host)


def _region_tables(state: RegionState) -> dict[str, Mapping[str, Any]]:
    return {
        "hosts": state.region.hosts,
        "kinds": state.kinds,
        "lease": dict.fromkeys(state.lease, True),
        "trying": dict.fromkeys(filter(None, [state.trying]), True),
        "release": dict.fromkeys(state.release, True),
        "leaving": dict.fromkeys(state.leaving, True),
        "counters": {"term": state.region.term, "number": state.region.number},
    }


def _region(name: str, tables: Mapping[str, Mapping[str, Any]]) -> RegionState:
    counters = tables.get("counters", {})
    return RegionState(
        Region(name, counters.get("term", 0), counters.get("number", 0), dict(tables.get("hosts", {}))),
        dict(tables.get("kinds", {})),
        tuple(tables.get("lease", {})),
        next(iter(tables.get("trying", {})), ""),
        tuple(tables.get("release", {})),
        frozenset(tables.get("leaving", {})),
    )
