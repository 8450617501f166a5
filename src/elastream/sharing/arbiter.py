"""Rounds of an arbiter: assigns and recalls hosts, and decides which region may lease more.

The package documents messages and the lifecycle of hosts; `shares` computes the hosts that each application is entitled to.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from elastream.core.wording import counted
from elastream.sharing.ledger import Ledger
from elastream.sharing.messages import Claim, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Arbiter, Member, Party, Tenure


@dataclass(frozen=True, slots=True)
class Need:
    """Demand of an application. minimum: hosts guaranteed to it. priority: its weight, above 0. wanted: hosts that it
    holds or requests. critical: whether it misses its service level. held: hosts that it holds, which decide ties.
    """

    minimum: int
    priority: float
    wanted: int
    critical: bool = False
    held: int = 0


def shares(capacity: int, needs: Mapping[str, Need]) -> dict[str, int]:
    """Hosts that each application is entitled to, by name; never more than it wants, nor `capacity` in all.

    1. Each has its minimum, or what it wants where that is less.
    2. The rest is dealt one by one: to the application that wants more and would have the fewest for its priority
       (d'Hondt's method, so that a higher priority never means fewer); of equals, to the one that holds it already.
    3. A critical application that wants more still takes from those of lower priority that are not critical, down to their
       minimum. One that turns critical by that is excluded, and has its share again.

    Hosts that none requests remain unassigned. If there are too few for all minima, priority decides.
    """
    dealt = dict.fromkeys(needs, 0)
    left = capacity
    by_priority = sorted(needs, key=lambda each: (-needs[each].priority, each))
    for name in by_priority:
        dealt[name] = min(needs[name].minimum, needs[name].wanted, left)
        left -= dealt[name]

    def turn(name: str) -> tuple[float, bool, str]:
        return (dealt[name] + 1) / needs[name].priority, dealt[name] >= needs[name].held, name

    wanting = [turn(name) for name, need in needs.items() if dealt[name] < need.wanted]
    heapify(wanting)
    while left and wanting:
        name = heappop(wanting)[-1]
        dealt[name] += 1
        left -= 1
        if dealt[name] < needs[name].wanted:
            heappush(wanting, turn(name))
    for name in by_priority:
        need = needs[name]
        while need.critical and dealt[name] < need.wanted:
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


def refusal(state: Arbiter, application: str, minimum: int) -> str:
    """Why `application` cannot join with that minimum; empty where it can."""
    if application in state.applications:
        return f"an application called {application!r} is a member already"
    fixed = [record for record in state.hosts.values() if not record.region]
    if not fixed:
        return ""
    first = next(iter(state.kinds))
    there = sum(record.kind == first for record in fixed)
    promised = sum(member.minimum for member in state.applications.values())
    if promised + minimum > there:
        others = f", of which {promised} are promised to others" if promised else ""
        return f"{application!r} cannot be sure of {counted(minimum, 'host')}: there are {there} of {first!r}{others}"
    return ""


def join(state: Arbiter, application: str, priority: float, minimum: int, now: float) -> Arbiter:
    """Add an application without hosts as a member. Requires an empty `refusal`."""
    member = Member(1, heard=now, priority=priority, minimum=minimum)
    return replace(state, applications={**state.applications, application: member})


def leave(rules: ArbiterRules, state: Arbiter, application: str, now: float) -> Arbiter:
    """Remove an application that has ended; its hosts are given back."""
    ledger = Ledger(rules, state, now)
    ledger.dismiss(application)
    return ledger.close()[0]


def decide(
    rules: ArbiterRules, state: Arbiter, now: float, heard: Iterable[RegionReport | Claim] = ()
) -> tuple[Arbiter, tuple[RegionOrder | View, ...]]:
    """One round: processes the messages received since the last, in order, and creates the orders and views to send.

    A message whose number is not above the last one's of its sender only shows that an application is alive. A
    report or claim that had not seen the latest term of a host is ignored for that host, and a report that had not seen the
    last order requests nothing. An order or view is sent again until its receiver has acknowledged it.
    """
    heard = tuple(heard)
    ledger = Ledger(rules, state, now)
    ledger.speaking = {message.region for message in heard if isinstance(message, RegionReport)}
    spare: dict[str, Sequence[tuple[str, int]]] = {}
    empty: list[str] = []
    for message in heard:
        if isinstance(message, RegionReport):
            empty += _hear_region(ledger, message)
        elif _hear_application(ledger, message):
            spare[message.application] = message.spare
    for name, member in tuple(ledger.members.items()):
        if now - member.heard > rules.silence:
            ledger.dismiss(name)
    for host in [host for host in ledger.unsettled if ledger.hosts[host].until <= now]:
        late = f"{ledger.hosts[host].owner} had not left it within {rules.patience:g} s"
        ledger.cancel(host, "infrastructure manager", late)
    if rules.by_spare:
        _deal_free(ledger, spare)
        _make_room(ledger, spare, empty)
    else:
        requested = {kind for member in ledger.members.values() for kind in member.asks}
        recalled = {ledger.hosts[h].kind for h in ledger.unsettled if ledger.hosts[h].tenure is Tenure.RECALLED}
        for kind in state.kinds:
            if kind in requested or kind in recalled:
                _Demand(ledger, kind).share()
        # What goes is no part of anybody's share any more.
        for kind in _free_unwanted(ledger):
            _Demand(ledger, kind).share()
    for host in [host for host in ledger.unsettled if ledger.hosts[host].tenure is Tenure.FREE]:
        paid = ledger.leases.get(host)
        if paid is not None and not ledger.hosts[host].region and paid.lease.remaining(now) <= rules.linger:
            ledger.to(host, Tenure.IDLE)
    return ledger.close()


def _hear_region(ledger: Ledger, report: RegionReport) -> tuple[str, ...]:
    """Process a report: hosts up or lost, then requests. Returns the empty hosts if the report has seen the last order."""
    party = ledger.regions.setdefault(report.region, Party())
    if report.number <= party.number:
        return ()
    party = replace(party, number=report.number, seen=max(party.seen, report.seen), heard=ledger.now)
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
            ledger.refused[report.region] = reason
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
    return report.empty


def _free_unwanted(ledger: Ledger) -> set[str]:
    """Free hosts that their regions propose to free and no application requests, got recently, or needs for its level.

    Returns the kinds of those that go now.
    """
    gone = set()
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
                gone.add(record.kind)
    return gone


def _hear_application(ledger: Ledger, claim: Claim) -> bool:
    """Process a claim: hosts that the application keeps, has left, or still holds. Returns whether it was new."""
    name = claim.application
    member = replace(ledger.members[name], heard=ledger.now)
    ledger.members[name] = member
    if claim.number <= member.number:
        return False
    asks = list(claim.asks)
    for host in ledger.owned(name) if asks else ():
        # Requested before it could know of the grant.
        if ledger.hosts[host].term > claim.seen and ledger.hosts[host].kind in asks:
            asks.remove(ledger.hosts[host].kind)
    unknown = [kind for kind in asks if kind not in ledger.kinds]
    ledger.members[name] = replace(
        member,
        number=claim.number,
        seen=max(member.seen, claim.seen),
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
        held = frozenset(claim.hosts)
        for host in ledger.owned(name):
            if host not in held and ledger.hosts[host].term <= claim.seen:
                ledger.left(host)
        for host in claim.hosts:
            record = ledger.hosts.get(host)
            if record is not None and record.tenure in (Tenure.FREE, Tenure.IDLE):
                # It was counted as dead but only disconnected: hosts not assigned meanwhile are its again.
                ledger.to(host, Tenure.HELD, owner=name)
    return True


def _turn(member: Member, has: float, minimum: bool) -> tuple[bool, float]:
    """Sort key, least first, of who gets a host: below its minimum first, then fewest hosts for its priority."""
    return minimum, has / member.priority


# -- by what applications request -----------------------------------------------------------------------------------------


class _Demand:
    """Moves the hosts of one kind towards the shares of the applications that request them."""

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
            held = len(self.mine[name]) + leaving[name]
            wanted = held + self.asks[name]
            needs[name] = Need(self.minima[name], member.priority, wanted, member.critical, held)
        self.due = shares(self.capacity, needs)

    def share(self) -> None:
        """Cancel recalls no longer needed, assign free hosts, order new ones, and recall hosts for requests still unmet."""
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

    def _lacking(self, name: str) -> int:
        return min(self.asks[name], self.due[name] - len(self.mine[name]))

    def _give(self) -> None:
        """Assign spare hosts: paid ones first, longest paid first."""
        leases, now = self.ledger.leases, self.ledger.now
        spare = sorted(self.free, key=lambda host: -leases[host].lease.remaining(now) if host in leases else 0.0)
        spare += self.idle
        for host in spare:
            asking = [name for name in self.members if self._lacking(name) > 0]
            if not asking:
                return
            name = min(asking, key=lambda n: (*_turn(self.members[n], len(self.mine[n]), self._has_minimum(n)), n))
            self.ledger.to(host, Tenure.HELD, owner=name)
            self.mine[name].append(host)
            self.asks[name] -= 1
            left = list(self.members[name].asks)
            left.remove(self.kind)
            self.members[name] = replace(self.members[name], asks=tuple(left))

    def _supply(self, name: str, awaited: int) -> int:
        """Order hosts for the unmet request of an application; if none may be ordered, recall those that it is due.

        awaited: ordered and recalled hosts that no earlier application waits for; returns how many of them this one uses.
        """
        entitled, reason = self._lacking(name), ""
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
        """Have a region lease one more; returns why not, if refused."""
        if self.fixed:
            return f"all {self.capacity} {self.kind!r} are held"
        region = self.ledger.kinds[self.kind].region
        if not self.ledger.present(region):
            return f"the manager of {region} is not heard"
        return self.ledger.add(region, self.kind)

    def _giver(self, pressing: bool) -> str:
        """The host to recall next: the latest of the application furthest above its due; empty if none may be recalled."""
        now, rules, best, found = self.ledger.now, self.ledger.rules, (0, 0.0, ""), ""
        for owner, hosts in self.mine.items():
            excess = len(hosts) - self.due[owner]
            if excess <= 0:
                continue
            for host in hosts:
                record = self.ledger.hosts[host]
                if record.spared <= now and (pressing or now - record.since >= rules.settle):
                    best, found = max((best, found), ((excess, record.since, host), host))
        return found


# -- by free slots (E2DF) -------------------------------------------------------------------------------------------------


def _deal_free(ledger: Ledger, spare: Mapping[str, Sequence[tuple[str, int]]]) -> None:
    """Give each free host to the application with the least spare slots in its region, for its priority.

    For an application without hosts in that region its spare slots elsewhere count.
    """
    free = [host for host in ledger.unsettled if ledger.hosts[host].tenure is Tenure.FREE]
    if not free:
        return
    everywhere = {name: float(sum(number for _, number in slots)) for name, slots in spare.items()}
    found = {ledger.hosts[host].region: dict(everywhere) for host in free}
    for application, slots in spare.items():
        for region, number in slots:
            if region in found:
                found[region][application] = number
    for host in free:
        wanting = found[ledger.hosts[host].region] or dict.fromkeys(ledger.members, 0.0)
        if not wanting:
            continue
        owner = min(wanting, key=lambda name: (*_turn(ledger.members[name], wanting[name], True), name))
        wanting[owner] += 1
        ledger.to(host, Tenure.HELD, owner=owner)


def _make_room(ledger: Ledger, spare: Mapping[str, Sequence[tuple[str, int]]], empty: Collection[str]) -> None:
    """Recall an empty host for each application that has no spare slot and is entitled to one, so that none starves.

    All spare slots are shared; an application without hosts is guaranteed one. While hosts are coming, none is recalled.
    """
    slots = {name: sum(number for _, number in said) for name, said in spare.items()}
    awaited = {ledger.hosts[host].heir for host in ledger.unsettled}
    poor = [name for name, number in slots.items() if number == 0 and name not in awaited]
    if not poor or not empty or any(_coming(ledger, host) for host in ledger.unsettled):
        return
    members = ledger.members
    needs = {
        name: Need(int(not members[name].hosts), members[name].priority, max(1, number), held=number)
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
