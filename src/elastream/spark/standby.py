"""Warm standby: which hosts keep copies of which state partitions, kept up to date as hosts and partitions come and go.

A partition's copies are kept by the hosts that follow its own clockwise on its operator's ring, as many as there are
replicas, and by the one that it is about to move to. Whoever it has come to keeps its copy until a task opens it there; the
host lets it go by itself then.
"""

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
from py4j.protocol import Py4JError

from elastream.core.observation import Standby
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.copies import NO_DESK, Copies, CopiesDesk, KeptCopy
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.placing import Placing
from elastream.spark.placement.ring import Rings

log = logging.getLogger(__name__)


class WarmStandby:
    """Keeps `replicas` copies of each state partition of `placing`. The reconciler calls `look`; any thread the rest.

    desk: of the session; None where it has none. replicas: may be set at any time, and holds from the next look on.
    """

    def __init__(self, desk: CopiesDesk | None, hosts: Hosts, placing: Placing, rings: Rings, replicas: int) -> None:
        self._desk, self._hosts, self._placing, self._rings, self.replicas = desk, hosts, placing, rings, replicas
        self._copies: Mapping[str, tuple[StatePartitions, Copies]] = {}
        self._kept: tuple[KeptCopy, ...] = ()
        self._faults: Mapping[str, str] = {}
        self._keepers: Mapping[tuple[TaskId, str], Sequence[Location]] = {}
        """Who keeps copies of a task's state, by the task and the executor that it was at."""
        self._said: set[str] = set()

    def look(self) -> None:
        """Say who keeps what from now on, and read what is kept. Raises Py4JError."""
        if self._desk is None:
            return
        if not self.replicas:
            self.close()
            return
        self._follow_runs(self._desk)
        host_of, where, moving = self._hosts.host_of(), self._placing.where(), self._placing.wanted()
        held, keepers = self.copies(), dict[tuple[TaskId, str], Sequence[Location]]()
        for name, (states, copies) in self._copies.items():
            places: dict[int, Sequence[Location]] = {}
            for index in range(states.partitions):
                task = TaskId(name, index)
                if (at := where.get(task)) is None:
                    continue
                if (owner := host_of.get(at.executor)) is not None:
                    places[index] = self._places(task, owner, held, moving)
                else:  # lost, and the task that opens a copy is still to come: whoever keeps one goes on
                    before = self._keepers.get((task, at.executor), ())
                    places[index] = [place for place in before if place.executor in host_of]
                keepers[task, at.executor] = places[index]
            copies.follow(places)
            for sentence in set(copies.why) - self._said:
                self._said.add(sentence)
                log.warning("%s: %s", name, sentence)
        self._keepers = keepers
        kept, said = self._desk.reports()
        faults = {executor: fault for executor, fault in said.items() if executor in host_of}
        self._kept = tuple(each for each in kept if each.executor in host_of)
        for executor, fault in faults.items():
            if fault and self._faults.get(executor) != fault:
                log.warning("executor %s keeps no copies up to date: %s", executor, fault)
        self._faults = faults

    def close(self) -> None:
        """Nobody keeps a copy any more."""
        copies, self._copies, self._kept = self._copies, {}, ()
        try:
            for _, each in copies.values():
                each.forget()
        except (Py4JError, OSError):
            log.debug("the session had gone before", exc_info=True)

    def _follow_runs(self, desk: CopiesDesk) -> None:
        states = self._placing.states
        for name, (before, copies) in self._copies.items():
            if states.get(name) is not before:
                copies.forget()
        known = self._copies
        self._copies = {
            name: known[name] if name in known and known[name][0] is each else (each, Copies(desk, each))
            for name, each in states.items()
        }

    def _places(
        self, task: TaskId, owner: str, held: Mapping[TaskId, Sequence[str]], moving: Mapping[TaskId, str]
    ) -> Sequence[Location]:
        """Executors that are to keep a copy of `task`, which is at the host `owner`; the first to take over first.

        held: hosts that have one, by the last look. moving: hosts that tasks are about to move to.
        """
        heirs = self._rings.heirs(task, owner)
        usable = [name for name in dict.fromkeys(heirs) if name != owner and self._hosts.target(name) is not None]
        hosts = [*usable[: self.replicas], *(name for name in (moving.get(task),) if name is not None and name != owner)]
        if owner in held.get(task, ()):  # it took over what was lost elsewhere, and the task that opens it is still to come
            hosts.insert(0, owner)
        found = (self._hosts.target(name) for name in dict.fromkeys(hosts))
        return [place for place in found if place is not None]

    def copies(self, most: float = math.inf) -> Mapping[TaskId, Sequence[str]]:
        """Hosts that hold a copy of each task's state by the last look, the one furthest ahead first.

        most: committed batches that a copy may lack.
        """
        host_of, kept = self._hosts.host_of(), self._kept
        found: dict[TaskId, list[tuple[float, str]]] = {}
        for name, (_, copies) in self._copies.items():
            for partition, by_executor in copies.lag(kept).items():
                ready = [(lag, host_of[at]) for at, lag in by_executor.items() if at in host_of and lag <= most]
                if ready:
                    found[TaskId(name, partition)] = sorted(ready)
        return {task: [host for _, host in each] for task, each in found.items()}

    def lags(self) -> Mapping[TaskId, float]:
        """Of each task, committed batches that the copy of its state which is furthest ahead does not hold yet."""
        return {
            TaskId(name, partition): min(known)
            for name, (_, copies) in self._copies.items()
            for partition, by_executor in copies.lag(self._kept).items()
            if (known := [lag for lag in by_executor.values() if not math.isnan(lag)])
        }

    def memory(self) -> Mapping[str, float]:
        """By host that keeps copies, or could, the megabytes of memory that they take."""
        host_of = self._hosts.host_of()
        found = {host_of[executor]: 0.0 for executor in self._faults if executor in host_of}
        for each in self._kept:
            if each.there and each.executor in host_of:
                found[host_of[each.executor]] = found.get(host_of[each.executor], 0.0) + each.memory / 1e6
        return found

    def observed(self, tasks: Sequence[TaskId], hosts: Sequence[str]) -> Standby:
        """The copies by the last look, in rows of `tasks` and `hosts`."""
        if not self.replicas:
            return Standby()
        if self._desk is None:
            return Standby(why=NO_DESK)
        row = {task: number for number, task in enumerate(tasks)}
        column = {host: number for number, host in enumerate(hosts)}
        host_of, kept = self._hosts.host_of(), self._kept
        found: list[tuple[int, int, float, float]] = []
        for name, (_, copies) in self._copies.items():
            taken = copies.bytes(kept)
            for partition, by_executor in copies.lag(kept).items():
                for executor, lag in by_executor.items():
                    task, host = TaskId(name, partition), host_of.get(executor)
                    if task in row and host in column and not math.isnan(lag):
                        found.append((row[task], column[host], lag, taken[partition][executor] / 1e6))
        found.sort()
        return Standby(
            task=np.array([each[0] for each in found], dtype=np.int64),
            host=np.array([each[1] for each in found], dtype=np.int64),
            lag=np.array([each[2] for each in found]),
            megabytes=np.array([each[3] for each in found]),
            why=self._sentence(),
        )

    def _sentence(self) -> str:
        """Why fewer copies are kept than wanted; empty where none is missing."""
        cold = [sentence for _, copies in self._copies.values() for sentence in copies.why]
        if cold:
            return "; ".join(cold)
        for executor, fault in self._faults.items():
            if fault:
                return f"executor {executor} keeps no copies up to date: {fault}"
        waiting = [each for each in self._kept if not each.there]
        if not waiting:
            return ""
        reasons = [each.why for each in waiting if each.why]
        return f"{counted(len(waiting), 'copy', 'copies')} not there yet" + (f": {reasons[0]}" if reasons else "")
