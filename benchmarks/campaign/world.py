"""The world of one schedule: its processes, their network, clock, disk and machines; it runs until everything has settled.

Two worlds. Own: one application on a cloud of its own, whose hosts outlive it. Shared: two applications, the arbiter of
their hosts, and two regions with a manager each; hosts of an application are processes below it, on machines granted to it.
Processes that die or fail to start are restarted, as by a supervisor.
"""

import heapq
import itertools
import logging
import math
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from campaign.driver import AGAIN, LEAST, MAX_HOSTS, TIMES, Driver
from campaign.history import History, Ledgers, Violation, checked
from campaign.paper import EPOCH, SMALL, Cloud, Cluster, Machine
from campaign.process import Disk, FaultyProvider, Killed, Process, Strand
from campaign.schedule import OWN, SHARED, Fault, Schedule
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.pool import Membership, MembershipLost, PoolHosts
from elastream.clouds.provider import Phase, Provider
from elastream.control import arbitration
from elastream.control.journal import Journal
from elastream.core.alarm import Alarms
from elastream.errors import CloudError, ElastreamError, EnvironmentProblem, InputError
from elastream.policies.e2df.regions import RegionRules
from elastream.pool.arbiter import ArbiterNode, Entitlement, UnknownMember
from elastream.pool.region import RegionNode, follow
from elastream.pool.state_log import StateLog, steady_clock
from elastream.recording import lines
from elastream.recording.lease_log import LeaseLog
from elastream.recording.lines import JournalProblem
from elastream.recording.manifest import run_lock
from elastream.sharing.messages import Claim, Offer, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules, RegionFacts

R = TypeVar("R")

STEP = 0.25  # seconds between two checks for due events
BEAT = 1.0  # seconds between two claims of an application
BOUND = 900.0
"""Seconds after the last fault within which all must have settled: an action that fails often is given up for 600 s."""
REST = 15.0  # seconds without a change after which the world counts as settled
REGIONS = ("east", "west")
TYPES = {region: replace(SMALL, name=f"small-{region}", region=region, zone=region) for region in REGIONS}
RULES = ArbiterRules(
    patience=30.0, silence=15.0, settle=10.0, max_hosts=2 * MAX_HOSTS, min_hosts=0, absence=60.0,
    regions={region: RegionFacts(capacity=MAX_HOSTS) for region in REGIONS},
)  # fmt: skip
UNTIL = {
    "messages lost": "lost_until", "answers lost": "unanswered_until", "messages doubled": "doubled_until",
    "use is stale": "stale_until",
}  # fmt: skip
UNTIL_OF_ENGINE = {
    "reports to the coordinator lost": "reports_lost", "reports of executors late": "reports_late",
    "a batch hangs": "hangs", "progress is missing": "silent", "task loads are missing": "loadless",
    "a task just before a fence": "races",
}  # fmt: skip
"""Attributes of a process and of an engine that say until when a fault lasts."""
REGION_RULES = RegionRules(spare=1, low=0.05, settle=30.0)


class SteppedMembership(Membership):
    def start(self, occupied: Any, evict: Any, use: Any = dict) -> None:
        self._occupied, self._evict, self._use = occupied, evict, use


