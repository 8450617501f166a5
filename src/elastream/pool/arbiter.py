"""Arbiter process of shared hosts: keys, journal and rounds, independent of the transport.

State is on disk before it is sent or acted on. Times are epoch seconds, so they survive a restart.
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
from elastream.sharing.arbiter import decide, join, join_problem, leave
from elastream.sharing.billing import SharedLease, bill
from elastream.sharing.messages import Claim, Offer, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Arbiter, HostRecord, Member, Party, Tenure, initial_state, order_for, view_for

MAX_NAME_LENGTH = 100
MAX_PRIORITY = 1e6
MAX_HOSTS_OF_MEMBER = 10_000  # hosts that an application may hold and request: more is a mistake


class UnknownMember(CloudError):
    """The sender never joined, has left, or was silent too long."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """Share of an application: its weight (`priority`) and the hosts that it keeps (`minimum`)."""

    priority: float = 1.0
    minimum: int = 1

    def problem(self) -> str:
        """Return what is out of range; empty if nothing is."""
        if not 0 < self.priority <= MAX_PRIORITY:
            most = f"{MAX_PRIORITY:,.0f}"
            return f"a priority of {self.priority:g} is out of range: it must be above 0 and at most {most}"
        if not 1 <= self.minimum <= MAX_HOSTS_OF_MEMBER:
            return f"a minimum of {self.minimum:,} hosts is out of range: it must be from 1 to {MAX_HOSTS_OF_MEMBER:,}"
        return ""


class ArbiterNode:
    """Arbiter of `offer` under `rules`, with its state in `log`. Thread-safe.

    Args:
        machines: Kind of each fixed machine; none if regions have the hosts.
        entitlements: Applications that may join, in place of their own values; empty for any.
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
        entitlements: Mapping[str, Entitlement] | None = None,
        period: float = 0.0,
    ) -> None:
        self.offer = offer
        self.rules = rules
        self.period = period
        self._regions = frozenset(regions)
        self._entitlements = dict(entitlements or {})
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._due = -math.inf
        self._inbox: dict[tuple[type, str], RegionReport | Claim] = {}
        self._orders: dict[str, RegionOrder] = {}
        self._state, self._keys = _restore_state(offer, machines or {}, log.read, clock(), rules.patience)
        before = {name: log.read.get(name, {}) for name in ("ended", "settled")}
        log.set_baseline({**_state_tables(self._state, self._keys), **before})

    @property
    def state(self) -> Arbiter:
        return self._state

    def join(self, application: str, entitlement: Entitlement, key: str = "") -> str:
        """Add an application and return the key for its claims.

        Args:
            key: Key of a member with this name that ended without leaving; its hosts are returned at once.

        Raises:
            CloudError: The application cannot join.
        """
        if not 0 < len(application) <= MAX_NAME_LENGTH:
            raise CloudError(f"an application's name has from 1 to {MAX_NAME_LENGTH} characters, not {len(application)}")
        if self._entitlements and application not in self._entitlements:
            names = ", ".join(sorted(self._entitlements))
            raise CloudError(f"there is no application {application!r} here (there are: {names})")
        entitlement = self._entitlements.get(application, entitlement)
        if problem := entitlement.problem():
            raise CloudError(problem)
        with self._lock:
            now = self._clock()
            self._round(now)
            ended = self._is_member_key(application, key)
            state = leave(self.rules, self._state, application, now) if ended else self._state
            if problem := join_problem(state, application, entitlement.minimum):
                raise CloudError(problem)
            key = secrets.token_hex(16)
            state = join(state, application, entitlement.priority, entitlement.minimum, now)
            self._commit(state, {**self._keys, application: key})
            return key

    def claim(self, claim: Claim, key: str) -> View:
        """Process a claim and return the member's view. Raises UnknownMember, or InputError if it is implausible."""
        name = claim.application
        with self._lock:
            self._check(name, key)
            if problem := _implausible_reason(claim):
                raise InputError(f"a claim of {name!r} {problem}")
            if claim.seen > self._state.applications[name].term:
                # The journal is older than this application's view: it joins anew and regains hosts not assigned since.
                self._commit(leave(self.rules, self._state, name, self._clock()), self._keys)
            self._check(name, key)
            now = self._register_contact(claim, name, claim.number)
            self._check(name, key)
            return view_for(self._state, name, self._bill(now).get(name, 0.0))

    def report(self, report: RegionReport) -> RegionOrder:
        """Process a region's report and return its order.

        Raises:
            InputError: An unknown region, or one that has seen a newer term than this arbiter sent: it belongs to another
                arbiter, or this journal was lost.
        """
        name = report.region
        if name not in self._regions:
            names = ", ".join(sorted(self._regions)) or "none: the machines here are fixed"
            raise InputError(f"there is no region {name!r} here (there are: {names})")
        with self._lock:
            term = self._state.regions.get(name, Party()).term
            if report.seen > term:
                raise InputError(
                    f"region {name} has seen term {report.seen}, and here only {term} were given: it belongs to another "
                    "arbiter, or this one has lost its journal"
                )
            self._register_contact(report, name, report.number)
            last = self._orders.get(name)
            return order_for(self._state, name, last.refused if last else "", last.kept if last else ())

    def leave(self, application: str, key: str) -> None:
        """Remove an application that has ended; raises UnknownMember."""
        with self._lock:
            self._check(application, key)
            self._commit(leave(self.rules, self._state, application, self._clock()), self._keys)

    def round(self) -> None:
        """Decide on the messages since the last round; the result is on disk before anybody receives it."""
        with self._lock:
            self._round(self._clock())

    def bill(self) -> dict[str, float]:
        """Return the amount due from each application, including former ones."""
        with self._lock:
            return self._bill(self._clock())

    def _register_contact(self, message: RegionReport | Claim, name: str, number: int) -> float:
        before = self._inbox.get((type(message), name))
        if before is None or before.number < number:
            self._inbox[type(message), name] = message
        now = self._clock()
        if now >= self._due:
            self._round(now)
        return now

    def _round(self, now: float) -> None:
        members = self._state.applications
        messages = [m for m in self._inbox.values() if isinstance(m, RegionReport) or m.application in members]
        messages.sort(key=lambda message: isinstance(message, Claim))
        state, sent = decide(self.rules, self._state, now, messages)
        self._commit(state, self._keys)
        self._inbox.clear()
        self._orders = {message.region: message for message in sent if isinstance(message, RegionOrder)}
        self._due = now + self.period

    def _bill(self, now: float) -> dict[str, float]:
        owed = dict(self._state.settled)
        for name, amount in bill(self._state.leases.values(), now).items():
            owed[name] = owed.get(name, 0.0) + amount
        return owed

    def _is_member_key(self, application: str, key: str) -> bool:
        member_key = self._keys.get(application, "")
        return bool(member_key) and hmac.compare_digest(member_key.encode(), key.encode())

    def _check(self, application: str, key: str) -> None:
        if not self._is_member_key(application, key):
            raise UnknownMember(f"{application!r} is not a member of {self.offer.name!r} now")

    def _commit(self, state: Arbiter, keys: Mapping[str, str]) -> None:
        member_keys = {name: key for name, key in keys.items() if name in state.applications}
        self._log.commit(_state_tables(state, member_keys))
        self._state, self._keys = state, member_keys


