"""500 random events under load, on both state stores: the query never restarts and its counts stay exact.

Moves of state partitions and tokens, hosts killed (one, several, a whole fault zone) and given back, executors that freeze
for 3 s and continue; with one standby replica of each state partition. Events follow a seeded schedule.
"""

import argparse
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from _cluster import Bench, word_count
from _common import EXECUTOR, OURS, Report, main, processes_below, progress

from elastream.core.action import Action, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetTokens
from elastream.core.hosts import HostState, HostType
from elastream.core.ring import Ring, in_zones
from elastream.core.task_id import TaskId
from elastream.errors import EnvironmentProblem
from elastream.evaluation.findings import Check
from elastream.loads import constant
from elastream.settings import StateStore
from elastream.spark.jvm.standby import OpenedReplica
from elastream_papers.thesis.resilience.bed import copied

SHARES: Mapping[str, float] = {
    "tokens": 0.3,
    "kill": 0.03,
    "kills": 0.02,
    "decommission": 0.03,
    "zone": 0.02,
    "pause": 0.01,
}
"""Fraction of the events of each kind; the rest are moves. A host comes for each that goes: that takes most of the time."""
HOSTS, PARTITIONS, REPLICAS = 4, 8, 1
AT_ONCE = 4  # most moves of one pause between two batches
RATE, SEED = 2000, 1  # lines per second: all hosts together keep up, but not with two of them lost
PAUSED = 3.0  # seconds for which an executor freezes: a false alarm
TOLD = 5  # batches after a loss within which executors report the opened copies
PATIENCE = 300.0  # seconds of waiting after which the query counts as hung
CORES = 0.4  # of a host: four hosts leave a part of two cores to the driver
OPERATOR = "count"


@dataclass(frozen=True, slots=True)
class Churn:
    """Results. events: by kind. landed, dropped: migrations, including those that returned drifted tasks. starts: restarts
    of the query. lost: hosts. opened: state partitions of lost zones that were opened from a copy; behind, files: batches
    that these copies lacked, and files that were read for them. wrong: words whose count differs from a plain count.
    """

    store: StateStore
    events: Mapping[str, int]
    landed: int
    dropped: int
    drifted: int
    lost: int
    opened: int
    behind: int
    files: int
    batches: int
    records: int
    starts: int
    wrong: int
    seconds: float


def schedule(events: int, seed: int = SEED) -> Sequence[str]:
    chance = random.Random(seed)
    counts = {kind: max(1, round(events * share)) for kind, share in SHARES.items()}
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    at = dict(zip(chance.sample(range(events), len(kinds)), kinds, strict=True))
    return [at.get(number, "move") for number in range(events)]


