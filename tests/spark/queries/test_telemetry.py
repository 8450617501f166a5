"""Telemetry is arithmetic on what Spark reports; here the reports are written by hand."""

import math
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastream.core.latency import Basis
from elastream.core.metrics import Metric
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.spark.queries.compiled_frames import Telemetry
from elastream.spark.telemetry.batches import read_batch
from elastream.spark.worker.meter import MeterRow
from support.batch_progress import line, source

STARTED = 1_700_000_000.0


def a_batch(number, start, seconds, first, last, before=None, edge=None):
    """A batch as the driver tells of it: of a source of ours, or of the durable edge `edge`."""
    kind = {"started": STARTED} if edge is None else {"edge": edge}
    taken = source({**kind, "n": first}, {**kind, "n": last}, last - first)
    return read_batch("source" if edge is None else "read", line(number, start, seconds, taken), before)


def batches_of(*told):
    """Batches in a row, each (number, start, seconds, first, last)."""
    found = []
    for each in told:
        found.append(a_batch(*each, before=found[-1] if found else None))
    return found


def telemetry(tmp_path, batches, rate=100, lasts="10s", target=1.0):
    flow = Dataflow("f")
    lines = flow.source(records([{"value": "a"}], "value string"), load=rate and constant(rate, lasts=lasts))
    lines.flat_map(str.split, returns="word string", name="split").key_by("word").count().sink(collect("out"))
    layout = lay_out(flow.graph)
    (tmp_path / "offsets").mkdir(exist_ok=True)
    running = a_running(layout.segments[0], tmp_path, keyed=("count",), reads=("source",))
    made = Telemetry(layout, [running], {"source": batches}, target)
    made.add_batches(batches, STARTED)
    return made


def a_running(segment, checkpoint, reads, keyed=(), edges=None, places=None, interval=1.0):
    """A segment and its query, as far as telemetry asks."""
    return SimpleNamespace(
        segment=segment,
        checkpoint=checkpoint,
        keyed=keyed,
        edges=edges or {},
        reads=reads,
        places=places or {},
        interval=interval,
    )


def test_latency_is_commit_less_due(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 1.0, 0.5, 0, 100)))
    seen = made.application(STARTED + 2.0, cost=3.0)
    # Records 0 to 99 were due over the first second, and all were committed at 1.5 s.
    assert seen.value("f", Metric.LATENCY_P50) == pytest.approx(1.0, abs=0.03)
    assert seen.value("f", Metric.LATENCY_P99) == pytest.approx(1.5, abs=0.03)
    assert seen.value("f", Metric.COMPLIANCE) == pytest.approx(0.5, abs=0.04)
    assert seen.value("f", Metric.COST) == 3.0


def test_a_batch_is_described_with_what_its_first_and_last_record_waited(tmp_path):
    batches = batches_of((0, 1.0, 0.5, 0, 100), (1, 2.0, 0.25, 100, 100))
    found, empty = (telemetry(tmp_path, batches).described(batch, STARTED) for batch in batches)
    assert (found.segment, found.start, found.seconds, found.records) == ("source", pytest.approx(1.0), 0.5, 100.0)
    assert (found.oldest, found.newest) == (pytest.approx(1.5, abs=0.02), pytest.approx(0.5, abs=0.02))
    assert math.isnan(empty.oldest)


def test_backlog_is_what_is_due_less_what_the_newest_planned_batch_took(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 0.5, 0.5, 0, 50)))
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"n": 50}')
    assert made.backlog("source", STARTED + 2.0) == 150
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"n": 120}')
    os.utime(tmp_path / "offsets" / "1", (STARTED + 1.2, STARTED + 1.2))
    assert made.backlog("source", STARTED + 2.0) == 80


def test_batch_planned_just_after_the_look_waits_for_no_negative_time(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 0.5, 0.5, 0, 0)), rate=None)
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"n": 50}')
    os.utime(tmp_path / "offsets" / "1", (STARTED + 2.06, STARTED + 2.06))
    frame = made.application(STARTED + 2.0, cost=0.0)
    assert not frame.reading("f", Metric.LATENCY_P99).known
    assert frame.implausible == ()


