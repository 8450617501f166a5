"""Counter-based random numbers: functions of (seed, stream, number) alone."""

import math

import numpy as np
from numba import njit

from elastream.core.frames import Floats

DETERMINISTIC, LOGNORMAL, EXPONENTIAL, EMPIRICAL = 0, 1, 2, 3

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_STREAM = np.uint64(0xD1342543DE82EF95)


@njit(cache=True, inline="always")
def _mixed(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> np.uint64(30))) * _MIX1
    word = (word ^ (word >> np.uint64(27))) * _MIX2
    return word ^ (word >> np.uint64(31))


@njit(cache=True)
def sequence(seed: int, stream: int) -> np.uint64:
    return _mixed(np.uint64(seed) + np.uint64(stream + 1) * _STREAM)


@njit(cache=True)
def drawn(start: np.uint64, number: int) -> float:
    """Return draw `number` of the sequence, in (0, 1)."""
    word = _mixed(start + np.uint64(number + 1) * _GOLDEN)
    return (float(word >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(cache=True)
def uniform(seed: int, stream: int, number: int) -> float:
    """Return a float in (0, 1): splitmix64 (Steele, Lea and Flood 2014) over a counter."""
    return drawn(sequence(seed, stream), number)


@njit(cache=True)
def normal(level: float) -> float:
    """Return a standard normal quantile to six digits: AS 241, PPND7 (Wichura 1988)."""
    middle = level - 0.5
    if abs(middle) <= 0.425:
        r = 0.180625 - middle * middle
        return (
            middle
            * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179)
            / (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0)
        )
    r = math.sqrt(-math.log(min(level, 1.0 - level)))
    if r <= 5.0:
        r -= 1.6
        value = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) / (
            (0.12021132975 * r + 0.73700164250) * r + 1.0
        )
    else:
        r -= 5.0
        value = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) / (
            (0.012258202635 * r + 0.24197894225) * r + 1.0
        )
    return value if middle > 0 else -value


@njit(cache=True)
def factor(kind: int, shape: float, samples: Floats, start: np.uint64, number: int) -> float:
    """Return the service time of item `number` divided by the mean.

    `shape` is the lognormal's sigma; `samples` are sorted, with mean 1.
    """
    if kind == 0 or (kind == 1 and shape == 0.0):
        return 1.0
    level = drawn(start, number)
    if kind == 2:
        return -math.log(level)
    if kind == 3:
        return float(samples[int(level * samples.size)])
    return math.exp(shape * normal(level) - 0.5 * shape * shape)


@njit(cache=True)
def below(kind: int, shape: float, samples: Floats, value: float) -> float:
    """Return the probability of `factor` <= `value`."""
    if value <= 0.0:
        return 0.0
    if kind == 0 or (kind == 1 and shape == 0.0):
        return 1.0 if value >= 1.0 - 1e-12 else 0.0
    if kind == 2:
        return 1.0 - math.exp(-value)
    if kind == 3:
        return np.searchsorted(samples, value, side="right") / samples.size
    return 0.5 * (1.0 + math.erf((math.log(value) / shape + 0.5 * shape) / math.sqrt(2.0)))
