"""Who is to take what a lost executor held, and what the plan says once it was taken; the driver's JVM is a list here."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from elastream.core.hosts import HostState
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.spark.failover import FailoverPlan
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.executors import Executors
from elastream.spark.jvm.recovery import Loss
from elastream.spark.jvm.state_partitions import StatefulOperator, StatefulStage
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import Placing, Rings
from support.fake_clock import FakeClock
from support.fake_provider import SMALL, FakeProvider
from support.fake_session import FakeSession

STAGE = StatefulStage("count", 3, "file:/checkpoint/state", (StatefulOperator(0),))
FIRST, SECOND, THIRD = (TaskId("q/count", number) for number in range(3))


@dataclass
class Driver:
    """What the JVM was told, and what it says that happened."""

    followed: tuple = ()
    happened: list = field(default_factory=list)
    listening: bool = False
    over: bool = False

    def start(self):
        self.listening = True

    def close(self):
        self.listening = False

    def follow(self, stages):
        self.followed = stages

    def spread(self, executors):
        self.first = list(executors)

    def place(self, executors):
        self.placed = executors

    def losses(self):
        found, self.happened = tuple(self.happened), []
        return found


class World:
    """Hosts h1, h2, ..., each with the executor of its number; a query with three partitions at the hosts given."""

    def __init__(self, *hosts, tasks):
        clock = FakeClock()
        self.session, self.provider, self.driver = FakeSession(), FakeProvider(), Driver()
        self.hosts = Hosts(Executors(self.session), self.provider, clock.now, fence=self.session.fence)
        for name in hosts:
            self.session.there[name[1:]] = (f"at {name}", 1, 0, False)
            self.hosts.lease(name, SMALL)
        self.hosts.look()
        self.placing = Placing({}, clock.now, InMemoryPlan())
        self.placing.attach("q/count", SimpleNamespace(partitions=3))
        self.placing.ran("q/count", 0, [host[1:] for host in tasks])
        self.rings = Rings(self.placing, lambda: self.hosts.usable, lambda host: self.hosts.leases[host].type.zone)
        self.copies = {}
        live = (SimpleNamespace(run_id="run", stages={"q/count": STAGE}, stateless="q", unplaced=""),)
        self.replicas = 0
        self.failover = FailoverPlan(
            self.driver, lambda: live, self.hosts, self.placing, self.rings, lambda: self.copies,
            lambda: self.replicas,
        )  # fmt: skip

    def successors(self):
        """Executors, which are called as their hosts without the letter, that are to take each partition, nearest first."""
        self.failover.look()
        (followed,) = self.driver.followed
        assert (followed.run, followed.stage) == ("run", STAGE)
        return [list(each) for each in followed.successors]

    def lose(self, executor, **moved):
        """The executor goes, and the JVM has put partition `p0`, ... on the executors given."""
        del self.session.there[executor]
        places = {("run", (0,), int(name[1:])): to for name, to in moved.items()}
        self.driver.happened.append(Loss(executor, 0.0, "it was killed", 0.002, 0, "", places))

    def where(self):
        return {task.index: at.executor for task, at in self.placing.where().items()}


def test_an_executor_holds_its_clockwise_neighbours_nearest_first():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h3"))
    ring = world.rings.of("q/count")
    assert world.successors() == [[name[1:] for name in ring.successors(host, 2)] for host in ("h1", "h2", "h3")]


def test_the_ring_of_an_operator_says_who_its_neighbours_are():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h3"))
    world.rings.follow("q/count", Ring({"h1": 0.0, "h3": 0.3, "h2": 0.6}), {}, "")
    assert world.successors() == [["3", "2"], ["1", "3"], ["2", "1"]]


def test_who_keeps_a_copy_comes_before_the_neighbours():
    world = World("h1", "h2", "h3", tasks=("h1", "h1", "h1"))
    world.rings.follow("q/count", Ring({"h1": 0.0, "h2": 0.3, "h3": 0.6}), {}, "")
    world.copies = {FIRST: ["h3"], SECOND: ["h3", "h2"], THIRD: ["h1"]}
    assert world.successors() == [["3", "2"], ["3", "2"], ["2", "3"]]


def test_hosts_that_leave_take_nothing():
    world = World("h1", "h2", "h3", tasks=("h1", "h1", "h3"))
    world.hosts.drain("h2")
    assert world.successors() == [["3"], ["3"], ["1"]]


def test_a_partition_that_is_nowhere_has_no_successor():
    world = World("h1", "h2", tasks=("h1", "h9", "h2"))
    assert world.successors() == [["2"], [], ["1"]]


def test_a_lost_executor_of_a_present_host_is_reported_once():
    world = World("h1", "h2", tasks=("h1", "h2", "h2"))
    world.successors()
    assert world.failover.drain_messages() == []
    world.lose("2", p1="1", p2="1")
    world.failover.look()
    assert world.failover.drain_messages() == [
        "executor 2 of h2 was lost (it was killed): 2 state partitions went to others"
    ]
    assert world.failover.drain_messages() == []


def test_executors_that_end_with_the_session_are_not_lost(caplog):
    world = World("h1", "h2", tasks=("h1", "h2", "h2"))
    world.successors()
    world.lose("2", p1="1", p2="1")
    world.driver.over = True
    world.failover.look()
    assert (world.failover.drain_messages(), caplog.messages) == ([], [])


def test_successors_of_a_lost_host_stay_until_the_driver_knows():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h2"))
    world.copies = {SECOND: ["h3"], THIRD: ["h1"]}
    before = world.successors()
    world.provider.die("h2")
    world.hosts.look()
    assert world.hosts.state("h2") is HostState.LOST
    for _ in range(2):
        first, second, third = world.successors()
        assert (first, second, third) == (["3"], *before[1:])
    world.lose("2", p1="3", p2="1")
    assert world.successors() == [["3"], ["1"], ["3"]]


def test_what_the_driver_put_elsewhere_is_known_before_a_batch_reports_it():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h2"))
    world.failover.look()
    world.lose("2", p1="3", p2="1")
    world.hosts.look()
    world.failover.look()
    assert world.where() == {0: "1", 1: "3", 2: "1"}
    (loss,) = world.failover.losses
    assert loss.executor == "2"


def test_a_lost_host_is_taken_out_of_the_plan_as_one_version():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h2"))
    world.placing.pin({FIRST: "h1", SECOND: "h2", THIRD: "h2"})
    world.failover.look()
    before = world.placing.plan.latest.version
    world.provider.die("h2")
    world.lose("2", p1="3", p2="1")
    world.hosts.look()
    world.failover.look()
    assert world.hosts.state("h2") is HostState.LOST
    plan = world.placing.plan.latest
    assert (dict(plan.hosts), plan.version) == ({FIRST: "h1", SECOND: "h3", THIRD: "h1"}, before + 1)
    assert "h2 is lost" in plan.why
    assert not world.placing.targets()
    world.failover.look()
    assert world.placing.plan.latest.version == before + 1


def test_where_only_the_executor_was_lost_the_plan_still_names_its_host():
    world = World("h1", "h2", tasks=("h1", "h2", "h2"))
    world.placing.pin({SECOND: "h2", THIRD: "h2"})
    world.failover.look()
    world.lose("2", p1="1", p2="1")
    world.hosts.look()
    world.failover.look()
    assert dict(world.placing.plan.latest.hosts) == {SECOND: "h2", THIRD: "h2"}


def test_successors_for_an_ended_query_are_dropped():
    world = World("h1", "h2", tasks=("h1", "h2", "h2"))
    world.lose("2", p1="1")  # nobody has looked before: the run is not known
    world.hosts.look()
    world.failover.look()
    assert world.where() == {0: "1", 1: "2", 2: "2"}


def test_partitions_without_a_copy_are_reported_as_checkpoint_reads(caplog):
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h2"))
    world.copies = {SECOND: ["h3"], THIRD: ["h2"]}
    world.failover.look()
    world.lose("2", p1="3", p2="1")
    world.hosts.look()
    world.failover.look()
    (said,) = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert "2 state partitions put on its successors (1 of which have no copy there and are read from the" in said


def test_first_batches_are_spread_over_hosts_that_take_tasks():
    world = World("h1", "h2", "h3", tasks=("h1", "h1", "h1"))
    world.hosts.drain("h2")
    world.failover.look()
    assert sorted(world.driver.first) == ["1", "3"]


def test_planned_hosts_of_tasks_without_state_are_named_while_they_take_tasks():
    world = World("h1", "h2", "h3", tasks=("h1", "h2", "h2"))
    world.placing.pin({TaskId("q", 0): "h3", TaskId("q", 3): "h2", FIRST: "h2", TaskId("other", 0): "h1"})
    world.failover.look()
    assert world.driver.placed == {"run": ["3", "", "", "2"]}
    world.hosts.drain("h2")
    world.failover.look()
    assert world.driver.placed == {"run": ["3"]}
    world.hosts.drain("h3")
    world.failover.look()
    assert world.driver.placed == {}