def test_records_of_a_running_batch_wait_since_it_was_planned(tmp_path):
    made = telemetry(tmp_path, [], rate=None)
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"n": 50}')
    os.utime(tmp_path / "offsets" / "0", (STARTED, STARTED))
    assert made.application(STARTED + 7.0, cost=0.0).value("f", Metric.LATENCY_P99) == pytest.approx(7.0)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").touch()
    assert not made.application(STARTED + 7.0, cost=0.0).reading("f", Metric.LATENCY_P99).known


def test_a_load_is_exhausted_when_its_last_record_is_committed(tmp_path):
    batches = batches_of((0, 9.0, 0.5, 0, 900))
    made = telemetry(tmp_path, batches)
    assert not made.exhausted("source", STARTED + 11.0)
    batches.append(a_batch(1, 10.2, 0.5, 900, 1000))
    made.add_batches(batches[1:], STARTED)
    assert not made.exhausted("source", STARTED + 9.9)
    assert made.exhausted("source", STARTED + 11.0)


def test_the_meter_gives_each_operator_its_rate_cost_and_selectivity(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 1.0, 0.5, 0, 100)))
    made.metered([MeterRow("source", 0, "split", 0, 100, 700, 0.2, STARTED + 1.1, STARTED + 1.3, 2)])
    seen = made.operators(STARTED + 2.0, {"split": 2.0}, cores=2.0)
    assert seen.value("split", Metric.PROCESSED_RATE) == pytest.approx(200)
    assert seen.value("split", Metric.EMITTED_RATE) == pytest.approx(1400)
    assert seen.value("split", Metric.SERVICE_TIME) == pytest.approx(0.002)
    assert seen.value("split", Metric.BUSY_CORES) == pytest.approx(0.4)
    assert seen.value("split", Metric.UTILISATION) == pytest.approx(0.2)
    assert seen.value("split", Metric.PARALLELISM) == 2.0
    assert seen.value("count", Metric.DURATION) == pytest.approx(0.2)
    assert not seen.reading("count", Metric.SERVICE_TIME).known


def test_each_alternate_keeps_its_own_cost_and_selectivity(tmp_path):
    batches = batches_of((0, 1.0, 0.5, 0, 100), (1, 2.0, 0.5, 100, 200))
    made = telemetry(tmp_path, batches[:1])
    at = STARTED + 1.1
    made.metered([MeterRow("source", 0, "split", 0, 100, 700, 0.2, at, at, 2, "quick")])
    seen = made.alternates(STARTED + 2.0)
    assert seen.ids == ("split.quick",)
    assert seen.value("split.quick", Metric.SERVICE_TIME) == pytest.approx(0.002)
    assert seen.value("split.quick", Metric.SELECTIVITY) == pytest.approx(7.0)
    assert seen.value("split.quick", Metric.AGE) == pytest.approx(0.5)
    made = telemetry(tmp_path, batches)
    rows = [("quick", 60, 300, 0.03), ("exact", 40, 80, 0.4)]  # by a key table, in one batch
    made.metered([MeterRow("source", 1, "split", 1, n, out, busy, at, at, 2, name) for name, n, out, busy in rows])
    seen = made.alternates(STARTED + 5.0)
    assert {name: round(seen.value(name, Metric.SERVICE_TIME), 6) for name in seen.ids} == {
        "split.exact": 0.01, "split.quick": 0.0005
    }  # fmt: skip
    later = made.alternates(STARTED + 65.0)
    assert later.value("split.exact", Metric.SERVICE_TIME) == pytest.approx(0.01)
    assert later.value("split.exact", Metric.AGE) == pytest.approx(62.5)


