"""The process of the arbiter of shared hosts: keys, a journal, and periodic rounds; independent of the transport.

`elastream.sharing` decides. The process adds one rule: state is on disk before it is sent or acted on, so that a
manager killed at any point continues as after a lost message. `elastream.pool.service` is the transport.
Times are seconds since the epoch, so that they continue after a restart.
"""

import hmac
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from pydantic import TypeAdapter

from elastream.core.hosts import Lease
from elastream.errors import CloudError, InputError
from elastream.pool.state_log import StateLog
from elastream.sharing.arbiter import decide, join, leave, refusal
from elastream.sharing.billing import Paid, bill
from elastream.sharing.messages import Claim, Offer, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Arbiter, HostRecord, Member, Party, Tenure, fixed, order_for, view_for

LONGEST_NAME = 100
"""Characters of an application's name."""
HIGHEST_PRIORITY = 1e6
MOST_ASKED = 10_000
"""Hosts that an application may hold and request: more is a slip."""


class UnknownMember(CloudError):
    """The sender is no member: it never joined, has left, or was silent for so long that it counted as dead."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What an application may expect: its weight, and hosts that are guaranteed to it."""

    priority: float = 1.0
    minimum: int = 1

    def problem(self) -> str:
        """What is out of range; empty where nothing is."""
        if not 0 < self.priority <= HIGHEST_PRIORITY:
            most = f"{HIGHEST_PRIORITY:,.0f}"
            return f"a priority of {self.priority:g} is out of range: it must be above 0 and at most {most}"
        if not 1 <= self.minimum <= MOST_ASKED:
            return f"a minimum of {self.minimum:,} hosts is out of range: it must be from 1 to {MOST_ASKED:,}"
        return ""


