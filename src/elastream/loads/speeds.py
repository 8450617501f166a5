"""How fast the hosts of a run are while it lasts: traces of their speed, and generators of such traces.

Clouds do not keep what they promise: the thesis (Kumbhare 2015, section 1.3) measured EC2 hosts for weeks. A trace is a
table of factors, so that one trace varies hosts of any type. Files are `recorded`'s, links between hosts are `links`'.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from elastream.errors import InputError
from elastream.loads.pattern import Floats, Integers
from elastream.units import ROUNDING, duration

SLOT = 120.0
"""Seconds. Thesis, section 1.3: its hosts and links were measured every two minutes."""
HOSTS = 256
"""Rows of a generated trace. Assumed: a run that leases more hosts begins again with the first row."""

MEAN, STEP, RATED = 0.85, 0.1, 1.0
"""Mean, greatest step and upper bound of the documented walk: the thesis's published simulator (IaaSSimulator) has the
first two. The third is what a host is rated at: section 1.3 divides by the best that was observed."""

LEAST = 0.3
"""Lower bound of the factors of `Ec2Speeds`: that of Figure 1.3, which shows each EC2 host with its outliers."""
CENTRE, BETWEEN, WITHIN, PERSISTENCE = 2.0, 0.88, 1.63, 0.5
"""Of `Ec2Speeds`, in units of the logistic scale: centre, deviation between hosts and within one, and how much of a slot's
deviation is left in the next. Section 1.3 has 23 % of EC2 hosts below 0.80 on average, and a change above 20 % in 25 % of
consecutive slots; the walk above has the mean of 0.85. The three numbers are what satisfies these three (by Newton's method
on draws; held by tests/workload/test_speeds.py). Persistence is assumed: at 0 no plan could answer a slow slot, and near 1
slots that differ by 20 % need hosts that stop."""


@dataclass(frozen=True, slots=True, eq=False)
class SpeedTrace:
    """Speeds of hosts, as factors on the speed that each host's type declares.

    factors: a row a host, a column a slot of `interval` seconds. Host `h1` of a run has the first row, and the first
    follows the last, of hosts and of slots. Raises InputError for values that are not above 0.
    """

    factors: Floats
    interval: float = SLOT

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", table_of("speeds of hosts", self.factors))
        refuse_misshapen("speeds of hosts", self.interval, self.factors)

    def slot(self, now: float) -> int:
        """Number of the slot that `now` is in."""
        return slot_at(now, self.interval)

    def at(self, numbers: Integers, now: float) -> Floats:
        """Factors at `now` of the hosts with these numbers (`number_of`); same shape."""
        rows, slots = self.factors.shape
        found: Floats = self.factors[numbers % rows, self.slot(now) % slots]
        return found

    def over(self, seconds: float) -> "SpeedTrace":
        """Itself, whatever the length of the run: it begins anew where it is shorter."""
        return self


class SpeedSource(Protocol):
    """What gives a trace for a run: a generator, or a trace itself."""

    def over(self, seconds: float) -> SpeedTrace:
        """The trace for a run of `seconds`; one for a longer run begins with the same values."""
        ...


@dataclass(frozen=True, slots=True)
class SpeedWalk:
    """The documented walk: `every` two minutes each host's factor goes a step of at most `step` up or down.

    Reflected at `highest` and as far below `mean`, so that any value between is equally likely at any time, the first
    included. Source: the thesis's published simulator; the bounds are the narrowest that have its mean and end at the rated
    speed.
    """

    mean: float = MEAN
    step: float = STEP
    every: float | str = SLOT
    highest: float = RATED
    hosts: int = HOSTS
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < 2 * self.mean - self.highest < self.highest < math.inf:
            raise InputError(f"a walk of mean {self.mean:g} up to {self.highest:g} would go down to 0 or has no room")
        if not 0 < self.step <= 2 * (self.highest - self.mean):
            raise InputError(f"a step of {self.step:g} is wider than a walk of mean {self.mean:g} up to {self.highest:g}")
        _refuse_few(self.hosts, self.every)

    def over(self, seconds: float) -> SpeedTrace:
        """The walk of each host for `seconds`."""
        draw, every = np.random.default_rng(self.seed), duration(self.every)
        low, high = 2 * self.mean - self.highest, self.highest
        level = draw.uniform(low, high, self.hosts)
        columns = [level]
        for _ in range(math.ceil(seconds / every) - 1):
            level = level + draw.uniform(-self.step, self.step, self.hosts)
            level = np.where(level > high, 2 * high - level, np.where(level < low, 2 * low - level, level))
            columns.append(level)
        return SpeedTrace(np.stack(columns, axis=1), every)


@dataclass(frozen=True, slots=True)
class Ec2Speeds:
    """Hosts as section 1.3 of the thesis measured EC2's: 23 % are below 0.80; in 25 % of slots one changes by over 20 %.

    A factor is the logistic function of a sum: a level of its own for each host, and a deviation that drifts from slot to
    slot. So it never exceeds the rated speed, is near it most of the time, and falls now and then.
    """

    hosts: int = HOSTS
    seed: int = 1

    def __post_init__(self) -> None:
        _refuse_few(self.hosts, SLOT)

    def over(self, seconds: float) -> SpeedTrace:
        """Each host for `seconds`."""
        draw = np.random.default_rng(self.seed)
        level = CENTRE + BETWEEN * draw.standard_normal(self.hosts)
        drifts = drifting(draw, self.hosts, math.ceil(seconds / SLOT))
        return SpeedTrace(np.stack([logistic(level + WITHIN * drift) for drift in drifts], axis=1), SLOT)


def drifting(draw: np.random.Generator, count: int, slots: int) -> Iterator[Floats]:
    """`count` independent deviations of mean 0 and variance 1, slot by slot, of which `PERSISTENCE` is left in the next."""
    state = draw.standard_normal(count)
    for _ in range(max(1, slots)):
        yield state
        state = PERSISTENCE * state + math.sqrt(1 - PERSISTENCE**2) * draw.standard_normal(count)


def logistic(values: Floats) -> Floats:
    """Any number as one between `LEAST` and 1; rounded, since the last bit of an exponential differs between machines."""
    found: Floats = np.round(LEAST + (1 - LEAST) / (1 + np.exp(-values)), 9)
    return found


def number_of(host: str, otherwise: int) -> int:
    """Number of a host in traces, from 0: `h3` has 2, whenever it was leased. otherwise: of one called something else."""
    return int(host[1:]) - 1 if host[:1] == "h" and host[1:].isdecimal() and int(host[1:]) else otherwise


def slot_at(now: float, interval: float) -> int:
    """Number of the slot of `interval` seconds that `now` is in."""
    return int(now / interval + ROUNDING)


def table_of(what: str, values: ArrayLike) -> Floats:
    """`values` as a table of numbers; raises InputError where they are none."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"a trace of {what} is a table of numbers with rows of one length") from None


def refuse_misshapen(what: str, interval: float, *tables: Floats) -> None:
    """Raise InputError unless each table has rows and columns, all of one shape, with finite values above 0."""
    for table in tables:
        if table.ndim != 2 or not table.size or table.shape != tables[0].shape:
            raise InputError(f"a trace of {what} has a row each and a column a slot; its shape is {table.shape}")
        if not ((table > 0) & (table < math.inf)).all():
            raise InputError(f"a trace of {what} has a value that is missing, infinite or not above 0")
    if not interval > 0:
        raise InputError(f"a trace of {what} has slots of {interval:g} s; they must be above 0")


def _refuse_few(hosts: int, every: float | str) -> None:
    if hosts < 1:
        raise InputError(f"a trace of {hosts} hosts: at least one is needed")
    if not duration(every) > 0:
        raise InputError(f"a trace with slots of {every}; they must be above 0")
