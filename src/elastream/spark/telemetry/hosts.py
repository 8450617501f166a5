"""What hosts do and what they hold, as a frame of an observation."""

from collections import Counter, deque
from collections.abc import Callable, Mapping

from elastream.clouds.provider import Measured
from elastream.model.action import TaskId
from elastream.model.cloud import HostState, Lease
from elastream.model.observation import Frame, Metric

__all__ = ["HostWatch"]

CPU_WINDOW = 3.0
"""Seconds that a host's CPU use is averaged over: a few batches, since between two it is near nothing."""
NAN = float("nan")
UNMEASURED = Measured()


class HostWatch:
    """Remembers the CPU time of hosts, so that its use can be told."""

    def __init__(self) -> None:
        self._cpu: dict[str, deque[tuple[float, float]]] = {}

    def frame(
        self,
        leases: Mapping[str, Lease],
        held: Mapping[TaskId, str],
        links: Frame,
        use: Callable[[str], float],
        measured: Mapping[str, Measured],
        now: float,
    ) -> Frame:
        """A row per lease. A host that is not up yet has no use of CPU that says anything.

        held: host of each task. measured: what providers know; use: fraction of a host's slots that its tasks took, for
        hosts whose provider does not know their CPU time. links: a row per ordered pair of hosts; what a host has to do
        with others is the sum over those that it is in.
        """
        count = Counter(held.values())
        known = {name: measured.get(name, UNMEASURED) for name in leases}
        return Frame(
            tuple(leases),
            {
                Metric.CPU: [self._cpu_of(lease, known[name], use, now) for name, lease in leases.items()],
                Metric.MEMORY: [NAN if (used := known[name].memory) is None else used for name in leases],
                Metric.TASKS: [float(count[name]) for name in leases],
                Metric.BANDWIDTH: [_exchanged(name, links) for name in leases],
            },
        )

    def _cpu_of(self, lease: Lease, known: Measured, use: Callable[[str], float], now: float) -> float:
        """Utilisation of a host: of its cores, mean over CPU_WINDOW, or of its slots."""
        if lease.state in (HostState.REQUESTED, HostState.STARTING):
            return NAN
        if known.cpu_seconds is None:
            return use(lease.host)
        samples = self._cpu.setdefault(lease.host, deque())
        samples.append((now, known.cpu_seconds))
        while len(samples) > 2 and samples[1][0] <= now - CPU_WINDOW:
            samples.popleft()
        then, before = samples[0]
        return (known.cpu_seconds - before) / (now - then) / lease.type.cores if now > then else NAN


def _exchanged(host: str, links: Frame) -> float:
    """Bytes/s over the links of a host, both directions; unknown where it has none."""
    traffic = links.column(Metric.TRAFFIC)
    own = [float(traffic[row]) for row, pair in enumerate(links) if host in pair.split(">")]
    return sum(own) if own else NAN
