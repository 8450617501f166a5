"""First hosts of a run. If it is resumed, living hosts of the earlier driver are adopted and lost ones replaced."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from elastream.clouds.provider import Phase, Provider, ProviderOffer
from elastream.core.hosts import HostState, HostType, Lease, by_zones
from elastream.errors import ElastreamError, EnvironmentProblem, in_one_line
from elastream.recording.lease_log import LeaseLog
from elastream.recording.lines import JournalProblem

log = logging.getLogger(__name__)

T = TypeVar("T")

START_RETRY_S = 15.0
RETRY_PAUSE_S = 0.5


def retry(do: Callable[[], T], what: str, *, seconds: float = START_RETRY_S, pause: float = RETRY_PAUSE_S) -> T:
    """Return `do()`; retry failures for `seconds`, then raise EnvironmentProblem that begins with `what`.

    An ElastreamError is the provider's answer and raised at once, except for a journal that cannot be written.
    """
    began, warned = time.monotonic(), False
    while True:
        try:
            return do()
        except Exception as error:
            if isinstance(error, ElastreamError) and not isinstance(error, JournalProblem):
                raise
            message = f"{what}: {in_one_line(error)}"
            if time.monotonic() - began >= seconds:
                raise EnvironmentProblem(message) from error
            log.log(logging.DEBUG if warned else logging.WARNING, "%s", message, exc_info=warned)
            warned = True
        time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A resumed run: it continues at second `at`; its earlier driver was last alive at second `last_seen`."""

    at: float
    last_seen: float


@dataclass(frozen=True, slots=True)
class EarlierLeases:
    """Leases of an earlier driver, by what became of their hosts."""

    adopted: Mapping[str, Lease] = field(default_factory=dict)
    gone: Mapping[str, Lease] = field(default_factory=dict)
    ended: Mapping[str, Lease] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """Return a number above those of all earlier hosts named `h` and a number."""
        names = (*self.adopted, *self.gone, *self.ended)
        return 1 + max((int(name[1:]) for name in names if name[:1] == "h" and name[1:].isdecimal()), default=0)


@dataclass(frozen=True, slots=True)
class FirstHosts:
    before: EarlierLeases
    first: Mapping[str, HostType]
    since: float


def lease_first_hosts(
    leases: LeaseLog, provider: Provider, resumed: Resumed | None, now: float, replicas: int = 0, least: int = 1
) -> FirstHosts:
    """Adopt an earlier driver's hosts if the run is resumed, then request the first hosts, at least `least`."""
    before = EarlierLeases() if resumed is None else take_over(leases, provider, resumed.last_seen)
    terms = replace(provider.terms, min_hosts=max(least, provider.terms.min_hosts))
    first = first_hosts(terms, before, replicas)
    for host, kind in first.items():
        retry(partial(leases.requested, host, kind, now), "the first hosts cannot be leased")
    retry(lambda: provider.lease(first), "the first hosts cannot be leased")
    return FirstHosts(before, first, now)


def take_over(leases: LeaseLog, provider: Provider, last_seen: float) -> EarlierLeases:
    """Sort the logged leases by what `provider` lists; leases of lost hosts end at `last_seen`."""
    listed = retry(provider.hosts, "hosts cannot be listed")
    adopted, gone, ended = {}, {}, {}
    for host, lease in leases.earlier.items():
        status = listed.get(host)
        if not lease.active:
            ended[host] = lease
        elif status is not None and status.phase in (Phase.REQUESTED, Phase.STARTING, Phase.UP):
            adopted[host] = lease
        else:
            why = f"gone when it was to be taken over; last seen at {last_seen:.0f} s"
            gone[host] = lease = replace(lease.to(HostState.LOST, max(lease.since, last_seen)), note=why)
            retry(partial(leases.ended, lease, why), "the end of a lease cannot be noted")
            log.warning("host %s is lost: %s", host, why)
    over = [host for host in (*gone, *ended) if host in listed]
    retry(lambda: provider.release(over), "hosts cannot be released")
    return EarlierLeases(adopted, gone, ended)


def first_hosts(terms: ProviderOffer, before: EarlierLeases, standby_replicas: int = 0) -> Mapping[str, HostType]:
    """Return the hosts to lease at the start, by name: replacements of lost ones, and the minimum."""
    types = {kind.name: kind for kind in terms.types}
    kinds = [types.get(lease.type.name, terms.types[0]) for lease in before.gone.values()]
    kinds = kinds[: max(0, terms.max_hosts - len(before.adopted))]
    missing = max(1, terms.min_hosts) - len(before.adopted) - len(kinds)
    zones = [lease.zone for lease in before.adopted.values()] + [kind.zone for kind in kinds]
    kinds = [*kinds, *by_zones(terms.types, missing, copies=standby_replicas, there=zones)]
    return {f"h{number}": kind for number, kind in enumerate(kinds, start=before.next_number)}
