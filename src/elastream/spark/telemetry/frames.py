"""Frames of an observation: CPU use and memory of hosts, and the load of each state partition (task)."""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from elastream.clouds.provider import HostUsage
from elastream.core.frames import CPU_WINDOW, LONGEST, Floats, Frame, TaskFrame
from elastream.core.hosts import HostState, Lease
from elastream.core.memory import by_partition
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.spark.telemetry.speeds import HostSpeed
from elastream.spark.telemetry.stage_load import PartitionLoads, StoredState

# Seconds of CPU times in memory: what `whole_batches` may ask for.
REMEMBERED_S = CPU_WINDOW + 2 * LONGEST
# Most cores that a host can use, as a multiple of its own: a counter that grew faster is wrong.
MOST_USED = 1000.0
NAN = float("nan")
UNMEASURED = HostUsage()
UNKNOWN_STATE = StoredState(NAN, NAN, NAN, NAN)


def cores_used(hosts: Frame, working: Mapping[str, Lease], compiling: Collection[str]) -> float:
    """Return the cores that the `working` hosts spend on the load; NaN if one host's use is unknown.

    What a host in `compiling` uses beyond the usual use of the others is the cost of its start.
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

    def frame(  # noqa: PLR0913
        self,
        leases: Mapping[str, Lease],
        placement: Mapping[TaskId, str],
        links: Frame,
        use: Callable[[str], float],
        measured: Mapping[str, HostUsage],
        now: float,
        speeds: Mapping[str, HostSpeed] = MappingProxyType({}),
        span: tuple[float, float] = (CPU_WINDOW, 0.0),
        more: Mapping[Metric, Mapping[str, float]] = MappingProxyType({}),
    ) -> Frame:
        """Return a row per lease. CPU use is unknown until a host is up, and relative to the cores that it gets.

        Args:
            use: Returns the occupied fraction of a host's slots. It counts where no CPU time is `measured`.
            span: Seconds ago between which CPU use is taken; the last CPU_WINDOW if it is not known for so long.
            more: Further columns by host.
        """
        count = Counter(placement.values())
        measurements = {name: measured.get(name, UNMEASURED) for name in leases}
        oldest = max((each.age for each in speeds.values()), default=0.0)

        def cpu(name: str, lease: Lease) -> float:
            if lease.state in (HostState.REQUESTED, HostState.STARTING):
                return NAN
            if (seconds := measurements[name].cpu_seconds) is None:
                return use(name)
            return self._cpu_of(lease, seconds, now, span, speeds[name].share if name in speeds else 1.0)

        return Frame(
            tuple(leases),
            {
                Metric.CPU: [cpu(name, lease) for name, lease in leases.items()],
                Metric.MEMORY: [_finite(measurements[name].memory) for name in leases],
                Metric.TASKS: [float(count[name]) for name in leases],
                Metric.SPEED: [speeds[name].speed if name in speeds else NAN for name in leases],
                Metric.BANDWIDTH: [_exchanged(name, links) for name in leases],
                **{metric: [column.get(name, NAN) for name in leases] for metric, column in more.items()},
            },
            {Metric.SPEED: oldest, Metric.CPU: span[1]},
        )

    def _cpu_of(self, lease: Lease, seconds: float, now: float, span: tuple[float, float], share: float) -> float:
        samples = self._cpu.setdefault(lease.host, deque())
        if len(samples) > 1 and samples[-1][1] == samples[-2][1]:
            samples.pop()  # an old reading came again: what is used meanwhile belongs to the whole time
        if not self._possible(samples, now, seconds, lease.type.cores):
            samples.clear()
        if 0 <= seconds < math.inf:
            samples.append((now, seconds))
        if not samples:
            return NAN
        while len(samples) > 2 and samples[1][0] <= now - REMEMBERED_S:
            samples.popleft()
        if samples[0][0] <= now - span[0] < now - span[1] <= samples[-1][0]:
            then, until = now - span[0], now - span[1]
            times, used = zip(*samples, strict=True)
            before, after = np.interp([then, until], times, used).tolist()
        else:
            then, before = next((each for each in reversed(samples) if each[0] <= now - CPU_WINDOW), samples[0])
            until, after = now, seconds
        return float((after - before) / (until - then) / lease.type.cores / share) if until > then else NAN

    @staticmethod
    def _possible(samples: deque[tuple[float, float]], now: float, seconds: float, cores: float) -> bool:
        if not samples:
            return True
        then, before = samples[-1]
        return 0 <= seconds - before <= MOST_USED * cores * (now - then)


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else NAN


def _exchanged(host: str, links: Frame) -> float:
    traffic = links.column(Metric.TRAFFIC)
    own = [float(traffic[row]) for row, pair in enumerate(links) if host in pair.split(">")]
    return sum(own) if own else NAN


def task_frame(
    graph: Graph,
    hosts: Sequence[str],
    placement: Mapping[TaskId, str],
    loads: Mapping[str, PartitionLoads],
    lags: Mapping[TaskId, float] = MappingProxyType({}),
    waiting: Mapping[str, float] = MappingProxyType({}),
) -> TaskFrame:
    """Return one row for each task on `hosts`: its load per second, and the lag of its newest standby replica.

    Args:
        waiting: Seconds of waiting work by operator (`seconds_waiting`). Times a task's rate, they are its backlog.
    """
    operators = tuple(graph.by_name)
    numbers, rows = {name: row for row, name in enumerate(operators)}, {name: row for row, name in enumerate(hosts)}
    placed = [(task, host) for task, host in sorted(placement.items()) if host in rows and task.operator in loads]

    def column(name: str) -> Floats:
        return np.array([getattr(loads[task.operator], name)[task.index] for task, _ in placed], dtype=np.float64)

    counts = {name: each.rows for name, each in loads.items()}
    state_rows = [NAN if (of := counts[task.operator]) is None else float(of[task.index]) for task, _ in placed]
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
            Metric.STATE_ROWS: state_rows,
            Metric.BACKLOG: column("records") * np.array([waiting.get(task.operator, NAN) for task, _ in placed]),
            Metric.STANDBY_LAG: [lags.get(task, NAN) for task, _ in placed],
        },
        ages=max(ages, default=0.0),
    )


def seconds_waiting(graph: Graph, operators: Frame) -> dict[str, float]:
    """Return for each operator how many seconds of work wait for its query at the current rate; NaN if unknown.

    Work waits at the entries of a query: its sources, and operators behind durable edges.
    """
    entries: dict[str, frozenset[str]] = {}

    def entries_of(name: str) -> frozenset[str]:
        if name not in entries:
            before = graph.inputs[name]
            durable = any(edge.durable is not None for edge in before)
            above = (entries_of(edge.source) for edge in before)
            entries[name] = frozenset([name]) if durable or not before else frozenset().union(*above)
        return entries[name]

    seconds = {}
    for name in graph.by_name:
        into = sorted(entries_of(name))
        backlog = sum(operators.value(each, Metric.BACKLOG) for each in into)
        rate = sum(operators.value(each, Metric.PROCESSED_RATE) for each in into)
        seconds[name] = 0.0 if backlog == 0 else backlog / rate if rate > 0 else NAN
    return seconds


def busy_cores(frame: TaskFrame) -> Mapping[TaskId, float]:
    busy = frame.column(Metric.BUSY_CORES).tolist()
    return {task: cores for task, cores in zip(frame.tasks, busy, strict=True) if cores > 0}


def known_sizes(frame: TaskFrame) -> Mapping[TaskId, float]:
    sizes = frame.column(Metric.STATE_SIZE).tolist()
    return {task: size for task, size in zip(frame.tasks, sizes, strict=True) if size == size}


def state_in_heap(loads: Mapping[str, PartitionLoads]) -> Mapping[TaskId, float]:
    """Return the state of each task in the heap (MB)."""
    stored = {name: (each.stored.heap, each.state) for name, each in loads.items() if each.stored and each.stored.heap > 0}
    return {
        TaskId(name, index): megabytes
        for name, (heap, sizes) in stored.items()
        for index, megabytes in enumerate(by_partition(heap, sizes).tolist())
    }


def state_columns(loads: Mapping[str, PartitionLoads]) -> dict[Metric, dict[str, float]]:
    """Return the size of each keyed operator's state, and of its newest checkpoint's changes, by metric."""
    stored = {name: each.stored or UNKNOWN_STATE for name, each in loads.items()}
    return {
        Metric.STATE_ROWS: {name: each.rows for name, each in stored.items()},
        Metric.STATE_HEAP: {name: each.heap for name, each in stored.items()},
        Metric.STATE_OFF_HEAP: {name: each.off_heap for name, each in stored.items()},
        Metric.STATE_DISK: {name: each.disk for name, each in stored.items()},
        Metric.STATE_SIZE: {name: float(each.state.sum()) for name, each in loads.items()},
        Metric.CHECKPOINT_DELTA: {name: each.delta for name, each in loads.items()},
    }
