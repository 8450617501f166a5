"""Migrations against an engine of paper: what a batch runs where, and whose report comes last, is up to each test."""

import threading
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JError

from elastream.core.migration import MigrationState
from elastream.core.task_id import TaskId
from elastream.spark.jvm.executors import Location
from elastream.spark.jvm.state_partitions import SavedState
from elastream.spark.placement.allocation import AllocationStore
from elastream.spark.placement.placing import MAX_REPORTS, MAX_SNAPSHOTS, STRAYS_AFTER, URGENT, MigrationLimits, Placing
from elastream.spark.telemetry.state_files import LocalDisk
from support.property_examples import examples

HERE = {name: Location(f"10.0.0.{number}", str(number)) for number, name in enumerate(("h1", "h2", "h3"))}
DONE = threading.Event()
DONE.set()
NAMES = {at: name for name, at in HERE.items()}


@dataclass
class Engine:
    """Four state partitions. A batch runs each where the coordinator believes it, and says so."""

    partitions: int = 4
    believed: dict[int, Location] = field(default_factory=dict)
    batch: int = -1
    told: list[tuple[int, str]] = field(default_factory=list)
    loaded: list[tuple[int, str]] = field(default_factory=list)
    jobs: int = 0
    busy: bool = False
    loads: bool | None = True
    overwrites: bool = False
    state: SavedState | None = None
    slow: dict[Location, threading.Event] = field(default_factory=dict)
    snapshots: list[int] = field(default_factory=list)
    writes_snapshots: bool | Exception = True

    def where(self):
        return dict(self.believed)

    def move(self, partition, to):
        self.told.append((partition, NAMES[to]))
        if not self.overwrites:
            self.believed[partition] = to

    def planned(self):
        return self.batch

    def saved(self):
        return self.state

    def idle(self):
        return not self.busy

    def snapshot(self, partition):
        if isinstance(self.writes_snapshots, Exception):
            raise self.writes_snapshots
        self.snapshots.append(partition)
        return self.writes_snapshots

    def load(self, places, *, keep):
        self.jobs += 1
        for at in places.values():
            self.slow.get(at, DONE).wait()
        self.loaded += [(partition, NAMES[at]) for partition, at in places.items()]
        if self.loads and not keep:
            self.believed |= places
        return None if self.loads is None else places if self.loads else ()

    def run(self):
        """A batch from plan to end."""
        self.batch += 1
        for partition in range(self.partitions):
            self.believed.setdefault(partition, HERE["h1"])


class Bench:
    def __init__(self, path, **limits):
        self.engine, self.usable = Engine(), dict(HERE)
        self.plan = AllocationStore(path / "plan.jsonl")
        self.benefit: dict[TaskId, float] = {}
        self.placing = self.placer(**limits)
        self.batch()

    def placer(self, **limits):
        return Placing(
            {"count": self.engine}, time.monotonic, self.plan,
            limits=MigrationLimits(**{"lazy": False, **limits}), benefit=lambda task: self.benefit.get(task, 0.0),
        )  # fmt: skip

    def batch(self, times=1):
        for _ in range(times):
            self.engine.run()
            self.placing.batch_ended(["count"], self.engine.batch, self.usable.get)
            self.loaded()

    def loaded(self):
        """Until nothing is being loaded, but where that is made to last."""
        while self._loads():
            time.sleep(0.001)

    def _loads(self):
        with self.placing._lock:  # what follows from the end of a load is done with it
            return any(each.load for each in self.placing._under_way.values() if each.place not in self.engine.slow)

    def on(self, host):
        return {partition for partition, at in self.engine.believed.items() if at == HERE[host]}


def task(index):
    return TaskId("count", index)


def states(placing):
    return {each.task.index: each.state for each in placing.migrations()}


def test_a_task_is_sent_after_a_batch_and_has_landed_after_the_next(tmp_path):
    bench = Bench(tmp_path)
    bench.placing.move(task(0), "h2")
    assert bench.engine.told == []
    bench.batch()
    assert bench.engine.told == [(0, "h2")]
    assert states(bench.placing) == {0: MigrationState.FLIPPED}
    bench.batch()
    assert [(each.task, each.host) for each in bench.placing.landed] == [(task(0), "h2")]
    assert bench.placing.targets() == {}


