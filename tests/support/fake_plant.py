"""A plant of arithmetic: hosts that come up after a while, tasks that lie where they were put, a load that is told.

The smallest thing that keeps the contract of `model/plant.py`. It serves tests of the loop and of policies; for figures
there is the simulator.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from elastream.core.action import (
    KINDS,
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    RenewHost,
    Repartition,
    SetKeyTable,
    SetParallelism,
    SetTokens,
    Status,
    Switch,
    SwitchAlternate,
    SwitchEdge,
)
from elastream.core.composition import switched
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import Billing, HostState, HostType, Lease, total_cost
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Context, Observation, Sample
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import lay_out
from support.fake_clock import FakeClock

SMALL = HostType("small", cores=1.0, price=1.0, billing=Billing(10.0), start=4.0, stop=2.0)
BIG = HostType("big", cores=4.0, price=3.0, billing=Billing(10.0), start=4.0, stop=2.0)


def word_count() -> Dataflow:
    """Source -> words (two alternates) -> count (keyed) -> either of two sinks."""
    flow = Dataflow("word_count")
    lines = flow.source(None)
    words = lines.flat_map({"split": str.split, "split_fast": str.split}, returns="word string", name="words")
    counts = words.key_by("word").count().choice("where")
    counts.sink(None, name="table")
    counts.sink(None, name="archive")
    return flow


class FakePlant:
    """source and words run fused as one stage on any host; `count` has state partitions that lie on hosts.

    arrival_rate: records/s, set by the test, at `cost` core-seconds each; what exceeds the cores of the running hosts
    queues up. `lose(host)` makes one die. `time_limit`: when the load ends.
    """

    def __init__(  # noqa: PLR0913
        self,
        *,
        hosts: int = 1,
        partitions: int = 4,
        arrival_rate: float = 10.0,
        cost: float = 0.01,
        max_hosts: int = 6,
        min_hosts: int = 1,
        target_latency: float | None = 2.0,
        time_limit: float = math.inf,
        history: int = 60,
    ) -> None:
        layout = lay_out(word_count().graph)
        self.context = Context(
            layout,
            {kind.name: kind for kind in (SMALL, BIG)},
            target_latency,
            max_hosts,
            min_hosts,
            frozenset(KINDS),
            frozenset({"source"}),
            {"count": partitions},
        )
        self.clock = FakeClock()
        self.arrival_rate = arrival_rate
        self.cost = cost
        self.time_limit = time_limit
        self.applied: list[Action] = []
        self.closed = 0
        self._composition = self._effective = Composition.default(layout.graph, {stage.name: 1 for stage in layout.stages})
        self._composed_at = -math.inf
        self._leases = {
            f"h{n}": Lease(f"h{n}", SMALL, 0.0).to(HostState.STARTING, 0.0).to(HostState.RUNNING, 0.0)
            for n in range(1, hosts + 1)
        }
        self._where = {TaskId("count", index): f"h{index % hosts + 1}" if hosts else "" for index in range(partitions)}
        self._rings: dict[str, Ring] = {}
        self._backlog = 0.0
        self._seen_at = 0.0
        self._depth = history
        self._history: tuple[Sample, ...] = ()

    @property
    def finished(self) -> bool:
        return self.clock.now() >= self.time_limit and self._backlog <= 0

    @property
    def ledger(self) -> Sequence[Lease]:
        return tuple(self._leases.values())

    def observe(self) -> Observation:
        now = self.clock.now()
        self._pass_time(now)
        active = {lease.host: lease for lease in self._leases.values() if lease.active}
        arriving = self.arrival_rate if now < self.time_limit else 0.0
        processed = self._serve(now, arriving)
        operators = self._operators(arriving, processed)
        rows = {host: row for row, host in enumerate(active)}
        placed = {task: host for task, host in self._where.items() if host}
        late = self._backlog / processed if processed else math.nan
        observation = Observation(
            now,
            self.context,
            operators,
            Frame(
                [self.context.graph.name],
                {
                    Metric.THROUGHPUT: [processed],
                    Metric.LATENCY_P50: [late + 0.2],
                    Metric.LATENCY_P99: [late + 0.5],
                    Metric.COST: [total_cost(self.ledger, now)],
                },
            ),
            Frame(tuple(active), {Metric.TASKS: [list(placed.values()).count(host) for host in active]}),
            TaskFrame(
                [operators.rows[task.operator] for task in placed],
                [task.index for task in placed],
                [rows[host] for host in placed.values()],
                operators.ids,
            ),
            leases=active,
            composition=self._composition,
            effective={segment.name: self._effective for segment in self.context.layout.segments},
            history=tuple(sample for sample in self._history if sample.time < now),
            rings=dict(self._rings),
            next_host=1 + max((int(host[1:]) for host in self._leases if host[1:].isdigit()), default=0),
        )
        self._history = (*observation.history, Sample(now, operators))[-self._depth :]
        return observation

    def apply(self, action: Action) -> Outcome:
        self.applied.append(action)
        self._pass_time(self.clock.now())
        if self.closed:
            return Outcome(action, Status.REFUSED, "the plant is closed")
        return self._apply(action)

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        self.applied.extend(switches)
        return self._switch(switches)

    def _switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        self._pass_time(self.clock.now())
        if self.closed:
            return tuple(Outcome(each, Status.REFUSED, "the plant is closed") for each in switches)
        refused = {each: self._refusal(each) for each in switches}
        self._take(switched(self._composition, [each for each in switches if not refused[each]]))
        done = Status.DONE if self._effective is self._composition else Status.ACCEPTED
        return tuple(
            Outcome(each, Status.REFUSED, refused[each]) if refused[each] else Outcome(each, done, "with the next batch")
            for each in switches
        )

    def _refusal(self, switch: Switch) -> str:
        if isinstance(switch, SetKeyTable) and switch.table:
            return switch.refusal(self.context.graph) or f"there is no key table of version {switch.table}"
        return switch.refusal(self.context.graph)

    def incidents(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None:
        self.closed += 1
        now = self.clock.now()
        for host, lease in self._leases.items():
            if lease.active:
                self._leases[host] = _ended(lease, now)

    def lose(self, host: str, why: str = "") -> None:
        """Let `host` die now."""
        self._leases[host] = replace(self._leases[host].to(HostState.LOST, self.clock.now()), note=why)
        self._empty(host)

    def _apply(self, action: Action) -> Outcome:  # noqa: C901
        now, composition = self.clock.now(), self._composition
        match action:
            case SwitchAlternate() | SwitchEdge() | SetKeyTable():
                return self._switch((action,))[0]
            case SetParallelism(operator, instances):
                if operator not in self.context.scalable or instances < 1:
                    return Outcome(action, Status.REFUSED, f"{operator} cannot have {instances} instances")
                return self._compose(action, parallelism={**composition.parallelism, operator: instances})
            case MoveTask(task, host):
                if task not in self._where or not self._is(host, HostState.RUNNING):
                    return Outcome(action, Status.REFUSED, f"{task} cannot go to {host}")
                self._where[task] = host
                self._rings.pop(task.operator, None)
                return Outcome(action, Status.DONE)
            case SetTokens(operator, tokens):
                refused = action.refusal(self.context.partitions)
                if refused or not all(self._is(host, HostState.RUNNING) for host, _ in tokens):
                    return Outcome(action, Status.REFUSED, refused or "a host of the ring does not run")
                self._rings[operator] = Ring(dict(tokens))
                for index, host in enumerate(self._rings[operator].hosts_of(self.context.partitions[operator])):
                    self._where[TaskId(operator, index)] = host
                return Outcome(action, Status.DONE)
            case Repartition():
                return Outcome(action, Status.REFUSED, "the state keeps its partitions here")
            case LeaseHost(host, kind):
                if host in self._leases and self._leases[host].active and self._leases[host].type.name == kind:
                    return Outcome(action, Status.DONE)
                if host in self._leases or not host or kind not in self.context.host_types:
                    return Outcome(action, Status.REFUSED, f"{host!r} cannot be leased as {kind!r}")
                self._leases[host] = Lease(host, self.context.host_types[kind], now)
                return Outcome(action, Status.ACCEPTED)
        return self._apply_to_host(action, action.host)

    def _apply_to_host(self, action: Action, host: str) -> Outcome:
        if host not in self._leases:
            return Outcome(action, Status.REFUSED, f"host {host!r} was never leased")
        state, now = self._leases[host].state, self.clock.now()
        gone = state in (HostState.RELEASING, HostState.RELEASED, HostState.LOST)
        match action:
            case RenewHost() if not gone:
                return Outcome(action, Status.DONE)
            case DrainHost() if state in (HostState.RUNNING, HostState.DRAINING):
                self._leases[host] = self._leases[host].to(HostState.DRAINING, now)
                self._empty(host)
                return Outcome(action, Status.DONE)
            case CancelDrain() if state in (HostState.RUNNING, HostState.DRAINING):
                self._leases[host] = self._leases[host].to(HostState.RUNNING, now)
                return Outcome(action, Status.DONE)
            case ReleaseHost() if gone:
                return Outcome(action, Status.ACCEPTED if state is HostState.RELEASING else Status.DONE)
            case ReleaseHost():
                self._empty(host)
                if host in self._where.values():
                    return Outcome(action, Status.REFUSED, f"nothing else could hold what {host} holds")
                leaving = HostState.RELEASED if state is HostState.REQUESTED else HostState.RELEASING
                self._leases[host] = self._leases[host].to(leaving, now)
                return Outcome(action, Status.ACCEPTED)
        return Outcome(action, Status.REFUSED, f"host {host} is {state}")

    def _compose(self, action: Action, **changes: dict) -> Outcome:
        changed = replace(self._composition, **changes)
        if changed != self._composition:
            self._take(replace(changed, version=self._composition.version + 1))
        return Outcome(action, Status.DONE)

    def _take(self, composition: Composition) -> None:
        if composition is not self._composition:
            self._composition, self._composed_at = composition, self.clock.now()

    def _works(self, host: str) -> bool:
        return self._is(host, HostState.RUNNING) or self._is(host, HostState.DRAINING)

    def _is(self, host: str, state: HostState) -> bool:
        return host in self._leases and self._leases[host].state is state

    def _empty(self, host: str) -> None:
        """Move what `host` holds to other running hosts; where there are none a dead host's tasks lie nowhere."""
        others = [name for name in self._leases if name != host and self._is(name, HostState.RUNNING)]
        for operator, ring in list(self._rings.items()):
            if host in ring and len(ring) > 1:
                self._rings[operator] = ring = ring.without(host)
                for index, heir in enumerate(ring.hosts_of(self.context.partitions[operator])):
                    if self._where[TaskId(operator, index)] == host:
                        self._where[TaskId(operator, index)] = heir
            elif host in ring:
                del self._rings[operator]
        for number, task in enumerate([task for task, at in self._where.items() if at == host]):
            if others:
                self._where[task] = others[number % len(others)]
            elif not self._leases[host].active:
                self._where[task] = ""

    def _pass_time(self, now: float) -> None:
        if now > self._composed_at:
            self._effective = self._composition
        for host, lease in self._leases.items():
            if lease.state is HostState.REQUESTED and now > lease.since:
                lease = lease.to(HostState.STARTING, now)
            if lease.state is HostState.STARTING and now >= lease.since + lease.type.start:
                lease = lease.to(HostState.RUNNING, now)
            if lease.state is HostState.RELEASING and now >= lease.history[-1][0] + lease.type.stop:
                lease = lease.to(HostState.RELEASED, now)
            self._leases[host] = lease
        running = [host for host in self._leases if self._is(host, HostState.RUNNING)]
        for number, (task, host) in enumerate(self._where.items()):
            if not host and running:
                self._where[task] = running[number % len(running)]

    def _serve(self, now: float, arriving: float) -> float:
        """Records/s processed since the last observation; the rest queues up."""
        cores = sum(self._leases[h].type.cores for h in self._leases if self._works(h))
        seconds, self._seen_at = now - self._seen_at, now
        if not seconds:
            return arriving if not self._backlog else cores / self.cost
        due = self._backlog + arriving * seconds
        done = min(due, cores / self.cost * seconds)
        self._backlog = due - done
        return done / seconds

    def _operators(self, arriving: float, processed: float) -> Frame:
        names = self.context.graph.order
        sinks = [math.nan] * len(self.context.graph.sinks)
        reading = len(names) - len(sinks)
        return Frame(
            names,
            {
                Metric.ARRIVAL_RATE: [arriving, *[processed] * (reading - 1), *sinks],
                Metric.PROCESSED_RATE: [*[processed] * reading, *sinks],
                Metric.BACKLOG: [self._backlog, *[math.nan] * (len(names) - 1)],
                Metric.BUSY_CORES: [
                    processed * self.cost / 2 if name in ("words", "count") else math.nan for name in names
                ],
            },
        )


def _ended(lease: Lease, now: float) -> Lease:
    if lease.state is HostState.REQUESTED:
        return lease.to(HostState.RELEASED, now)
    return lease.to(HostState.RELEASING, now).to(HostState.RELEASED, now)
