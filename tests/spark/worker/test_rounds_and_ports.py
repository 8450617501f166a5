"""Loops and switches in a walk, without Spark: results against plain Python, and what happens to failing records."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.functions import Loop, Receiver
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable
from elastream.spark.telemetry.left_out import read_left_out
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.exits import EXIT
from elastream.spark.worker.runner import OperatorError, explain_failure
from elastream.spark.worker.walk import run_walk
from support.property_examples import examples
from support.walks import Under, in_use, walk_of

NUMBERS = pa.schema([("n", pa.int64())])
PAIRS = pa.schema([("n", pa.int64()), ("m", pa.int64())])
COLUMNS = {"n long": NUMBERS, "n long, m long": PAIRS}
BATCH_ROWS = 7


def source(flow: Dataflow | None = None) -> Stream:
    return (flow or Dataflow("numbers")).source(None)


def run(
    graph: Graph, rows: Iterable[Any], paths: Under | None = None, arriving: pa.Schema = NUMBERS
) -> tuple[dict[str, list[Any]], dict[str, tuple[int, int]]]:
    """Return the rows by sink, and rows in and out by operator."""
    table = pa.Table.from_pylist([row if isinstance(row, dict) else {"n": row} for row in rows], schema=arriving)
    walk, counted = walk_of(graph, [arriving], COLUMNS), list[Any]()
    names = [each.name for each in walk.exits]
    sinks: dict[str, list[Any]] = {name: [] for name in names}
    for result in run_walk(walk, paths or Under(), 3, table.to_batches(max_chunksize=BATCH_ROWS), counted.extend):
        for row in result.to_pylist():
            if len(names) > 1:
                sinks[names[row[EXIT]]].append(row[f"_{row[EXIT]}"])
            else:
                sinks[names[0]].append(row)
    return sinks, {row[2]: (row[4], row[5]) for row in counted}


def values(rows: list[dict[str, Any]]) -> list[int]:
    return [row["n"] for row in rows]


# -- loops -------------------------------------------------------------------------------------------------------------


def collatz(n: int) -> int:
    return n // 2 if n % 2 == 0 else 3 * n + 1


def rounds_to_one(n: int) -> int:
    return n if n == 1 else rounds_to_one(collatz(n))


def halves(n: int) -> list[int]:
    """Return two parts of a number, and nothing of 0."""
    return [n // 2, n - n // 2] if n else []


def halved(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.divide(batch["n"], 2)], ["n"])


def at_most_one(n: int) -> bool:
    return n <= 1


BELOW_TWO: dict[str, Callable[[Stream], Stream]] = {
    "map": lambda s: s.map(Loop(lambda n: n // 2, at_most_one, 10), returns="n long"),
    "flat_map": lambda s: s.flat_map(Loop(lambda n: [n // 2], at_most_one, 10), returns="n long"),
    "arrow": lambda s: s.map_arrow(Loop(halved, lambda batch: pc.less(batch["n"], 2), 10), returns="n long"),
    "pandas": lambda s: s.map_pandas(Loop(lambda frame: frame // 2, lambda frame: frame["n"] < 2, 10), returns="n long"),
    "threads": lambda s: s.map(Loop(lambda n: n // 2, at_most_one, 10), returns="n long", waits=True),
}


@pytest.mark.parametrize("form", BELOW_TWO)
@settings(max_examples=examples(20))
@given(rows=st.lists(st.integers(0, 500), max_size=30))
def test_each_record_makes_as_many_rounds_as_it_needs(form, rows):
    def reference(n: int) -> int:
        return n if n < 2 else reference(n // 2)

    stream = BELOW_TWO[form](source())
    stream.sink(None)
    sinks, counts = run(stream._flow.graph, rows)
    assert sorted(values(sinks["sink"])) == sorted(reference(n // 2) for n in rows)
    if rows:
        assert counts[next(name for name in counts if name != "source")] == (len(rows), len(rows))


def test_a_loop_may_end_because_no_record_is_left():
    stream = source().flat_map(Loop(halves, lambda n: n == 1, 50), returns="n long", name="parts")
    stream.map(lambda n: n * 10, returns="n long", name="tens").sink(None)
    sinks, counts = run(stream._flow.graph, range(20))
    assert values(sinks["sink"]) == [10] * sum(range(20))
    assert counts["parts"] == (20, sum(range(20)))


def test_a_loop_of_records_with_columns_gets_messages():
    def step(row: dict[str, int], add: int) -> dict[str, int]:
        return {"n": row["n"] - 1, "m": row["m"] + add}

    looped = Loop(Receiver(step, 3), lambda row: row["n"] == 0, 9)
    stream = source().map(looped, returns="n long, m long", name="loop")
    stream.sink(None)
    sinks, _ = run(stream._flow.graph, [{"n": n, "m": 0} for n in range(1, 9)], arriving=PAIRS)
    assert sorted(row["m"] for row in sinks["sink"]) == [3 * n for n in range(1, 9)]


@pytest.mark.parametrize("form", ["map", "arrow", "pandas"])
def test_a_record_that_is_not_finished_in_time_fails_by_name(form):
    steps = {"map": lambda n: n + 2, "arrow": lambda batch: batch, "pandas": lambda frame: frame + 2}
    until = {
        "map": lambda n: n < 5,
        "arrow": lambda batch: [False] * batch.num_rows,
        "pandas": lambda frame: frame["n"] < 5,
    }
    add = {"map": Stream.map, "arrow": Stream.map_arrow, "pandas": Stream.map_pandas}[form]
    stream = add(source(), Loop(steps[form], until[form], 3), returns="n long", name="loop")
    stream.sink(None)
    with pytest.raises(OperatorError) as failed:
        run(stream._flow.graph, [4])
    assert explain_failure(failed.value).startswith("operator 'loop' failed on the record ")
    assert explain_failure(failed.value).endswith(": it is not finished after 3 rounds")


def raising_at_three(n: int) -> bool:
    if n == 3:
        raise KeyError("three")
    return n < 3


@pytest.mark.parametrize("form", ["map", "arrow"])
@pytest.mark.parametrize("until", ["late", "raises"])
def test_records_that_a_loop_fails_on_are_left_out(form, until, tmp_path):
    def of_batch(batch: pa.RecordBatch) -> list[bool]:
        return list(map(raising_at_three, batch["n"].to_pylist()))

    loops: dict[Any, Any] = {
        ("map", "late"): Loop(lambda n: n - 1, lambda n: n < 3, 4),
        ("map", "raises"): Loop(lambda n: n - 1, raising_at_three, 9),
        ("arrow", "late"): Loop(minus_one, lambda batch: pc.less(batch["n"], 3), 4),
        ("arrow", "raises"): Loop(minus_one, of_batch, 9),
    }
    add = Stream.map if form == "map" else Stream.map_arrow
    stream = add(source(), loops[form, until], returns="n long", name="loop", on_error="dead_letter")
    stream.sink(None)
    sinks, counts = run(stream._flow.graph, range(10), Under(left_out=tmp_path / "left out"))
    expected = [n - 1 for n in range(4)] + ([2, 2, 2] if until == "late" else [])
    assert sorted(values(sinks["sink"])) == sorted(expected)
    assert counts["loop"] == (10, len(expected))
    left_out = read_left_out("source", 3, tmp_path / "left out" / "3")
    assert left_out.counts == {"loop": 10 - len(expected)}
    assert {"finished" in each["error"] or "three" in each["error"] for each in left_out.letters} == {True}


def minus_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.subtract(batch["n"], 1)], ["n"])


def test_until_of_a_batch_answers_for_each_record():
    stream = source().map_arrow(Loop(lambda batch: batch, lambda batch: [True], 3), returns="n long", name="loop")
    stream.sink(None)
    with pytest.raises(OperatorError) as failed:
        run(stream._flow.graph, [1, 2])
    assert "`until` returned 1 truths for 2 records" in explain_failure(failed.value)


# -- switches ----------------------------------------------------------------------------------------------------------


def by_rest(n: int) -> str:
    return ("none", "one", "two")[n % 3]


@settings(max_examples=examples(50))
@given(rows=st.lists(st.integers(-20, 20), max_size=40), arrow=st.booleans())
def test_each_port_gets_its_records_in_order(rows, arrow):
    calls = []

    def port(n: int) -> str:
        calls.append(n)
        return by_rest(n)

    flow = Dataflow("numbers")
    stream = source(flow).map_arrow(lambda batch: batch, returns="n long") if arrow else source(flow)
    ports = stream.switch(port, ["none", "one", "two"], name="way")
    ports["one"].sink(None, name="ones")
    ports["two"].map(lambda n: -n, returns="n long", name="negative").sink(None, name="twos")
    sinks, counts = run(flow.graph, rows)
    assert values(sinks["ones"]) == [n for n in rows if n % 3 == 1]
    assert values(sinks["twos"]) == [-n for n in rows if n % 3 == 2]
    assert calls == rows
    if rows:
        assert counts["way"] == (len(rows), len(rows))
        assert counts["way_two"] == (len(rows), len(sinks["twos"]))


def test_ports_of_a_switch_may_have_switches_and_merge_again():
    def outer(row: dict[str, int]) -> str:
        return "even" if row["n"] % 2 == 0 else "odd"

    flow = Dataflow("numbers")
    ports = source(flow).switch(outer, ["even", "odd"], name="outer")
    inner = ports["even"].switch(lambda row: by_rest(row["n"]), ["none", "one", "two"], name="inner")
    inner["none"].merge(ports["odd"]).sink(None)
    sinks, _ = run(flow.graph, [{"n": n, "m": -n} for n in range(30)], arriving=PAIRS)
    expected = [{"n": n, "m": -n} for n in range(30) if n % 2 or n % 3 == 0]
    assert sorted(sinks["sink"], key=lambda row: row["n"]) == expected


def misnaming(n: int) -> Any:
    return "three" if n == 3 else "rest" if n != 5 else None


def test_a_record_of_an_unknown_port_fails_by_name_or_is_left_out(tmp_path):
    for on_error in ("fail", "skip"):
        flow = Dataflow("numbers")
        source(flow).switch(misnaming, ["rest"], name="way", on_error=on_error)["rest"].sink(None)
        if on_error == "fail":
            with pytest.raises(OperatorError) as failed:
                run(flow.graph, range(8))
            assert explain_failure(failed.value) == (
                "operator 'way' failed on the record 3: ValueError: it names the port 'three' (there are: rest)"
            )
            continue
        sinks, counts = run(flow.graph, range(8), Under(left_out=tmp_path))
        assert values(sinks["sink"]) == [0, 1, 2, 4, 6, 7]
        assert counts["way"] == (8, 6)


@pytest.mark.parametrize("kind", ["switch", "loop"])
def test_a_key_table_chooses_among_switches_and_loops(kind, tmp_path: Path):
    flow = Dataflow("numbers")
    if kind == "switch":
        ways = {"all": lambda n: "in", "none": lambda n: "out"}
        stream = source(flow).switch(ways, ["in", "out"], name="f", select_by="n")["in"]
    else:
        down = {"all": Loop(lambda n: n - 1, lambda n: n <= 0, 99), "none": Loop(lambda n: n, lambda n: True, 1)}
        stream = source(flow).map(down, returns="n long", name="f", select_by="n")
    stream.sink(None)
    graph = flow.graph
    table = KeyTable("numbers", "f", ("n",), {(n,): "none" for n in range(0, 20, 2)})
    code = CompositionCodec(graph).tables["f"].weight
    sinks, _ = run(graph, range(20), Under(fixed=code, tables=in_use(tmp_path, table)))
    odd = [n for n in range(20) if n % 2]
    expected = odd if kind == "switch" else [0] * len(odd) + list(range(0, 20, 2))
    assert sorted(values(sinks["sink"])) == sorted(expected)


def test_a_frame_of_a_switch_keeps_its_times(tmp_path: Path):
    when = pd.Timestamp("2026-01-01", tz="UTC")
    schema = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    flow = Dataflow("numbers")
    source(flow).switch(lambda row: "now", ["now"], name="way")["now"].sink(None)
    sinks, _ = run(flow.graph, [{"n": 1, "at": when}], arriving=schema)
    assert sinks["sink"] == [{"n": 1, "at": when}]


def test_a_result_of_a_loop_outside_its_schema_fails_or_is_left_out(tmp_path: Path):
    for on_error in ("fail", "skip"):
        looped = Loop(lambda n: n - 1 if n != 4 else "four", lambda n: n in (0, "four"), 9)
        stream = source().map(looped, returns="n long", name="loop", on_error=on_error)
        stream.sink(None)
        if on_error == "fail":
            with pytest.raises(OperatorError) as failed:
                run(stream._flow.graph, range(1, 8))
            assert "operator 'loop' failed on the record 'four': it returned 'four'" in explain_failure(failed.value)
            continue
        sinks, counts = run(stream._flow.graph, range(1, 8), Under(left_out=tmp_path))
        assert (values(sinks["sink"]), counts["loop"]) == ([0, 0, 0], (7, 3))
