"""Random numbers that depend on nothing but (seed, stream, number): the same item has the same service time whatever
the policy did before it, and however time was cut into windows.
"""

import math

import numpy as np
from numba import njit

from elastream.model.observation import Floats

__all__ = ["DETERMINISTIC", "EMPIRICAL", "EXPONENTIAL", "LOGNORMAL", "below", "factor", "factors", "uniform"]

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
def uniform(seed: int, stream: int, number: int) -> float:
    """A float in (0, 1): splitmix64 (Steele, Lea and Flood 2014) over a counter, one sequence a stream."""
    start = _mixed(np.uint64(seed) + np.uint64(stream + 1) * _STREAM)
    word = _mixed(start + np.uint64(number + 1) * _GOLDEN)
    return (float(word >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(cache=True)
def factor(kind: int, shape: float, samples: Floats, seed: int, stream: int, number: int) -> float:
    """Service time of item `number` over its mean. shape: sigma of the lognormal; samples: sorted, of mean 1."""
    if kind == 0:
        return 1.0
    first = uniform(seed, stream, 2 * number)
    if kind == 2:
        return -math.log(first)
    if kind == 3:
        return float(samples[int(first * samples.size)])
    second = uniform(seed, stream, 2 * number + 1)
    normal = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)
    return math.exp(shape * normal - 0.5 * shape * shape)


@njit(cache=True)
def factors(kind: int, shape: float, samples: Floats, seed: int, stream: int, first: int, count: int) -> Floats:
    """`factor` of the items `first` to `first + count - 1`."""
    out = np.empty(count)
    for k in range(count):
        out[k] = factor(kind, shape, samples, seed, stream, first + k)
    return out


@njit(cache=True)
def below(kind: int, shape: float, samples: Floats, value: float) -> float:
    """Probability that `factor` is at most `value`."""
    if value <= 0.0:
        return 0.0
    if kind == 0 or (kind == 1 and shape == 0.0):
        return 1.0 if value >= 1.0 - 1e-12 else 0.0
    if kind == 2:
        return 1.0 - math.exp(-value)
    if kind == 3:
        return np.searchsorted(samples, value, side="right") / samples.size
    return 0.5 * (1.0 + math.erf((math.log(value) / shape + 0.5 * shape) / math.sqrt(2.0)))
