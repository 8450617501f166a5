"""Warm standby: replicas on the ring successors of a partition's host, and on a host that it is about to move to."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from py4j.protocol import Py4JError

from elastream.core.observation import Standby
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.standby import NO_PLUGIN, StageReplicas, StandbyRegistry, StandbyReplica
from elastream.spark.jvm.state_partitions import StatePartitions
from elastream.spark.placement.placing import Placing, Rings

log = logging.getLogger(__name__)


class WarmStandby:
    """Keeps `replicas` standby replicas of each state partition. The reconciler calls `look`; any thread the rest."""

    def __init__(
        self, registry: StandbyRegistry | None, hosts: Hosts, placing: Placing, rings: Rings, replicas: int
    ) -> None:
        self._registry, self._hosts, self._placing, self._rings, self.replicas = registry, hosts, placing, rings, replicas
        self._stages: Mapping[str, tuple[StatePartitions, StageReplicas]] = {}
        self._reports: tuple[StandbyReplica, ...] = ()
        self._faults: Mapping[str, str] = {}
        # Keyed by task and the executor that it was at.
        self._holders: Mapping[tuple[TaskId, str], Sequence[Location]] = {}
        self._logged: set[str] = set()

    def look(self) -> None:
        """Update which executors keep which replicas, and read their reports. Raises Py4JError."""
        if self._registry is None:
            return
        if not self.replicas:
            self.close()
            return
        self._follow_runs(self._registry)
        host_of, where, moving = self._hosts.host_of(), self._placing.where(), self._placing.targets()
        replica_hosts, holders = self.replica_hosts(), dict[tuple[TaskId, str], Sequence[Location]]()
        for name, (states, stage) in self._stages.items():
            places: dict[int, Sequence[Location]] = {}
            for index in range(states.partitions):
                task = TaskId(name, index)
                if (at := where.get(task)) is None:
                    continue
                if (owner := host_of.get(at.executor)) is not None:
                    places[index] = self._places(task, owner, replica_hosts, moving)
                else:  # lost, and the task that will open a replica has not started: keep them where they are
                    before = self._holders.get((task, at.executor), ())
                    places[index] = [place for place in before if place.executor in host_of]
                holders[task, at.executor] = places[index]
            stage.follow(places)
            for sentence in set(stage.why) - self._logged:
                self._logged.add(sentence)
                log.warning("%s: %s", name, sentence)
        self._holders = holders
        replicas, reports = self._registry.reports()
        faults = {executor: fault for executor, fault in reports.items() if executor in host_of}
        self._reports = tuple(each for each in replicas if each.executor in host_of)
        for executor, fault in faults.items():
            if fault and self._faults.get(executor) != fault:
                log.warning("executor %s keeps no copies up to date: %s", executor, fault)
        self._faults = faults

    def close(self) -> None:
        stages, self._stages, self._reports = self._stages, {}, ()
        try:
            for _, each in stages.values():
                each.forget()
        except (Py4JError, OSError):
            log.debug("the session was already closed", exc_info=True)

    def _follow_runs(self, registry: StandbyRegistry) -> None:
        states = self._placing.states
        for name, (run, stage) in self._stages.items():
            if states.get(name) is not run:
                stage.forget()
        before = self._stages
        self._stages = {
            name: before[name] if name in before and before[name][0] is each else (each, StageReplicas(registry, each))
            for name, each in states.items()
        }

    def _places(
        self, task: TaskId, owner: str, replica_hosts: Mapping[TaskId, Sequence[str]], moving: Mapping[TaskId, str]
    ) -> Sequence[Location]:
        successors = self._rings.successors(task, owner)
        usable = [name for name in dict.fromkeys(successors) if name != owner and self._hosts.target(name) is not None]
        hosts = [*usable[: self.replicas], *(name for name in (moving.get(task),) if name is not None and name != owner)]
        if owner in replica_hosts.get(task, ()):  # it took over, and the task that will open the replica has not started
            hosts.insert(0, owner)
        targets = (self._hosts.target(name) for name in dict.fromkeys(hosts))
        return [place for place in targets if place is not None]

    def replica_hosts(self, max_lag: float = math.inf) -> Mapping[TaskId, Sequence[str]]:
        """Return the hosts with a replica of each task's state, lacking at most `max_lag` batches, most current first."""
        host_of, by_task = self._hosts.host_of(), dict[TaskId, Sequence[str]]()
        for task, by_executor in self._lags():
            ready = [(lag, host_of[at]) for at, lag in by_executor.items() if at in host_of and lag <= max_lag]
            if ready:
                by_task[task] = [host for _, host in sorted(ready)]
        return by_task

    def lags(self) -> Mapping[TaskId, float]:
        """Return the committed batches that the most current replica of each task lacks."""
        lags = {task: [lag for lag in each.values() if not math.isnan(lag)] for task, each in self._lags()}
        return {task: min(measured) for task, measured in lags.items() if measured}

    def _lags(self) -> Iterator[tuple[TaskId, Mapping[str, float]]]:
        for name, (_, stage) in self._stages.items():
            for partition, by_executor in stage.lag(self._reports).items():
                yield TaskId(name, partition), by_executor

    def memory(self) -> Mapping[str, float]:
        """Return the memory of replicas (MB), by host that keeps or could keep them."""
        host_of = self._hosts.host_of()
        megabytes = {host_of[executor]: 0.0 for executor in self._faults if executor in host_of}
        for each in self._reports:
            if each.ready and each.executor in host_of:
                megabytes[host_of[each.executor]] = megabytes.get(host_of[each.executor], 0.0) + each.memory / 1e6
        return megabytes

    def observed(self, tasks: Sequence[TaskId], hosts: Sequence[str]) -> Standby:
        """Return the replicas of the last look, in rows of `tasks` and `hosts`."""
        if not self.replicas:
            return Standby()
        if self._registry is None:
            return Standby(why=NO_PLUGIN)
        row = {task: number for number, task in enumerate(tasks)}
        column = {host: number for number, host in enumerate(hosts)}
        host_of, rows = self._hosts.host_of(), list[tuple[int, int, float, float]]()
        for name, (_, stage) in self._stages.items():
            sizes = stage.bytes(self._reports)
            for partition, by_executor in stage.lag(self._reports).items():
                for executor, lag in by_executor.items():
                    task, host = TaskId(name, partition), host_of.get(executor)
                    if task in row and host in column and not math.isnan(lag):
                        rows.append((row[task], column[host], lag, sizes[partition][executor] / 1e6))
        table = np.array(sorted(rows)).reshape(-1, 4)
        task_rows, host_rows = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        return Standby(task_rows, host_rows, lag=table[:, 2], megabytes=table[:, 3], why=self._missing_reason())

    def _missing_reason(self) -> str:
        if cold := [sentence for _, stage in self._stages.values() for sentence in stage.why]:
            return "; ".join(cold)
        for executor, fault in self._faults.items():
            if fault:
                return f"executor {executor} keeps no copies up to date: {fault}"
        if not (waiting := [each for each in self._reports if not each.ready]):
            return ""
        reason = next((f": {each.why}" for each in waiting if each.why), "")
        return f"{counted(len(waiting), 'copy', 'copies')} not there yet{reason}"
