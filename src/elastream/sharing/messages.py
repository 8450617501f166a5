"""Messages between applications, regions and the arbiter of their hosts.

Frozen values of plain fields, which convert to JSON and back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.core.hosts import HostType


@dataclass(frozen=True, slots=True)
class Claim:
    """Application to arbiter, twice a second: its hosts and requests."""

    application: str
    number: int  # grows with each claim
    seen: int  # term of the last view
    hosts: tuple[str, ...]  # all its hosts, also those that it is leaving
    refused: tuple[str, ...] = ()  # recalled hosts that it keeps
    asks: tuple[str, ...] = ()  # kind of each requested host
    critical: bool = False  # it misses its service level
    spare: tuple[tuple[str, int], ...] = ()  # free slots by region
    used: tuple[tuple[str, int, float | None], ...] = ()  # (host, replicas, CPU utilisation or None)


@dataclass(frozen=True, slots=True)
class View:
    """Arbiter to application, after each claim: the hosts that it may use."""

    application: str
    term: int
    # (host, kind, term of the last change). The term tells an outdated view of a released host from a new grant.
    hosts: tuple[tuple[str, str, int], ...] = ()
    recalled: tuple[tuple[str, str], ...] = ()  # (host, reason) of hosts that it must leave
    refused: str = ""  # why a request is not granted
    owed: float = 0.0  # amount due so far


@dataclass(frozen=True, slots=True)
class RegionReport:
    """Region to arbiter, in each of its rounds: its hosts and proposals."""

    region: str
    number: int  # grows with each report
    seen: int  # term of the last order
    up: tuple[str, ...]  # hosts that are up; with `coming`, all its hosts
    coming: tuple[str, ...] = ()
    add: tuple[str, ...] = ()  # types of hosts that it would add
    release: tuple[str, ...] = ()  # empty hosts that it would return
    drain: tuple[str, ...] = ()  # little-used hosts that it would free
    utilisation: float | None = None  # mean CPU utilisation; None if unknown
    idlest: str = ""  # least used host in use, if any
    empty: tuple[str, ...] = ()  # hosts that are up and hold nothing


@dataclass(frozen=True, slots=True)
class RegionOrder:
    """Arbiter to region, after each report: the (name, type) of all hosts that it must have."""

    region: str
    term: int
    hosts: tuple[tuple[str, str], ...]
    refused: str = ""  # why a request of this round is refused
    kept: tuple[tuple[str, str, str], ...] = ()  # (host, manager, reason) of hosts that it may not free now
    leaving: tuple[str, ...] = ()  # hosts whose applications must leave them
    heard: int = 0  # number of the last report that counts
    used: tuple[tuple[str, int, float | None], ...] = ()  # (host, replicas, CPU utilisation or None) from the applications


@dataclass(frozen=True)
class Offer:
    """Kinds of hosts and their highest number at one arbiter; `latency` is one-way, as in `elastream.Local`."""

    name: str
    kinds: tuple[HostType, ...]
    max_hosts: int
    latency: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)