def test_nothing_is_sent_while_the_new_executor_loads(tmp_path):
    bench = Bench(tmp_path, lazy=True)
    bench.engine.slow[HERE["h2"]] = threading.Event()
    bench.placing.move(task(0), "h2")
    bench.batch(2)
    assert bench.engine.told == []
    assert states(bench.placing) == {0: MigrationState.WARMING}
    bench.engine.slow.pop(HERE["h2"]).set()
    bench.loaded()
    assert bench.engine.loaded == [(0, "h2")]
    assert bench.engine.told == [(0, "h2")], "at once, and not with the end of a batch"
    bench.batch(2)
    (landed,) = bench.placing.landed
    assert [state.value for _, state in landed.history] == ["wanted", "warming", "warm", "flipped", "landed"]


def test_a_few_at_a_time_towards_each_host(tmp_path):
    bench = Bench(tmp_path, per_host=1)
    bench.placing.move_all({task(0): "h2", task(1): "h2", task(2): "h3"})
    bench.batch()
    assert sorted(bench.engine.told) == [(0, "h2"), (2, "h3")]
    bench.batch()
    assert sorted(bench.engine.told) == [(0, "h2"), (1, "h2"), (2, "h3")]


def long_log(bench, path, partition=1):
    """Give a partition eleven changes of a megabyte and no snapshot, and return its folder."""
    folder = path / f"0/{partition}"
    folder.mkdir(parents=True)
    for number in range(1, 12):
        with (folder / f"{number}.delta").open("wb") as file:
            file.truncate(1_000_000)
    bench.engine.state = SavedState(LocalDisk(str(path)), 11, ((0, "default"),))
    return folder


def test_move_waits_for_a_snapshot_where_the_log_is_long(tmp_path):
    bench = Bench(tmp_path)
    folder = long_log(bench, tmp_path)
    bench.placing.move(task(1), "h2")
    bench.batch()
    assert (bench.engine.snapshots, bench.engine.told) == ([1], [])
    (folder / "11.snapshot").write_bytes(bytes(1_000))
    bench.batch()
    assert (bench.engine.snapshots, bench.engine.told) == ([1], [(1, "h2")])


def test_move_goes_on_if_no_snapshot_comes(tmp_path):
    bench = Bench(tmp_path)
    long_log(bench, tmp_path)
    bench.placing.move(task(1), "h2")
    bench.batch(MAX_SNAPSHOTS + 1)
    assert (bench.engine.snapshots, bench.engine.told) == ([1] * MAX_SNAPSHOTS, [(1, "h2")])


def test_snapshots_are_asked_for_one_move_ahead(tmp_path):
    bench = Bench(tmp_path)
    folders = [long_log(bench, tmp_path, index) for index in range(4)]
    bench.placing.move_all({task(index): "h2" for index in range(4)})
    bench.batch()
    assert bench.engine.snapshots == [0, 1], "not all state in one batch"
    for number in range(4):
        (folders[number] / "11.snapshot").write_bytes(bytes(1_000))
        bench.batch()
        assert [index for index, _ in bench.engine.told] == list(range(number + 1)), "one moves with each batch"


def test_end_of_another_query_uses_up_no_request_for_a_snapshot(tmp_path):
    bench = Bench(tmp_path)
    long_log(bench, tmp_path)
    bench.placing.move(task(1), "h2")
    for _ in range(MAX_SNAPSHOTS + 1):
        bench.placing.batch_ended(["another"], 0, bench.usable.get)
    assert (bench.engine.snapshots, bench.engine.told) == ([], [])


@pytest.mark.parametrize("case", ["not written on request", "Spark fails", "a deadline", "loaded between batches"])
def test_move_waits_for_no_snapshot(case, tmp_path):
    bench = Bench(tmp_path, lazy=case == "loaded between batches")
    long_log(bench, tmp_path)
    bench.engine.writes_snapshots = case == "Spark fails" and Py4JError("a gateway that has gone")
    bench.placing.may_wait = lambda task: case != "a deadline"
    bench.placing.move(task(1), "h2")
    bench.batch()
    assert bench.engine.told == [(1, "h2")]


