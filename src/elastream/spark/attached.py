"""A plant over a session and queries that someone else started: nothing is compiled, nothing restarted, no setting changed.

It speaks the language of the other plants. A query is a source, its stages with state, and a sink; a state partition is a
task; an executor is a host. What a foreign query does not tell - when its records were due, what an operator inside a
stage takes - stays unknown, and a policy does nothing where it would have to know.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

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
from elastream.model.cloud import ACTIVE, HostState, HostType, Lease, total_cost
from elastream.model.errors import ElastreamError
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
from elastream.spark.allocation import VolatilePlan
from elastream.spark.attached_frames import application_frame, layout_of, operator_frame, task_frame
from elastream.spark.driver_side import DriverSide
from elastream.spark.hosts import Provider
from elastream.spark.placing import Limits, Placing
from elastream.spark.run_clock import RunClock
from elastream.spark.seats import UNLIMITED, Seats
from elastream.spark.task_watch import TaskLoads
from elastream.spark.traffic import Traffic
from elastream.spark.watched import WatchedBatch, WatchedQuery

__all__ = ["AttachedPlant"]

HISTORY = 120
"""Observations that an observation looks back on: ten minutes at one every five seconds."""
COST = 0.05
"""Cores that looking may use. After a look that took a second the next comes twenty seconds later at the earliest: a busy
driver is asked less, not more."""
RESTART = 15.0
"""Seconds that a query which has ended is waited for: the user may start it again from its checkpoint."""
STEP, LONG_STEP, RECENTLY = 0.1, 1.0, 10.0
"""Seconds between two looks for the end of a batch, while tasks wait to be moved; the longer ones where no batch of the
query has ended for the last RECENTLY seconds."""
FEW = Limits(per_host=4, lazy=False)
"""Partitions that one batch may load on one executor: their state is read by the batch that needs it, one after another."""
CALM = 0.1
"""Seconds that a thread waits before it looks whether there is something to do at all."""
NAN = float("nan")


class AttachedPlant:
    """The queries of `spark` that are chosen, and its executors. Close it; the queries and the session go on.

    task_loads: how to see where partitions run and what they take; without it both are unknown, and nothing is moved.
    chosen: tells the ids of the queries to look after, None for every query that runs. hands_off: nothing is done that was
    not applied, whatever leaves. traffic: measures who sends whom how much as well, a call more a look and query.
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
        kind: HostType | None = None,
        allowed: int = UNLIMITED,
        hands_off: bool = False,
        traffic: Traffic | None = None,
    ) -> None:
        self._spark, self._driver, self._chosen = spark, driver, chosen
        self._task_loads, self._traffic = task_loads, traffic
        self._clock = RunClock()
        self._seats = Seats(spark, driver, self._clock.now, asks=asks, provider=provider, kind=kind, allowed=allowed)
        self._placing = Placing({}, self._clock.now, VolatilePlan(), limits=FEW, benefit=self._load_of)
        self._queries: dict[str, WatchedQuery] = {}
        self._gone_since: dict[str, float] = {}
        self._hands_off = hands_off
        scales = asks or provider is not None
        self._target_latency, self._max_hosts, self._min_hosts = target_latency, max_hosts, min_hosts
        self._kinds = {} if kind is None or not scales else {kind.name: kind}
        self._capabilities = frozenset(
            {"MoveTask", "DrainHost", "CancelDrain", "RenewHost", *(("LeaseHost", "ReleaseHost") if scales else ())}
        )
        self._weights: dict[TaskId, float] = {}
        self._history: list[Sample] = []
        self._last: Observation | None = None
        self._not_before = 0.0
        self.looks, self.look_seconds = 0, 0.0
        self._session_gone = False
        self._closing = threading.Event()
        self._started = self._clock.now()
        self._mover = threading.Thread(target=self._move_along, name="elastream-moves", daemon=True)
        self._mover.start()

    @property
    def context(self) -> Context:
        """What is watched, as of the last look: it changes when queries come and go."""
        return Context(
            layout=layout_of(tuple((query.name, query.operators) for query in self._live())),
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
        return tuple(self._seats.leases.values())

    @property
    def placing(self) -> Placing:
        """The state partitions."""
        return self._placing

    @property
    def queries(self) -> tuple[WatchedQuery, ...]:
        """The queries watched so far."""
        return tuple(self._queries.values())

    @property
    def session_gone(self) -> bool:
        """Whether the session was stopped."""
        return self._session_gone

    def describe(self, host: str) -> str:
        """A host as people know it."""
        return self._seats.describe(host)

    @property
    def finished(self) -> bool:
        """Whether the session was stopped, or none of the queries has run for RESTART seconds."""
        if self._session_gone:
            return True
        now = self._clock.now()
        running = any(query.run_id is not None for query in self._queries.values())
        return not running and now - max(self._gone_since.values(), default=self._started) > RESTART

    def observe(self) -> Observation:
        """What is known now; where looking is dear, what was known a moment ago."""
        now = self._clock.now()
        if self._last is not None and (now < self._not_before or self._session_gone):
            return self._seen_again(self._last, now)
        began = time.monotonic()
        try:
            observation = self._observe(now)
        except (Py4JError, PySparkException, OSError, AttributeError):
            # A session that is stopped answers in many ways; one that is not has a real fault.
            if not self._stopped():
                raise
            self._session_gone = True
            return self._empty(now) if self._last is None else self._seen_again(self._last, now)
        self.looks, self.look_seconds = self.looks + 1, time.monotonic() - began
        self._not_before = now + self.look_seconds / COST
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
            return Outcome(action, Status.FAILED, str(error).splitlines()[0])

    def close(self) -> None:
        """Stop watching. Queries, session and executors are left as they are."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._clock.wake()
        self._mover.join(5)
        self._placing.close()
        if not self._session_gone and not self._stopped():
            try:
                self._seats.unbind()
            except (Py4JError, PySparkException, OSError):
                self._session_gone = True
        self._seats.close()

    # -- actions -------------------------------------------------------------------------------------------------------

    def _apply(self, action: Action) -> Outcome:
        match action:
            case MoveTask(task, host):
                return self._move(action, task, host)
            case LeaseHost(host, kind):
                return self._lease(action, host, kind)
            case RenewHost(host):
                return self._seats.expect(action, host, *ACTIVE) or Outcome(action, Status.DONE)
            case DrainHost(host) | ReleaseHost(host):
                return self._empty_and_end(action, host)
            case CancelDrain(host):
                return self._cancel_drain(action, host)
        return Outcome(action, Status.REFUSED, "a query that someone else wrote runs as it was written")

    def _move(self, action: MoveTask, task: TaskId, host: str) -> Outcome:
        if task not in self._placing.tasks:
            return Outcome(action, Status.REFUSED, f"there is no task {task}")
        if refusal := self._seats.expect(action, host, HostState.RUNNING):
            return refusal
        if task not in self._placing.wanted() and self.ran().get(task) == host:
            return Outcome(action, Status.DONE)
        self._placing.want(task, host, action.why)
        return Outcome(action, Status.ACCEPTED)

    def _lease(self, action: Action, host: str, kind: str) -> Outcome:
        known = self._seats.leases.get(host)
        if known is not None and known.active:
            return Outcome(action, Status.DONE)
        if known is not None:
            return Outcome(action, Status.REFUSED, f"host {host!r} is {known.state}; take a new name")
        if kind not in self._kinds:
            return Outcome(action, Status.REFUSED, f"there is no host type {kind!r}")
        if not host or sum(lease.active for lease in self._seats.leases.values()) >= self._max_hosts:
            return Outcome(action, Status.REFUSED, f"all {self._max_hosts} hosts are leased")
        self._seats.lease(host)
        return Outcome(action, Status.ACCEPTED)

    def _empty_and_end(self, action: DrainHost | ReleaseHost, host: str) -> Outcome:
        state, releases = self._seats.state(host), isinstance(action, ReleaseHost)
        if releases and "ReleaseHost" not in self._capabilities:
            return Outcome(action, Status.REFUSED, "executors cannot be given back here")
        if state is HostState.DRAINING and not releases:
            return Outcome(action, Status.DONE)
        if releases and state in (HostState.RELEASING, HostState.RELEASED):
            return Outcome(action, Status.DONE if state is HostState.RELEASED else Status.ACCEPTED)
        if releases and state is HostState.REQUESTED:
            self._seats.release(host)
            return Outcome(action, Status.DONE)
        states = (HostState.STARTING, HostState.RUNNING, HostState.DRAINING) if releases else (HostState.RUNNING,)
        if refusal := self._seats.expect(action, host, *states):
            return refusal
        if not [name for name in self._seats.usable if name != host]:
            return Outcome(action, Status.REFUSED, f"{host!r} is the only host that takes tasks")
        if releases:
            self._seats.release(host)
        else:
            self._seats.drain(host)
        self._move_away(host)
        return Outcome(action, Status.ACCEPTED)

    def _cancel_drain(self, action: Action, host: str) -> Outcome:
        if self._seats.state(host) is HostState.RUNNING:
            return Outcome(action, Status.DONE)
        if refusal := self._seats.expect(action, host, HostState.DRAINING):
            return refusal
        if self._seats.leaving(host):
            return Outcome(action, Status.REFUSED, f"Spark gives host {host!r} nothing more")
        self._seats.cancel_drain(host)
        return Outcome(action, Status.DONE)

    # -- moving --------------------------------------------------------------------------------------------------------

    def ran(self) -> dict[TaskId, str]:
        """Host that each task ran on last, where both are known."""
        hosts = self._seats.host_of()
        return {task: hosts[e] for query in self._live() for task, e in query.ran.items() if e in hosts}

    def _held(self) -> dict[TaskId, str]:
        """The same, with migrations under way counted as done."""
        wanted = self._placing.wanted()
        return self.ran() | dict(wanted)

    def _move_away(self, host: str) -> None:
        """Want everything on `host` elsewhere, the heaviest first, always where it leaves the least load a slot."""
        held, leases, others = self._held(), self._seats.leases, self._seats.usable
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
            self._placing.want_all(wishes, f"{self._seats.describe(host)} is leaving")

    def _load_of(self, task: TaskId) -> float:
        return self._weights.get(task, 0.0)

    def _move_along(self) -> None:
        """The thread that takes migrations along with the ends of batches. It costs nothing while nothing waits."""
        ended: dict[str, int] = {}
        last_end = self._clock.now()
        pause = CALM
        while not self._closing.wait(pause):
            waiting = {task.operator for task in self._placing.wanted()}
            pause = CALM
            if not waiting or self._session_gone:
                continue
            pause = STEP if self._clock.now() - last_end < RECENTLY else LONG_STEP
            for query in self._live():
                if waiting.isdisjoint(query.operators):
                    continue
                try:
                    batch = query.last_batch()
                    if batch != ended.get(query.id):
                        ended[query.id], last_end = batch, self._clock.now()
                        self._placing.batch_ended(query.operators, batch, self._seats.target)
                except (Py4JError, PySparkException, OSError, AttributeError, KeyError):
                    # A query that ends, or a session that is stopped, in the middle of it: the next look tells.
                    continue

    # -- observation ---------------------------------------------------------------------------------------------------

    def _live(self) -> tuple[WatchedQuery, ...]:
        return tuple(query for query in tuple(self._queries.values()) if query.run_id is not None)

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
        self._seats.look()
        self._see_queries(now)
        live = self._live()
        wanted = dict(self._placing.wanted())
        fresh = [(query, batch) for query in live for batch in query.look()]
        held = self.ran() | wanted
        self._step_hosts(live, held)
        return self._described(now, wall, live, held, fresh)

    def _see_queries(self, now: float) -> None:
        chosen = self._chosen()
        running = {}
        for query_id, run_id, name in self._driver.ask("queries", self._spark._jsparkSession.streams()):
            if chosen is None or query_id in chosen:
                running[query_id] = run_id
                if query_id not in self._queries:
                    name = self._unique(name or query_id[:8])
                    self._queries[query_id] = WatchedQuery(
                        self._spark, self._driver, self._task_loads, query_id, name, self._placing, self._traffic
                    )
                self._queries[query_id].run(run_id)
                self._gone_since.pop(query_id, None)
        for query_id, query in self._queries.items():
            if query_id not in running and query.run_id is not None:
                query.end()
                self._gone_since[query_id] = now

    def _unique(self, name: str) -> str:
        names = {query.name for query in self._queries.values()}
        return (
            name
            if name not in names
            else next(f"{name}~{n}" for n in range(2, len(names) + 3) if f"{name}~{n}" not in names)
        )

    def _step_hosts(self, live: Sequence[WatchedQuery], held: Mapping[TaskId, str]) -> None:
        if self._hands_off:
            return
        occupied = set(held.values())
        for name, lease in self._seats.leases.items():
            if lease.state in (HostState.DRAINING, HostState.RELEASING) and name in occupied:
                self._move_away(name)
        self._seats.step({query.id: query.newest for query in live}, lambda host: host in occupied)

    def _described(
        self,
        now: float,
        wall: float,
        live: Sequence[WatchedQuery],
        held: Mapping[TaskId, str],
        fresh: Iterable[tuple[WatchedQuery, WatchedBatch]],
    ) -> Observation:
        context = self.context
        leases = {name: lease for name, lease in self._seats.leases.items() if lease.active}
        working = [n for n, lease in leases.items() if lease.state in (HostState.RUNNING, HostState.DRAINING)]
        use = [self._seats.use(name) if name in working else NAN for name in leases]
        cores = sum(leases[name].type.cores * self._seats.use(name) for name in working)
        loads = {name: query.loads(stage, wall) for query in live for stage, name in query.placed()}
        self._weights = {
            TaskId(name, p): each for name, row in loads.items() for p, each in enumerate(row.busy.tolist()) if each > 0
        }
        operators = operator_frame(context.graph, live, loads, wall, cores)
        count = Counter(held.values())
        tasks = task_frame(context.graph, held, tuple(leases), loads)
        observation = Observation(
            time=now,
            context=context,
            operators=operators,
            application=application_frame(context.graph, live, wall, total_cost(self.ledger, now)),
            hosts=Frame(tuple(leases), {Metric.CPU: use, Metric.TASKS: [count[name] for name in leases]}),
            tasks=tasks,
            links=Frame() if self._traffic is None else self._traffic.links(self._seats.host_of(), working),
            exchange=UNMEASURED if self._traffic is None else self._traffic.exchange(tasks.tasks, wall),
            leases=leases,
            composition=Composition(),
            history=tuple(self._history),
            next_host=self._seats.next_number,
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
