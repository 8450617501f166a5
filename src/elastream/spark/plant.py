"""The Spark plant: streaming queries on hosts. `observe` and `apply` return at once; a reconciler does the slow work."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.clouds.provider import HostUsage, ProviderOffer
from elastream.core.action import (
    Action,
    ActionTable,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    SetTokens,
    Status,
    Switch,
)
from elastream.core.alarm import Alarms
from elastream.core.frames import Frame, whole_batches
from elastream.core.hosts import HostState, Lease
from elastream.core.memory import room_by_host
from elastream.core.metrics import Metric
from elastream.core.observation import UNMEASURED, Context, Leases, MicroBatch, Observation, Sample
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.core.wording import counted
from elastream.errors import ElastreamError, HostsGone, in_one_line
from elastream.spark.failover import FailoverPlan
from elastream.spark.hosts.actions import HostActions
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.session import session_stopped
from elastream.spark.placement.placing import Rings
from elastream.spark.queries.query import Query, QueryAccess
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import ObservedLoad, Reconciler
from elastream.spark.standby import WarmStandby
from elastream.spark.telemetry.frames import (
    HostCpuUsage,
    busy_cores,
    cores_used,
    known_sizes,
    seconds_waiting,
    state_in_heap,
    task_frame,
)
from elastream.spark.telemetry.host_memory import HostMemory
from elastream.spark.telemetry.links import LinkProbes
from elastream.spark.telemetry.speeds import HostSpeed

if TYPE_CHECKING:  # Autopilot watches queries and never loads the compiler
    from elastream.spark.queries.compiled import CompiledQueries

log = logging.getLogger(__name__)

# Ten minutes at one per second.
HISTORY_LENGTH = 600
Q = TypeVar("Q", bound="CompiledQueries | SessionQueries")


@dataclass(frozen=True, slots=True)
class PlantLimits:
    """Limits and targets of a plant.

    Attributes:
        terms: Hosts that can be leased; without types, none can.
        look_share: Cores that observing may use; None: no limit.
        replicas: Standby replicas of each state partition.
        limit: Name of the limit that sets the most hosts.
        refused: Kinds of actions that make no sense here, with the reason.
        batch_seconds: As in `Context`.
    """

    terms: ProviderOffer
    target_latency: float | None = None
    observe_only: bool = False
    look_share: float | None = None
    replicas: int = 0
    limit: str = "max_hosts"
    refused: Mapping[type[Action], str] = field(default_factory=dict)
    batch_seconds: float = 1.0


class RunClock:
    """Seconds since the run began (at `epoch`), on the monotonic clock."""

    def __init__(self, at: float = 0.0) -> None:
        self._start = time.monotonic() - at
        self.epoch = time.time() - at
        self._wake = threading.Event()

    def now(self) -> float:
        return time.monotonic() - self._start

    def sleep_until(self, time: float) -> None:
        self._wake.wait(max(0.0, time - self.now()))

    def wake(self) -> None:
        """End the present sleep and all later ones."""
        self._wake.set()


class SparkPlant(Generic[Q]):
    """Queries on hosts. Made by `start_plant` or `attach`; close it."""

    def __init__(  # noqa: PLR0913
        self,
        instruments: QueryAccess,
        queries: Q,
        hosts: Hosts,
        limits: PlantLimits,
        clock: RunClock,
        alarms: Alarms,
        *,
        links: LinkProbes | None = None,
        reconciler: type[Reconciler] = Reconciler,
        end: Callable[["SparkPlant[Q]"], None],
    ) -> None:
        """Start the reconciler over `queries` and `hosts`. `links` measures delays between hosts; `close` calls `end`."""
        self.instruments, self._driver, self.spark = instruments, instruments.driver, instruments.spark
        self.queries, self.hosts, self._limits, self.confinement = queries, hosts, limits, limits.terms.confinement
        self.clock, self.alarms, self._links, self._end = clock, alarms, links, end
        self.placing = instruments.placing
        self.rings = Rings(self.placing, lambda: hosts.usable, lambda host: hosts.leases[host].zone)
        self.standby = WarmStandby(instruments.copies, hosts, self.placing, self.rings, limits.replicas)
        self.failover: FailoverPlan | None = None
        if instruments.recovery is not None and not limits.observe_only:
            self.failover = FailoverPlan(
                instruments.recovery,
                lambda: queries.live,
                hosts,
                self.placing,
                self.rings,
                self.standby.replica_hosts,
                lambda: self.standby.replicas,
            )
        self.reconciler = reconciler(
            instruments, queries, hosts, self.rings, clock.now, alarms, failover=self.failover, standby=self.standby
        )
        self._types = {type.name: type for type in limits.terms.types}
        self._host_actions = HostActions(hosts, self._types, limits.terms.max_hosts, self.reconciler.empty)
        self._watch, self._memory = HostCpuUsage(), HostMemory(instruments.memory, instruments.speeds)
        self._load = ObservedLoad()
        self._history: list[Sample] = []
        self._last: Observation | None = None
        self._not_before = 0.0
        self.looks, self.look_seconds, self.look_cpu_seconds = 0, 0.0, 0.0
        self._session_gone = False
        self._lost: HostsGone | None = None
        self._closing, self._closed, self._lock = threading.Event(), False, threading.Lock()
        self._actions = self._handlers()
        self.reconciler.start(self._host_actions.release, lambda: self._load, acts=not limits.observe_only)

    @property
    def context(self) -> Context:
        return Context(
            self.queries.layout,
            self._types,
            self._limits.target_latency,
            max_hosts=self._limits.terms.max_hosts,
            min_hosts=self._limits.terms.min_hosts,
            capabilities=self._actions.kinds,
            scalable=self.queries.scalable,
            partitions=self.placing.partitions,
            replicas=self.standby.replicas,
            limit=self._limits.limit,
            batch_seconds=self._limits.batch_seconds,
        )

    @property
    def ledger(self) -> Sequence[Lease]:
        return tuple(self.hosts.leases.values())

    def describe(self, host: str) -> str:
        return self.hosts.describe(host)

    @property
    def finished(self) -> bool:
        """Return True if nothing is left to do, or the session was stopped.

        Raises:
            ElastreamError: A query failed, or all possible hosts are gone for good.
        """
        if self._lost is not None and self.hosts.only_leased:
            raise self._lost
        if self._session_gone:
            self.queries.lost()
        return self._session_gone or self.queries.finished(self.clock.now())

    def observe(self) -> Observation:
        """Observe now; if observing is costly, return the last observation instead."""
        now = self.clock.now()
        if self._last is not None and (now < self._not_before or self._session_gone):
            self._session_gone = self._session_gone or session_stopped(self.spark)
            return self._repeated(self._last, now)
        began = time.monotonic()
        try:
            spent = self._driver.cpu_seconds()
            observation = self._observe(now)
            spent = self._driver.cpu_seconds() - spent
        except Exception as error:
            # A stopped session fails in many ways; otherwise the fault is real.
            if not session_stopped(self.spark):
                self._lost = error if isinstance(error, HostsGone) else None
                raise
            self._session_gone = True
            nothing = Observation(now, self.context, Frame(tuple(self.context.graph.by_name)))
            return self._repeated(self._last or nothing, now)
        self.looks, self.look_seconds = self.looks + 1, time.monotonic() - began
        self.look_cpu_seconds += spent
        if self._limits.look_share is not None:
            self._not_before = now + max(spent / self._limits.look_share, 2 * self.look_seconds)
        self._last = observation
        return observation

    def apply(self, action: Action) -> Outcome:
        (outcome,) = self._perform([action], lambda: (self._actions.apply(action),))
        return outcome

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        return self._perform(switches, lambda: self.queries.switch(switches))

    def _perform(self, actions: Sequence[Action], do: Callable[[], tuple[Outcome, ...]]) -> tuple[Outcome, ...]:
        if self._closing.is_set() or self._session_gone:
            return tuple(Outcome(action, Status.REFUSED, "the run is over") for action in actions)
        self._not_before = 0.0  # the next observation must show its effect
        try:
            return do()
        except ElastreamError as error:
            log.info("%s failed", "; ".join(each.describe() for each in actions), exc_info=True)
            return tuple(Outcome(action, Status.FAILED, in_one_line(error)) for action in actions)
        except (PySparkException, Py4JError, OSError) as error:
            log.warning("%s failed", "; ".join(each.describe() for each in actions), exc_info=True)
            return tuple(Outcome(action, Status.FAILED, in_one_line(error)) for action in actions)
        finally:
            self.reconciler.wake()

    def close(self) -> None:
        """End the run; further calls do nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._end(self)

    def incidents(self) -> Sequence[str]:
        losses = () if self.failover is None else self.failover.drain_messages()
        return (*self.reconciler.drain_messages(), *losses, *self.queries.incidents())

    def stop_acting(self) -> None:
        """Stop applying actions, moving partitions and stepping hosts. Every end begins with it."""
        self._closing.set()
        self.clock.wake()
        self.reconciler.close()
        if self.instruments.memory is not None:
            self.instruments.memory.close()
        if self._links is not None:
            self._links.close()

    def facts(self) -> Mapping[str, float | str]:
        owed = self.hosts.provider.owed()
        return {
            **self.queries.facts(),
            "moves": self.placing.moves,
            **self.hosts.past.facts,
            **({} if owed is None else {"owed": owed}),
        }

    # -- actions -------------------------------------------------------------------------------------------------------

    def _handlers(self) -> ActionTable:
        table = ActionTable()
        self.queries.handle(table)
        table.on(SetTokens, self._set_tokens)
        table.on(MoveTask, self._move)
        self._host_actions.handle(table)
        if not self._types:
            table.refuse(LeaseHost, "hosts cannot be leased here")
            table.refuse(ReleaseHost, "executors cannot be released here")
        for kind, why in self._limits.refused.items():
            table.refuse(kind, why)
        return table

    def _move(self, action: MoveTask) -> Outcome:
        task, host = action.task, action.host
        stateful = task in self.placing.tasks
        if not stateful and task not in self.placing.stateless():
            return Outcome(action, Status.REFUSED, f"there is no task {task}")
        if refusal := self.hosts.expect(action, host, HostState.RUNNING):
            return refusal
        if not stateful:
            is_there = self._stateless()[0].get(task) == host
            self.placing.pin({task: host}, action.why)
            self.placing.moves += not is_there  # there is no state to wait for
            return Outcome(action, Status.DONE if is_there else Status.ACCEPTED)
        if task not in self.placing.targets() and self.reconciler.locations().get(task) == host:
            self.rings.forget(task.operator)
            self.placing.pin({task: host}, action.why)
            return Outcome(action, Status.DONE)
        for query in self.queries.live:
            if task.operator in query.operators and (why := query.move_refusal):
                return Outcome(action, Status.REFUSED, why)
        self.rings.forget(task.operator)
        self.placing.move(task, host, action.why)
        return Outcome(action, Status.ACCEPTED, self.placing.move_load(task, host).text)

    def _set_tokens(self, action: SetTokens) -> Outcome:
        if reason := action.refusal(self.placing.partitions):
            return Outcome(action, Status.REFUSED, reason)
        ring = Ring(dict(action.tokens))
        for host in ring:
            if refusal := self.hosts.expect(action, host, HostState.RUNNING):
                return refusal
        moving = self.rings.follow(action.operator, ring, self.reconciler.locations(), action.why)
        if not moving:
            return Outcome(action, Status.DONE)
        return Outcome(action, Status.ACCEPTED, f"{counted(moving, 'state partition')} on the way")

    # -- observation ---------------------------------------------------------------------------------------------------

    def _observe(self, now: float) -> Observation:
        wall = self.instruments.wall()
        batches = self.queries.look(now, wall)
        live = self.queries.live
        loads = {name: each for query in live for name, each in query.loads(wall).items()}
        observation = self._build(now, wall, live, loads, batches)
        critical = is_critical(observation.application, self._limits.target_latency)
        room, state = room_by_host(observation)
        self._load = ObservedLoad(
            busy_cores(observation.tasks),
            observation.capacities,
            critical,
            dict(zip(observation.tasks.tasks, state.tolist(), strict=True)),
            room,
            known_sizes(observation.tasks),
        )
        self._history = [*self._history[-HISTORY_LENGTH + 1 :], Sample(now, observation.operators)]
        return observation

    def _build(
        self, now: float, wall: float, live: Sequence[Query], loads: Mapping[str, Any], batches: Sequence[MicroBatch]
    ) -> Observation:
        context, locations, targets = self.context, self.reconciler.locations(), self.placing.targets()
        placements, (stateless, awaited) = locations | dict(targets), self._stateless()
        leases = Leases(self.hosts.active, {name: self.hosts.foreign_share(name) for name in self.hosts.active})
        working = [name for name, lease in leases.items() if lease.state in (HostState.RUNNING, HostState.DRAINING)]
        traffic, host_of = self.instruments.traffic, self.hosts.host_of()
        there = [name for name in leases if name in set(host_of.values())]
        links = Frame() if traffic is None else traffic.links(host_of, there, self._limits.terms.link_rate)
        probes = self.instruments.speeds
        speeds: Mapping[str, HostSpeed] = {} if probes is None else probes.look(host_of, leases, now)
        measured = self._measured(leases)
        span = whole_batches([[batch.end for batch in query.batches] for query in live], wall)
        sizes = self._memory.columns(host_of, locations, wall, state_in_heap(loads), targets)
        memory = {Metric.COPIES_MEMORY: self.standby.memory(), **sizes}
        hosts = self._watch.frame(leases, placements, links, self.hosts.use, measured, now, speeds, span, memory)
        used = cores_used(hosts, {name: leases[name] for name in working}, self.hosts.compiling)
        operators = self.queries.operators(wall, loads, leases.usable_cores[0], used)
        behind = seconds_waiting(context.graph, operators)
        diagnoses = self.queries.diagnoses(leases.nominal.slots(leases.usable)[0], wall)
        every = {**loads, **{name: each for query in live for name, each in query.stateless_loads(wall).items()}}
        tasks = task_frame(context.graph, tuple(leases), placements | stateless, every, self.standby.lags(), behind)
        return Observation(
            time=now,
            context=context,
            operators=operators,
            application=self.queries.application(wall, self.hosts.cost(now)),
            hosts=hosts,
            tasks=tasks,
            links=links if self._links is None else self._links.onto(links, leases, now),
            exchange=UNMEASURED if traffic is None else traffic.exchange(tasks.tasks, wall),
            leases=leases,
            composition=self.queries.composition,
            effective=self.queries.effective,
            alternates=self.queries.alternates(wall),
            signals=self.queries.signals,
            history=tuple(self._history),
            next_host=self.hosts.next_number,
            batches=tuple(batches),
            alarms=self.alarms.active,
            rings=self.rings.active,
            moving=frozenset(targets) | awaited,
            standby=self.standby.observed(tasks.tasks, hosts.ids),
            latency_basis=self.queries.latency_basis(),
            stalled=self.queries.stalled(wall),
            remarks=tuple(each for query in live for each in query.remarks),
            diagnoses=diagnoses,
            occupied={name: others for name in leases if (others := self.hosts.others(name))},
            pinned={name: why for name in leases if (why := self.hosts.endless(name))},
        )

    def _stateless(self) -> tuple[dict[TaskId, str], frozenset[TaskId]]:
        # Planned hosts count at once, so that a policy does not plan twice; the second part has yet to run there.
        host_of, planned = self.hosts.host_of(), self.placing.plan.latest.hosts
        at = {task: host for task, each in self.placing.stateless().items() if (host := host_of.get(each)) is not None}
        due = {task: planned[task] for task in at if task in planned and self.hosts.takes(planned[task])}
        return at | due, frozenset(task for task, host in due.items() if at[task] != host)

    def _measured(self, leases: Mapping[str, Lease]) -> Mapping[str, HostUsage]:
        measured = self.hosts.provider.measure()
        shared = {name for name in leases if self.hosts.shared(name)}
        return {name: replace(each, cpu_seconds=None) if name in shared else each for name, each in measured.items()}

    def _repeated(self, last: Observation, now: float) -> Observation:
        return replace(last, time=now, batches=(), alarms=self.alarms.active)


def is_critical(application: Frame, target: float | None) -> bool:
    """Return True if the application's mean response time is above the target; unknown is not.

    E2DF compares the mean: by a quantile, one slow batch would take shared hosts from others.
    """
    return target is not None and any(application.value(name, Metric.LATENCY) > target for name in application.ids)
