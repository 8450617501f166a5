"""Messages between applications, regions and the arbiter of their hosts; the package has the table.

Frozen values of plain fields, which convert to JSON and back. Transport and validation are elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.core.hosts import HostType


@dataclass(frozen=True, slots=True)
class Claim:
    """Application to arbiter: hosts that it holds and hosts that it requests.

    number: grows with each claim. seen: term of the last view heard. hosts: all that it holds, those it is leaving
    included. refused: recalled hosts that it keeps. asks: kind of each host that it requests besides.
    critical: whether it misses its service level. spare: free slots by region, where it has hosts. used: (host, replicas on
    it, CPU utilisation or None) of the hosts that it uses.
    """

    application: str
    number: int
    seen: int
    hosts: tuple[str, ...]
    refused: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    critical: bool = False
    spare: tuple[tuple[str, int], ...] = ()
    used: tuple[tuple[str, int, float | None], ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """Arbiter to application: the hosts that it may use.

    hosts: (host, kind, term in which it last changed) each. recalled: (host, reason) of those that it is to leave and not
    to use any more. refused: why a request is not granted; empty if all are. owed: money so far.
    """

    application: str
    term: int
    hosts: tuple[tuple[str, str, int], ...] = ()
    recalled: tuple[tuple[str, str], ...] = ()
    refused: str = ""
    owed: float = 0.0


@dataclass(frozen=True, slots=True)
class RegionReport:
    """Region to arbiter, each of its rounds.

    number: grows with each report. seen: term of the last order heard. up, coming: all its hosts. add: types of the hosts
    that it would add. release: empty hosts that it would give back. drain: hosts in use, hardly, that it would free.
    utilisation: mean CPU of its hosts, None where unknown. idlest: of its hosts in use the least used, empty if none is.
    empty: hosts that are up and hold nothing.
    """

    region: str
    number: int
    seen: int
    up: tuple[str, ...]
    coming: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    utilisation: float | None = None
    idlest: str = ""
    empty: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RegionOrder:
    """Arbiter to region: the hosts that it is to have, (name, type) each; lease what is missing, release the rest.

    refused: why not all that was requested is there; empty where it is. kept: (host, manager, reason) of hosts that it
    would have freed and may not, with the manager that refused. Both are about this round only, and change nothing.

    leaving: of the hosts, those whose applications are requested to leave. heard: number of the last report that counts.
    used: (host, replicas, CPU utilisation or None) as applications report them.
    """

    region: str
    term: int
    hosts: tuple[tuple[str, str], ...]
    refused: str = ""
    kept: tuple[tuple[str, str, str], ...] = ()
    leaving: tuple[str, ...] = ()
    heard: int = 0
    used: tuple[tuple[str, int, float | None], ...] = ()


@dataclass(frozen=True)
class Offer:
    """What an arbiter called `name` shares: kinds of hosts, and the most hosts that there can be.

    latency: how far apart its regions are (one way, as in `elastream.Local`).
    """

    name: str
    kinds: tuple[HostType, ...]
    max_hosts: int
    latency: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)
