"""The process of an application: real loop, plant, hosts, reconciler and logs on a simulated engine; and its watcher."""

import math
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from campaign.paper import COST, TRIGGER, Durable, Engine
from campaign.process import FaultyProvider, Killed, Process, Strand, raised
from campaign.schedule import LONGEST
from elastream.control.journal import ActionState, Journal
from elastream.control.loop import Loop
from elastream.core.action import DrainHost, LeaseHost, MoveTask, ReleaseHost
from elastream.core.alarm import Alarms
from elastream.core.decision import Decision
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem
from elastream.policies.by_load import ByLoad
from elastream.policies.threshold import Threshold
from elastream.recording.directory import RunDirectory
from elastream.recording.lease_log import LeaseLog
from elastream.recording.manifest import Manifest, read_manifest, run_lock, write_manifest
from elastream.recording.observer import Observer
from elastream.spark.hosts.first_hosts import Resumed, lease_first_hosts
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.executors import Executors
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.placing import MigrationLimits, Placing
from elastream.spark.plant import PlantLimits, SparkPlant
from elastream.spark.queries.query import QueryAccess
from elastream.spark.queries.watched import SessionQueries
from elastream.spark.reconciler import ObservedLoad, Reconciler

if TYPE_CHECKING:
    from campaign.world import World

MAX_HOSTS, TARGET = 6, 8.0  # most hosts of an application, and its service level in seconds
LEAST, TIMES = 2, 2
"""Hosts that a round may add at least, and times as many as before it there may be: as small as these worlds are."""
POLICY = ByLoad(Threshold(window=20.0, settle=20.0, cool_down=15.0))
"""Autopilot's policy, with windows as short as a run of ten minutes wants them."""
HostAction: TypeAlias = LeaseHost | DrainHost | ReleaseHost
AGAIN = 5.0  # seconds until a process that could not start is started again
OBSERVE, PLAN = 1.0, 2.0


class Stepped(Reconciler):
    def start(self, release: Callable[[ReleaseHost], Any], load: Callable[[], ObservedLoad], *, acts: bool = True) -> None:
        self._release, self._load, self._acts = release, load, acts


class Clock:
    """A run's clock, whose sleep advances the world. at: seconds of the run at which it begins."""

    def __init__(self, process: Process, strand: Strand, at: float) -> None:
        self._process, self._strand = process, strand
        self._zero = process.now() - at

    def now(self) -> float:
        return self._process.now() - self._zero

    def sleep_until(self, time: float) -> None:
        self._strand.sleep(time + self._zero)

    def wake(self) -> None:
        """Do nothing: the caller that ends the loop advances it."""


class Failing(Policy):
    """A policy that fails as a schedule says, and plans as POLICY otherwise."""

    name = POLICY.name

    def __init__(self, policy: Policy, now: Callable[[], float]) -> None:
        self._policy, self._now = policy, now
        self.until, self.how = -math.inf, ""

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        if self._now() >= self.until:
            return self._policy.plan(observation, memory)
        if self.how == "no plan":
            return None  # type: ignore[return-value]
        if self.how == "greedy":
            kind = next(iter(observation.context.host_types))
            return Plan(tuple(LeaseHost(observation.host_name(number), kind) for number in range(10)), memory)
        if self.how == "rash":
            return Plan(tuple(ReleaseHost(host) for host in observation.usable), memory)
        if self.how == "odd actions":
            odd = (
                LeaseHost("", "small"), LeaseHost("h1", "none"), ReleaseHost("nobody"), DrainHost("h0"),
                MoveTask(TaskId("nothing", 3), "h9"),
            )  # fmt: skip
            return Plan(odd, memory)
        raise raised(self.how)


class Tripwire(Observer):
    def __init__(self) -> None:
        self.how = ""

    def observed(self, observation: Observation) -> None:
        if self.how:
            raise raised(self.how)


