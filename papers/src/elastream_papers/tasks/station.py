"""An operator with a queue per instance, on shared cores and links."""

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.dataflow.operators import Operator
from elastream.simulator.stations import Station
from elastream.units import ROUNDING
from elastream_papers.tasks.settings import TaskSettings


class TaskStation(Station):
    """An operator.

    crew.born: mean arrival time of its queued records. loose: records of removed instances, to redistribute.
    """

    def __init__(self, operator: Operator, stream: int, settings: TaskSettings) -> None:
        super().__init__(operator, stream, settings)
        self.settings: TaskSettings = settings
        self.now = 0.0
        self.loose = 0.0
        self.loose_born = 0.0

    @property
    def needs(self) -> tuple[float, float]:
        """Return a token amount of cores (shared, so that the pool spreads instances) and the memory."""
        return 1e-6, self.operator.memory

    @property
    def shares(self) -> Floats:
        mine = self.settings.by_instance(self.settings.shares, self.name, self.crew.index, self.now)
        return np.asarray(mine / mine.sum()) if mine.sum() > 0 else super().shares

    @property
    def efforts(self) -> Floats:
        return self.settings.by_instance(self.settings.efforts, self.name, self.crew.index, self.now)

    @property
    def queued(self) -> float:
        return float(self.crew.queued.sum()) + self.loose

    @property
    def in_service(self) -> float:
        """Return 0: records in service still wait."""
        return 0.0

    @property
    def unfinished(self) -> bool:
        return self.queued > 1e-6

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove instances and redistribute their records; those of a lost host restart elsewhere."""
        if lost:
            return
        crew = self.crew
        amount = float(crew.queued[rows].sum())
        self.loose_born = mean_of_both(
            self.loose, self.loose_born, amount, float((crew.queued[rows] * crew.born[rows]).sum())
        )
        self.loose += amount
        crew.queued[rows] = 0.0


def mean_of_both(weight: float, value: float, more: float, more_sum: float) -> float:
    """Return the mean of `weight` records of mean `value` and `more` records of sum `more_sum`; 0 for none."""
    total = weight + more
    return (weight * value + more_sum) / total if total > ROUNDING else 0.0
