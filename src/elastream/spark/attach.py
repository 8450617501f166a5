"""A plant over a session and queries that someone else started: nothing is compiled, nothing restarted, no setting changed.

It speaks the language of the other plants. A query is a source, its stages with state, and a sink; a state partition is a
task; an executor is a host. What a foreign query does not tell - when its records were due, what an operator inside a
stage takes - stays unknown, and a policy does nothing where it would have to know.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from elastream.clouds.provider import Provider, Terms
from elastream.model.action import (
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    RenewHost,
    Status,
    TaskId,
)
from elastream.model.cloud import HostState, HostType, Lease
from elastream.model.errors import ElastreamError, in_one_line
from elastream.model.observation import (
    UNMEASURED,
    Composition,
    Context,
    Frame,
    Metric,
    MicroBatch,
    Observation,
    Sample,
)
from elastream.spark.attached_moves import FEW, Moves
from elastream.spark.clock import RunClock
from elastream.spark.hosts.actions import HostActions
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.hosts.session_executors import SessionExecutors
from elastream.spark.jvm.allocation import UNLIMITED, AllocationClient
from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.executors import Executors
from elastream.spark.placement.allocation import VolatilePlan
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.watched import WatchedBatch, WatchedQueries, WatchedQuery
from elastream.spark.queries.watched_frames import application_frame, layout_of, operator_frame, task_frame
from elastream.spark.telemetry.rounds import Rounds
from elastream.spark.telemetry.tasks import TaskLoads
from elastream.spark.telemetry.traffic import Traffic

__all__ = ["AttachedPlant"]

HISTORY = 120
"""Observations that an observation looks back on: ten minutes at one every five seconds."""
COST = 0.05
"""Cores that looking may use: after a look that took a second of CPU, here and in the JVM, the next comes twenty seconds
later at the earliest. And after one that the driver took long to answer, at the earliest as long again."""
ASKING = 90.0
"""Seconds for which the cluster manager is asked for an executor; a cold one takes about 15."""
RESTART = 15.0
"""Seconds that a query which has ended is waited for: the user may start it again from its checkpoint."""
LEAVING = 0.5
"""Seconds between two looks at hosts that are given back."""
NAN = float("nan")


class AttachedPlant:
    """The queries of `spark` that are chosen, and its executors. Close it; the queries and the session go on.

    task_loads: how to see where partitions run and what they take; without it both are unknown, and nothing is moved.
    chosen: tells the ids of the queries to look after, None for every query that runs. kinds: what is leased of `provider`;
    where executors are asked of Spark (`asks`), what one of them is taken for. hands_off: nothing is done that was not
    applied, whatever leaves. gives_back: seconds that `close` takes to release hosts of the provider, which ends soon.
    traffic: measures who sends whom how much as well, a call more a look and query.
    """

    def __init__(
        self,
        spark: SparkSession,
        driver: DriverSide,
        task_loads: TaskLoads | None,
        *,
        chosen: Callable[[], frozenset[str] | None] = lambda: None,
        target_latency: float | None = None,
        max_hosts: int = 0,
        min_hosts: int = 1,
        asks: bool = False,
        provider: Provider | None = None,
        kinds: Sequence[HostType] = (),
        allowed: int = UNLIMITED,
        hands_off: bool = False,
        gives_back: float = 0.0,
        traffic: Traffic | None = None,
    ) -> None:
        self._spark, self._driver, self._traffic = spark, driver, traffic
        self._clock = RunClock()
        client, executors = AllocationClient(spark), Executors(driver)
        self._session = SessionExecutors(client, executors, Terms(tuple(kinds), max_hosts, patience=ASKING), allowed)
        self._hosts = Hosts(
            executors, provider or self._session, self._clock.now, fence=client.fence, session=self._session
        )
        self._rounds = Rounds()
        self._placing = Placing({}, self._clock.now, VolatilePlan(), limits=FEW)
        self._queries = WatchedQueries(spark, driver, task_loads, self._placing, chosen, traffic)
        self._moves = Moves(self._placing, self._queries, self._hosts, self._clock.now)
        self._hands_off, self._gives_back = hands_off, gives_back
        self.kept: tuple[str, ...] = ()
        scales = asks or provider is not None
        self._target_latency, self._max_hosts, self._min_hosts = target_latency, max_hosts, min_hosts
        self._kinds = {kind.name: kind for kind in kinds} if scales else {}
        self._capabilities = frozenset(
            {"MoveTask", "DrainHost", "CancelDrain", "RenewHost", *(("LeaseHost", "ReleaseHost") if scales else ())}
        )
        self._host_actions = HostActions(self._hosts, self._kinds, max_hosts, self._moves.empty)
        self._history: list[Sample] = []
        self._last: Observation | None = None
        self._not_before = 0.0
        self.looks, self.look_seconds, self.look_cpu_seconds = 0, 0.0, 0.0
        self._session_gone = False
        self._closing = threading.Event()

    @property
    def context(self) -> Context:
        """What is watched, as of the last look: it changes when queries come and go."""
        return Context(
            layout=layout_of(tuple((query.name, query.operators) for query in self._queries.live)),
            host_types=self._kinds,
            capabilities=self._capabilities,
            target_latency=self._target_latency,
            max_hosts=self._max_hosts,
            min_hosts=self._min_hosts,
        )

    @property
    def clock(self) -> RunClock:
        """Time since it was attached."""
        return self._clock

    @property
    def ledger(self) -> Sequence[Lease]:
        """Every host seen so far."""
        return tuple(self._hosts.leases.values())

    @property
    def placing(self) -> Placing:
        """The state partitions."""
        return self._placing

    @property
    def queries(self) -> tuple[WatchedQuery, ...]:
        """The queries watched so far."""
        return self._queries.all

    @property
    def session_gone(self) -> bool:
        """Whether the session was stopped."""
        return self._session_gone

    def ran(self) -> Mapping[TaskId, str]:
        """Host that each task ran on last, where both are known."""
        return self._moves.ran()

    def describe(self, host: str) -> str:
        """A host as people know it."""
        return self._hosts.describe(host)

    @property
    def finished(self) -> bool:
        """Whether the session was stopped, or none of the queries has run for RESTART seconds."""
        if self._session_gone:
            return True
        return self._queries.gone_for(self._clock.now()) > RESTART

    def observe(self) -> Observation:
        """What is known now; where looking is dear, what was known a moment ago."""
        now = self._clock.now()
        if self._last is not None and (now < self._not_before or self._session_gone):
            return self._seen_again(self._last, now)
        began = time.monotonic()
        try:
            spent = self._driver.cpu_seconds()
            observation = self._observe(now)
            spent = self._driver.cpu_seconds() - spent
        except (Py4JError, PySparkException, OSError, AttributeError):
            # A session that is stopped answers in many ways; one that is not has a real fault.
            if not self._stopped():
                raise
            self._session_gone = True
            return self._empty(now) if self._last is None else self._seen_again(self._last, now)
        self.looks, self.look_seconds = self.looks + 1, time.monotonic() - began
        self.look_cpu_seconds += spent
        self._not_before = now + max(spent / COST, 2 * self.look_seconds)
        self._last = observation
        return observation

    def apply(self, action: Action) -> Outcome:
        """Do one action, or say why not."""
        if self._closing.is_set() or self._session_gone:
            return Outcome(action, Status.REFUSED, "it watches no longer")
        self._not_before = 0.0  # what it changes is to be seen
        try:
            return self._apply(action)
        except (Py4JError, PySparkException, OSError, ElastreamError) as error:
            return Outcome(action, Status.FAILED, in_one_line(error))

    def close(self) -> None:
        """Stop watching. Queries, session and executors are left as they are, except hosts that are given back."""
        if self._closing.is_set():
            return
        if self._gives_back and self._queries.live:
            with contextlib.suppress(Py4JError, PySparkException, OSError, AttributeError, ElastreamError):
                self._give_back()
        self._closing.set()
        self._clock.wake()
        self._moves.close()
        if not self._session_gone and not self._stopped():
            try:
                self._session.close()
            except (Py4JError, PySparkException, OSError):
                self._session_gone = True
        self._hosts.close()

    def _give_back(self) -> None:
        """Release the provider's hosts that others can do the work of, and wait until they are gone."""
        until = time.monotonic() + self._gives_back
        refused = {host for host in self._hosts.leased if not self._host_actions.apply(ReleaseHost(host)).succeeded}
        self.kept = tuple(sorted(refused))
        while set(self._hosts.leased) - refused and time.monotonic() < until and not self._session_gone:
            self._observe(self._clock.now())
            time.sleep(LEAVING)

    # -- actions -------------------------------------------------------------------------------------------------------

    def _apply(self, action: Action) -> Outcome:
        match action:
            case MoveTask():
                return self._moves.apply(action)
            case ReleaseHost() if "ReleaseHost" not in self._capabilities:
                return Outcome(action, Status.REFUSED, "executors cannot be given back here")
            case CancelDrain(host) if self._hosts.leaving(host):
                return Outcome(action, Status.REFUSED, f"Spark gives host {host!r} nothing more")
            case LeaseHost() | RenewHost() | DrainHost() | CancelDrain() | ReleaseHost():
                return self._host_actions.apply(action)
        return Outcome(action, Status.REFUSED, "a query that someone else wrote runs as it was written")

    # -- observation ---------------------------------------------------------------------------------------------------

    def _stopped(self) -> bool:
        context: Any = self._spark.sparkContext._jsc
        try:
            return context is None or context.sc().isStopped()
        except (Py4JError, OSError, AttributeError):
            return True

    def _observe(self, now: float) -> Observation:
        if self._stopped():
            self._session_gone = True
            return self._empty(now)
        wall = time.time()
        self._hosts.look()
        self._queries.find(now)
        live = self._queries.live
        fresh = [(query, batch) for query in live for batch in query.look()]
        held = self._moves.held()
        self._step_hosts(live, held)
        return self._described(now, wall, live, held, fresh)

    def _step_hosts(self, live: Sequence[WatchedQuery], held: Mapping[TaskId, str]) -> None:
        if self._hands_off:
            return
        for host in self._hosts.recalled:
            # Who owns the hosts has the last word, except where nothing else could do the work.
            if not self._host_actions.apply(ReleaseHost(host)).succeeded:
                self._hosts.keep(host)
        occupied = set(held.values())
        for name, lease in self._hosts.leases.items():
            if lease.state in (HostState.DRAINING, HostState.RELEASING) and name in occupied:
                self._moves.empty(name)
        self._rounds.look({query.id: query.newest for query in live}, frozenset())
        self._hosts.step(batch=self._rounds.count, idle=not live, holds=lambda host: host in occupied)

    def _described(
        self,
        now: float,
        wall: float,
        live: Sequence[WatchedQuery],
        held: Mapping[TaskId, str],
        fresh: Iterable[tuple[WatchedQuery, WatchedBatch]],
    ) -> Observation:
        context = self.context
        leases = {name: lease for name, lease in self._hosts.leases.items() if lease.active}
        working = [n for n, lease in leases.items() if lease.state in (HostState.RUNNING, HostState.DRAINING)]
        use = [self._hosts.use(name) if name in working else NAN for name in leases]
        cores = sum(leases[name].type.cores * self._hosts.use(name) for name in working)
        loads = {name: query.loads(stage, wall) for query in live for stage, name in query.placed()}
        self._moves.weigh(loads)
        operators = operator_frame(context.graph, live, loads, wall, cores)
        count = Counter(held.values())
        tasks = task_frame(context.graph, held, tuple(leases), loads)
        application = application_frame(context.graph, live, wall, self._hosts.cost(now))
        if self._target_latency is not None:
            self._hosts.critical(application.value(context.graph.name, Metric.LATENCY_P99) > self._target_latency)
        observation = Observation(
            time=now,
            context=context,
            operators=operators,
            application=application,
            hosts=Frame(tuple(leases), {Metric.CPU: use, Metric.TASKS: [count[name] for name in leases]}),
            tasks=tasks,
            links=Frame() if self._traffic is None else self._traffic.links(self._hosts.host_of(), working),
            exchange=UNMEASURED if self._traffic is None else self._traffic.exchange(tasks.tasks, wall),
            leases=leases,
            composition=Composition(),
            history=tuple(self._history),
            next_host=self._hosts.next_number,
            batches=tuple(
                MicroBatch(query.name, batch.start - wall + now, batch.seconds, float(batch.rows)) for query, batch in fresh
            ),
        )
        self._history = [*self._history[-HISTORY + 1 :], Sample(now, operators)]
        return observation

    def _seen_again(self, last: Observation, now: float) -> Observation:
        return replace(last, time=now, batches=())

    def _empty(self, now: float) -> Observation:
        context = self.context
        return Observation(now, context, Frame(tuple(context.graph.by_name)))
