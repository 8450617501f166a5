"""The Spark plant: a dataflow running as streaming queries on leased hosts, behind the one seam that policies know.

It wires the mechanisms of this package together and holds no policy: `hosts` lives the leases, `placing` moves state
partitions, `compile` runs and switches the queries, `telemetry` and `host_watch` say what queries and hosts did, and the
`steward` steps along what takes time, so that `observe` and `apply` return at once.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.clouds.provider import Provider
from elastream.model.action import (
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    RenewHost,
    SetParallelism,
    Status,
    SwitchAlternate,
    SwitchEdge,
    TaskId,
)
from elastream.model.cloud import HostState, Lease
from elastream.model.errors import DataflowError, ElastreamError, in_one_line
from elastream.model.observation import Composition, Context, Frame, Metric, Observation, Sample
from elastream.spark.clock import RunClock
from elastream.spark.hosts.actions import HostActions
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.compiled import RunningSegment, explain_failure, switch
from elastream.spark.queries.compiled_frames import Telemetry
from elastream.spark.queries.compiled_tasks import TaskTelemetry
from elastream.spark.steward import Steward
from elastream.spark.telemetry.hosts import HostWatch
from elastream.spark.telemetry.links import LinkWatch

__all__ = ["SparkPlant"]

HISTORY = 600
"""Monitoring times that an observation looks back on: ten minutes at one a second."""
NAN = float("nan")


class SparkPlant:
    """A running dataflow. Made by `start_plant`; close it."""

    def __init__(
        self,
        context: Context,
        clock: RunClock,
        provider: Provider,
        spark: Any,
        hosts: Hosts,
        running: Sequence[RunningSegment],
        placing: Placing,
        composition: Composition,
    ) -> None:
        self._context = context
        self._clock = clock
        self._provider = provider
        self._spark = spark
        self._hosts = hosts
        self._running = tuple(running)
        self._placing = placing
        self._composition = composition
        self._telemetry = Telemetry(context.layout, running, context.target_latency)
        self._history: list[Sample] = []
        self._scalings = Counter(dict.fromkeys(context.scalable, 0))
        self._run_ids = {each.query.runId for each in running}
        self._closing = threading.Event()
        self._watch = HostWatch(provider)
        self._links = LinkWatch(hosts.status)
        self._tasks = TaskTelemetry(spark, running)
        placing.benefit = self._tasks.weight
        self._steward = Steward(running, hosts, placing, clock.now)
        self._host_actions = HostActions(hosts, context.host_types, context.max_hosts, self._steward.empty)
        self._steward.start()

    @property
    def context(self) -> Context:
        """What does not change while the run lasts."""
        return self._context

    @property
    def clock(self) -> RunClock:
        """Time of the run."""
        return self._clock

    @property
    def confinement(self) -> str:
        """One sentence on how hosts are held to their type."""
        return self._provider.terms.confinement

    @property
    def provider(self) -> Provider:
        """The provider, for tests and benchmarks."""
        return self._provider

    @property
    def spark(self) -> Any:
        """The session, for tests and benchmarks."""
        return self._spark

    @property
    def hosts(self) -> Hosts:
        """The hosts, for tests and benchmarks."""
        return self._hosts

    @property
    def placing(self) -> Placing:
        """The state partitions, for tests and benchmarks."""
        return self._placing

    @property
    def telemetry(self) -> Telemetry:
        """Batches so far, for tests and benchmarks."""
        return self._telemetry

    @property
    def task_telemetry(self) -> TaskTelemetry:
        """What tasks cost and send each other, for benchmarks."""
        return self._tasks

    @property
    def running(self) -> tuple[RunningSegment, ...]:
        """The queries."""
        return self._running

    @property
    def ledger(self) -> Sequence[Lease]:
        """Every lease of the run."""
        return tuple(self._hosts.leases.values())

    @property
    def finished(self) -> bool:
        """Whether every shaped load has ended and been processed; raises ElastreamError where a query has failed."""
        self._run_ids |= {each.query.runId for each in self._running}
        for each in self._running:
            if not each.query.isActive:
                error = each.query.exception()
                stopped = f"the query of {each.segment.name!r} was stopped"
                raise ElastreamError(stopped if error is None else explain_failure(error))
        sources = [source.name for source in self._context.graph.sources]
        now = time.time()
        if not all(self._telemetry.exhausted(source, now) for source in sources):
            return False
        if not self._telemetry.drained():
            return False
        for each in self._running:
            if not each.own_source:
                each.query.processAllAvailable()  # what travels over Kafka edges is the last to arrive
        return True

    def observe(self) -> Observation:
        """What is known now."""
        now, wall = self._clock.now(), time.time()
        committed = self._telemetry.poll()
        self._telemetry.metered(self._meter_rows())
        leases = {name: lease for name, lease in self._hosts.leases.items() if lease.active}
        usable = [name for name, lease in leases.items() if lease.state is HostState.RUNNING]
        cores = sum(leases[name].type.cores for name in usable)
        held = self._steward.held()
        self._tasks.poll()
        executors = {name: executor for name in leases if (executor := self._hosts.executor(name)) is not None}
        host_of = {executor.id: name for name, executor in executors.items()}
        links = self._tasks.links(host_of, tuple(executors), self._provider.terms.link_rate)
        frame = self._watch.hosts(leases, held, links, now)
        tasks = self._tasks.tasks(self._context.graph, leases, held, wall)
        working = [name for name, lease in leases.items() if lease.state in (HostState.RUNNING, HostState.DRAINING)]
        used = sum(frame.value(name, Metric.CPU) * leases[name].type.cores for name in working)
        operators = self._telemetry.operators(wall, self._parallelism(), cores, used, self._scalings)
        application = self._telemetry.application(wall, self._hosts.cost(now))
        if self._context.target_latency is not None:
            self._hosts.critical(_misses(application, self._context.target_latency))
        observation = Observation(
            time=now,
            context=self._context,
            operators=operators,
            application=application,
            hosts=frame,
            tasks=tasks,
            links=self._links.onto(links, leases, now),
            exchange=self._tasks.exchange(tasks, wall),
            leases=leases,
            composition=self._composition,
            history=tuple(self._history),
            next_host=len(self._hosts.leases) + 1,
            batches=tuple(self._telemetry.described(batch, wall - now) for batch in committed),
        )
        self._history = [*self._history[-HISTORY + 1 :], Sample(now, operators)]
        return observation

    def apply(self, action: Action) -> Outcome:
        """Do one action, or say why not."""
        if self._closing.is_set():
            return Outcome(action, Status.REFUSED, "the run is over")
        try:
            return self._apply(action)
        except (ElastreamError, PySparkException, Py4JError, OSError) as error:
            return Outcome(action, Status.FAILED, in_one_line(error))

    def close(self) -> None:
        """Stop the queries, the session and every host."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._clock.wake()
        self._steward.stop()
        for each in self._running:
            _quietly(each.query.stop)
        _quietly(self._telemetry.poll)
        self._links.close()
        self._hosts.close()
        # The hosts go first: a session that stops waits for executors, and these have nothing left to say.
        self._provider.close()
        _quietly(self._spark.stop)

    def facts(self) -> Mapping[str, float | str]:
        """Figures of the whole run for its ending."""
        return {
            "batches": self._telemetry.batches,
            "records": self._telemetry.rows,
            "longest batch": self._telemetry.longest,
            "moves": len(self._placing.landed),
            "query runs": len(self._run_ids),
            **({} if (owed := self._provider.owed()) is None else {"owed": owed}),
        }

    def taken(self) -> Mapping[str, tuple[Path, int]]:
        """Per shaped source, its control folder and the records of it that were committed."""
        last = {each.segment.name: self._telemetry.last(each.segment.name) for each in self._running}
        return {
            source: (control, int(batch.last))
            for each in self._running
            for source, control in each.sources.items()
            if (batch := last[each.segment.name]) is not None and batch.last == batch.last
        }

    # -- actions -------------------------------------------------------------------------------------------------------

    def _apply(self, action: Action) -> Outcome:
        match action:
            case SwitchAlternate(operator, alternate):
                return self._switch_alternate(action, operator, alternate)
            case SwitchEdge(choice, target):
                return self._switch_edge(action, choice, target)
            case SetParallelism(operator, instances):
                return self._set_parallelism(action, operator, instances)
            case MoveTask(task, host):
                return self._move(action, task, host)
            case LeaseHost() | RenewHost() | DrainHost() | CancelDrain() | ReleaseHost():
                return self._host_actions.apply(action)

    def _switch_alternate(self, action: Action, operator: str, alternate: str) -> Outcome:
        graph = self._context.graph
        if operator not in graph.by_name:
            return Outcome(action, Status.REFUSED, f"there is no operator {operator!r}")
        try:
            graph.operator(operator).alternate(alternate)
        except DataflowError as error:
            return Outcome(action, Status.REFUSED, str(error))
        return self._compose(action, alternates={**self._composition.alternates, operator: alternate})

    def _switch_edge(self, action: Action, choice: str, target: str) -> Outcome:
        if target not in self._context.graph.choices.get(choice, ()):
            return Outcome(action, Status.REFUSED, f"there is no choice {choice!r} with the target {target!r}")
        return self._compose(action, choices={**self._composition.choices, choice: target})

    def _set_parallelism(self, action: Action, operator: str, instances: int) -> Outcome:
        if operator not in self._context.graph.by_name:
            return Outcome(action, Status.REFUSED, f"there is no operator {operator!r}")
        if operator not in self._context.scalable:
            return Outcome(action, Status.REFUSED, f"the parallelism of {operator!r} is fixed while its query runs")
        if instances < 1:
            return Outcome(action, Status.REFUSED, f"{instances} instances: at least 1 is needed")
        version = self._composition.version
        outcome = self._compose(action, parallelism={**self._composition.parallelism, operator: instances})
        self._scalings[operator] += self._composition.version > version
        return outcome

    def _compose(self, action: Action, **changes: Mapping[str, Any]) -> Outcome:
        changed = replace(self._composition, **changes)  # type: ignore[arg-type]
        if changed == self._composition:
            return Outcome(action, Status.DONE)
        changed = replace(changed, version=self._composition.version + 1)
        switch(self._running, changed)
        self._composition = changed
        return Outcome(action, Status.DONE)

    def _move(self, action: MoveTask, task: TaskId, host: str) -> Outcome:
        if task not in self._placing.tasks:
            return Outcome(action, Status.REFUSED, f"there is no task {task}")
        if refusal := self._hosts.expect(action, host, HostState.RUNNING):
            return refusal
        executor = self._hosts.executor(host)
        place = self._placing.where().get(task)
        if task not in self._placing.wanted() and place and executor and place.executor == executor.id:
            self._placing.keep(task, host, action.why)
            return Outcome(action, Status.DONE)
        self._placing.want(task, host, action.why)
        return Outcome(action, Status.ACCEPTED)

    # -- observation ---------------------------------------------------------------------------------------------------

    def _parallelism(self) -> dict[str, float]:
        """Tasks of the stage that each operator runs in."""
        widths: dict[str, float] = {}
        for stage in self._context.layout.stages:
            leader = stage.operators[0]
            wanted = self._composition.parallelism.get(leader)
            placed = sum(task.operator in stage.operators for task in self._placing.tasks)
            width = placed if stage.keyed else wanted if wanted is not None else NAN
            widths |= dict.fromkeys(stage.operators, float(width))
        return widths

    def _meter_rows(self) -> Sequence[Any]:
        return [row for meter in {id(each.meter): each.meter for each in self._running}.values() for row in meter.drain()]


def _misses(application: Frame, target: float) -> bool:
    """Whether the mean response time is above the target, as application managers see it; unknown is not critical."""
    return any(application.value(name, Metric.LATENCY) > target for name in application.ids)


def _quietly(stop: Any) -> None:
    """Call `stop`; what is being torn down may be gone already."""
    with contextlib.suppress(Py4JError, PySparkException, OSError):
        stop()