def test_move_says_how_many_megabytes_it_loads(tmp_path, caplog):
    bench = Bench(tmp_path)
    (tmp_path / "0/1").mkdir(parents=True)
    (tmp_path / "0/1/1.snapshot").write_bytes(bytes(19_000))
    (tmp_path / "0/1/2.delta").write_bytes(bytes(1_000))
    bench.engine.state = SavedState(LocalDisk(str(tmp_path)), 2, ((0, "default"),))
    bench.placing.replica_hosts = lambda: {task(2): ["h3"]}
    bench.placing.move_all({task(1): "h2", task(2): "h3"})
    assert bench.placing.move_load(task(1), "h2").text == "it loads 0.02 MB of state, with 1 change log"
    assert bench.placing.move_load(task(2), "h3").text == "it loads 0 MB of state"
    with caplog.at_level("INFO", "elastream.spark.placement.placing"):
        bench.batch(3)
    assert {each.task: each.megabytes for each in bench.placing.landed} == {task(1): 0.02, task(2): 0.0}
    assert any("count#1 moved to h2 with 0.02 MB of state" in each for each in caplog.messages)


def test_what_the_host_holds_a_copy_of_goes_at_once_and_loads_nothing(tmp_path):
    """Thesis, section 6.4: a neighbour takes over an interval, and copies nothing."""
    for lazy in (False, True):
        bench = Bench(tmp_path / str(lazy), per_host=1, lazy=lazy)
        bench.engine.believed[3] = HERE["h2"]
        bench.placing.replica_hosts = lambda: {task(0): ["h2"], task(1): ["h3", "h2"], task(2): ["h3"]}
        bench.batch()
        bench.placing.move_all({task(0): "h2", task(1): "h2", task(2): "h2"})
        bench.batch()
        assert {(0, "h2"), (1, "h2")} <= set(bench.engine.told)
        assert bench.engine.loaded == ([(2, "h2")] if lazy else []), "the one that is not copied there"
        bench.batch(3)
        assert bench.on("h2") == {0, 1, 2, 3}


def test_a_copied_one_waits_for_what_an_executor_without_tasks_still_loads(tmp_path):
    """Its first task would make it unload the rest."""
    bench = Bench(tmp_path, lazy=True)
    bench.placing.replica_hosts = lambda: {task(0): ["h2"]}
    bench.engine.slow[HERE["h2"]] = threading.Event()
    bench.placing.move_all({task(0): "h2", task(1): "h2"})
    bench.batch()
    assert bench.engine.told == []
    bench.engine.slow.pop(HERE["h2"]).set()
    bench.loaded()
    assert sorted(bench.engine.told) == [(0, "h2"), (1, "h2")]


def test_the_greatest_benefit_goes_first(tmp_path):
    bench = Bench(tmp_path, per_host=1)
    bench.benefit = {task(2): 0.7, task(0): 0.1}
    bench.placing.move_all({task(n): "h2" for n in range(4)})
    bench.batch()
    assert bench.engine.told == [(2, "h2")]


def test_what_a_running_batch_overwrote_is_sent_again_and_not_loaded_again(tmp_path):
    bench = Bench(tmp_path, lazy=True)
    bench.engine.overwrites = True
    bench.placing.move(task(0), "h2")
    bench.batch()
    assert bench.engine.told == [(0, "h2")]
    bench.engine.overwrites = False
    bench.placing.batch_ended(["count"], bench.engine.batch, bench.usable.get)  # of the batch under way
    assert bench.engine.told == [(0, "h2")] * 2
    bench.batch(2)
    assert bench.placing.targets() == {}
    assert bench.engine.jobs == 1


def test_a_batch_planned_before_it_was_sent_proves_nothing(tmp_path):
    bench = Bench(tmp_path)
    bench.placing.move(task(0), "h2")
    bench.engine.run()
    ended = bench.engine.batch
    bench.engine.batch += 1  # the next batch is planned by the time the end of the last one is seen
    bench.placing.batch_ended(["count"], ended, bench.usable.get)
    bench.placing.batch_ended(["count"], ended + 1, bench.usable.get)
    assert states(bench.placing) == {0: MigrationState.FLIPPED}
    bench.placing.batch_ended(["count"], ended + 2, bench.usable.get)
    assert len(bench.placing.landed) == 1