class World:
    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule, self.folder = schedule, folder
        self.chance = random.Random(schedule.seed + 1)
        self.time, self.set_by = 0.0, 0.0
        self.history, self.disk = History(), Disk()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.arbiter: ArbiterNode | None = None
        self.regions: dict[str, RegionNode] = {}
        self.clouds: dict[str, Cloud] = {}
        self.clusters: dict[str, Cluster] = {}
        self.processes: dict[str, Process] = {}
        for name in ("a",) if schedule.world == OWN else ("a", "b"):
            self.processes[name] = Driver(name, self)
        if schedule.world == OWN:
            self.clouds["a"] = Cloud("a", (SMALL,), self.now, MAX_HOSTS)
        else:
            for name in ("arbiter", *REGIONS):
                self.processes[name] = Process(name, self.now, self.history)
                (folder / name).mkdir(parents=True)
            for region in REGIONS:
                self.clouds[region] = Cloud(region, (TYPES[region],), self.now, 2 * MAX_HOSTS)
        for name, process in self.processes.items():
            self.disk.writers[f"{folder / name}/"] = process
        for fault in schedule.faults:
            self.at(fault.at, partial(self.inject, fault))

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return EPOCH + self.time + self.set_by

    def arrived(self, at: float) -> float:
        total, load = 0.0, self.schedule.load
        for (since, rate), (until, _) in zip(load, [*load[1:], (math.inf, 0.0)], strict=True):
            total += rate * max(0.0, min(at, until) - since)
        return total

    def due(self, record: float) -> float:
        low, high = 0.0, self.time + 1.0
        while high - low > 0.01:
            middle = (low + high) / 2
            low, high = (middle, high) if self.arrived(middle) <= record else (low, middle)
        return high

    def at(self, time: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time, next(self._numbers), do))

    def run(self) -> tuple[Violation, ...]:
        with (
            patch.object(lines, "WRITE", self.disk.write),
            patch.object(lines, "SYNC", lambda descriptor: None),  # the real disk takes most of the time
            patch.object(arbitration, "MIN_GROWTH_HOSTS", LEAST),
            patch.object(arbitration, "MAX_GROWTH_FACTOR", TIMES),
        ):
            try:
                self._run_until_settled()
            finally:
                for process in self.processes.values():
                    if process.strand is not None:
                        process.alive = False
                        process.strand.end()
        return checked(self.history, self._ledgers)

    def _run_until_settled(self) -> None:
        rested, why = 0.0, ""
        while True:
            self.time = round(self.time + STEP, 6)
            while self._due and self._due[0][0] <= self.time:
                heapq.heappop(self._due)[2]()
            for process in self.processes.values():
                self._step_process(process)
            if self.schedule.world == SHARED:
                self._look_for_two_holders()
            if self.time < self.schedule.end:
                continue
            if self.time % 1.0 == 0:
                why = self._unsettled()
                rested = 0.0 if why else rested + 1.0
            if rested >= REST:
                break
            if self.time > self.schedule.end + BOUND:
                self.history.note("settled", self.time, f"{BOUND:.0f} s after the last fault: {why}")
                break
        self._ledgers = self._end()
        self._stop()

    def _step_process(self, process: Process) -> None:
        if process.strand is not None and process.strand.over:
            self._ended(process)
        if process.strand is None:
            if self.time >= process.starts_at:
                self._start(process)
            return
        if isinstance(process, Driver):
            self._step_driver(process)
        if process.alive and process.strand is not None and self.time >= process.strand.wakes:
            process.strand.step()
        if not process.alive and process.strand is not None:
            process.strand.end()

    def _step_driver(self, driver: Driver) -> None:
        if driver.engine is not None:
            driver.engine.tick()
        if driver.plant is not None and self.time >= driver.reconciler_at:
            driver.reconciler_at = self.time + self.of(driver, driver.once, 1.0)
        if driver.membership is not None and self.time >= driver.beat_at:
            driver.beat_at = self.time + BEAT
            self.of(driver, driver.membership.try_claim, None)

    def of(self, process: Process, do: Callable[[], R], otherwise: R) -> R:
        try:
            process.works()
            return do()
        except Killed:
            process.alive = False
            return otherwise

    def _start(self, process: Process) -> None:
        process.alive = True
        program = process.program if isinstance(process, Driver) else self._manages(process)
        process.strand = Strand(program)
        process.strand.step()

    def _ended(self, process: Process) -> None:
        assert process.strand is not None
        error, process.strand, process.alive = process.strand.error, None, False
        self.history.restarts += 1
        process.starts_at = self.time + AGAIN
        expected = (Killed, ElastreamError, *((OSError,) if not isinstance(process, Driver) else ()))
        if isinstance(process, Driver):
            if process.stopping and error is None:
                process.starts_at = math.inf
            began = process.plant is not None
            process.forget()
            if process.name in self.clusters:
                del self.clusters[process.name]
            if error is not None and not isinstance(error, expected) and began:
                said = f"the run of {process.name} ended by {type(error).__name__}: {error}"
                self.history.note("control", self.time, said)
        elif process.name == "arbiter":
            self.arbiter = None
        else:
            self.regions.pop(process.name, None)
        process.dies = process.calls_die = ""
        process.call_errors.clear()

    def _manages(self, process: Process) -> Callable[[Strand], None]:
        if process.name == "arbiter":
            return self._arbiter
        return lambda strand: self._region(process, strand)

    def _arbiter(self, strand: Strand) -> None:
        log = StateLog(self.folder / "arbiter" / "journal", "arbiter")
        try:
            offer = Offer(f"paper {self.folder}", tuple(TYPES.values()), MAX_HOSTS)
            self.arbiter = ArbiterNode(offer, RULES, log, steady_clock(self.wall, self.now), regions=REGIONS, period=0.5)
            while True:
                strand.sleep(self.time + BEAT)
                self.processes["arbiter"].works()
                self.arbiter.round()
        finally:
            self.arbiter = None
            log.close()

    def _region(self, process: Process, strand: Strand) -> None:
        name = process.name
        log = StateLog(self.folder / name / "journal", name)
        try:
            provider = FaultyProvider(self.clouds[name], process)
            node = self.regions[name] = RegionNode(name, REGION_RULES, [TYPES[name]], provider, log)

            def stopped(seconds: float) -> bool:
                strand.sleep(self.time + seconds)
                process.works()
                return False

            link: Any = RegionLine(self, process)
            follow(node, link, 5.0, stopped=stopped, clock=steady_clock(self.wall, self.now))
        finally:
            log.close()

    def opened(self, driver: Driver, alarms: Alarms) -> Provider:
        if self.schedule.world == OWN:
            return self.clouds["a"]
        line: Any = MemberLine(self, driver)
        membership = SteppedMembership(line, alarms)
        cluster = self.clusters[driver.name] = Cluster(driver.name, tuple(TYPES.values()), self.now)
        driver.membership, driver.beat_at = membership, self.time
        local: Any = cluster
        return PoolHosts(membership, LocalHosts(local, 1, MAX_HOSTS, self.now), self.now)

    def machines(self, driver: Driver) -> Mapping[str, Machine]:
        if self.schedule.world == OWN:
            self.clouds["a"].pass_time()
            machines = self.clouds["a"].machines
            return {name: machine for name, machine in machines.items() if not name.startswith("stray")}
        cluster = self.clusters.get(driver.name)
        if cluster is None:
            return {}
        cluster.status()
        return cluster.machines

    def sent(self, sender: Process, deliver: Callable[[ArbiterNode], R]) -> R:
        sender.works()
        if self.time < sender.lost_until:
            raise EnvironmentProblem("no arbiter answers: the message was lost")
        if self.time < sender.doubled_until:
            self.at(self.time + self.chance.uniform(0.3, 20.0), lambda: self._resend(deliver))
        answer = self._ask_arbiter(deliver)
        sender.works()
        if self.time < sender.unanswered_until:
            raise EnvironmentProblem("no arbiter answers: the answer was lost")
        return answer

    def _resend(self, deliver: Callable[[ArbiterNode], Any]) -> None:
        with suppress(ElastreamError):
            self._ask_arbiter(deliver)

    def _ask_arbiter(self, deliver: Callable[[ArbiterNode], R]) -> R:
        node, process = self.arbiter, self.processes["arbiter"]
        if node is None or not process.alive:
            raise EnvironmentProblem("no arbiter answers")
        try:
            return deliver(node)
        except Killed:
            process.alive = False
            raise EnvironmentProblem("no arbiter answers: it died") from None
        except JournalProblem as problem:
            process.alive = False  # it shuts down, because it sends only state on disk
            raise EnvironmentProblem(f"the arbiter fails: {problem}") from None
        except ElastreamError:
            raise
        except Exception as error:
            self.history.note("control", self.time, f"the arbiter raised {type(error).__name__}: {error}")
            raise EnvironmentProblem("the arbiter fails") from error

    def _look_for_two_holders(self) -> None:
        holders: dict[str, str] = {}
        for name in ("a", "b"):
            driver = self.processes[name]
            assert isinstance(driver, Driver)
            if driver.membership is None or name not in self.clusters:
                continue
            for host, machine in driver.membership._bound.items():
                process = self.clusters[name].machines.get(host)
                if process is None or process.phase is Phase.GONE:
                    continue
                if machine in holders:
                    self.history.note("one holder", self.time, f"{machine} is used by {holders[machine]} and {name}")
                holders[machine] = name

    def inject(self, fault: Fault) -> None:  # noqa: C901
        self.history.faults.append((self.time, fault.kind))
        until = self.time + fault.seconds
        if fault.kind == "the clock is set":
            self.set_by += fault.amount
            return
        process = self.processes[fault.who]
        if fault.kind in UNTIL:
            setattr(process, UNTIL[fault.kind], until)
        match fault.kind:
            case "killed":
                process.alive = False
            case "killed in a write":
                process.dies = fault.how
            case "killed in a call":
                process.calls_die = fault.how
            case "a full disk":
                process.room = fault.amount
                self.at(until, lambda: setattr(process, "room", math.inf))
            case "the provider raises":
                process.call_errors += [fault.how] * int(fault.amount)
            case "use is absurd":
                process.absurd, process.absurd_until = fault.how, until
            case "no room" | "hosts start slowly" | "a stray host" if fault.who in self.clouds:
                self._of_cloud(fault, self.clouds[fault.who], until)
            case "hosts start slowly" if fault.who in self.clusters:
                self.clusters[fault.who].starts_until = until
            case _ if isinstance(process, Driver):
                self._of_driver(fault, process, until)

    def _of_cloud(self, fault: Fault, cloud: Cloud, until: float) -> None:
        match fault.kind:
            case "no room":
                cloud.room = 0
                self.at(until, lambda: setattr(cloud, "room", math.inf))
            case "hosts start slowly":
                cloud.slow = 5.0
                self.at(until, lambda: setattr(cloud, "slow", 1.0))
            case "a stray host":
                cloud.lease({f"stray{next(self._numbers)}": cloud.terms.types[0]})

    def _of_driver(self, fault: Fault, driver: Driver, until: float) -> None:  # noqa: C901
        engine = driver.engine
        match fault.kind:
            case "the policy fails":
                driver.policy.until, driver.policy.how = until, fault.how
            case "an observer fails":
                driver.tripwire.how = fault.how
            case "a second controller" if driver.alive and driver.loop is not None:
                self._second(driver)
            case "the gateway fails":
                driver.gateway = (until, fault.how)  # also of a JVM that begins meanwhile
            case "a host dies" | "hosts die":
                self._hosts_die(driver, max(1, int(fault.amount)))
        if engine is None:
            return
        running = list(engine.executors)
        match fault.kind:
            case "an executor dies" if running:
                engine.kill_executor(self.chance.choice(running))
            case "an executor stands still" if running:
                engine.executors[self.chance.choice(running)].stands_until = until
            case "the gateway fails":
                engine.fails = driver.gateway
            case kind if kind in UNTIL_OF_ENGINE:
                setattr(engine, UNTIL_OF_ENGINE[kind], until)

    def _hosts_die(self, driver: Driver, count: int) -> None:
        where: Any = self.clouds["a"] if self.schedule.world == OWN else self.clusters.get(driver.name)
        up = sorted(name for name, machine in self.machines(driver).items() if machine.up)
        for host in self.chance.sample(up, min(count, len(up))):
            where.dies(host)

    def _second(self, driver: Driver) -> None:
        try:
            with run_lock(driver.directory):
                self.history.note("control", self.time, f"a second controller of {driver.name} was let in")
        except EnvironmentProblem:
            pass

    def _unsettled(self) -> str:
        for process in self.processes.values():
            if isinstance(process, Driver) and (why := process.unsettled()):
                return why
            if not process.alive:
                return f"{process.name} does not run"
        return self._ledger_mismatch() if self.schedule.world == OWN else self._disagree()

    def _ledger_mismatch(self) -> str:
        driver = self.processes["a"]
        assert isinstance(driver, Driver)
        assert driver.plant is not None
        active = set(driver.plant.hosts.active)
        listed = set(self.clouds["a"].hosts())
        return f"the ledger has {sorted(active)}, and the provider {sorted(listed)}" if active != listed else ""

    def _stop(self) -> None:
        drivers = [each for each in self.processes.values() if isinstance(each, Driver)]
        until = self.time + 60.0
        for driver in drivers:
            driver.stopping = True
            if driver.loop is None:
                driver.starts_at = math.inf
        while any(each.starts_at < math.inf for each in drivers) and self.time < until:
            for driver in drivers:  # repeated: a process that should die in its next write dies now, and restarts
                if driver.loop is not None:
                    driver.loop.stop()
            self.time = round(self.time + STEP, 6)
            for process in self.processes.values():
                self._step_process(process)
        for driver in drivers:
            left = [host for host, lease in LeaseLog(driver.directory.leases).earlier.items() if lease.active]
            if left:
                self.history.note("leases", self.time, f"{driver.name} has ended, and its ledger has {sorted(left)} active")

    def _disagree(self) -> str:
        if self.arbiter is None:
            return "the arbiter does not run"
        for name in REGIONS:
            if name not in self.regions:
                return f"{name} does not run"
            party, region = self.arbiter.state.regions.get(name), self.regions[name].state.region
            ordered = set(party.hosts) if party is not None else set()
            there = {host for host in self.clouds[name].hosts() if not host.startswith("stray")}
            if not ordered == set(region.hosts) == there:
                mine = sorted(region.hosts)
                return f"of {name} the arbiter has {sorted(ordered)}, its manager {mine}, its cloud {sorted(there)}"
        return ""

    def _on_disk(self, driver: Driver) -> None:
        assert driver.plant is not None
        assert driver.journal is not None
        active = set(driver.plant.hosts.active)
        try:
            leases = LeaseLog(driver.directory.leases).earlier
            journal = {entry.number: entry.history[-1][1] for entry in Journal(driver.directory.journal).entries}
        except ElastreamError as error:
            self.history.note("leases", self.time, f"what {driver.name} has written cannot be read: {error}")
            return
        if (written := {host for host, lease in leases.items() if lease.active}) != active:
            said = f"the log of leases of {driver.name} has {sorted(written)} active, and its ledger {sorted(active)}"
            self.history.note("leases", self.time, said)
        for entry in driver.journal.entries:
            found = journal.get(entry.number)
            if entry.state.value not in ("granted", "accepted", "interrupted") and found != entry.state:
                self.history.note(
                    "leases", self.time, f"the journal has {entry.action} as {found}, and it is {entry.state}"
                )

    def _end(self) -> Ledgers | None:
        ended, active, listed = {}, {}, {}
        for name, driver in self.processes.items():
            if not isinstance(driver, Driver) or driver.plant is None:
                continue
            self._on_disk(driver)
            leases = driver.plant.hosts.leases
            ended[name] = frozenset(host for host, lease in leases.items() if not lease.active)
            active[name] = frozenset(host for host, lease in leases.items() if lease.active)
            listed[name] = frozenset(driver.plant.hosts.provider.provider.hosts())  # type: ignore[attr-defined]
        return Ledgers(ended, active, listed, self.time)


