"""A simulated engine and machines behind the real interfaces: the driver's JVM, a provider, a local cluster.

The engine plans a batch, writes its range, runs each state partition where the coordinator has it, and commits. Durable
data (ranges, contents by version, the sink) outlives the driver; executors, locations and progress end with it. Responses
have the form of `DriverSide.java` and `TaskLoads.java`, so that the real code reads them.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from campaign.history import Commit, content_of, row_of
from campaign.process import raised
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.provider import HostStatus, HostUsage, Phase, Provider, ProviderOffer
from elastream.core.hosts import Billing, HostType
from elastream.spark.jvm.executor_use import Kind, Snapshot, Use

if TYPE_CHECKING:
    from campaign.driver import Driver

EPOCH = 1_700_000_000.0  # time of the wall clock at second 0
TRIGGER, OVERHEAD = 2.0, 0.2  # seconds from one batch to the next, and fixed seconds of a batch
COST = 1 / 400  # core-seconds of a record
PARTITIONS = 6
BOUND = 2400  # most records of a batch
REGISTERS = 2.0  # seconds until an executor registers on a host that is up
COMMITS = 0.25  # seconds from the end of a batch's tasks to its commit
LATEST_REPORT = 5.0  # seconds until a late report reaches the coordinator: some batches
RETRY = 1.0  # seconds until a lost task runs elsewhere
FOREIGN = 40.0  # seconds of a task of another job: longer than a fenced executor is left for the batch's own
OF_QUERIES, QUERIES = ("queries", "batches"), " queries"
"""Calls about queries, and what a failure is called that concerns these alone: the rest of the JVM answers."""


@dataclass
class Machine:
    """The true state of a host. user: the application on it. since: begin of its phase. seconds: CPU seconds used."""

    type: HostType
    phase: Phase
    since: float
    address: str
    reason: str = ""
    seconds: float = 0.0
    comes_up: float = 0.0

    @property
    def up(self) -> bool:
        return self.phase is Phase.UP


class Machines:
    """Machines by host. now: seconds. name: prefix of addresses."""

    def __init__(self, name: str, now: Callable[[], float]) -> None:
        self.name, self._now = name, now
        self.machines: dict[str, Machine] = {}
        self._numbers = 0

    def measure(self) -> Mapping[str, HostUsage]:
        return {name: HostUsage(each.seconds, 100.0) for name, each in self.machines.items() if each.up}

    def close(self) -> None:
        self.machines.clear()


class Cloud(Machines, Provider):
    """A provider of at most `room` hosts, which outlive their applications and start `slow` times as slowly."""

    def __init__(self, name: str, types: tuple[HostType, ...], now: Callable[[], float], max_hosts: int) -> None:
        super().__init__(name, now)
        self.terms = ProviderOffer(types, max_hosts, patience=60.0)
        self.room, self.slow = math.inf, 1.0

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        self.pass_time()
        for name, kind in hosts.items():
            if name not in self.machines:
                self._numbers += 1
                self.machines[name] = Machine(kind, Phase.REQUESTED, self._now(), f"{self.name}-{self._numbers}")
        self.pass_time()

    def release(self, hosts: Collection[str]) -> None:
        self.pass_time()
        for name in hosts:
            machine = self.machines.get(name)
            if machine is None:
                continue
            if machine.phase in (Phase.REQUESTED, Phase.GONE):
                del self.machines[name]
            elif machine.phase is not Phase.ENDING:
                machine.phase, machine.since = Phase.ENDING, self._now()

    def hosts(self) -> Mapping[str, HostStatus]:
        self.pass_time()
        return {
            name: HostStatus(each.type.name, each.phase, each.reason, address=each.address if each.up else "")
            for name, each in self.machines.items()
        }

    def dies(self, host: str, reason: str = "its plug was pulled") -> None:
        machine = self.machines.get(host)
        if machine is not None and machine.phase is not Phase.GONE:
            machine.phase, machine.since, machine.reason = Phase.GONE, self._now(), reason

    def pass_time(self) -> None:
        now = self._now()
        there = sum(each.phase in (Phase.STARTING, Phase.UP, Phase.ENDING) for each in self.machines.values())
        for name, each in list(self.machines.items()):
            if each.phase is Phase.REQUESTED and there < self.room:
                there += 1
                each.phase, each.since, each.comes_up = Phase.STARTING, now, now + each.type.start * self.slow
            if each.phase is Phase.STARTING and now >= each.comes_up:
                each.phase, each.since = Phase.UP, now
            if each.phase is Phase.ENDING and now >= each.since + each.type.stop:
                del self.machines[name]


class Cluster(Machines):
    """The worker processes of one driver on one machine, as `LocalCluster` has them; they end with the driver."""

    java_options = driver_options = ()
    confinement, link_rate = "as on paper", math.nan
    url, driver_address, executor_memory_mb = "spark://paper:7077", "paper", 667
    name_problem = staticmethod(LocalCluster.name_problem)
    secrets = SimpleNamespace(session_settings={}, shared="")

    def __init__(self, name: str, types: tuple[HostType, ...], now: Callable[[], float]) -> None:
        super().__init__(name, now)
        self.local = SimpleNamespace(types=types, regions=tuple(dict.fromkeys(kind.region for kind in types)), notices="")
        self.starts_until = -math.inf

    def status(self) -> Mapping[str, Mapping[str, Any]]:
        for each in self.machines.values():
            if each.phase is Phase.STARTING and self._now() >= each.comes_up:
                each.phase = Phase.UP
            if each.phase is Phase.ENDING and self._now() >= each.since + each.type.stop:
                each.phase = Phase.GONE
        return {
            name: {"alive": each.phase in (Phase.STARTING, Phase.UP), "gone": each.phase is Phase.GONE}
            for name, each in self.machines.items()
        }

    def spawn(self, host: str, type: HostType) -> None:
        self._numbers += 1
        now = self._now()
        slow = 5.0 if now < self.starts_until else 1.0
        machine = Machine(type, Phase.STARTING, now, f"{self.name}-{self._numbers}", comes_up=now + slow * type.start / 2)
        self.machines[host] = machine

    def terminate(self, host: str) -> None:
        machine = self.machines[host]
        if machine.phase in (Phase.STARTING, Phase.UP):
            machine.phase, machine.since = Phase.ENDING, self._now()

    def kill(self, host: str) -> None:
        if host in self.machines:
            self.machines[host].phase = Phase.GONE

    dies = kill

    def forget(self, host: str) -> None:
        del self.machines[host]

    def address(self, host: str) -> str:
        return self.machines[host].address if host in self.machines else ""

    def namespace(self, host: str) -> None:
        return None

    def failure(self, host: str) -> str:
        return "its plug was pulled"

    def confine(self, host: str, cores: float | None, weight: float = 1.0) -> None:
        """Nothing."""

    def archive_classes(self) -> None:
        """Nothing."""


@dataclass
class Durable:
    """Data of a query that outlives its driver. ranges: of planned batches. contents: by partition and version."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    committed: int = -1
    contents: dict[tuple[int, int], str] = field(default_factory=dict)