def test_what_is_always_sent_back_is_given_up_and_taken_from_the_plan(tmp_path):
    bench = Bench(tmp_path)
    bench.engine.overwrites = True
    bench.placing.move(task(0), "h2")
    bench.batch(MAX_REPORTS + 2)
    assert bench.engine.told == [(0, "h2")] * MAX_REPORTS
    assert [each.task for each in bench.placing.dropped] == [task(0)]
    assert bench.plan.latest.hosts == {}


def test_a_task_that_spark_keeps_running_where_it_was_is_a_stray(tmp_path):
    bench = Bench(tmp_path, per_host=None)
    bench.engine.overwrites = True
    bench.placing.move(task(0), "h2")
    bench.placing.move(task(1), "h2")
    bench.batch()
    assert bench.placing.strays() == set()
    bench.batch(STRAYS_AFTER)
    assert bench.placing.strays() == {task(0), task(1)}
    bench.engine.overwrites = False
    bench.batch(3)
    assert bench.placing.strays() == set()


def test_a_stray_waits_for_other_moves_unless_its_host_is_taken_away(tmp_path):
    told = []
    for benefit in (1.0, URGENT):
        (folder := tmp_path / f"{benefit:g}").mkdir()
        bench = Bench(folder)
        bench.engine.overwrites, bench.benefit[task(0)] = True, benefit
        bench.placing.move(task(0), "h2")
        bench.batch(STRAYS_AFTER)
        bench.placing.move(task(1), "h2")
        bench.batch()
        told.append(bench.engine.told[-1])
    assert told == [(1, "h2"), (0, "h2")]


def test_a_task_that_comes_back_from_where_it_had_landed_is_a_stray_at_once(tmp_path):
    bench = Bench(tmp_path)
    bench.placing.move(task(0), "h2")
    bench.batch(2)
    assert len(bench.placing.landed) == 1
    bench.engine.believed[0], bench.engine.overwrites = HERE["h1"], True
    bench.placing.follow(bench.usable.get)
    assert bench.placing.strays() == set(), "Spark has not been told"
    bench.batch(2)
    assert bench.placing.strays() == {task(0)}


def test_a_lost_host_drops_what_was_on_its_way_there_until_it_is_back(tmp_path):
    bench = Bench(tmp_path)
    bench.placing.move(task(0), "h2")
    place = bench.usable.pop("h2")
    bench.batch(3)
    assert bench.engine.told == []
    assert [each.state for each in bench.placing.dropped] == [MigrationState.DROPPED]
    bench.usable["h2"] = place
    bench.batch(3)
    assert bench.on("h2") == {0}


def test_what_another_process_plans_is_followed_from_the_next_period_on(tmp_path):
    bench = Bench(tmp_path)
    AllocationStore(bench.plan.path).publish({task(1): "h3"}, at=0.0)
    bench.batch()
    assert bench.engine.told == []
    bench.placing.refresh()
    bench.batch()
    assert bench.engine.told == [(1, "h3")]


@settings(max_examples=examples(40))
@given(
    st.dictionaries(st.integers(0, 3), st.sampled_from(["h2", "h3"]), min_size=1),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
)
def test_the_next_controller_finishes_an_interrupted_move_or_drops_it(tmp_path_factory, moves, batches, lazy, gone):
    """Property: whichever state the migrations were in; one is dropped where its host is gone by then."""
    bench = Bench(tmp_path_factory.mktemp("plan"), lazy=lazy)
    bench.placing.move_all({task(index): host for index, host in moves.items()})
    bench.batch(batches)
    if gone:
        del bench.usable["h2"]
    before = dict(bench.engine.believed)
    bench.plan = AllocationStore(bench.plan.path)
    bench.placing = bench.placer(lazy=lazy)
    bench.batch(20)
    assert bench.placing.targets() == {}
    for index, host in moves.items():
        assert bench.engine.believed[index] == (HERE[host] if host in bench.usable else before[index])


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["want", "lose", "back", "drift", "batch"]), st.integers(0, 3), st.sampled_from(list(HERE))
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_whatever_happens_tasks_end_where_the_plan_has_them(tmp_path_factory, events, lazy):
    bench = Bench(tmp_path_factory.mktemp("plan"), lazy=lazy)
    for what, index, host in events:
        match what:
            case "want":
                bench.placing.move(task(index), host)
            case "lose":
                bench.usable.pop(host, None)
            case "back":
                bench.usable[host] = HERE[host]
            case "drift":
                bench.engine.believed[index] = HERE[host]
            case "batch":
                bench.batch()
    bench.usable = dict(HERE)
    bench.batch(40)
    for each, host in bench.plan.latest.hosts.items():
        assert bench.engine.believed[each.index] == HERE[host]
    assert bench.placing.targets() == {}


