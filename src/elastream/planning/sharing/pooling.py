"""Who holds which machine of a pool, and how a machine goes from one application to another.

The pool is an infrastructure manager (E2DF, section 3) whose machines are given: it partitions them among applications,
which it tells by a `View` and hears by a `Holding`, as the managers do. What it adds is demand: applications ask, and
`sharing` says how many each may have. All pure: what is remembered goes in and comes out, time is a number (seconds).

A machine's life:

    IDLE     -> HELD       an application that is entitled to it asks, and no leased machine is free: its lease begins
    FREE     -> HELD       an application that is entitled to it asks; or its holder, taken for dead, was only cut off
    FREE     -> IDLE       its paid unit is about to end and nobody asked: its lease ends
    HELD     -> FREE       its application gave it back unasked
    HELD     -> RECALLED   another application is entitled to it: the holder is asked to leave
    RECALLED -> FREE       the holder left
    RECALLED -> HELD       nobody needs it any more; the holder refused; or it was not left in time
    HELD, RECALLED -> FREE its application ended, or was silent for too long
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastream.model.cloud import HostType, Lease, LifecycleError
from elastream.planning.managers.messages import View
from elastream.planning.sharing.messages import Claim
from elastream.planning.sharing.shares import Need, shares

__all__ = [
    "TRANSITIONS",
    "Machine",
    "Member",
    "Paid",
    "PoolRules",
    "PoolState",
    "Stance",
    "admission",
    "bill",
    "hear",
    "join",
    "leave",
    "round_of",
    "view",
]


class Stance(StrEnum):
    """Where a machine of the pool stands."""

    IDLE = "idle"
    """Not leased, costs nothing."""
    FREE = "free"
    """Leased, and nobody's."""
    HELD = "held"
    """In the view of an application, which may use it."""
    RECALLED = "recalled"
    """Its application is asked to leave it."""


TRANSITIONS: Mapping[Stance, frozenset[Stance]] = {
    Stance.IDLE: frozenset({Stance.HELD}),
    Stance.FREE: frozenset({Stance.HELD, Stance.IDLE}),
    Stance.HELD: frozenset({Stance.FREE, Stance.RECALLED}),
    Stance.RECALLED: frozenset({Stance.FREE, Stance.HELD}),
}


