"""The thread that steps a run along: it follows the queries' batches, and moves tasks and hosts on with them.

What a policy asked for takes time - a move lands with a batch, a host comes and goes in seconds - and a plant must answer
at once. So the plant only notes what is wanted, in `placing` and `hosts`; the steward sees to it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.model.action import TaskId
from elastream.model.cloud import HostState
from elastream.model.errors import ElastreamError
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.state_partitions import Location
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.compiled import RunningSegment
from elastream.spark.telemetry.rounds import Rounds

__all__ = ["STEP", "Steward"]

STEP = 0.05
"""Seconds between two looks at the queries: what a batch's end may go unnoticed for."""
PLAN_STEP = 1.0
"""Seconds between two looks into the plan for what others wrote there (N-Storm's T_S; STEP is its T_W). What this process
writes is known at once."""
HOST_STEP, QUIET_STEP = 0.25, 1.0
"""Seconds between two looks at the hosts, which cost a few gateway calls each: while one comes or goes, and otherwise."""


class Steward:
    """Steps hosts and moves along from `start` until `stop`."""

    def __init__(
        self,
        running: Sequence[RunningSegment],
        hosts: Hosts,
        placing: Placing,
        clock: Callable[[], float],
    ) -> None:
        self._running, self._hosts, self._placing, self._clock = tuple(running), hosts, placing, clock
        self._ended = [-1] * len(self._running)
        self._rounds = Rounds()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._step_along, name="steward", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Leave everything as it is; returns when nothing is stepped any more."""
        self._stopping.set()
        self._thread.join(10)
        self._placing.close()

    def held(self) -> dict[TaskId, str]:
        """Host of each placed task, moves under way counted as done."""
        named = {self._hosts.address(name): name for name, lease in self._hosts.leases.items() if lease.there}
        held = {task: named[at.address] for task, at in self._placing.where().items() if at.address in named}
        return held | dict(self._placing.wanted())

    def empty(self, host: str) -> None:
        """Want everything that `host` holds, or is about to get, elsewhere: always on the host that has the least."""
        held, others = self.held(), self._others(host)
        if not others:
            return
        cores = {name: self._hosts.leases[name].type.cores * self._hosts.leases[name].type.speed for name in others}
        load = {name: sum(where == name for where in held.values()) / cores[name] for name in others}
        for task, where in held.items():
            if where == host:
                target = min(load, key=lambda name: (load[name], name))
                load[target] += 1 / cores[target]
                self._placing.want(task, target)

    def release(self, host: str) -> bool:
        """Send a host on its way out, what it holds to the others; False where there is no other that takes tasks."""
        if not self._others(host):
            return False
        self._hosts.release(host)
        self.empty(host)
        return True

    def _others(self, host: str) -> tuple[str, ...]:
        """Hosts that take tasks, without `host`."""
        return tuple(name for name in self._hosts.usable if name != host)

    def _step_along(self) -> None:
        next_look = next_plan = 0.0
        while not self._stopping.wait(STEP):
            try:
                if self._clock() >= next_plan:
                    self._placing.adopt()
                    next_plan = self._clock() + PLAN_STEP
                self._follow_batches()
                if self._clock() >= next_look:
                    ended = dict(enumerate(self._ended))
                    idle = {number for number in ended if _idle(self._running[number].query)}
                    self._rounds.look(ended, idle)
                    self._hosts.look()
                    self._give_back()
                    self._keep_emptying()
                    self._hosts.step(batch=self._rounds.count, idle=len(idle) == len(ended), holds=self._holds)
                    next_look = self._clock() + (QUIET_STEP if self._hosts.settled else HOST_STEP)
            except (Py4JError, PySparkException, OSError, ElastreamError):
                if self._stopping.is_set():
                    return
                # A query that has just stopped, or a host that has just gone, answers with an error. The next look at it
                # tells: the plant's `finished` of the query, the provider of the host.

    def _follow_batches(self) -> None:
        ended = [_last_batch(each.query) for each in self._running]
        for each, batch, before in zip(self._running, ended, self._ended, strict=True):
            if batch != before and each.keyed:
                self._placing.batch_ended(each.keyed, batch, self._target)
        self._ended = ended

    def _give_back(self) -> None:
        """Whoever owns the hosts has the last word on who may use them, whatever the policy makes of it."""
        for host in self._hosts.recalled:
            if not self.release(host):
                self._hosts.keep(host)

    def _keep_emptying(self) -> None:
        """Hosts on their way out give their tasks away until they hold none: a move of theirs may have been dropped."""
        for name, lease in self._hosts.leases.items():
            if lease.state in (HostState.DRAINING, HostState.RELEASING):
                self.empty(name)

    def _target(self, host: str) -> Location | None:
        lease = self._hosts.leases.get(host)  # the plan may name a host of another run
        executor = self._hosts.executor(host) if lease is not None and lease.state is HostState.RUNNING else None
        return None if executor is None else Location(executor.host, executor.id)

    def _holds(self, host: str) -> bool:
        address = self._hosts.address(host)
        return any(at.address == address for at in self._placing.where().values())


def _last_batch(query: Any) -> int:
    progress = query._jsq.lastProgress()
    return -1 if progress is None else int(progress.batchId())


def _idle(query: Any) -> bool:
    status = query.status
    return not status["isTriggerActive"] and not status["isDataAvailable"]
