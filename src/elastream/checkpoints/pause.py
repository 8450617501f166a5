"""Predicted pause of a repartition, by earlier ones on this machine."""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Newest repartitions that count.
MOST = 30
# Squared relative errors that differ by less are equal.
EQUAL = 1e-6
# Most of the longest over the shortest pause that are said as one.
SURE = 1.25


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds of a repartition. `partitions`: old and new ones, for each of which Spark opens a store."""

    partitions: int
    megabytes: float
    seconds: float


class Prediction(NamedTuple):
    """Shortest and longest pause (seconds) by equally good fits; NaN if unknown."""

    shortest: float = math.nan
    longest: float = math.nan

    @property
    def text(self) -> str:
        if math.isnan(self.shortest):
            return "unknown"
        sure = self.longest <= SURE * self.shortest
        return f"about {self.longest:.0f} s" if sure else f"{self.shortest:.0f} to {self.longest:.0f} s"


def predicted_pause(earlier: Sequence[Pause], partitions: int, megabytes: float) -> Prediction:
    # Seconds are a constant, a part for each partition and one for each MB; none is negative, none is more than is known.
    if not earlier:
        return Prediction()
    rows = np.array([(1.0, each.partitions, each.megabytes) for each in earlier])
    rows /= np.array([[each.seconds] for each in earlier])
    fits = []
    for count in range(1, min(3, len(earlier)) + 1):
        for columns in map(list, combinations(range(3), count)):
            rates = np.linalg.lstsq(rows[:, columns], np.ones(len(rows)), rcond=None)[0]
            if (rates >= 0).all():
                error = float(((rows[:, columns] @ rates - 1) ** 2).sum())
                fits.append((error, float(np.array((1.0, partitions, megabytes))[columns] @ rates)))
    best = min(fits)[0]
    equal = [seconds for error, seconds in fits if error <= best + EQUAL]
    return Prediction(min(equal), max(equal))


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