class RegionLine:
    url = "paper"

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    def report(self, report: RegionReport) -> RegionOrder:
        try:
            return self._world.sent(self._process, lambda node: node.report(report))
        except CloudError as error:
            raise InputError(str(error)) from None


class MemberLine:
    """An application's connection to the arbiter, with the key of its membership."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._world, self._driver, self.application, self._key = world, driver, driver.name, ""

    def join(self) -> Offer:
        self._key = self._deliver(lambda node: node.join(self.application, Entitlement()))
        assert self._world.arbiter is not None
        return self._world.arbiter.offer

    def claim(self, claim: Claim) -> View:
        key = self._key
        return self._deliver(lambda node: node.claim(claim, key))

    def leave(self) -> None:
        key = self._key
        self._deliver(lambda node: node.leave(self.application, key))

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _deliver(self, deliver: Callable[[ArbiterNode], R]) -> R:
        try:
            return self._world.sent(self._driver, deliver)
        except UnknownMember as error:
            raise MembershipLost(str(error)) from None
        except InputError as error:
            raise CloudError(str(error)) from None


def ran(schedule: Schedule) -> tuple[History, tuple[Violation, ...]]:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=memory if memory.is_dir() else None))
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        world = World(schedule, folder)
        violations = world.run()
        return world.history, violations
    finally:
        logging.disable(before)
        shutil.rmtree(folder, ignore_errors=True)
