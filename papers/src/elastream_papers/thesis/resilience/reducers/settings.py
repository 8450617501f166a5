"""Constants of the ring of reducers, with unit and source (the thesis, else assumed)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from elastream.errors import InputError
from elastream.simulator.settings import HostFailure


class Protection(StrEnum):
    """Ways in which state and tuples survive the loss of a host."""

    PEERS = "peers"  # the thesis's: neighbours have the last checkpoint and the tuples since
    UPSTREAM = "upstream"  # Storm with upstream backup: senders store tuples until acknowledged; state is lost
    EXTERNAL = "external"  # Storm with Cassandra: as upstream, with state in an external store


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """Permanent failure of the link from `source` (a host, or `"mapper 0"`) to `target` at `time`.

    Section 6.2: it fails the isolated host, `target` for a mapper, `source` for a watched neighbour.
    """

    time: float
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ZoneFailure:
    """Loss of all hosts of fault zone `zone` at `time`, without warning."""

    time: float
    zone: str


RingFault: TypeAlias = HostFailure | LinkFailure | ZoneFailure  # possible faults of a run


@dataclass(frozen=True)
class ReducerSettings:
    """Constants of a simulated ring.

    replicas: secondaries of each key (r). partitions: key groups; partition i lies at i / partitions. Raises InputError
    for invalid values.
    """

    replicas: int = 1
    partitions: int = 256  # assumed: 21 each with 12 hosts, so one is a twentieth of a host's load
    mappers: int = 4  # p. 145: "each map/reduce node holds at most 4 corresponding instances"; one node of mappers
    monitor: float = 1.0  # seconds between measurements of queues and CPU; assumed
    step: float = 0.1  # seconds, longest step of constant rates; events cut it shorter
    # seconds between checkpoints, p. 150: 7 % of the state at 2 s, "smaller intervals are preferred"
    checkpoint: float = 2.0
    # hosts checkpoint simultaneously by NTP clocks (p. 146), or each at its own phase; the thesis is silent
    together: bool = False
    bound: float = 0.015  # L_n, seconds, p. 146: "a conservative estimate of 15 ms"; tuples below T_s - 2 L_n are evicted
    # Seconds one way, least and most, drawn by pair of hosts. p. 146: "around 1 ms" at most
    latency: tuple[float, float] = (0.0003, 0.001)
    skew: float = 5e-6  # Seconds, most error of a mapper's clock. p. 146: "few usec"
    # Core-seconds per tuple without a declared cost. Fig. 6.11(b): 18 reducers process about 60,000 messages/s, 300 usec
    # each in all, less `receive`, `keep` and checkpoints.
    reduce: float = 260e-6
    receive: float = 20e-6  # core-seconds per tuple at each of the r + 1 receivers; assumed, see the experiment
    keep: float = 4e-6  # core-seconds per tuple at a secondary: insert and evict; assumed
    serialise: float = 20e-9  # core-seconds per byte at the sender; assumed: 50 MB/s per core
    merge: float = 10e-9  # core-seconds per byte, sender and receivers; assumed: 100 MB/s per core
    replay: float = 1.0  # work of a replayed tuple over a new one's; assumed
    tuple_bytes: float = 100.0  # bytes of a tuple at a secondary; assumed: word, count, timestamp, header
    bandwidth: float = 125e6  # Bytes/s of a host's link by default. p. 145: "gigabit Ethernet"
    protection: Protection = Protection.PEERS
    acknowledge: float = 20e-6  # core-seconds per tuple of Storm's acknowledgement, a message as `receive`
    # Seconds a thread waits for a read and a write of the external store. Assumed: round trips of 0.5 ms, and 0.2 ms at the
    # store.
    access: float = 0.0014
    # Reads and writes/s of the external store. Assumed: three nodes of four cores, 10,000/s each (Rabl et al. 2012 measure
    # 20,000 to 25,000/s for Cassandra on eight).
    store: float = 30_000.0
    threads: int = 4  # reducers of a host, p. 145: "at most 4"; limits concurrent store accesses
    # seconds until upstream backup replays and work is reassigned: Storm's `topology.message.timeout.secs` and
    # `nimbus.task.timeout.secs`
    reassign: float = 30.0
    faults: tuple[RingFault, ...] = ()

    def __post_init__(self) -> None:
        if self.replicas < 0:
            raise InputError(f"replicas: {self.replicas}; copies of state are 0 or more")
        if not self.bound > 0:
            raise InputError(
                f"the bound on network latency (L_n) is {self.bound:g} s; it must be above 0, or secondaries evict tuples "
                "that the primary has not processed"
            )
        for name in ("partitions", "mappers", "threads"):
            if getattr(self, name) < 1:
                raise InputError(f"the ring of reducers has {getattr(self, name)} {name}; it needs at least one")
        for name in ("monitor", "step", "checkpoint", "bandwidth", "replay", "store", "reassign"):
            if not getattr(self, name) > 0:
                raise InputError(f"the ring's {name} is {getattr(self, name):g}; it must be above 0")
        for name in ("skew", "receive", "keep", "serialise", "merge", "tuple_bytes", "acknowledge", "access",
            "reduce",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise InputError(f"the ring's {name.replace('_', ' ')} is negative ({getattr(self, name):g})")
        least, most = self.latency
        if not 0 <= least <= most:
            raise InputError(f"the latency of links goes from {least:g} s to {most:g} s; least comes first, from 0 on")
