"""Memory of hosts: heap and collections from executors' heartbeats, Python workers and limits from probes."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from elastream.core.frames import OLD
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executor_memory import ExecutorMemory, Heartbeat
from elastream.spark.telemetry.speeds import SpeedProbes

# Shortest and longest time over which the least heap counts (seconds): young collections come within seconds of a batch.
SHORTEST_S, LONGEST_S = 120.0, 3600.0
# Part of a heap that Java's serial and parallel collectors keep for young objects.
YOUNG = 1 / 3
NAN, NEVER = math.nan, -math.inf
NOTHING: Mapping[TaskId, float] = MappingProxyType({})
NOWHERE: Mapping[TaskId, str] = MappingProxyType({})


@dataclass(slots=True)
class _Heap:
    """Heap of an executor beside state.

    Attributes:
        beside: (time, MB) of the heartbeats that count.
        collected: Last two times at which old memory was collected.
        since: Time of the first heartbeat with these tasks.
    """

    # Old garbage counts until the second collection after it, or for an hour.
    beats: deque[Heartbeat] = field(default_factory=lambda: deque(maxlen=2))
    beside: deque[tuple[float, float]] = field(default_factory=deque)
    collected: tuple[float, float] = (NEVER, NEVER)
    tasks: Set[TaskId] | None = None
    since: float = math.inf

    def add(self, beat: Heartbeat, tasks: Set[TaskId], state: float) -> None:
        last = self.beats[-1] if self.beats else beat
        if self.beats and beat.at <= last.at:
            return
        self.beats.append(beat)
        if beat.full + beat.concurrent > last.full + last.concurrent:
            self.collected = (self.collected[1], beat.at)
        if tasks != self.tasks:
            self.tasks, self.since = tasks, beat.at
        elif beat.heap >= state:  # state of a task that has just come may be on its way
            self.beside.append((beat.at, beat.heap - state))
        since = max(beat.at - LONGEST_S, min(beat.at - SHORTEST_S, self.collected[0]))
        while self.beside and self.beside[0][0] < since:
            self.beside.popleft()

    @property
    def least(self) -> float:
        """Least MB beside state; inf if unknown."""
        return min((each for _, each in self.beside), default=math.inf)

    @property
    def settled(self) -> bool:
        """True if `least` has no garbage of the time before the tasks changed."""
        age = self.beats[-1].at - self.since
        return age >= LONGEST_S or (age >= SHORTEST_S and self.collected[0] >= self.since)

    @property
    def collecting(self) -> float:
        if len(self.beats) < 2:
            return NAN
        before, last = self.beats
        return max(0.0, (last.collecting - before.collecting) / (last.at - before.at))


class HostMemory:
    """Memory of the hosts of a plant. Without `memory` or `probes`, what they tell is unknown."""

    def __init__(self, memory: ExecutorMemory | None, probes: SpeedProbes | None) -> None:
        self._memory, self._probes = memory, probes
        self._heaps: dict[str, _Heap] = {}

    def columns(
        self,
        hosts: Mapping[str, str],
        locations: Mapping[TaskId, str],
        wall: float,
        state: Mapping[TaskId, float] = NOTHING,
        targets: Mapping[TaskId, str] = NOWHERE,
    ) -> Mapping[Metric, dict[str, float]]:
        """Return the memory metrics of each host.

        Args:
            hosts: Host by executor.
            locations: Host that each task ran on last.
            wall: Epoch seconds.
            state: State in the heap by task (MB).
            targets: Hosts of tasks whose state is on its way.
        """
        columns: dict[Metric, dict[str, float]] = {}

        def put(metric: Metric, host: str, value: float | None) -> None:
            if value is not None:
                columns.setdefault(metric, {})[host] = value

        memory, beats = self._memory, {} if self._memory is None else self._memory.look()
        there: dict[str, set[TaskId]] = {}
        for task, host in locations.items():
            there.setdefault(host, set()).add(task)
        live: dict[str, _Heap] = {}
        self._heaps = {executor: each for executor, each in self._heaps.items() if executor in hosts}
        for executor, host in hosts.items():
            beat, probed = beats.get(executor), None if self._probes is None else self._probes.memory(executor)
            limits = [None if memory is None else memory.container, None if probed is None else probed.limit]
            put(Metric.MEMORY_LIMIT, host, min((each for each in limits if each), default=None))
            put(Metric.HEAP_LIMIT, host, None if memory is None else memory.heap_limit)
            fresh = beat is not None and wall - beat.at <= OLD
            python = None if probed is None else probed.python
            put(Metric.PYTHON_MEMORY, host, beat.python if python is None and beat is not None and fresh else python)
            if beat is None or not fresh:
                continue
            heap = live[host] = self._heaps.setdefault(executor, _Heap())
            own = frozenset(there.get(host, ()))
            heap.add(beat, own, math.fsum(state.get(task, 0.0) for task in own))
            put(Metric.OFF_HEAP, host, beat.off_heap)
            put(Metric.GC_TIME, host, heap.collecting)
        for task, host in targets.items():
            there.setdefault(host, set()).add(task)
        if memory is not None and live:
            states = {host: math.fsum(state.get(task, 0.0) for task in there.get(host, ())) for host in hosts.values()}
            columns[Metric.HEAP] = _needed(live, memory, states)
        return columns


def _needed(live: Mapping[str, _Heap], memory: ExecutorMemory, states: Mapping[str, float]) -> dict[str, float]:
    """Return the heap that each host needs (MB). `states`: of its tasks and of those on their way (MB)."""
    divided = memory.divided
    if divided is None:  # other collectors make full collections only as a last resort
        divided = any(each.beats[-1].full and not each.beats[-1].concurrent for each in live.values())
    young = YOUNG * memory.heap_limit if divided else 0.0
    # An executor whose tasks have just changed is full of garbage: the needs of other executors beside state say more.
    settled = [each.least for each in live.values() if each.settled and each.beside]
    usual = statistics.median(settled) if settled else min(each.least for each in live.values())
    needed = {}
    for host, megabytes in states.items():
        heap = live.get(host)
        beside = usual if heap is None else heap.least if heap.settled else min(usual, heap.least)
        if beside < math.inf:
            needed[host] = megabytes + beside + young
        elif heap is not None:
            needed[host] = max(megabytes, heap.beats[-1].heap)
    return needed
