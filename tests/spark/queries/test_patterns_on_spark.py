"""Windows, joins, zips, pulls and signals as running queries: results against plain Python, also after a restart."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import setpoints
from pyspark.sql import SparkSession
from test_compile import Run

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.endpoints import collect, files, records
from elastream.loads import constant
from elastream.spark.dataflow.sinks import tables_collected

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, n long, at timestamp, last boolean"
LISTS = "k string, numbers array<long>"
SIDES = "k string, left array<long>, right array<long>"


@pytest.fixture
def spark(local_spark: SparkSession) -> SparkSession:
    return local_spark


def row(n: int) -> dict[str, Any]:
    return {"k": "abc"[n % 3], "n": n, "at": BEGIN + timedelta(seconds=n / 10), "last": n % 17 == 0}


def dropped(folder: Path, *numbers: int) -> str:
    """The folder, with a file of the records from the first number to the second (exclusive), if they are given."""
    folder.mkdir(exist_ok=True)
    if numbers:
        hidden = folder / f".{numbers[0]}"
        pq.write_table(pa.Table.from_pylist([row(n) for n in range(*numbers)]), hidden)
        hidden.rename(folder / f"{numbers[0]}.parquet")
    return str(folder)


def by_key(total: int) -> dict[str, list[int]]:
    found = defaultdict(list)
    for n in range(total):
        found[row(n)["k"]].append(n)
    return found


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


def given(name: str) -> list[dict[str, Any]]:
    """The rows that have been collected under `name` so far."""
    return list(tables_collected([name])[name].to_pylist())


def until_there(run: Run, expected: dict[str, Sequence[Any]]) -> None:
    """Wait until as many rows as are expected have been collected under each name, and compare them in any order."""
    run.until(lambda: all(len(given(name)) >= len(rows) for name, rows in expected.items()))
    for name, rows in expected.items():
        assert sorted(given(name), key=str) == sorted(rows, key=str)


def restarted(run: Run) -> None:
    """Stop the queries and let them go on from their checkpoints."""
    run.stop()
    run.resume(Composition.default(run.flow.graph))


def whole(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "numbers": [rows.n.tolist()]})


def both(key: tuple[Any, ...], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [key[0]], "left": [left.n.tolist()], "right": [right.n.tolist()]})


def test_windows_give_what_plain_python_gives_before_and_after_a_restart(spark, tmp_path):
    flow = Dataflow("windows")
    source = flow.source(files(dropped(tmp_path / "in"), SCHEMA))
    plain = source.durable().window(seconds=5, by="at", late=1).group_by("k")
    plain.aggregate({"total": "sum(n)", "most": "max(n)"}).sink(collect("sums"), name="sums")
    counted = source.durable().window(count=7, every=3).group_by("k")
    counted.apply(whole, returns=LISTS, name="counted").sink(collect("counts"), name="counts")

    def expected(total: int) -> dict[str, Sequence[Any]]:
        return {
            "sums": [
                {
                    "k": k,
                    "window_start": start,
                    "window_end": start + timedelta(seconds=5),
                    "total": sum(ns),
                    "most": ns[-1],
                }
                for (k, start), ns in spans(total, 5, 5, 1).items()
            ],
            "counts": [
                {"k": k, "numbers": ns[at : at + 7]} for k, ns in by_key(total).items() for at in range(0, len(ns) - 6, 3)
            ],
        }

    run = Run.start(spark, flow, tmp_path)
    dropped(tmp_path / "in", 0, 100)
    until_there(run, expected(100))
    restarted(run)
    dropped(tmp_path / "in", 100, 300)
    until_there(run, expected(300))
    run.stop()


def known(value: dict[str, Any]) -> bool:
    return value["n"] >= 0


@pytest.mark.slow
def test_joins_of_windows_wait_for_both_sides_and_give_each_window_once(spark, tmp_path):
    flow = Dataflow("joined")
    left = flow.source(files(dropped(tmp_path / "left"), SCHEMA), name="left")
    right = flow.source(files(dropped(tmp_path / "right"), SCHEMA), name="right")
    timed = left.durable().window(seconds=4, by="at").join(right.durable(), "k", both, returns=SIDES, name="timed")
    timed.sink(collect("timed"), name="times")
    kept = left.durable().filter(known, name="known").select({"k": "k", "n": "n + 0", "at": "at"})
    counted = kept.window(count=5).join(right.durable(), "k", both, returns=SIDES, name="counted")
    counted.sink(collect("counted"), name="counts")

    def expected(lefts: int, rights: int) -> dict[str, Sequence[Any]]:
        of_left, of_right, least = by_key(lefts), by_key(rights), min(lefts, rights)
        return {
            "timed": [{"k": k, "left": ns, "right": ns} for (k, _), ns in spans(least, 4, 4, 0).items()],
            "counted": [
                {"k": k, "left": of_left[k][at : at + 5], "right": of_right[k][at : at + 5]}
                for k in of_right
                for at in range(0, min(len(of_left[k]), len(of_right[k])) - 4, 5)
            ],
        }

    run = Run.start(spark, flow, tmp_path)
    dropped(tmp_path / "left", 0, 200)
    dropped(tmp_path / "right", 0, 100)
    until_there(run, expected(200, 100))
    restarted(run)
    dropped(tmp_path / "right", 100, 260)
    dropped(tmp_path / "left", 200, 240)
    until_there(run, expected(240, 260))
    run.stop()


def renamed(value: dict[str, Any]) -> int:
    return value["n"] * 10


def only(value: dict[str, Any]) -> int:
    return value["n"]


def third(value: dict[str, Any]) -> bool:
    return value["n"] % 3 == 0


@pytest.mark.slow
def test_a_zip_pairs_the_nth_records_of_two_streams_across_a_restart(spark, tmp_path):
    flow = Dataflow("zipped")
    source = flow.source(files(dropped(tmp_path / "thirds"), SCHEMA), name="thirds")
    tens = flow.source(files(dropped(tmp_path / "tens"), SCHEMA), name="tens").map(renamed, returns="m long").sequential()
    zipped = source.filter(third).map(only, returns="n long").sequential().zip(tens)
    zipped.sink(collect("pairs"))

    def expected(total: int) -> dict[str, Sequence[Any]]:
        return {"pairs": [{"n": 3 * n, "m": 10 * n} for n in range(total)]}

    run = Run.start(spark, flow, tmp_path)
    dropped(tmp_path / "thirds", 0, 301)
    dropped(tmp_path / "tens", 0, 40)
    until_there(run, expected(40))
    restarted(run)
    dropped(tmp_path / "tens", 40, 300)
    until_there(run, expected(101))
    run.stop()


def numbered(flow: Dataflow, total: int, seconds: float = 2.0) -> Stream:
    """`total` records that differ, evenly within `seconds`."""
    return flow.source(records([row(n) for n in range(total)], SCHEMA), load=constant(total / seconds, seconds))


def with_the_one_before(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each record with the one before it in its task."""
    before = None
    for batch in batches:
        numbers = batch.column("n").to_pylist()
        yield pa.RecordBatch.from_pydict({"n": numbers, "before": [before, *numbers[:-1]]})
        before = numbers[-1]


