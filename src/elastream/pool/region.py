"""The process of a region manager: a journal, and hosts that a provider leases by the arbiter's orders.

`elastream.policies.e2df.regions` decides its proposals. State is on disk before it is reported or acted on.
`elastream.pool.region_link` is the transport.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from elastream.clouds.provider import HostStatus, Measured, Phase, Provider
from elastream.core.hosts import HostType
from elastream.errors import ElastreamError
from elastream.policies.e2df import regions
from elastream.policies.e2df.columns import Applications, LeasedHosts, Operators, Replicas, Snapshot, identities
from elastream.policies.e2df.regions import Region, RegionRules
from elastream.pool.state_log import StateLog
from elastream.sharing.messages import RegionOrder, RegionReport


@dataclass(frozen=True)
class RegionState:
    """State of a region's process. kinds: type of each host on the order. lease, release: hosts still to lease and release.

    trying: the host being leased; after a crash the outcome is unknown. leaving: hosts whose applications are requested
    to leave them.
    """

    region: Region
    kinds: Mapping[str, str] = field(default_factory=dict)
    lease: tuple[str, ...] = ()
    trying: str = ""
    release: tuple[str, ...] = ()
    leaving: frozenset[str] = frozenset()


class RegionNode:
    """The region manager `name`: reports its hosts and proposals, and carries out orders.

    types: that it may lease; it requests the one of fewest slots. Without orders it keeps its hosts.
    """

    def __init__(self, name: str, rules: RegionRules, types: Iterable[HostType], provider: Provider, log: StateLog) -> None:
        self.rules = rules
        self.types = {kind.name: kind for kind in types}
        self.provider = provider
        self.state = _region(name, log.read)
        self._used: Mapping[str, tuple[int, float]] | None = None
        """Use of hosts by the last order; None before this process has received one."""
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
        if self._used is None:
            # While the use of hosts is unknown, none may count as empty.
            none = np.zeros(len(mine.hosts), dtype=np.bool_)
            found = replace(found, release=none, drain=none, empty=none, idlest=np.full(1, -1))
        smallest = min(self.types.values(), key=lambda kind: (kind.slots, kind.price / kind.billing.unit, kind.name))
        up = {name: host.phase is Phase.UP for name, host in there.items()}
        (region,), (said,) = regions.reports(self.rules, [mine], snapshot, found, up, {mine.name: smallest})
        self._become(replace(self.state, region=region))
        return said

    def hear(self, order: RegionOrder, now: float) -> None:
        """Receive an order: the steps for it are on disk when this returns, and `act` carries them out.

        An order for a later report than this region remembers shows that its journal was lost: numbering continues from it.
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
        """Lease and release pending hosts; returns a sentence for each failure, which is retried the next time.

        Each attempt to lease is written to disk first. One interrupted by a crash is not repeated: either the host exists,
        or it counts as lost after a while, and the region requests another. So no host is leased twice.
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
        """Hosts leased without an order. They are kept, because it is unknown here whether they are in use."""
        known = {*self.state.region.hosts, *self.state.release}
        return tuple(host for host in self.provider.hosts() if host not in known)

    def _become(self, state: RegionState) -> None:
        self._log.commit(_region_tables(state))
        self.state = state

    def _snapshot(self, now: float, there: Mapping[str, HostStatus]) -> Snapshot:
        """The input of the survey: the hosts on the order; those not leased yet count as coming.

        The use and replicas of a host are from its provider, else from its application, by the order.
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
