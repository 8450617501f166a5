"""Sizes of a job whose tasks work as they were made to."""

import json
import math
import tracemalloc
from dataclasses import replace

import pytest

from elastream.advice.advice import Advice
from elastream.advice.application import Executor, LoggedBatch, LoggedQuery, Stage
from elastream.advice.event_log import EventLog
from elastream.advice.service import Arrivals, BatchModel, Latency, cross_validated
from elastream.advice.sizing import longest_trigger, size
from elastream.advice.sources import read_source
from elastream.core.lateness import StageTimes
from support.event_logs import LogOf, Query, only_query
from support.event_logs import Stage as StageOfLog

A_RECORD, A_BATCH, DRIVER = 0.004, 0.4, 0.3
"""Seconds of tasks a record and a batch, and seconds of the driver."""


def logged(executors, *, every=5.0, batches=240, rate=lambda at: 300.0 + 200.0 * math.sin(at / 100), even=False):
    """Return the application of a job with so many executors of two cores. every: trigger; 0 for none."""
    log, query, slots = LogOf([2] * executors), Query(), 2 * executors
    log.started(query)
    at, last = 0.0, -1.0
    for number in range(batches):
        rows = 1000 if even else max(1, round(rate(at) * (at - last)))
        run, last = A_BATCH + A_RECORD * rows, at
        end = log.batch(query, number, at, rows, [StageOfLog([run / 8] * 8, rows)], slots=slots, driver=DRIVER)
        at = max(end, (math.floor(at / every) + 1) * every) if every else end  # Spark follows a long batch at once
    return EventLog("log").read(json.dumps(event, separators=(",", ":")).encode() for event in log.events)


def without_tasks(application, cores=None):
    for query in application.queries.values():
        for at, batch in enumerate(query.batches):
            query.batches[at] = replace(batch, stages=())
        query.__dict__.pop("warm", None)
    application.executors = {} if cores is None else {"driver": Executor("driver", cores, -math.inf)}
    application.__dict__.pop("_slots", None)
    return application


def test_model_knows_batches_of_other_fleets():
    query = only_query(logged(2))
    model = BatchModel.of(query, query.warm, lambda at: 4)
    for rows, slots in ((500, 4), (2000, 4), (2000, 1), (2000, 8)):
        assert model.seconds(rows, slots) == pytest.approx(DRIVER + (A_BATCH + A_RECORD * rows) / slots, rel=0.02)


@pytest.mark.parametrize("every", [5.0, 0.0], ids=["a trigger", "no trigger"])
def test_other_fleet_has_the_predicted_latencies(every):
    here, there = logged(2, every=every), only_query(logged(4, every=every))
    sizing = size(here, 10.0, 0.1, {})
    point = next(point for point in sizing.curve if point.hosts == 4)
    ran = Latency.logged(there, there.warm, 10.0)
    assert (point.p50, point.p99) == (pytest.approx(ran.p50, rel=0.1), pytest.approx(ran.p99, rel=0.1))


def test_fleet_that_overruns_its_trigger_has_the_predicted_latencies():
    rate = lambda at: 250.0 + 150.0 * math.sin(at / 100)  # noqa: E731
    there = only_query(logged(1, every=2.0, rate=rate))
    point = next(point for point in size(logged(2, every=2.0, rate=rate), 10.0, 0.1, {}).curve if point.hosts == 1)
    ran = Latency.logged(there, there.warm, 10.0)
    assert sum(batch.seconds > 2.0 for batch in there.warm) > 50
    assert (point.p50, point.p99) == (pytest.approx(ran.p50, rel=0.1), pytest.approx(ran.p99, rel=0.1))


def test_trigger_shows_although_most_batches_overrun_it():
    starts = [0.0, 9.0, 16.0, 21.0, 25.0, 28.0, 30.2, 32.1]
    lengths = [9.0, 7.0, 5.0, 4.0, 3.0, 2.2, 1.9, 1.2]
    query = LoggedQuery("a", "a")
    for number in range(8):
        query.add(LoggedBatch(number, starts[number], lengths[number], 100.0))
    for number in range(8, 14):
        query.add(LoggedBatch(number, 34.0 + 2 * (number - 8), 1.2, 100.0))
    assert query.trigger == 2.0


