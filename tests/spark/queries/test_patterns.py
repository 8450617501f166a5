"""Windows, joins, zips, pulls and signals as running queries: results against plain Python, also after a restart."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import setpoints
from pyspark.sql import SparkSession
from test_compile import Run

from elastream.model.endpoints import collect, records
from elastream.model.flow import Dataflow, Stream
from elastream.model.observation import Composition
from elastream.spark.dataflow.sinks import tables_collected
from elastream.spark.telemetry.signals import DomainSignals
from elastream.workload import constant

pytestmark = pytest.mark.spark

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, n long, at timestamp, last boolean"


@pytest.fixture
def spark(local_spark: SparkSession) -> SparkSession:
    return local_spark


def row(n: int) -> dict[str, Any]:
    return {"k": "abc"[n % 3], "n": n, "at": BEGIN + timedelta(seconds=n / 10), "last": n % 17 == 0}


def numbered(flow: Dataflow, total: int, seconds: float = 2.0, name: str = "source") -> Stream:
    """`total` records that differ, evenly within `seconds`."""
    rows = records([row(n) for n in range(total)], SCHEMA)
    return flow.source(rows, load=constant(total / seconds, seconds), name=name)


def by_key(total: int) -> dict[str, list[int]]:
    found = defaultdict(list)
    for n in range(total):
        found[row(n)["k"]].append(n)
    return found


def given(name: str) -> list[dict[str, Any]]:
    """The rows that have been collected under `name` so far."""
    return list(tables_collected([name])[name].to_pylist())


def interrupted(run: Run, **least: int) -> None:
    """Stop once so many rows have been collected under each name, in the middle of a batch as likely as not, and go on."""
    run.until(lambda: all(len(given(name)) >= rows for name, rows in least.items()))
    for each in run.running:
        each.query.stop()
    run.resume(Composition.default(run.flow.graph))


def until_there(run: Run, **expected: Sequence[Any]) -> None:
    """Wait until as many rows as are expected have been collected under each name, stop, and compare them in any order."""
    run.until(lambda: all(len(given(name)) >= len(rows) for name, rows in expected.items()))
    run.stop()
    for name, rows in expected.items():
        assert sorted(given(name), key=str) == sorted(rows, key=str)


def whole(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "numbers": [rows.n.tolist()]})


def both(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "left": [left.n.tolist()], "right": [right.n.tolist()]})


def spans(total: int, length: float, step: float, late: float) -> dict[tuple[str, datetime], list[int]]:
    """Numbers by key and window of time, of the windows that are complete when all records have come."""
    found = defaultdict(list)
    watermark = row(total - 1)["at"] - timedelta(seconds=late)
    for n in range(total):
        at = row(n)["at"]
        start = BEGIN + (at - BEGIN) // timedelta(seconds=step) * timedelta(seconds=step)
        while start + timedelta(seconds=length) > at:
            if start + timedelta(seconds=length) <= watermark:
                found[row(n)["k"], start].append(n)
            start -= timedelta(seconds=step)
    return found


def test_windows_of_time_give_aggregates_functions_and_joins_what_plain_python_gives(spark, tmp_path):
    flow = Dataflow("timely")
    source, total = numbered(flow, 400), 400
    plain = source.durable().window(seconds=5, by="at", late=1)
    plain.group_by("k").aggregate({"total": "sum(n)", "most": "max(n)"}).sink(collect("sums"), name="sums")
    sliding = source.durable().window(seconds="4s", every="2s", by="at", late="1s").group_by("k")
    sliding.apply(whole, returns="k string, numbers array<long>").sink(collect("lists"), name="lists")
    run = Run.start(spark, flow, tmp_path)
    sums = [
        {"k": k, "window_start": start, "window_end": start + timedelta(seconds=5), "total": sum(ns), "most": max(ns)}
        for (k, start), ns in spans(total, 5, 5, 1).items()
    ]
    lists = [{"k": k, "numbers": ns} for (k, _), ns in spans(total, 4, 2, 1).items()]
    interrupted(run, sums=6, lists=6)
    until_there(run, sums=sums, lists=lists)


def test_windows_of_count_and_landmarks_go_on_where_they_were_after_a_restart(spark, tmp_path):
    flow, total = Dataflow("counted"), 600
    source = numbered(flow, total, 4.0)
    sliding = source.durable().window(count=7, every=3).group_by("k")
    sliding.apply(whole, returns="k string, numbers array<long>").sink(collect("counts"), name="counts")
    marked = source.durable().window(landmark="last").group_by("k")
    marked.apply(whole, returns="k string, numbers array<long>").sink(collect("marks"), name="marks")
    counts = [
        {"k": k, "numbers": ns[at : at + 7]} for k, ns in by_key(total).items() for at in range(0, len(ns) - 6, 3)
    ]  # fmt: skip
    marks = []
    for k, ns in by_key(total).items():
        window: list[int] = []
        for n in ns:
            window.append(n)
            if row(n)["last"]:
                marks.append({"k": k, "numbers": window})
                window = []
    run = Run.start(spark, flow, tmp_path)
    interrupted(run, counts=20, marks=5)
    until_there(run, counts=counts, marks=marks)


def renamed(value: dict[str, Any]) -> dict[str, Any]:
    return {"m": value["n"] * 10}


def only(value: dict[str, Any]) -> dict[str, Any]:
    return {"n": value["n"]}


def third(value: dict[str, Any]) -> bool:
    return value["n"] % 3 == 0


def test_a_zip_puts_the_nth_records_of_two_streams_together_also_after_a_restart(spark, tmp_path):
    flow, total = Dataflow("zipped"), 900
    source = numbered(flow, total, 3.0)
    tens = numbered(flow, total, 3.0, name="other").map(renamed, returns="m long").sequential()
    source.filter(third).map(only, returns="n long").sequential().zip(tens).sink(collect("pairs"))
    run = Run.start(spark, flow, tmp_path)
    interrupted(run, pairs=30)
    pairs = [{"n": 3 * n, "m": 10 * n} for n in range(total // 3)]
    until_there(run, pairs=pairs)


def test_a_join_of_windows_waits_for_both_sides_and_gives_each_window_once(spark, tmp_path):
    flow, total = Dataflow("joined"), 400
    left, right = numbered(flow, total), numbered(flow, total // 2, 3.0, name="slow")
    schema = "k string, left array<long>, right array<long>"
    timed = left.durable().window(seconds=4, by="at").join(right.durable(), "k", both, returns=schema)
    timed.sink(collect("timed"), name="timed")
    counted = left.durable().window(count=5).join(right.durable(), "k", both, returns=schema, name="pairs")
    counted.sink(collect("counted"), name="counted")
    run = Run.start(spark, flow, tmp_path)
    of_left, of_right = spans(total, 4, 4, 0), spans(total // 2, 4, 4, 0)
    windows = [{"k": k, "left": of_left[k, start], "right": ns} for (k, start), ns in of_right.items()]
    lefts, rights = by_key(total), by_key(total // 2)
    pairs = [
        {"k": k, "left": lefts[k][at : at + 5], "right": rights[k][at : at + 5]}
        for k in rights
        for at in range(0, len(rights[k]) - 4, 5)
    ]
    interrupted(run, timed=3, counted=10)
    until_there(run, timed=windows, counted=pairs)


def halves(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each record with the one before it in its task."""
    before = None
    for batch in batches:
        numbers = batch.column("n").to_pylist()
        yield pa.RecordBatch.from_pydict({"n": numbers, "before": [before, *numbers[:-1]]})
        before = numbers[-1]


