"""The walk of a fused region, without Spark: every form, every kind of edge, against plain Python."""

import re
import resource
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.chains import chain_of
from elastream.dataflow.graph import Graph
from elastream.errors import DataflowError
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.exits import EXIT, ORDER
from elastream.spark.worker.meter import MeterRow, merged
from elastream.spark.worker.runner import OperatorError, explain_failure
from elastream.spark.worker.walk import ENTRY, Walk, WorkerPaths, run_walk
from support.property_examples import examples
from support.walks import Under, walk_of

COLUMNS = {
    "n long": pa.schema([("n", pa.int64())]),
    "word string": pa.schema([("word", pa.string())]),
    "n long, square long": pa.schema([("n", pa.int64()), ("square", pa.int64())]),
    "parts array<long>": pa.schema([("parts", pa.list_(pa.int64()))]),
}
NUMBERS = COLUMNS["n long"]


def numbers_flow() -> tuple[Dataflow, Stream]:
    flow = Dataflow("numbers")
    return flow, flow.source(None)


class Ran:
    """What one task made of the numbers: rows by sink, and what the meter said."""

    def __init__(
        self,
        graph: Graph,
        rows: Iterable[int],
        composition: Composition | None = None,
        batch_rows: int = 7,
        arriving: Sequence[pa.Schema] = (NUMBERS,),
    ) -> None:
        rows = list(rows)
        code = CompositionCodec(graph).encode(composition or Composition.default(graph))
        batches = [
            pa.RecordBatch.from_pydict({"n": rows[at : at + batch_rows]}, schema=NUMBERS)
            for at in range(0, len(rows), batch_rows)
        ]
        walk = walk_of(graph, arriving, COLUMNS)
        counted: list[Any] = []
        results = list(run_walk(walk, Under(fixed=code), 3, batches, counted.extend))
        names = [exit.name for exit in walk.exits]
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for result in results:
            for row in result.to_pylist():
                if len(names) == 1:
                    self.rows[names[0]].append(row)
                else:
                    self.rows[names[row[EXIT]]].append(row[f"_{row[EXIT]}"])
        self.meter: Mapping[str, MeterRow] = {row.operator: row for row in merged(counted)}

    def values(self, sink: str = "sink") -> list[Any]:
        return [next(iter(row.values())) for row in self.rows[sink]]


def plus_one(n: int) -> int:
    return n + 1


def up_to(n: int) -> Iterable[int]:
    return range(n % 3)


def is_even(n: int) -> bool:
    return n % 2 == 0


def doubled_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.multiply(batch.column("n"), 2)], ["n"])


def odd_frame(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["n"] % 2 == 1]


