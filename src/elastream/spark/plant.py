"""The Spark plant: streaming queries on hosts, behind the interface of all plants.

It holds three parts and no policy: queries (compiled from a dataflow, or watched as the user wrote them), hosts (leased
for the run, or found in a session) and one reconciler, the thread for all that takes time, so that `observe` and `apply`
return at once. `elastream.spark.start` begins with a dataflow and a cloud, `elastream.spark.attach` with a session.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from elastream.clouds.provider import ProviderOffer
from elastream.core.action import (
    Action,
    ActionTable,
    CancelDrain,
    DrainHost,
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
from elastream.core.metrics import Metric
from elastream.core.observation import UNMEASURED, Context, MicroBatch, Observation, Sample
from elastream.core.ring import Ring
from elastream.core.wording import counted
from elastream.errors import ElastreamError, HostsGone, in_one_line
from elastream.spark.hosts.actions import HostActions
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.session import session_stopped
from elastream.spark.placement.ring import Rings
from elastream.spark.queries.compiled import CompiledQueries
from elastream.spark.queries.query import Instruments, Query
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import ObservedLoad, Reconciler
from elastream.spark.standby import WarmStandby
from elastream.spark.succession import Succession
from elastream.spark.telemetry.frames import HostCpuUsage, cores_used, seconds_waiting, task_frame, weights
from elastream.spark.telemetry.links import LinkProbes
from elastream.spark.telemetry.speeds import HostSpeed

log = logging.getLogger(__name__)

HISTORY = 600
"""Monitoring times in the history of an observation: ten minutes at one a second."""
Q = TypeVar("Q", bound=CompiledQueries | SessionQueries)


@dataclass(frozen=True, slots=True)
class Scope:
    """What a plant is to do its work within.

    terms: what can be leased; no types where hosts cannot be leased or given back. observe_only: nothing is done that
    was not applied, whatever leaves. look_share: cores that looking may use: after a look that took a second of CPU, here
    and in the JVM, the next comes 1 / look_share seconds later at the earliest, and after one that the driver took long to
    answer, as long again; None: every observation looks. replicas: copies of each state partition that are to be kept.
    """

    terms: ProviderOffer
    target_latency: float | None = None
    observe_only: bool = False
    look_share: float | None = None
    replicas: int = 0


class RunClock:
    """Seconds since the run began, on the machine's monotonic clock; it can be woken early. epoch: when that was. at:
    seconds to begin with, of a run that goes on."""

    def __init__(self, at: float = 0.0) -> None:
        self._start = time.monotonic() - at
        self.epoch = time.time() - at
        self._wake = threading.Event()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start

    def sleep_until(self, time: float) -> None:
        """Return at `time`, or at once when woken."""
        self._wake.wait(max(0.0, time - self.now()))

    def wake(self) -> None:
        """End this and every later sleep: the run is over."""
        self._wake.set()


class SparkPlant(Generic[Q]):
    """Queries on hosts. Made by `start_plant` or `attach`; close it.

    end: what `close` does. links: how far apart hosts are, where that is measured. reconciler: one that others step has no
    thread. `queries.look` fetches what is new and changes nothing; their other methods are arithmetic on it.
    """

    def __init__(
        self,
        instruments: Instruments,
        queries: Q,
        hosts: Hosts,
        scope: Scope,
        clock: RunClock,
        alarms: Alarms,
        *,
        links: LinkProbes | None = None,
        reconciler: type[Reconciler] = Reconciler,
        end: Callable[["SparkPlant[Q]"], None],
    ) -> None:
        self.instruments, self._driver, self.spark = instruments, instruments.driver, instruments.spark
        self.queries, self.hosts, self._scope, self.confinement = queries, hosts, scope, scope.terms.confinement
        self.clock, self.alarms, self._links, self._end = clock, alarms, links, end
        self.placing = instruments.placing
        self.rings = Rings(self.placing, lambda: hosts.usable, self._zone)
        self.standby = WarmStandby(instruments.copies, hosts, self.placing, self.rings, scope.replicas)
        recovery = None if scope.observe_only else instruments.recovery
        self.succession = (
            None
            if recovery is None
            else Succession(
                recovery,
                lambda: queries.live,
                hosts,
                self.placing,
                self.rings,
                self.standby.copies,
                lambda: self.standby.replicas,
            )
        )
        self.reconciler = reconciler(
            self.spark, self._driver, queries, hosts, self.placing, self.rings, clock.now, alarms,
            succession=self.succession, standby=self.standby, load=lambda: self._load,
        )  # fmt: skip
        self._types = {type.name: type for type in scope.terms.types}
        self._host_actions = HostActions(hosts, self._types, scope.terms.max_hosts, self.reconciler.empty)
        self._watch = HostCpuUsage()
        self._load = ObservedLoad()
        self._history: list[Sample] = []
        self._last: Observation | None = None
        self._not_before = 0.0
        self.looks, self.look_seconds, self.look_cpu_seconds = 0, 0.0, 0.0
        self._session_gone = False
        self._lost: HostsGone | None = None
        self._closing, self._closed, self._lock = threading.Event(), False, threading.Lock()
        self._actions = self._handlers()
        self.reconciler.start(self._host_actions.release, acts=not scope.observe_only)

    @property
    def context(self) -> Context:
        """What runs and within what; it changes when queries come and go."""
        return Context(
            self.queries.layout,
            self._types,
            self._scope.target_latency,
            max_hosts=self._scope.terms.max_hosts,
            min_hosts=self._scope.terms.min_hosts,
            capabilities=self._actions.kinds,
            scalable=self.queries.scalable,
            partitions=self.placing.partitions,
            replicas=self.standby.replicas,
        )

    @property
    def ledger(self) -> Sequence[Lease]:
        """Every lease of the run."""
        return tuple(self.hosts.leases.values())

    def describe(self, host: str) -> str:
        """A host as people know it."""
        return self.hosts.describe(host)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do, or the session was stopped.

        Raises ElastreamError where a query has failed, or all hosts that its session can have are gone for good.
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
            return self._seen_again(self._last, now)
        began = time.monotonic()
        try:
            spent = self._driver.cpu_seconds()
            observation = self._observe(now)
            spent = self._driver.cpu_seconds() - spent
        except Exception as error:
            # A session that is stopped answers in many ways; one that is not has a real fault.
            if not session_stopped(self.spark):
                self._lost = error if isinstance(error, HostsGone) else None
                raise
            self._session_gone = True
            nothing = Observation(now, self.context, Frame(tuple(self.context.graph.by_name)))
            return self._seen_again(self._last or nothing, now)
        self.looks, self.look_seconds = self.looks + 1, time.monotonic() - began
        self.look_cpu_seconds += spent
        if self._scope.look_share is not None:
            self._not_before = now + max(spent / self._scope.look_share, 2 * self.look_seconds)
        self._last = observation
        return observation

    def apply(self, action: Action) -> Outcome:
        """Do one action, or say why not."""
        (outcome,) = self._done([action], lambda: (self._actions.apply(action),))
        return outcome

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Do all of these that are possible as one new composition; an outcome each."""
        return self._done(switches, lambda: self.queries.switch(switches))

    def _done(self, actions: Sequence[Action], do: Callable[[], tuple[Outcome, ...]]) -> tuple[Outcome, ...]:
        """What `do` answers to `actions`, or why it failed."""
        if self._closing.is_set() or self._session_gone:
            return tuple(Outcome(action, Status.REFUSED, "the run is over") for action in actions)
        self._not_before = 0.0  # what it changes is to be seen
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
        """End what was begun for it; may be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._end(self)

    def incidents(self) -> Sequence[str]:
        """Return what happened to executors since the last call."""
        return () if self.succession is None else self.succession.told()

    def stop_acting(self) -> None:
        """Apply, move and step nothing any more: the first thing in any end."""
        self._closing.set()
        self.clock.wake()
        self.reconciler.close()
        if self._links is not None:
            self._links.close()

    def facts(self) -> Mapping[str, float | str]:
        """Figures of the whole run for its ending."""
        owed = self.hosts.provider.owed()
        return {
            **self.queries.facts(),
            "moves": self.placing.moves,
            **self.hosts.past.facts,
            **({} if owed is None else {"owed": owed}),
        }

    # -- actions -------------------------------------------------------------------------------------------------------

    def _handlers(self) -> ActionTable:
        table, actions = ActionTable(), self._host_actions
        self.queries.handle(table)
        table.on(SetTokens, self._set_tokens)
        table.on(MoveTask, self._move)
        actions.handle(table)
        table.on(DrainHost, lambda action: self._busy(action) or actions.drain(action))
        table.on(CancelDrain, self._cancel_drain)
        table.on(ReleaseHost, lambda action: self._busy(action) or actions.release(action))
        if not self._types:
            table.refuse(LeaseHost, "hosts cannot be leased here")
            table.refuse(ReleaseHost, "executors cannot be given back here")
        return table
        return table

    def _cancel_drain(self, action: CancelDrain) -> Outcome:
        if self.hosts.leaving(action.host):
            return Outcome(action, Status.REFUSED, f"Spark gives host {action.host!r} nothing more")
        return self._host_actions.cancel_drain(action)

    def _busy(self, action: DrainHost | ReleaseHost) -> Outcome | None:
        """Return the refusal of an action on a host where tasks run for minutes; None if it may go."""
        if not self.queries.real_time or self.hosts.executor(action.host) is None:
            return None
        names = ", ".join(map(repr, self.queries.real_time))
        why = f"{names} in real-time mode: tasks there go on for minutes, and none is cut off"
        return Outcome(action, Status.REFUSED, why)

    def _move(self, action: MoveTask) -> Outcome:
        task, host = action.task, action.host
        if task not in self.placing.tasks:
            return Outcome(action, Status.REFUSED, f"there is no task {task}")
        if refusal := self.hosts.expect(action, host, HostState.RUNNING):
            return refusal
        if task not in self.placing.wanted() and self.reconciler.ran().get(task) == host:
            self.rings.forget(task.operator)
            self.placing.keep({task: host}, action.why)
            return Outcome(action, Status.DONE)
        self.rings.forget(task.operator)
        self.placing.want(task, host, action.why)
        return Outcome(action, Status.ACCEPTED)

    def _set_tokens(self, action: SetTokens) -> Outcome:
        if refused := action.refusal(self.placing.partitions):
            return Outcome(action, Status.REFUSED, refused)
        ring = Ring(dict(action.tokens))
        for host in ring:
            if refusal := self.hosts.expect(action, host, HostState.RUNNING):
                return refusal
        moving = self.rings.follow(action.operator, ring, self.reconciler.ran(), action.why)
        if not moving:
            return Outcome(action, Status.DONE)
        return Outcome(action, Status.ACCEPTED, f"{counted(moving, 'state partition')} on the way")

    def _zone(self, host: str) -> str:
        return self.hosts.leases[host].zone

    # -- observation ---------------------------------------------------------------------------------------------------

    def _observe(self, now: float) -> Observation:
        wall = self.instruments.wall()
        batches = self.queries.look(now, wall)
        live = self.queries.live
        loads = {name: each for query in live for name, each in query.loads(wall).items()}
        observation = self._described(now, wall, live, loads, batches)
        critical = is_critical(observation.application, self._scope.target_latency)
        self._load = ObservedLoad(weights(observation.tasks), observation.capacities, critical)
        self._history = [*self._history[-HISTORY + 1 :], Sample(now, observation.operators)]
        return observation

    def _described(
        self, now: float, wall: float, live: Sequence[Query], loads: Mapping[str, Any], batches: Sequence[MicroBatch]
    ) -> Observation:
        context, held = self.context, self.reconciler.held()
        leases = self.hosts.active
        working = [name for name, lease in leases.items() if lease.state in (HostState.RUNNING, HostState.DRAINING)]
        cores = sum(lease.type.cores for lease in leases.values() if lease.state is HostState.RUNNING)
        traffic, host_of = self.instruments.traffic, self.hosts.host_of()
        there = [name for name in leases if name in set(host_of.values())]
        links = Frame() if traffic is None else traffic.links(host_of, there, self._scope.terms.link_rate)
        probes = self.instruments.speeds
        speeds: Mapping[str, HostSpeed] = {} if probes is None else probes.look(host_of, leases, now)
        measured, copies = self.hosts.provider.measure(), self.standby.memory()
        span = whole_batches([[batch.end for batch in query.batches] for query in live], wall)
        hosts = self._watch.frame(leases, held, links, self.hosts.use, measured, now, speeds, copies, span)
        used = cores_used(hosts, {name: leases[name] for name in working}, self.hosts.compiling)
        operators = self.queries.operators(wall, loads, cores, used)
        behind = seconds_waiting(context.graph, operators)
        tasks = task_frame(context.graph, tuple(leases), held, loads, self.standby.lags(), behind)
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
            alarms=self.alarms.standing,
            rings=self.rings.standing,
            moving=frozenset(self.placing.wanted()),
            standby=self.standby.observed(tasks.tasks, hosts.ids),
            latency_basis=self.queries.latency_basis(),
            stalled=self.queries.stalled(wall),
        )

    def _seen_again(self, last: Observation, now: float) -> Observation:
        return replace(last, time=now, batches=(), alarms=self.alarms.standing)


def is_critical(application: Frame, target: float | None) -> bool:
    """Whether the application misses its service level: its mean response time is above the target.

    That is E2DF's rule: it compares the mean with the maximum that users accept. By a quantile one slow batch would make an
    application critical, which then takes shared hosts from others. Unknown is not critical.
    """
    return target is not None and any(application.value(name, Metric.LATENCY) > target for name in application.ids)
