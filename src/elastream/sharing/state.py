"""State of an arbiter: hosts, applications, regions and paid leases."""

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from elastream.core.hosts import HostType
from elastream.sharing.billing import SharedLease
from elastream.sharing.messages import RegionOrder, View


class Tenure(StrEnum):
    """Assignment states of a host."""

    IDLE = "idle"  # a fixed machine that is not leased and costs nothing
    ORDERED = "ordered"  # its region must lease or start it
    FREE = "free"  # leased, without a holder
    HELD = "held"  # an application may use it
    RECALLED = "recalled"  # its application must leave it


# A fixed machine starts IDLE. A host is ORDERED when a region or an application requests one, none is free and the rules
# of regions allow it. A region's host is removed when it is lost, or returned from FREE or RECALLED.
TRANSITIONS: Mapping[Tenure, Set[Tenure]] = {
    Tenure.IDLE: {Tenure.HELD},  # an entitled application requests it, and no leased host is free: its lease begins
    Tenure.ORDERED: {Tenure.FREE},  # its region reports it up
    Tenure.FREE: {
        Tenure.HELD,  # an application gets it, or its holder was only cut off
        Tenure.IDLE,  # a fixed machine's paid unit ends soon, and nobody requests it: its lease ends
    },
    Tenure.HELD: {
        Tenure.FREE,  # its application returned it unasked, ended, or was silent too long
        Tenure.RECALLED,  # another application is entitled to it, or its region returns it: no new placements there
    },
    Tenure.RECALLED: {
        Tenure.HELD,  # its application refuses, is late, or is no longer asked to leave; or the heir has it
        Tenure.FREE,  # its application has left it, ended, or was silent too long
    },
}


@dataclass(frozen=True, slots=True)
class HostRecord:
    region: str  # empty for a fixed machine
    kind: str
    tenure: Tenure = Tenure.ORDERED
    owner: str = ""  # application that may place on it, if any
    term: int = 0  # term of the last change
    since: float = 0.0  # start of its owner's hold
    spared: float = 0.0  # earliest time to recall it for others
    until: float = math.inf  # time by which a recalled host must be left
    why: str = ""  # reason of the recall
    goes: bool = False  # the recalled host returns to its region
    heir: str = ""  # next application of the recalled host; empty for the one then entitled


@dataclass(frozen=True, slots=True)
class Party:
    """A region or an application: last term sent and acknowledged, and its hosts."""

    term: int = 0
    acknowledged: int = 0
    number: int = 0  # number of its last message that counted
    hosts: tuple[str, ...] = ()
    reported_at: float = 0.0  # time of that message


@dataclass(frozen=True, slots=True)
class Member(Party):
    """An application with its priority and guaranteed hosts of the first kind (`minimum`).

    `asks`, `critical` and `used` are from its last claim; `refused` is why a request is not granted.
    """

    priority: float = 1.0
    minimum: int = 0
    asks: tuple[str, ...] = ()
    critical: bool = False
    used: tuple[tuple[str, int, float | None], ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Arbiter:
    hosts: Mapping[str, HostRecord] = field(default_factory=dict)
    unsettled: frozenset[str] = frozenset()  # hosts that are not HELD, so that a round need not scan all
    regions: Mapping[str, Party] = field(default_factory=dict)
    applications: Mapping[str, Member] = field(default_factory=dict)
    next_number: int = 1  # number of the next new host name
    # Host types by name; minima refer to the first. Hosts of unknown kinds cost nothing here.
    kinds: Mapping[str, HostType] = field(default_factory=dict)
    leases: Mapping[str, SharedLease] = field(default_factory=dict)  # running leases by host
    settled: Mapping[str, float] = field(default_factory=dict)  # amounts due for ended leases, by application


def initial_state(kinds: Iterable[HostType], machines: Mapping[str, str]) -> Arbiter:
    hosts = {name: HostRecord("", kind, Tenure.IDLE) for name, kind in machines.items()}
    return Arbiter(hosts, frozenset(hosts), kinds={kind.name: kind for kind in kinds})


def adopt(
    hosts: Mapping[str, HostRecord], regions: Iterable[str], applications: Mapping[str, float], number: int
) -> Arbiter:
    """Return an arbiter with existing hosts, assigned in term 1.

    Args:
        applications: Priorities by name.
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
        {name: Party(1, 1, 0, tuple(names)) for name, names in of_region.items()},
        {name: Member(1, 1, 0, tuple(names), priority=applications[name]) for name, names in of_application.items()},
        number,
    )


def order_for(
    state: Arbiter, region: str, refused: str = "", retained: tuple[tuple[str, str, str], ...] = ()
) -> RegionOrder:
    """Return the current order of a region; term 0 and no hosts if the region is unknown."""
    party = state.regions.get(region, Party())
    hosts = tuple((host, state.hosts[host].kind) for host in party.hosts)
    leaving = tuple(host for host in _recalled(state, party) if state.hosts[host].goes)
    reports = [use for member in state.applications.values() for use in member.used]
    used = tuple(use for use in reports if use[0] in state.hosts and state.hosts[use[0]].region == region)
    return RegionOrder(region, party.term, hosts, refused, retained, leaving, party.number, used)


def view_for(state: Arbiter, application: str, owed: float = 0.0) -> View:
    member = state.applications[application]
    records = state.hosts
    hosts = tuple((host, (record := records[host]).kind, record.term) for host in member.hosts)
    recalled = tuple((host, records[host].why) for host in _recalled(state, member))
    return View(application, member.term, hosts, recalled, member.refused, owed)


def _recalled(state: Arbiter, party: Party) -> tuple[str, ...]:
    if state.unsettled.isdisjoint(party.hosts):
        return ()
    return tuple(host for host in party.hosts if state.hosts[host].tenure is Tenure.RECALLED)