def behind_the_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All records of the task but its first, and never more than two at once."""
    yield next(batches).slice(1)
    for batch in batches:
        yield from (batch.slice(at, 2) for at in range(0, batch.num_rows, 2))


# Names are left to `free_name`, so that the same form can stand in a chain twice.
FORMS: list[tuple[Callable[[Stream], Stream], Callable[[list[int]], list[int]]]] = [
    (lambda s: s.map(plus_one, returns="n long"), lambda rows: [n + 1 for n in rows]),
    (lambda s: s.flat_map(up_to, returns="n long"), lambda rows: [k for n in rows for k in range(n % 3)]),
    (lambda s: s.filter(is_even), lambda rows: [n for n in rows if n % 2 == 0]),
    (lambda s: s.map_arrow(doubled_batch, returns="n long"), lambda rows: [2 * n for n in rows]),
    (lambda s: s.map_pandas(odd_frame, returns="n long"), lambda rows: [n for n in rows if n % 2 == 1]),
    (lambda s: s.map_stream(behind_the_first, returns="n long"), lambda rows: rows[1:]),
]


@settings(max_examples=examples(150))
@given(chosen=st.lists(st.sampled_from(FORMS), min_size=1, max_size=6), rows=st.lists(st.integers(0, 99), max_size=40))
def test_a_chain_of_any_forms_gives_what_plain_python_gives(chosen, rows):
    flow, stream = numbers_flow()
    expected = rows
    for add, reference in chosen:
        stream = add(stream)
        expected = reference(expected)
    stream.sink(None)
    assert Ran(flow.graph, rows).values() == expected


@given(rows=st.lists(st.integers(-50, 50), max_size=60), batch_rows=st.integers(1, 20))
def test_branches_that_fan_out_and_in_again_lose_and_double_nothing(rows, batch_rows):
    flow, stream = numbers_flow()
    up = stream.map(plus_one, returns="n long", name="up")
    down = stream.map_arrow(doubled_batch, returns="n long", name="down")
    up.merge(down).filter(is_even, name="even").sink(None)
    ran = Ran(flow.graph, rows, batch_rows=batch_rows)
    expected = [n + 1 for n in rows] + [2 * n for n in rows]
    assert Counter(ran.values()) == Counter(n for n in expected if n % 2 == 0)


@given(rows=st.integers(0, 50), hands=st.integers(2, 5), batch_rows=st.integers(1, 9), arrow=st.booleans())
def test_round_robin_deals_in_turn_across_batches(rows, hands, batch_rows, arrow):
    flow, stream = numbers_flow()
    stream = stream.map_arrow(_same, returns="n long") if arrow else stream.map(_identity, returns="n long")
    for hand in range(hands):
        stream.deal().map(plus_one, returns="n long", name=f"hand{hand}").sink(None, name=f"sink{hand}")
    ran = Ran(flow.graph, range(rows), batch_rows=batch_rows)
    for hand in range(hands):
        assert ran.values(f"sink{hand}") == [n + 1 for n in range(rows) if n % hands == hand]


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _identity(n: int) -> int:
    return n


def a_choice() -> Graph:
    flow, stream = numbers_flow()
    choosing = stream.map({"one": plus_one, "none": _identity}, returns="n long", name="add").choice("way")
    choosing.map(lambda n: n * 10, returns="n long", name="tens").sink(None, name="left")
    choosing.map(lambda n: n * 100, returns="n long", name="hundreds").sink(None, name="right")
    return flow.graph


@pytest.mark.parametrize("alternate", ["one", "none"])
@pytest.mark.parametrize(("target", "sink", "factor"), [("tens", "left", 10), ("hundreds", "right", 100)])
def test_the_composition_chooses_the_alternate_and_the_edge(alternate, target, sink, factor):
    ran = Ran(a_choice(), range(20), Composition(1, {"add": alternate}, {"way": target}))
    assert ran.values(sink) == [(n + (alternate == "one")) * factor for n in range(20)]
    assert sum(map(len, ran.rows.values())) == 20


def test_branches_do_not_share_changes_to_dicts():
    def spoil(record: dict[str, int]) -> dict[str, int]:
        record["n"] = -1
        return record

    flow, stream = numbers_flow()
    pairs = stream.map(lambda n: {"square": n * n, "n": n}, returns="n long, square long", name="pairs")
    pairs.map(spoil, returns="n long, square long", name="spoil").sink(None, name="spoilt")
    pairs.filter(lambda record: record["n"] >= 0, name="kept").sink(None, name="whole")
    ran = Ran(flow.graph, range(10))
    assert ran.rows["spoilt"] == [{"n": -1, "square": n * n} for n in range(10)]
    assert ran.rows["whole"] == [{"n": n, "square": n * n} for n in range(10)]


def test_a_list_in_a_single_column_is_not_shared_between_branches():
    def empty(parts: list[int]) -> int:
        parts.clear()
        return 0

    flow, stream = numbers_flow()
    lists = stream.map(lambda n: [n, n], returns="parts array<long>", name="lists")
    lists.map(empty, returns="n long", name="empty").sink(None, name="zeros")
    lists.map(len, returns="n long", name="length").sink(None, name="lengths")
    assert Ran(flow.graph, range(5)).values("lengths") == [2] * 5


def test_missing_values_stay_missing():
    flow, stream = numbers_flow()
    stream.map(lambda n: None if n is None else n + 1, returns="n long", name="add").sink(None)
    assert Ran(flow.graph, [1, None, 3]).values() == [2, None, 4]  # type: ignore[list-item]


def test_the_meter_counts_rows_of_every_operator_and_of_the_stage():
    flow, stream = numbers_flow()
    stream.filter(is_even, name="even").flat_map(lambda n: [n] * 3, returns="n long", name="thrice").sink(None)
    meter = Ran(flow.graph, range(100)).meter
    assert {name: (row.rows_in, row.rows_out) for name, row in meter.items()} == {
        "source": (100, 100),
        "even": (100, 50),
        "thrice": (50, 150),
    }
    assert all(row.batch == 3 and row.segment == "source" and row.tasks == 1 for row in meter.values())
    assert all(row.busy >= 0 and row.first <= row.last for row in meter.values())


def waiting_flow(function: Callable[[int], Any], flat: bool = False) -> Graph:
    flow, stream = numbers_flow()
    add = stream.flat_map if flat else stream.map
    add(function, returns="n long", name="call", waits=True).sink(None)
    return flow.graph


def test_a_waiting_operator_runs_pool_width_calls_at_once():
    together = threading.Barrier(4, timeout=600)

    def call(n: int) -> int:
        together.wait()  # passes only when four calls are under way
        return n + 1

    ran = Ran(waiting_flow(call), range(8), Composition(1, parallelism={"call": 4}), batch_rows=8)
    assert ran.values() == list(range(1, 9))


def test_an_operator_that_waits_keeps_the_order_of_what_it_emits():
    ran = Ran(waiting_flow(lambda n: (n, -n), flat=True), range(30), Composition(1, parallelism={"call": 5}))
    assert ran.values() == [value for n in range(30) for value in (n, -n)]
    assert ran.meter["call"].rows_out == 60


def test_a_waiting_batch_form_is_cut_into_pool_width_parts():
    sizes: list[int] = []

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    flow, stream = numbers_flow()
    stream.map_arrow(call, returns="n long", name="call", waits=True).sink(None)
    ran = Ran(flow.graph, range(10), Composition(1, parallelism={"call": 3}), batch_rows=10)
    assert ran.values() == list(range(10))
    assert sorted(sizes) == [3, 3, 4]


FAILING: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "map": (
        lambda s: s.map(lambda n: 1 // (n - 4), returns="n long", name="f"),
        r"operator 'f' failed on the record 4: ZeroDivisionError: .*by zero",
    ),
    "an alternate": (
        lambda s: s.map({"good": lambda n: 1 // (n - 4), "fast": plus_one}, returns="n long", name="f"),
        r"operator 'f' \(alternate 'good'\) failed on the record 4",
    ),
    "arrow": (
        lambda s: s.map_arrow(lambda batch: batch.column("m"), returns="n long", name="f"),
        r"operator 'f' failed on a batch of 7 records that begins with \{'n': 0\}: KeyError",
    ),
    "arrow, a column missing": (
        lambda s: s.map_arrow(lambda batch: batch.rename_columns(["m"]), returns="n long", name="f"),
        r"operator 'f' failed on a batch .*the batch it returned has no column 'n' \(it has: m\)",
    ),
    "a value of another type": (
        lambda s: s.map(lambda n: "four" if n == 4 else n, returns="n long", name="f"),
        r"operator 'f' failed on the record 4: it returned 'four', which is not n int64",
    ),
    "a tuple for a row": (
        lambda s: s.flat_map(lambda n: [(n, n * n)], returns="n long, square long", name="f"),
        r"operator 'f' failed on the record 0: it returned \(0, 0\), which is not a dict of n int64, square int64",
    ),
    "a dict without a column": (
        lambda s: s.map(lambda n: {"n": n}, returns="n long, square long", name="f"),
        r"operator 'f' failed on the record 0: it returned \{'n': 0\}, which has no column 'square'",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failure_names_operator_alternate_and_record(case):
    add, sentence = FAILING[case]
    flow, stream = numbers_flow()
    add(stream).sink(None)
    with pytest.raises(OperatorError) as caught:
        Ran(flow.graph, range(10))
    spark_says = RuntimeError(
        f"[STREAM_FAILED] Query failed: Traceback\n  pickle.py\n{caught.value}\n\tat java.lang.Thread"
    )
    told = explain_failure(spark_says)
    assert re.search(sentence, told), told
    assert "\n" not in told


def test_the_end_of_the_process_that_plans_for_a_data_source_is_told():
    spark_says = RuntimeError("Broken pipe\n=== Streaming Query ===")
    frames = "\tat java.io.DataOutputStream.flush\n\tat org.apache.PythonStreamingSourceRunner.latestOffset(Runner.scala:1)"
    spark_says._cause = SimpleNamespace(_stackTrace=f"java.net.SocketException: Broken pipe\n{frames}")
    assert explain_failure(spark_says).startswith("the Python process ended in which the reader of a data source runs")
    spark_says._cause = SimpleNamespace(_stackTrace="java.net.SocketException: Broken pipe\n\tat Somewhere.else")
    assert explain_failure(spark_says) == "the query failed: Broken pipe"


def test_a_long_record_is_shown_in_part():
    flow, stream = numbers_flow()
    words = stream.map(lambda n: "x" * 5000, returns="word string", name="long")
    words.map(lambda word: 1 // 0, returns="n long", name="f").sink(None)
    with pytest.raises(OperatorError) as caught:
        Ran(flow.graph, [1])
    assert len(explain_failure(caught.value)) < 350


# -- what the meter books on whom ---------------------------------------------------------------------------------------


def metered(walk: Walk, rows: Sequence[int]) -> dict[str, MeterRow]:
    counted: list[Any] = []
    batch = pa.RecordBatch.from_pydict({"n": rows}, schema=NUMBERS)
    list(run_walk(walk, WorkerPaths(), 3, [batch], counted.extend))
    return {row.operator: row for row in merged(counted) if row.alternate}


def test_a_leading_operator_has_a_row_for_work_and_one_for_transport():
    flow, stream = numbers_flow()
    stream.map(lambda n: sum(range(20_000)) * 0 + n, returns="n long", name="add").sink(None)
    counted: list[Any] = []
    batch = pa.RecordBatch.from_pydict({"n": range(100)}, schema=NUMBERS)
    list(run_walk(replace(walk_of(flow.graph, (NUMBERS,), COLUMNS), lead="add"), WorkerPaths(), 3, [batch], counted.extend))
    transport, own = merged(counted)
    assert (transport.operator, transport.alternate, own.operator, own.alternate) == ("add", "", "add", "add")
    assert (transport.rows_in, own.rows_in, own.rows_out, own.tasks) == (100, 100, 100, 1)
    assert own.busy > transport.busy >= 0


def spin(n: int) -> int:
    subprocess.run([sys.executable, "-S", "-c", "sum(range(10_000_000))"], check=True)
    return n


def test_the_cpu_time_of_a_process_that_an_operator_runs_is_the_operators():
    flow, stream = numbers_flow()
    stream.map(spin, returns="n long", name="spin").sink(None)
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    found = metered(walk_of(flow.graph, (NUMBERS,), COLUMNS), [1, 2])
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began
    assert found["spin"].busy >= 0.99 * spent > 0.05


# -- what a region can be ----------------------------------------------------------------------------------------------


def test_column_expressions_behind_a_source_and_before_a_sink_stay_native():
    flow, stream = numbers_flow()
    added = stream.select({"n": "n + 1"}, name="early").map(plus_one, returns="n long", name="add")
    added.select({"n": "n * 2"}, name="late").sink(None)
    found = chain_of(flow.graph, flow.graph.order, ())
    assert [o.name for o in found.inlets[0].natives] == ["early"]
    assert [o.name for o in found.steps] == ["add"]
    assert [[o.name for o in outlet.natives] for outlet in found.outlets] == [["late"]]


def test_streams_of_different_columns_do_not_merge():
    flow, stream = numbers_flow()
    words = stream.map(str, returns="word string", name="words")
    stream.map(plus_one, returns="n long", name="add").merge(words).sink(None)
    with pytest.raises(
        DataflowError, match=r"'sink' merges streams with different columns: 'words' has word string|'add' has"
    ):
        walk_of(flow.graph, (NUMBERS,), COLUMNS)


def test_a_pull_that_stops_early_or_fails_is_one_call_a_task(tmp_path):
    def first_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise ValueError("no more")
        yield from ()

    flow, stream = numbers_flow()
    stream.map_stream({"first": first_batch, "failing": failing}, returns="n long", name="pull").sink(None)
    assert Ran(flow.graph, range(20)).values() == list(range(7))
    assert Ran(flow.graph, range(20)).meter["pull"].rows_in == 20
    with pytest.raises(OperatorError, match="no more"):
        Ran(flow.graph, range(20), Composition(1, {"pull": "failing"}))


def test_a_pull_that_emits_no_batches_is_named():
    flow, stream = numbers_flow()
    stream.map_stream(lambda batches: [7], returns="n long", name="pull").sink(None)
    with pytest.raises(OperatorError, match=r"pull.*it emitted a int, not a pyarrow.RecordBatch"):
        Ran(flow.graph, range(3))


def test_records_for_a_signal_stay_in_the_walk_and_are_told_once_a_task():
    flow, stream = numbers_flow()
    odd = stream.filter(lambda n: n % 2 == 1, name="odd")
    odd.signal("most", "max(n)")
    odd.signal("seen", "count()")
    stream.sink(None)
    walk, told = walk_of(flow.graph, (NUMBERS,), COLUMNS), list[Any]()
    batches = [pa.RecordBatch.from_pydict({"n": [n, n + 1]}, schema=NUMBERS) for n in range(0, 10, 2)]
    left = list(run_walk(walk, WorkerPaths(), 3, batches, lambda _: None, told.extend, 5))
    assert [exit.name for exit in walk.exits] == ["sink"]
    assert sum(batch.num_rows for batch in left) == 10
    assert sorted(told) == [("source", 3, "most", 5, 5, 9.0), ("source", 3, "seen", 5, 5, 0.0)]
    told.clear()
    list(run_walk(walk, WorkerPaths(), 4, [batches[0].slice(0, 1)], lambda _: None, told.extend, 5))
    assert told == []


def test_rows_carry_their_position_where_order_matters():
    flow, stream = numbers_flow()
    stream.window(count=2).group_by("n").apply(lambda key, rows: rows, returns="n long", name="pairs").sink(None)
    walk = walk_of(flow.graph, (NUMBERS,), COLUMNS)
    batches = [pa.RecordBatch.from_pydict({"n": [7, 8]}, schema=NUMBERS)] * 2
    rows = [
        row for batch in run_walk(walk, WorkerPaths(), 0, batches, lambda _: None, None, 3) for row in batch.to_pylist()
    ]
    assert [row["n"] for row in rows] == [7, 8, 7, 8]
    assert [row[ORDER] - 3 * 2**40 for row in rows] == [0, 1, 2, 3]


def test_one_task_that_reads_two_entries_in_turn_keeps_them_apart():
    flow = Dataflow("two")
    left, right = flow.source(None, name="left"), flow.source(None, name="right")
    left.sink(None, name="lefts")
    right.map(plus_one, returns="n long", name="up").sink(None, name="rights")
    walk = walk_of(flow.graph, (NUMBERS, NUMBERS), COLUMNS)
    entries = [0, 0, 1, 0, 1, 1]
    structs = [
        pa.array([{"n": n} if entry == number else None for n, entry in enumerate(entries)], pa.struct(list(NUMBERS)))
        for number in (0, 1)
    ]
    batch = pa.RecordBatch.from_arrays([pa.array(entries, pa.int32()), *structs], names=[ENTRY, "_0", "_1"])
    rows = [row for each in run_walk(walk, WorkerPaths(), 0, [batch], lambda _: None) for row in each.to_pylist()]
    assert [row["_0"]["n"] for row in rows if row[EXIT] == 0] == [0, 1, 3]
    assert [row["_1"]["n"] for row in rows if row[EXIT] == 1] == [3, 5, 6]
