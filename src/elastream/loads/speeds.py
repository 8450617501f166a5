"""Host speeds during a run (cf. Kumbhare 2015, section 1.3): traces and generators."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from elastream.errors import InputError
from elastream.loads.pattern import Floats, Integers
from elastream.units import ROUNDING, duration

SLOT_S = 120.0  # thesis, section 1.3: hosts and links were measured every two minutes
GENERATED_HOSTS = 256  # rows of a generated trace; assumed: further hosts start again at the first row

# Mean and largest step are from the thesis's published simulator (IaaSSimulator). The upper bound is the rated speed:
# section 1.3 divides by the best observation.
WALK_MEAN, WALK_STEP, MAX_FACTOR = 0.85, 0.1, 1.0

MIN_FACTOR = 0.3  # lower bound of `Ec2Speeds`: Figure 1.3, outliers included
# `Ec2Speeds`, in units of the logistic scale: centre, deviation between hosts, deviation within a host, and the share of
# a deviation left in the next slot. Section 1.3: 23 % of EC2 hosts are below 0.80 on average, and 25 % of consecutive
# slots change by over 20 %; the walk's mean is 0.85. Newton's method on draws gives the first three numbers
# (tests/loads/test_speeds.py). Persistence is assumed: at 0 no plan could answer a slow slot, and near 1 such changes
# need hosts that stop.
LEVEL_CENTRE, DEVIATION_BETWEEN, DEVIATION_WITHIN, PERSISTENCE = 2.0, 0.88, 1.63, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class SpeedTrace:
    """Speeds of hosts, as factors on their types' speed.

    Attributes:
        factors: One row per host, one column per slot of `interval` seconds; both wrap around. Host `h1` has the first
            row.

    Raises:
        InputError: A value is not above 0.
    """

    factors: Floats
    interval: float = SLOT_S

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", as_table("speeds of hosts", self.factors))
        check_shape("speeds of hosts", self.interval, self.factors)

    def slot(self, now: float) -> int:
        return slot_at(now, self.interval)

    def at(self, numbers: Integers, now: float) -> Floats:
        rows, slots = self.factors.shape
        return np.asarray(self.factors[numbers % rows, self.slot(now) % slots])

    def over(self, seconds: float) -> "SpeedTrace":
        return self


class SpeedSource(Protocol):
    def over(self, seconds: float) -> SpeedTrace:
        """Return the trace for a run of `seconds`; a longer one starts with the same values."""
        ...


@dataclass(frozen=True, slots=True)
class SpeedWalk:
    """Random walk: after each `every`, a host's factor moves by at most `step`.

    It is reflected at `highest` and as far below `mean`, so all values between are equally likely. Source: the thesis's
    published simulator, with the narrowest bounds that have its mean and end at the rated speed.
    """

    mean: float = WALK_MEAN
    step: float = WALK_STEP
    every: float | str = SLOT_S
    highest: float = MAX_FACTOR
    hosts: int = GENERATED_HOSTS
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < 2 * self.mean - self.highest < self.highest < math.inf:
            raise InputError(f"a walk of mean {self.mean:g} up to {self.highest:g} would go down to 0 or has no room")
        if not 0 < self.step <= 2 * (self.highest - self.mean):
            raise InputError(f"a step of {self.step:g} is wider than a walk of mean {self.mean:g} up to {self.highest:g}")
        _check_counts(self.hosts, self.every)

    def over(self, seconds: float) -> SpeedTrace:
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
    """EC2 hosts as in section 1.3 of the thesis: 23 % below 0.80; 25 % of slots change by over 20 %.

    A factor is the logistic function of a host's level plus a drift, so it is mostly near the rated speed and never above.
    """

    hosts: int = GENERATED_HOSTS
    seed: int = 1

    def __post_init__(self) -> None:
        _check_counts(self.hosts, SLOT_S)

    def over(self, seconds: float) -> SpeedTrace:
        draw = np.random.default_rng(self.seed)
        level = LEVEL_CENTRE + DEVIATION_BETWEEN * draw.standard_normal(self.hosts)
        drifts = drifts_of(draw, self.hosts, math.ceil(seconds / SLOT_S))
        return SpeedTrace(np.stack([logistic(level + DEVIATION_WITHIN * drift) for drift in drifts], axis=1), SLOT_S)


def drifts_of(draw: np.random.Generator, count: int, slots: int) -> Iterator[Floats]:
    """Yield independent deviations of mean 0 and variance 1 per slot; `PERSISTENCE` carries over to the next."""
    state = draw.standard_normal(count)
    for _ in range(max(1, slots)):
        yield state
        state = PERSISTENCE * state + math.sqrt(1 - PERSISTENCE**2) * draw.standard_normal(count)


def logistic(values: Floats) -> Floats:
    """Map numbers to between `MIN_FACTOR` and 1, rounded because exponentials differ between machines."""
    return np.asarray(np.round(MIN_FACTOR + (1 - MIN_FACTOR) / (1 + np.exp(-values)), 9))


def number_of(host: str, default: int) -> int:
    """Return a host's number in traces, from 0 (`h3` has 2), or `default` for other names."""
    return int(host[1:]) - 1 if host[:1] == "h" and host[1:].isdecimal() and int(host[1:]) else default


def slot_at(now: float, interval: float) -> int:
    return int(now / interval + ROUNDING)


def as_table(what: str, values: ArrayLike) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"a trace of {what} is a table of numbers with rows of one length") from None


def check_shape(what: str, interval: float, *tables: Floats) -> None:
    """Raise InputError unless the tables have one shape, not empty, with finite values above 0."""
    for table in tables:
        if table.ndim != 2 or not table.size or table.shape != tables[0].shape:
            raise InputError(f"a trace of {what} has a row each and a column a slot; its shape is {table.shape}")
        if not ((table > 0) & (table < math.inf)).all():
            raise InputError(f"a trace of {what} has a value that is missing, infinite or not above 0")
    if not interval > 0:
        raise InputError(f"a trace of {what} has slots of {interval:g} s; they must be above 0")


def _check_counts(hosts: int, every: float | str) -> None:
    if hosts < 1:
        raise InputError(f"a trace of {hosts} hosts: at least one is needed")
    if not duration(every) > 0:
        raise InputError(f"a trace with slots of {every}; they must be above 0")
