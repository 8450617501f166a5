"""The rings by which state partitions are placed: which operator has one, and what a host that goes leaves to whom.

A ring is only a rule for the plan of `Placing`, one version of it for each change: what moves, and how, is decided there.
An operator without a ring of its own has one of all usable hosts at even tokens for its copies alone, so that standby
copies have an order under every policy.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from elastream.core.ring import Ring, in_zones
from elastream.core.task_id import TaskId
from elastream.spark.placement.placing import Placing


class Rings:
    """Rings by operator. Thread-safe. usable: hosts that take tasks; zone: fault zone of a host."""

    def __init__(self, placing: Placing, usable: Callable[[], Sequence[str]], zone: Callable[[str], str]) -> None:
        self._placing, self._usable, self._zone = placing, usable, zone
        self._lock = threading.Lock()
        self._rings: Mapping[str, Ring] = {}
        self._even_of: tuple[Mapping[str, str], Ring | None] = {}, None

    @property
    def standing(self) -> Mapping[str, Ring]:
        """The rings that were set, of hosts that are left and of operators whose queries run."""
        running = self._placing.partitions
        return {name: ring for name, ring in self._rings.items() if name in running}

    def of(self, operator: str) -> Ring | None:
        """The ring of `operator`: the one that was set, else all usable hosts at even tokens; None without any host."""
        found = self._rings.get(operator)
        return self._even() if found is None else found

    def heirs(self, task: TaskId, at: str) -> Sequence[str]:
        """Hosts that are to take `task`, which is at `at`, if that is lost: its neighbours clockwise, nearest first.

        A host that is not on the ring has the neighbours of the one that the task belongs to, and that one before them.
        """
        ring = self.of(task.operator)
        if ring is None or at in ring:
            return () if ring is None else ring.successors(at, len(ring))
        owner = ring.owner(task.index / self._placing.partitions[task.operator])
        return (owner, *ring.successors(owner, len(ring)))

    def _even(self) -> Ring | None:
        """All usable hosts at even tokens; None without any."""
        zones = {host: self._zone(host) for host in self._usable()}
        before, ring = self._even_of
        if list(zones.items()) != list(before.items()):
            ring = Ring.even(in_zones(zones)) if zones else None
            self._even_of = zones, ring
        return ring

    def owner(self, task: TaskId) -> str | None:
        """The host that `task` belongs to by the ring that was set for its operator; None where none was."""
        ring, count = self._rings.get(task.operator), self._placing.partitions.get(task.operator)
        return None if ring is None or count is None else ring.owner(task.index / count)

    def follow(self, operator: str, ring: Ring, ran: Mapping[TaskId, str], why: str) -> int:
        """Place the state partitions of `operator` by `ring`, as one version of the plan; returns how many are to move.

        ran: host that each task ran on last.
        """
        with self._lock:
            self._rings = {**self._rings, operator: ring}
        hosts = ring.hosts_of(self._placing.partitions[operator])
        wishes = {TaskId(operator, index): host for index, host in enumerate(hosts)}
        wanted = self._placing.wanted()
        there = {task for task, host in wishes.items() if wanted.get(task, ran.get(task)) == host}
        self._placing.want_all(wishes, why, there=there)
        return len(wishes) - len(there)

    def forget(self, operator: str) -> None:
        """Its state partitions are placed otherwise from now on."""
        with self._lock:
            self._rings = {name: ring for name, ring in self._rings.items() if name != operator}

    def leave(self, host: str) -> None:
        """Take `host` off every ring: its keys are its neighbour's, clockwise."""
        self._keep(lambda node: node != host)

    def keep(self, present: Collection[str]) -> Mapping[TaskId, str]:
        """Take all hosts but `present` off every ring; the new host of each state partition that was theirs."""
        before = self._rings
        self._keep(lambda node: node in present)
        found: dict[TaskId, str] = {}
        for operator, ring in self._rings.items():
            count = self._placing.partitions.get(operator)
            if ring is before.get(operator) or count is None:
                continue
            pairs = zip(before[operator].hosts_of(count), ring.hosts_of(count), strict=True)
            found |= {TaskId(operator, index): new for index, (old, new) in enumerate(pairs) if old not in present}
        return found

    def _keep(self, stays: Callable[[str], bool]) -> None:
        with self._lock:
            self._rings = {name: left for name, ring in self._rings.items() if (left := _left(ring, stays)) is not None}


def _left(ring: Ring, stays: Callable[[str], bool]) -> Ring | None:
    """`ring` without the hosts that do not stay; None where none does."""
    going = [node for node in ring.nodes if not stays(node)]
    if len(going) == len(ring):
        return None
    for node in going:
        ring = ring.without(node)
    return ring
