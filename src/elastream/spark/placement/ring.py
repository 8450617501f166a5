"""The rings that place state partitions, by operator, and the successors of a lost host.

An operator without a ring has an implicit one of all usable hosts at even tokens, which orders its standby replicas.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from elastream.core.ring import Ring, in_zones
from elastream.core.task_id import TaskId
from elastream.spark.placement.placing import Placing


class Rings:
    """Rings by operator. Thread-safe."""

    def __init__(self, placing: Placing, usable: Callable[[], Sequence[str]], zone: Callable[[str], str]) -> None:
        """Create without rings. `usable` returns the hosts that take tasks, `zone` a host's fault zone."""
        self._placing, self._usable, self._zone = placing, usable, zone
        self._lock = threading.Lock()
        self._rings: Mapping[str, Ring] = {}
        self._even_of: tuple[Mapping[str, str], Ring | None] = {}, None

    @property
    def active(self) -> Mapping[str, Ring]:
        """Return the rings that were set, for operators whose queries run."""
        running = self._placing.partitions
        return {name: ring for name, ring in self._rings.items() if name in running}

    def of(self, operator: str) -> Ring | None:
        """Return the ring that was set for `operator`, else the implicit one; None without any host."""
        ring = self._rings.get(operator)
        return self._even() if ring is None else ring

    def successors(self, task: TaskId, at: str) -> Sequence[str]:
        """Return the hosts to take `task` over if its host `at` is lost: clockwise neighbours, nearest first.

        For a host off the ring, the task's owner comes first.
        """
        ring = self.of(task.operator)
        if ring is None or at in ring:
            return () if ring is None else ring.successors(at, len(ring))
        owner = ring.owner(task.index / self._placing.partitions[task.operator])
        return (owner, *ring.successors(owner, len(ring)))

    def _even(self) -> Ring | None:
        zones = {host: self._zone(host) for host in self._usable()}
        before, ring = self._even_of
        if list(zones.items()) != list(before.items()):
            ring = Ring.even(in_zones(zones)) if zones else None
            self._even_of = zones, ring
        return ring

    def owner(self, task: TaskId) -> str | None:
        """Return the owner of `task` by the ring that was set for its operator; None without one."""
        ring, count = self._rings.get(task.operator), self._placing.partitions.get(task.operator)
        return None if ring is None or count is None else ring.owner(task.index / count)

    def follow(self, operator: str, ring: Ring, last_hosts: Mapping[TaskId, str], why: str) -> int:
        """Place the partitions of `operator` by `ring`, as one version of the plan; return how many must move."""
        with self._lock:
            self._rings = {**self._rings, operator: ring}
        hosts = ring.hosts_of(self._placing.partitions[operator])
        placement = {TaskId(operator, index): host for index, host in enumerate(hosts)}
        targets = self._placing.targets()
        there = {task for task, host in placement.items() if targets.get(task, last_hosts.get(task)) == host}
        self._placing.move_all(placement, why, there=there)
        return len(placement) - len(there)

    def forget(self, operator: str) -> None:
        """Drop the ring of `operator`: its partitions are placed otherwise."""
        with self._lock:
            self._rings = {name: ring for name, ring in self._rings.items() if name != operator}

    def leave(self, host: str) -> None:
        """Take `host` off every ring; its clockwise neighbour owns its keys."""
        self._reduce(lambda node: node != host)

    def retain(self, present: Collection[str]) -> Mapping[TaskId, str]:
        """Take all hosts but `present` off every ring; return the new host of each orphaned partition."""
        before = self._rings
        self._reduce(lambda node: node in present)
        orphaned: dict[TaskId, str] = {}
        for operator, ring in self._rings.items():
            count = self._placing.partitions.get(operator)
            if ring is before.get(operator) or count is None:
                continue
            pairs = zip(before[operator].hosts_of(count), ring.hosts_of(count), strict=True)
            orphaned |= {TaskId(operator, index): new for index, (old, new) in enumerate(pairs) if old not in present}
        return orphaned

    def _reduce(self, stays: Callable[[str], bool]) -> None:
        with self._lock:
            self._rings = {name: left for name, ring in self._rings.items() if (left := _reduced(ring, stays)) is not None}


def _reduced(ring: Ring, stays: Callable[[str], bool]) -> Ring | None:
    going = [node for node in ring.nodes if not stays(node)]
    if len(going) == len(ring):
        return None
    for node in going:
        ring = ring.without(node)
    return ring
