"""Where hosts come from: the seam between a run and whoever leases it machines."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from elastream.model.cloud import HostType

if TYPE_CHECKING:
    from elastream.clouds.local.cluster import LocalCluster

__all__ = ["Cloud", "HostProvider", "HostStatus", "Landlord", "Provider"]


class Provider(Protocol):
    """Where hosts come from; `elastream.clouds.local.local.LocalCluster` is one."""

    def room(self, waiting: Mapping[str, HostType], starting: int) -> Collection[str]:
        """Which of the hosts that wait - these, and no others - may be asked for now, while `starting` hosts come up."""
        ...

    def lease(self, host: str, type: HostType) -> None:
        """Ask for a host; returns at once."""
        ...

    def address(self, host: str) -> str:
        """Address that its executors register with."""
        ...

    def alive(self, host: str) -> bool:
        """Whether it is there."""
        ...

    def confine(self, host: str, cores: float | None) -> None:
        """Let its CPU quota be `cores`, or lift it."""
        ...

    def terminate(self, host: str) -> None:
        """End it and all that runs on it."""
        ...

    def cpu_seconds(self, host: str) -> float | None:
        """CPU seconds it has used, None where that is not known."""
        ...

    def memory(self, host: str) -> float | None:
        """Megabytes it uses, None where that is not known."""
        ...


class Landlord(Protocol):
    """Who owns the hosts where the provider does not: a pool that several applications share."""

    def wanted_back(self) -> Collection[str]:
        """Hosts that are to be given back, whatever the policy makes of it."""
        ...

    def keep(self, host: str) -> None:
        """A host that is wanted back will not be given: nothing else could do its work."""
        ...

    def critical(self, now: bool) -> None:
        """Whether the application misses its service level."""
        ...

    def cost(self) -> float:
        """Money that the application owes so far."""
        ...


class Cloud(Protocol):
    """Where hosts come from, as users write it: `elastream.Local` or `elastream.Pool`."""

    @property
    def types(self) -> tuple[HostType, ...]:
        """What can be leased."""
        ...

    def cluster(self, folder: Path, ports: range | None) -> "LocalCluster":
        """The cluster behind it, not started yet; its files go into `folder`."""
        ...


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A leased host as its provider sees it. cpu: utilisation, 0 to 1, NaN where unknown. replicas: that it holds (A_n)."""

    name: str
    type: str
    up: bool
    cpu: float = math.nan
    replicas: int = 0


class HostProvider(Protocol):
    """Leases hosts of one region. Actions are idempotent by name; one that raises ElastreamError is tried again."""

    def hosts(self) -> Sequence[HostStatus]:
        """All hosts that are leased."""
        ...

    def lease(self, host: str, kind: HostType) -> None:
        """Lease a host under the name `host`, unless that is leased already."""
        ...

    def release(self, host: str) -> None:
        """Release `host`, if it is leased."""
        ...
