"""Managers that live in processes of their own: each with a journal, none knowing how its messages travel.

What they decide is `elastream.planning.managers`'s. Here is what a process adds: state is on disk before anyone hears of
it and before anything is done about it, so that a manager which is killed at any point goes on as if its last message had
been lost. Transport is left to others (`elastream.services.managers`); hosts come from a `Provider`. Times are seconds
since the epoch: they must go on through a restart.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np

from elastream.clouds.provider import HostStatus, Measured, Phase, Provider
from elastream.model.cloud import HostType
from elastream.model.errors import ElastreamError, InputError
from elastream.planning.managers import applications, infrastructure, regions
from elastream.planning.managers.applications import Application, ApplicationRules
from elastream.planning.managers.columns import Applications, Hosts, Operators, Replicas, Snapshot, identities
from elastream.planning.managers.infrastructure import HostRecord, Infrastructure, InfrastructureRules, Stance, Ward
from elastream.planning.managers.messages import Holding, RegionOrder, RegionReport, View
from elastream.planning.managers.regions import Region, RegionRules
from elastream.services.state_log import StateLog

__all__ = ["ApplicationNode", "InfrastructureNode", "RegionNode"]


class InfrastructureNode:
    """The infrastructure manager of `rules`. It answers every message with what is in force, and decides once a round.

    regions, applications: who there is; empty: whoever speaks. Methods may be called from several threads.
    """

    def __init__(
        self,
        rules: InfrastructureRules,
        log: StateLog,
        regions: Collection[str] = (),
        applications: Collection[str] = (),
    ) -> None:
        self.rules = rules
        self.state = _infrastructure(log.read)
        self._log = log
        self._allowed = {"region": frozenset(regions), "application": frozenset(applications)}
        self._heard: dict[tuple[str, str], RegionReport | Holding] = {}
        self._told: dict[str, RegionOrder] = {}
        self._lock = Lock()
        log.known(_infrastructure_tables(self.state))

    def hear(self, message: RegionReport | Holding) -> RegionOrder | View:
        """Take a message in for the next round; what is in force for its sender.

        Raises InputError for who is not on the list, and for who was told more than this manager ever said: that one
        belongs to another infrastructure manager, or this one has lost its journal, and nothing it says would be news.
        """
        kind, name = (
            ("region", message.region) if isinstance(message, RegionReport) else ("application", message.application)
        )
        if self._allowed[kind] and name not in self._allowed[kind]:
            raise InputError(f"there is no {kind} {name!r} here (there are: {', '.join(sorted(self._allowed[kind]))})")
        with self._lock:
            wards = self.state.regions if kind == "region" else self.state.applications
            said = wards.get(name, Ward()).term
            if message.seen > said:
                raise InputError(
                    f"{kind} {name} has seen term {message.seen}, and here only {said} were given: it belongs to another "
                    "infrastructure manager, or this one has lost its journal"
                )
            before = self._heard.get((kind, name))
            if before is None or before.number < message.number:
                self._heard[kind, name] = message
            if kind == "application":
                return infrastructure.view_for(self.state, name)
            told = self._told.get(name)
            return infrastructure.order_for(self.state, name, told.refused if told else "", told.kept if told else ())

    def round(self, now: float) -> None:
        """Decide on what was heard since the last round. It is on disk before anybody can hear of it."""
        with self._lock:
            heard = sorted(self._heard.values(), key=lambda message: isinstance(message, Holding))
            state, told = infrastructure.decide(self.rules, self.state, now, heard)
            self._log.commit(_infrastructure_tables(state))
            self.state = state
            self._heard.clear()
            self._told = {message.region: message for message in told if isinstance(message, RegionOrder)}


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

    types: what it may lease; the one of least slots is what it asks for. Without orders it goes on with what it has.
    """

    def __init__(self, name: str, rules: RegionRules, types: Iterable[HostType], provider: Provider, log: StateLog) -> None:
        self.rules = rules
        self.types = {kind.name: kind for kind in types}
        self.provider = provider
        self.state = _region(name, log.read)
        self._log = log
        log.known(_region_tables(self.state))

    def report(self, now: float) -> RegionReport:
        """The next report. Its number is on disk before it is said."""
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
        smallest = min(self.types.values(), key=lambda kind: (kind.slots, kind.price / kind.billing.unit, kind.name))
        region, said = regions.report(
            self.rules,
            mine,
            now,
            {name: host.phase is Phase.UP for name, host in there.items()},
            add=(smallest.name,) * math.ceil(int(found.lacking[0]) / smallest.slots),
            release=tuple(names[row] for row in np.flatnonzero(found.release).tolist()),
            drain=tuple(names[row] for row in np.flatnonzero(found.drain).tolist()),
            utilisation=None if math.isnan(found.utilisation[0]) else float(found.utilisation[0]),
            idlest=names[int(found.idlest[0])] if found.idlest[0] >= 0 else "",
            empty=tuple(names[row] for row in np.flatnonzero(found.empty).tolist()),
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
        it counts as lost after a while, and the region asks for another. So none is leased twice, whatever a provider does.
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
        """What the survey looks at: the hosts on the order, those that are not leased yet as coming."""
        names = tuple(self.state.region.hosts)
        coming = (HostStatus(self.state.kinds.get(name, ""), Phase.REQUESTED) for name in names)
        hosts = [there.get(name, later) for name, later in zip(names, coming, strict=True)]
        slots = [self.types[host.type].slots if host.type in self.types else 0 for host in hosts]
        measured = self.provider.measure()
        used = [measured.get(name, Measured()) for name in names]
        on = np.repeat(np.arange(len(hosts)), [each.replicas for each in used]).astype(np.int64)
        zeros = np.zeros(len(on), dtype=np.int64)
        return Snapshot(
            now,
            (self.state.region.name,),
            Hosts(
                names,
                np.zeros(len(names), dtype=np.int64),
                np.array(slots, dtype=np.int64),
                np.array([each.cpu for each in used], dtype=np.float64),
                np.array([host.phase is Phase.UP for host in hosts], dtype=np.bool_),
            ),
            Replicas(zeros, zeros, on, np.full(len(on), math.nan)),
            Operators(("",), np.zeros(1, dtype=np.int64), identities([""])),
            Applications(("",), np.full(1, math.nan), np.full(1, math.nan)),
        )


class ApplicationNode:
    """The part of the application manager `name` that deals with hosts: which it may place on, and which it lets go of."""

    def __init__(self, name: str, rules: ApplicationRules, log: StateLog) -> None:
        self.rules = rules
        self.application = _application(name, log.read)
        self._log = log
        log.known(_application_tables(self.application))

    @property
    def open(self) -> tuple[str, ...]:
        """Hosts that it may place on."""
        return tuple(host for host in self.application.hosts if host not in self.application.leave)

    def hear(self, view: View) -> None:
        """Take a view in; an old one, or another application's, is no news."""
        before = self.application
        if view.application == before.name:
            heard = applications.hear(before, view)
            self.become(replace(heard, number=max(heard.number, view.heard)))

    def place(self, host: str, now: float) -> bool:
        """Whether something may be placed on `host`; if so, that it is granted is on disk before it is done."""
        if host not in self.open:
            return False
        self.become(replace(self.application, granted={**self.application.granted, host: now}))
        return True

    def holding(
        self, now: float, occupied: Collection[str], critical: bool, spare: tuple[tuple[str, int], ...] = ()
    ) -> Holding:
        """What it says next, letting go of hosts that it was asked to leave and does not need; on disk before it is said.

        occupied: hosts that its replicas were seen on. critical: it is over its target. spare: free slots by region.
        """
        kept, said = applications.answer(self.rules, self.application, now, frozenset(occupied), critical, spare)
        self.become(kept)
        return said

    def become(self, application: Application) -> None:
        """Remember what a planning round made of it (tokens, placements that were granted)."""
        self._log.commit(_application_tables(application))
        self.application = application


def _without(hosts: tuple[str, ...], host: str) -> tuple[str, ...]:
    return tuple(each for each in hosts if each != host)


def _infrastructure_tables(state: Infrastructure) -> dict[str, Mapping[str, Any]]:
    return {
        "hosts": state.hosts,
        "regions": state.regions,
        "applications": state.applications,
        "counters": {"next_number": state.next_number},
    }


def _infrastructure(tables: Mapping[str, Mapping[str, Any]]) -> Infrastructure:
    hosts = {
        name: HostRecord(**{**fields, "stance": Stance(fields["stance"]), "until": float(fields["until"])})
        for name, fields in tables.get("hosts", {}).items()
    }
    wards = {
        kind: {name: Ward(**{**fields, "hosts": tuple(fields["hosts"])}) for name, fields in tables.get(kind, {}).items()}
        for kind in ("regions", "applications")
    }
    unsettled = frozenset(name for name, record in hosts.items() if record.stance is not Stance.VIEWED)
    number = tables.get("counters", {}).get("next_number", 1)
    return Infrastructure(hosts, unsettled, wards["regions"], wards["applications"], number)


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


def _application_tables(state: Application) -> dict[str, Mapping[str, Any]]:
    return {
        "granted": state.granted,
        "hosts": dict.fromkeys(state.hosts, True),
        "leave": dict.fromkeys(state.leave, True),
        "let_go": dict.fromkeys(state.let_go, True),
        "counters": {
            "term": state.term, "number": state.number, "tokens": state.tokens, "refilled": state.refilled,
        },
    }  # fmt: skip


def _application(name: str, tables: Mapping[str, Mapping[str, Any]]) -> Application:
    counters = tables.get("counters", {})
    return Application(
        name,
        counters.get("term", 0),
        counters.get("number", 0),
        tuple(tables.get("hosts", {})),
        frozenset(tables.get("leave", {})),
        frozenset(tables.get("let_go", {})),
        float(counters.get("tokens", math.inf)),
        counters.get("refilled", 0.0),
        dict(tables.get("granted", {})),
    )