def test_the_transport_to_python_is_a_cost_of_the_operator_alone(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 1.0, 0.5, 0, 100)))
    at = STARTED + 1.2
    made.metered([
        MeterRow("source", 0, "split", 0, 100, 700, 0.2, at, at, 2, "split"),
        MeterRow("source", 0, "split", 0, 100, 100, 0.1, at, at, 2),
    ])  # fmt: skip
    seen = made.operators(STARTED + 2.0, {}, cores=2.0)
    assert seen.value("split", Metric.PROCESSED_RATE) == pytest.approx(200)
    assert seen.value("split", Metric.SERVICE_TIME) == pytest.approx(0.003)
    assert made.alternates(STARTED + 2.0).value("split.split", Metric.SERVICE_TIME) == pytest.approx(0.002)


def test_throttled_hosts_occupy_a_core_longer_than_its_cpu_time(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 1.0, 0.5, 0, 100)))
    made.metered([MeterRow("source", 0, "split", 0, 100, 700, 0.2, STARTED + 1.1, STARTED + 1.3, 2, "split")])
    seen = made.operators(STARTED + 2.0, {}, cores=2.0, stretch=1.5)
    assert seen.value("split", Metric.SERVICE_TIME) == pytest.approx(0.003)
    assert seen.value("split", Metric.BUSY_CORES) == pytest.approx(0.3 / 0.5)
    alternate = made.alternates(STARTED + 2.0, stretch=1.5)
    assert alternate.value("split.split", Metric.SERVICE_TIME) == pytest.approx(0.003)
    later = made.alternates(STARTED + 60.0)
    assert later.value("split.split", Metric.SERVICE_TIME) == pytest.approx(0.002), "it costs what it would cost now"


def test_busy_cores_of_the_operators_add_up_to_those_of_the_hosts(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 1.0, 0.5, 0, 100)))
    made.metered([MeterRow("source", 0, "split", 0, 100, 700, 0.2, STARTED + 1.1, STARTED + 1.3, 2)])
    seen = made.operators(STARTED + 2.0, {}, cores=2.0, used=1.1)
    assert np.nansum(seen.column(Metric.BUSY_CORES)) == pytest.approx(1.1)
    assert seen.value("count", Metric.SERVICE_TIME) == pytest.approx(0.7 / 1400)


def test_a_rate_counts_the_wait_between_two_batches(tmp_path):
    made = telemetry(tmp_path, batches_of((0, 0.0, 0.5, 0, 10), (1, 1.0, 0.5, 10, 110), (2, 2.0, 0.5, 110, 210)))
    # Committed at 0.5, 1.5 and 2.5 s: the last two took 200 records in the two seconds since the first.
    seen = made.application(STARTED + 4.0, cost=0.0)
    assert seen.value("f", Metric.THROUGHPUT) == pytest.approx(100.0)


def test_the_meter_forgets_batches_that_no_observation_speaks_of(tmp_path):
    last = batches_of(*((number, float(number), 0.5, number, number + 1) for number in range(100, 300)))
    made = telemetry(tmp_path, last)
    made.metered(
        MeterRow("source", number, "split", 0, 1, 1, 0.1, STARTED + number, STARTED + number + 0.1, 1)
        for number in range(300)
    )
    assert made.operators(STARTED + 300.0, {}, cores=1.0).value("split", Metric.BUSY_CORES) == pytest.approx(0.1)
    assert len(made._meter) == 200


# -- durable edges -----------------------------------------------------------------------------------------------------


