"""`Local`: hosts are processes on this machine."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from elastream.clouds.local.cluster import MAX_HOSTS, LocalCluster
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.network import Link
from elastream.clouds.notices import check_notices
from elastream.clouds.provider import HEAP_SHARE, HOST_TYPES, MIN_HEAP_MIB, SMALL, Cloud, ExistingSession, executor_memory
from elastream.core.alarm import Alarms
from elastream.core.hosts import HostType
from elastream.errors import CloudError, ElastreamError
from elastream.systems import check_system
from elastream.units import duration

MAX_REGIONS = 16  # each region needs a network device


@dataclass(frozen=True, slots=True)
class Local(Cloud):
    """Hosts as processes on this machine: `Local(host_type="small", max_hosts=6)`.

    Args:
        host_type: Name in `HOST_TYPES`, or a `HostType`: `slots` are concurrent tasks, `cores` a CPU quota.
        max_hosts: Highest number of leased hosts.
        min_hosts: Lowest number of leased hosts.
        cores_each: CPU quota in place of the types' cores.
        network: Link of each host. Needs root; hosts then reach only each other, master and driver.
        host_types: Several types, possibly in several regions, that of the first hosts first.
        latency: One-way latency between regions, both directions: `{"edge": {"cloud": "40ms"}}`. Needs root.
        driver_region: Region of driver and master; default: that of the first host type.
        notices: Path or URL that says when a host is taken away, with `{host}`: `"/run/notices/{host}"`.

    Raises:
        CloudError: An unknown or too small type, impossible numbers of hosts, or a latency of an unknown region.
    """

    host_type: HostType | str | None = None
    max_hosts: int = 6
    min_hosts: int = 1
    cores_each: float | None = None
    network: Link | None = None
    host_types: Sequence[HostType | str] = ()
    latency: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)
    driver_region: str | None = None
    notices: str = ""

    def __post_init__(self) -> None:
        check_notices(self.notices)
        if self.host_type is not None and self.host_types:
            raise CloudError("host_type and host_types exclude each other: give one type, or all of them")
        for named in self._named:
            if not isinstance(named, HostType | str):
                raise CloudError(f"{reprlib.repr(named)} is not a host type; several go to host_types")
            if isinstance(named, str) and named not in HOST_TYPES:
                raise CloudError(f"no host type is called {named!r} here; known: {', '.join(HOST_TYPES)}")
        if self.min_hosts < 1:
            raise CloudError(f"min_hosts is {self.min_hosts}: a dataflow needs at least one host")
        if self.max_hosts < self.min_hosts:
            raise CloudError(f"max_hosts is {self.max_hosts}, fewer than min_hosts, which is {self.min_hosts}")
        if self.max_hosts > MAX_HOSTS:
            raise CloudError(f"max_hosts is {self.max_hosts}: one machine has addresses for {MAX_HOSTS}")
        self._check_types()
        self._check_regions()

    def _check_types(self) -> None:
        for type in self.types:
            if executor_memory(type) < MIN_HEAP_MIB:
                least = MIN_HEAP_MIB * 2**20 / HEAP_SHARE / 1e6
                raise CloudError(f"host type {type.name!r} has {type.memory:g} MB: an executor needs {least:.0f} MB")
        if len({type.name for type in self.types}) < len(self.types):
            raise CloudError(f"two host types have one name: {', '.join(type.name for type in self.types)}")

    def _check_regions(self) -> None:
        if len(self.regions) > MAX_REGIONS:
            raise CloudError(f"{len(self.regions)} regions: one machine can keep {MAX_REGIONS} apart")
        for source, target, _ in self._latencies():
            for region in (source, target):
                if region not in self.regions:
                    regions = ", ".join(self.regions)
                    raise CloudError(f"latency: no host type is in the region {region!r}; regions: {regions}")
            if source == target:
                raise CloudError(f"latency: {source!r} cannot be away from itself")

    @property
    def _named(self) -> Sequence[HostType | str]:
        return self.host_types or (SMALL.name if self.host_type is None else self.host_type,)

    @property
    def types(self) -> tuple[HostType, ...]:
        named = (HOST_TYPES[each] if isinstance(each, str) else each for each in self._named)
        return tuple(each if self.cores_each is None else replace(each, cores=self.cores_each) for each in named)

    @property
    def regions(self) -> tuple[str, ...]:
        regions = [type.region for type in self.types]
        return tuple(dict.fromkeys([self.driver_region or regions[0], *regions]))

    @property
    def delays(self) -> Mapping[tuple[str, str], float]:
        """One-way delay by (from, to), in both directions (seconds). Raises CloudError if a latency is no duration."""
        delays = {}
        for source, target, seconds in self._latencies():
            delays[source, target] = delays[target, source] = seconds
        return delays

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> LocalHosts:
        """Start the cluster in `folder`; hosts join its own master or that of `session`.

        Raises:
            CloudError: Hosts cannot join `session`: another kind of master, own networks, or too small.
        """
        check_system("Local()")
        for kind in self.types if session else ():
            memory = executor_memory(kind)
            if session and (session.executor_memory > memory or session.executor_slots > kind.slots):
                raise CloudError(
                    f"an executor of this session takes {session.executor_memory} MiB and {session.executor_slots} slots,"
                    f" and a host of type {kind.name!r} has {memory} MiB and {kind.slots}: spark.executor.memory and"
                    " spark.executor.cores must fit"
                )
        cluster = LocalCluster(self, folder, ports)
        if session:
            cluster.start(session.master, session.secret)
        else:
            cluster.start()
        return LocalHosts(cluster, self.min_hosts, self.max_hosts)

    def _latencies(self) -> Iterator[tuple[str, str, float]]:
        for source, targets in self.latency.items():
            for target, written in targets.items():
                try:
                    yield source, target, duration(written)
                except ElastreamError as error:
                    raise CloudError(f"latency from {source!r} to {target!r}: {error}") from None
