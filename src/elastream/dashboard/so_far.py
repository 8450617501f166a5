"""What a run has come to so far: how much was in time, and what a static provision of its peak would have cost."""

from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import UNKNOWN, percent
from elastream.policies.common.provision import Work
from elastream.report.in_time import InTime


class SoFar:
    """Counts observations as the summary of the finished run will."""

    def __init__(self, target_latency: float | None = None) -> None:
        self._in_time = InTime(target_latency)
        self._work = Work(target_latency)
        self._time = 0.0
        self.static: tuple[int, float] | None = None

    def observed(self, observation: Observation) -> None:
        """Take the next observation. `static` is then (hosts, cost) of the peak so far; None while it is not known."""
        width, self._time = observation.time - self._time, observation.time
        self._in_time.batches(observation.batches)
        records = observation.overall(Metric.THROUGHPUT) * width
        p99, kept = observation.overall(Metric.LATENCY_P99), observation.overall(Metric.COMPLIANCE)
        self._in_time.period(width, p99, kept, records)
        self._work.observed(observation)
        types = tuple(observation.context.host_types.values())
        found = self._work.provision(types[0]) if types else None
        self.static = None if found is None else (found.hosts, found.cost(types[0], observation.time))

    @property
    def in_time(self) -> str:
        """Of the records and of the time."""
        return str(self._in_time)

    @property
    def share(self) -> str:
        """Part of the records that was in time, else of the time."""
        records = percent(self._in_time.records)
        return percent(self._in_time.time) if records == UNKNOWN else records
