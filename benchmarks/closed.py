"""Cost of authentication and encryption of a local cluster: time to the first batch, and seconds of a batch.

A round starts a cluster in each of three ways, in random order: open, authenticated, encrypted. Three minutes a round.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

from _cluster import word_count
from _common import Report, in_random_order, main

from elastream.clouds.local.authentication import Secrets
from elastream.loads import constant

ROUNDS, BATCHES, QUICK_BATCHES = 5, 20, 4
RATE, HOSTS, PARTITIONS = 1000, 2, 4
BAR = 1.1
SOURCE = "ours: what is closed by default must not be worth opening"
IN_CLEAR = {"spark.network.crypto.enabled": "false"}


def opened() -> AbstractContextManager[Any]:
    return patch.object(Secrets, "new", classmethod(lambda cls: cls(None)))


WAYS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], dict[str, str]]] = {
    "open": (opened, {}),
    "authenticated": (nullcontext, IN_CLEAR),
    "encrypted": (nullcontext, {}),
}


def measured(way: str, batches: int) -> tuple[float, float]:
    closed, settings = WAYS[way]
    began = time.monotonic()
    with closed(), word_count(
        constant(RATE), hosts=HOSTS, max_hosts=HOSTS, state_partitions=PARTITIONS, settings=settings
    ) as bench:  # fmt: skip
        bench.observe_until(lambda: bench.plant.queries.telemetry.batches > 0, 180.0, "a batch")
        first = time.monotonic() - began
        bench.steady(batches // 2)
        return first, bench.steady(batches)


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    rounds, batches = (1, QUICK_BATCHES) if arguments.quick else (arguments.rounds, BATCHES)
    found = in_random_order(list(WAYS), rounds, lambda way: measured(way, batches))
    names = ("seconds to the first batch", "seconds of a batch")
    for at, name in enumerate(names):
        report.figures[name] = {way: [each[at] for each in runs] for way, runs in found.items()}
        for way in ("authenticated", "encrypted"):
            ratios = [mine[at] / theirs[at] for mine, theirs in zip(found[way], found["open"], strict=True)]
            report.median_at_most(f"{name}, {way} over open", ratios, BAR, SOURCE)
    return report


if __name__ == "__main__":
    main("closed", __doc__, measure, rounds=ROUNDS)
