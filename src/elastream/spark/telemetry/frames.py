"""Frames of an observation: what hosts do and hold, and what each state partition (task) takes, as measured."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from elastream.clouds.provider import HostUsage
from elastream.core.frames import CPU_WINDOW, LONGEST, Floats, Frame, TaskFrame
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.spark.telemetry.speeds import HostSpeed
from elastream.spark.telemetry.stage_load import PartitionLoads

KEPT = CPU_WINDOW + 2 * LONGEST
"""Seconds for which CPU times are kept: what `whole_batches` may ask for."""
MOST_USED = 1000.0
"""Times its cores that a host can use at most, where nothing holds it to them: a counter that grew faster is wrong."""
NAN = float("nan")
UNMEASURED = HostUsage()


def cores_used(hosts: Frame, working: Mapping[str, Lease], compiling: Collection[str]) -> float:
    """Cores that the `working` hosts, of which `hosts` tells, spend on the load; NaN if the use of one is unknown.

    Those that are `compiling` have come lately and may use more than they have: what exceeds the use of the others is the
    price of their start, which the policy must not take for work that more hosts are needed for.
    """
    used = {name: hosts.value(name, Metric.CPU) * lease.type.cores for name, lease in working.items()}
    others = [name for name in working if name not in compiling]
    cores = sum(working[name].type.cores for name in others)
    usual = min(1.0, sum(used[name] for name in others) / cores) if cores else 1.0
    return sum(min(used[name], usual * working[name].type.cores) if name in compiling else used[name] for name in working)


class HostCpuUsage:
    """CPU use of hosts, from the CPU time that they report."""

    def __init__(self) -> None:
        self._cpu: dict[str, deque[tuple[float, float]]] = {}

    def frame(
        self,
        leases: Mapping[str, Lease],
        held: Mapping[TaskId, str],
        links: Frame,
        use: Callable[[str], float],
        measured: Mapping[str, HostUsage],
        now: float,
        speeds: Mapping[str, HostSpeed] = MappingProxyType({}),
        copies: Mapping[str, float] = MappingProxyType({}),
        span: tuple[float, float] = (CPU_WINDOW, 0.0),
    ) -> Frame:
        """A row per lease. A host that is not up yet has no use of CPU that says anything.

        held: host of each task. measured: what providers know; use: fraction of a host's slots that its tasks took, for
        hosts whose provider does not know their CPU time. links: a row per ordered pair of hosts; what a host has to do
        with others is the sum over those that it is in. speeds: what probes say; of a host that does not get all of its
        cores the use counts more, since it is full when it uses what it gets. copies: megabytes that copies of
        others' state take. span: from how many seconds ago, and until how many, CPU use is told, where it is
        known for so long; else over the last CPU_WINDOW.
        """
        count = Counter(held.values())
        known = {name: measured.get(name, UNMEASURED) for name in leases}
        oldest = max((each.age for each in speeds.values()), default=0.0)
        return Frame(
            tuple(leases),
            {
                Metric.CPU: [
                    self._cpu_of(lease, known[name], use, now, span, speeds[name].share if name in speeds else 1.0)
                    for name, lease in leases.items()
                ],
                Metric.MEMORY: [
                    NAN if (used := known[name].memory) is None or math.isinf(used) else used for name in leases
                ],
                Metric.TASKS: [float(count[name]) for name in leases],
                Metric.SPEED: [speeds[name].speed if name in speeds else NAN for name in leases],
                Metric.BANDWIDTH: [_exchanged(name, links) for name in leases],
                Metric.COPIES_MEMORY: [copies.get(name, NAN) for name in leases],
            },
            {Metric.SPEED: oldest, Metric.CPU: span[1]},
        )

    def _cpu_of(
        self,
        lease: Lease,
        known: HostUsage,
        use: Callable[[str], float],
        now: float,
        span: tuple[float, float],
        share: float,
    ) -> float:
        """Utilisation of a host: of the `share` of its cores that it gets, over `span` or CPU_WINDOW, or of its slots."""
        if lease.state in (HostState.REQUESTED, HostState.STARTING):
            return NAN
        if known.cpu_seconds is None:
            return use(lease.host)
        samples = self._cpu.setdefault(lease.host, deque())
        if not self._possible(samples, now, known.cpu_seconds, lease.type.cores):
            samples.clear()
        if 0 <= known.cpu_seconds < math.inf:
            samples.append((now, known.cpu_seconds))
        if not samples:
            return NAN
        while len(samples) > 2 and samples[1][0] <= now - KEPT:
            samples.popleft()
        if samples[0][0] <= now - span[0] < now - span[1] <= samples[-1][0]:
            then, until = now - span[0], now - span[1]
            times, used = zip(*samples, strict=True)
            before, after = np.interp([then, until], times, used).tolist()
        else:
            then, before = next((each for each in reversed(samples) if each[0] <= now - CPU_WINDOW), samples[0])
            until, after = now, known.cpu_seconds
        return float((after - before) / (until - then) / lease.type.cores / share) if until > then else NAN

    @staticmethod
    def _possible(samples: deque[tuple[float, float]], now: float, seconds: float, cores: float) -> bool:
        """Whether a counter of CPU time can have come to `seconds`: it never falls, and no host has so many cores."""
        if not samples:
            return True
        then, before = samples[-1]
        return 0 <= seconds - before <= MOST_USED * cores * (now - then)


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else NAN


def _exchanged(host: str, links: Frame) -> float:
    """Bytes/s over the links of a host, both directions; unknown where it has none."""
    traffic = links.column(Metric.TRAFFIC)
    own = [float(traffic[row]) for row, pair in enumerate(links) if host in pair.split(">")]
    return sum(own) if own else NAN


def task_frame(
    graph: Graph,
    hosts: Sequence[str],
    held: Mapping[TaskId, str],
    loads: Mapping[str, PartitionLoads],
    lags: Mapping[TaskId, float] = MappingProxyType({}),
    waiting: Mapping[str, float] = MappingProxyType({}),
) -> TaskFrame:
    """A row per task that is on one of `hosts`, with what it takes a second by `loads` of its operator.

    lags: of the copy of its state that is furthest ahead. waiting: by operator, see `seconds_waiting`: a task's backlog is
    what it would take in so many seconds, its part of the records that wait for its query.
    """
    operators = tuple(graph.by_name)
    numbers, rows = {name: row for row, name in enumerate(operators)}, {name: row for row, name in enumerate(hosts)}
    placed = [(task, host) for task, host in sorted(held.items()) if host in rows and task.operator in loads]

    def column(name: str) -> Floats:
        return np.array([getattr(loads[task.operator], name)[task.index] for task, _ in placed], dtype=np.float64)

    ages = [each.age for each in loads.values() if not np.isnan(each.busy).any()]
    return TaskFrame(
        operator=[numbers[task.operator] for task, _ in placed],
        index=[task.index for task, _ in placed],
        host=[rows[host] for _, host in placed],
        operators=operators,
        values={
            Metric.BUSY_CORES: column("busy"),
            Metric.BUSY_CORES_ERROR: column("error"),
            Metric.UTILISATION: column("occupied"),
            Metric.PROCESSED_RATE: column("records"),
            Metric.TRAFFIC: column("traffic"),
            Metric.STATE_SIZE: column("state"),
            Metric.BACKLOG: column("records") * np.array([waiting.get(task.operator, NAN) for task, _ in placed]),
            Metric.STANDBY_LAG: [lags.get(task, NAN) for task, _ in placed],
        },
        ages=max(ages, default=0.0),
    )


def seconds_waiting(graph: Graph, operators: Frame) -> dict[str, float]:
    """By operator, for how many seconds its query has work waiting, at the rate of now; NaN where that is unknown.

    What waits is at the entries of a query: its sources, and operators that durable edges lead to.
    """
    entries: dict[str, frozenset[str]] = {}

    def entries_of(name: str) -> frozenset[str]:
        if name not in entries:
            before = graph.inputs[name]
            durable = any(edge.durable is not None for edge in before)
            above = (entries_of(edge.source) for edge in before)
            entries[name] = frozenset([name]) if durable or not before else frozenset().union(*above)
        return entries[name]

    found = {}
    for name in graph.by_name:
        into = sorted(entries_of(name))
        backlog = sum(operators.value(each, Metric.BACKLOG) for each in into)
        rate = sum(operators.value(each, Metric.PROCESSED_RATE) for each in into)
        found[name] = 0.0 if backlog == 0 else backlog / rate if rate > 0 else NAN
    return found


def weights(frame: TaskFrame) -> Mapping[TaskId, float]:
    """Busy cores by task, of those for which they are known."""
    return {
        task: busy for task, busy in zip(frame.tasks, frame.column(Metric.BUSY_CORES).tolist(), strict=True) if busy > 0
    }


def state_columns(loads: Mapping[str, PartitionLoads]) -> dict[Metric, dict[str, float]]:
    """Of each keyed operator the size of its state, and what its newest checkpoint wrote over that, by metric."""
    return {
        Metric.STATE_SIZE: {name: float(each.state.sum()) for name, each in loads.items()},
        Metric.CHECKPOINT_DELTA: {name: each.delta for name, each in loads.items()},
    }
