"""An application's state towards the arbiter: hosts that it may use, and hosts that it has released."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from elastream.sharing.messages import Claim, View


@dataclass(frozen=True)
class Holder:
    """An application's state towards its arbiter.

    term: of the last view heard. number: claims sent so far. hosts: those of the view that it has not let go of, with their
    kinds. leave: of them those that are recalled, with the reason. let_go: hosts that it has let go of as long as views
    name them, with the last term seen when a claim was silent about them.
    """

    name: str
    term: int = 0
    number: int = 0
    hosts: Mapping[str, str] = field(default_factory=dict)
    leave: Mapping[str, str] = field(default_factory=dict)
    let_go: Mapping[str, int] = field(default_factory=dict)

    @property
    def open(self) -> tuple[str, ...]:
        """Hosts that it may place on."""
        return tuple(host for host in self.hosts if host not in self.leave)


Held = TypeVar("Held", bound=Holder)


def hear(holder: Held, view: View) -> Held:
    """The application's state after a view; one not newer than the last is ignored.

    A host that it has let go of is its own again only if it changed after the last claim without it: otherwise the view is
    older than that claim, and the arbiter may assign the host to another at any moment.
    """
    if view.term <= holder.term:
        return holder
    let_go: dict[str, int] = {}
    if holder.let_go:
        let_go = {host: seen for host, _, term in view.hosts if term <= (seen := holder.let_go.get(host, -1))}
    hosts = {host: kind for host, kind, _ in view.hosts if host not in let_go}
    leave = {host: why for host, why in view.recalled if host not in let_go}
    return replace(holder, term=view.term, hosts=hosts, leave=leave, let_go=let_go)


def claim(
    holder: Held,
    gone: Collection[str] = (),
    *,
    refused: tuple[str, ...] = (),
    asks: tuple[str, ...] = (),
    critical: bool = False,
    spare: tuple[tuple[str, int], ...] = (),
    used: tuple[tuple[str, int, float | None], ...] = (),
) -> tuple[Held, Claim]:
    """The next claim, which lets go of the hosts `gone`; they must be empty, and stay so from now on."""
    hosts, leave = holder.hosts, holder.leave
    if gone:
        hosts = {host: kind for host, kind in hosts.items() if host not in gone}
        leave = {host: why for host, why in leave.items() if host not in gone}
    let_go = dict.fromkeys((*holder.let_go, *gone), holder.term)
    kept = replace(holder, number=holder.number + 1, hosts=hosts, leave=leave, let_go=let_go)
    said = Claim(holder.name, kept.number, holder.term, tuple(hosts), refused, asks, critical, spare, used)
    return kept, said
