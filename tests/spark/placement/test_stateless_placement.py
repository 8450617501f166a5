"""Tasks without state on a real cluster: they run where they are planned, and nothing waits for a place that is gone."""

import contextlib
import json
import shutil
import signal
import time
from collections import Counter

import numpy as np
import psutil
import pytest
from pyspark.util import InheritableThread

from elastream import Dataflow, HostType, Local
from elastream.core.action import MoveTask, Status
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import constant
from elastream.policies.placements import Even
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.dataflow.sinks import latest
from elastream.spark.hosts.warmup import _pinned
from elastream.spark.jvm.driver_side import java_context
from elastream.spark.start import start_plant
from support.waiting import observed, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SMALL = HostType("small", cores=1.0, slots=2, memory=1000.0)
LINES = [f"{'abcdefghij'[n % 10]} {'klmnopqrst'[n // 10 % 10]}" for n in range(500)]
TASKS = [TaskId("source", index) for index in range(6)]  # as many as slots
BATCHES = 20


def words_of(line):
    return line.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stateless")


@pytest.fixture(scope="module")
def plant(folder):
    flow = Dataflow("letters")
    lines = flow.source(records([{"value": line} for line in LINES], "value string"), load=constant("500/s"))
    lines.flat_map(words_of, returns="word string", name="split").key_by("word").count().sink(parquet(folder / "out"))
    settings = RunSettings(cloud=Local(SMALL, min_hosts=3, max_hosts=3), target_latency=2.0, state_partitions=2)
    plant = start_plant(flow.graph, RunDirectory.create(folder / "runs", "letters"), settings, stateless=True)
    yield plant
    plant.close()


def hosts_of(seen):
    return {task: seen.hosts.ids[seen.tasks.host[seen.tasks.rows[str(task)]]] for task in TASKS}


def loads(plant):
    """Newest batches of the tasks without state."""
    plant.observe()
    window = plant.queries.live[0]._windows.get("source")
    return [] if window is None else list(window._loads)


def ran(plant, batches):
    """Hosts on which the tasks of so many further batches ran, batch by batch."""
    found, first = {}, max((each.batch for each in loads(plant)), default=-1)

    def enough():
        host_of = plant.hosts.host_of()
        rows = [(load.batch, [host_of.get(each, each) for each in load.executor]) for load in loads(plant)]
        found.update((batch, hosts) for batch, hosts in rows if batch > first + 1)
        return len(found) >= batches

    wait_until(enough, look=0.2, otherwise=lambda: f"only {found}")
    return list(found.values())


def plan(plant, hosts):
    """Plan a host for each task, and wait until batches run them there."""
    for task, host in zip(TASKS, hosts, strict=True):
        assert plant.apply(MoveTask(task, host)).succeeded
    assert list(hosts_of(plant.observe()).values()) == hosts  # policies see the plan at once
    observed(plant, lambda o: not o.moving)


def executor_process(plant, host):
    address = plant.hosts.executor(host).host
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any("CoarseGrainedExecutorBackend" in part for part in line) and address in line:
            return process
    raise AssertionError(f"{host} has no executor")


@contextlib.contextmanager
def waiting_for_ever(plant):
    """A task that waited for a lost executor would never run."""
    settings = java_context(plant.spark).conf()
    before = settings.get("spark.locality.wait")
    settings.set("spark.locality.wait", "1h")
    try:
        yield
    finally:
        settings.set("spark.locality.wait", before)


def test_tasks_without_state_are_observed_with_host_work_and_traffic(plant):
    seen = observed(plant, lambda o: len(o.tasks) == 8 and not np.isnan(o.tasks.column(Metric.BUSY_CORES)).any())
    rows = [seen.tasks.rows[str(task)] for task in TASKS]
    assert (seen.tasks.column(Metric.BUSY_CORES)[rows] > 0).all()
    assert set(seen.exchange.source.tolist()) == set(rows)


@pytest.mark.parametrize("hosts", [["h2"] * 6, ["h1", "h2", "h3", "h3", "h2", "h1"]])
def test_they_run_where_they_are_planned(plant, hosts):
    plan(plant, hosts)
    batches = ran(plant, BATCHES)
    there = sum(host == planned for batch in batches for host, planned in zip(batch, hosts, strict=True))
    assert there >= 0.95 * len(batches) * len(hosts)


def test_a_placing_policy_places_them(plant):
    plan(plant, ["h2"] * 6)
    before = plant.placing.moves
    actions = Even(operators=("source",)).plan(plant.observe()).actions
    assert {plant.apply(action).status for action in actions} == {Status.ACCEPTED}
    assert plant.placing.moves == before + len(actions)
    observed(plant, lambda o: not o.moving)
    assert {plant.apply(action).status for action in actions} == {Status.DONE}
    assert Counter(hosts_of(plant.observe()).values()) == {"h1": 2, "h2": 2, "h3": 2}


def test_a_busy_place_holds_no_batch_up(plant, folder):
    plan(plant, ["h2"] * 6)
    started, seen = folder / "started", folder / "seen"

    def sleep(batches):
        started.touch()
        while not seen.exists():
            time.sleep(0.05)
        yield from batches

    fills = _pinned(plant.spark, plant.hosts.executor("h2")).mapInArrow(sleep, "word string")
    busy = InheritableThread(fills.collect, session=plant.spark)
    busy.start()
    wait_until(started.exists)
    try:
        assert {host for batch in ran(plant, 2) for host in batch} == {"h1", "h3"}
    finally:
        seen.touch()
        busy.join()
    observed(plant, lambda o: not o.moving)


def test_tasks_of_a_lost_executor_run_elsewhere_at_once_and_return(plant):
    plan(plant, ["h2"] * 6)
    with waiting_for_ever(plant):
        wait_until(lambda: plant.queries.running[0].query.status["isTriggerActive"], look=0.002)
        executor_process(plant, "h2").send_signal(signal.SIGKILL)
        assert {"h1", "h3"} in [set(batch) for batch in ran(plant, 3)]
        assert [loss.fault for loss in plant.failover.losses] == [""]
        observed(plant, lambda o: plant.hosts.target("h2") is not None and not o.moving)


def test_an_unknown_task_is_refused(plant):
    outcome = plant.apply(MoveTask(TaskId("source", 6), "h1"))
    assert (outcome.status, outcome.reason) == (Status.REFUSED, "there is no task source#6")


def test_after_all_of_it_every_record_was_counted_once(plant, folder):
    query, checkpoint = plant.queries.running[0].query, plant.queries.running[0].checkpoint
    query.stop()
    committed = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for unfinished in (folder / "out").glob("batch=*"):
        if int(unfinished.name.removeprefix("batch=")) > committed:
            shutil.rmtree(unfinished)
    taken = json.loads((checkpoint / "offsets" / str(committed)).read_text().splitlines()[2])["n"]
    counted = latest(folder / "out").set_index("word")["count"].to_dict()
    assert counted == Counter(word for number in range(taken) for word in words_of(LINES[number % len(LINES)]))
