"""Keys of a reducer: place on the ring, size of state, frequency of updates.

Classes of keys of one partition and similar frequency (within 2^(1/2)) allow a million keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elastream.core.frames import Floats, Integers
from elastream.errors import InputError
from elastream_papers.thesis.resilience.reducers.nodes import Bools

FINENESS = 2.0  # classes an octave of frequency: keys of a class differ by less than 42 %
NEVER, CLASSES = -500, 512  # class of keys never emitted, and number of classes: down to parts of 2^-125
WORD_STATE = 64.0  # Bytes. Assumed: a word of eight letters, its total, three window counts, and a hash entry


@dataclass(frozen=True, eq=False)
class KeySpace:
    """Keys by partition and class.

    shares: part of each source's tuples, (sources, partitions). By class: partition, part of each source's tuples per
    key, (sources, classes), and bytes of state.
    """

    sources: tuple[str, ...]
    shares: Floats
    partition: Integers
    part: Floats
    size: Floats
    written: Floats

    @classmethod
    def of(
        cls,
        at: ArrayLike,
        weights: Mapping[str, ArrayLike],
        partitions: int,
        *,
        sizes: ArrayLike = WORD_STATE,
        written: ArrayLike | None = None,
    ) -> "KeySpace":
        """Return keys that lie `at` [0, 1).

        weights: relative frequency by source. sizes, written: bytes of state, and per update. Raises InputError for
        invalid values.
        """
        at = np.asarray(at, dtype=np.float64)
        if at.ndim != 1 or not at.size or not (at.min() >= 0 and at.max() < 1):
            raise InputError("keys of a ring lie in [0, 1), and there is at least one")
        if not weights:
            raise InputError("keys need weights for at least one source")
        table = np.empty((len(weights), at.size))
        for row, (source, weight) in enumerate(weights.items()):
            column = np.broadcast_to(np.asarray(weight, dtype=np.float64), at.shape)
            if not (np.isfinite(column).all() and (column >= 0).all() and column.any()):
                raise InputError(f"the weights of keys at source {source!r} must be 0 or more, and one of them above 0")
            table[row] = column / column.sum()
        whole = np.broadcast_to(np.asarray(sizes, dtype=np.float64), at.shape)
        changed = whole if written is None else np.broadcast_to(np.asarray(written, dtype=np.float64), at.shape)
        if not ((changed >= 0) & (changed <= whole)).all():
            raise InputError("an update writes at least 0 bytes of a key's state, and at most all of it")
        partition = (at * partitions).astype(np.int64)
        shares = np.stack([np.bincount(partition, row, partitions) for row in table]).astype(np.float64)
        octave, positive = np.full(table.shape, NEVER, dtype=np.int64), table > 0
        octave[positive] = np.floor(FINENESS * np.log2(table[positive])).astype(np.int64)
        code = partition.copy()
        for row in np.maximum(octave, NEVER) - NEVER:
            code = code * CLASSES + row
        _, group, count = np.unique(code, return_inverse=True, return_counts=True)
        classes = count.size
        first = np.zeros(classes, dtype=np.int64)
        first[group] = partition
        return cls(
            tuple(weights),
            shares,
            first,
            np.stack([np.bincount(group, row, classes) / count for row in table]).astype(np.float64),
            np.bincount(group, whole, classes).astype(np.float64),
            np.bincount(group, changed, classes).astype(np.float64),
        )

    def of_sources(self, rows: Sequence[int]) -> "KeySpace":
        """Return these keys, with the sources of `rows` in order."""
        order = list(rows)
        return replace(
            self, sources=tuple(self.sources[row] for row in order), shares=self.shares[order], part=self.part[order]
        )

    @property
    def partitions(self) -> int:
        return int(self.shares.shape[1])

    def updated(self, tuples: Floats, of: Bools | None = None) -> Floats:
        """Return expected bytes by partition of one update per key in `tuples` (sources, partitions)."""
        return self._expected_bytes(tuples, self.written, of)

    def state_bytes(self, tuples: Floats, of: Bools | None = None) -> Floats:
        """Return expected bytes of state by partition, of keys met in each source's `tuples`."""
        return self._expected_bytes(tuples, self.size, of)

    def _expected_bytes(self, tuples: Floats, bytes_of: Floats, of: Bools | None) -> Floats:
        rows: slice | NDArray[np.int64] = slice(None) if of is None else np.flatnonzero(of[self.partition])
        where = self.partition[rows]
        mean = np.zeros(where.size)
        for part, emitted in zip(self.part, tuples, strict=True):
            mean += part[rows] * emitted[where]
        return np.bincount(where, bytes_of[rows] * -np.expm1(-mean), self.partitions).astype(np.float64)


def hashed(count: int, seed: int) -> Floats:
    """Return places of `count` keys under a uniform hash, [0, 1)."""
    return np.random.default_rng(seed).random(count)


# rank and power-law exponents of common words and the rest: Ferrer i Cancho and Sole, "Two regimes in the frequency of
# words and the origins of complex lexicons: Zipf's law revisited", 2001 (British National Corpus)
KERNEL, EXPONENTS = 6_000, (1.01, 1.92)


def two_regimes(count: int, kernel: int = KERNEL, exponents: tuple[float, float] = EXPONENTS) -> Floats:
    """Return word frequencies of large texts: a power law up to rank `kernel`, then a steeper one."""
    rank = np.arange(1, count + 1, dtype=np.float64)
    near, far = exponents
    weights = np.where(rank <= kernel, rank**-near, kernel ** (far - near) * rank**-far)
    found: Floats = weights / weights.sum()
    return found
