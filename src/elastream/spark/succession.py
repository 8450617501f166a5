"""Who takes a state partition whose executor is lost: the driver's JVM knows beforehand, and the plan learns afterwards.

The ring of an operator says it (`elastream.spark.placement.ring`): what a host holds goes to its neighbours clockwise, and
of those the nearest that lives takes it.

What follows from a loss, by who does it:

    Spark        fails the tasks that ran there, forgets the shuffle files that it wrote, and posts an event
    Recovery     (JVM) puts its partitions and the tasks that wait for it on the first living successor
    look         takes over where they are now; where the host is lost for good, the plan says so as well, in one version;
                 while a host's provider says that it is gone and Spark does not, who follows it stays as it was
    Placing      nothing is under way: partitions are where the plan says; once a policy wants them elsewhere, they move

An executor that was lost on a host that lives comes back within seconds. The plan still names that host, so that its
partitions return to it as any other that Spark ran elsewhere.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from py4j.protocol import Py4JError

from elastream.core.hosts import HostState
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.spark.hosts.book import HostBook
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.recovery import Followed, Loss, Recovery
from elastream.spark.placement.placing import Placing
from elastream.spark.placement.ring import Rings
from elastream.spark.queries.query import Query

log = logging.getLogger(__name__)

GONE = (HostState.LOST, HostState.RELEASED)
KEPT = 100
"""Losses that are remembered, for whoever asks."""


class Succession:
    """Keeps `recovery` told, and `placing` true. `look` is called by the reconciler's thread; the rest from any.

    live: the queries that run. copies: hosts that hold a copy of a task's state, the one furthest ahead first; they come
    before all others. replicas: copies that are wanted of each. losses: the newest KEPT, oldest first.
    """

    def __init__(
        self,
        recovery: Recovery,
        live: Callable[[], Sequence[Query]],
        hosts: HostBook,
        placing: Placing,
        rings: Rings,
        copies: Callable[[], Mapping[TaskId, Sequence[str]]] = dict,
        replicas: Callable[[], int] = lambda: 0,
    ) -> None:
        self._recovery, self._live, self._hosts, self._placing = recovery, live, hosts, placing
        self._rings, self._copies, self._replicas = rings, copies, replicas
        self._named: dict[tuple[str, tuple[int, ...]], str] = {}
        self._followed_copies: Mapping[TaskId, Sequence[str]] = {}
        """Copies as they were when `recovery` was last told who follows whom."""
        self._heirs: Mapping[tuple[TaskId, str], Sequence[str]] = {}
        """What it was told, by task and the executor that the task was at."""
        self.losses: tuple[Loss, ...] = ()
        self._were: Mapping[str, str] = {}
        """Host by executor, as they were when it was last looked."""
        self._told: deque[str] = deque(maxlen=KEPT)
        recovery.start()

    def look(self) -> None:
        """Take over what was lost since the last look, and say who follows whom from now on. Raises Py4JError."""
        for loss in self._recovery.losses():
            self._take(loss)
        self._were = self._hosts.host_of()
        self._forget_lost_hosts()
        self._recovery.follow(tuple(self._followed()))

    def told(self) -> Sequence[str]:
        """A sentence for each executor that was lost with what it held, since this was last asked."""
        return [self._told.popleft() for _ in range(len(self._told))]

    def close(self) -> None:
        """Leave lost executors to Spark again."""
        try:
            self._recovery.close()
        except (Py4JError, OSError):
            log.debug("the session had gone before", exc_info=True)

    def _take(self, loss: Loss) -> None:
        self.losses = (*self.losses, loss)[-KEPT:]
        moved = {
            TaskId(self._named[run, operators], partition): Location("", executor)
            for (run, operators, partition), executor in loss.moved.items()
            if (run, operators) in self._named
        }
        self._placing.found(moved)
        # As they were when the driver was told: a copy that a task has taken since is no copy any more.
        copies, host_of = self._followed_copies, self._hosts.host_of()
        expected = copies or self._replicas()
        cold = sum(host_of.get(at.executor) not in copies.get(task, ()) for task, at in moved.items()) if expected else 0
        read = f" ({cold} of which have no copy there and are read from the checkpoint)" if cold else ""
        log.log(
            logging.WARNING if moved or loss.waiting else logging.DEBUG,  # a host that was released held nothing
            "executor %s is lost (%s): %d state partitions put on its successors%s, %d waiting tasks elsewhere, in %.3f s",
            loss.executor, loss.reason, len(moved), read, loss.waiting, loss.took,
        )  # fmt: skip
        if moved or loss.waiting:
            of = f" of {host}" if (host := self._were.get(loss.executor, "")) else ""
            took = f": {counted(len(moved), 'state partition')} went to others" if moved else ""
            self._told.append(f"executor {loss.executor}{of} was lost ({loss.reason}){took}")
        if loss.fault:
            log.warning("executor %s is lost, and not all was done that could be: %s", loss.executor, loss.fault)

    def _forget_lost_hosts(self) -> None:
        """Plan what was planned on hosts that are gone for good where it is now."""
        where, host_of, usable = self._placing.where(), self._hosts.host_of(), frozenset(self._hosts.usable)
        found: dict[str, dict[TaskId, str]] = {}
        for task, planned in self._placing.plan.latest.hosts.items():
            if self._hosts.state(planned) in GONE and task in where and host_of.get(where[task].executor) in usable:
                found.setdefault(planned, {})[task] = host_of[where[task].executor]
        for host, tasks in found.items():
            self._placing.keep(tasks, f"{host} is lost")

    def _followed(self) -> Sequence[Followed]:
        where, host_of, copies = self._placing.where(), self._hosts.host_of(), self._copies()
        self._followed_copies = copies
        usable = {name: target.executor for name in self._hosts.usable if (target := self._hosts.target(name)) is not None}
        before, heirs = self._heirs, dict[tuple[TaskId, str], Sequence[str]]()

        def heirs_of(task: TaskId) -> Sequence[str]:
            at = where.get(task)
            if at is None:
                return ()
            if (host := host_of.get(at.executor)) is None:
                # Gone by what its provider says: Spark hears of it later, and what it was to do then must still hold.
                found = before.get((task, at.executor), ())
            else:
                names = dict.fromkeys((*copies.get(task, ()), *self._rings.heirs(task, host)))
                found = [usable[name] for name in names if name in usable and name != host]
            heirs[task, at.executor] = found
            return found

        found = []
        self._named = {}
        for query in self._live():
            if query.run_id is None:
                continue
            for name, stage in (query.stages or {}).items():
                self._named[query.run_id, tuple(each.id for each in stage.operators)] = name
                tasks = (TaskId(name, partition) for partition in range(stage.partitions))
                found.append(Followed(query.run_id, stage, [heirs_of(task) for task in tasks]))
        self._heirs = heirs
        return found