@dataclass(frozen=True, slots=True)
class PoolRules:
    """patience: seconds that a holder has to leave a recalled machine, and that it is left alone after it did not. silence:
    seconds without a word after which an application counts as dead. settle: seconds that a machine stays with whom it was
    given to, unless another lacks its minimum. linger: seconds before the end of a paid unit at which a free machine goes.
    """

    patience: float = 45.0
    silence: float = 15.0
    settle: float = 15.0
    linger: float = 2.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine. kind: the name of its host type. owner: who holds it, if anyone. term: of the view that last changed it.

    since: when it came to be its owner's. until: when a recalled one is to be left. spared: it is not recalled before.
    """

    kind: str
    stance: Stance = Stance.IDLE
    owner: str = ""
    term: int = 0
    since: float = 0.0
    until: float = math.inf
    spared: float = 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """An application of the pool. minimum: machines of the pool's first kind that are guaranteed to it.

    term: of the last view. heard: when it was last heard; number, seen: of its last claim. asks: kinds of the machines that
    it would have besides. critical: whether it misses its service level.
    """

    priority: float
    minimum: int
    term: int = 0
    heard: float = 0.0
    number: int = 0
    seen: int = 0
    asks: tuple[str, ...] = ()
    critical: bool = False


@dataclass(frozen=True)
class Paid:
    """One lease of a machine, and who held it when: (application, from, until or None), oldest first."""

    lease: Lease
    spells: tuple[tuple[str, float, float | None], ...] = ()


@dataclass(frozen=True)
class PoolState:
    """What the pool remembers. kinds: host types by name, the first one's machines are those that minima speak of.

    leases: by machine, those that run. ended: leases that ended, oldest first.
    """

    kinds: Mapping[str, HostType]
    machines: Mapping[str, Machine]
    members: Mapping[str, Member] = field(default_factory=dict)
    leases: Mapping[str, Paid] = field(default_factory=dict)
    ended: tuple[Paid, ...] = ()

    @property
    def first(self) -> str:
        """The kind that minima speak of."""
        return next(iter(self.kinds))

    def owned(self, application: str) -> tuple[str, ...]:
        """Machines in the view of an application."""
        return tuple(name for name, machine in self.machines.items() if machine.owner == application)


def admission(state: PoolState, application: str, minimum: int) -> str:
    """Why `application` cannot join with that minimum; empty where it can."""
    if application in state.members:
        return f"an application called {application!r} is in the pool already"
    there = sum(machine.kind == state.first for machine in state.machines.values())
    promised = sum(member.minimum for member in state.members.values())
    if promised + minimum > there:
        others = f", of which {promised} are promised to others" if promised else ""
        return f"{application!r} cannot be sure of {minimum} machines: the pool has {there} of {state.first!r}{others}"
    return ""


def join(state: PoolState, application: str, priority: float, minimum: int, now: float) -> PoolState:
    """The application is a member from now on, and holds nothing yet. Only where `admission` has nothing against it."""
    return replace(state, members={**state.members, application: Member(priority, minimum, heard=now)})


def leave(state: PoolState, application: str, now: float) -> PoolState:
    """The application is gone, and gives back what it held."""
    ledger = _Ledger(state, now)
    ledger.strike(application)
    return ledger.state()


def view(state: PoolState, application: str) -> View:
    """What a member is told: machines that it may use, and those of them that it is asked to leave."""
    owned = state.owned(application)
    recalled = tuple(name for name in owned if state.machines[name].stance is Stance.RECALLED)
    return View(application, state.members[application].term, owned, recalled)


def hear(rules: PoolRules, state: PoolState, now: float, claim: Claim) -> PoolState:
    """Take in what a member says. A claim whose number is not above its last one's changes nothing but that it was heard.

    What it does not say it holds it gave back, if it had seen that it could have it; what it refuses to leave it keeps.
    What it says it holds and nobody has is its own again: it was taken for dead, and was only cut off.
    """
    holding = claim.holding
    ledger = _Ledger(state, now)
    member = replace(state.members[holding.application], heard=now)
    ledger.members[holding.application] = member
    if holding.number <= member.number:
        return ledger.state()
    owned = state.owned(holding.application)
    unseen = [state.machines[name].kind for name in owned if state.machines[name].term > holding.seen]
    asks = list(claim.asks)
    for kind in unseen:
        # It asked for this before it could know that it has it.
        if kind in asks:
            asks.remove(kind)
    ledger.members[holding.application] = replace(
        member,
        number=holding.number,
        seen=max(member.seen, holding.seen),
        asks=tuple(kind for kind in asks if kind in state.kinds),
        critical=claim.critical,
    )
    for name in owned:
        machine = state.machines[name]
        if machine.term > holding.seen:
            continue
        if name not in holding.hosts:
            ledger.to(name, Stance.FREE)
        elif name in holding.refused and machine.stance is Stance.RECALLED:
            ledger.to(name, Stance.HELD, spared=now + rules.patience)
    for name in holding.hosts:
        if name in state.machines and state.machines[name].stance in (Stance.FREE, Stance.IDLE):
            ledger.to(name, Stance.HELD, owner=holding.application)
    return ledger.state()


def round_of(rules: PoolRules, state: PoolState, now: float) -> PoolState:
    """One round: the dead are struck off, machines given, recalled and let go as the shares have it."""
    ledger = _Ledger(state, now)
    for name, member in state.members.items():
        if now - member.heard > rules.silence:
            ledger.strike(name)
    for name, machine in tuple(ledger.machines.items()):
        if machine.stance is Stance.RECALLED and machine.until <= now:
            ledger.to(name, Stance.HELD, spared=now + rules.patience)
    for kind in state.kinds:
        _share(rules, ledger, kind)
    for name, paid in tuple(ledger.leases.items()):
        if ledger.machines[name].stance is Stance.FREE and paid.lease.remaining(now) <= rules.linger:
            ledger.to(name, Stance.IDLE)
    return ledger.state()


def _share(rules: PoolRules, ledger: "_Ledger", kind: str) -> None:
    """Bring the machines of one kind nearer to the shares."""
    members = ledger.members
    minima = {name: member.minimum if kind == ledger.first else 0 for name, member in members.items()}
    wanted = {name: len(ledger.of(kind, name)) + member.asks.count(kind) for name, member in members.items()}
    due = shares(
        len(ledger.of(kind)),
        {name: Need(minima[name], m.priority, wanted[name], m.critical) for name, m in members.items()},
    )

    def staying(name: str) -> int:
        return len(ledger.of(kind, name, Stance.HELD))

    def lacking(name: str) -> int:
        return min(members[name].asks.count(kind), due[name] - staying(name))

    # What was recalled and is not needed any more stays where it is, before anything is given anew.
    for machine in ledger.of(kind, stance=Stance.RECALLED):
        if staying(ledger.machines[machine].owner) < due[ledger.machines[machine].owner]:
            ledger.to(machine, Stance.HELD)
    # A machine that is paid already is given first, of those the one that is paid for longest.
    spare = sorted(ledger.of(kind, stance=Stance.FREE), key=lambda each: -ledger.leases[each].lease.remaining(ledger.now))
    spare += ledger.of(kind, stance=Stance.IDLE)
    while spare and (asking := [name for name in members if lacking(name) > 0]):
        ledger.give(spare.pop(0), min(asking, key=lambda n: (staying(n) >= minima[n], staying(n) / members[n].priority, n)))
    coming = len(ledger.of(kind, stance=Stance.RECALLED))
    for needy in sorted(members, key=lambda n: (staying(n) >= minima[n], -members[n].priority, n)):
        for number in range(max(0, lacking(needy))):
            if coming:
                coming -= 1
                continue
            pressing = staying(needy) + number < minima[needy]
            found = [
                name
                for name in ledger.of(kind, stance=Stance.HELD)
                if staying(owner := ledger.machines[name].owner) > due[owner]
                and ledger.machines[name].spared <= ledger.now
                and (pressing or ledger.now - ledger.machines[name].since >= rules.settle)
            ]
            if not found:
                break
            giver = max(found, key=lambda name: (_excess(ledger, due, kind, name), ledger.machines[name].since, name))
            ledger.to(giver, Stance.RECALLED, until=ledger.now + rules.patience)


def _excess(ledger: "_Ledger", due: Mapping[str, int], kind: str, machine: str) -> int:
    owner = ledger.machines[machine].owner
    return len(ledger.of(kind, owner, Stance.HELD)) - due[owner]


class _Ledger:
    """The state while it changes. A member's term grows once a change of the state, however much of its view changes."""

    def __init__(self, state: PoolState, now: float) -> None:
        self._before = state
        self.now = now
        self.first = state.first
        self.machines = dict(state.machines)
        self.members = dict(state.members)
        self.leases = dict(state.leases)
        self.ended = list(state.ended)
        self._bumped: set[str] = set()

    def state(self) -> PoolState:
        """The state after it."""
        return replace(
            self._before, machines=self.machines, members=self.members, leases=self.leases, ended=tuple(self.ended)
        )

    def of(self, kind: str, owner: str | None = None, stance: Stance | None = None) -> list[str]:
        """Machines of a kind, of one owner or in one stance."""
        return [
            name
            for name, machine in self.machines.items()
            if machine.kind == kind
            and (owner is None or machine.owner == owner)
            and (stance is None or machine.stance is stance)
        ]

    def give(self, machine: str, to: str) -> None:
        """A machine that is nobody's goes to the application that asked for it."""
        asks = list(self.members[to].asks)
        asks.remove(self.machines[machine].kind)
        self.members[to] = replace(self.members[to], asks=tuple(asks))
        self.to(machine, Stance.HELD, owner=to)

    def to(
        self, machine: str, stance: Stance, *, owner: str = "", until: float = math.inf, spared: float | None = None
    ) -> None:
        """Another stance; raises LifecycleError where the table has no such edge. `owner`: of one that was nobody's."""
        before = self.machines[machine]
        if stance not in TRANSITIONS[before.stance]:
            raise LifecycleError(f"machine {machine!r} cannot go from {before.stance} to {stance}")
        after = "" if stance in (Stance.FREE, Stance.IDLE) else owner or before.owner
        since = before.since if after == before.owner else self.now
        if before.stance is Stance.IDLE:
            kind = self._before.kinds[before.kind]
            self.leases[machine] = Paid(Lease(machine, kind, self.now))
        if before.owner != after:
            self._held(machine, after)
        if stance is Stance.IDLE:
            paid = self.leases.pop(machine)
            self.ended.append(replace(paid, lease=replace(paid.lease, until=self.now)))
        term = self._bump(after or before.owner)
        self.machines[machine] = Machine(
            before.kind, stance, after, term, since, until, before.spared if spared is None else spared
        )

    def strike(self, application: str) -> None:
        """The application is no member any more."""
        for name, machine in tuple(self.machines.items()):
            if machine.owner == application:
                self.to(name, Stance.FREE)
        del self.members[application]

    def _held(self, machine: str, owner: str) -> None:
        """Write down whose the machine is from now on."""
        paid = self.leases[machine]
        spells = tuple((who, start, self.now if end is None else end) for who, start, end in paid.spells)
        self.leases[machine] = replace(paid, spells=(*spells, (owner, self.now, None)) if owner else spells)

    def _bump(self, application: str) -> int:
        """The term in which an application hears of this change."""
        if application not in self.members:
            return 0
        if application not in self._bumped:
            self._bumped.add(application)
            self.members[application] = replace(self.members[application], term=self.members[application].term + 1)
        return self.members[application].term


def bill(paid: Iterable[Paid], now: float) -> dict[str, float]:
    """Money that each application owes by `now` for `paid`; together the cost of the leases.

    Each unit's price is shared by those who held the machine in it, by the seconds for which they did; a unit in which
    nobody did is owed by whoever held it last: that one left it to the pool in a unit that was paid.
    """
    owed: dict[str, float] = {}
    for each in paid:
        lease = each.lease
        start, unit = lease.since, lease.type.billing.unit
        last = each.spells[0][0]
        for number in range(lease.units(now)):
            begin, end = start + number * unit, start + (number + 1) * unit
            held: dict[str, float] = {}
            for who, since, until in each.spells:
                seconds = min(end, now if until is None else until) - max(begin, since)
                if seconds > 0:
                    held[who] = held.get(who, 0.0) + seconds
            total = sum(held.values())
            for who, seconds in (held or {last: 1.0}).items():
                owed[who] = owed.get(who, 0.0) + lease.type.price * seconds / (total or 1.0)
            last = next((who for who, since, _ in reversed(each.spells) if since < end), last)
    return owed
