"""Failover of a lost executor's state partitions: the JVM knows the successors in advance; the plan is updated afterwards.

The nearest living neighbour clockwise takes over. If the host lives, its executor comes back and its partitions return.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from py4j.protocol import Py4JError

from elastream.core.hosts import HostState
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.spark.hosts.hosts import HostLedger
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.recovery import Loss, Recovery, StageSuccessors
from elastream.spark.placement.placing import Placing, Rings
from elastream.spark.queries.query import Query

log = logging.getLogger(__name__)

# Who does what after a loss:
#
#   Spark        fails the executor's tasks, forgets its shuffle files, and posts an event
#   Recovery     (JVM) moves its partitions and waiting tasks to the first living successor
#   look         adopts the new locations; if the host is lost for good, plans them, in one version.
#                While only the provider knows of a lost host, successors stay as they were.
#   Placing      starts no migration: partitions are where the plan says
#
# A task without state (`Recovery.java` has what happens within a batch):
#
#   its host is planned                 `look` names the executor; from the next batch on it runs there
#   the host drains, or others fill it  `look` names none: it runs anywhere, and returns if the host takes tasks again
#   the host is lost                    the same; the plan keeps the name, which no other host gets

GONE = (HostState.LOST, HostState.RELEASED)
MAX_LOSSES = 100


class FailoverPlan:
    """Keeps the JVM's successors and `placing` up to date. The reconciler calls `look`; any thread the rest.

    `losses` has the newest losses, oldest first.
    """

    def __init__(
        self,
        recovery: Recovery,
        live: Callable[[], Sequence[Query]],
        hosts: HostLedger,
        placing: Placing,
        rings: Rings,
        standby: Callable[[], Mapping[TaskId, Sequence[str]]],
        replicas: Callable[[], int],
    ) -> None:
        """Start acting on lost executors. Hosts with a replica (`standby`) come before ring successors."""
        self._recovery, self._live, self._hosts, self._placing = recovery, live, hosts, placing
        self._rings, self._replica_hosts, self._target_replicas = rings, standby, replicas
        self._names: dict[tuple[str, tuple[int, ...]], str] = {}
        # As of the last call of `recovery`; successors keyed by task and the executor that it was at.
        self._sent_replica_hosts: Mapping[TaskId, Sequence[str]] = {}
        self._successors: Mapping[tuple[TaskId, str], Sequence[str]] = {}
        self.losses: tuple[Loss, ...] = ()
        self._previous_hosts: Mapping[str, str] = {}
        self._messages: deque[str] = deque(maxlen=MAX_LOSSES)
        recovery.start()

    def look(self) -> None:
        """Adopt losses since the last look, and send the current successors. Raises Py4JError."""
        losses = self._recovery.losses()
        if losses and self._recovery.over:
            return  # no executor is lost: all end with the session
        for loss in losses:
            self._adopt(loss)
        self._previous_hosts = self._hosts.host_of()
        self._replan_lost_hosts()
        self._recovery.follow(tuple(self._current_successors()))
        self._recovery.place(self._planned_executors())
        places = map(self._hosts.target, self._rings.even_order())
        self._recovery.spread([each.executor for each in places if each is not None])

    def drain_messages(self) -> Sequence[str]:
        """Return a sentence for each loss of a busy executor since the last call."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def close(self) -> None:
        try:
            self._recovery.close()
        except (Py4JError, OSError):
            log.debug("the session was already closed", exc_info=True)

    def _adopt(self, loss: Loss) -> None:
        self.losses = (*self.losses, loss)[-MAX_LOSSES:]
        relocated = {
            TaskId(self._names[run, operators], partition): Location("", executor)
            for (run, operators, partition), executor in loss.moved.items()
            if (run, operators) in self._names
        }
        self._placing.relocate(relocated)
        # As of the last call. A replica that a task opened since then no longer exists.
        replica_hosts, host_of = self._sent_replica_hosts, self._hosts.host_of()
        expected = replica_hosts or self._target_replicas()
        warm = sum(host_of.get(at.executor) in replica_hosts.get(task, ()) for task, at in relocated.items())
        cold = len(relocated) - warm if expected else 0
        read = f" ({cold} of which have no copy there and are read from the checkpoint)" if cold else ""
        log.log(
            logging.WARNING if relocated or loss.waiting else logging.DEBUG,  # a released host held nothing
            "executor %s is lost (%s): %d state partitions put on its successors%s, %d waiting tasks elsewhere, in %.3f s",
            loss.executor, loss.reason, len(relocated), read, loss.waiting, loss.took,
        )  # fmt: skip
        if relocated or loss.waiting:
            of = f" of {host}" if (host := self._previous_hosts.get(loss.executor, "")) else ""
            took = f": {counted(len(relocated), 'state partition')} went to others" if relocated else ""
            self._messages.append(f"executor {loss.executor}{of} was lost ({loss.reason}){took}")
        if loss.fault:
            log.warning("executor %s is lost; a part of its failover failed: %s", loss.executor, loss.fault)

    def _replan_lost_hosts(self) -> None:
        where, host_of, usable = self._placing.where(), self._hosts.host_of(), frozenset(self._hosts.usable)
        moves: dict[str, dict[TaskId, str]] = {}
        for task, planned in self._placing.plan.latest.hosts.items():
            if self._hosts.state(planned) in GONE and task in where and host_of.get(where[task].executor) in usable:
                moves.setdefault(planned, {})[task] = host_of[where[task].executor]
        for host, tasks in moves.items():
            self._placing.pin(tasks, f"{host} is lost")

    def _planned_executors(self) -> Mapping[str, Sequence[str]]:
        planned: dict[str, dict[int, str]] = {}
        for task, host in self._placing.plan.latest.hosts.items():
            if (target := self._hosts.takes(host)) is not None:
                planned.setdefault(task.operator, {})[task.index] = target.executor
        return {
            query.run_id: [places.get(index, "") for index in range(max(places) + 1)]
            for query in self._live()
            if query.run_id is not None and not query.unplaced and (places := planned.get(query.stateless))
        }

    def _current_successors(self) -> Sequence[StageSuccessors]:
        where, host_of, replica_hosts = self._placing.where(), self._hosts.host_of(), self._replica_hosts()
        self._sent_replica_hosts = replica_hosts
        usable = {name: target.executor for name in self._hosts.usable if (target := self._hosts.target(name)) is not None}
        before, by_location = self._successors, dict[tuple[TaskId, str], Sequence[str]]()

        def successors_of(task: TaskId) -> Sequence[str]:
            if (at := where.get(task)) is None:
                return ()
            if (host := host_of.get(at.executor)) is None:
                # Only its provider reports it gone: when Spark notices, these successors must still hold.
                successors = before.get((task, at.executor), ())
            else:
                names = dict.fromkeys((*replica_hosts.get(task, ()), *self._rings.successors(task, host)))
                successors = [usable[name] for name in names if name in usable and name != host]
            by_location[task, at.executor] = successors
            return successors

        self._names, stages = {}, []
        for query in self._live():
            if query.run_id is None:
                continue
            for name, stage in (query.stages or {}).items():
                self._names[query.run_id, tuple(each.id for each in stage.operators)] = name
                tasks = (TaskId(name, partition) for partition in range(stage.partitions))
                stages.append(StageSuccessors(query.run_id, stage, [successors_of(task) for task in tasks]))
        self._successors = by_location
        return stages