@pytest.mark.slow
def test_a_pull_runs_once_a_task_in_order_and_signals_tell_of_each_batch(spark, tmp_path):
    flow, total = Dataflow("pulled"), 3000
    stream = numbered(flow, total).map_stream(with_the_one_before, returns="n long, before long").sequential()
    stream.sink(collect("pulled"))
    stream.signal("most", "max(n)")
    stream.durable().map(only, returns="n long").signal("seen", "count()")
    run = Run.start(spark, flow, tmp_path, width=3)
    run.finish(total)
    rows = given("pulled")
    assert [each["n"] for each in rows] == list(range(total))
    first_of_tasks = [each["n"] for each in rows if each["before"] != each["n"] - 1]
    told = run.running[0].meter.drain_signals()
    most = [value for _, _, signal, _, _, value in sorted(told) if signal == "most"]
    assert most == [*(n - 1 for n in first_of_tasks[1:]), total - 1]  # one task a batch, which begins anew
    assert sum(count for _, _, signal, _, count, _ in told if signal == "seen") == total


@pytest.mark.slow
def test_the_example_of_set_points_gives_what_its_plain_loops_give(spark, tmp_path):
    readings, wanted = list(setpoints.measured(8, 20)), list(setpoints.wanted(8))
    off, swings = setpoints.expected(readings, wanted)
    run = Run.start(spark, setpoints.dataflow(readings, wanted, tmp_path, 2.0), tmp_path)

    found: list[Any] = []  # as it was then: a batch that is stopped may leave the half of a file

    def there() -> bool:
        try:
            found[:] = setpoints.found(tmp_path)
        except pa.ArrowInvalid:
            return False  # a file is being written
        return [len(each) for each in found] == [len(off), len(swings)]

    run.until(there)
    run.stop()
    assert tuple(found) == (off, swings)
