"""What can be told of a query from outside, and what cannot; the driver's answers are written by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from py4j.protocol import Py4JError

from elastream.core.lateness import Cause, Diagnosis
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.spark.jvm.state_partitions import StatefulOperator, StatefulStage
from elastream.spark.placement.allocation import InMemoryPlan
from elastream.spark.placement.placing import Placing
from elastream.spark.queries.query import Query, QueryAccess, largest_lag
from elastream.spark.queries.watched import RESTART_WAIT_S, SessionQueries, application_row, layout_of, operator_frame
from elastream.spark.telemetry.batches import Batch, QueryStatus, SourceLimit, SourceProgress
from elastream.spark.telemetry.frames import task_frame
from elastream.spark.telemetry.origins import mean_age
from elastream.spark.telemetry.stage_load import PartitionLoads, StageLoad
from support.batch_progress import START as EPOCH
from support.batch_progress import line, source
from support.sessions_without_jvm import without_jvm

START = EPOCH + 1_000.0
STAGE = StatefulStage("count0", 3, "file:/state", (StatefulOperator(0, "StateStoreSave", ("default",), 0),))


class Driver:
    """Answers with the batches that have ended: (id, start, rows, seconds, behind)."""

    def __init__(self):
        self.ended = []
        self.processing = False
        self.unreported = 0

    context = None
    state = ()

    def ask(self, method, _, seen=-1):
        if method in ("stateful", "state"):
            return list(self.state) if method == "state" else []
        assert method == "batches"
        rows = [each for each in self.ended if each[0] > seen]
        lines = [
            line(i, at - EPOCH, s, source({"t": {"0": 1}}, {"t": {"0": 2}}, n, behind=behind))
            for i, at, n, s, behind in rows
        ]
        planned = max((each[0] for each in self.ended), default=-1) + self.processing + self.unreported
        doing = "Processing new data" if self.processing else "Waiting"
        return [*lines[::-1], ["ProcessingTimeTrigger(2000)", doing, str(planned)]]


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def query(driver):
    execution = SimpleNamespace(lastExecution=lambda: None, lastProgress=lambda: None)
    spark = without_jvm(execution)
    placing = Placing({}, lambda: 0.0, InMemoryPlan())
    found = Query(QueryAccess(spark, driver, placing), "an id", "q")
    found.run("run 1")
    found.placing = placing
    yield found
    placing.close()


def end_batches(driver, *, every=2.0, seconds=0.5, rows=100, count=4, behind=None):
    driver.ended = [(n, START + n * every, rows, seconds, behind) for n in range(count)]
    return START + (count - 1) * every + seconds


def test_while_batches_end_that_are_not_reported_no_rate_is_known(query, driver):
    now = end_batches(driver)
    driver.processing = True
    query.look()
    assert query.rate(now + 10.0) > 0, "one hangs: that many a second at most"
    driver.unreported = 1
    query.look()
    assert math.isnan(query.rate(now + 10.0))
    driver.unreported = 0
    query.look()
    assert query.rate(now) > 0


def test_rates_are_over_the_time_from_batch_to_batch(query, driver):
    now = end_batches(driver)
    assert len(query.look()) == 4
    assert query.look() == ()
    assert query.interval(now) == pytest.approx(2.0)
    assert query.rate(now) == pytest.approx(50.0)
    seconds, rows = query.latencies(now)
    assert seconds.tolist() == pytest.approx([0.5, 2.5, 2.5, 2.5]), "from the batch before, but for the first one seen"
    assert rows.tolist() == [100.0] * 4


@pytest.mark.parametrize(("every", "refused"), [(0.5, True), (0.7, False)])
def test_state_does_not_move_between_batches_too_short_for_its_files(query, driver, every, refused):
    query._with = replace(query._with, least_interval=lambda: 0.6)
    end_batches(driver, every=every, seconds=0.4)
    query.look()
    assert query.move_refusal.startswith("with a batch every 0.5 s, Spark before 4.2 may delete") is refused


def test_an_arrival_rate_tells_how_old_it_is(query, driver):
    now = end_batches(driver, every=2.0, seconds=0.5, count=4)
    query.look()
    # Its records came in the 6 s before the last batch, which took 0.5 s, and are told for 2 s.
    assert query.arriving_age == pytest.approx(3.0 + 0.5 + 1.0)
    frame = operator_frame(layout_of((("q", ()),)).graph, [query], {}, now, 0.1)
    assert frame.age(Metric.ARRIVAL_RATE) == pytest.approx(4.5)


def test_an_arrival_rate_stays_while_a_usual_batch_is_under_way(query, driver):
    now = end_batches(driver)
    driver.processing = True
    query.look()
    assert query.arriving(now + 5.0) == pytest.approx(50.0)
    assert query.arriving(now + 100.0) < 5.0, "nobody knows what comes while a batch hangs"
    assert query.rate(now + 5.0) == pytest.approx(20.0), "not so many are processed"


def test_the_first_batch_after_a_pause_brings_no_old_rate_back(query, driver):
    now = end_batches(driver)
    query.look()
    assert query.arriving(now + 600.0) < 1.0
    driver.processing = True
    query._looked = now + 599.0
    query.look()
    assert query.arriving(now + 600.0) < 1.0


def test_an_age_is_the_mean_of_all_records():
    assert mean_age([(10_000.0, 2.0), (1.0, 300.0), (math.nan, 50.0)]) == pytest.approx(2.03, abs=0.01)
    assert mean_age([]) == 0.0


def test_records_of_an_idle_query_wait_one_poll_and_a_batch_at_most(query, driver):
    now = end_batches(driver, every=60.0)
    query.look()
    assert query.latencies(now)[0].tolist() == pytest.approx([0.5, 2.5, 2.5, 2.5])
    assert query.latencies(now + 600)[0].max() == pytest.approx(2.5), "nothing comes, and nothing waits"


def test_a_batch_that_does_not_end_shows_for_how_long_its_records_wait(query, driver):
    now = end_batches(driver)
    driver.processing = True
    query.look()
    assert query.latencies(now + 600)[0].max() == pytest.approx(600.5)
    driver.processing = False
    query.look()
    assert query.latencies(now + 600)[0].max() == pytest.approx(2.5)


def test_an_endless_first_batch_shows_how_long_it_has_run(query, driver):
    query.look()
    assert not query.timed
    driver.processing = True
    query.look()
    seconds, rows = query.latencies(math.inf)
    assert (seconds.tolist(), rows.tolist(), query.timed) == ([math.inf], [1.0], True)
    earlier = application_row(layout_of((("q", ()),)).graph, [query], START, cost=0.0, target=2.0)
    assert math.isnan(earlier.value("queries", Metric.LATENCY)), "an observation of a moment before it was seen"
    end_batches(driver, count=1)
    driver.processing = False
    query.look()
    assert query.latencies(math.inf)[0].tolist() == pytest.approx([0.5])


def test_a_query_that_has_gone_quiet_takes_less_and_less(query, driver):
    now = end_batches(driver)
    query.look()
    assert query.rate(now + 20) == pytest.approx(5.0)


def test_a_new_run_begins_with_nothing_known(query, driver):
    now = end_batches(driver)
    query.look()
    query.run("run 1")
    assert query.newest == 3
    query.run("run 2")
    assert (query.newest, query.runs) == (-1, 2)
    assert math.isnan(query.rate(now))


def test_load_and_place_of_partitions_are_known_by_task_name(query, driver):
    now = end_batches(driver)
    query.look()
    query.stages = {"q/count0": STAGE}
    query.placing.attach("q/count0", SimpleNamespace(partitions=3))
    column = np.array([1.0, 0.2, 0.4])
    for number in range(3):
        assert np.isnan(query.loads(EPOCH + 1)["q/count0"].busy).all()
        same = dict.fromkeys(("run_time", "records", "local_bytes", "remote_bytes"), column)
        told = {"partitions": 3, "busy": column, "executor": ("0", "1", "1"), "batch": number, "seconds": 2.0, "ended": now}
        query._take("q/count0", SimpleNamespace(**told, **same))
    assert query.loads(EPOCH + 1)["q/count0"].busy.tolist() == pytest.approx([0.5, 0.1, 0.2])
    assert query.placing.where()[TaskId("q/count0", 2)].executor == "1"


def test_frames_hold_what_is_known_and_nan_for_the_rest(query, driver):
    now = end_batches(driver, behind=700.0)
    query.look()
    query.stages = {"q/count0": STAGE}
    layout = layout_of((("q", query.operators),))
    busy = np.array([0.1, 0.2, np.nan])
    loads = {"q/count0": PartitionLoads(busy, busy / 10, busy, busy, busy, 0.0, 8 * busy, 0.125)}
    operators = operator_frame(layout.graph, [query], loads, now, used=0.9)
    assert operators.value("q", Metric.BACKLOG) == 700.0
    assert operators.value("q", Metric.ARRIVAL_RATE) == pytest.approx(50.0)
    assert math.isnan(operators.value("q/count0", Metric.BUSY_CORES))
    assert operators.value("q", Metric.BUSY_CORES) == pytest.approx(0.9)
    assert operators.value("q/count0", Metric.CHECKPOINT_DELTA) == 0.125
    application = application_row(layout.graph, [query], now, cost=3.0, target=5.0)
    assert application.value("queries", Metric.THROUGHPUT) == pytest.approx(50.0)
    assert application.value("queries", Metric.BACKLOG) == 700.0
    # It always holds 700 records back, which are those of seven batches: all taken were there when it was first seen.
    assert application.value("queries", Metric.LATENCY_P99) == pytest.approx(6.5)
    assert application.value("queries", Metric.LATENCY_P50) == pytest.approx(2.5)
    assert application.value("queries", Metric.LATENCY) == pytest.approx(3.5)
    assert application.value("queries", Metric.COMPLIANCE) == pytest.approx(0.75)
    held = {TaskId("q/count0", 1): "h2", TaskId("q/count0", 2): "gone"}
    tasks = task_frame(layout.graph, ("h1", "h2"), held, loads)
    assert tasks.tasks == (TaskId("q/count0", 1),)
    assert tasks.host.tolist() == [1]
    assert tasks.column(Metric.BUSY_CORES).tolist() == [0.2]
    assert tasks.column(Metric.BUSY_CORES_ERROR).tolist() == [0.02]


def test_a_query_with_a_target_of_its_own_counts_in_proportion(query, driver):
    now = end_batches(driver, behind=700.0)
    query.look()
    graph = layout_of((("q", ()),)).graph
    row = application_row(graph, [query], now, 0.0, 5.0, {query.id: 10.0})
    assert row.value("queries", Metric.LATENCY_P99) == pytest.approx(3.25), "6.5 s of 10 s are 3.25 s of 5 s"
    assert row.value("queries", Metric.COMPLIANCE) == 1.0
    other = application_row(graph, [query], now, 0.0, 5.0, {"another": 10.0})
    assert other.value("queries", Metric.COMPLIANCE) == pytest.approx(0.75)


def test_service_of_each_query_has_its_target_and_share_of_the_work(query, driver):
    now = end_batches(driver, every=2.0, seconds=0.5)
    query.look()
    access = replace(query._with, wall=lambda: now)
    own, worked = {"another": 1.0}, {"an id": 3.0, "another": 9.0}
    queries = SessionQueries(access, target_latency=2.0, own_targets=own, task_seconds=worked)
    slow = Query(access, "another", "slow")
    slow.run("run 2")
    slow.batches, slow.status = query.batches, query.status
    queries._queries = {query.id: query, slow.id: slow}
    late = {"slow": Diagnosis(Cause.SLOTS, sentence="slow is late because its tasks wait for slots")}
    services = queries.services(late)
    assert {name: (each.target, each.work, each.late) for name, each in services.items()} == {
        "q": (2.0, 0.25, ""),
        "slow": (1.0, 0.75, "slow is late because its tasks wait for slots"),
    }
    assert services["q"].latency == pytest.approx(2.5)
    assert services["q"].in_time == services["slow"].in_time == pytest.approx(0.25)


def test_what_arrives_is_what_was_taken_and_what_is_held_more(query, driver):
    driver.ended = [(n, START + 2.0 * n, 100, 0.5, 40.0 * n) for n in range(4)]
    query.look()
    now = START + 6.5
    assert query.rate(now) == pytest.approx(50.0)
    assert query.arriving(now) == pytest.approx(70.0)
    graph = layout_of((("q", ()),)).graph
    operators = operator_frame(graph, [query], {}, now, used=0.9)
    assert operators.value("q", Metric.ARRIVAL_RATE) == pytest.approx(70.0)
    assert operators.value("q", Metric.PROCESSED_RATE) == pytest.approx(50.0)
    assert application_row(graph, [query], now, cost=0.0).value("queries", Metric.ARRIVAL_RATE) == pytest.approx(70.0)


def test_queries_that_could_not_be_looked_at_yet_have_not_ended(query):
    class Blind:
        context, blind = None, True

        def ask(self, method, _):
            if self.blind:
                raise ConnectionError("as meant")
            return []

    driver = Blind()
    queries = SessionQueries(QueryAccess(query._with.spark, driver, query.placing))
    with pytest.raises(ConnectionError):
        queries.look(20.0, 0.0)
    assert not queries.finished(20.0)
    driver.blind = False
    queries.look(21.0, 0.0)
    assert not queries.finished(21.0)
    assert queries.finished(21.0 + RESTART_WAIT_S + 0.1)


class Ending:
    """Answers that one query runs, until it ends."""

    context = None

    def __init__(self):
        self.running = [["an id", "a run", "-1", "1", "", "q"]]

    def ask(self, method, *_):
        return {"queries": self.running, "batches": [["", "", "-1"]]}.get(method, [])


@pytest.mark.parametrize(
    ("stopped", "said"), [(False, ["query 'q' failed: ValueError: no"]), (True, [])], ids=["by itself", "with the session"]
)
def test_failure_of_a_query_is_said_once_with_its_cause(query, caplog, stopped, said):
    error = SimpleNamespace(getMessage=lambda: "Traceback (most recent call last):\n  File\nValueError: no")
    failed = SimpleNamespace(isDefined=lambda: True, get=lambda: error)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped)))
    spark = without_jvm(SimpleNamespace(exception=lambda: failed), sparkContext=context)
    driver = Ending()
    queries = SessionQueries(QueryAccess(spark, driver, query.placing))
    queries.look(20.0, 0.0)
    driver.running = []
    queries.look(21.0, 0.0)
    queries.look(22.0, 0.0)
    assert (queries.incidents(), queries.incidents(), caplog.messages) == (said, [], said)


def test_stage_without_figures_for_several_batches_is_said(query, driver):
    query.stages = {"q/count0": STAGE}
    query._names = {0: "q/count0"}
    query._tasks = SimpleNamespace(poll=lambda _: ())
    for count in range(1, 6):
        assert query.remarks == ()
        end_batches(driver, count=count)
        query.look()
    assert query.remarks[0].startswith("the state partitions of q/count0 are not balanced: in 5 batches with records")
    driver.ended.append((5, START + 10, 0, 0.1, None))
    query.look()
    assert query.remarks
    column = np.ones(3)
    names = ("run_time", "waited", "cpu", "records", "local_bytes", "remote_bytes", "written_bytes", "task")
    costs = dict.fromkeys(names, column)
    load = StageLoad(6, 1, (), (0,), False, 2.0, START + 12, ("0", "1", "1"), **costs)
    query._tasks = SimpleNamespace(poll=lambda _: (load,))
    driver.ended.append((6, START + 12, 100, 0.1, None))
    query.look()
    assert query.remarks == ()


def without_state(number, executors):
    zeros = dict.fromkeys(
        ("run_time", "waited", "cpu", "records", "local_bytes", "remote_bytes", "written_bytes", "task"),
        np.ones(len(executors)),
    )
    return StageLoad(number, 1, (), (-1,), False, 2.0, START + 2 * number, executors, **zeros)


@pytest.mark.parametrize(
    ("recovery", "widths", "why"),
    [
        (SimpleNamespace(places=True), [2, 2, 2], None),
        (SimpleNamespace(places=True), [1, 2, 2], None),  # a first batch with few records
        (SimpleNamespace(places=True), [2, 3, 2], "their number changes from batch to batch"),
        (SimpleNamespace(places=False), [2, 2, 2], "spark.scheduler.mode is not FIFO"),
        (SimpleNamespace(places=None), [2, 2, 2], None),  # Autopilot only observes
        (None, [2, 2, 2], "this session has no executors"),
    ],
)
def test_tasks_without_state_are_listed_unless_they_cannot_be_placed(query, driver, recovery, widths, why):
    query._with, query.stages, query.stateless = replace(query._with, recovery=recovery), {}, "q"
    query._names = {-1: "q"}
    query._tasks = SimpleNamespace(poll=lambda _: [without_state(n, ("1",) * width) for n, width in enumerate(widths)])
    end_batches(driver, count=3)
    query.look()
    listed = {} if why else {TaskId("q", 0): "1", TaskId("q", 1): "1"}
    assert dict(query.placing.stateless()) == listed
    (load,) = query.stateless_loads(START + 6.0).values()
    assert (len(load.busy), load.state.sum()) == (widths[-1], 0.0)
    if why:
        assert query.remarks[0].startswith(f"the tasks of q without state are not placed: {why}")
    else:
        assert query.remarks == ()
    query.end()
    assert not query.placing.stateless()


class Loads:
    """Answers which stages the batches ran: one short one, a tenth of a second after the start of each."""

    context = None

    def __init__(self, driver):
        self.driver, self.asked = driver, 0

    def ask(self, method, *_):
        assert method == "work"
        self.asked += 1
        at = [1e3 * each[1] for each in self.driver.ended]
        return [
            [str(n), f"{b + 100:.0f}", f"{b + 200:.0f}", "2", "150", "90", "140", "0", "1", "0"] for n, b in enumerate(at)
        ]


@pytest.fixture
def loads(query, driver):
    query._with = replace(query._with, task_loads=Loads(driver))
    return query._with.task_loads


@pytest.mark.parametrize(
    ("target", "cause"), [(2.0, Cause.TRIGGER), (0.4, Cause.TRIGGER), (3.0, None), (None, None)], ids=str
)
def test_late_query_is_diagnosed_and_others_cost_nothing(query, driver, loads, target, cause):
    now = end_batches(driver, count=8)
    query.look()
    found = query.diagnosis(target, 4, now)
    assert (found and found.cause, loads.asked) == (cause, 0 if cause is None else 1)


def test_late_query_has_an_unknown_cause_if_the_driver_does_not_answer(query, driver, loads, monkeypatch):
    def fail(*_):
        raise Py4JError("the status store is gone")

    monkeypatch.setattr(loads, "ask", fail)
    now = end_batches(driver, count=8)
    query.look()
    assert query.diagnosis(2.0, 4, now) == Diagnosis()


def test_first_batches_are_no_evidence_of_a_cause(query, driver, loads):
    now = end_batches(driver, count=4)
    query.look()
    assert query.diagnosis(1.9, 4, now) == Diagnosis()


def test_query_that_a_limit_holds_back_is_neither_late_nor_in_time(query, driver):
    limit = SourceLimit("files", 3)
    progress = SourceProgress(rows=5, everything=None)
    query.batches.append(Batch("q", 4, START, 1.0, 5, sources=(progress,)))
    query.status = QueryStatus(limits=(limit,))
    query._since = START
    found = query.diagnosis(2.0, 4, START + 60.0)
    assert (found.measured, found.hosts_help) == (False, True)
    assert "a batch reads at most 3 files of a source that does not report what waits" in found.sentence
    assert not query.timed


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        ((1, "40", "3000000", "1", "0"), (40, 3.0, 0.0, 0.0)),
        ((2, "80", "6000000", "1", "0"), (40, 3.0, 0.0, 0.0)),  # a function computed the batch twice
        ((1, "40", "3000000", "0", "5000000"), (40, 0.0, 3.0, 5.0)),
        ((1, "0", "3000000", "0", "0"), (math.nan, 0.0, 3.0, 0.0)),  # not counted
        ((1, "40", "3000000", "-1", "0"), (40, math.nan, math.nan, 0.0)),  # of a store that is not Spark's
    ],
)
def test_stores_report_rows_and_bytes_in_the_heap_and_outside(driver, query, told, stored):
    query.stages = {"q/count0": STAGE}
    times, *figures = told
    driver.state = [["2500"], [str(STAGE.operators[0].position), str(times * STAGE.partitions), *figures]]
    driver.ended = [(0, EPOCH, 100, 1.0, 0)]
    query.look()
    assert tuple(query.loads(EPOCH + 1)["q/count0"].stored) == pytest.approx(stored, nan_ok=True)
    assert largest_lag([query]) == 2.5
