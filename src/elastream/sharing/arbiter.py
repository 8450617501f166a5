"""Rounds of an arbiter: assign and recall hosts, and decide which region may lease more."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from elastream.core.hosts import Lease, LifecycleError
from elastream.core.wording import counted
from elastream.sharing.billing import SharedLease, bill, split_settled
from elastream.sharing.messages import Claim, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import TRANSITIONS, Arbiter, HostRecord, Member, Party, Tenure, order_for, view_for

HostsByParty = dict[str, dict[str, None]]  # mutable, in order


class Ledger:
    """Mutable state of a round; only `to`, `strike` and `add` change a host's record.

    A party's term grows at most once a round.
    """

    def __init__(self, rules: ArbiterRules, state: Arbiter, now: float) -> None:
        self.rules = rules
        self.now = now
        self.kinds = state.kinds
        self.hosts = dict(state.hosts)
        self.unsettled = dict.fromkeys(sorted(state.unsettled))
        self.regions = dict(state.regions)
        self.members = dict(state.applications)
        self.leases = dict(state.leases)
        self.settled = dict(state.settled)
        self.sizes = {name: len(party.hosts) for name, party in state.regions.items()}
        self.total = len(state.hosts)
        self.ordered: dict[str, set[str]] = {}
        for host in self.unsettled:
            if self.hosts[host].tenure is Tenure.ORDERED:
                self.ordered.setdefault(self.hosts[host].region, set()).add(host)
        self.staying = self.total - sum(self.hosts[host].goes for host in self.unsettled)
        self.reporting: set[str] = set()  # regions that reported in this round
        self.unwanted: dict[str, str] = {}  # hosts that their regions propose to free, with the reason
        self.refusals: dict[str, str] = {}  # by region, why a request is refused
        # By region, hosts that it would have freed: (host, manager that refused, reason)
        self.retained: dict[str, list[tuple[str, str, str]]] = {}
        self._next_number = state.next_number
        self._of_regions: HostsByParty = {}
        self._of_members: HostsByParty = {}
        self._bumped: set[tuple[bool, str]] = set()

    def owned(self, application: str) -> Iterable[str]:
        return tuple(self._of_members.get(application, self.members[application].hosts))

    def present(self, region: str) -> bool:
        """Return True if a region reported within `rules.absence` seconds."""
        party = self.regions.get(region)
        return region in self.reporting or (party is not None and self.now - party.reported_at <= self.rules.absence)

    def to(
        self,
        host: str,
        tenure: Tenure,
        *,
        owner: str = "",
        until: float = math.inf,
        why: str = "",
        goes: bool = False,
        heir: str = "",
        spared: float | None = None,
    ) -> None:
        """Change the tenure of a host; an empty `owner` stands for the current one, or none if the tenure has none.

        Raises:
            LifecycleError: The table has no such edge.
        """
        before = self.hosts[host]
        if tenure not in TRANSITIONS[before.tenure]:
            of = f" of {before.owner}" if before.owner else ""
            raise LifecycleError(f"host {host!r}{of} cannot go from {before.tenure} to {tenure}")
        after = "" if tenure in (Tenure.FREE, Tenure.IDLE) else owner or before.owner
        if before.tenure is Tenure.IDLE:
            self._begin_lease(host, before.kind)
        term = before.term
        if before.owner != after:
            self._change_owner(host, before.owner, after)
        if after:
            term = self._bump(False, after)
        if tenure is Tenure.IDLE:
            self._end_lease(host)
        self.staying += before.goes - goes
        since = before.since if before.owner == after else self.now
        spared = before.spared if spared is None else spared
        self.hosts[host] = HostRecord(
            before.region, before.kind, tenure, after, term, since, spared, until, why, goes, heir
        )
        self.unsettled.pop(host, None)
        if tenure is not Tenure.HELD:
            self.unsettled[host] = None

    def _change_owner(self, host: str, before: str, after: str) -> None:
        if before:
            self._member_hosts(before).pop(host)
            self._bump(False, before)
        if after:
            self._member_hosts(after)[host] = None
        if host in self.leases:
            past, self.leases[host] = split_settled(self.leases[host].with_holder(after, self.now), self.now)
            if past is not None:
                self._settle(past)

    def add(self, region: str, kind: str) -> str:
        """Order a host of a region; return the reason of a refusal."""
        reason = self.rules.refusal(region, self.sizes, self.present)
        if not reason and self.total >= self.rules.max_hosts:
            reason = f"at most {counted(self.rules.max_hosts, 'host')} may be leased"
        if reason:
            return reason
        host = f"h{self._next_number}"
        self._next_number += 1
        self.total += 1
        self.staying += 1
        self.sizes[region] = self.sizes.get(region, 0) + 1
        self.regions.setdefault(region, Party())
        self._region_hosts(region)[host] = None
        self.hosts[host] = HostRecord(region, kind, term=self._bump(True, region))
        self.unsettled[host] = None
        self._begin_lease(host, kind)
        return ""

    def strike(self, host: str) -> None:
        """Remove a host; its region and its holder are notified."""
        record = self.hosts.pop(host)
        self.unsettled.pop(host, None)
        self.total -= 1
        self.staying -= not record.goes
        self.sizes[record.region] -= 1
        self._region_hosts(record.region).pop(host)
        self._bump(True, record.region)
        if record.owner:
            self._member_hosts(record.owner).pop(host)
            self._bump(False, record.owner)
        self._end_lease(host)

    def free(self, host: str, why: str) -> None:
        """Return a host to its region: at once without a holder, else by a recall."""
        record = self.hosts.get(host)
        if record is None or record.tenure is Tenure.RECALLED:
            return
        if self.staying <= self.rules.min_hosts:
            self.keep(host, "infrastructure manager", f"at least {counted(self.rules.min_hosts, 'host')} must stay")
        elif record.tenure is Tenure.FREE:
            self.strike(host)
        elif record.tenure is Tenure.HELD:
            self.to(host, Tenure.RECALLED, until=self.now + self.rules.patience, why=why, goes=True)

    def recall(self, host: str, why: str, heir: str = "") -> None:
        self.to(host, Tenure.RECALLED, until=self.now + self.rules.patience, why=why, heir=heir)

    def left(self, host: str) -> None:
        record = self.hosts[host]
        if record.goes:
            self.strike(host)
        elif record.heir in self.members:
            self.to(host, Tenure.HELD, owner=record.heir)
        else:
            self.to(host, Tenure.FREE)

    def cancel(self, host: str, by: str, why: str) -> None:
        """Cancel a recall by decision of `by`; the host stays with its application."""
        record = self.hosts[host]
        if record.tenure is not Tenure.RECALLED:
            return
        self.to(host, Tenure.HELD, spared=None if record.goes or record.heir else self.now + self.rules.patience)
        if record.goes:
            self.keep(host, by, why)

    def keep(self, host: str, by: str, why: str) -> None:
        """Tell the region who refused to free its host."""
        self.retained.setdefault(self.hosts[host].region, []).append((host, by, why))

    def dismiss(self, application: str) -> None:
        """Remove a member; its hosts become free, or go to heirs or regions."""
        for host in self.owned(application):
            if self.hosts[host].goes:
                self.strike(host)
            else:
                self.to(host, Tenure.FREE)
        self._of_members.pop(application, None)
        del self.members[application]

    def close(self) -> tuple[Arbiter, tuple[RegionOrder | View, ...]]:
        """Return the state after the round, and messages to parties that have not acknowledged the latest."""
        for name, hosts in self._of_regions.items():
            self.regions[name] = replace(self.regions[name], hosts=tuple(hosts))
        for name, hosts in self._of_members.items():
            self.members[name] = replace(self.members[name], hosts=tuple(hosts))
        state = Arbiter(
            self.hosts,
            frozenset(self.unsettled),
            self.regions,
            self.members,
            self._next_number,
            self.kinds,
            self.leases,
            self.settled,
        )
        sent: list[RegionOrder | View] = [
            order_for(state, name, self.refusals.get(name, ""), tuple(self.retained.get(name, ())))
            for name, party in self.regions.items()
            if party.acknowledged < party.term or name in self.refusals or name in self.retained
        ]
        sent += [view_for(state, name) for name, member in self.members.items() if member.acknowledged < member.term]
        return state, tuple(sent)

    def _settle(self, past: SharedLease) -> None:
        for application, owed in bill([past], self.now).items():
            self.settled[application] = self.settled.get(application, 0.0) + owed

    def _begin_lease(self, host: str, kind: str) -> None:
        if kind in self.kinds:
            self.leases[host] = SharedLease(Lease(host, self.kinds[kind], self.now))

    def _end_lease(self, host: str) -> None:
        if host in self.leases:
            paid = self.leases.pop(host).with_holder("", self.now)
            self._settle(replace(paid, lease=replace(paid.lease, until=self.now)))

    def _member_hosts(self, application: str) -> dict[str, None]:
        if application not in self._of_members:
            self._of_members[application] = dict.fromkeys(self.members[application].hosts)
        return self._of_members[application]

    def _region_hosts(self, region: str) -> dict[str, None]:
        if region not in self._of_regions:
            self._of_regions[region] = dict.fromkeys(self.regions[region].hosts)
        return self._of_regions[region]

    def _bump(self, region: bool, name: str) -> int:
        parties: dict[str, Party] | dict[str, Member] = self.regions if region else self.members
        party = parties[name]
        if (region, name) not in self._bumped:
            self._bumped.add((region, name))
            party = replace(party, term=party.term + 1)
            parties[name] = party  # type: ignore[assignment]
        return party.term


@dataclass(frozen=True, slots=True)
class Need:
    minimum: int  # guaranteed hosts
    priority: float  # weight, above 0
    requested: int  # hosts that it holds or requests
    critical: bool = False  # it misses its service level
    hosts: int = 0  # hosts that it holds; they decide ties


def shares(capacity: int, needs: Mapping[str, Need]) -> dict[str, int]:
    """Return the hosts that each application is entitled to, at most what it requests and `capacity` in all.

    1. Each gets its minimum, or less if it requests less. Priority decides if capacity does not suffice.
    2. The rest goes one by one to the application with the fewest hosts for its priority (d'Hondt's method, so a higher
    priority never means fewer); the current holder wins ties.
    3. A critical application then takes from those of lower priority that are not critical, down to their minimum.
    """
    dealt = dict.fromkeys(needs, 0)
    left = capacity
    by_priority = sorted(needs, key=lambda each: (-needs[each].priority, each))
    for name in by_priority:
        dealt[name] = min(needs[name].minimum, needs[name].requested, left)
        left -= dealt[name]

    def turn(name: str) -> tuple[float, bool, str]:
        return (dealt[name] + 1) / needs[name].priority, dealt[name] >= needs[name].hosts, name

    wanting = [turn(name) for name, need in needs.items() if dealt[name] < need.requested]
    heapify(wanting)
    while left and wanting:
        name = heappop(wanting)[-1]
        dealt[name] += 1
        left -= 1
        if dealt[name] < needs[name].requested:
            heappush(wanting, turn(name))
    for name in by_priority:
        need = needs[name]
        while need.critical and dealt[name] < need.requested:
            givers = [
                other
                for other, its in needs.items()
                if its.priority < need.priority and not its.critical and dealt[other] > its.minimum
            ]
            if not givers:
                break
            dealt[min(givers, key=lambda each: (needs[each].priority, -dealt[each], each))] -= 1
            dealt[name] += 1
    return dealt


def join_problem(state: Arbiter, application: str, minimum: int) -> str:
    """Return why an application cannot join with that minimum; empty if it can."""
    if application in state.applications:
        return f"an application called {application!r} is a member already"
    fixed = [record for record in state.hosts.values() if not record.region]
    if not fixed:
        return ""
    first = next(iter(state.kinds))
    available = sum(record.kind == first for record in fixed)
    promised = sum(member.minimum for member in state.applications.values())
    if promised + minimum > available:
        others = f", of which {promised} are promised to others" if promised else ""
        return f"{application!r} cannot be sure of {counted(minimum, 'host')}: there are {available} of {first!r}{others}"
    return ""


def join(state: Arbiter, application: str, priority: float, minimum: int, now: float) -> Arbiter:
    member = Member(1, reported_at=now, priority=priority, minimum=minimum)
    return replace(state, applications={**state.applications, application: member})


def leave(rules: ArbiterRules, state: Arbiter, application: str, now: float) -> Arbiter:
    """Return the state without an application; its hosts are returned."""
    ledger = Ledger(rules, state, now)
    ledger.dismiss(application)
    return ledger.close()[0]


def decide(
    rules: ArbiterRules, state: Arbiter, now: float, messages: Iterable[RegionReport | Claim] = ()
) -> tuple[Arbiter, tuple[RegionOrder | View, ...]]:
    """Process the messages of a round in order; return the new state, orders and views.

    A message does not apply to hosts with a newer term than its sender has seen. Orders and views repeat until
    acknowledged.
    """
    messages = tuple(messages)
    ledger = Ledger(rules, state, now)
    ledger.reporting = {message.region for message in messages if isinstance(message, RegionReport)}
    spare: dict[str, Sequence[tuple[str, int]]] = {}
    empty: list[str] = []
    for message in messages:
        if isinstance(message, RegionReport):
            empty += _apply_report(ledger, message)
        elif _apply_claim(ledger, message):
            spare[message.application] = message.spare
    _end_waits(ledger)
    if rules.by_spare:
        _deal_free(ledger, spare)
        _make_room(ledger, spare, empty)
    else:
        _share_by_requests(ledger)
    _end_leases(ledger)
    return ledger.close()


def _end_waits(ledger: Ledger) -> None:
    for name, member in tuple(ledger.members.items()):
        if ledger.now - member.reported_at > ledger.rules.silence:
            ledger.dismiss(name)
    for host in [host for host in ledger.unsettled if ledger.hosts[host].until <= ledger.now]:
        late = f"{ledger.hosts[host].owner} had not left it within {ledger.rules.patience:g} s"
        ledger.cancel(host, "infrastructure manager", late)


def _share_by_requests(ledger: Ledger) -> None:
    requested = {kind for member in ledger.members.values() for kind in member.asks}
    recalled = {ledger.hosts[h].kind for h in ledger.unsettled if ledger.hosts[h].tenure is Tenure.RECALLED}
    for kind in ledger.kinds:
        if kind in requested or kind in recalled:
            _Demand(ledger, kind).share()
    # Hosts that go belong to nobody's share any more.
    for kind in _free_unwanted(ledger):
        _Demand(ledger, kind).share()


def _end_leases(ledger: Ledger) -> None:
    for host in [host for host in ledger.unsettled if ledger.hosts[host].tenure is Tenure.FREE]:
        paid = ledger.leases.get(host)
        if paid is not None and not ledger.hosts[host].region and paid.lease.remaining(ledger.now) <= ledger.rules.linger:
            ledger.to(host, Tenure.IDLE)


def _apply_report(ledger: Ledger, report: RegionReport) -> tuple[str, ...]:
    """Apply a report and return the empty hosts if the report has seen the last order."""
    party = ledger.regions.setdefault(report.region, Party())
    if report.number <= party.number:
        return ()
    party = replace(party, number=report.number, acknowledged=max(party.acknowledged, report.seen), reported_at=ledger.now)
    ledger.regions[report.region] = party
    for host in ledger.ordered.pop(report.region, frozenset()).intersection(report.up):
        ledger.to(host, Tenure.FREE)
    if report.seen < party.term:
        return ()
    # Orders are complete: a region that has seen the last one and does not report a host has lost it.
    if len(report.up) + len(report.coming) < len(party.hosts):
        for host in set(party.hosts).difference(report.up, report.coming):
            if host in ledger.hosts:
                ledger.strike(host)
    for kind in report.add:
        if reason := ledger.add(report.region, kind):
            ledger.refusals[report.region] = reason
    _apply_proposals(ledger, report)
    return report.empty


def _apply_proposals(ledger: Ledger, report: RegionReport) -> None:
    unwanted = dict.fromkeys(report.release, f"the manager of {report.region} has more free slots than it is to keep")
    unwanted |= dict.fromkeys(report.drain, f"it is hardly used, and the manager of {report.region} can spare it")
    below = ledger.rules.consolidate_below
    if below is not None and report.utilisation is not None and report.utilisation <= below and report.idlest:
        why = f"{report.region} is used at {report.utilisation:.0%}: its least used host is to go"
        unwanted.setdefault(report.idlest, why)
    if ledger.rules.by_spare:
        for host, why in unwanted.items():
            ledger.free(host, why)
    else:
        ledger.unwanted |= unwanted


def _free_unwanted(ledger: Ledger) -> set[str]:
    """Free hosts that regions propose to free, unless new or needed; return the kinds that go."""
    kinds = set()
    for host, why in ledger.unwanted.items():
        record = ledger.hosts.get(host)
        member = ledger.members.get(record.owner) if record is not None else None
        if record is None or (member is not None and ledger.now - record.since < ledger.rules.settle):
            continue
        if member is not None and member.critical:
            ledger.keep(host, f"application manager of {record.owner}", "its response time is over its target")
        else:
            ledger.free(host, why)
            if host not in ledger.hosts or ledger.hosts[host].goes:
                kinds.add(record.kind)
    return kinds


def _apply_claim(ledger: Ledger, claim: Claim) -> bool:
    name = claim.application
    member = replace(ledger.members[name], reported_at=ledger.now)
    ledger.members[name] = member
    if claim.number <= member.number:
        return False
    asks = _open_requests(ledger, claim)
    unknown = [kind for kind in asks if kind not in ledger.kinds]
    ledger.members[name] = replace(
        member,
        number=claim.number,
        acknowledged=max(member.acknowledged, claim.seen),
        asks=tuple(kind for kind in asks if kind in ledger.kinds),
        critical=claim.critical,
        used=claim.used,
        refused=f"there is no host type {unknown[0]!r}" if unknown else "",
    )
    for host in claim.refused:
        record = ledger.hosts.get(host)
        if record is not None and record.owner == name and record.term <= claim.seen:
            why = "its response time is over its target" if claim.critical else "nothing else could do its work"
            ledger.cancel(host, f"application manager of {name}", why)
    if claim.hosts != member.hosts:
        listed = frozenset(claim.hosts)
        for host in ledger.owned(name):
            if host not in listed and ledger.hosts[host].term <= claim.seen:
                ledger.left(host)
        for host in claim.hosts:
            record = ledger.hosts.get(host)
            if record is not None and record.tenure in (Tenure.FREE, Tenure.IDLE):
                # It was counted as dead but only disconnected: hosts not assigned meanwhile are its again.
                ledger.to(host, Tenure.HELD, owner=name)
    return True


def _open_requests(ledger: Ledger, claim: Claim) -> list[str]:
    asks = list(claim.asks)
    for host in ledger.owned(claim.application) if asks else ():
        if ledger.hosts[host].term > claim.seen and ledger.hosts[host].kind in asks:
            asks.remove(ledger.hosts[host].kind)
    return asks


def _priority_key(member: Member, has: float, minimum: bool) -> tuple[bool, float]:
    """Return the sort key of who gets a host: below its minimum first, then fewest hosts for its priority."""
    return minimum, has / member.priority


# -- by what applications request -----------------------------------------------------------------------------------------


class _Demand:
    """Moves hosts of one kind towards the shares of the applications that request them."""

    def __init__(self, ledger: Ledger, kind: str) -> None:
        self.ledger = ledger
        self.kind = kind
        self.members = ledger.members
        self.mine: dict[str, list[str]] = {name: [] for name in self.members}
        self.recalled: list[str] = []
        self.free: list[str] = []
        self.idle: list[str] = []
        self.coming = 0
        self.fixed = False
        for host, record in ledger.hosts.items():
            if record.kind != kind or record.goes:
                continue
            self.fixed = not record.region
            if record.tenure is Tenure.HELD:
                self.mine[record.owner].append(host)
            elif record.tenure is Tenure.ORDERED:
                self.coming += 1
            else:
                {Tenure.RECALLED: self.recalled, Tenure.FREE: self.free, Tenure.IDLE: self.idle}[record.tenure].append(host)
        first = kind == next(iter(ledger.kinds))
        self.minima = {name: member.minimum if first else 0 for name, member in self.members.items()}
        self.asks = {name: member.asks.count(kind) for name, member in self.members.items()}
        leaving = Counter(ledger.hosts[host].owner for host in self.recalled)
        self.capacity = sum(map(len, self.mine.values())) + len(self.recalled) + len(self.free) + len(self.idle)
        needs = {}
        for name, member in self.members.items():
            hosts = len(self.mine[name]) + leaving[name]
            requested = hosts + self.asks[name]
            needs[name] = Need(self.minima[name], member.priority, requested, member.critical, hosts)
        self.due = shares(self.capacity, needs)

    def share(self) -> None:
        """Cancel needless recalls, assign free hosts, order new ones, and recall hosts for unmet requests."""
        for host in self.recalled[:]:
            owner = self.ledger.hosts[host].owner
            if len(self.mine[owner]) < self.due[owner]:
                self.ledger.to(host, Tenure.HELD)
                self.recalled.remove(host)
                self.mine[owner].append(host)
        self._give()
        awaited = self.coming + len(self.recalled)
        for name in sorted(self.members, key=lambda n: (self._has_minimum(n), -self.members[n].priority, n)):
            awaited -= self._supply(name, awaited)

    def _has_minimum(self, name: str) -> bool:
        return len(self.mine[name]) >= self.minima[name]

    def _shortfall(self, name: str) -> int:
        return min(self.asks[name], self.due[name] - len(self.mine[name]))

    def _give(self) -> None:
        leases, now = self.ledger.leases, self.ledger.now
        spare = sorted(self.free, key=lambda host: -leases[host].lease.remaining(now) if host in leases else 0.0)
        spare += self.idle
        for host in spare:
            asking = [name for name in self.members if self._shortfall(name) > 0]
            if not asking:
                return
            name = min(asking, key=lambda n: (*_priority_key(self.members[n], len(self.mine[n]), self._has_minimum(n)), n))
            self.ledger.to(host, Tenure.HELD, owner=name)
            self.mine[name].append(host)
            self.asks[name] -= 1
            left = list(self.members[name].asks)
            left.remove(self.kind)
            self.members[name] = replace(self.members[name], asks=tuple(left))

    def _supply(self, name: str, awaited: int) -> int:
        """Order hosts for an unmet request, or recall those it is due; return how many `awaited` ones it uses."""
        entitled, reason = self._shortfall(name), ""
        for number in range(max(0, awaited), self.asks[name]):
            if reason := self._order():
                if number < entitled and (host := self._giver(len(self.mine[name]) + number < self.minima[name])):
                    owner = self.ledger.hosts[host].owner
                    self.mine[owner].remove(host)
                    self.ledger.recall(host, f"{name} is entitled to {self.due[name]} of {self.capacity} {self.kind!r}")
                    continue
                if number < entitled:
                    reason += "; those of others are not to be recalled yet"
                elif self.capacity:
                    reason += f"; the share of {name} is {self.due[name]} of {self.capacity}"
                self.members[name] = replace(self.members[name], refused=reason)
                return max(0, entitled)
        return self.asks[name]

    def _order(self) -> str:
        if self.fixed:
            return f"all {self.capacity} {self.kind!r} are held"
        region = self.ledger.kinds[self.kind].region
        if not self.ledger.present(region):
            return f"the manager of {region} is not heard"
        return self.ledger.add(region, self.kind)

    def _giver(self, pressing: bool) -> str:
        now, rules, best = self.ledger.now, self.ledger.rules, (0, 0.0, "")
        for owner, hosts in self.mine.items():
            excess = len(hosts) - self.due[owner]
            if excess <= 0:
                continue
            for host in hosts:
                record = self.ledger.hosts[host]
                if record.spared <= now and (pressing or now - record.since >= rules.settle):
                    best = max(best, (excess, record.since, host))
        return best[-1]


# -- by free slots (E2DF) -------------------------------------------------------------------------------------------------


def _deal_free(ledger: Ledger, spare: Mapping[str, Sequence[tuple[str, int]]]) -> None:
    free = [host for host in ledger.unsettled if ledger.hosts[host].tenure is Tenure.FREE]
    if not free:
        return
    everywhere = {name: float(sum(number for _, number in slots)) for name, slots in spare.items()}
    spare_slots = {ledger.hosts[host].region: dict(everywhere) for host in free}
    for application, slots in spare.items():
        for region, number in slots:
            if region in spare_slots:
                spare_slots[region][application] = number
    for host in free:
        wanting = spare_slots[ledger.hosts[host].region] or dict.fromkeys(ledger.members, 0.0)
        if not wanting:
            continue
        owner = min(wanting, key=lambda name: (*_priority_key(ledger.members[name], wanting[name], True), name))
        wanting[owner] += 1
        ledger.to(host, Tenure.HELD, owner=owner)


def _make_room(ledger: Ledger, spare: Mapping[str, Sequence[tuple[str, int]]], empty: Collection[str]) -> None:
    """Recall an empty host for each entitled application without a spare slot, unless hosts are coming."""
    slots = {name: sum(number for _, number in regions) for name, regions in spare.items()}
    awaited = {ledger.hosts[host].heir for host in ledger.unsettled}
    poor = [name for name, number in slots.items() if number == 0 and name not in awaited]
    if not poor or not empty or any(_coming(ledger, host) for host in ledger.unsettled):
        return
    members = ledger.members
    needs = {
        name: Need(int(not members[name].hosts), members[name].priority, max(1, number), hosts=number)
        for name, number in slots.items()
    }
    due = shares(sum(slots.values()), needs)
    by_owner: dict[str, list[str]] = {}
    for host in empty:
        record = ledger.hosts.get(host)
        if record is not None and record.tenure is Tenure.HELD and slots.get(record.owner, 0) > due.get(record.owner, 0):
            by_owner.setdefault(record.owner, []).append(host)
    for heir in sorted((name for name in poor if due[name]), key=lambda name: (-members[name].priority, name)):
        rich = max(by_owner, key=lambda name: (slots[name] / members[name].priority, name), default="")
        if not rich:
            return
        ledger.recall(by_owner[rich].pop(), f"it is empty, and {heir} has no room", heir)
        slots[rich] -= 1
        if not by_owner[rich] or slots[rich] <= due[rich]:
            del by_owner[rich]


def _coming(ledger: Ledger, host: str) -> bool:
    record = ledger.hosts[host]
    return record.tenure is not Tenure.RECALLED and ledger.present(record.region)
