"""The mutable records of an arbiter in a round: transitions of hosts, and the parties to notify."""

import math
from collections.abc import Iterable
from dataclasses import replace

from elastream.core.hosts import Lease, LifecycleError
from elastream.core.wording import counted
from elastream.sharing.billing import Paid, bill, parted
from elastream.sharing.messages import RegionOrder, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import TRANSITIONS, Arbiter, HostRecord, Member, Party, Tenure, order_for, view_for

Held = dict[str, dict[str, None]]
"""Hosts by party, in order, mutable."""


class Ledger:
    """The state while it changes; nothing changes the record of a host but `to`, `strike` and `add`.

    The term of each party that a change concerns grows once a round.
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
        self.speaking: set[str] = set()
        """Regions that reported in this round."""
        self.unwanted: dict[str, str] = {}
        """Hosts that their regions propose to free, with the reason."""
        self.refused: dict[str, str] = {}
        """By region, why a request is refused."""
        self.kept: dict[str, list[tuple[str, str, str]]] = {}
        """By region, hosts that it would have freed: (host, manager that refused, reason)."""
        self._next_number = state.next_number
        self._of_regions: Held = {}
        self._of_members: Held = {}
        self._bumped: set[tuple[bool, str]] = set()

    def owned(self, application: str) -> Iterable[str]:
        """Hosts of an application, as they are now."""
        return tuple(self._of_members.get(application, self.members[application].hosts))

    def present(self, region: str) -> bool:
        """Whether a region reports, or did within `rules.absence` seconds."""
        known = self.regions.get(region)
        return region in self.speaking or (known is not None and self.now - known.heard <= self.rules.absence)

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
        """Change the tenure of a host; raises LifecycleError if the table has no such edge.

        owner: its new owner; empty: the current one, or none if the tenure has none.
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
            if before.owner:
                self._member_hosts(before.owner).pop(host)
                self._bump(False, before.owner)
            if after:
                self._member_hosts(after)[host] = None
            if host in self.leases:
                past, self.leases[host] = parted(self.leases[host].held_by(after, self.now), self.now)
                if past is not None:
                    self._settle(past)
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

    def add(self, region: str, kind: str) -> str:
        """Order a host of a region; returns why not, if refused."""
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
        """Remove a host; its region and the application that held it are notified."""
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
        """Free a host for its region: at once if it has no holder, else its application is requested to leave."""
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
        """Recall a host: its application must leave it, to `heir` if given."""
        self.to(host, Tenure.RECALLED, until=self.now + self.rules.patience, why=why, heir=heir)

    def left(self, host: str) -> None:
        """Record that a host was left by its application."""
        record = self.hosts[host]
        if record.goes:
            self.strike(host)
        elif record.heir in self.members:
            self.to(host, Tenure.HELD, owner=record.heir)
        else:
            self.to(host, Tenure.FREE)

    def cancel(self, host: str, by: str, why: str) -> None:
        """Cancel a recall: the host stays with its application, by decision of `by`."""
        record = self.hosts[host]
        if record.tenure is not Tenure.RECALLED:
            return
        self.to(host, Tenure.HELD, spared=None if record.goes or record.heir else self.now + self.rules.patience)
        if record.goes:
            self.keep(host, by, why)

    def keep(self, host: str, by: str, why: str) -> None:
        """Notify the region that proposed to free a host who refused."""
        self.kept.setdefault(self.hosts[host].region, []).append((host, by, why))

    def dismiss(self, application: str) -> None:
        """Remove a member; its hosts become free, or go to their heirs or regions."""
        for host in self.owned(application):
            if self.hosts[host].goes:
                self.strike(host)
            else:
                self.to(host, Tenure.FREE)
        self._of_members.pop(application, None)
        del self.members[application]

    def close(self) -> tuple[Arbiter, tuple[RegionOrder | View, ...]]:
        """The state after the round, and the messages for every party that has not acknowledged the latest."""
        for name, held in self._of_regions.items():
            self.regions[name] = replace(self.regions[name], hosts=tuple(held))
        for name, held in self._of_members.items():
            self.members[name] = replace(self.members[name], hosts=tuple(held))
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
            order_for(state, name, self.refused.get(name, ""), tuple(self.kept.get(name, ())))
            for name, party in self.regions.items()
            if party.seen < party.term or name in self.refused or name in self.kept
        ]
        sent += [view_for(state, name) for name, member in self.members.items() if member.seen < member.term]
        return state, tuple(sent)

    def _settle(self, past: Paid) -> None:
        """Keep of a past that changes no more only what is owed for it."""
        for application, owed in bill([past], self.now).items():
            self.settled[application] = self.settled.get(application, 0.0) + owed

    def _begin_lease(self, host: str, kind: str) -> None:
        if kind in self.kinds:
            self.leases[host] = Paid(Lease(host, self.kinds[kind], self.now))

    def _end_lease(self, host: str) -> None:
        if host in self.leases:
            paid = self.leases.pop(host).held_by("", self.now)
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
        """The term of this round's changes for a party."""
        known: dict[str, Party] | dict[str, Member] = self.regions if region else self.members
        party = known[name]
        if (region, name) not in self._bumped:
            self._bumped.add((region, name))
            party = replace(party, term=party.term + 1)
            known[name] = party  # type: ignore[assignment]
        return party.term
