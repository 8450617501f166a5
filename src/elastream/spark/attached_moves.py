"""Takes state partitions of watched queries to where they are wanted, between one batch and the next.

Moves are told to Spark right after a batch has ended, so a thread waits for that end while any is on its way, and does
nothing while none is. Who wants what where is not decided here, except what leaves with a host: that goes where there is
the least load.
"""

import threading
from collections.abc import Callable, Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.model.action import MoveTask, Outcome, Status, TaskId
from elastream.model.cloud import HostState
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.placement.placing import Limits, Placing
from elastream.spark.queries.watched import Loads, WatchedQueries

__all__ = ["FEW", "Moves"]

STEP, LONG_STEP, RECENTLY = 0.1, 1.0, 10.0
"""Seconds between two looks for the end of a batch, while tasks wait to be moved; the longer ones where no batch of the
query has ended for the last RECENTLY seconds."""
FEW = Limits(per_host=4, lazy=False)
"""Partitions that one batch may load on one executor: their state is read by the batch that needs it, one after another."""
CALM = 0.1
"""Seconds that the thread waits before it looks whether there is something to do at all."""


class Moves:
    """State partitions of `queries` on `hosts`, by way of `placing`. Close it; what has moved stays there."""

    def __init__(self, placing: Placing, queries: WatchedQueries, hosts: Hosts, clock: Callable[[], float]) -> None:
        self._placing, self._queries, self._hosts, self._clock = placing, queries, hosts, clock
        self._weights: Mapping[TaskId, float] = {}
        placing.benefit = self._load_of
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._move_along, name="elastream-moves", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Move nothing any more."""
        self._closing.set()
        self._thread.join(5)
        self._placing.close()

    def weigh(self, loads: Mapping[str, Loads]) -> None:
        """Take what the tasks of each operator take; the heaviest go first."""
        self._weights = {
            TaskId(name, p): each for name, row in loads.items() for p, each in enumerate(row.busy.tolist()) if each > 0
        }

    def ran(self) -> dict[TaskId, str]:
        """Host that each task ran on last, where both are known."""
        hosts = self._hosts.host_of()
        return {task: hosts[e] for query in self._queries.live for task, e in query.ran.items() if e in hosts}

    def held(self) -> dict[TaskId, str]:
        """The same, with migrations under way counted as done."""
        wanted = self._placing.wanted()
        return self.ran() | dict(wanted)

    def apply(self, action: MoveTask) -> Outcome:
        """Want a task on a host, or say why not."""
        task, host = action.task, action.host
        if task not in self._placing.tasks:
            return Outcome(action, Status.REFUSED, f"there is no task {task}")
        if refusal := self._hosts.expect(action, host, HostState.RUNNING):
            return refusal
        if task not in self._placing.wanted() and self.ran().get(task) == host:
            return Outcome(action, Status.DONE)
        self._placing.want(task, host, action.why)
        return Outcome(action, Status.ACCEPTED)

    def empty(self, host: str) -> None:
        """Want everything on `host` elsewhere, the heaviest first, always where it leaves the least load a core."""
        held, leases = self.held(), self._hosts.leases
        others = [name for name in self._hosts.usable if name != host]
        if not others:
            return
        load = dict.fromkeys(others, 0.0)
        for task, where in held.items():
            if where in load:
                load[where] += self._load_of(task)
        wishes: dict[TaskId, str] = {}
        for task in sorted((t for t, where in held.items() if where == host), key=lambda t: (-self._load_of(t), t)):
            weight = self._load_of(task) or 1e-9  # equal, and next to nothing, where it is not known
            target = min(others, key=lambda name: ((load[name] + weight) / leases[name].type.cores, name))
            load[target] += weight
            wishes[task] = target
        if wishes:
            self._placing.want_all(wishes, f"{self._hosts.describe(host)} is leaving")

    def _load_of(self, task: TaskId) -> float:
        return self._weights.get(task, 0.0)

    def _move_along(self) -> None:
        """The thread. It costs nothing while nothing waits."""
        ended: dict[str, int] = {}
        last_end = self._clock()
        pause = CALM
        while not self._closing.wait(pause):
            waiting = {task.operator for task in self._placing.wanted()}
            pause = CALM
            if not waiting:
                continue
            pause = STEP if self._clock() - last_end < RECENTLY else LONG_STEP
            for query in self._queries.live:
                if waiting.isdisjoint(query.operators):
                    continue
                try:
                    batch = query.last_batch()
                    if batch != ended.get(query.id):
                        ended[query.id], last_end = batch, self._clock()
                        self._placing.batch_ended(query.operators, batch, self._hosts.target)
                except (Py4JError, PySparkException, OSError, AttributeError, KeyError):
                    # A query that ends, or a session that is stopped, in the middle of it: the next look tells.
                    continue
