"""What to expect of the traffic: the models of congestion (P2) and of travel times (P7) in examples/linear_road.py.

Each goes by what is known when a minute begins, so that it does not matter in which batch the records of a minute come.
Sums are numpy's own, not a linear algebra library's: they are the same to the last bit whatever threads there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from traffic import FASTEST, MILE, MINUTE

WINDOW = 5
"""Minutes of reports that count: the benchmark's."""
FREE = 60.0
"""Miles an hour expected of a dry road of which nothing is known."""
SLOWEST = 3.0
"""Miles an hour: traffic that stands goes on some time."""
LEAST = 8
"""Reports that a regression needs."""
REACH = 2.5
"""Miles around a place from which reports count."""
AROUND = ((0.25, 1.0), (0.5, 1.0), (0.5, 2.5), (1.0, 2.5), (1.0, 5.0), (2.5, 5.0))
"""Candidates of how far a report counts: miles and minutes at which it has 60 % of its weight."""
BACK = ((0.5,), (1.0,), (2.5,), (5.0,))
"""The same of time alone: minutes."""


def expected_speed(method: str, past: np.ndarray, time: int, pos: float, percent: int) -> float:
    """Miles an hour, to a tenth, expected at a place and time, by an alternate of the congestion estimation.

    past: reports of the carriageway in the WINDOW minutes before this one, in the order of time and vehicle, shape (4, n):
    seconds, feet, miles an hour, and to how many percent the weather let traffic go. percent: the same for now.
    `neighbours`: a regression over place and time, of the reports around; `trend`, `sparse`: over time only.
    """
    known = past[:, np.abs(past[1] - pos) <= REACH * MILE]
    if known.shape[1] < LEAST:
        return round(FREE * percent / 100, 1)
    dry = known[2] * 100 / known[3]
    ago = (known[0] - time) / MINUTE
    if method == "neighbours":
        found = regression(((known[1] - pos) / MILE, ago), dry, AROUND)
    else:
        found = regression((ago,), dry, BACK)
    return round(min(max(found * percent / 100, SLOWEST), FASTEST), 1)


def regression(distances: Sequence[np.ndarray], values: np.ndarray, spans: Sequence[Sequence[float]]) -> float:
    """The value at distance 0 by local linear regression. spans: candidates of how far a value counts, by distance.

    Of the candidates that with the least error by generalised cross-validation.
    """
    least, best = math.inf, float(values.sum()) / len(values)
    columns = [np.ones(len(values)), *distances]
    for span in spans:
        weights = np.exp(-0.5 * sum((each / wide) ** 2 for each, wide in zip(distances, span, strict=True)))
        total, squares = float(weights.sum()), float((weights**2).sum())
        if squares == 0 or (spare := 1 - len(columns) * squares / total**2) <= 0:
            continue  # hardly more values count than there are coefficients
        weighted = [weights * column for column in columns]
        products = np.array([[float((a * b).sum()) for b in columns] for a in weighted])
        products[np.diag_indices(len(columns))] += 1e-6 * total
        fitted = np.linalg.solve(products, np.array([float((a * values).sum()) for a in weighted]))
        left = values - sum(part * column for part, column in zip(fitted, columns, strict=True))
        error = float((weights * left**2).sum()) / total / spare**2
        if error < least:
            least, best = error, float(fitted[0])
    return best


# -- travel times ------------------------------------------------------------------------------------------------------

DRIVES, NEAREST = 3000, 25
"""Drives in the historical storage, and how many of them count."""
SCALES = np.array([[90.0], [2.0], [15.0]])
"""Minutes of the day, days and miles an hour that make drives equally unlike."""


@dataclass(frozen=True, eq=False)
class History:
    """Drives of the past, shipped with the job. known: minute of the day, weekday and miles an hour at the start of each,
    over SCALES, shape (3, n). became: by which factor the speed had changed a segment later, shape (n,).
    """

    known: np.ndarray
    became: np.ndarray

    @classmethod
    def of(cls, seed: int = 11) -> "History":
        """Synthetic drives: traffic slows before the rush hours of working days and recovers after them."""
        random = np.random.default_rng(seed)
        minute, day = random.integers(0, 1440, DRIVES), random.integers(1, 8, DRIVES)
        speed = random.uniform(5, 65, DRIVES)
        rush = sum(np.sin(np.clip((minute - peak) / 90, -1, 1) * np.pi) for peak in (510, 1050)) * (day <= 5)
        became = np.clip(1 + 0.15 * rush + (FREE - speed) / 400 + random.normal(0, 0.05, DRIVES), 0.5, 1.5)
        return cls(np.stack([minute, day, speed]) / SCALES, became)

    def factor(self, minute: int, day: int, speed: float) -> float:
        """By which a speed changed in the nearest drives."""
        far = ((self.known - np.array([[minute], [day], [speed]]) / SCALES) ** 2).sum(axis=0)
        near = np.sort(np.argpartition(far, NEAREST)[:NEAREST])
        return float(self.became[near].sum()) / NEAREST


def seconds_for(method: str, past: History, speeds: Sequence[float], minute: int, day: int) -> float:
    """Seconds, to a tenth, for segments in a row with these expected speeds, by an alternate of the travel times.

    minute, day: of the day and of the week. `recent`: by the speeds as they are. `historical`: by what became of such
    speeds in like drives of the past, segment by segment.
    """
    total, factor = 0.0, 1.0
    for speed in speeds:
        total += 3600 / max(speed * factor, SLOWEST)
        if method == "historical":
            factor = min(max(factor * past.factor(minute, day, speed), 0.5), 1.5)
    return round(total, 1)
