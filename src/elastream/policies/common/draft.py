"""Working copy of a plan: placement of instances, free capacity of hosts, and the actions so far.

VISP's policies (`btu`, `queue_threshold`) change it step by step, so that each step sees the earlier ones.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from elastream.core.action import Action, LeaseHost, MoveTask, SetParallelism
from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.task_id import TaskId
from elastream.dataflow.stages import Unit
from elastream.policies.common.measures import price_of_core, sum_of
from elastream.policies.common.placement import balance
from elastream.units import ROUNDING

# Needs are sums of decimal fractions: rounding must not exclude a host that fits exactly.

TAKES_INSTANCES = (HostState.RUNNING, HostState.REQUESTED, HostState.STARTING)


def _together(steps: Sequence[tuple[int, SetParallelism]]) -> SetParallelism:
    actions = [action for _, action in steps]
    return SetParallelism(
        actions[-1].operator,
        actions[-1].instances,
        tuple(host for action in actions for host in action.on),
        tuple(task for action in actions for task in action.without),
        "; ".join(dict.fromkeys(action.why for action in actions)),
    )


def observed_instances(observation: Observation, unit: Unit) -> int:
    """Return the observed parallelism of a unit; 0 if unknown."""
    operators = observation.operators
    for name in (unit.name, *unit.operators):
        if not math.isnan(parallelism := operators.value(name, Metric.PARALLELISM)):
            return round(parallelism)
    return 0


class Draft:
    """Working copy of the placement. Arrays are by host, in the order of `hosts`, oldest lease first.

    Instances may be added to hosts that are not ready, and start with them. Instances that the plant does not place are
    *floating*: Spark runs them on any free slot. Each takes a slot's share of the cores, spread evenly over all open hosts.
    State partitions take turns with them and need no cores of their own.

    Attributes:
        speeds: Measured speed of the hosts' cores, else nominal.
        counts: Placed instances by host and unit.
        closed: True for hosts that take no more instances.
        received: Hosts that got an instance in this draft.
    """

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self.units = observation.context.units
        self.by_name = {unit.name: unit for unit in self.units}
        self.actions: list[Action] = []
        self._unit_of = {name: unit for unit in self.units for name in unit.operators}
        self.instances = {unit.name: observed_instances(observation, unit) for unit in self.units}
        self.leases: dict[str, Lease] = {
            host: lease for host, lease in observation.leases.items() if lease.state in TAKES_INSTANCES
        }
        self.hosts: list[str] = list(self.leases)
        self._row = {host: row for row, host in enumerate(self.hosts)}
        self.cores: Floats = np.array([lease.type.cores for lease in self.leases.values()], dtype=np.float64)
        self.memory: Floats = np.array([lease.type.memory for lease in self.leases.values()], dtype=np.float64)
        self.free_cores: Floats = self.cores.copy()
        self.free_memory: Floats = self.memory.copy()
        self.speeds: Floats = np.array([observation.speeds[host] for host in self.hosts], dtype=np.float64)
        self.counts: Integers = np.zeros((len(self.hosts), len(self.units)), dtype=np.int64)
        self.column = {unit.name: column for column, unit in enumerate(self.units)}
        self.closed: NDArray[np.bool_] = np.zeros(len(self.hosts), dtype=np.bool_)
        self.ready: NDArray[np.bool_] = np.array(
            [lease.state is HostState.RUNNING for lease in self.leases.values()], dtype=np.bool_
        )
        self.received: set[str] = set()
        self.floating = {unit.name: 0 for unit in self.units}
        self.needs = {unit.name: (unit.cores, unit.memory) for unit in self.units}
        self._images: dict[str, set[str]] = {}
        self._leased = 0
        self._undo: list[Callable[[], object]] = []
        self._take_observed()

    @property
    def plan(self) -> list[Action]:
        """The actions, with one number of instances per operator.

        Removals of an operator take the place of its first change, so that others find the room. Additions take the place
        of its last change, after the lease of their host.
        """
        steps: dict[str, list[tuple[int, SetParallelism]]] = {}
        for at, action in enumerate(self.actions):
            if isinstance(action, SetParallelism):
                steps.setdefault(action.operator, []).append((at, action))
        places = {changes[0 if changes[-1][1].without else -1][0]: _together(changes) for changes in steps.values()}
        return [
            places.get(at, action)
            for at, action in enumerate(self.actions)
            if at in places or not isinstance(action, SetParallelism)
        ]

    @property
    def scalable(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.scalable)

    @property
    def may_lease(self) -> bool:
        return len(self.observation.leases) + self._leased < self.observation.context.max_hosts

    @property
    def open_hosts(self) -> int:
        return int((self.ready & ~self.closed).sum())

    def row(self, host: str) -> int:
        return self._row[host]

    def is_ready(self, host: str) -> bool:
        return bool(self.ready[self._row[host]])

    def unit_of(self, task: TaskId) -> Unit:
        return self._unit_of[task.operator]

    def tasks_on(self, host: str) -> tuple[TaskId, ...]:
        """Return the observed instances on `host`; new ones have no identity yet."""
        return tuple(self._tasks.get(host, ()))

    def cached(self, unit: Unit) -> NDArray[np.bool_]:
        """Return by host: True if it has all images for an instance of `unit`."""
        needed = set(unit.operators)
        images = self.observation.images
        return np.array(
            [needed <= (self._images.get(host, set()) | images.get(host, frozenset())) for host in self.hosts],
            dtype=np.bool_,
        )

    def feasibility(self, unit: Unit) -> Floats:
        """Return how many instances of `unit` fit on each host, with fractions.

        A floating unit runs wherever a slot is free: each host has the room of all open ones together.
        """
        cores, memory = self.needs[unit.name]
        everywhere = np.full(len(self.hosts), np.inf)
        free_cores, free_memory = self.free_cores, self.free_memory
        if self.floating[unit.name] and not self.closed.all():
            free_cores = np.full(len(self.hosts), free_cores[~self.closed].sum())
            free_memory = np.full(len(self.hosts), free_memory[~self.closed].sum())
        room = np.minimum(
            free_cores / cores if cores > 0 else everywhere, free_memory / memory if memory > 0 else everywhere
        )
        room = np.where(np.abs(room - 1) < ROUNDING, 1.0, room)
        return np.where(self.closed, 0.0, room)

    def mark(self) -> int:
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undo every change since `mark`, except leases."""
        while len(self._undo) > mark:
            self._undo.pop()()

    @property
    def taking(self) -> int:
        return int((~self.closed).sum())

    @property
    def floats(self) -> bool:
        """True if the floating instances fit on all open hosts together."""
        return not any(self.floating.values()) or (not self.closed.all() and self.crowding <= ROUNDING)

    @property
    def crowding(self) -> float:
        """Missing cores or memory of the open hosts, as a part of all hosts' capacity."""
        cores = float(self.free_cores[~self.closed].sum() / self.cores.sum())
        memory = float(self.free_memory[~self.closed].sum() / self.memory.sum())
        return max(0.0, -cores, -memory)

    def close(self, host: str) -> None:
        """Close `host` for instances and spread floating ones over the open hosts."""
        row = self._row[host]
        floating = [unit for unit in self.units if self.floating[unit.name]]
        for unit in floating:
            self._float(unit, self.floating[unit.name], -1)
        self.closed[row] = True
        self._undo.append(lambda: self.closed.__setitem__(row, False))
        for unit in floating:
            self._float(unit, self.floating[unit.name], 1)

    def add(self, unit: Unit, host: str, why: str) -> None:
        self._occupy(unit, host)
        self._set(unit, self.instances[unit.name] + 1, why, on=(host,))

    def remove(self, task: TaskId, why: str) -> None:
        unit = self.unit_of(task)
        self._vacate(task, unit)
        self._set(unit, self.instances[unit.name] - 1, why, without=(task,))

    def remove_any(self, unit: Unit, why: str, count: int = 1) -> None:
        """Remove instances of `unit` whose hosts the plant does not report."""
        before = self.floating[unit.name]
        removed = min(count, before)
        self._float(unit, removed, -1)
        self.floating[unit.name] = before - removed
        self._undo.append(lambda: self.floating.__setitem__(unit.name, before))
        self._set(unit, self.instances[unit.name] - count, why)

    def move(self, task: TaskId, host: str, why: str) -> None:
        unit = self.unit_of(task)
        self._vacate(task, unit)
        self._occupy(unit, host)
        self._tasks.setdefault(host, []).append(task)
        self._host_of[task] = host
        self._undo.append(lambda: self._tasks[host].remove(task))
        self.do(MoveTask(task, host, why=why))

    def cheapest_type(self, unit: Unit, only: str | None = None) -> HostType | None:
        """Return the cheapest type that holds an instance of `unit`, by price per core, speed and second; None without one.

        Floating instances fit every type.
        """
        cores, memory = (0.0, 0.0) if self.floating[unit.name] else (unit.cores, unit.memory)
        context = self.observation.context
        fitting = [
            type
            for type in (context.leasable if only is None else context.host_types).values()
            if only in (None, type.name) and type.cores >= cores - ROUNDING and type.memory >= memory - ROUNDING
        ]
        return min(fitting, key=lambda kind: (price_of_core(kind), kind.name), default=None)

    def lease(self, type: HostType, why: str) -> str:
        """Lease a new host and return its name. The draft keeps it after a `rollback`."""
        host = self.observation.host_name(self._leased)
        self._leased += 1
        self.leases[host] = Lease(host, type, self.observation.time)
        self._row[host] = len(self.hosts)
        self.hosts.append(host)
        self.cores = np.append(self.cores, type.cores)
        self.memory = np.append(self.memory, type.memory)
        self.speeds = np.append(self.speeds, type.speed)
        self.counts = np.concatenate([self.counts, np.zeros((1, len(self.units)), dtype=np.int64)])
        self.free_cores = np.append(self.free_cores, type.cores)
        self.free_memory = np.append(self.free_memory, type.memory)
        self.closed = np.append(self.closed, False)
        self.ready = np.append(self.ready, False)
        self.actions.append(LeaseHost(host, type.name, type.region, why=why))
        return host

    def placements(self, unit: Unit) -> tuple[tuple[TaskId, str], ...]:
        """Return (instance, host) of the observed instances of `unit`, in host order."""
        return tuple(
            (task, host)
            for host in self.hosts
            for task in self._tasks.get(host, ())
            if self._unit_of[task.operator] is unit
        )

    def spread_state(self) -> None:
        """Move tasks with state evenly over the running hosts, unless one is being emptied.

        Their number is fixed, and they stay where they are when hosts come.
        """
        leaving = any(lease.state is HostState.DRAINING for lease in self.observation.leases.values())
        if leaving or self.closed.any():
            return
        for move in balance(self.observation):
            if not self.unit_of(move.task).scalable:
                self.do(move)

    def holds_state_only(self, host: str) -> bool:
        """Return True if `host` holds only tasks with state, which can move anywhere."""
        return not any(self.unit_of(task).scalable for task in self.tasks_on(host))

    def value(self, unit: Unit, metric: Metric) -> float:
        return sum_of(self.observation.operators, metric, unit.operators)

    @cached_property
    def _tasks(self) -> dict[str, list[TaskId]]:
        names = tuple(self.observation.leases)
        tasks_on: dict[str, list[TaskId]] = {}
        for task, row in zip(self.observation.tasks.tasks, self.observation.tasks.host.tolist(), strict=True):
            if row >= 0:
                tasks_on.setdefault(names[row], []).append(task)
        return tasks_on

    @cached_property
    def _host_of(self) -> dict[TaskId, str]:
        return {task: host for host, tasks in self._tasks.items() for task in tasks}

    def _take_observed(self) -> None:
        tasks, operators = self.observation.tasks, self.observation.operators.ids
        placed_rows = tasks.operator[tasks.host >= 0]
        by_operator = dict(zip(operators, np.bincount(placed_rows, minlength=len(operators)).tolist(), strict=True))
        placed = {unit.name: sum(by_operator.get(name, 0) for name in unit.operators) for unit in self.units}
        if not self.hosts:
            return
        self.needs = {unit.name: self._observed_needs(unit, placed[unit.name]) for unit in self.units}
        by_row = np.array([self.needs[self._unit_of[name].name] for name in operators]).reshape(-1, 2)
        row_of_lease = np.array([self._row.get(host, -1) for host in self.observation.leases], dtype=np.int64)
        on = np.where(tasks.host >= 0, row_of_lease[tasks.host], -1)
        here = on >= 0
        columns = np.array([self.column[self._unit_of[name].name] for name in operators], dtype=np.int64)
        np.add.at(self.counts, (on[here], columns[tasks.operator[here]]), 1)
        self.free_cores -= np.bincount(on[here], by_row[tasks.operator[here], 0], len(self.hosts))
        self.free_memory -= np.bincount(on[here], by_row[tasks.operator[here], 1], len(self.hosts))
        observed = dict(zip(operators, np.bincount(tasks.operator, minlength=len(operators)).tolist(), strict=True))
        slot = float(self.cores.sum()) / sum(lease.type.slots for lease in self.leases.values())
        for unit in self.scalable:
            # A task without a host waits for one; floating instances have no task at all.
            self.floating[unit.name] = max(
                0, self.instances[unit.name] - sum(observed.get(name, 0) for name in unit.operators)
            )
            if self.floating[unit.name]:
                own = (
                    min(max(unit.cores, slot), float(self.cores.max()))
                    if self.observation.context.layout.unchained
                    else slot
                )
                self.needs[unit.name] = (own, unit.memory)
            elsewhere = max(0, self.instances[unit.name] - placed[unit.name])
            self.free_cores -= elsewhere * self.needs[unit.name][0] / len(self.hosts)
            self.free_memory -= elsewhere * self.needs[unit.name][1] / len(self.hosts)

    def _observed_needs(self, unit: Unit, tasks: int) -> tuple[float, float]:
        """Return (cores, megabytes) per task. Tasks with state share the slots of floating ones."""
        return (unit.cores, unit.memory) if unit.scalable or not tasks else (0.0, unit.memory / tasks)

    def do(self, action: Action) -> None:
        """Append an action. A change of instances is the last step of `add`, `remove` and `move`."""
        self.actions.append(action)
        self._undo.append(self.actions.pop)

    def _set(
        self, unit: Unit, instances: int, why: str, on: tuple[str, ...] = (), without: tuple[TaskId, ...] = ()
    ) -> None:
        before = self.instances[unit.name]
        self.instances[unit.name] = instances
        self._undo.append(lambda: self.instances.__setitem__(unit.name, before))
        self.do(SetParallelism(unit.name, instances, on=on, without=without, why=why))

    def _float(self, unit: Unit, instances: int, sign: float) -> None:
        """Subtract floating `instances` evenly from the open hosts; add them with `sign` -1."""
        hosts = ~self.closed
        if not instances or not hosts.any():
            return
        cores, memory = (sign * instances * need / hosts.sum() for need in self.needs[unit.name])
        self.free_cores[hosts] -= cores
        self.free_memory[hosts] -= memory

        def back() -> None:
            self.free_cores[: len(hosts)][hosts] += cores
            self.free_memory[: len(hosts)][hosts] += memory

        self._undo.append(back)

    def _take(self, unit: Unit, row: int, sign: float) -> None:
        cores, memory = self.needs[unit.name]
        self.free_cores[row] -= sign * cores
        self.free_memory[row] -= sign * memory
        self.counts[row, self.column[unit.name]] += int(sign)

    def _occupy(self, unit: Unit, host: str) -> None:
        row, cached = self._row[host], self._images.setdefault(host, set())
        fetched = set(unit.operators) - cached
        self._take(unit, row, 1)
        cached |= fetched
        if host not in self.received:
            self.received.add(host)
            self._undo.append(lambda: self.received.discard(host))
        self._undo += [lambda: self._take(unit, row, -1), lambda: cached.difference_update(fetched)]

    def _vacate(self, task: TaskId, unit: Unit) -> None:
        host = self._host_of[task]
        place = self._tasks[host].index(task)
        self._tasks[host].remove(task)
        self._undo += [lambda: self._tasks[host].insert(place, task), lambda: self._host_of.__setitem__(task, host)]
        if (row := self._row.get(host)) is not None:
            self._take(unit, row, -1)
            self._undo.append(lambda: self._take(unit, row, 1))