class Driver(Process):
    def __init__(self, name: str, world: "World") -> None:
        super().__init__(name, world.now, world.history)
        folder = world.folder / name
        self.world, self.directory = world, RunDirectory(folder)
        self.wall, self.arrived = world.wall, world.arrived
        self.durable = Durable()
        self.engine: Engine | None = None
        self.plant: SparkPlant[SessionQueries] | None = None
        self.loop: Loop | None = None
        self.journal: Journal | None = None
        self.membership: Any = None
        self.policy = Failing(POLICY, world.now)
        self.tripwire = Tripwire()
        self.gateway: tuple[float, str] = (-math.inf, "")
        self.generation = self.landed = 0
        self.stopping = False
        self.reconciler_at = self.beat_at = 0.0
        self.seen = 0.0
        self.acted = 0.0
        folder.mkdir(parents=True, exist_ok=True)

    def program(self, strand: Strand) -> None:
        self.generation += 1
        with run_lock(self.directory):
            if self.directory.manifest.exists():
                manifest = read_manifest(self.directory)
                resumed = Resumed(max(self.seen, self.wall() - manifest.started), self.seen)
            else:
                manifest, resumed = Manifest(self.name, self.wall(), identity={"paper": True}), None
            write_manifest(self.directory, manifest if resumed is None else manifest.after({"time": resumed.at}))
            clock = Clock(self, strand, 0.0 if resumed is None else resumed.at)
            alarms = Alarms(clock.now)
            provider = FaultyProvider(self.world.opened(self, alarms), self)
            try:
                plant = self._plant(provider, clock, alarms, resumed, strand)
            except Killed:
                raise
            except BaseException:
                provider.close()
                raise
            self.plant, self.reconciler_at = plant, self.now()
            self.landed = 0
            self.tripwire = Tripwire()
            self.journal = Journal(self.directory.journal)
            self.loop = Loop(
                plant, self.policy, monitor=OBSERVE, period=PLAN, journal=self.journal,
                observers=[Watcher(self, clock), self.tripwire],
            )  # fmt: skip
            ending = self.loop.run()
            self.works()
            if not self.stopping:
                said = f"the run of {self.name} ended as {ending.status}: {ending.reason}"
                self.history.note("control", self.now(), said)

    def _plant(
        self, provider: FaultyProvider, clock: Clock, alarms: Alarms, resumed: Resumed | None, strand: Strand
    ) -> SparkPlant[SessionQueries]:
        leases = LeaseLog(self.directory.leases)
        first = lease_first_hosts(leases, provider, resumed, clock.now())
        self.engine = engine = Engine(self, self.durable)
        driver: Any = engine
        hosts = Hosts(Executors(driver, driver), provider, clock.now, fence=engine.fence, log=leases, alarms=alarms)
        hosts.begin(first)
        old = {name for name, lease in hosts.leases.items() if not lease.active}
        while not hosts.usable:  # as `spark.start` waits
            hosts.look()
            hosts.step(batch=-1, idle=True, holds=lambda host: False)
            lost = [name for name, lease in hosts.leases.items() if not lease.active and name not in old]
            if lost and not any(lease.active for lease in hosts.leases.values()):
                raise EnvironmentProblem(f"the first host did not come up: {hosts.reason(lost[0])}")
            strand.sleep(self.now() + 0.5)
            self.works()
        limits = MigrationLimits(per_host=2, lazy=False)
        placing = Placing({}, clock.now, AllocationStore(self.directory.allocation), limits=limits, alarms=alarms)
        instruments = QueryAccess(engine.spark, driver, placing, driver, caught_up=3, wall=self.wall, steady=self.now)
        queries = SessionQueries(instruments, target_latency=TARGET)
        scope = PlantLimits(provider.terms, TARGET)
        engine._next = self.now()
        clock_any: Any = clock
        return SparkPlant(instruments, queries, hosts, scope, clock_any, alarms, reconciler=Stepped, end=self._end)

    def _end(self, plant: SparkPlant[SessionQueries]) -> None:
        self.works()
        plant.stop_acting()
        plant.hosts.close()
        plant.hosts.provider.close()

    def forget(self) -> None:
        if self.engine is not None:
            self.engine.stopped = True
        for lock in self.membership._locks.values() if self.membership is not None else ():
            lock.close()  # as the kernel does
        self.engine = self.plant = self.loop = self.journal = self.membership = None
        self.dies, self.calls_die, self.room = "", "", math.inf
        self.call_errors.clear()

    def releases(self, hosts: Collection[str]) -> None:
        for host in self.engine.cut_off(hosts) if self.engine is not None and not self.stopping else ():
            self.history.note("work", self.now(), f"{self.name} released {host}, whose executor ran a task")

    def once(self) -> float:
        assert self.plant is not None
        self.works()
        try:
            pause = self.plant.reconciler.once()
        except Exception as error:
            self.history.note("control", self.now(), f"the reconciler of {self.name} died: {type(error).__name__}: {error}")
            return math.inf
        self._see_landed()
        return math.inf if pause is None else min(max(pause, 0.25), 1.0)

    def _see_landed(self) -> None:
        plant, engine = self.plant, self.engine
        assert plant is not None
        assert engine is not None
        fresh, self.landed = plant.placing.landed[self.landed :], len(plant.placing.landed)
        for each in fresh:
            ran = {p.tasks[each.task.index][0] for p in engine.progress[-1:]}
            ran |= {engine.tasks[each.task.index][0]} if engine.tasks else set()
            there = {engine.executors[executor].host for executor in ran if executor in engine.executors}
            if there and each.host not in there:
                said = f"{each.task} of {self.name} has landed on {each.host}, it is said, and ran on {min(there)}"
                self.history.note("landed", self.now(), said)

    def unsettled(self) -> str:
        plant, engine, now = self.plant, self.engine, self.now()
        if not self.alive or plant is None or engine is None or self.loop is None:
            return f"{self.name} does not run"
        leases = plant.hosts.active
        restless = [f"{name} is {lease.state}" for name, lease in leases.items() if lease.state is not HostState.RUNNING]
        if restless:
            return f"hosts of {self.name}: {', '.join(restless)}"
        if plant.placing.targets():
            return f"{self.name} wants {len(plant.placing.targets())} partitions elsewhere"
        held, planned = plant.reconciler.locations(), plant.placing.plan.latest.hosts
        astray = [str(task) for task, host in planned.items() if host in leases and held.get(task) != host]
        if astray:
            return f"{', '.join(astray)} of {self.name} are not where they are planned"
        if not engine.progress or now - engine.progress[-1].steady > 3 * TRIGGER + 4:
            return f"{self.name} has committed no batch lately"
        waiting = self.arrived(now) - self.durable.ranges[self.durable.committed][1]
        rate = self.arrived(now) - self.arrived(now - 1)
        if waiting > 4 * TRIGGER * rate:
            return f"{waiting:.0f} records of {self.name} wait"
        if now - self.acted < 15.0:
            return f"{self.name} has just leased or released a host"
        journal = self.journal
        pending = [e for e in journal.unconcluded if e.state is not ActionState.ACCEPTED] if journal is not None else []
        if pending:
            return f"{self.name} has not concluded {pending[0].action}"
        alarms = [each.source for each in (*plant.alarms.active, *self.loop._alarms.active)]
        if alarms := [source for source in alarms if source != f"observer {Tripwire.__name__}"]:
            return f"alarms of {self.name} stand: {', '.join(alarms)}"
        return ""


