"""Hosts of this machine of which one meets, in the middle of a run, what hosts elsewhere meet anyway: a plug is pulled, a
neighbour takes cores. So a run shows what is noticed of it, and what is done.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from elastream import Local


@dataclass(frozen=True)
class Disturbed(Local):
    """Hosts of this machine that are known when they are opened, so that `Once` reaches them."""

    hosts: list = field(default_factory=list)

    def open(self, folder, **given):
        """Remember the hosts that are opened."""
        self.hosts.append(opened := Local.open(self, folder, **given))
        return opened


@dataclass
class Once:
    """Calls `what(cluster, lease)` for one running host, once, `at` seconds after the first observation. An observer.

    which: chooses the host of an observation, by default the first that runs. host, since: what it was, and when.
    """

    cloud: Disturbed
    at: float
    what: Callable
    which: Callable = lambda observation: observation.usable[0]
    first: float | None = None
    host: str = ""
    since: float = float("inf")

    def started(self, header):
        """Nothing yet."""

    def observed(self, observation):
        """Do it when it is time."""
        self.first = observation.time if self.first is None else self.first
        if not self.host and self.cloud.hosts and observation.time >= self.first + self.at and observation.usable:
            self.host, self.since = self.which(observation), observation.time
            self.what(self.cloud.hosts[-1].cluster, observation.leases[self.host])

    def decided(self, decision):
        """Its affair."""

    def ended(self, ending):
        """It is over."""


def half_of_its_cores(cluster, lease):
    """A neighbour takes them."""
    cluster.confine(lease.host, lease.type.cores / 2)


def its_plug(cluster, lease):
    """Somebody pulls it: SIGKILL to every process of the host."""
    cluster.kill(lease.host)
