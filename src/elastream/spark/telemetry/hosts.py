"""What hosts do and what they hold, as a frame of an observation."""

from collections import deque
from collections.abc import Mapping

from elastream.clouds.provider import Measured, Provider
from elastream.model.action import TaskId
from elastream.model.cloud import HostState, Lease
from elastream.model.observation import Frame, Metric

__all__ = ["HostWatch"]

CPU_WINDOW = 3.0
"""Seconds that a host's CPU use is averaged over: a few batches, since between two it is near nothing."""
NAN = float("nan")


class HostWatch:
    """Remembers the CPU time of hosts, so that its use can be told."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._cpu: dict[str, deque[tuple[float, float]]] = {}

    def hosts(self, leases: Mapping[str, Lease], held: Mapping[TaskId, str], links: Frame, now: float) -> Frame:
        """A row per lease. `held`: host of each task. A host that is not up yet has no use of CPU that says anything.

        links: a row per ordered pair of hosts; what a host has to do with others is the sum over those that it is in.
        """
        measured = self._provider.measure()
        cpu, memory, tasks = [], [], []
        for name, lease in leases.items():
            coming = lease.state in (HostState.REQUESTED, HostState.STARTING)
            used = measured.get(name, Measured())
            cpu.append(NAN if coming else self._busy(name, used, now) / lease.type.cores)
            memory.append(NAN if used.memory is None else used.memory)
            tasks.append(float(sum(host == name for host in held.values())))
        columns = {Metric.CPU: cpu, Metric.MEMORY: memory, Metric.TASKS: tasks}
        return Frame(tuple(leases), {**columns, Metric.BANDWIDTH: [_exchanged(name, links) for name in leases]})

    def _busy(self, host: str, used: Measured, now: float) -> float:
        """Cores that a host has used, mean over CPU_WINDOW; unknown until it was measured twice."""
        if used.cpu_seconds is None:
            return NAN
        samples = self._cpu.setdefault(host, deque())
        samples.append((now, used.cpu_seconds))
        while len(samples) > 2 and samples[1][0] <= now - CPU_WINDOW:
            samples.popleft()
        then, before = samples[0]
        return (used.cpu_seconds - before) / (now - then) if now > then else NAN


def _exchanged(host: str, links: Frame) -> float:
    """Bytes/s over the links of a host, both directions; unknown where it has none."""
    traffic = links.column(Metric.TRAFFIC)
    own = [float(traffic[row]) for row, pair in enumerate(links) if host in pair.split(">")]
    return sum(own) if own else NAN
