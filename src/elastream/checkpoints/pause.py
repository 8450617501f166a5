"""Predicted pause of a repartition, by earlier ones on this machine and by the time that reading its state took."""

#   reading   = a * partitions + b * megabytes            a and b by all readings before
#   rewriting = c * (reading the old + reading the new)   c is the median of the repartitions before
#
# All is scaled by the reading just now over the one that a and b give.

import contextlib
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from elastream.core.frames import Floats

# Newest repartitions that count.
MOST = 30
NAN = math.nan


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a repartition's steps, from `old` to `new` partitions of `megabytes` in all."""

    old: int
    new: int
    megabytes: float
    reading_old: float
    rewriting: float
    reading_new: float


def predicted_pause(earlier: Sequence[Timing], old: int, new: int, megabytes: float, reading: float) -> float:
    """Return the seconds from the first reading of the rows, which took `reading`, to the end; NaN without `earlier`."""
    if not earlier:
        return NAN
    sizes = [(count, each.megabytes) for each in earlier for count in (each.old, each.new)]
    seconds = [took for each in earlier for took in (each.reading_old, each.reading_new)]
    rates = _fitted(np.array(sizes), np.array(seconds))

    def read(partitions: int, size: float) -> float:
        return float(rates @ (partitions, size))

    ratios = [each.rewriting / (read(each.old, each.megabytes) + read(each.new, each.megabytes)) for each in earlier]
    both = read(old, megabytes) + read(new, megabytes)
    scale = reading / read(old, megabytes)
    return scale * (both + statistics.median(ratios) * both)


def _fitted(sizes: Floats, seconds: Floats) -> Floats:
    """Return the rates, none negative, with the least sum of squared relative errors."""
    rows = sizes / seconds[:, None]
    rates = np.asarray(np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0], dtype=np.float64)
    if (rates >= 0).all():
        return rates
    alone = rows.sum(axis=0) / (rows**2).sum(axis=0)
    errors = ((rows * alone - 1) ** 2).sum(axis=0)
    return np.where(np.arange(2) == np.argmin(errors), alone, 0.0)


def read_timings(file: Path) -> Sequence[Timing]:
    """Return the newest repartitions in `file`, without lines that cannot be read."""
    timings = []
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                each = Timing(**json.loads(line))
                if min(each.old, each.new, each.reading_old, each.rewriting, each.reading_new) > 0:
                    timings.append(each)
    return timings[-MOST:]


def add_timing(file: Path, timing: Timing) -> None:
    """Add a repartition to `file`, if it can be written."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(each)) for each in (*read_timings(file), timing)]
        new = file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(file)
