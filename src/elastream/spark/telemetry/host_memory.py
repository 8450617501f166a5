"""Memory of hosts: heap and collections from executors' heartbeats, Python workers and limits from probes."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.core.frames import OLD
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executor_memory import ExecutorMemory, Heartbeat
from elastream.spark.telemetry.speeds import SpeedProbes

# Time over which the least heap counts (seconds): young collections come within seconds of a batch, old ones in minutes.
FLOOR_WINDOW_S = 120.0
NAN = math.nan


@dataclass(slots=True)
class _Heap:
    beats: deque[Heartbeat] = field(default_factory=lambda: deque(maxlen=100))
    tasks: frozenset[TaskId] = frozenset()

    def add(self, beat: Heartbeat, tasks: frozenset[TaskId]) -> None:
        if tasks - self.tasks:
            self.beats.clear()  # less was live before these came
        self.tasks = tasks
        if not self.beats or beat.at > self.beats[-1].at:
            self.beats.append(beat)
        while self.beats[0].at < self.beats[-1].at - FLOOR_WINDOW_S:
            self.beats.popleft()

    @property
    def collecting(self) -> float:
        if len(self.beats) < 2:
            return NAN
        before, last = self.beats[-2], self.beats[-1]
        return max(0.0, (last.collecting - before.collecting) / (last.at - before.at))


class HostMemory:
    """Memory of the hosts of a plant. Without `memory` or `probes`, what they tell is unknown."""

    def __init__(self, memory: ExecutorMemory | None, probes: SpeedProbes | None) -> None:
        self._memory, self._probes = memory, probes
        self._heaps: dict[str, _Heap] = {}

    def columns(
        self, hosts: Mapping[str, str], placements: Mapping[TaskId, str], wall: float
    ) -> Mapping[Metric, dict[str, float]]:
        """Return the memory metrics of each host.

        Args:
            hosts: Host by executor.
            placements: Host by task.
            wall: Epoch seconds.
        """
        columns: dict[Metric, dict[str, float]] = {}

        def put(metric: Metric, host: str, value: float | None) -> None:
            if value is not None:
                columns.setdefault(metric, {})[host] = value

        memory, beats = self._memory, {} if self._memory is None else self._memory.look()
        tasks: dict[str, set[TaskId]] = {}
        for task, host in placements.items():
            tasks.setdefault(host, set()).add(task)
        self._heaps = {executor: each for executor, each in self._heaps.items() if executor in hosts}
        for executor, host in hosts.items():
            probed = None if self._probes is None else self._probes.memory(executor)
            limits = [None if memory is None else memory.container, None if probed is None else probed.limit]
            put(Metric.MEMORY_LIMIT, host, min((each for each in limits if each), default=None))
            put(Metric.PYTHON_MEMORY, host, None if probed is None else probed.python)
            put(Metric.HEAP_LIMIT, host, None if memory is None else memory.heap_limit)
            if (beat := beats.get(executor)) is None or wall - beat.at > OLD:
                continue
            heap = self._heaps.setdefault(executor, _Heap())
            heap.add(beat, frozenset(tasks.get(host, ())))
            put(Metric.HEAP, host, min(each.heap for each in heap.beats))
            put(Metric.OFF_HEAP, host, beat.off_heap)
            put(Metric.GC_TIME, host, heap.collecting)
        return columns
