"""What each alternate costs and gives, by the meter: a row for each that has run, of the batches in which it ran last.

A batch runs under one composition, and with a key table under several alternates; the meter counts each apart. What one
costs says nothing of another, so nothing is averaged over them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from elastream.core.frames import Frame
from elastream.core.metrics import Metric
from elastream.spark.worker.meter import MeterRow


@dataclass(frozen=True, slots=True)
class _Cost:
    """service_time: seconds of the meter a record. selectivity: records out per record in. at: epoch second of that."""

    service_time: float
    selectivity: float
    at: float


class AlternateCosts:
    """The costs of the alternates of a dataflow; `took` adds what batches have told."""

    def __init__(self) -> None:
        self._costs: dict[tuple[str, str], _Cost] = {}

    def took(self, rows: Iterable[tuple[float, MeterRow]]) -> None:
        """Take the rows of the batches of the last seconds, each with the epoch second of its batch's end."""
        sums: Mapping[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        for end, row in rows:
            if row.alternate:
                found = sums[row.operator, row.alternate]
                found[0] += row.rows_in
                found[1] += row.rows_out
                found[2] += row.busy
                found[3] = max(found[3], end)
        for name, (taken, emitted, busy, at) in sums.items():
            if taken:
                self._costs[name] = _Cost(busy / taken, emitted / taken, at)

    def frame(self, now: float, taken: Callable[[str], float] = lambda _: 1.0) -> Frame:
        """A row per alternate that has run, at epoch second `now`. taken: seconds for which a core of its operator is taken
        for each of the meter's."""
        costs = dict(sorted(self._costs.items()))
        ages = [max(0.0, now - cost.at) for cost in costs.values()]
        return Frame(
            tuple(f"{operator}.{alternate}" for operator, alternate in costs),
            {
                Metric.SERVICE_TIME: [cost.service_time * taken(operator) for (operator, _), cost in costs.items()],
                Metric.SELECTIVITY: [cost.selectivity for cost in costs.values()],
                Metric.AGE: ages,
            },
        )
