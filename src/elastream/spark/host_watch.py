"""What hosts do and what they hold, as the frames of an observation."""

from collections import deque
from collections.abc import Mapping

import numpy as np

from elastream.model.action import TaskId
from elastream.model.cloud import HostState, Lease
from elastream.model.graph import Graph
from elastream.model.observation import Frame, Metric, TaskFrame
from elastream.spark.hosts import Provider

__all__ = ["HostWatch", "task_frame"]

CPU_WINDOW = 3.0
"""Seconds that a host's CPU use is averaged over: a few batches, since between two it is near nothing."""
NAN = float("nan")


class HostWatch:
    """Remembers the CPU time of hosts, so that its use can be told."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._cpu: dict[str, deque[tuple[float, float]]] = {}

    def hosts(self, leases: Mapping[str, Lease], held: Mapping[TaskId, str], now: float) -> Frame:
        """A row per lease. `held`: host of each task. A host that is not up yet has no use of CPU that says anything."""
        cpu, memory, tasks = [], [], []
        for name, lease in leases.items():
            coming = lease.state in (HostState.REQUESTED, HostState.STARTING)
            cpu.append(NAN if coming else self._busy(name, now) / lease.type.cores)
            used = self._provider.memory(name) if lease.there else None
            memory.append(NAN if used is None else used)
            tasks.append(float(sum(host == name for host in held.values())))
        return Frame(tuple(leases), {Metric.CPU: cpu, Metric.MEMORY: memory, Metric.TASKS: tasks})

    def _busy(self, host: str, now: float) -> float:
        """Cores that a host has used, mean over CPU_WINDOW; unknown until it was looked at twice."""
        used = self._provider.cpu_seconds(host)
        if used is None:
            return NAN
        samples = self._cpu.setdefault(host, deque())
        samples.append((now, used))
        while len(samples) > 2 and samples[1][0] <= now - CPU_WINDOW:
            samples.popleft()
        then, before = samples[0]
        return (used - before) / (now - then) if now > then else NAN


def task_frame(graph: Graph, leases: Mapping[str, Lease], held: Mapping[TaskId, str]) -> TaskFrame:
    """A row per task that lies on a host of `leases`."""
    operators = tuple(graph.by_name)
    rows = {name: row for row, name in enumerate(leases)}
    placed = [(task, host) for task, host in sorted(held.items()) if host in rows]
    return TaskFrame(
        operator=[operators.index(task.operator) for task, _ in placed],
        index=[task.index for task, _ in placed],
        host=[rows[host] for _, host in placed],
        operators=operators,
        values={Metric.BUSY_CORES: np.full(len(placed), np.nan)},
    )