def behind_an_edge(tmp_path, *batches, written=()):
    """Telemetry of lines -> [durable] -> read; `batches` are those of the second query, (start, seconds, first, last)."""
    flow = Dataflow("f")
    lines = flow.source(records([{"value": "a"}], "value string"), load=constant(10, lasts="10s"), name="lines")
    lines.durable().map(str.upper, returns="value string", name="read").sink(collect("out"))
    layout = lay_out(flow.graph)
    (edge,) = (edge for edge in flow.graph.edges if edge.durable)
    for number, (at, rows) in enumerate(written):
        folder = tmp_path / "edge" / f"batch={number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"value": ["A"] * rows}), folder / "part-0.parquet")
        os.utime(folder, (STARTED + at, STARTED + at))
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    first, second = layout.segments
    running = [
        a_running(first, tmp_path / "none", reads=("lines",)),
        a_running(second, checkpoint, reads=(edge,), edges={edge: tmp_path / "edge"}),
    ]
    taken = [a_batch(number, *each, edge="lines-read") for number, each in enumerate(batches)]
    seen = {first.name: [replace(a_batch(0, 0.0, 0.5, 0, 10), query=first.name)], second.name: taken}
    made = Telemetry(layout, running, seen, 1.0)
    made.add_batches([batch for each in seen.values() for batch in each], STARTED)
    return made, checkpoint


def test_behind_a_durable_edge_records_queue_from_write_to_commit(tmp_path):
    made, checkpoint = behind_an_edge(tmp_path, (2.0, 1.0, 0, 4), written=[(1.0, 4), (4.0, 5), (5.0, 3)])
    (checkpoint / "offsets" / "1").write_text('v1\n{}\n{"edge": "lines-read", "n": 6}')
    seen = made.operators(STARTED + 5.5, {}, cores=1.0)
    assert seen.value("read", Metric.BACKLOG) == 6
    assert seen.value("read", Metric.DURATION) == pytest.approx(2.0)
    assert seen.value("read", Metric.DURATION_P99) == pytest.approx(2.0)
    assert seen.value("read", Metric.ARRIVAL_RATE) == pytest.approx(8 / 3)
    application = made.application(STARTED + 5.5, cost=0.0)
    assert not application.reading("f", Metric.BACKLOG).known  # the source's part is not
    assert made.rows == 10  # what a second query takes has been taken by the first


def test_duration_behind_an_edge_is_at_least_the_oldest_records_age(tmp_path):
    made, checkpoint = behind_an_edge(tmp_path, (2.0, 1.0, 0, 4), written=[(1.0, 4), (4.0, 5), (5.0, 3)])
    (checkpoint / "offsets" / "1").write_text('v1\n{}\n{"edge": "lines-read", "n": 6}')
    seen = made.operators(STARTED + 9.0, {}, cores=1.0)
    assert seen.value("read", Metric.DURATION) == pytest.approx(5.0), "of the batch under way"
    assert seen.value("read", Metric.DURATION_P50) == pytest.approx(2.0)
    unread, _ = behind_an_edge(tmp_path / "unread", written=[(1.0, 4)])
    assert unread.operators(STARTED + 9.0, {}, cores=1.0).value("read", Metric.DURATION) == pytest.approx(8.0)


def test_an_edge_that_nothing_was_written_to_is_drained(tmp_path):
    made, _ = behind_an_edge(tmp_path)
    assert made.drained()
    again, _ = behind_an_edge(tmp_path / "again", (2.0, 1.0, 0, 4), written=[(1.0, 4)])
    assert again.drained()


def test_latency_over_a_durable_edge_counts_from_the_first_due_time(tmp_path):
    # Its first batch took the records that were due in the first second; the second query committed them at 3 s.
    made, _ = behind_an_edge(tmp_path, (2.0, 1.0, 0, 4), written=[(1.0, 4)])
    seen = made.application(STARTED + 3.5, cost=0.0)
    assert seen.value("f", Metric.LATENCY_P99) == pytest.approx(3.0, abs=0.2)
    assert seen.value("f", Metric.LATENCY_P50) == pytest.approx(2.5, abs=0.2)


def test_a_batch_behind_an_edge_waits_for_the_report_before_it(tmp_path):
    made, _ = behind_an_edge(tmp_path, (2.0, 1.0, 0, 4), (3.0, 1.0, 4, 9), written=[(1.0, 4), (2.5, 5)])
    (first,) = made._running[0].reads
    assert made.application(STARTED + 4.5, cost=0.0).value("f", Metric.LATENCY_P99) == pytest.approx(3.0, abs=0.2)
    late = replace(a_batch(1, 1.5, 1.0, 10, 15), query=first)
    made.add_batches([late], STARTED)
    assert made.application(STARTED + 4.5, cost=0.0).value("f", Metric.LATENCY) > 2.0


