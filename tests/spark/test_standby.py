"""Who keeps copies of which state partitions, and what an observation says of them, without Spark."""

import math
from dataclasses import dataclass, field

import pytest

from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.standby import NO_PLUGIN, StandbyRegistry
from elastream.spark.jvm.state_partitions import StatefulOperator
from elastream.spark.standby import WarmStandby

PARTITIONS = 4
COUNT = StatefulOperator(0, "StateStoreSave")
JOIN = StatefulOperator(1, "StreamingSymmetricHashJoin", ("left", "right"))


class Java:
    """The driver's desk as it answers: takes tables, and has reports."""

    def __init__(self):
        self.tables, self.rows, self.refusal = {}, [], ""

    def learn(self, rdd, partitions):
        return f"why\t{self.refusal}" if self.refusal else f"name\trun/{rdd}/default"

    def want(self, name, table):
        self.tables[name] = table

    def forget(self, name):
        self.tables.pop(name, None)

    def reports(self):
        return "".join(f"{row}\n" for row in self.rows)

    def opened(self):
        return ""

    def keeps(self, executor, partition, state="following", version=7, committed=7, memory=2_000_000, why=""):
        fields = (executor, 100, "run/0/default", partition, state, version, committed, memory, 0, why)
        self.rows.append("\t".join(map(str, fields)))


def desk_over(java):
    registry = object.__new__(StandbyRegistry)
    registry.java, registry._opened = java, []
    return registry


@dataclass
class States:
    operators: tuple = (COUNT,)
    partitions: int = PARTITIONS
    planned_: bool = True
    batch: int = 0

    def planned(self):
        return self.batch

    def stores(self):
        return {each: each.id if each is COUNT else None for each in self.operators} if self.planned_ else None


@dataclass
class Placing:
    states: dict
    targets_: dict = field(default_factory=dict)
    where_: dict = field(default_factory=lambda: {TaskId("count", i): Location("", "abcd"[i]) for i in range(PARTITIONS)})
    partitions: dict = field(default_factory=lambda: {"count": PARTITIONS})

    def where(self):
        return self.where_

    def targets(self):
        return self.targets_


class Hosts:
    """Host "h-a" has the executor "a", and so on."""

    def __init__(self, executors="abcd"):
        self.executors = executors

    def host_of(self):
        return {each: f"h-{each}" for each in self.executors}

    def target(self, host):
        return Location("", host[2:]) if host[2:] in self.executors else None


class Rings:
    def successors(self, task, at):
        return Ring.even([f"h-{each}" for each in "abcd"]).successors(at, 4)


def standby(java, states=None, replicas=1, hosts=None, **placing):
    return WarmStandby(
        desk_over(java), hosts or Hosts(), Placing({"count": states or States()}, **placing), Rings(), replicas
    )


def keepers(java, name="run/0/default"):
    """Executors by partition, the first to take over first."""
    rows = sorted(tuple(map(str, line.split("\t")))[::-1] for line in java.tables[name].splitlines())
    found = {}
    for _, partition, executor in sorted(rows):
        found.setdefault(int(partition), []).append(executor)
    return found


@pytest.mark.parametrize(
    ("replicas", "expected"), [(1, {0: "b", 1: "c", 2: "d", 3: "a"}), (2, {0: "bc", 1: "cd", 2: "da", 3: "ab"})]
)
def test_the_hosts_that_follow_on_the_ring_keep_a_partitions_copies(replicas, expected):
    java = Java()
    standby(java, replicas=replicas).look()
    assert keepers(java) == {partition: list(each) for partition, each in expected.items()}


def test_how_many_copies_are_kept_may_change_while_queries_run():
    java = Java()
    warm = standby(java, replicas=2)
    for replicas, expected in ((2, ["b", "c"]), (1, ["b"]), (0, None), (1, ["b"])):
        warm.replicas = replicas
        warm.look()
        assert (keepers(java)[0] if java.tables else None) == expected


def test_a_successor_keeps_its_copy_until_a_task_has_opened_it():
    java, hosts = Java(), Hosts()
    java.keeps("b", 0)
    warm = standby(java, hosts=hosts)
    warm.look()
    hosts.executors = "bcd"  # "a" is lost, and the plan knows at once where its partition is
    warm._placing.where_[TaskId("count", 0)] = Location("", "b")
    warm.look()
    assert keepers(java)[0] == ["b", "c"]
    java.rows.clear()  # a task has taken it
    warm.look()
    warm.look()
    assert keepers(java)[0] == ["c"]


def test_copies_of_a_lost_hosts_state_stay_until_its_new_place_is_known():
    java, hosts = Java(), Hosts()
    warm = standby(java, hosts=hosts, replicas=2)
    warm.look()
    hosts.executors = "bd"  # "a" is lost, and "c"; where their partitions are is not known yet
    for _ in range(2):
        warm.look()
        assert keepers(java) == {0: ["b"], 1: ["d"], 2: ["d"], 3: ["b"]}
    warm._placing.where_ |= {TaskId("count", 0): Location("", "b"), TaskId("count", 2): Location("", "d")}
    warm.look()
    assert keepers(java) == {0: ["d"], 1: ["d"], 2: ["b"], 3: ["b"]}