def test_stall_of_the_driver_is_as_long_on_fewer_slots():
    def batch(number, outside, run):
        times = StageTimes(9.0 * number, 9.0 * number + run / 4, 4, run, run / 4, run, 0.0, shuffled=False, python=False)
        return LoggedBatch(
            number, 9.0 * number, outside + run / 4, 100.0, stages=(Stage(times),), durations={"addBatch": 9.0}
        )

    calm = [batch(number, 0.2, 2.0) for number in range(20)]
    model = BatchModel.of(LoggedQuery("a", "a"), [*calm, batch(20, 3.2, 2.0), batch(21, 0.2, 6.0)], lambda at: 4)
    stalled, laden = (model.seconds(100.0, 2, rest) for rest in model.rests[-2:])
    assert stalled == pytest.approx(3.2 + 1.0)
    assert laden == pytest.approx(0.2 + 3.0)


def test_stage_that_usually_waits_waits_no_longer_for_a_rare_long_task():
    log, at = LogOf((2,)), 0.0
    for number in range(40):
        long = number % 10 == 5
        stage = StageOfLog([1.0 if long else 0.02] * 2, 100, waits=0.5 if long else 1.5)
        at = max(4.0 * (number + 1), log.batch(Query(), number, at, 100, [stage]))
    sizing = size(EventLog("log").read(json.dumps(event).encode() for event in log.events), 10.0, math.nan, {})
    same = next(point for point in sizing.curve if point.logged)
    assert (same.p50, same.p99) == pytest.approx((sizing.logged.p50, sizing.logged.p99), rel=0.1)


def test_stages_that_run_at_once_share_the_slots():
    def batch(number):
        at, small = 9.0 * number, 0.02 + 0.02 * (number % 3)
        large = StageTimes(at, at + 1.0, 4, 4.0 - small, 1.0)
        waits = StageTimes(at, at + 1.0, 4, small, small / 4)  # for the slots of the large one
        return LoggedBatch(number, at, 1.2, 100.0, stages=(Stage(large), Stage(waits)))

    model = BatchModel.of(LoggedQuery("a", "a"), [batch(number) for number in range(20)], lambda at: 4)
    assert len(model.stages) == 1
    assert {round(model.seconds(100.0, 2, rest), 3) for rest in model.rests} == {2.2}


def test_commits_of_state_are_no_work_of_records():
    def batch(number):
        times = StageTimes(9.0 * number, 9.0 * number + 1.0, 4, 4.0, 1.0, 4.0, 0.0, shuffled=True, python=False)
        return LoggedBatch(number, 9.0 * number, 1.0, 100.0, stages=(Stage(times),), state_work=3.0)

    model = BatchModel.of(LoggedQuery("a", "a"), [batch(number) for number in range(20)], lambda at: 4)
    assert model.seconds(200.0, 4) == pytest.approx(1.25)


def test_one_half_of_a_log_predicts_the_other():
    query = only_query(logged(2))
    assert max(cross_validated(query, query.warm, lambda at: 4, 10.0, math.inf)) < 0.05


def test_fixed_fleet_is_the_smallest_that_keeps_the_target():
    sizing = size(logged(4), 8.0, 0.1, {})
    late = [point.hosts for point in sizing.curve if point.in_time < 0.99]
    assert sizing.fixed is not None
    assert sizing.fixed.hosts == max(late) + 1
    assert sizing.fixed.cost == pytest.approx(73.0 * sizing.fixed.hosts)


@pytest.mark.parametrize(("rate", "hidden"), [(600.0, True), (200.0, False)])
def test_trigger_that_no_batch_waited_for_is_unknown(rate, hidden):
    sizing = size(logged(1, rate=lambda at: rate, batches=25), 10.0, math.nan, {})
    assert any("whether counts has a trigger" in each for each in sizing.unknown) == hidden


def test_fleet_that_cannot_follow_is_late():
    busy = logged(4, rate=lambda at: 1200.0, batches=60)
    first = size(busy, 10.0, math.nan, {}).curve[0]
    assert first.in_time < 0.5
    assert first.busy == 1.0


