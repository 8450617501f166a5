"""`Local`, the cloud that is this machine: the default, and what tests use. Its hosts are `hosts.py`'s."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from elastream.clouds.local.cluster import HEAP_SHARE, MOST_HOSTS, LocalCluster, executor_memory
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.local.network import Link
from elastream.clouds.provider import Cloud, ExistingSession
from elastream.core.alarm import Alarms
from elastream.core.hosts import Billing, HostType
from elastream.errors import CloudError, ElastreamError
from elastream.units import duration

SMALL = HostType("small", cores=0.5, slots=1, memory=1000.0, price=1.0, billing=Billing(30.0), start=8.0, stop=3.0)

HOST_TYPES: Mapping[str, HostType] = MappingProxyType({SMALL.name: SMALL})
"""Host types known by name. `small`: one task at a time, half a core, 1,000 MB (of which the executor's heap takes 700),
price 1 for each 30 s, so that a demonstration of minutes sees leases end; ready about 8 s after it was requested."""

LEAST_HEAP = 450
"""Mebibytes below which Spark refuses to start an executor (1.5 times the 300 MiB that it reserves)."""
MOST_REGIONS = 16
"""More would be more network devices than a machine should have for the sake of a test."""


@dataclass(frozen=True, slots=True)
class Local(Cloud):
    """Hosts that are processes on this machine: `Local(host_type="small", max_hosts=6)`.

    host_type: a name in `HOST_TYPES`, or a `HostType` (its `slots` are tasks at once, its `cores` a CPU quota, its `memory`
    is divided between the executor's heap and everything else). host_types: more than one; the first is that of the first
    hosts, and they may be in several regions. min_hosts, max_hosts: how many may be leased at a time. cores_each: a CPU
    quota instead of the types'. network: a link for each host (needs root; hosts then see only each other, the master and
    the driver). latency: one way, between regions: `{"edge": {"cloud": "40ms"}}` holds in both directions (needs root).
    driver_region: the region of driver and master, by default that of the first host type.

    Raises CloudError for an unknown type, for numbers of hosts that make no sense, for a host too small for an executor and
    for a latency to or from a region without host types.
    """

    host_type: HostType | str | None = None
    max_hosts: int = 6
    min_hosts: int = 1
    cores_each: float | None = None
    network: Link | None = None
    host_types: Sequence[HostType | str] = ()
    latency: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)
    driver_region: str | None = None

    def __post_init__(self) -> None:
        if self.host_type is not None and self.host_types:
            raise CloudError("host_type and host_types exclude each other: give one type, or all of them")
        for named in self._named:
            if isinstance(named, str) and named not in HOST_TYPES:
                raise CloudError(f"no host type is called {named!r} here; known: {', '.join(HOST_TYPES)}")
        if self.min_hosts < 1:
            raise CloudError(f"min_hosts is {self.min_hosts}: a dataflow needs at least one host")
        if self.max_hosts < self.min_hosts:
            raise CloudError(f"max_hosts is {self.max_hosts}, fewer than min_hosts, which is {self.min_hosts}")
        if self.max_hosts > MOST_HOSTS:
            raise CloudError(f"max_hosts is {self.max_hosts}: one machine has addresses for {MOST_HOSTS}")
        for type in self.types:
            if executor_memory(type) < LEAST_HEAP:
                least = LEAST_HEAP * 2**20 / HEAP_SHARE / 1e6
                raise CloudError(f"host type {type.name!r} has {type.memory:g} MB: an executor needs {least:.0f} MB")
        if len({type.name for type in self.types}) < len(self.types):
            raise CloudError(f"two host types have one name: {', '.join(type.name for type in self.types)}")
        if len(self.regions) > MOST_REGIONS:
            raise CloudError(f"{len(self.regions)} regions: one machine can keep {MOST_REGIONS} apart")
        for source, target, _ in self._latencies():
            for region in (source, target):
                if region not in self.regions:
                    known = ", ".join(self.regions)
                    raise CloudError(f"latency: no host type is in the region {region!r}; regions: {known}")
            if source == target:
                raise CloudError(f"latency: {source!r} cannot be away from itself")

    @property
    def _named(self) -> Sequence[HostType | str]:
        return self.host_types or (SMALL.name if self.host_type is None else self.host_type,)

    @property
    def types(self) -> tuple[HostType, ...]:
        """The host types that are leased, with `cores_each` in them; the first is that of the first hosts."""
        named = (HOST_TYPES[each] if isinstance(each, str) else each for each in self._named)
        return tuple(each if self.cores_each is None else replace(each, cores=self.cores_each) for each in named)

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions that hosts may be in, beginning with the driver's."""
        found = [type.region for type in self.types]
        return tuple(dict.fromkeys([self.driver_region or found[0], *found]))

    @property
    def delays(self) -> Mapping[tuple[str, str], float]:
        """Seconds one way by (from, to), in both directions; raises CloudError where a latency is no duration."""
        found = {}
        for source, target, seconds in self._latencies():
            found[source, target] = found[target, source] = seconds
        return found

    def open(
        self,
        folder: Path,
        *,
        ports: range | None = None,
        session: ExistingSession | None = None,
        alarms: Alarms | None = None,
    ) -> LocalHosts:
        """Start the cluster, its files in `folder`; a master of its own, or none where hosts join that of `session`.

        alarms: not needed, as it has no thread of its own. Raises CloudError where hosts cannot join `session`: another
        kind of master, hosts with a network of their own, hosts too small for its executors. Raises EnvironmentProblem for
        what `LocalCluster.start` raises it for.
        """
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