def test_a_missed_batchs_records_count_from_the_batch_before_it(tmp_path):
    made, _ = behind_an_edge(tmp_path, (2.0, 1.0, 0, 4), (3.0, 1.0, 4, 9), written=[(1.0, 4), (2.5, 5)])
    (first,) = made._running[0].reads
    offsets = tmp_path / "none" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()
    os.utime(offsets / "0", (STARTED - 6.0, STARTED - 6.0))
    made.add_batches([replace(a_batch(2, 3.5, 0.5, 15, 20), query=first)], STARTED)  # what came of batch 1 was not seen
    assert made.application(STARTED + 4.5, cost=0.0).value("f", Metric.LATENCY_P99) == pytest.approx(10.0)
    assert made.latency_basis == {"lines": Basis.BOUND}


def test_sources_of_one_query_are_told_apart(tmp_path):
    flow = Dataflow("f")
    first = flow.source(records([{"value": "a"}], "value string"), load=constant(10, lasts="10s"), name="first")
    second = flow.source(records([{"value": "b"}], "value string"), load=constant(30, lasts="10s"), name="second")
    first.merge(second).map(str.upper, returns="value string", name="up").sink(collect("out"))
    layout = lay_out(flow.graph)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"n": 10}\n{"n": 30}')
    taken = [source({"n": 0}, {"n": n, "started": STARTED}, n) for n in (10, 30)]
    (segment,) = layout.segments
    batch = read_batch(segment.name, line(0, 1.0, 1.0, *taken), None)
    made = Telemetry(layout, [a_running(segment, tmp_path, reads=("first", "second"))], {segment.name: [batch]}, 5.0)
    made.add_batches([batch], STARTED + 2.0)
    made.metered([MeterRow(segment.name, 0, "first", 0, 40, 40, 0.2, STARTED + 1.1, STARTED + 1.3, 2)])
    seen = made.operators(STARTED + 2.0, {}, cores=1.0)
    for metric, both in {
        Metric.ARRIVAL_RATE: (10, 30),
        Metric.PROCESSED_RATE: (10, 30),
        Metric.BACKLOG: (10, 30),
        Metric.EMITTED_RATE: (10, 30),
    }.items():
        assert [seen.value(name, metric) for name in ("first", "second")] == [pytest.approx(each) for each in both], metric
    assert made.application(STARTED + 2.0, 0.0).value("f", Metric.THROUGHPUT) == pytest.approx(40)
    assert [made.committed(name) for name in ("first", "second")] == [10, 30]
    assert made.rows == 40
    assert made.latency_basis == {"first": Basis.DUE, "second": Basis.DUE}


def test_column_expressions_pass_on_what_comes_unless_they_explode_it(tmp_path):
    flow = Dataflow("f")
    lines = flow.source(records([{"value": "a"}], "value string"), load=constant(10, lasts="10s"), name="lines")
    shouted = lines.select({"value": "upper(value)"}, name="shout")
    shouted.select({"w": "explode(split(value, ''))"}, name="letters").key_by("w").count().sink(collect("out"))
    layout = lay_out(flow.graph)
    batch = read_batch("lines", line(0, 1.0, 1.0, source({"n": 0}, {"n": 10, "started": STARTED}, 10)), None)
    running = a_running(layout.segments[0], tmp_path, reads=("lines",), keyed=("count",))
    made = Telemetry(layout, [running], {"lines": [batch]}, 5.0)
    seen = made.operators(STARTED + 2.0, {}, cores=1.0)
    assert seen.value("shout", Metric.EMITTED_RATE) == seen.value("letters", Metric.ARRIVAL_RATE) == pytest.approx(10)
    assert not seen.reading("letters", Metric.EMITTED_RATE).known
    assert not seen.reading("count", Metric.ARRIVAL_RATE).known
