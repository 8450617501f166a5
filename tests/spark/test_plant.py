"""One life of a dataflow on a real cluster: hosts come, go, and are shot, and every record is counted once."""

import contextlib
import json
import shutil
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from pyspark.util import InheritableThread

from elastream import Dataflow, HostType, Local
from elastream.clouds.local.confinement import group_of, tagged
from elastream.core.action import (
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    ReleaseHost,
    SetParallelism,
    Status,
    SwitchAlternate,
)
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.dataflow.endpoints import parquet, records
from elastream.loads import constant
from elastream.policies.value_cost.policy import enacted
from elastream.policies.value_cost.problem import Goal
from elastream.policies.value_cost.reading import read
from elastream.recording.directory import RunDirectory
from elastream.settings import RunSettings
from elastream.spark.dataflow.sinks import latest
from elastream.spark.hosts.warmup import WARMED_EXECUTOR, _pinned, warm_up
from elastream.spark.jvm.driver_side import java_context
from elastream.spark.start import start_plant
from support.waiting import observed, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

TINY = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
LINES = [f"{'abcdefghij'[n % 10]} {'klmnopqrst'[n // 10 % 10]} {n % 7}" for n in range(500)]


def words_of(line):
    return line.split()


def letters_of(line):
    return [word for word in line.split() if word.isalpha()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plant")


@pytest.fixture(scope="module")
def plant(folder):
    flow = Dataflow("letters")
    lines = flow.source(records([{"value": line} for line in LINES], "value string"), load=constant("500/s"))
    words = lines.flat_map({"words": words_of, "letters": letters_of}, returns="word string", name="split")
    words.signal("seen", "count()")
    words.key_by("word").count().sink(parquet(folder / "out"))
    directory = RunDirectory.create(folder / "runs", "letters")
    settings = RunSettings(cloud=Local(TINY, max_hosts=3), target_latency=2.0, state_partitions=4)
    plant = start_plant(flow.graph, directory, settings)
    yield plant
    plant.close()


def state(plant, host):
    return plant.hosts.leases[host].state


def tasks_on(observation, host):
    return observation.hosts.value(host, Metric.TASKS)


def batches_more(plant, count):
    target = plant.queries.telemetry.batches + count
    observed(plant, lambda _: plant.queries.telemetry.batches >= target)


def in_the_middle_of_a_batch(plant):
    wait_until(lambda: plant.queries.running[0].query.status["isTriggerActive"], look=0.002)


@contextlib.contextmanager
def waiting_for_ever(plant):
    """Tasks wait an hour for the executor that holds their state: one that waited for a lost executor would never run."""
    settings = java_context(plant.spark).conf()
    before = settings.get("spark.locality.wait")
    settings.set("spark.locality.wait", "1h")
    try:
        yield
    finally:
        settings.set("spark.locality.wait", before)


def executor_process(plant, host):
    address = plant.hosts.executor(host).host
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any("CoarseGrainedExecutorBackend" in part for part in line) and address in line:
            return process
    return None


def forked(plant):
    """Processes that came of the server of forks, by host (which their control groups tell); the server itself under ""."""
    found, run = {}, plant.hosts.provider.cluster.run
    for pid in tagged(run):
        with contextlib.suppress(psutil.Error, OSError):
            if any("local.forks" in part for part in psutil.Process(pid).cmdline()):
                groups = Path(f"/proc/{pid}/cgroup").read_text()
                host = next((host for host in plant.hosts.leases if group_of(run, host) in groups), "")
                found.setdefault(host, []).append(psutil.Process(pid))
    return found


def test_what_runs_is_observed_and_what_was_not_measured_is_unknown(plant):
    seen = observed(
        plant, lambda o: o.latency(Metric.LATENCY_P99).known and o.operators.reading("split", Metric.SERVICE_TIME).known
    )
    assert seen.operators.value("source", Metric.ARRIVAL_RATE) == pytest.approx(500)
    assert seen.operators.value("split", Metric.EMITTED_RATE) == pytest.approx(
        3 * seen.operators.value("split", Metric.PROCESSED_RATE)
    )
    assert not seen.operators.reading("sink", Metric.SERVICE_TIME).known
    assert tasks_on(observed(plant, lambda o: len(o.tasks) == 4), "h1") == 4


def test_a_signal_has_a_value_of_each_batch_taken_when_that_was_committed(plant):
    first = observed(plant, lambda o: "seen" in o.signals).signals["seen"]
    newer = observed(plant, lambda o: o.signals["seen"].time > first.time)
    assert newer.signals["seen"].time == pytest.approx(newer.batches[-1].end)
    assert newer.signals["seen"].value == 3 * newer.batches[-1].records


def test_a_leased_host_joins_the_running_query_and_takes_state(plant):
    run = plant.queries.running[0].query.runId
    assert plant.apply(LeaseHost("h2", "tiny")).status is Status.ACCEPTED
    assert plant.apply(LeaseHost("h2", "tiny")).status is Status.DONE
    observed(plant, lambda o: state(plant, "h2") is HostState.RUNNING)
    assert plant.apply(SetParallelism("source", 2)).status is Status.DONE
    for index in (0, 1):
        assert plant.apply(MoveTask(TaskId("count", index), "h2")).status is Status.ACCEPTED
    observed(plant, lambda o: not plant.placing.targets())
    assert tasks_on(plant.observe(), "h2") == 2
    assert plant.apply(MoveTask(TaskId("count", 0), "h2")).status is Status.DONE
    assert plant.queries.running[0].query.runId == run


def test_an_alternate_is_switched_without_restart(plant):
    run = plant.queries.running[0].query.runId
    assert plant.apply(SwitchAlternate("split", "letters")).status is Status.ACCEPTED
    seen = plant.observe()
    assert seen.composition.alternates["split"] == "letters"
    seen = observed(plant, lambda o: o.effective["source"].alternates["split"] == "letters")
    assert seen.effective["source"].version == seen.composition.version
    assert plant.apply(SwitchAlternate("split", "letters")).status is Status.DONE
    rate = Metric.EMITTED_RATE
    observed(plant, lambda o: o.operators.value("split", rate) < 2.2 * o.operators.value("split", Metric.PROCESSED_RATE))
    several = [SwitchAlternate("split", "words"), SwitchAlternate("nobody", "words")]
    assert [each.status for each in plant.switch(several)] == [Status.ACCEPTED, Status.REFUSED]
    assert plant.observe().composition.version == seen.composition.version + 1
    assert plant.queries.running[0].query.runId == run
    assert plant.queries.updates[0].latency >= 0.0


def test_a_plan_of_value_against_cost_is_read_of_what_runs(plant):
    seen = observed(plant, lambda o: read(o, Goal(), 10.0).decidable and len(o.alternates) > 1)
    found = read(seen, Goal(), 10.0)
    words, letters = found.problem.options[found.problem.row["split"]]
    assert (words.name, letters.name) == ("words", "letters")
    assert (words.selectivity, letters.selectivity) == pytest.approx((3, 2), rel=0.05)
    assert min(words.cost, letters.cost) > 0
    assert found.conditions.rates == pytest.approx(np.array([[500.0]]))
    assert [host.name for host in found.deployment.hosts] == list(seen.usable)
    again = enacted(seen, found.problem, found.deployment, pace=10.0)
    assert not [action for action in again if not isinstance(action, MoveTask | SetParallelism)]


def test_a_host_held_to_half_of_its_cores_is_noticed(plant):
    provider = plant.hosts.provider
    if "held to its cores" not in provider.terms.confinement:
        pytest.skip("without control groups no host is held to anything")
    observed(plant, lambda o: not plant.hosts.compiling and {"h1", "h2"} <= set(o.hosts))
    observed(plant, lambda o: all(o.hosts.value(host, Metric.SPEED) > 0.6 for host in ("h1", "h2")))
    provider.cluster.confine("h2", TINY.cores / 2)
    seen = observed(plant, lambda o: plant.instruments.speeds.stretch == pytest.approx(1.5))
    provider.cluster.confine("h2", TINY.cores)
    assert seen.speeds["h2"] <= 0.5
    assert seen.capacities["h2"] <= TINY.cores / 2


def test_hosts_outlive_the_process_that_their_daemons_were_forked_from(plant):
    before = forked(plant)
    if not before:
        pytest.skip("without control groups every host loads for itself")
    if not {"h1", "h2", ""} <= before.keys():
        pytest.skip("a host that finds no server of forks in time loads for itself, too")
    daemons = [min(before[host], key=psutil.Process.create_time) for host in ("h1", "h2")]
    for server in before[""]:
        server.kill()
    wait_until(lambda: "" not in forked(plant))
    batches_more(plant, 3)
    assert all(daemon.is_running() for daemon in daemons)


def test_an_executor_killed_in_mid_batch_is_replaced(plant):
    other = plant.hosts.executor("h1").id
    with waiting_for_ever(plant):
        in_the_middle_of_a_batch(plant)
        executor_process(plant, "h2").send_signal(signal.SIGKILL)
        batches_more(plant, 3)
    (loss,) = (loss for loss in plant.failover.losses if loss.moved)
    assert loss.fault == ""
    assert {partition: to for (_, _, partition), to in loss.moved.items()} == {0: other, 1: other}
    observed(plant, lambda o: tasks_on(o, "h2") == 2 and not plant.placing.targets())
    assert state(plant, "h2") is HostState.RUNNING


def test_a_stage_of_a_lost_executor_runs_where_its_partitions_go(plant):
    """As one is whose tasks were placed before the loss was known. It waits for nobody else, wherever slots are free."""
    lost = next(loss.executor for loss in plant.failover.losses if loss.moved)
    executors = {host: plant.hosts.executor(host).id for host in ("h1", "h2")}

    def told():  # who follows whom by where tasks are now: within a second
        return set(plant.failover._successors) == {
            (task, executors[host]) for task, host in plant.reconciler.locations().items()
        }

    wait_until(told)
    ran = plant.reconciler.locations()
    context, jvm = java_context(plant.spark), plant.spark.sparkContext._jvm
    place = jvm.PythonUtils.toSeq([f"executor_{plant.hosts.executor('h2').host}_{lost}"])
    numbers = [jvm.scala.Tuple2(number, place) for number in range(4)]
    anything = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
    run, tracker = str(plant.queries.running[0].query.runId), context.statusTracker()
    context.setJobGroup(run, "", False)
    context.setCallSite("to a lost executor")
    try:
        with waiting_for_ever(plant):
            rdd = context.makeRDD(jvm.PythonUtils.toSeq(numbers), anything)
            assert rdd.count() == 4
    finally:
        context.clearCallSite()
        context.clearJobGroup()
    stages = (stage for job in tracker.getJobIdsForGroup(run) for stage in tracker.getJobInfo(job).get().stageIds())
    (stage,) = (stage for stage in stages if tracker.getStageInfo(stage).get().name() == "to a lost executor")
    tasks = context.statusStore().taskList(stage, 0, 100)
    found = {each.index(): each.executorId() for each in (tasks.apply(number) for number in range(tasks.size()))}
    other = {"h1": executors["h2"], "h2": executors["h1"]}
    assert found == {task.index: other[host] for task, host in ran.items()}


def test_what_warms_an_executor_up_waits_for_it_and_for_no_other(plant, folder):
    """It registers seconds before it takes tasks; here another task has its slot."""
    executor, context = plant.hosts.executor("h2"), java_context(plant.spark)
    started, seen = folder / "started", folder / "seen"

    def sleep(batches):
        started.touch()
        while not seen.exists():
            time.sleep(0.05)
        time.sleep(2.0)
        yield from batches

    busy = InheritableThread(_pinned(plant.spark, executor).mapInArrow(sleep, "word string").collect, session=plant.spark)
    busy.start()
    wait_until(started.exists)
    tracker, queued = context.statusTracker(), context.taskScheduler().rootPool()
    jobs = tracker.getJobIdsForGroup
    plant.spark.sparkContext.setJobGroup("warms", "")
    warming = partial(warm_up, plant.spark, plant.instruments.driver, executor, folder / "warm-up")
    try:
        (warms := InheritableThread(warming, session=plant.spark)).start()
        wait_until(lambda: is_warm_up_first(queued.getSortedTaskSetQueue()))
    finally:
        seen.touch()
        warms.join()
        context.clearJobGroup()
        busy.join()
    ran = [context.statusStore().taskList(stage.stageId(), 0, 100) for stage in stages_of(tracker, jobs("warms"))]
    assert {tasks.apply(n).executorId() for tasks in ran for n in range(tasks.size())} == {executor.id}
    observed(plant, lambda o: tasks_on(o, "h2") == 2 and not plant.placing.targets())  # those that ran elsewhere meanwhile


def is_warm_up_first(queue):
    properties = queue.apply(0).taskSet().properties() if queue.size() else None
    return properties is not None and properties.getProperty(WARMED_EXECUTOR) is not None


def stages_of(tracker, jobs):
    found = (tracker.getStageInfo(stage) for job in jobs for stage in tracker.getJobInfo(job).get().stageIds())
    return [each.get() for each in found if each.isDefined()]


def test_a_host_killed_in_mid_batch_is_lost_and_the_stream_goes_on(plant):
    with waiting_for_ever(plant):
        in_the_middle_of_a_batch(plant)
        plant.hosts.provider.cluster.kill("h2")
        observed(plant, lambda o: "h2" not in o.leases)
        batches_more(plant, 3)
    assert state(plant, "h2") is HostState.LOST
    assert [len(loss.moved) for loss in plant.failover.losses if loss.moved] == [2, 2]
    assert tasks_on(observed(plant, lambda o: len(o.tasks) == 4 and not plant.placing.targets()), "h1") == 4
    assert "h2" not in plant.placing.plan.latest.hosts.values()


def test_a_drained_host_gives_up_its_state_and_is_released(plant):
    plant.apply(LeaseHost("h3", "tiny"))
    observed(plant, lambda o: state(plant, "h3") is HostState.RUNNING)
    plant.apply(MoveTask(TaskId("count", 3), "h3"))
    observed(plant, lambda o: tasks_on(o, "h3") == 1 and not plant.placing.targets())
    assert "" in forked(plant) or not forked(plant)  # the server was killed above: one was started anew for this host
    assert plant.apply(DrainHost("h3")).status is Status.ACCEPTED
    assert plant.apply(CancelDrain("h3")).status is Status.DONE
    assert plant.apply(DrainHost("h3")).status is Status.ACCEPTED
    observed(plant, lambda o: tasks_on(o, "h3") == 0 and not plant.placing.targets())
    assert plant.apply(ReleaseHost("h3")).status is Status.ACCEPTED
    observed(plant, lambda o: state(plant, "h3") is HostState.RELEASED)
    batches_more(plant, 2)


def test_a_host_without_room_waits_and_can_be_released(plant, monkeypatch):
    monkeypatch.setattr(plant.hosts.provider, "starts_per_core", 0)  # one host starts at a time
    plant.apply(LeaseHost("h4", "tiny"))
    plant.apply(LeaseHost("h5", "tiny"))
    seen = plant.observe()
    assert [seen.leases[name].state for name in ("h4", "h5")] == [HostState.STARTING, HostState.REQUESTED]
    assert not seen.hosts.reading("h5", Metric.MEMORY).known
    assert plant.apply(ReleaseHost("h5")).status is Status.DONE
    assert "h5" not in plant.observe().leases


def test_a_host_released_with_state_on_it_gives_that_away_before_it_goes(plant):
    observed(plant, lambda o: state(plant, "h4") is HostState.RUNNING)
    for index in (1, 2):
        plant.apply(MoveTask(TaskId("count", index), "h4"))
    observed(plant, lambda o: tasks_on(o, "h4") == 2 and not plant.placing.targets())
    before = len(plant.placing.landed)
    assert plant.apply(ReleaseHost("h4")).status is Status.ACCEPTED
    observed(plant, lambda o: state(plant, "h4") is HostState.RELEASED)
    moved = plant.placing.landed[before:]
    assert {(move.task.index, move.host) for move in moved} == {(1, "h1"), (2, "h1")}
    assert len({move.history[-1] for move in moved}) == 2  # one a batch, since each costs the batch that loads it
    batches_more(plant, 2)


def test_the_last_host_is_not_given_away(plant):
    for action in (DrainHost("h1"), ReleaseHost("h1")):
        outcome = plant.apply(action)
        assert outcome.status is Status.REFUSED
        assert "only host" in outcome.reason


def test_after_all_of_it_every_record_was_counted_once_by_one_query_run(plant, folder):
    query, checkpoint = plant.queries.running[0].query, plant.queries.running[0].checkpoint
    assert query.isActive
    assert plant.facts()["query runs"] == 1
    query.stop()
    committed = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for unfinished in (folder / "out").glob("batch=*"):
        if int(unfinished.name.removeprefix("batch=")) > committed:
            shutil.rmtree(unfinished)
    taken = json.loads((checkpoint / "offsets" / str(committed)).read_text().splitlines()[2])["n"]
    counted = latest(folder / "out").set_index("word")["count"].to_dict()
    # The other alternate leaves numbers out, letters are counted under both.
    expected = Counter(word for number in range(taken) for word in letters_of(LINES[number % len(LINES)]))
    assert {word: count for word, count in counted.items() if word.isalpha()} == expected