class Watcher(Observer):
    """An observer of one run that compares observations with the true state."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver, self._clock = driver, clock
        self._began = driver.now()
        self._known_at = -math.inf
        self._late_at = self._lost_at = self._began
        self._there: frozenset[str] = frozenset()
        self._observation: Observation | None = None

    def observed(self, observation: Observation) -> None:
        driver, now = self._driver, self._driver.now()
        driver.seen = self._clock.now()
        self._observation = observation
        # Hosts that the schedule leased are in the ledger until they end; they do not belong to the run.
        active = sum(lease.active and not host.startswith("stray") for host, lease in observation.leases.items())
        if active > observation.context.max_hosts:
            driver.history.note("max_hosts", now, f"{driver.name} has {active} hosts leased")
        self._see_truth(observation, now)
        if not observation.application.ids:
            return
        rate = observation.overall(Metric.THROUGHPUT)
        latency = observation.overall(Metric.LATENCY_P99)
        if not math.isnan(rate):
            self._known_at = now
        for rule in (self._rate(rate, now), self._latency(latency, now), self._use(observation)):
            if rule:
                driver.history.note("unknown", now, f"{driver.name}: {rule}")

    def _see_truth(self, observation: Observation, now: float) -> None:
        engine = self._driver.engine
        assert engine is not None
        there = frozenset(observation.leases)
        if self._there - there:
            self._lost_at = now
        self._there = there
        rate = self._driver.arrived(now) - self._driver.arrived(now - 1.0)
        done = self._driver.durable.ranges[self._driver.durable.committed][1] if self._driver.durable.committed >= 0 else 0
        slow = engine.batch is not None and now - engine.batch[1] > 2 * TRIGGER
        if slow or self._driver.arrived(now) - done > 3 * TRIGGER * rate:
            self._late_at = now

    def _rate(self, rate: float, now: float) -> str:
        assert self._driver.engine is not None
        ended = [each for each in self._driver.engine.progress if now - each.steady < 120.0]
        if math.isnan(rate) or len(ended) < 3:
            return ""
        gaps = [(b.end - b.start) / max(b.steady_began - a.steady_began, TRIGGER / 2) for a, b in pairwise(ended)]
        if rate > 3 * max(gaps) + 50:
            return f"throughput is said to be {rate:.0f}, and was at most {max(gaps):.0f} records/s"
        recent = ended[-6:]
        steady = all(b.steady_began - a.steady_began < 3 * TRIGGER for a, b in pairwise(recent))
        if len(recent) == 6 and steady and now - ended[-1].steady < 2 * TRIGGER and now >= self._driver.engine.silent + 20:
            least = min((b.end - b.start) / max(b.steady - a.steady, TRIGGER) for a, b in pairwise(recent))
            if rate < 0.3 * least - 10:
                return f"throughput is said to be {rate:.0f}, and was at least {least:.0f} records/s"
        return ""

    def _latency(self, latency: float, now: float) -> str:
        assert self._driver.engine is not None
        if math.isnan(latency):
            return ""
        known = self._driver.engine.progress
        # The observed figure is a bound: a whole backlog may have arrived just before the poll that first showed it. So the
        # true figure may be lower by the longest gap between two polls since then.
        first = min(len(known) - 12, sum(each.steady < now - latency - 30.0 for each in known))
        progress = known[max(0, first) :]
        gaps = [b.steady - a.steady for a, b in pairwise(progress)] or [now - self._began]
        waited = [each.waited for each in progress] or [now - self._began]
        batch = self._driver.engine.batch
        most = max(waited) + 3 * max(gaps) + (now - batch[1] if batch is not None else 0.0) + 30.0
        if not -1.0 <= latency <= 1.5 * most:
            return f"latency is said to be {latency:.0f} s, and is from 0 to {most:.0f} s"
        return ""

    @staticmethod
    def _use(observation: Observation) -> str:
        """Return an error for an impossible use. A counter that stood still shows at most LONGEST seconds at once."""
        for host, use in zip(observation.hosts, observation.hosts.column(Metric.CPU).tolist(), strict=True):
            if not math.isnan(use) and not 0 <= use <= LONGEST + 10.0:
                return f"{host} is said to use {use:.3g} times its cores"
        return ""

    def decided(self, decision: Decision) -> None:
        driver, now, seen = self._driver, self._driver.now(), self._observation
        if decision.actual:
            return  # a completed decision: checked before
        driver.history.decisions += 1
        tried = [each.action for each in decision.outcomes if each.succeeded]
        mine = {each.action for each in decision.proposals if each.by == POLICY.name}
        hosts = [each for each in tried if isinstance(each, LeaseHost | DrainHost | ReleaseHost)]
        if hosts:
            driver.acted = now
        if seen is None or driver.engine is None:
            return
        leased = sum(isinstance(each, LeaseHost) for each in hosts)
        if decision.round > 1 and leased > max(LEAST, (TIMES - 1) * len(seen.leases)):
            driver.history.note("growth", now, f"{driver.name} leased {leased} hosts at once, beside {len(seen.leases)}")
        for number, action in enumerate(hosts):
            if action in mine and (said := self._unfounded(action, hosts[:number], seen, now)):
                driver.history.note("unknown", now, f"{driver.name}: {said}")

    def _unfounded(self, action: HostAction, before: Sequence[HostAction], seen: Observation, now: float) -> str:
        """Return why a change of the number of hosts after those `before` it is unjustified; empty if it is justified."""
        driver, engine = self._driver, self._driver.engine
        assert engine is not None
        taking = not isinstance(action, LeaseHost) and seen.leases[action.host].state is HostState.RUNNING
        if taking and engine.batch is not None:
            under_way = now - engine.batch[1]
            usual = max((each.steady - each.steady_began for each in engine.progress[-7:]), default=0.0)
            if under_way > max(14.0, 3.5 * usual):
                return f"{action} while a batch has been under way for {under_way:.0f} s"
        few = len(seen.usable) < max(1, seen.context.min_hosts)
        if few or now < driver.policy.until + 2 * PLAN:
            return ""  # required hosts, or a plan that the schedule forces
        if now - max(self._known_at, self._began) > 120.0 and math.isnan(seen.overall(Metric.LATENCY)):
            return f"{action} although nothing was known for two minutes"
        rates = [driver.arrived(at) - driver.arrived(at - 1.0) for at in (now, now - 20.0, now - 40.0, now - 60.0)]
        if isinstance(action, LeaseHost) and now - max(self._late_at, self._lost_at) > 45.0:
            types = [each.type for each in before if isinstance(each, LeaseHost)]
            cores = sum(lease.type.cores for lease in seen.leases.values())
            cores += sum(seen.context.host_types[each].cores for each in types)
            if cores > 2.0 * max(rates) * COST + 1.0:
                return f"{action} although there are {cores:g} cores for a load that takes {max(rates) * COST:.2f}"
        if taking:
            left = sum(seen.leases[host].type.cores for host in seen.usable if host != action.host)
            if left < min(rates[:3]) * COST:
                return f"{action} leaves {left:g} cores, and the load takes {min(rates[:3]) * COST:.2f}"
        return ""
