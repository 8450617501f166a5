"""State of an application towards the arbiter."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from elastream.sharing.messages import Claim, View


@dataclass(frozen=True)
class Holder:
    name: str
    term: int = 0  # term of the last view
    number: int = 0  # claims sent so far
    hosts: Mapping[str, str] = field(default_factory=dict)  # kinds of the hosts that it has not let go of
    leave: Mapping[str, str] = field(default_factory=dict)  # reasons of recalled hosts
    # Hosts let go that views still name, with the last term seen when a claim omitted them.
    let_go: Mapping[str, int] = field(default_factory=dict)

    @property
    def open(self) -> tuple[str, ...]:
        """Hosts that it may place on."""
        return tuple(host for host in self.hosts if host not in self.leave)


AnyHolder = TypeVar("AnyHolder", bound=Holder)


def receive(holder: AnyHolder, view: View) -> AnyHolder:
    """Return the state after a view; ignore one that is not newer than the last.

    A host let go returns only if it changed after the last claim without it. Otherwise the view is older than that claim,
    and the arbiter may reassign the host.
    """
    if view.term <= holder.term:
        return holder
    let_go: dict[str, int] = {}
    if holder.let_go:
        let_go = {host: term_seen for host, _, term in view.hosts if term <= (term_seen := holder.let_go.get(host, -1))}
    hosts = {host: kind for host, kind, _ in view.hosts if host not in let_go}
    leave = {host: why for host, why in view.recalled if host not in let_go}
    return replace(holder, term=view.term, hosts=hosts, leave=leave, let_go=let_go)


def claim(
    holder: AnyHolder,
    given_up: Collection[str] = (),
    *,
    refused: tuple[str, ...] = (),
    asks: tuple[str, ...] = (),
    critical: bool = False,
    spare: tuple[tuple[str, int], ...] = (),
    used: tuple[tuple[str, int, float | None], ...] = (),
) -> tuple[AnyHolder, Claim]:
    """Return the state and the next claim, which lets go of the hosts `gone`; they must be and stay empty."""
    hosts, leave = holder.hosts, holder.leave
    if given_up:
        hosts = {host: kind for host, kind in hosts.items() if host not in given_up}
        leave = {host: why for host, why in leave.items() if host not in given_up}
    let_go = dict.fromkeys((*holder.let_go, *given_up), holder.term)
    updated = replace(holder, number=holder.number + 1, hosts=hosts, leave=leave, let_go=let_go)
    message = Claim(holder.name, updated.number, holder.term, tuple(hosts), refused, asks, critical, spare, used)
    return updated, message