def test_the_host_that_a_partition_moves_to_keeps_a_copy_meanwhile():
    java = Java()
    standby(java, targets_={TaskId("count", 0): "h-d"}).look()
    assert keepers(java)[0] == ["b", "d"]


def test_nothing_is_said_before_a_batch_was_planned_and_nothing_twice():
    java, states = Java(), States(planned_=False)
    warm = standby(java, states)
    warm.look()
    assert java.tables == {}
    states.planned_ = True
    warm.look()
    assert len(java.tables) == 1
    java.want = None  # saying it again would fail
    warm.look()


def test_a_query_that_runs_anew_has_the_copies_of_its_last_run_dropped():
    java, states = Java(), {"count": States()}
    warm = WarmStandby(desk_over(java), Hosts(), Placing(states), Rings(), 1)
    warm.look()
    states["count"] = States(planned_=False)
    warm.look()
    assert java.tables == {}


def test_an_operator_without_copies_is_named_and_its_task_has_none(caplog):
    java = Java()
    warm = standby(java, States((COUNT, JOIN)))
    warm.look()
    warm.look()
    assert java.tables == {}
    assert [record.message for record in caplog.records] == [f"count: {warm.observed([], []).why}"]
    assert "StreamingSymmetricHashJoin" in caplog.text


def test_a_store_that_cannot_be_copied_says_why():
    java = Java()
    java.refusal = "its state is kept by some.other.Provider"
    warm = standby(java)
    warm.look()
    assert warm.observed([], []).why.endswith(java.refusal)


def test_copies_that_are_there_are_observed_with_their_lag_and_memory():
    java = Java()
    java.keeps("b", 0)
    java.keeps("c", 1, version=5)
    java.keeps("d", 2, "loading", version=-1, memory=0)
    warm = standby(java)
    warm.look()
    tasks, hosts = [TaskId("count", index) for index in range(PARTITIONS)], ["h-a", "h-b", "h-c", "h-d"]
    seen = warm.observed(tasks, hosts)
    assert list(zip(seen.task, seen.host, seen.lag, seen.megabytes, strict=True)) == [(0, 1, 0.0, 2.0), (1, 2, 2.0, 2.0)]
    assert seen.why == "1 copy not there yet"
    assert warm.lags() == {tasks[0]: 0.0, tasks[1]: 2.0}
    assert warm.memory() == {"h-b": 2.0, "h-c": 2.0}
    assert warm.replica_hosts() == {tasks[0]: ["h-b"], tasks[1]: ["h-c"]}


def test_a_copy_that_is_too_far_behind_saves_a_move_nothing():
    java = Java()
    java.keeps("b", 0, version=6, committed=7)
    java.keeps("b", 1, version=1, committed=7)
    warm = standby(java)
    warm.look()
    assert set(warm.replica_hosts()) == {TaskId("count", 0), TaskId("count", 1)}
    assert set(warm.replica_hosts(max_lag=5)) == {TaskId("count", 0)}


def test_a_copy_lags_until_its_executor_has_seen_the_last_batch_end():
    java = Java()
    java.keeps("b", 0, version=7, committed=7)
    warm = standby(java, States(batch=8))
    warm.look()
    assert warm.lags() == {TaskId("count", 0): 1.0}


def test_a_copy_without_room_says_so():
    java = Java()
    java.keeps("b", 0, "no room", version=-1, memory=0, why="no room: 300 of 300 MB are taken, it would take 40")
    warm = standby(java)
    warm.look()
    assert warm.observed([], []).why == "1 copy not there yet: no room: 300 of 300 MB are taken, it would take 40"


def test_a_failing_follower_warns_once(caplog):
    java = Java()
    java.rows = ["a\t100\t300\tthis Spark lacks internals", "b\t100\t300\t"]
    warm = standby(java)
    warm.look()
    warm.look()
    assert [record.message for record in caplog.records] == [
        "executor a keeps no copies up to date: this Spark lacks internals"
    ]
    assert warm.memory() == {"h-a": 0.0, "h-b": 0.0}


def test_a_session_without_the_plugin_says_so():
    warm = WarmStandby(None, Hosts(), Placing({}), Rings(), 1)
    warm.look()
    assert warm.observed([], []).why == NO_PLUGIN
    assert not WarmStandby(None, Hosts(), Placing({}), Rings(), 0).observed([], []).why


def test_of_several_operators_in_a_task_the_one_furthest_behind_counts():
    java = Java()
    java.learn = lambda rdd, partitions: f"name\trun/{rdd}/default"
    second = StatefulOperator(2, "StreamingDeduplicate")
    states = States((COUNT, second))
    states.stores = lambda: {COUNT: 0, second: 2}
    java.keeps("b", 0)
    java.rows.append("\t".join(map(str, ("b", 1, "run/2/default", 0, "following", 4, 7, 1_000_000, 0, ""))))
    warm = standby(java, states)
    warm.look()
    assert warm.lags() == {TaskId("count", 0): 3.0}
    java.rows.append("\t".join(map(str, ("b", 1, "run/2/default", 0, "wanted", -1, 7, 0, 0, ""))))
    warm.look()
    assert not warm.lags() or math.isnan(warm.lags()[TaskId("count", 0)])
