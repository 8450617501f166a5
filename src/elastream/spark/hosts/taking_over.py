"""What a run that goes on does with the leases of its earlier driver; `recording.lease_log` has the table.

Hosts that are still there are adopted under their names, with the time from which they are paid. For those that are gone as
many of their types are leased, so that the run goes on as wide as it was: the load has not become less meanwhile.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from elastream.clouds.provider import Phase, Provider, ProviderOffer
from elastream.core.hosts import HostState, HostType, Lease, by_zones
from elastream.recording.lease_log import LeaseLog
from elastream.spark.hosts.trying import tried

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resumed:
    """That a run goes on, at second `at` of the run; its earlier driver was last seen at `seen`."""

    at: float
    seen: float


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Leases of an earlier driver. adopted: of hosts that are there. gone: of others, ended now. ended: ended before."""

    adopted: Mapping[str, Lease] = field(default_factory=dict)
    gone: Mapping[str, Lease] = field(default_factory=dict)
    ended: Mapping[str, Lease] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """A number such that no host of before is called `h` and that, or more."""
        names = (*self.adopted, *self.gone, *self.ended)
        return 1 + max((int(name[1:]) for name in names if name[:1] == "h" and name[1:].isdecimal()), default=0)


@dataclass(frozen=True, slots=True)
class Begun:
    """The hosts that a run begins with. before: those of an earlier driver. first: requested now, at second `since`."""

    before: TakenOver
    first: Mapping[str, HostType]
    since: float


def begun(leases: LeaseLog, provider: Provider, resumed: Resumed | None, now: float, replicas: int = 0) -> Begun:
    """Take over what an earlier driver left, if the run goes on, and request first hosts, each noted in `leases` before."""
    before = TakenOver() if resumed is None else take_over(leases, provider, resumed.seen)
    first = first_hosts(provider.terms, before, replicas)
    for host, kind in first.items():
        tried(partial(leases.requested, host, kind, now), "the first hosts cannot be leased")
    tried(lambda: provider.lease(first), "the first hosts cannot be leased")
    return Begun(before, first, now)


def take_over(leases: LeaseLog, provider: Provider, seen: float) -> TakenOver:
    """Sort the leases in `leases` by what `provider` lists; those of hosts that are gone end at `seen`, when they were last
    seen."""
    listed = tried(provider.hosts, "hosts cannot be listed")
    adopted, gone, ended = {}, {}, {}
    for host, lease in leases.earlier.items():
        status = listed.get(host)
        if not lease.active:
            ended[host] = lease
        elif status is not None and status.phase in (Phase.REQUESTED, Phase.STARTING, Phase.UP):
            adopted[host] = lease
        else:
            why = f"gone when it was to be taken over; last seen at {seen:.0f} s"
            gone[host] = lost = replace(lease.to(HostState.LOST, max(lease.since, seen)), note=why)
            tried(partial(leases.ended, lost, why), "the end of a lease cannot be noted")
            log.warning("host %s is lost: %s", host, why)
    over = [host for host in (*gone, *ended) if host in listed]
    tried(lambda: provider.release(over), "hosts cannot be released")
    return TakenOver(adopted, gone, ended)


def first_hosts(terms: ProviderOffer, before: TakenOver, copies: int = 0) -> Mapping[str, HostType]:
    """What is leased at the start, by name: in place of what is gone, and at least as much as must be there.

    copies: of state, which are to be in other zones.
    """
    known = {kind.name: kind for kind in terms.types}
    wanted = [known.get(lease.type.name, terms.types[0]) for lease in before.gone.values()]
    wanted = wanted[: max(0, terms.max_hosts - len(before.adopted))]
    missing = max(1, terms.min_hosts) - len(before.adopted) - len(wanted)
    zones = [lease.zone for lease in before.adopted.values()] + [kind.zone for kind in wanted]
    kinds = [*wanted, *by_zones(terms.types, missing, copies=copies, there=zones)]
    return {f"h{number}": kind for number, kind in enumerate(kinds, start=before.next_number)}
