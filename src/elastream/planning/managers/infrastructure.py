"""The infrastructure manager: which regions may lease what, and which application may use which host (E2DF, section 4.1).

It keeps one record a host, whose life is the table in the package; nothing changes a record but `_Ledger`. It never sees a
replica: whether a host is in use it hears from the application that holds it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastream.model.cloud import LifecycleError
from elastream.planning.managers.granting import InfrastructureRules, RegionFacts
from elastream.planning.managers.messages import Holding, RegionOrder, RegionReport, View

__all__ = [
    "TRANSITIONS",
    "HostRecord",
    "Infrastructure",
    "InfrastructureRules",
    "RegionFacts",
    "Stance",
    "adopt",
    "decide",
    "order_for",
    "view_for",
]


class Stance(StrEnum):
    """Where a host stands with the infrastructure manager."""

    ORDERED = "ordered"
    FREE = "free"
    VIEWED = "viewed"
    LEAVING = "leaving"


TRANSITIONS: Mapping[Stance, frozenset[Stance]] = {
    Stance.ORDERED: frozenset({Stance.FREE}),  # its region reports it up
    Stance.FREE: frozenset({Stance.VIEWED}),  # an application gets it
    Stance.VIEWED: frozenset({Stance.LEAVING, Stance.FREE}),  # its application is asked to leave; it gave it back unasked
    Stance.LEAVING: frozenset({Stance.VIEWED}),  # cancelled, or left for its heir
}
"""Besides, any host may be struck off: lost, or, from FREE and LEAVING, given back."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host. owner: the application that may place on it, if any. term: of the view or order that last changed this.

    until: when an application that is asked to leave must have done so, else inf. heir: the application that gets it then;
    empty: nobody, it goes back.
    """

    region: str
    type: str
    stance: Stance = Stance.ORDERED
    owner: str = ""
    term: int = 0
    until: float = math.inf
    heir: str = ""

    @property
    def goes(self) -> bool:
        """Whether it is to be given back."""
        return self.stance is Stance.LEAVING and not self.heir


@dataclass(frozen=True, slots=True)
class Ward:
    """A region or an application as the infrastructure manager keeps it: the last term told, heard back, and its hosts.

    heard: when a message of it was last news.
    """

    term: int = 0
    seen: int = 0
    number: int = 0
    hosts: tuple[str, ...] = ()
    heard: float = 0.0


@dataclass(frozen=True)
class Infrastructure:
    """What the infrastructure manager remembers.

    unsettled: hosts that are not VIEWED, so that a round need not look at all. next_number: of the next host name
    never used.
    """

    hosts: Mapping[str, HostRecord] = field(default_factory=dict)
    unsettled: frozenset[str] = frozenset()
    regions: Mapping[str, Ward] = field(default_factory=dict)
    applications: Mapping[str, Ward] = field(default_factory=dict)
    next_number: int = 1


def adopt(
    hosts: Mapping[str, HostRecord], regions: Iterable[str], applications: Iterable[str], number: int
) -> Infrastructure:
    """The state that knows these hosts already, as if it had ordered and assigned them in term 1."""
    records = {name: replace(record, term=1) for name, record in hosts.items()}
    of_region: dict[str, list[str]] = {name: [] for name in regions}
    of_application: dict[str, list[str]] = {name: [] for name in applications}
    for name, record in records.items():
        of_region[record.region].append(name)
        if record.owner:
            of_application[record.owner].append(name)
    return Infrastructure(
        records,
        frozenset(name for name, record in records.items() if record.stance is not Stance.VIEWED),
        {name: Ward(1, 1, 0, tuple(held)) for name, held in of_region.items()},
        {name: Ward(1, 1, 0, tuple(held)) for name, held in of_application.items()},
        number,
    )


def decide(
    rules: InfrastructureRules, state: Infrastructure, now: float, heard: Iterable[RegionReport | Holding]
) -> tuple[Infrastructure, tuple[RegionOrder | View, ...]]:
    """One round: what was heard since the last is taken in, in this order, and whoever must know is told.

    A message whose number is not above the last one's of its sender changes nothing. A report or holding that had not seen
    the latest term about a host says nothing about it, and a report that had not seen the last order asks for nothing. Who
    has not been heard to have seen its latest order or view is told again.
    """
    heard = tuple(heard)
    ledger = _Ledger(rules, state, now)
    ledger.speaking = {message.region for message in heard if isinstance(message, RegionReport)}
    spare: dict[str, Sequence[tuple[str, int]]] = {}
    for message in heard:
        if isinstance(message, RegionReport):
            ledger.hear_region(message)
        elif ledger.hear_application(message):
            spare[message.application] = message.spare
    ledger.cancel_overdue()
    ledger.assign_free(spare)
    ledger.make_room(spare)
    return ledger.close()


def order_for(
    state: Infrastructure, region: str, refused: str = "", kept: Sequence[tuple[str, str, str]] = ()
) -> RegionOrder:
    """The order in force for `region`; one of term 0 without hosts where it was never heard of."""
    ward = state.regions.get(region, Ward())
    hosts = tuple((host, state.hosts[host].type) for host in ward.hosts)
    going = tuple(host for host in _leaving(state, ward) if state.hosts[host].goes)
    return RegionOrder(region, ward.term, hosts, refused, tuple(kept), going, ward.number)


def view_for(state: Infrastructure, application: str) -> View:
    """The view in force of `application`; one of term 0 without hosts where it was never heard of."""
    ward = state.applications.get(application, Ward())
    return View(application, ward.term, ward.hosts, _leaving(state, ward), ward.number)


def _leaving(state: Infrastructure, ward: Ward) -> tuple[str, ...]:
    if not any(host in state.unsettled for host in ward.hosts):
        return ()
    return tuple(host for host in ward.hosts if state.hosts[host].stance is Stance.LEAVING)


class _Ledger:
    """The records while a round lasts. Every change of a record bumps the term of whoever must hear of it, once a round."""

    def __init__(self, rules: InfrastructureRules, state: Infrastructure, now: float) -> None:
        self.rules = rules
        self.now = now
        self.hosts = dict(state.hosts)
        self.unsettled = dict.fromkeys(sorted(state.unsettled))
        self.regions = dict(state.regions)
        self.applications = dict(state.applications)
        self.next_number = state.next_number
        self.held: dict[str, dict[str, None]] = {}
        self.sizes = {name: len(ward.hosts) for name, ward in state.regions.items()}
        self.total = len(state.hosts)
        self.ordered: dict[str, set[str]] = {}
        for host in self.unsettled:
            if self.hosts[host].stance is Stance.ORDERED:
                self.ordered.setdefault(self.hosts[host].region, set()).add(host)
        self.staying = self.total - sum(self.hosts[host].goes for host in self.unsettled)
        self.refused: dict[str, str] = {}
        self.kept: dict[str, list[tuple[str, str, str]]] = {}
        self.empty: list[str] = []
        self.speaking: set[str] = set()
        self._bumped: set[tuple[str, str]] = set()

    def hear_region(self, report: RegionReport) -> None:
        """Hosts that came up or were lost, then what the region asks for."""
        ward = self.regions.setdefault(report.region, Ward())
        if report.number <= ward.number:
            return
        ward = replace(ward, number=report.number, seen=max(ward.seen, report.seen), heard=self.now)
        self.regions[report.region] = ward
        for host in self.ordered.pop(report.region, frozenset()).intersection(report.up):
            self._set(host, Stance.FREE)
        if report.seen < ward.term:
            return
        # Orders are whole: whoever has seen the last was told of every host, and has lost those it does not name.
        if len(report.up) + len(report.coming) < len(ward.hosts):
            for host in set(ward.hosts).difference(report.up, report.coming):
                if host in self.hosts:
                    self._strike(host)
        for kind in report.add:
            self._add(report.region, kind)
        self.empty += report.empty
        for host in (*report.release, *report.drain):
            self._free(host)
        below = self.rules.consolidate_below
        if below is not None and report.utilisation is not None and report.utilisation <= below and report.idlest:
            self._free(report.idlest)

    def hear_application(self, holding: Holding) -> bool:
        """Hosts that the application will not leave, and hosts that it let go of. Returns whether it was news."""
        ward = self.applications.setdefault(holding.application, Ward())
        if holding.number <= ward.number:
            return False
        seen = max(ward.seen, holding.seen)
        self.applications[holding.application] = replace(ward, number=holding.number, seen=seen, heard=self.now)
        for host in holding.refused:
            record = self.hosts.get(host)
            if record is not None and record.owner == holding.application and record.term <= holding.seen:
                who = f"application manager of {holding.application}"
                self._cancel(host, who, "its response time is over its target")
        if holding.hosts != ward.hosts:
            held = frozenset(holding.hosts)
            for host in tuple(self.held.get("a" + holding.application, ward.hosts)):
                record = self.hosts[host]
                if host not in held and record.term <= holding.seen:
                    if record.heir:
                        self._set(host, Stance.VIEWED, owner=record.heir)
                    elif record.stance is Stance.LEAVING:
                        self._strike(host)
                    else:
                        self._set(host, Stance.FREE, owner="")
        return True

    def cancel_overdue(self) -> None:
        """Hosts that were not left in time are available again."""
        for host in [host for host in self.unsettled if self.hosts[host].until <= self.now]:
            late = f"{self.hosts[host].owner} had not left it within {self.rules.patience:g} s"
            self._cancel(host, "infrastructure manager", late)

    def assign_free(self, spare: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        """Give each free host to the application with the least spare slots in its region, for its priority.

        What an application without hosts in that region has to spare is all that it has elsewhere.
        """
        free = [host for host in self.unsettled if self.hosts[host].stance is Stance.FREE]
        if not free:
            return
        everywhere = {name: float(sum(number for _, number in slots)) for name, slots in spare.items()}
        found = {self.hosts[host].region: dict(everywhere) for host in free}
        for application, slots in spare.items():
            for region, number in slots:
                if region in found:
                    found[region][application] = number
        for host in free:
            wanting = found[self.hosts[host].region] or dict.fromkeys(self.applications, 0.0)
            if not wanting:
                continue
            owner = min(wanting, key=lambda name: (wanting[name] / self._weight(name), name))
            wanting[owner] += 1
            self._set(host, Stance.VIEWED, owner=owner)

    def make_room(self, spare: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        """Have an empty host left for each application that has no slot to spare, so that none starves beside another.

        It comes from whoever has most to spare for its priority, and would still have more than the heir; an heir that
        holds nothing at all goes before any priority. While hosts are coming, these are waited for.
        """
        slots = {name: sum(number for _, number in said) for name, said in spare.items()}
        awaited = {self.hosts[host].heir for host in self.unsettled}
        poor = sorted((name for name, n in slots.items() if n == 0 and name not in awaited), key=self._weight, reverse=True)
        if not poor or not self.empty or any(map(self._coming, self.unsettled)):
            return
        by_owner: dict[str, list[str]] = {}
        for host in self.empty:
            record = self.hosts.get(host)
            if record is not None and record.stance is Stance.VIEWED and slots.get(record.owner, 0) > 0:
                by_owner.setdefault(record.owner, []).append(host)
        for heir in poor:
            rich = max(by_owner, key=lambda name: (slots[name] / self._weight(name), name), default="")
            if not rich:
                return
            if self.applications[heir].hosts and slots[rich] / self._weight(rich) <= 1 / self._weight(heir):
                continue
            host = by_owner[rich].pop()
            slots[rich] -= 1
            if not by_owner[rich]:
                del by_owner[rich]
            self._set(host, Stance.LEAVING, owner=rich, until=self.now + self.rules.patience, heir=heir)

    def _coming(self, host: str) -> bool:
        record = self.hosts[host]
        return record.stance is not Stance.LEAVING and self._present(record.region)

    def _present(self, region: str) -> bool:
        """Whether a region speaks, or did so lately."""
        return region in self.speaking or self.now - self.regions.get(region, Ward()).heard <= self.rules.silence

    def _weight(self, application: str) -> float:
        return self.rules.priorities.get(application, 1.0)

    def close(self) -> tuple[Infrastructure, tuple[RegionOrder | View, ...]]:
        """The state after the round, and what is said."""
        for name, held in self.held.items():
            wards = self.applications if name[0] == "a" else self.regions
            wards[name[1:]] = replace(wards[name[1:]], hosts=tuple(held))
        state = Infrastructure(self.hosts, frozenset(self.unsettled), self.regions, self.applications, self.next_number)
        told: list[RegionOrder | View] = [
            order_for(state, name, self.refused.get(name, ""), self.kept.get(name, ()))
            for name, ward in self.regions.items()
            if ward.seen < ward.term or name in self.refused or name in self.kept
        ]
        told += [view_for(state, name) for name, ward in self.applications.items() if ward.seen < ward.term]
        return state, tuple(told)

    def _add(self, region: str, kind: str) -> None:
        reason = self.rules.refusal(region, self.sizes, self._present)
        if not reason and self.total >= self.rules.max_hosts:
            reason = f"there are {self.total} hosts, as many as may be"
        if reason:
            self.refused[region] = reason
            return
        host = f"h{self.next_number}"
        self.next_number += 1
        self.total += 1
        self.staying += 1
        self.sizes[region] = self.sizes.get(region, 0) + 1
        self._held("r" + region, self.regions[region])[host] = None
        self.hosts[host] = HostRecord(region, kind, term=self._bump("r" + region))
        self.unsettled[host] = None

    def _free(self, host: str) -> None:
        """A host is to go: at once where nobody holds it, else its application is asked."""
        record = self.hosts.get(host)
        if record is None or record.stance is Stance.LEAVING:
            return
        if self.staying <= self.rules.min_hosts:
            self._keep(host, "infrastructure manager", f"at least {self.rules.min_hosts} hosts must stay")
            return
        if record.stance is Stance.FREE:
            self._strike(host)
        elif record.stance is Stance.VIEWED:
            self.staying -= 1
            self._set(host, Stance.LEAVING, owner=record.owner, until=self.now + self.rules.patience)

    def _cancel(self, host: str, by: str, why: str) -> None:
        record = self.hosts[host]
        if record.stance is Stance.LEAVING:
            self._set(host, Stance.VIEWED, owner=record.owner)
            if record.goes:
                self.staying += 1
                self._keep(host, by, why)

    def _keep(self, host: str, by: str, why: str) -> None:
        """The region that would have freed a host hears who would not have it."""
        self.kept.setdefault(self.hosts[host].region, []).append((host, by, why))

    def _set(self, host: str, stance: Stance, owner: str = "", until: float = math.inf, heir: str = "") -> None:
        record = self.hosts[host]
        if stance not in TRANSITIONS[record.stance]:
            raise LifecycleError(f"host {host!r} of {record.owner or 'nobody'} cannot go from {record.stance} to {stance}")
        term = record.term
        if record.owner and record.owner != owner:
            self._held("a" + record.owner, self.applications[record.owner]).pop(host)
            self._bump("a" + record.owner)
        if owner:
            if record.owner != owner:
                self._held("a" + owner, self.applications[owner])[host] = None
            term = self._bump("a" + owner)
        self.hosts[host] = replace(record, stance=stance, owner=owner, term=term, until=until, heir=heir)
        self.unsettled.pop(host, None)
        if stance is not Stance.VIEWED:
            self.unsettled[host] = None

    def _strike(self, host: str) -> None:
        """The host is no more: its region is told, and the application that held it."""
        record = self.hosts.pop(host)
        self.unsettled.pop(host, None)
        self.total -= 1
        self.staying -= not record.goes
        self.sizes[record.region] -= 1
        self._held("r" + record.region, self.regions[record.region]).pop(host)
        self._bump("r" + record.region)
        if record.owner:
            self._held("a" + record.owner, self.applications[record.owner]).pop(host)
            self._bump("a" + record.owner)

    def _held(self, ward: str, of: Ward) -> dict[str, None]:
        """The hosts of a ward, in order, as they can be changed."""
        if ward not in self.held:
            self.held[ward] = dict.fromkeys(of.hosts)
        return self.held[ward]

    def _bump(self, ward: str) -> int:
        """The term in which a ward hears of this round's changes."""
        wards = self.applications if ward[0] == "a" else self.regions
        name = ward[1:]
        if (ward[0], name) not in self._bumped:
            self._bumped.add((ward[0], name))
            wards[name] = replace(wards[name], term=wards[name].term + 1)
        return wards[name].term