def test_what_a_new_host_gets_by_several_jobs_waits_for_the_last(tmp_path):
    bench, other = Bench(tmp_path, lazy=True), Engine()
    bench.placing.attach("total", other)
    other.run()
    bench.placing.batch_ended(["total"], other.batch, bench.usable.get)
    bench.engine.slow[HERE["h2"]] = threading.Event()
    bench.placing.move_all({task(0): "h2", TaskId("total", 0): "h2"})
    bench.batch()
    bench.placing.batch_ended(["total"], other.batch, bench.usable.get)
    while not other.loaded:
        time.sleep(0.001)
    assert bench.engine.told == other.told == []
    bench.engine.slow.pop(HERE["h2"]).set()
    bench.loaded()
    assert bench.engine.told == other.told == [(0, "h2")]


def test_a_host_that_runs_tasks_already_gets_few_at_a_time(tmp_path):
    bench = Bench(tmp_path, lazy=True, per_host=1)
    bench.engine.believed[3] = HERE["h2"]
    bench.batch()
    bench.placing.move_all({task(n): "h2" for n in range(3)})
    bench.batch()
    assert bench.engine.loaded == [(0, "h2")]


def test_while_a_batch_runs_only_an_executor_that_runs_no_task_loads_ahead(tmp_path):
    bench = Bench(tmp_path, lazy=True)
    bench.engine.busy = True
    bench.engine.believed[3] = HERE["h2"]
    bench.batch()
    bench.placing.move_all({task(0): "h2", task(1): "h3"})
    bench.batch()
    assert bench.engine.loaded == [(1, "h3")]
    assert bench.engine.told == [(0, "h2"), (1, "h3")]
    bench.batch(2)
    assert (bench.on("h2"), bench.on("h3")) == ({0, 3}, {1})


def test_a_load_for_an_executor_that_was_replaced_is_ignored(tmp_path):
    bench = Bench(tmp_path, lazy=True)
    old, new = HERE["h2"], Location(HERE["h2"].address, "9")
    NAMES[new] = "h2"
    bench.engine.slow = {old: threading.Event(), new: threading.Event()}
    bench.placing.move(task(0), "h2")
    bench.batch()
    bench.usable["h2"] = new
    bench.batch()
    assert bench.engine.jobs == 2
    bench.engine.slow.pop(old).set()
    while not bench.engine.loaded:
        time.sleep(0.001)
    bench.batch()
    assert bench.engine.told == []
    assert states(bench.placing) == {0: MigrationState.WARMING}
    bench.engine.slow.pop(new).set()
    bench.loaded()
    bench.batch(2)
    assert bench.engine.believed[0] == new


def test_an_operator_whose_query_is_gone_is_forgotten_but_stays_planned(tmp_path):
    bench = Bench(tmp_path)
    bench.placing.move(task(0), "h2")
    bench.placing.detach("count")
    assert bench.placing.tasks == ()
    assert bench.placing.targets() == {}
    bench.placing.attach("count", bench.engine)
    bench.batch(3)
    assert bench.on("h2") == {0}


def test_a_kind_of_state_that_cannot_be_loaded_ahead_is_tried_once(tmp_path):
    bench = Bench(tmp_path, lazy=True)
    bench.engine.loads = None
    bench.placing.move(task(0), "h2")
    bench.batch(2)
    assert bench.on("h2") == {0}
    bench.placing.move(task(1), "h2")
    bench.batch()
    assert bench.on("h2") == {0, 1}
    assert bench.engine.loaded == [(0, "h2")]
