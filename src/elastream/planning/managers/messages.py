"""What managers say to each other, as frozen values that survive a trip through JSON; see the table in the package.

Every message gives the whole stance of its sender, so that saying it twice says nothing new. Transport is left to others.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

__all__ = [
    "Holding",
    "Message",
    "RegionOrder",
    "RegionReport",
    "ScaleIn",
    "ScaleOut",
    "Verdict",
    "View",
    "from_json",
    "to_json",
]


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """Operator to application: it would have `replicas` in all, the new one on `host` (empty: anywhere)."""

    application: str
    operator: str
    replicas: int
    host: str


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Operator to application: it would have `replicas` in all, without the one of index `without`."""

    application: str
    operator: str
    replicas: int
    without: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Application to operator: whether it may have `replicas`; `refused` is the reason, empty where it is granted."""

    application: str
    operator: str
    replicas: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class RegionReport:
    """Region to infrastructure, each round.

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
    """Infrastructure to region: the hosts that it shall have, (name, type) each; lease what is missing, release the rest.

    refused: why not all that was asked for is there; empty where it is. kept: (host, manager, reason) of hosts that it
    would have freed and may not, with the manager that refused. Both tell of this round only, and change nothing.

    leaving: of the hosts, those whose applications are asked to leave them. heard: number of the last report that counts.
    """

    region: str
    term: int
    hosts: tuple[tuple[str, str], ...]
    refused: str = ""
    kept: tuple[tuple[str, str, str], ...] = ()
    leaving: tuple[str, ...] = ()
    heard: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Infrastructure to application: hosts it may place on, and those of them that it is asked to leave and not to use.

    heard: number of the last holding that counts.
    """

    application: str
    term: int
    hosts: tuple[str, ...]
    leave: tuple[str, ...] = ()
    heard: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """Application to infrastructure, each round.

    number: grows with each. seen: term of the last view heard. hosts: all that it holds, those it is leaving included.
    refused: hosts that it was asked to leave and will not. spare: free slots by region, where it has hosts.
    """

    application: str
    number: int
    seen: int
    hosts: tuple[str, ...]
    refused: tuple[str, ...] = ()
    spare: tuple[tuple[str, int], ...] = ()


Message: TypeAlias = ScaleOut | ScaleIn | Verdict | RegionReport | RegionOrder | View | Holding

KINDS: Mapping[str, type[Message]] = {
    kind.__name__: kind for kind in (ScaleOut, ScaleIn, Verdict, RegionReport, RegionOrder, View, Holding)
}


def to_json(message: Message) -> dict[str, Any]:
    """The message as a JSON-ready dict; `from_json` is its inverse."""
    return {"message": type(message).__name__, **asdict(message)}


def from_json(data: Mapping[str, Any]) -> Message:
    """The message that `to_json` wrote; raises ValueError for a kind outside the closed set."""
    fields = dict(data)
    name = fields.pop("message", None)
    if name not in KINDS:
        raise ValueError(f"{name!r} is not a message between managers")
    return KINDS[name](**{key: _tupled(value) for key, value in fields.items()})


def _tupled(value: Any) -> Any:
    """JSON knows no tuples, messages no lists."""
    return tuple(map(_tupled, value)) if isinstance(value, list | tuple) else value