class ArbiterNode:
    """The arbiter of `offer` under `rules`; what it remembers is in `log`. Methods may be called from several threads.

    machines: kind of each fixed machine, by name; none where regions have the hosts. regions: those that may report.
    standings: applications that may join, with priority and minimum, which override their own; empty: any may join.
    period: seconds from one round to the next; a message that comes when a round is due is answered from it.
    """

    def __init__(
        self,
        offer: Offer,
        rules: ArbiterRules,
        log: StateLog,
        clock: Callable[[], float],
        *,
        machines: Mapping[str, str] | None = None,
        regions: Iterable[str] = (),
        standings: Mapping[str, Entitlement] | None = None,
        period: float = 0.0,
    ) -> None:
        self.offer = offer
        self.rules = rules
        self.period = period
        self._regions = frozenset(regions)
        self._standings = dict(standings or {})
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._due = -math.inf
        self._heard: dict[tuple[type, str], RegionReport | Claim] = {}
        self._sent: dict[str, RegionOrder] = {}
        self._state, self._keys = _arbiter(offer, machines or {}, log.read, clock(), rules.patience)
        before = {name: log.read.get(name, {}) for name in ("ended", "settled")}
        log.known({**_arbiter_tables(self._state, self._keys), **before})

    @property
    def state(self) -> Arbiter:
        """Who holds what."""
        return self._state

    def join(self, application: str, standing: Entitlement, key: str = "") -> str:
        """Take an application in; the key that its claims are to carry. Raises CloudError where it cannot be taken.

        key: that of the member of this name, where it has ended without leaving and this one goes on in its place: what
        that one held is given back at once.
        """
        if not 0 < len(application) <= LONGEST_NAME:
            raise CloudError(f"an application's name has from 1 to {LONGEST_NAME} characters, not {len(application)}")
        if self._standings and application not in self._standings:
            known = ", ".join(sorted(self._standings))
            raise CloudError(f"there is no application {application!r} here (there are: {known})")
        standing = self._standings.get(application, standing)
        if problem := standing.problem():
            raise CloudError(problem)
        with self._lock:
            now = self._clock()
            self._round(now)
            ended = self._is_of(application, key)
            state = leave(self.rules, self._state, application, now) if ended else self._state
            if problem := refusal(state, application, standing.minimum):
                raise CloudError(problem)
            key = secrets.token_hex(16)
            state = join(state, application, standing.priority, standing.minimum, now)
            self._become(state, {**self._keys, application: key})
            return key

    def claim(self, claim: Claim, key: str) -> View:
        """Take in what a member claims; the view in force for it. Raises UnknownMember, and InputError for a wild claim."""
        name = claim.application
        with self._lock:
            self._check(name, key)
            if problem := _wild(claim):
                raise InputError(f"a claim of {name!r} {problem}")
            if claim.seen > self._state.applications[name].term:
                # The journal is older than this application's view: it joins anew and regains hosts not assigned since.
                self._become(leave(self.rules, self._state, name, self._clock()), self._keys)
            self._check(name, key)
            now = self._hear(claim, name, claim.number)
            self._check(name, key)
            return view_for(self._state, name, self._bill(now).get(name, 0.0))

    def report(self, report: RegionReport) -> RegionOrder:
        """Take in what a region reports; the order in force for it.

        Raises InputError for a region that is not on the list, and for one that has seen more than this arbiter ever sent:
        it belongs to another one, or this one has lost its journal, and nothing it sends would be news.
        """
        name = report.region
        if name not in self._regions:
            known = ", ".join(sorted(self._regions)) or "none: the machines here are fixed"
            raise InputError(f"there is no region {name!r} here (there are: {known})")
        with self._lock:
            sent = self._state.regions.get(name, Party()).term
            if report.seen > sent:
                raise InputError(
                    f"region {name} has seen term {report.seen}, and here only {sent} were given: it belongs to another "
                    "arbiter, or this one has lost its journal"
                )
            self._hear(report, name, report.number)
            last = self._sent.get(name)
            return order_for(self._state, name, last.refused if last else "", last.kept if last else ())

    def leave(self, application: str, key: str) -> None:
        """An application has ended. Raises UnknownMember."""
        with self._lock:
            self._check(application, key)
            self._become(leave(self.rules, self._state, application, self._clock()), self._keys)

    def round(self) -> None:
        """Decide on what was heard since the last round; it is on disk before anybody can hear of it."""
        with self._lock:
            self._round(self._clock())

    def bill(self) -> dict[str, float]:
        """What each application owes so far, those that are gone too."""
        with self._lock:
            return self._bill(self._clock())

    def _hear(self, message: RegionReport | Claim, name: str, number: int) -> float:
        """Keep the latest of a sender for the next round, and decide where that is due; the time."""
        before = self._heard.get((type(message), name))
        if before is None or before.number < number:
            self._heard[type(message), name] = message
        now = self._clock()
        if now >= self._due:
            self._round(now)
        return now

    def _round(self, now: float) -> None:
        members = self._state.applications
        heard = [m for m in self._heard.values() if isinstance(m, RegionReport) or m.application in members]
        heard.sort(key=lambda message: isinstance(message, Claim))
        state, sent = decide(self.rules, self._state, now, heard)
        self._become(state, self._keys)
        self._heard.clear()
        self._sent = {message.region: message for message in sent if isinstance(message, RegionOrder)}
        self._due = now + self.period

    def _bill(self, now: float) -> dict[str, float]:
        owed = dict(self._state.settled)
        for name, amount in bill(self._state.leases.values(), now).items():
            owed[name] = owed.get(name, 0.0) + amount
        return owed

    def _is_of(self, application: str, key: str) -> bool:
        known = self._keys.get(application, "")
        return bool(known) and hmac.compare_digest(known.encode(), key.encode())

    def _check(self, application: str, key: str) -> None:
        if not self._is_of(application, key):
            raise UnknownMember(f"{application!r} is no member of {self.offer.name!r} now")

    def _become(self, state: Arbiter, keys: Mapping[str, str]) -> None:
        kept = {name: key for name, key in keys.items() if name in state.applications}
        self._log.commit(_arbiter_tables(state, kept))
        self._state, self._keys = state, kept