def churn(
    events: Sequence[str],
    *,
    hosts: int = HOSTS,
    store: StateStore = "memory",
    cores: float = CORES,
    rate: int = RATE,
    refill: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Churn:
    """Run events at `rate` lines/s; without `refill` few hosts may go. Raises EnvironmentProblem if the query hangs."""
    began, count = time.monotonic(), Counter[str]()
    types = [HostType(f"host-{zone}", cores=cores, slots=1, memory=1000.0, zone=zone) for zone in "ab"]
    with word_count(
        constant(rate),
        hosts=-(-hosts // 2),  # the first are all of one zone; the others come with `lease`
        max_hosts=2 * hosts,
        types=types,
        state_partitions=PARTITIONS,
        state_store=store,
        replicas=REPLICAS,
    ) as bench:
        events_on = _Events(bench, hosts, refill)
        for number, kind in enumerate(events):
            getattr(events_on, kind)()
            count[kind] += 1
            if kind not in ("move", "tokens"):
                progress(f"{number + 1} of {len(events)}: {kind}, {len(bench.plant.placing.landed)} moves landed")
        events_on.settle()
        plant = bench.plant
        facts, wrong = plant.facts(), bench.wrong_counts()
        return Churn(
            store,
            dict(count),
            len(plant.placing.landed),
            len(plant.placing.dropped),
            plant.placing.drifted,
            sum(lease.state is HostState.LOST for lease in plant.ledger),
            len(events_on.opened),
            sum(each.version - each.replica_version for each in events_on.opened),
            sum(each.files for each in events_on.opened),
            int(facts["batches"]),
            int(facts["records"]),
            int(facts["query runs"]) - 1,
            wrong,
            round(time.monotonic() - began, 1),
        )


class _Events:
    def __init__(self, bench: Bench, hosts: int, refill: bool) -> None:
        self.bench, self.plant, self.hosts, self.refill = bench, bench.plant, hosts, refill
        self.chance = random.Random(SEED)
        self._moved = 0
        self.opened: list[OpenedReplica] = []
        self.lease()
        self.replace()

    def move(self) -> None:
        usable = self.usable(2)
        task = TaskId(OPERATOR, self.chance.randrange(PARTITIONS))
        where = self.plant.reconciler.placements().get(task)
        self.apply(MoveTask(task, self.chance.choice([host for host in usable if host != where]), "by chance"))
        self._moved += 1
        if self._moved >= self.chance.randint(1, AT_ONCE):
            self._moved = 0
            self.next_batch()

    def tokens(self) -> None:
        usable = self.usable(2)
        ring = self.plant.rings.active.get(OPERATOR)
        if ring is None or set(ring) != set(usable):
            ring = Ring.even(in_zones({host: self.plant.hosts.leases[host].type.zone for host in usable}))
        else:
            host = self.chance.choice(ring.nodes)
            ring = ring.at(host, (ring.tokens[host] - ring.length(ring.before(host)) / 2) % 1.0)
        self.apply(SetTokens(OPERATOR, tuple(ring.tokens.items()), "by chance"))
        self.next_batch()

    def kill(self) -> None:
        self._kill([self.chance.choice(self.usable(2))])

    def kills(self) -> None:
        usable = self.whole()
        self._kill(self.chance.sample(usable, self.chance.randint(2, len(usable) - 1)))

    def zone(self) -> None:
        """Return the hosts of a fault zone, once copies are complete. Without replacements, it leaves two other hosts.

        Neighbours are of distinct zones unless moves or tokens by chance have put them otherwise: copies are opened then,
        unless Spark reruns lost tasks on any free slot before the driver learns of the loss. Other kills come at any
        moment; this one comes between batches, when no task with state runs, so that copies are opened.
        """
        self.until(lambda: copied(self.plant.observe()), "copies of the state")
        usable, zones = self.whole(), dict[str, list[str]]()
        for host in usable:
            zones.setdefault(self.plant.hosts.leases[host].type.zone, []).append(host)
        hosts = self.chance.choice([each for each in zones.values() if self.refill or len(usable) - len(each) >= 2])
        desk = self.plant.instruments.copies
        assert desk is not None
        self.next_batch()
        kept, before = self.plant.standby.replica_hosts(), len(desk.opened())
        placed = self.plant.reconciler.placements().items()
        others = {task for task, at in placed if at in hosts and set(kept.get(task, ())) - {*hosts}}
        self._kill(hosts)
        until = self.plant.queries.telemetry.batches + TOLD
        self.until(
            lambda: not others or len(desk.opened()) > before or self.plant.queries.telemetry.batches >= until,
            "a copy to be opened",
        )
        self.opened += desk.opened()[before:]

    def decommission(self) -> None:
        host = self.chance.choice(self.whole())
        self.apply(DrainHost(host))
        self.apply(ReleaseHost(host))
        self.until(lambda: not self.plant.hosts.leases[host].active, f"{host} to be given back")
        self.replace()

    def pause(self) -> None:
        registered = self.plant.hosts.executor(self.chance.choice(self.usable(2)))
        assert registered is not None
        executor, *_ = processes_below(EXECUTOR, registered.host)
        executor.send_signal(signal.SIGSTOP)
        try:
            time.sleep(PAUSED)
        finally:
            executor.send_signal(signal.SIGCONT)
        self.next_batch()

    def apply(self, action: Action) -> None:
        outcome = self.plant.apply(action)
        if not outcome.succeeded:
            raise EnvironmentProblem(f"{action.describe()}: {outcome.reason}")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            assert not self.plant.finished  # raises if the query has failed
            return condition()

        try:
            self.bench.observe_until(holds, PATIENCE, what)
        except TimeoutError as error:
            raise EnvironmentProblem(str(error)) from None

    def usable(self, least: int) -> list[str]:
        self.until(lambda: len(self.plant.hosts.usable) >= least, f"{least} hosts that take tasks")
        return list(self.plant.hosts.usable)

    def whole(self) -> list[str]:
        return self.usable(sum(lease.active for lease in self.plant.hosts.leases.values()))

    def replace(self) -> None:
        if self.refill:
            self.lease()
            self.usable(self.hosts)
        self.next_batch()

    def next_batch(self) -> None:
        before = self.plant.queries.telemetry.batches
        self.until(lambda: self.plant.queries.telemetry.batches > before, "a batch to end")

    def lease(self) -> None:
        types = self.plant.context.host_types
        leases = self.plant.hosts.leases
        while sum(lease.active for lease in leases.values()) < self.hosts:
            there = Counter(dict.fromkeys(types, 0))
            there.update(lease.type.name for lease in leases.values() if lease.active)
            kind, _ = there.most_common()[-1]
            self.apply(LeaseHost(self.plant.observe().host_name(), kind, why="one was lost"))
            leases = self.plant.hosts.leases

    def settle(self) -> None:
        self.until(lambda: not self.plant.placing.targets(), "migrations to land")
        self.next_batch()

    def _kill(self, hosts: list[str]) -> None:
        for host in hosts:
            self.plant.hosts.provider.cluster.kill(host)  # type: ignore[attr-defined]
        self.until(lambda: all(not self.plant.hosts.leases[host].active for host in hosts), f"{hosts} to be missed")
        self.replace()


EVENTS, QUICK = 500, 40
STORES: Sequence[StateStore] = ("memory", "disk")


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    events = QUICK if arguments.quick else arguments.events
    stores: Sequence[StateStore] = STORES if arguments.store is None else (arguments.store,)
    found = [churn(schedule(events // len(stores)), store=store, progress=progress) for store in stores]
    report.figures = {each.store: {name: v for name, v in asdict(each).items() if name != "store"} for each in found}
    hosts = f"{HOSTS} of one slot each in two fault zones; {PARTITIONS} partitions, {REPLICAS} copy each"
    report.environment["hosts"] = hosts
    done = sum(sum(each.events.values()) for each in found)
    # Fewer prove less, and miss nothing.
    report.checks.append(Check("events", done, f">= {EVENTS}", done >= EVENTS or None, OURS))
    report.at_most("starts of the query after its first", sum(each.starts for each in found), 0)
    report.at_most("counts that differ from a plain count", sum(each.wrong for each in found), 0)
    return report


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=EVENTS, help=f"of all stores together; default {EVENTS}")
    parser.add_argument("--store", choices=STORES, help="one state store alone; default both")


if __name__ == "__main__":
    main("churn", __doc__, measure, more)