def test_horizon_leases_fewer_hosts_than_a_fixed_fleet_for_a_slow_tide():
    tide = logged(4, batches=1000, rate=lambda at: 600.0 + 550.0 * math.sin(at / 300))
    sizing = size(tide, 20.0, 0.1, {})
    assert sizing.horizon is not None
    assert sizing.horizon.hosts < sizing.fixed.hosts


def test_records_of_a_batch_are_advised_within_half_of_the_target():
    sizing = size(logged(2), 10.0, math.nan, {})
    (settings,) = sizing.settings
    assert DRIVER + (A_BATCH + A_RECORD * settings.batch_rows) / (2 * sizing.fixed.hosts) == pytest.approx(5.0, rel=0.05)


def test_trigger_and_partitions_are_advised_for_the_fixed_fleet():
    sizing = size(logged(2, rate=lambda at: 200.0 + (at // 10) % 5), 10.0, math.nan, {})
    (settings,) = sizing.settings
    slots = 2 * sizing.fixed.hosts
    fixed, by_records = DRIVER + A_BATCH / slots, A_RECORD * 204 / slots
    assert settings.trigger == pytest.approx(0.9 * (10.0 - fixed) / (1 + by_records), rel=0.05)
    assert settings.partitions == 0  # it has no shuffle


@pytest.mark.parametrize(
    ("fixed", "by_records", "trigger"), [(2.0, 0.2, 6.0), (6.0, 0.8, math.nan), (0.0, 1.0, math.nan), (12.0, 0.0, math.nan)]
)
def test_trigger_is_advised_if_batches_keep_it(fixed, by_records, trigger):
    assert longest_trigger(10.0, fixed, by_records) == pytest.approx(trigger, nan_ok=True)


def test_table_says_if_no_trigger_keeps_the_target():
    application = logged(1)
    sizing = size(application, 0.1, math.nan, {})
    rows = [row for table in Advice(application, 0.1, False, math.nan, (), sizing).tables() for row in table.rows]
    assert any("none keeps the target" in row for row in rows)


@pytest.mark.parametrize("target", [0.1, 10.0])
def test_state_needs_partitions_and_a_target_a_trigger(target):
    application = logged(1)
    only_query(application).stateful = "stateStoreSave"
    sizing = size(application, target, math.nan, {})
    (settings,) = sizing.settings
    slots = 2 * (sizing.fixed or sizing.curve[-1]).hosts
    assert settings.partitions == 2 * slots
    assert math.isnan(settings.trigger) == math.isnan(settings.batch_rows) == (target < DRIVER)


def test_calibration_shows_the_model_and_its_error():
    application = logged(2)
    only_query(application).stateful = "stateStoreSave"
    sizing = size(application, 10.0, math.nan, {})
    (model,) = sizing.calibration
    assert (model.work, model.driver, model.tasks) == (
        pytest.approx(A_RECORD, rel=0.02),
        pytest.approx(DRIVER, rel=0.02),
        pytest.approx(A_BATCH, rel=0.1),
    )
    assert (model.spread, model.state) == (pytest.approx(1.0, rel=0.02), 0.0)
    assert model.error == sizing.error
    assert max(model.error) < 0.05
    assert any("the time that counts needs to load state after a move" in each for each in sizing.unknown)


def test_batches_of_one_size_leave_the_work_of_a_record_open():
    sizing = size(logged(2, even=True), 10.0, math.nan, {})
    assert any("how the work of counts grows" in each for each in sizing.unknown)


def test_limited_source_that_reports_no_backlog_has_no_sizes():
    application = logged(2)
    sizing = size(application, 10.0, math.nan, {only_query(application).id: 1000.0})
    assert sizing.curve == ()
    assert any("does not report what waits" in each for each in sizing.unknown)


def test_progress_alone_knows_the_work_of_a_record():
    application = without_tasks(logged(2))
    query = only_query(application)
    model = BatchModel.of(query, query.warm, lambda at: 4)
    for rows, slots in ((500, 4), (2000, 4), (2000, 1), (2000, 8)):
        # Fixed work of tasks, which progress does not tell from that of the driver, is taken to stay.
        exact = DRIVER + (A_BATCH + A_RECORD * rows) / slots
        assert model.seconds(rows, slots) == pytest.approx(exact, abs=1.1 * A_BATCH)
        assert model.work == pytest.approx(A_RECORD, rel=0.02)
    assert max(cross_validated(query, query.warm, lambda at: 4, 10.0, math.inf)) < 0.05


def test_progress_alone_sizes_nearly_as_tasks_do():
    application = logged(2)
    exact = size(application, 10.0, math.nan, {})
    sizing = size(without_tasks(application, 4), 10.0, math.nan, {})
    for point in sizing.curve:
        other = next((each for each in exact.curve if each.cores == point.cores), None)
        assert other is None or point.p99 == pytest.approx(other.p99, rel=0.15)
    assert any("is taken to divide over all cores" in each for each in sizing.unknown)


def test_work_on_state_divides_over_the_cores():
    batches = [LoggedBatch(n, 5.0 * n, 1.0 + 0.001 * r, r, state_work=2.0) for n, r in enumerate([200, 500, 800] * 10)]
    model = BatchModel.of(LoggedQuery("a", "a", width=8), batches, lambda at: 4)
    assert model.seconds(500, 4) == pytest.approx(1.5)
    assert model.seconds(500, 2) == pytest.approx(0.5 + 1.0 + 1.0)
    assert model.seconds(500, 100) == model.seconds(500, 8)


def test_arrivals_follow_the_times_of_first_and_last_records():
    query = LoggedQuery("a", "a")
    batches = [LoggedBatch(n, 10.0 * n, 9.0, 100.0, first=10.0 * n - 20, last=10.0 * n - 10) for n in range(5)]
    arrivals = Arrivals.of(query, batches)
    assert (arrivals.by(-20), arrivals.by(-15), arrivals.by(20.0)) == (0.0, 50.0, 400.0)


def test_query_with_little_work_has_no_sizes_beside_an_unknown_one():
    application, heavy = logged(2), only_query(logged(2, batches=6, rate=lambda at: 10_000.0))
    heavy.name = "heavy"
    application.queries["heavy"] = heavy
    sizing = size(application, 10.0, math.nan, {})
    assert not sizing.curve
    assert "sizes: the service of heavy, which has much of the work, is unknown" in sizing.unknown


@pytest.mark.parametrize("tasks", [True, False], ids=["tasks", "progress alone"])
def test_queries_together_need_the_slots_of_all(tasks):
    rate = lambda at: 140.0 + 50.0 * math.sin(at / 100)  # noqa: E731  # keeps 0.64 slots busy
    application = logged(4, rate=rate)
    # Of eight slots each of five has about four while it runs.
    application.queries = {f"{number}": only_query(logged(2, rate=rate)) for number in range(5)}
    if not tasks:
        application = without_tasks(application, 8)
    sizing = size(application, 10.0, math.nan, {})
    assert all(point.in_time < 0.9 for point in sizing.curve if point.cores <= 2)
    assert 3 <= sizing.fixed.cores <= 8


def test_batches_with_other_numbers_of_stages_have_sizes(tmp_path):
    log, at = LogOf((2, 2)), 0.0
    for number in range(60):
        stages = [StageOfLog([0.1 + (20 + number % 9) / 100] * 4, 100)] * (1 + number % 9)
        at = max(5.0 * number, log.batch(Query(), number, at, 1000, stages, slots=4))
    sizing = size(read_source(str(log.write(tmp_path / "log"))), 10.0, math.nan, {})
    assert sizing.curve
    assert any("is taken to divide over all cores" in each for each in sizing.unknown)


def test_short_log_has_no_sizes_and_says_why():
    sizing = size(logged(2, batches=6), 10.0, math.nan, {})
    assert sizing.curve == ()
    assert any("10 are needed" in each for each in sizing.unknown)


def test_memory_grows_with_batches_and_not_with_their_square():
    batches = [LoggedBatch(number, 5.0 * number, 1.0, 100.0) for number in range(20_000)]
    tracemalloc.start()
    latency = Latency.logged(LoggedQuery("a", "a"), batches, 10.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert latency.in_time == 1.0
    assert peak < 1e8


def test_arrivals_after_an_idle_time_come_after_the_last_poll():
    query = only_query(logged(2, every=0.0, batches=30))
    late = query.batches[-1]
    gap = Arrivals.of(query, [*list(query.batches)[:-1], LoggedBatch(99, late.end + 60.0, 1.0, 50.0)])
    assert gap.by(late.end + 59.5) == gap.by(late.end)