def _wild(claim: Claim) -> str:
    """What no application can mean by a claim; empty where it makes sense."""
    if len(claim.asks) + len(claim.hosts) > MOST_ASKED:
        return f"is about {len(claim.asks) + len(claim.hosts):,} hosts: at most {MOST_ASKED:,} make sense"
    if min(claim.number, claim.seen) < 0:
        return "has a negative number: claims count up from 1"
    if any(slots < 0 for _, slots in claim.spare):
        return "has fewer than no free slots"
    if any(replicas < 0 or not (cpu is None or cpu >= 0) for _, replicas, cpu in claim.used):
        return "has a host with fewer than no replicas, or a use that is no number"
    return ""


def _arbiter_tables(state: Arbiter, keys: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """What must survive the process. What a member requested it requests again within a second."""
    return {
        "hosts": {name: record for name, record in state.hosts.items() if record.tenure is not Tenure.IDLE},
        "regions": state.regions,
        "members": {
            name: {
                "priority": m.priority, "minimum": m.minimum, "term": m.term, "hosts": m.hosts, "key": keys[name],
            }
            for name, m in state.applications.items()
        },
        "leases": {name: _paid(paid) for name, paid in state.leases.items()},
        "ended": {},  # of a journal of before: `_arbiter` has settled them
        "settled": state.settled,
        "counters": {"next_number": state.next_number},
    }  # fmt: skip


def _paid(paid: Paid) -> dict[str, Any]:
    lease = paid.lease
    return {
        "host": lease.host,
        "kind": lease.type.name,
        "since": lease.since,
        "until": lease.until,
        "spells": [list(spell) for spell in paid.spells],
    }


def _dated(record: HostRecord, now: float, latest: float) -> HostRecord:
    """`record` with nothing that has begun after `now`, and no wait beyond `latest`."""
    until = min(record.until, latest) if record.tenure is Tenure.RECALLED else record.until
    return replace(record, since=min(record.since, now), spared=min(record.spared, latest), until=until)


def _arbiter(
    offer: Offer, machines: Mapping[str, str], tables: Mapping[str, Mapping[str, Any]], now: float, patience: float
) -> tuple[Arbiter, dict[str, str]]:
    """The state and keys that an earlier process left. Silence of parties counts from `now`; no wait lasts longer than from
    now on, should the clock have been set back meanwhile."""
    kinds = {kind.name: kind for kind in offer.kinds}

    def paid(fields: Mapping[str, Any]) -> Paid:
        lease = Lease(fields["host"], kinds[fields["kind"]], fields["since"])
        return Paid(replace(lease, until=fields["until"]), tuple((who, a, b) for who, a, b in fields["spells"]))

    known = TypeAdapter(dict[str, HostRecord]).validate_python(tables.get("hosts", {}))
    for name, record in known.items():
        if record.kind not in kinds or (not record.region and machines.get(name) != record.kind):
            raise CloudError(
                f"the journal of {offer.name!r} knows a host {name} of kind {record.kind!r}, which it has no more: give an "
                "arbiter of other hosts another journal"
            )
    known = {name: _dated(record, now, now + patience) for name, record in known.items()}
    hosts = {**fixed(offer.kinds, machines).hosts, **known}
    settled = dict(tables.get("settled", {}))
    for name, owed in bill(map(paid, tables.get("ended", {}).values()), now).items():  # as journals were once kept
        settled[name] = settled.get(name, 0.0) + owed
    members = tables.get("members", {})
    state = Arbiter(
        hosts,
        frozenset(name for name, record in hosts.items() if record.tenure is not Tenure.HELD),
        TypeAdapter(dict[str, Party]).validate_python(tables.get("regions", {})),
        {
            name: Member(m["term"], hosts=tuple(m["hosts"]), heard=now, priority=m["priority"], minimum=m["minimum"])
            for name, m in members.items()
        },
        tables.get("counters", {}).get("next_number", 1),
        kinds,
        {name: paid(fields) for name, fields in tables.get("leases", {}).items()},
        settled,
    )
    return state, {name: member["key"] for name, member in members.items()}