def _implausible_reason(claim: Claim) -> str:
    if len(claim.asks) + len(claim.hosts) > MAX_HOSTS_OF_MEMBER:
        return f"is about {len(claim.asks) + len(claim.hosts):,} hosts: at most {MAX_HOSTS_OF_MEMBER:,} make sense"
    if min(claim.number, claim.seen) < 0:
        return "has a negative number: claims count up from 1"
    if any(slots < 0 for _, slots in claim.spare):
        return "has fewer than no free slots"
    if any(replicas < 0 or not (cpu is None or cpu >= 0) for _, replicas, cpu in claim.used):
        return "has a host with a negative number of replicas, or a use that is not a number"
    return ""


def _state_tables(state: Arbiter, keys: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
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


def _paid(paid: SharedLease) -> dict[str, Any]:
    lease = paid.lease
    return {
        "host": lease.host,
        "kind": lease.type.name,
        "since": lease.since,
        "until": lease.until,
        "spells": [list(spell) for spell in paid.spells],
    }


def _clamp_times(record: HostRecord, now: float, latest: float) -> HostRecord:
    until = min(record.until, latest) if record.tenure is Tenure.RECALLED else record.until
    return replace(record, since=min(record.since, now), spared=min(record.spared, latest), until=until)


def _restore_state(
    offer: Offer, machines: Mapping[str, str], tables: Mapping[str, Mapping[str, Any]], now: float, patience: float
) -> tuple[Arbiter, dict[str, str]]:
    """Return the state and keys of an earlier process."""
    # Silence counts from `now`, and waits are cut to `patience`, in case the clock was set back.
    kinds = {kind.name: kind for kind in offer.kinds}

    def paid(fields: Mapping[str, Any]) -> SharedLease:
        lease = Lease(fields["host"], kinds[fields["kind"]], fields["since"])
        return SharedLease(replace(lease, until=fields["until"]), tuple((who, a, b) for who, a, b in fields["spells"]))

    records = TypeAdapter(dict[str, HostRecord]).validate_python(tables.get("hosts", {}))
    for name, record in records.items():
        if record.kind not in kinds or (not record.region and machines.get(name) != record.kind):
            raise CloudError(
                f"the journal of {offer.name!r} knows a host {name} of kind {record.kind!r}, which it has no more: give an "
                "arbiter of other hosts another journal"
            )
    records = {name: _clamp_times(record, now, now + patience) for name, record in records.items()}
    hosts = {**initial_state(offer.kinds, machines).hosts, **records}
    settled = dict(tables.get("settled", {}))
    for name, owed in bill(map(paid, tables.get("ended", {}).values()), now).items():  # as journals were once kept
        settled[name] = settled.get(name, 0.0) + owed
    members = tables.get("members", {})
    state = Arbiter(
        hosts,
        frozenset(name for name, record in hosts.items() if record.tenure is not Tenure.HELD),
        TypeAdapter(dict[str, Party]).validate_python(tables.get("regions", {})),
        {
            name: Member(m["term"], hosts=tuple(m["hosts"]), reported_at=now, priority=m["priority"], minimum=m["minimum"])
            for name, m in members.items()
        },
        tables.get("counters", {}).get("next_number", 1),
        kinds,
        {name: paid(fields) for name, fields in tables.get("leases", {}).items()},
        settled,
    )
    return state, {name: member["key"] for name, member in members.items()}
