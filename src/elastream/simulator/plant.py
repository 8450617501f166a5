"""The simulated plant (`core.plant.Plant`): applies actions and advances time.

Lost work is redone (at least once).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from elastream.core.action import (
    KINDS,
    Action,
    ActionTable,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    RenewHost,
    SetKeyTable,
    SetParallelism,
    SetTokens,
    Status,
    Switch,
    SwitchAlternate,
    SwitchEdge,
)  # fmt: skip
from elastream.core.composition import switched
from elastream.core.fitting import check_host_types, check_replicas
from elastream.core.hosts import HostState, HostType, Lease, by_zones
from elastream.core.observation import Composition, Context, Observation
from elastream.core.ring import Ring
from elastream.core.wording import counted
from elastream.dataflow.key_table import KeyTableBook, KeyTables
from elastream.dataflow.stages import Layout
from elastream.errors import CloudError, DataflowError, InputError
from elastream.policies.common.provision import first_provision
from elastream.simulator.arrivals import Load
from elastream.simulator.batch_watch import BatchMetricsCollector
from elastream.simulator.costs import unsimulated
from elastream.simulator.foresight import FEWEST_ROUNDS, MOST_HOST_ROUNDS, MOST_ROUNDS, Foresight
from elastream.simulator.fused import FusedNetwork
from elastream.simulator.network import QueueNetwork
from elastream.simulator.pool import Event, SimulatedHosts
from elastream.simulator.settings import Settings
from elastream.simulator.staffing import Result, Staffing, result_of
from elastream.simulator.stations import Station
from elastream.simulator.updates import PendingUpdate
from elastream.simulator.watching import MetricsCollector

# Bounds the memory of one advance.
PERIODS_AT_ONCE = 1000


class Advancing(Protocol):
    """A plant whose time passes in `advance` alone."""

    time: float

    def advance(self, until: float) -> None: ...


class SimulatedClock:
    def __init__(self, plant: "Advancing") -> None:
        self._plant = plant

    def now(self) -> float:
        return self._plant.time

    def sleep_until(self, time: float) -> None:
        self._plant.advance(time)


class SimulatedPlant:
    """Simulated implementation of `core.plant.Plant`; see `make_plant`."""

    def __init__(
        self, context: Context, network: QueueNetwork | FusedNetwork, pool: SimulatedHosts, settings: Settings
    ) -> None:
        self.context = context
        self.settings = settings
        self._network = network
        self.pool = pool
        self.time = 0.0
        self.clock = SimulatedClock(self)
        self.composition = Composition.default(context.graph)
        self._watch = (
            BatchMetricsCollector(context, network, pool, settings)
            if isinstance(network, FusedNetwork)
            else MetricsCollector(context, network, pool, settings)
        )
        self.closed = False
        self.staffing = Staffing(network, pool, settings, leaving=self._watch.keep_busy)
        self._foresight: Foresight | None = None
        self._rounds = FEWEST_ROUNDS
        self._result: Result | None = None
        self._actions = self._handlers()

    @property
    def network(self) -> QueueNetwork | FusedNetwork:
        self._arrive()
        return self._network

    @property
    def watch(self) -> MetricsCollector:
        self._arrive()
        return self._watch

    @property
    def ledger(self) -> Sequence[Lease]:
        return self.pool.leases

    @property
    def migrations(self) -> int:
        return self.staffing.migrations

    @property
    def updates(self) -> Sequence[PendingUpdate]:
        return self.network.updates.all

    @property
    def finished(self) -> bool:
        if self._foresight is not None and any(each.load.last >= self.time for each in self._network.sources.values()):
            return False
        return self.network.empty

    def observe(self) -> Observation:
        watch = self._watch if self._foresight is None else self._foresight
        return watch.observation(self.time, self.composition)

    def result(self) -> Result:
        """Return the run's figures so far, or as of closing."""
        return self._result or result_of(self.time, self.staffing, self.watch)

    def incidents(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._result = self.result()
        self.closed = True
        self.pool.end(self.time)

    def advance(self, until: float) -> None:
        if self._foresight is not None:
            if self._foresight.look(until):
                self.time = until
                return
            rounds = min(2 * self._rounds, MOST_ROUNDS) if until > self._foresight.end else 1
            self._arrive()
            self._rounds = rounds
        end = self._foreseeable(until)
        if end > until:
            assert isinstance(self._watch, BatchMetricsCollector)
            self._foresight = Foresight(self._watch, self.time, end)
            if self._foresight.look(until):
                self.time = until
                return
            self._foresight = None
        self._simulate(until)
        self._rounds = max(self._rounds, FEWEST_ROUNDS)

    def _foreseeable(self, until: float) -> float:
        """Return the end of several rounds of one length that only an action can change; `until` if there are none."""
        watch, step, monitor = self._watch, until - self.time, self.settings.monitor
        if not isinstance(watch, BatchMetricsCollector) or watch.traced or not step > 0:
            return until
        ends_period = self.time == watch.ticks * monitor and step == round(step / monitor) * monitor
        if not ends_period or self.settings.shares or self._waiting:
            return until
        change = min(self.pool.next_event, self.pool.next_slot(self.time))
        rounds = min(self._rounds, int(PERIODS_AT_ONCE * monitor / step), 1 + MOST_HOST_ROUNDS // len(self.pool))
        if change < math.inf:
            rounds = min(rounds, math.ceil((change - self.time) / step) - 1)
        return self.time + rounds * step if rounds > 1 and watch.fused.steady else until

    def _arrive(self) -> None:
        ahead, self._foresight = self._foresight, None
        if ahead is None:
            return
        now, self.time, self._rounds = self.time, ahead.begin, 1  # a round that acts is often followed by another
        self._simulate(now)
        assert isinstance(self._watch, BatchMetricsCollector)
        self._watch.delivered(ahead.observed)

    def _simulate(self, until: float) -> None:
        while self.time < until:
            end = min(until, self._horizon, self.pool.next_event)
            if end > self.time:
                self._network.advance(self.time, end, self.pool)
                self.time = end
            while (event := self.pool.due(self.time)) is not None:
                self._happen(event)
            if self.time >= self._watch.next_tick:
                self.staffing.place_rest(self.time)
                for row in self.pool.noticed:
                    self._recall(row)
                self._watch.tick(self.time)

    @property
    def _waiting(self) -> bool:
        """Return True while instances wait for room, or hosts with a notice do."""
        return bool(self.staffing.shortfall or self.pool.noticed)

    @property
    def _horizon(self) -> float:
        network = self._network
        if network.changing:
            return min(self._watch.next_tick, self.time + network.step)
        periods = 0
        if isinstance(network, FusedNetwork) and not self._waiting:
            periods = PERIODS_AT_ONCE
        if periods and self.settings.shares:
            periods = 0  # the records that each partition gets may change with any period
        return min(self._watch.next_tick + periods * self.settings.monitor, self.pool.next_slot(self.time))

    def apply(self, action: Action) -> Outcome:
        if self.closed:
            return Outcome(action, Status.REFUSED, "the simulation is closed")
        self._arrive()
        return self._actions.apply(action)

    def _handlers(self) -> ActionTable:
        table = ActionTable()
        for kind in (SwitchAlternate, SwitchEdge, SetKeyTable):
            table.on(kind, lambda switch: self.switch((switch,))[0])
        table.answer(SetParallelism, self._set_parallelism)
        table.answer(SetTokens, self._set_tokens)
        table.answer(MoveTask, self._move)
        table.answer(LeaseHost, lambda action: self.pool.requested(action, self.context, self.time))
        table.answer(RenewHost, lambda action: self.pool.renew(action.host))
        table.answer(DrainHost, self._drain)
        table.answer(CancelDrain, lambda action: self.pool.cancel_drain(action.host, self.time))
        table.answer(ReleaseHost, self._release)
        return table

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        if self.closed:
            return tuple(Outcome(each, Status.REFUSED, "the simulation is closed") for each in switches)
        graph, tables = self.context.graph, self.network.tables
        refused = {each: each.refusal(graph) or unsimulated(graph, each, self.settings, tables) for each in switches}
        composition = switched(self.composition, [each for each in switches if not refused[each]])
        if composition is not self.composition:
            self.composition = composition
            self.network.compose(composition, self.time)
        return tuple(self._outcome(each, refused[each]) for each in switches)

    def _outcome(self, switch: Switch, refused: str) -> Outcome:
        if refused:
            return Outcome(switch, Status.REFUSED, refused)
        (query,) = switch.segments(self.context.layout)
        effective = self.network.effective.get(query)
        if effective is not None and self.network.follows(query) and switched(effective, [switch]) is effective:
            return Outcome(switch, Status.DONE)
        return Outcome(switch, Status.ACCEPTED, f"in force once {query} has processed records under it")

    def _happen(self, event: Event) -> None:
        pool = self.pool
        if event.row < 0:
            row = pool.fault_target(event)
            if row is not None and pool.announce(event, row):
                self._recall(row)
            elif row is not None:
                self.lose(row)
        elif event.state is HostState.LOST:
            self.lose(event.row)
        elif event.state is HostState.RUNNING:
            if pool.leases[event.row].state is HostState.STARTING:
                pool.to(event.row, HostState.RUNNING, self.time)
        else:
            pool.to(event.row, event.state, self.time)

    def lose(self, row: int) -> None:
        self._arrive()
        self.pool.to(row, HostState.LOST, self.time)
        self.staffing.evict(row, self.time)

    def _recall(self, row: int) -> None:
        """Release a host with a notice, or drain it until its work fits elsewhere. The owner decides, not the policy."""
        host, state = self.pool.leases[row].host, self.pool.leases[row].state
        if self._release(ReleaseHost(host))[0] is Status.REFUSED and state in (HostState.RUNNING, HostState.DRAINING):
            self._drain(DrainHost(host))

    def _station(self, name: str) -> Station | None:
        column = self.staffing.columns.get(name)
        return None if column is None else self.network.stations[column]

    def _set_parallelism(self, action: SetParallelism) -> tuple[Status, str]:
        station = self._station(action.operator)
        if station is None or station.name not in self.network.scalable:
            return Status.REFUSED, f"the parallelism of {action.operator!r} cannot be changed"
        if action.instances < 1:
            return Status.REFUSED, f"{action.operator} needs at least one instance"
        change = action.instances - len(station.crew)
        if change == 0:
            return Status.DONE, ""
        if change < 0:
            refused = self.staffing.shrink(station, -change, action.without)
        else:
            refused = self.staffing.extend(station, change, action.on, self.time)
        if refused:
            return Status.REFUSED, refused
        station.scalings += abs(change)
        self.staffing.upscalings += max(0, change)
        self.staffing.downscalings += max(0, -change)
        self._resize({**self.composition.parallelism, station.name: len(station.crew)})
        return (Status.DONE, "") if change < 0 else (Status.ACCEPTED, "instances are starting")

    def _move(self, action: MoveTask) -> tuple[Status, str]:
        task, host = action.task, action.host
        station = self._station(task.operator)
        rows = np.flatnonzero(station.crew.index == task.index) if station else np.zeros(0)
        target = self.pool.active_row(host)
        if station is None or not rows.size:
            return Status.REFUSED, f"task {task} does not exist"
        if target is None:
            return Status.REFUSED, f"host {host!r} is not leased"
        i = int(rows[0])
        if station.crew.host[i] == target:
            return Status.DONE, ""
        if not self.pool.fits(*station.needs)[target]:
            return Status.REFUSED, f"host {host!r} has no room for {task}"
        self.staffing.shift(station, i, target, self.time)
        station.ring = None  # its placement changes from now on
        return Status.ACCEPTED, "the instance is starting there"

    def _set_tokens(self, action: SetTokens) -> tuple[Status, str]:
        if refused := action.refusal(self.context.partitions):
            return Status.REFUSED, refused
        station, ring = self._station(action.operator), Ring(dict(action.tokens))
        assert station is not None
        for host in ring:
            if not self.pool.runs(host):
                return Status.REFUSED, f"host {host!r} is not running"
        moved, refused = self.staffing.follow(station, ring, self.time)
        if refused:
            return Status.REFUSED, refused
        return (Status.ACCEPTED, f"{counted(moved, 'state partition')} on the way") if moved else (Status.DONE, "")

    def _drain(self, action: DrainHost) -> tuple[Status, str]:
        host = action.host
        row = self.pool.active_row(host)
        if row is None or not self.pool.up[row]:
            return Status.REFUSED, f"host {host!r} is not running"
        self.pool.to(row, HostState.DRAINING, self.time)
        left = self.staffing.empty(row, self.time)
        return (Status.ACCEPTED, f"{left} instances wait for room on other hosts") if left else (Status.DONE, "")

    def _release(self, action: ReleaseHost) -> tuple[Status, str]:
        host = action.host
        row = self.pool.rows.get(host)
        if row is None:
            return Status.REFUSED, f"host {host!r} was never leased"
        lease = self.pool.leases[row]
        if lease.state in (HostState.RELEASING, HostState.RELEASED, HostState.LOST):
            return Status.DONE, ""
        if self.pool.tasks[row] and not self.staffing.has_room_elsewhere(row):
            return Status.REFUSED, f"the instances on host {host!r} do not fit on other hosts"
        works_until = self.network.works_until(row)  # before its instances move away
        self.staffing.empty(row, self.time)
        self.pool.to(row, HostState.RELEASING, self.time, works_until)
        return Status.ACCEPTED, "the host is shutting down"

    def _resize(self, parallelism: Mapping[str, int]) -> None:
        self.composition = replace(self.composition, version=self.composition.version + 1, parallelism=parallelism)
        self.network.resize(self.composition)

    def staff(self, parallelism: Mapping[str, int], on: Mapping[str, Sequence[int]]) -> None:
        """Place the initial instances, ready at once, the first on hosts `on`.

        Raises CloudError if hosts lack room.
        """
        settings, network = self.settings, self.network
        counts = {
            station.name: parallelism.get(station.name, 1)
            if station.name in network.scalable
            else settings.state_partitions
            for station in network.stations
        }
        if refused := self.staffing.begin(counts, on, self.time):
            raise CloudError(
                f"{refused}: the run must start with {counted(sum(counts.values()), 'instance')} on "
                f"{counted(len(self.pool), 'host')}"
            )
        self._resize({station.name: len(station.crew) for station in self.network.stations})


def make_plant(  # noqa: PLR0913
    layout: Layout,
    *,
    host_types: Sequence[HostType],
    loads: Mapping[str, Load] | None = None,
    seed: int = 0,
    settings: Settings | None = None,
    hosts: int | Sequence[str] | None = None,
    parallelism: Mapping[str, int] | None = None,
    on: Mapping[str, Sequence[int]] | None = None,
    max_hosts: int = 1_000_000,
    min_hosts: int = 1,
    target_latency: float | None = None,
    seconds: float = math.inf,
    tables: KeyTables | None = None,
    network: type[QueueNetwork] = QueueNetwork,
) -> SimulatedPlant:
    """Build a simulated plant for `layout` at time 0, with running hosts and placed operators.

    A stage of several operators means micro-batches as on Spark; otherwise operators have the queues of `network`.

    Args:
        hosts: Number of initial hosts of the first type, or each one's type. None: enough for every operator (`by_zones`).
        loads: Loads by source; override declared ones.
        on: Initial hosts (from 0) of each operator's first instances.

    Raises:
        DataflowError: For a source without a load, or a load without a source.
        CloudError: If hosts cannot hold the operators.
        InputError: For an invalid load, or a link trace with fused stages.
    """
    settings = settings or Settings()
    types = {kind.name: kind for kind in host_types}
    if not types:
        raise CloudError("the simulation has no host type: declare at least one")
    if not layout.unchained and settings.link_trace is not None:
        raise InputError("links vary where operators are apart: micro-batches of fused stages take no time on links")
    if unknown := set(loads or {}) - {source.name for source in layout.graph.sources}:
        raise DataflowError(f"load for {min(unknown)!r}: dataflow {layout.graph.name!r} has no such source")
    kind = network if layout.unchained else FusedNetwork
    queues: QueueNetwork | FusedNetwork = kind(
        layout, loads or {}, settings, seed, seconds, KeyTableBook() if tables is None else tables
    )
    check_host_types(layout.graph, types.values(), unchained=layout.unchained)
    check_replicas(settings.replicas, max_hosts, layout)
    if settings.replicas and layout.unchained:
        raise InputError("replicas: operators apart keep no copies of their state: simulate it fused", ("replicas",))
    context = Context(
        layout, types, target_latency, max_hosts, min_hosts,
        frozenset(KINDS), queues.scalable, layout.keyed_partitions(settings.state_partitions), settings.replicas,
        batch_seconds=settings.governed,
    )  # fmt: skip
    pool = SimulatedHosts(types, len(queues.stations), settings, seed)
    if hosts is None:
        hosts = _first_hosts(layout, tuple(types.values()), min_hosts, max_hosts, settings.replicas)
    elif isinstance(hosts, int):
        hosts = [each.name for each in by_zones(types.values(), hosts, copies=settings.replicas)]
    for number, name in enumerate(hosts):
        pool.lease(f"h{number + 1}", types[name], 0.0, running=True)
    plant = SimulatedPlant(context, queues, pool, settings)
    plant.staff(parallelism or {}, on or {})
    return plant


def _first_hosts(layout: Layout, types: Sequence[HostType], least: int, most: int, copies: int) -> list[str]:
    operators = layout.graph.operators
    holding = [t for t in types if all(t.cores >= o.cores and t.memory >= o.memory for o in operators)]
    kind = (holding or types)[0]
    needed = max(least, first_provision(layout, kind).hosts)
    if needed > most:
        raise CloudError(
            f"one instance of every operator needs {counted(needed, 'host')} of type {kind.name!r}, and at most {most} "
            "may be leased (max_hosts): allow more, declare fewer `cores` for operators, or larger hosts"
        )
    return [each.name for each in by_zones(types, needed, kind, copies=copies)]
