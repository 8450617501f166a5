"""A dataflow and rings of reducers that tests of them share."""

from functools import cache

import numpy as np

from elastream.core.hosts import HostType
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import Layout, lay_out
from elastream.loads import constant
from elastream_papers.thesis.resilience.reducers import (
    KeySpace,
    ReducerSettings,
    ReducersPlant,
    hashed,
    make_reducers,
    two_regimes,
)

VM = HostType("vm", cores=4.0, memory=4000.0, start=3.0, stop=1.0)
PARTITIONS = 64


def words(rate: str = "2000/s") -> Layout:
    """Text > words > count > sink."""
    flow = Dataflow("words")
    text = flow.source(None, load=constant(rate), name="text")
    split = text.map([Alternate("words", str.lower, cost=0.0)], returns="word string", name="words")
    split.key_by("word").count().sink(None, name="table")
    return lay_out(flow.graph)


@cache
def keys(count: int = 20_000, partitions: int = PARTITIONS) -> KeySpace:
    """Words of a text."""
    return KeySpace.of(hashed(count, 7), {"text": two_regimes(count)}, partitions)


def even_keys(partitions: int = PARTITIONS, each: int = 50) -> KeySpace:
    """As many keys in every partition, all as frequent."""
    at = (np.arange(partitions * each) + 0.5) / (partitions * each)
    return KeySpace.of(at, {"text": 1.0}, partitions)


def ring(hosts=4, rate="2000/s", seconds=60.0, seed=1, *, of=None, types=(VM,), **settings) -> ReducersPlant:
    """A ring of hosts under a constant rate for `seconds`."""
    of = keys() if of is None else of
    return make_reducers(
        words(rate),
        of,
        host_types=types,
        hosts=hosts,
        seconds=seconds,
        seed=seed,
        settings=ReducerSettings(**{"partitions": of.partitions, **settings}),
    )


def run_out(plant: ReducersPlant, limit: float = 300.0) -> ReducersPlant:
    """Let time pass until all is processed."""
    while not plant.finished and plant.time < limit:
        plant.advance(plant.time + 5.0)
    return plant
