"""The state of an arbiter: hosts with their lifecycle as a table, applications, regions, and paid leases."""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastream.core.hosts import HostType
from elastream.sharing.billing import Paid
from elastream.sharing.messages import RegionOrder, View


class Tenure(StrEnum):
    """Assignment states of a host."""

    IDLE = "idle"
    """A fixed machine that is not leased and costs nothing."""
    ORDERED = "ordered"
    """Its region is to lease it, or starts it."""
    FREE = "free"
    """Leased, without a holder."""
    HELD = "held"
    """In the view of an application, which may use it."""
    RECALLED = "recalled"
    """Its application is requested to leave it."""


TRANSITIONS: Mapping[Tenure, Set[Tenure]] = {
    Tenure.IDLE: {Tenure.HELD},  # an application requests it: its lease begins
    Tenure.ORDERED: {Tenure.FREE},  # its region reports it up
    Tenure.FREE: {Tenure.HELD, Tenure.IDLE},  # an application gets it; its lease ends
    Tenure.HELD: {Tenure.FREE, Tenure.RECALLED},  # given back unasked; recalled
    Tenure.RECALLED: {Tenure.HELD, Tenure.FREE},  # cancelled, or left for its heir; left
}
"""Besides, a region's host may be struck off: lost, or given back from FREE and RECALLED. The package says when."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host. region: empty for a fixed machine. owner: the application that may place on it, if any. term: of the view or
    order that last changed this. since: when it came to be its owner's. spared: it is not recalled for others before.

    Of a recalled one: until: when it is to be left. why: the reason. goes: whether it is given back to its region then.
    heir: the application that gets it then; empty: the one entitled then.
    """

    region: str
    kind: str
    tenure: Tenure = Tenure.ORDERED
    owner: str = ""
    term: int = 0
    since: float = 0.0
    spared: float = 0.0
    until: float = math.inf
    why: str = ""
    goes: bool = False
    heir: str = ""


@dataclass(frozen=True, slots=True)
class Party:
    """A region, or an application, as the arbiter knows it: the last term sent, heard back, and its hosts.

    number: of its last message that counted. heard: when that was.
    """

    term: int = 0
    seen: int = 0
    number: int = 0
    hosts: tuple[str, ...] = ()
    heard: float = 0.0


@dataclass(frozen=True, slots=True)
class Member(Party):
    """An application. priority: its weight. minimum: hosts of the arbiter's first kind that are guaranteed to it.

    asks, critical, used: of its last claim. refused: why it does not have all that it requests.
    """

    priority: float = 1.0
    minimum: int = 0
    asks: tuple[str, ...] = ()
    critical: bool = False
    used: tuple[tuple[str, int, float | None], ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Arbiter:
    """The state of an arbiter.

    unsettled: hosts that are not HELD, so that a round need not look at all. next_number: of the next host name never used.
    kinds: host types by name; those of the first are what minima are about. leases: by host, those that run;
    settled: by application, what it owes for those that have ended. Hosts of kinds that are not known cost nothing here.
    """

    hosts: Mapping[str, HostRecord] = field(default_factory=dict)
    unsettled: frozenset[str] = frozenset()
    regions: Mapping[str, Party] = field(default_factory=dict)
    applications: Mapping[str, Member] = field(default_factory=dict)
    next_number: int = 1
    kinds: Mapping[str, HostType] = field(default_factory=dict)
    leases: Mapping[str, Paid] = field(default_factory=dict)
    settled: Mapping[str, float] = field(default_factory=dict)


def fixed(kinds: Iterable[HostType], machines: Mapping[str, str]) -> Arbiter:
    """The initial state of an arbiter of fixed machines, none assigned. machines: name of its kind by the name of each."""
    hosts = {name: HostRecord("", kind, Tenure.IDLE) for name, kind in machines.items()}
    return Arbiter(hosts, frozenset(hosts), kinds={kind.name: kind for kind in kinds})


def adopt(
    hosts: Mapping[str, HostRecord], regions: Iterable[str], applications: Mapping[str, float], number: int
) -> Arbiter:
    """An arbiter with existing hosts, counted as ordered and assigned in term 1.

    applications: priorities by name. number: of the next host.
    """
    records = {name: replace(record, term=1) for name, record in hosts.items()}
    of_region: dict[str, list[str]] = {name: [] for name in regions}
    of_application: dict[str, list[str]] = {name: [] for name in applications}
    for name, record in records.items():
        of_region[record.region].append(name)
        if record.owner:
            of_application[record.owner].append(name)
    return Arbiter(
        records,
        frozenset(name for name, record in records.items() if record.tenure is not Tenure.HELD),
        {name: Party(1, 1, 0, tuple(held)) for name, held in of_region.items()},
        {name: Member(1, 1, 0, tuple(held), priority=applications[name]) for name, held in of_application.items()},
        number,
    )


def order_for(state: Arbiter, region: str, refused: str = "", kept: tuple[tuple[str, str, str], ...] = ()) -> RegionOrder:
    """The current order for `region`; of term 0 and without hosts if the region is unknown."""
    party = state.regions.get(region, Party())
    hosts = tuple((host, state.hosts[host].kind) for host in party.hosts)
    going = tuple(host for host in _recalled(state, party) if state.hosts[host].goes)
    reports = [use for member in state.applications.values() for use in member.used]
    used = tuple(use for use in reports if use[0] in state.hosts and state.hosts[use[0]].region == region)
    return RegionOrder(region, party.term, hosts, refused, kept, going, party.number, used)


def view_for(state: Arbiter, application: str, owed: float = 0.0) -> View:
    """The current view of a known application."""
    member = state.applications[application]
    records = state.hosts
    hosts = tuple((host, (record := records[host]).kind, record.term) for host in member.hosts)
    recalled = tuple((host, records[host].why) for host in _recalled(state, member))
    return View(application, member.term, hosts, recalled, member.refused, owed)


def _recalled(state: Arbiter, party: Party) -> tuple[str, ...]:
    if state.unsettled.isdisjoint(party.hosts):
        return ()
    return tuple(host for host in party.hosts if state.hosts[host].tenure is Tenure.RECALLED)
