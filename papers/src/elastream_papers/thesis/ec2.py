"""The cloud of the thesis's chapters 4 and 5: m1 hosts of EC2, how fast their cores are as time passes, and a walking load.

Both evaluations run 12 hours in instants of five minutes, billed by the hour. What the thesis does not give is assumed
here, once, and can be varied.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import Billing, HostType
from elastream.loads.pattern import Pattern, Section
from elastream_papers.harness.assumptions import assumed

RUN, INSTANT = 12 * 3600.0, 300.0
"""Seconds of a run, and between two rounds (thesis, pp. 88 and 111)."""
PRICES: Mapping[str, tuple[int, float, float, float]] = {
    "m1.small": (1, 1.0, 1.7, 0.06),
    "m1.medium": (1, 2.0, 3.75, 0.12),
    "m1.large": (2, 2.0, 7.5, 0.24),
    "m1.xlarge": (4, 2.0, 15.0, 0.48),
}
"""Cores, speed of a core (EC2 compute units; the m1.small's is 1), GiB and $ an hour: us-east-1, 26 September 2013, the
oldest list at hand. The thesis names m1 and no price (p. 94)."""
GIB = 2**30 / 1e6
"""Megabytes."""


@dataclass(frozen=True)
class CloudAssumptions:
    """What the thesis does not give of its cloud and loads, which can be halved and doubled."""

    start: float = assumed(
        100.0, "s from lease to ready", "97 s: Linux on EC2, mean (Mao and Humphrey 2012, 'A performance study on the VM "
        "startup time in the cloud')"
    )  # fmt: skip
    step: float = assumed(
        0.1, "of the mean rate, at most, every 2 min", "as the speed of hosts walks (Linear Road's walk within +-50 %)"
    )
    instance: float = assumed(5.0, "s", "an instance starts: VISP's 5 to 10 s; chapter 4 names no time")


def host_types(given: CloudAssumptions) -> tuple[HostType, ...]:
    """The m1 types, smallest first, billed by the hour."""
    return tuple(
        HostType(
            name, cores=float(cores), speed=speed, memory=memory * GIB, price=price, billing=Billing(3600.0),
            start=given.start,
        )
        for name, (cores, speed, memory, price) in PRICES.items()
    )  # fmt: skip


def walk(mean: float, seed: int, given: CloudAssumptions, seconds: float = RUN, every: float = 120.0) -> Pattern:
    """A load that walks within +-50 % of `mean` records/s (thesis, p. 86): even steps, folded back at both ends."""
    draws = np.random.default_rng([seed, 41]).uniform(-given.step, given.step, math.ceil(seconds / every))
    # Folding an unbounded walk at both ends is the walk that reflects there.
    place = np.abs(np.mod(np.cumsum(draws) - 0.5, 2.0) - 1.0) - 0.5
    return loads_between(mean * (1 + place), every, seconds)


def loads_between(rates: Floats, every: float, seconds: float) -> Pattern:
    """A load of these rates, records/s, each for `every` seconds. Rounded, so that it is the same on every machine."""
    levels = [round(float(rate), 9) for rate in rates]
    return Pattern(tuple(Section(min(every, seconds - number * every), rate, rate) for number, rate in enumerate(levels)))
