"""An operator whose instances have queues of their own and share the cores and links of their hosts."""

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.dataflow.operators import Operator
from elastream.simulator.stations import Station
from elastream.units import ROUNDING
from elastream_papers.tasks.settings import TaskSettings


class TaskStation(Station):
    """An operator. crew.queued: records waiting at each instance; crew.born: the mean time at which they arrived.

    loose: records of removed instances, to be divided among the others.
    """

    def __init__(self, operator: Operator, stream: int, settings: TaskSettings) -> None:
        super().__init__(operator, stream, settings)
        self.settings: TaskSettings = settings
        self.now = 0.0
        self.loose = 0.0
        self.loose_born = 0.0

    @property
    def needs(self) -> tuple[float, float]:
        """A token amount of cores, which are shared (makes the pool spread instances evenly), and the memory."""
        return 1e-6, self.operator.memory

    @property
    def shares(self) -> Floats:
        """Fraction of the operator's records that each instance gets now."""
        mine = self.settings.by_instance(self.settings.shares, self.name, self.crew.index, self.now)
        return np.asarray(mine / mine.sum()) if mine.sum() > 0 else super().shares

    @property
    def efforts(self) -> Floats:
        """Factor on the operator's cost per record at each instance now."""
        return self.settings.by_instance(self.settings.efforts, self.name, self.crew.index, self.now)

    @property
    def queued(self) -> float:
        return float(self.crew.queued.sum()) + self.loose

    @property
    def in_service(self) -> float:
        """0: a record in service still counts as waiting."""
        return 0.0

    @property
    def unfinished(self) -> bool:
        return self.queued > 1e-6

    def dismiss(self, rows: NDArray[np.int64], *, lost: bool) -> None:
        """Remove instances and pass their records to the others; those of a lost host keep them and restart elsewhere."""
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
    """Mean over `weight` records with mean `value` and `more` records with sum `more_sum`; 0 for no records."""
    total = weight + more
    return (weight * value + more_sum) / total if total > ROUNDING else 0.0
