"""Constants of the ring of reducers, each with its unit and source: the thesis where it prints one, else an assumption."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from elastream.errors import InputError
from elastream.simulator.settings import HostFailure


class Protection(StrEnum):
    """How state and tuples survive the loss of a host."""

    PEERS = "peers"
    """The thesis's: neighbours on the ring hold the state at the last checkpoint, and the tuples since."""
    UPSTREAM = "upstream"
    """Storm with upstream backup: tuples are kept by their sender until acknowledged; state is local, and lost."""
    EXTERNAL = "external"
    """Storm with Cassandra: the same, and each tuple reads and writes its state in a store outside."""


@dataclass(frozen=True, slots=True)
class LinkFailure:
    """Fail-stop of the link from `source` to `target` at `time`, for good. source: a host, or `"mapper 0"`.

    Section 6.2 treats it as a failure of the host that it isolates: `target` for a mapper, `source` for a watched
    neighbour.
    """

    time: float
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ZoneFailure:
    """Loss of all hosts of fault zone `zone` at `time`, without warning."""

    time: float
    zone: str


RingFault: TypeAlias = HostFailure | LinkFailure | ZoneFailure
"""What can fail in a run."""


@dataclass(frozen=True)
class ReducerSettings:
    """Constants of a simulated ring of reducers; costs of operators are those of their alternates.

    replicas: secondaries of each key (the thesis's r). partitions: key groups; partition i lies at i / partitions. faults:
    injected failures. Raises InputError for meaningless values.
    """

    replicas: int = 1
    partitions: int = 256
    """Assumed: with 12 hosts 21 each, so that one is a twentieth of a host's load."""
    mappers: int = 4
    """p. 145: "each map/reduce node holds at most 4 corresponding instances"; one node of mappers."""
    monitor: float = 1.0
    """Seconds. Assumed: from one measurement of queues and CPU to the next."""
    step: float = 0.1
    """Seconds. Longest piece of time in which rates and shares of cores are taken as constant; events cut it shorter."""
    checkpoint: float = 2.0
    """Seconds from one checkpoint to the next, p. 150: 7 % of the state at 2 s, "smaller intervals are preferred"."""
    together: bool = False
    """Whether all hosts make their checkpoints at the same moments, by clocks that NTP keeps (p. 146), or each counts
    from a moment of its own. The thesis says neither."""
    bound: float = 0.015
    """L_n, seconds, p. 146: "a conservative estimate of 15 ms"; tuples below T_s - 2 L_n are evicted."""
    latency: tuple[float, float] = (0.0003, 0.001)
    """Seconds one way, least and most: each pair of hosts has one in between. p. 146: "around 1 ms" at most."""
    skew: float = 5e-6
    """Seconds, most that a mapper's clock is off. p. 146: "few usec"."""
    reduce: float = 260e-6
    """Core-seconds a tuple, of a keyed operator that declares no cost. Fig. 6.11(b): 18 reducers, a thread each, process
    about 60,000 messages/s, so that one takes 300 usec in all; the rest of it is `receive`, `keep` and checkpoints."""
    receive: float = 20e-6
    """Core-seconds a tuple, at each of the r + 1 hosts that the mapper's multicast reaches. Assumed: see the experiment."""
    keep: float = 4e-6
    """Core-seconds a tuple that a secondary holds: inserting it by timestamp, and evicting it. Assumed."""
    serialise: float = 20e-9
    """Core-seconds a byte of a checkpoint or transfer, at the sender. Assumed: 50 MB/s a core."""
    merge: float = 10e-9
    """Core-seconds a byte, into the master state, at the sender and at each receiver. Assumed: 100 MB/s a core."""
    replay: float = 1.0
    """Work of replaying a tuple from the backup over that of processing a new one. Assumed."""
    tuple_bytes: float = 100.0
    """Bytes of a tuple that a secondary holds. Assumed: a word, a count, a timestamp, and a header."""
    bandwidth: float = 125e6
    """Bytes/s of a host's link where its type declares none. p. 145: "gigabit Ethernet"."""
    protection: Protection = Protection.PEERS
    acknowledge: float = 20e-6
    """Core-seconds a tuple under upstream backup: Storm's acknowledgement, a message as `receive`."""
    access: float = 0.0014
    """Seconds of a read and a write of the external store, during which a reducer's thread waits. Assumed: each a round
    trip of 0.5 ms in the data centre, and 0.2 ms at the store."""
    store: float = 30_000.0
    """Reads and writes/s that the external store answers at most. Assumed: three nodes, 10,000/s each, on four cores
    (Rabl et al. 2012 measure 20,000 to 25,000/s for Cassandra on eight)."""
    threads: int = 4
    """Reducers of a host, p. 145: "at most 4"; as many tuples at most wait for the external store."""
    reassign: float = 30.0
    """Seconds after which upstream backup replays and work of a lost host is given to another: Storm's
    `topology.message.timeout.secs` and `nimbus.task.timeout.secs`."""
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
