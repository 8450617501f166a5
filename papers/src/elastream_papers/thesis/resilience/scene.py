"""Chapter 6's simulated runs: word frequencies on virtual machines of four cores (6.7, p. 145)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastream.core.hosts import HostType
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import Layout, lay_out
from elastream.policies.ring.policy import RingBalance
from elastream_papers.harness.assumptions import assumed
from elastream_papers.thesis.resilience.reducers import (
    KeySpace,
    Protection,
    ReducerSettings,
    ReducersPlant,
    hashed,
    make_reducers,
    two_regimes,
)
from elastream_papers.thesis.resilience.reducers.settings import RingFault

# sources: words of texts, and those that "repeatedly emit a small subset of words" (p. 146)
TEXT, REPEATED = "text", "repeated"
TARGET_LATENCY = 0.5  # seconds, p. 127: "average response times ranging from 10-500 ms"
CORES, MEMORY = 4.0, 4000.0  # p. 145: virtual machines of 4 cores and 4 GB
PARTITIONS = 512  # with 20 hosts one is a twenty-fifth of a host's interval
SUBSET = 40  # words of the small subset


@dataclass(frozen=True)
class ResilienceAssumptions:
    """Values missing in the thesis."""

    process: float = assumed(
        260e-6, "core-s", "a tuple; Fig. 6.11(b): 18 reducers, a thread each, for 60,000 messages/s: 300 usec in all"
    )
    receive: float = assumed(
        20e-6, "core-s", "a tuple at each of the r + 1 hosts of the multicast: a small message in a JVM"
    )
    keep: float = assumed(4e-6, "core-s", "a tuple at a secondary: inserted by timestamp, evicted; no decoding, no update")
    serialise: float = assumed(20e-9, "core-s", "a byte of a checkpoint: 50 MB/s a core")
    merge: float = assumed(10e-9, "core-s", "a byte of a checkpoint at each end: 100 MB/s a core")
    replay: float = assumed(1.0, "", "work of a replayed tuple over that of a new one: the same update")
    state: float = assumed(
        64.0, "bytes", "a word's: itself, its total, counts of three windows (8 each), an entry of a hash table (24)"
    )
    changed: float = assumed(
        0.625, "of a word's state", "sent by a checkpoint: its key-value pairs (Fig. 6.5), without the entry of the hash "
        "table: 40 of 64 bytes", most=1.0
    )  # fmt: skip
    tuple_size: float = assumed(100.0, "bytes", "a word, a count, a timestamp and a header")
    vocabulary: float = assumed(
        1e6, "words", "a large collection of text; frequencies as in Ferrer i Cancho and Sole (2001), two regimes"
    )
    monitor: float = assumed(1.0, "s", 'from one measurement to the next ("a function of monitoring interval", p. 149)')
    busy: float = assumed(0.9, "of the cores", "tau_c high", most=1.0)
    light: float = assumed(0.7, "of the cores", "tau_c low", most=0.89)
    acknowledge: float = assumed(20e-6, "core-s", "a tuple under Storm: one more message")
    access: float = assumed(
        1.4e-3, "s", "a read and a write of Cassandra: a round trip of 0.5 ms each in the data centre, and 0.2 ms there"
    )
    store: float = assumed(
        30e3, "reads and writes/s", "three nodes of four cores; Rabl et al. (2012) measure 20,000 to 25,000/s on eight"
    )


def settings_of(assumptions: ResilienceAssumptions, **more: object) -> ReducerSettings:
    """Return settings of a ring; printed values are defaults."""
    return ReducerSettings(
        partitions=PARTITIONS,
        monitor=assumptions.monitor,
        reduce=assumptions.process,
        receive=assumptions.receive,
        keep=assumptions.keep,
        serialise=assumptions.serialise,
        merge=assumptions.merge,
        replay=assumptions.replay,
        tuple_bytes=assumptions.tuple_size,
        acknowledge=assumptions.acknowledge,
        access=assumptions.access,
        store=assumptions.store,
        **more,  # type: ignore[arg-type]
    )


def policy(assumptions: ResilienceAssumptions) -> RingBalance:
    """Return the thesis's policy: half of the interval at once, then one measurement of rest."""
    return RingBalance(
        cpu_high=max(assumptions.busy, assumptions.light + 0.01),
        cpu_low=assumptions.light,
        patience=0.0,
        cool_down=2 * assumptions.monitor,
        cut="half",
    )


@lru_cache(maxsize=8)
def _words(vocabulary: int, state: float, sent: float, seed: int, skewed: tuple[float, float]) -> KeySpace:
    """Return words by frequency, spread by a hash.

    skewed: part of the ring with the small subset, at random.
    """
    at = hashed(vocabulary, seed)
    frequent = two_regimes(vocabulary)
    begin, end = skewed
    within = np.flatnonzero((at >= begin) & (at < end))
    chosen = np.zeros(vocabulary)
    chosen[np.random.default_rng(seed + 1).choice(within, min(SUBSET, within.size), replace=False)] = 1.0
    return KeySpace.of(at, {TEXT: frequent, REPEATED: chosen}, PARTITIONS, sizes=state, written=sent)


def _layout(sources: tuple[str, ...]) -> Layout:
    """Return word count (Fig. 6.1); its mappers' splitting is not measured here."""
    flow = Dataflow("word frequencies")
    streams = [flow.source(None, name=name) for name in sources]
    lines = streams[0] if len(streams) == 1 else streams[0].merge(*streams[1:])
    words = lines.map([Alternate("words", str.lower, cost=0.0)], returns="word string", name="words")
    words.key_by("word").count(name="count").sink(None, name="frequencies")
    return lay_out(flow.graph)


def ring_of(  # noqa: PLR0913
    assumptions: ResilienceAssumptions,
    hosts: int,
    loads: Mapping[str, ArrivalPattern],
    seconds: float,
    seed: int,
    *,
    replicas: int = 1,
    checkpoint: float = 2.0,
    together: bool = False,
    protection: Protection = Protection.PEERS,
    zones: int = 1,
    idle_start: float = 0.0,
    max_hosts: int = 1_000_000,
    skewed: tuple[float, float] = (0.0, 1.0),
    faults: tuple[RingFault, ...] = (),
) -> ReducersPlant:
    """Return a ring of `hosts` under `loads`.

    idle_start: seconds until a leased host runs; an idle one is ready.
    """
    types = [
        HostType(f"vm{zone + 1}", CORES, MEMORY, start=idle_start, stop=1.0, zone=f"zone {zone + 1}")
        for zone in range(zones)
    ]
    keys = _words(round(assumptions.vocabulary), assumptions.state, assumptions.changed * assumptions.state, seed, skewed)
    return make_reducers(
        _layout(tuple(loads)),
        keys,
        host_types=types,
        hosts=[types[number % zones].name for number in range(hosts)],
        loads=loads,
        seconds=seconds,
        seed=seed,
        max_hosts=max_hosts,
        target_latency=TARGET_LATENCY,
        settings=settings_of(
            assumptions, replicas=replicas, checkpoint=checkpoint, together=together, protection=protection, faults=faults
        ),
    )