def test_a_pull_runs_once_a_task_in_order_and_signals_tell_of_each_committed_batch(spark, tmp_path):
    flow, total = Dataflow("pulled"), 3000
    stream = numbered(flow, total, 2.0).map_stream(halves, returns="n long, before long").sequential()
    stream.sink(collect("pulled"))
    stream.signal("most", "max(n)")
    stream.durable().map(only, returns="n long").signal("seen", "count()")
    run = Run.start(spark, flow, tmp_path, width=3)
    run.finish(total)
    rows = given("pulled")
    assert [each["n"] for each in rows] == list(range(total))
    broken = [each["n"] for each in rows if each["before"] != each["n"] - 1]
    told = run.running[0].meter.drain_signals()
    most = {batch: value for segment, batch, signal, _, _, value in told if signal == "most"}
    assert len(broken) == len(most)  # one task a batch, which begins anew
    assert sorted(most.values()) == [n - 1 for n in broken[1:]] + [total - 1]
    assert sum(count for _, _, signal, _, count, _ in told if signal == "seen") == total
    assert DomainSignals(flow.graph).newest == {}


def test_the_example_of_set_points_gives_what_its_plain_loops_give(spark, tmp_path):
    readings, wanted = list(setpoints.measured(8, 20)), list(setpoints.wanted(8))
    off, swings = setpoints.expected(readings, wanted)
    run = Run.start(spark, setpoints.dataflow(readings, wanted, tmp_path, 2.0), tmp_path)
    run.until(lambda: [len(each) for each in setpoints.found(tmp_path)] == [len(off), len(swings)])
    run.stop()
    assert setpoints.found(tmp_path) == (off, swings)
