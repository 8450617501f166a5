"""What the managers want of replicas, as actions on a plant."""

import math
from collections.abc import Sequence

from elastream.model.action import Action, MoveTask, SetParallelism, TaskId
from elastream.model.metrics import Metric
from elastream.model.observation import Observation
from elastream.planning.algorithms.measures import host_capacity
from elastream.planning.managers.columns import Snapshot
from elastream.planning.managers.seen import floating, width

__all__ = ["ReplicaActions"]


class ReplicaActions:
    """Replicas as the plant knows them: instances whose number is set, or a host's share of tasks, which are moved."""

    def __init__(self, observation: Observation, snapshot: Snapshot) -> None:
        self.observation = observation
        self.snapshot = snapshot

    def add(self, operator: str, count: int, host: str, why: str) -> list[Action]:
        """One replica more, `count` in all, on `host` (empty: anywhere).

        A host holds one replica of a fixed number of tasks: one more is on a host without, and none where there is no such.
        It takes its share of them from those hosts that hold most of them for what they can do.
        """
        if self._scalable(operator):
            return [SetParallelism(operator, count, on=(host,) if host else (), why=why)]
        held = self._held(operator)
        if host in held:
            hosts, others = self.observation.hosts, self.without(operator)
            used = {other: hosts.value(other, Metric.CPU) for other in others}
            host = min(others, key=lambda other: (math.isnan(used[other]), used[other]), default="")
        if not host:
            return []
        share = max(1, sum(map(len, held.values())) // count)
        moves: list[Action] = []
        while len(moves) < share:
            giver = max(held, key=lambda each: self._load(each, len(held[each])))
            if not self._load(giver, len(held[giver])) > self._load(host, len(moves) + 1):
                break  # as many hosts as tasks, and none of them slower than this one
            moves.append(MoveTask(held[giver].pop(), host, why=why))
        return moves

    def without(self, operator: str) -> list[str]:
        """Usable hosts that hold none of an operator's tasks."""
        held = self._held(operator)
        return [host for host in self.observation.usable if host not in held]

    def remove(self, operator: str, count: int, replica: int, why: str, growth: float) -> list[Action]:
        """One replica fewer, `count` in all: the one in row `replica`.

        growth: none where tasks are whole and one of the others would be used more than so many times as much.
        """
        replicas = self.snapshot.replicas
        if self._scalable(operator):
            placed = replicas.host[replica] >= 0
            gone = (TaskId(operator, int(replicas.index[replica])),) if placed else ()
            return [SetParallelism(operator, count, without=gone, why=why)]
        held = self._held(operator)
        most = max(self._load(each, len(tasks)) for each, tasks in held.items())
        moves: list[Action] = []
        for task in held.pop(self.snapshot.hosts.names[int(replicas.host[replica])]):
            taker = min(held, key=lambda each: self._load(each, len(held[each]) + 1))
            held[taker].append(task)
            moves.append(MoveTask(task, taker, why=why))
        return moves if max(self._load(each, len(tasks)) for each, tasks in held.items()) <= growth * most else []

    def move(self, replica: int, host: str, why: str) -> list[Action]:
        """The replica in row `replica` to `host`."""
        replicas = self.snapshot.replicas
        operator = self.snapshot.operators.names[int(replicas.operator[replica])]
        if self._scalable(operator):
            return [MoveTask(TaskId(operator, int(replicas.index[replica])), host, why=why)]
        return [
            MoveTask(task, host, why=why)
            for task in self._held(operator)[self.snapshot.hosts.names[int(replicas.host[replica])]]
        ]

    def within_slots(self, actions: Sequence[Action]) -> list[Action]:
        """`actions` with no operator whose instances stand nowhere left with more of them than there are slots."""
        observation = self.observation
        slots = max(1, sum(observation.leases[host].type.slots for host in observation.usable))
        wanted = {action.operator: action for action in actions if isinstance(action, SetParallelism)}
        kept: list[Action] = [action for action in actions if not isinstance(action, SetParallelism)]
        for row in floating(observation):
            operator, now = observation.operators.ids[row], int(width(observation, row))
            asked = wanted.pop(operator, None)
            if (asked.instances if asked else now) <= slots:
                kept += [asked] if asked else []
            elif now != slots:
                kept.append(SetParallelism(operator, slots, why=f"there are {slots} slots"))
        return [*kept, *wanted.values()]

    def _scalable(self, operator: str) -> bool:
        return operator in self.observation.context.scalable

    def _load(self, host: str, tasks: int) -> float:
        """How much so many tasks use a host, over what one uses a core of speed 1."""
        return tasks / host_capacity(self.observation, host)

    def _held(self, operator: str) -> dict[str, list[TaskId]]:
        """Tasks of an operator by host."""
        names, tasks = self.observation.hosts.ids, self.observation.tasks
        found: dict[str, list[TaskId]] = {}
        for task, row in zip(tasks.tasks, tasks.host.tolist(), strict=True):
            if task.operator == operator and row >= 0:
                found.setdefault(names[row], []).append(task)
        return found