@dataclass
class Executor:
    id: str
    host: str
    address: str
    busy: float = 0.0
    fenced: bool = False
    stands_until: float = -math.inf
    state: dict[int, int] = field(default_factory=dict)


@dataclass
class Progress:
    """A committed batch as the driver reports it.

    began, ended: by the wall clock; steady: its true end. waited: wait of its oldest record.
    """

    number: int
    began: float
    ended: float
    start: int
    end: int
    latest: int
    tasks: list[tuple[str, float]]
    steady_began: float = 0.0
    steady: float = 0.0
    waited: float = 0.0


class Engine:
    """One session with one query. It implements the methods of DriverSide and of TaskLoads."""

    replays, salted = True, False
    """What mutants undo: a batch that was planned is run as it was planned; content does not depend on its place."""

    @staticmethod
    def loads(cached: int | None, wanted: int) -> int:
        return wanted

    def __init__(self, driver: "Driver", durable: Durable) -> None:
        self.name, self.durable, self._driver, self._world = driver.name, durable, driver, driver.world
        self.now, self.wall, self._history = driver.now, driver.world.wall, driver.history
        self.query_id, self.run_id = f"query-{driver.name}", f"run-{driver.generation}"
        self.executors: dict[str, Executor] = {}
        self.locations: dict[int, str] = {}
        self.progress: list[Progress] = []
        self.batch: tuple[int, float, float] | None = None  # number, when it began, by the wall
        self._written, self._spent_at = False, 0.0
        self._works: dict[str, tuple[float, float]] = {}
        self._ends, self.tasks = math.inf, dict[int, tuple[str, int, float]]()
        self._next, self._numbers = 0.0, 0
        self._came_up: dict[str, float] = {}
        self.stopped = False
        # faults, each until a second
        self.fails = driver.gateway
        self.reports_lost = self.reports_late = self.hangs = self.silent = self.loadless = self.races = -math.inf
        self._foreign: dict[str, float] = {}  # by executor, when its task of another job ends
        self.context = SimpleNamespace(isStopped=lambda: self.stopped)
        self.spark = self._java()

    def ask(self, method: str, *arguments: Any) -> list[list[str]]:
        self._perhaps_fail(method)
        answer: list[list[str]] = getattr(self, f"_{method}")(*arguments)
        return answer

    def _perhaps_fail(self, call: str) -> None:
        until, how = self.fails
        if self.now() < until and (call in OF_QUERIES or not how.endswith(QUERIES)):
            raise raised(how)

    def cpu_seconds(self) -> float:
        return 0.0

    def fence(self, executor: str) -> None:
        self._perhaps_fail("fence")
        if executor in self.executors:
            self.executors[executor].fenced = True
            if self.now() < self.races:
                self._foreign[executor] = self.now() + FOREIGN

    def look(self) -> Snapshot:
        """Return the uses of executors, as `ExecutorUse` does."""
        self._perhaps_fail("use")
        batch = Counter(executor for executor, _, _ in self.tasks.values()) if self.batch is not None else Counter[str]()
        uses = [Use(executor, Kind.TASK, self.query_id, "a batch", count) for executor, count in batch.items()]
        uses += [Use(executor, Kind.TASK, "", "a job", 1) for executor in self._foreign if self._works_for_others(executor)]
        return Snapshot(uses, {(each.id, self.query_id): each.busy for each in self.executors.values()})

    def _works_for_others(self, executor: str) -> bool:
        return executor in self.executors and self.now() < self._foreign.get(executor, -math.inf)

    def cut_off(self, hosts: Collection[str]) -> list[str]:
        """Return those of `hosts` whose executors run a task of another job."""
        return [each.host for each in self.executors.values() if each.host in hosts and self._works_for_others(each.id)]

    def _executors(self, _: Any) -> list[list[str]]:
        running = {executor for executor, _, _ in self.tasks.values()} if self.batch is not None else set()
        return [
            [e.id, f"{e.address}:7", "1", str(round(1e3 * e.busy)), str(int(e.fenced)), str(int(e.id in running))]
            for e in self.executors.values()
        ]

    def _state(self, _: Any) -> list[list[str]]:
        return [[""]]

    def _queries(self, _: Any) -> list[list[str]]:
        newest = self.progress[-1].number if self.progress else self.durable.committed
        return [[self.query_id, self.run_id, str(newest), str(int(self.batch is None)), "", self.name]]

    def _batches(self, _: Any, seen: int) -> list[list[str]]:
        planned = self.durable.committed if self.batch is None else self.batch[0]
        doing = [
            "ProcessingTimeTrigger(2000)",
            "Waiting" if self.batch is None else "Processing new data",
            str(planned),
            "paper://",
            "0",
        ]
        if self.now() < self.silent:
            return [doing]
        found = []
        for each in self.progress:
            if each.number > seen:
                rows, numbers = each.end - each.start, {"start": each.start, "end": each.end, "latest": each.latest}
                offsets = {f"{name}Offset": {"n": number} for name, number in numbers.items()}
                source = json.dumps({"description": "paper", **offsets, "numInputRows": rows})
                began, took = (round(1e3 * at) for at in (each.began, each.ended - each.began))
                durations = json.dumps({"triggerExecution": took, "latestOffset": 0})
                found.append([str(each.number), str(began), str(rows), durations, "-", "{}", source])
        return [*found[::-1], doing]

    def _stateful(self, _: Any, execution: Any) -> list[list[str]]:
        if not self.progress:
            return []
        return [["planned"], ["0", "0", str(PARTITIONS), "7", "StateStoreSave", "/paper/state", "default"]]

    def _locations(self, *_: Any) -> list[list[str]]:
        return [
            [f"executor_{self.executors[at].address}_{at}" if (at := self.locations.get(p)) in self.executors else ""]
            for p in range(PARTITIONS)
        ]

    def _loads(self, _: Any, execution: Any, kinds: str, told: int, limit: int, *reported: bool) -> list[list[str]]:
        if self.now() < self.loadless or not self.progress or self.progress[-1].number <= told:
            return []
        first = max(told + 1, self.progress[-1].number - limit + 1)
        lines: list[list[str]] = []
        for each in reversed(self.progress):
            if each.number < first - 1:
                break
            lines.append(["J", str(each.number), str(round(1e3 * each.ended))])
            if each.number >= first:
                lines.append(["S", str(each.number), "", "0", "0", str(PARTITIONS)])
                for partition, (executor, seconds) in enumerate(each.tasks):
                    spent = (round(1e3 * seconds), 0, round(1e9 * seconds), (each.end - each.start) // PARTITIONS, 0, 0, 0)
                    lines.append(["T", str(partition), str(partition), executor, "1", *map(str, spent)])
        return lines

    def _work(self, *_: Any) -> list[list[str]]:
        return []

    def _java(self) -> Any:
        execution = SimpleNamespace(
            lastExecution=lambda: None if self.batch is None and not self.progress else SimpleNamespace(
                checkpointLocation=lambda: "/paper/state",
                currentBatchId=lambda: self.batch[0] if self.batch else self.progress[-1].number,
            ),
            lastProgress=lambda: None,
            status=lambda: SimpleNamespace(isTriggerActive=lambda: self.batch is not None),
        )  # fmt: skip
        queries = SimpleNamespace(get=lambda _: execution)
        shared = SimpleNamespace(activeStreamingQueries=lambda: queries)
        coordinator = SimpleNamespace(reportActiveInstance=self._reported)
        streams = SimpleNamespace(stateStoreCoordinator=lambda: coordinator)
        state = SimpleNamespace(
            StateStoreId=lambda root, operator, partition, store: partition, StateStoreProviderId=lambda store, run: store
        )
        sql = SimpleNamespace(execution=SimpleNamespace(streaming=SimpleNamespace(state=state)))
        jvm = SimpleNamespace(
            org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=sql))),
            PythonUtils=SimpleNamespace(toSeq=list),
            java=SimpleNamespace(util=SimpleNamespace(UUID=SimpleNamespace(fromString=str))),
        )
        return SimpleNamespace(
            _jvm=jvm,
            _jsparkSession=SimpleNamespace(streams=lambda: streams, sharedState=lambda: shared),
            sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: self.context)),
        )

    def _reported(self, partition: int, address: str, executor: str, _: Any) -> None:
        if self.now() >= self.reports_lost:
            self.locations[partition] = executor

    def tick(self) -> None:
        now = self.now()
        self._meet_hosts(now)
        self._spend(now)
        if self.batch is not None and now >= self._ends:
            if self._written:
                self._commit(now)
            else:
                self._end_or_go_on(now)
        if self.batch is None and now >= self._next and any(not each.fenced for each in self.executors.values()):
            self._begin(now)

    def _meet_hosts(self, now: float) -> None:
        machines = self._world.machines(self._driver)
        for executor in list(self.executors.values()):
            machine = machines.get(executor.host)
            if machine is None or not machine.up or machine.address != executor.address:
                self.kill_executor(executor.id)
        taken = {executor.host for executor in self.executors.values()}
        for host, machine in machines.items():
            if not machine.up or host in taken:
                continue
            if now >= self._came_up.setdefault(machine.address, now) + REGISTERS:
                self._numbers += 1
                name = f"{self._driver.generation}00{self._numbers}"
                self.executors[name] = Executor(name, host, machine.address)
                self._came_up.pop(machine.address)

    def _spend(self, now: float) -> None:
        machines = self._world.machines(self._driver)
        for executor, (began, ends) in self._works.items():
            if executor in self.executors:
                machine = machines[self.executors[executor].host]
                machine.seconds += max(0.0, min(now, ends) - max(self._spent_at, began)) * machine.type.cores
        self._spent_at = now

    def kill_executor(self, executor: str) -> None:
        lost = self.executors.pop(executor)
        self._came_up[lost.address] = self.now()
        for partition in [p for p, at in self.locations.items() if at == executor]:
            del self.locations[partition]

    def _place(self, partition: int) -> str:
        at = self.locations.get(partition)
        if at in self.executors and not self.executors[at].fenced:
            return at
        usable = [each.id for each in self.executors.values() if not each.fenced] or list(self.executors)
        return usable[partition % len(usable)]

    def _begin(self, now: float) -> None:
        number = self.durable.committed + 1
        start = self.durable.ranges[number - 1][1] if number else 0
        if number < len(self.durable.ranges) and not self.replays:
            self.durable.ranges.pop()
        if number == len(self.durable.ranges):
            latest = int(self._world.arrived(now))
            if latest <= start:
                return
            self.durable.ranges.append((start, min(latest, start + BOUND)))
        self.batch = (number, now, self.wall())
        self.tasks, self._works = {}, {}
        self._run(range(PARTITIONS), number, now + OVERHEAD)

    def _run(self, partitions: Collection[int], number: int, at: float) -> None:
        start, end = self.durable.ranges[number]
        machines, busy = self._world.machines(self._driver), dict[str, float]()
        for partition in partitions:
            executor = self._place(partition)
            seconds = COST * (end - start) / PARTITIONS / machines[self.executors[executor].host].type.cores
            busy[executor] = busy.get(executor, 0.0) + seconds
            self.tasks[partition] = (executor, number, seconds)
            # A task reports where it loads its state before it works. A late report may overtake one of the driver.
            report = partial(self.locations.__setitem__, partition, executor)
            if at < self.reports_late:
                self._world.at(at + self._world.chance.uniform(0.0, LATEST_REPORT), report)
            else:
                report()
        self._works |= {executor: (at, at + seconds) for executor, seconds in busy.items()}
        hold = max(self.executors[each].stands_until for each in busy)
        self._ends = max(at + max(busy.values()), hold, self.hangs)

    def _end_or_go_on(self, now: float) -> None:
        assert self.batch is not None
        number = self.batch[0]
        lost = [p for p, (executor, _, _) in self.tasks.items() if executor not in self.executors]
        if lost:
            if self.executors:
                self._run(lost, number, now + RETRY)
            return
        if now < (hold := max(self.hangs, *(self.executors[e].stands_until for e, _, _ in self.tasks.values()))):
            self._ends = hold
            return
        # State and sink are written before the batch counts as committed: a driver may die between the two.
        self._write(number, now)
        self._written, self._ends = True, now + COMMITS

    def _commit(self, now: float) -> None:
        assert self.batch is not None
        number, began, by_wall = self.batch
        self.durable.committed, self._written = number, False
        start, end = self.durable.ranges[number]
        tasks = [(self.tasks[p][0], self.tasks[p][2]) for p in range(PARTITIONS)]
        latest, waited = int(self._world.arrived(began)), now - self._world.due(start)
        self.progress.append(Progress(number, by_wall, self.wall(), start, end, latest, tasks, began, now, waited))
        del self.progress[:-100]
        self.batch = None
        self._next = max(now, began + TRIGGER)

    def _write(self, number: int, now: float) -> None:
        start, end = self.durable.ranges[number]
        for partition in range(PARTITIONS):
            executor, _, seconds = self.tasks[partition]
            at = self.executors[executor]
            loaded = self.loads(at.state.get(partition), number)
            before = self.durable.contents.get((partition, loaded), "") + (executor if self.salted else "")
            content = content_of(partition, before, start, end)
            self.durable.contents[partition, number + 1] = content
            at.state[partition] = number + 1
            at.busy += seconds
            self._history.commits.append(Commit(now, self.name, number, partition, at.host, loaded, number + 1, content))
        self._history.sink.append((now, self.name, number, start, end, row_of(start, end)))


SMALL = HostType("small", cores=1.0, price=1.0, billing=Billing(10.0), start=6.0, stop=2.0)
