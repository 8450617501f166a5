"""Predicted pause of a repartition, by earlier ones on this machine."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

# Newest repartitions that count.
MOST = 30
# Relative errors below this are rounding: equal fits.
EQUAL = 1e-6


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds of a repartition. `partitions`: old and new ones, for each of which Spark opens a store."""

    partitions: int
    megabytes: float
    seconds: float


def predicted_pause(earlier: Sequence[Pause], partitions: int, megabytes: float) -> float:
    """Return the predicted seconds; NaN without `earlier`. Of equally good fits the longest pause counts."""
    # Seconds are a constant, a part for each partition and one for each MB; none is negative, none is more than is known.
    if not earlier:
        return math.nan
    rows = np.array([(1.0, each.partitions, each.megabytes) for each in earlier])
    rows /= np.array([[each.seconds] for each in earlier])
    fits = []
    for count in range(1, min(3, len(earlier)) + 1):
        for columns in map(list, combinations(range(3), count)):
            rates = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)[0]
            if (rates >= 0).all():
                error = float(((rows[:, columns] @ rates - 1) ** 2).sum())
                fits.append((max(error, EQUAL), -float(np.array((1.0, partitions, megabytes))[columns] @ rates)))
    return -min(fits)[1]


def read_pauses(file: Path) -> Sequence[Pause]:
    """Return the newest repartitions in `file`, without lines that cannot be read."""
    pauses = []
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                each = Pause(**json.loads(line))
                if min(each.partitions, each.megabytes, each.seconds) > 0:
                    pauses.append(each)
    return pauses[-MOST:]


def add_pause(file: Path, pause: Pause) -> None:
    """Add a repartition to `file`, if it can be written."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(each)) for each in (*read_pauses(file), pause)]
        new = file.with_suffix(".new")
        new.write_text("\n".join(lines) + "\n", encoding="utf-8")
        new.replace(file)
