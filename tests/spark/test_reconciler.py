"""Hosts that leave and partitions that wait, in the hands of the reconciler; driver, session and provider are fakes."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from elastream.core.action import Outcome, ReleaseHost, Status
from elastream.core.alarm import Alarms
from elastream.core.hosts import HostState
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.executors import Executors, Location
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import STRAYS_AFTER, MigrationLimits, Placing, Rings
from elastream.spark.reconciler import CALM_S, HOST_STEP_S, STEP_S, ObservedLoad, Reconciler
from support.fake_clock import FakeClock
from support.fake_provider import SMALL, FakeProvider
from support.fake_session import FakeSession
from support.sessions_without_jvm import without_jvm

FIRST, SECOND, THIRD = (TaskId("q/count", number) for number in range(3))


@dataclass
class Driver(FakeSession):
    """What the driver says of queries too: (id, run, newest batch, idle, name)."""

    queries: list = field(default_factory=list)
    cost: float = 0.0
    spent: float = 0.0
    fault: type[Exception] | None = None

    def ask(self, method, *arguments):
        if self.fault is not None:
            raise self.fault("as meant")
        if method == "queries":
            return [[query, run, str(batch), str(int(idle)), "0", name] for query, run, batch, idle, name in self.queries]
        return super().ask(method, *arguments)

    def cpu_seconds(self):
        self.spent += self.cost
        return self.spent


@dataclass
class States:
    """Three partitions, which are where they were told to be."""

    partitions: int = 3
    places: dict = field(default_factory=dict)

    def where(self):
        return self.places

    def move(self, partition, to):
        self.places[partition] = to

    def planned(self):
        return 0

    def idle(self):
        return False

    def saved(self):
        return None

    def load(self, places, *, keep):
        return None


class World:
    """A reconciler over one query and hosts h1, h2, ... that run, tasks where they are said to be."""

    def __init__(self, *hosts, tasks=()):
        self.clock = FakeClock()
        self.driver, self.provider = Driver(), FakeProvider()
        fence = self.driver.fence
        self.hosts = Hosts(Executors(self.driver), self.provider, self.clock.now, fence=fence, wall=self.clock.now)
        for number, name in enumerate(hosts):
            self.driver.there[str(number)] = (f"at {name}", 1, 0, False)
            self.hosts.lease(name, SMALL)
        self.hosts.look()
        self.executor = {name: str(number) for number, name in enumerate(hosts)}
        self.placing = Placing({}, self.clock.now, InMemoryPlan(), limits=MigrationLimits(lazy=False))
        self.states = States(places={n: Location("", self.executor[host]) for n, host in enumerate(tasks)})
        self.placing.attach("q/count", self.states)
        self.placing.ran("q/count", 0, [self.executor[host] for host in tasks])
        self.driver.queries = [("id", "run", 0, False, "q")]
        self.live = live = (SimpleNamespace(id="id", operators=("q/count",), batches=[]),)
        context = SimpleNamespace(isStopped=lambda: False)
        self.spark = without_jvm(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)))
        self.alarms = Alarms(self.clock.now)
        self.draining, self.load = False, ObservedLoad()
        queries = SimpleNamespace(live=live, settle=lambda: self.draining)
        self.rings = Rings(self.placing, lambda: self.hosts.usable, lambda host: self.hosts.leases[host].type.zone)
        instruments = SimpleNamespace(spark=self.spark, driver=self.driver, placing=self.placing)
        self.reconciler = Reconciler(instruments, queries, self.hosts, self.rings, self.clock.now, self.alarms)
        self.reconciler._release, self.reconciler._load, self.reconciler._acts = self.release, lambda: self.load, True

    def release(self, action: ReleaseHost) -> Outcome:
        if self.hosts.usable in ((action.host,), ()):
            return Outcome(action, Status.REFUSED, "it is the only one")
        self.hosts.release(action.host)
        return Outcome(action, Status.ACCEPTED)

    def end_batch(self, number):
        self.driver.queries = [("id", "run", number, False, "q")]

    def look(self):
        """A pass in which it is time for everything."""
        self.clock.sleep_until(self.reconciler._next_look)
        return self.reconciler.step()

    def state(self, host):
        return self.hosts.state(host)


def test_a_drain_ends_although_spark_runs_tasks_where_their_state_was():
    """It gives them to the emptied host as long as the others are busy."""
    world = World("h1", "h2", tasks=["h2", "h2", "h1"])
    world.states.move = lambda partition, to: None
    world.hosts.drain("h2")
    for batch in range(1, 3 * STRAYS_AFTER):
        world.look()
        world.end_batch(batch)
        world.reconciler.step()
    world.look()
    assert world.driver.fenced == [world.executor["h2"]]


@pytest.mark.parametrize(
    ("starts", "going", "waits"),
    [((0.0, 2.0), "", True), ((0.0, 60.0), "", False), ((0.0,), "", False), ((0.0, 2.0), "h2", False)],
    ids=["batches", "rare batches", "one batch", "its host is released"],
)
def test_move_waits_for_a_batch_that_comes_soon_on_a_host_that_stays(starts, going, waits):
    world = World("h1", "h2", tasks=["h2", "h1"])
    world.live[0].batches = [SimpleNamespace(start=each) for each in starts]
    if going:
        world.hosts.release(going)
    assert world.placing.may_wait(TaskId("q/count", 0)) == waits


def test_where_looking_is_dear_it_looks_less_often():
    world = World("h1")
    world.driver.cost = 0.2
    assert world.look() == pytest.approx(20.0)


def test_while_a_host_comes_it_looks_more_often():
    world = World("h1")
    world.hosts.lease("h2", SMALL)
    assert world.look() == pytest.approx(HOST_STEP_S)


def test_while_records_drain_for_a_switch_it_looks_often():
    world = World("h1")
    world.draining = True
    assert world.look() == STEP_S
    assert world.reconciler.step() == STEP_S
    world.draining = False
    assert world.reconciler.step() > STEP_S


def test_a_wish_is_sent_at_the_end_of_a_batch_and_lands_with_the_next():
    world = World("h1", "h2", tasks=("h1", "h1", "h2"))
    world.placing.move(FIRST, "h2")
    assert world.reconciler.placements()[FIRST] == "h2"
    world.look()
    assert world.states.places[0].executor == "1"
    world.end_batch(1)
    assert world.reconciler.step() > STEP_S
    assert [each.task for each in world.placing.landed] == [FIRST]
    assert world.reconciler.locations()[FIRST] == "h2"


def test_a_task_that_spark_ran_elsewhere_than_planned_is_moved_back():
    world = World("h1", "h2", tasks=("h1", "h1", "h2"))
    world.placing.pin({FIRST: "h1"})
    world.look()
    assert not world.placing.targets()
    world.placing.ran("q/count", 1, ["1", "0", "1"])
    world.look()
    assert world.placing.targets() == {FIRST: "h1"}


def test_a_leaving_hosts_tasks_go_where_load_is_least_heaviest_first():
    world = World("h1", "h2", "h3", tasks=("h1", "h1", "h2"))
    world.load = ObservedLoad({FIRST: 0.1, SECOND: 0.3, THIRD: 0.2}, {})
    world.hosts.drain("h1")
    world.reconciler.empty("h1")
    assert world.placing.targets() == {SECOND: "h3", FIRST: "h2"}


def test_a_slow_host_gets_less_of_a_leaving_hosts_tasks():
    world = World("h1", "h2", "h3", tasks=("h1", "h1", "h2"))
    world.load = ObservedLoad({FIRST: 0.1, SECOND: 0.3, THIRD: 0.2}, {"h2": 1.0, "h3": 0.25})
    world.hosts.drain("h1")
    world.reconciler.empty("h1")
    assert world.placing.targets() == {SECOND: "h2", FIRST: "h3"}


def test_a_host_without_a_free_slot_gets_none_of_a_leaving_hosts_tasks(monkeypatch):
    world = World("h1", "h2", "h3", tasks=("h1", "h1", "h2"))
    monkeypatch.setattr(world.hosts, "foreign_share", {"h3": 1.0, "h2": 0.0}.get)
    world.load = ObservedLoad({FIRST: 0.1, SECOND: 0.3, THIRD: 0.2}, {"h2": 1.0, "h3": 0.0})
    world.hosts.drain("h1")
    world.reconciler.empty("h1")
    assert world.placing.targets() == {SECOND: "h2", FIRST: "h2"}


def test_a_recalled_host_gives_its_tasks_away_under_any_policy():
    world = World("h1", "h2", tasks=("h1", "h1", "h2"))
    world.provider.recalled = {"h2"}
    world.look()
    world.look()
    assert world.state("h2") is HostState.RELEASING
    assert world.placing.targets() == {THIRD: "h1"}
    assert not world.provider.reports[-1].kept


def test_the_only_host_that_takes_tasks_is_kept():
    world = World("h1", tasks=("h1", "h1", "h1"))
    world.provider.recalled = {"h1"}
    world.look()
    world.look()
    assert world.state("h1") is HostState.RUNNING
    assert world.provider.reports[-1].kept == {"h1"}


def test_largest_partitions_leave_first_before_a_deadline():
    world = World("h1", "h2", tasks=("h1", "h1", "h1"))
    world.load = ObservedLoad({FIRST: 9.0, SECOND: 1.0, THIRD: 2.0}, files={FIRST: 1.0, SECOND: 50.0, THIRD: 50.0})
    order = world.reconciler._order_of_leaving
    assert sorted((FIRST, SECOND, THIRD), key=order("h1")) == [FIRST, THIRD, SECOND]
    world.provider.deadlines = {"h1": 30.0}
    world.look()
    assert sorted((FIRST, SECOND, THIRD), key=order("h1")) == [THIRD, SECOND, FIRST]
    assert max((FIRST, SECOND, THIRD), key=world.reconciler._benefit_of) == THIRD


def test_short_notice_moves_more_partitions_in_a_batch():
    world = World("h1", "h2", tasks=("h1", "h1", "h1"))
    world.provider.deadlines = {"h1": 40.0}
    for number in range(1, 3):
        world.look()
        world.clock.advance(STEP_S)
        world.end_batch(number)
        world.reconciler.step()
    world.reconciler._round_s = 20.0
    world.look()
    assert world.placing.limits.per_host == 2
    world.provider.deadlines = {"h1": 400.0}
    world.look()
    assert world.placing.limits.per_host == 1


def test_time_of_a_batch_is_that_of_its_own_query():
    world = World("h1", "h2", tasks=("h1", "h1", "h1"))
    world.reconciler._queries.live += (SimpleNamespace(id="other", operators=("q/count",)),)
    world.hosts.drain("h1")
    world.look()
    for own, other in ((1, 0), (1, 1), (2, 1)):
        world.clock.advance(9.0 if own > other else 1.0)
        world.driver.queries = [("id", "run", own, False, "q"), ("other", "run", other, False, "r")]
        world.reconciler.step()
    assert world.reconciler._round_s == pytest.approx(10.0)


def test_end_of_a_notice_says_what_was_left():
    world = World("h1", "h2", tasks=("h1", "h2", "h2"))
    world.load = ObservedLoad(files={FIRST: 20.0})
    world.provider.deadlines = {"h1": 30.0}
    world.look()
    (message,) = world.reconciler.drain_messages()
    assert message.endswith("1 state partition of 20 MB to move")
    world.provider.deadlines = {}
    world.provider.die("h1")
    world.look()
    world.look()
    assert world.reconciler.drain_messages() == ["host h1 was taken away with 1 state partition of 20 MB left"]


def test_only_host_with_a_deadline_drains_until_another_comes():
    world = World("h1", tasks=("h1", "h1", "h1"))
    world.provider.deadlines = {"h1": 100.0}
    world.look()
    assert world.state("h1") is HostState.DRAINING
    world.driver.there["7"] = ("at h2", 1, 0, False)
    world.hosts.lease("h2", SMALL)
    for _ in range(3):
        world.look()
    assert world.state("h1") is HostState.RELEASING
    assert set(world.placing.targets().values()) == {"h2"}


def test_partitions_of_a_leaving_host_go_where_memory_has_room():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h2"))
    weights = {SECOND: 1.0, THIRD: 1.0}
    world.load = ObservedLoad(weights, state={FIRST: 100.0}, room={"h2": 500.0, "h3": 50.0})
    world.reconciler.empty("h1")
    assert world.placing.targets() == {FIRST: "h2"}


def test_state_goes_to_its_owner_on_the_ring_only_if_it_has_room():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h3"))
    world.rings.follow("q/count", Ring.even(("h1", "h2", "h3")), world.reconciler.locations(), "")
    world.load = ObservedLoad(state={FIRST: 100.0}, room={"h2": 50.0, "h3": 500.0})
    world.reconciler.empty("h1")
    assert world.rings.owner(FIRST) == "h2"
    assert world.placing.targets() == {FIRST: "h3"}


def test_state_without_room_waits_for_a_host_that_comes():
    world = World("h1", "h2", tasks=("h1", "h1", "h2"))
    world.provider.room = 2
    world.hosts.lease("h3", SMALL)
    world.load = ObservedLoad(state={FIRST: 100.0, SECOND: 100.0}, room={"h2": 150.0})
    for _ in range(2):
        world.reconciler.empty("h1")
        assert world.placing.targets() == {FIRST: "h2"}
    world.hosts.release("h3")
    world.reconciler.empty("h1")
    assert world.placing.targets() == {FIRST: "h2", SECOND: "h2"}, "no other host will come"


def test_state_does_not_wait_for_a_host_that_the_cloud_refuses_for_now():
    world = World("h1", "h2", tasks=("h1", "h1", "h2"))
    world.provider.room, world.provider.refused = 2, {"h3"}
    world.hosts.lease("h3", SMALL)
    world.hosts.look()
    world.load = ObservedLoad(state={FIRST: 100.0, SECOND: 100.0}, room={"h2": 150.0})
    world.reconciler.empty("h1")
    assert world.placing.targets() == {FIRST: "h2", SECOND: "h2"}


def test_a_host_keeps_its_executor_until_its_tasks_have_landed_elsewhere():
    world = World("h1", "h2", tasks=("h1", "h1", "h2"))
    world.release(ReleaseHost("h2"))
    world.look()
    assert not world.driver.fenced, "the move has not landed"
    world.end_batch(1)
    world.look()
    world.end_batch(2)
    world.look()
    assert world.driver.fenced == ["1"]


def test_where_it_only_observes_it_looks_and_does_nothing():
    world = World("h1", "h2", tasks=("h1", "h1", "h2"))
    world.reconciler._acts = False
    world.provider.recalled = {"h2"}
    world.hosts.drain("h1")
    world.look()
    assert world.state("h2") is HostState.RUNNING
    assert not world.placing.targets()


def test_an_unknown_fault_raises_an_alarm_and_the_next_pass_runs():
    world = World("h1")
    world.driver.fault = ZeroDivisionError
    assert world.reconciler.once() == CALM_S
    (alarm,) = world.alarms.active
    assert "ZeroDivisionError" in alarm.said
    world.driver.fault = None
    assert world.reconciler.once() is not None
    assert not world.alarms.active


def test_a_draining_ring_host_hands_its_interval_to_its_neighbour():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h3"))
    world.rings.follow("q/count", Ring.even(("h1", "h2", "h3")), world.reconciler.locations(), "")
    world.load = ObservedLoad({FIRST: 0.1, SECOND: 5.0}, {"h1": 1.0, "h2": 1.0, "h3": 1.0})
    world.hosts.drain("h1")
    world.look()
    assert world.placing.targets() == {FIRST: "h2"}
    assert world.rings.active["q/count"].tokens == {"h2": 0.0, "h3": 2 / 3}


def test_a_lost_ring_hosts_tasks_are_planned_on_its_neighbour_at_once():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h3"))
    world.rings.follow("q/count", Ring.even(("h1", "h2", "h3")), world.reconciler.locations(), "")
    world.provider.die("h2")
    world.look()
    assert world.state("h2") is HostState.LOST
    assert world.placing.targets() == {SECOND: "h3"}
    assert world.placing.plan.latest.hosts[SECOND] == "h3"
