"""Records on which a function raises, without Spark: what goes on without them, what is counted, and what tasks write."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable
from elastream.errors import DataflowError
from elastream.spark.telemetry.left_out import read_left_out
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.left_out import MAX_LETTERS, LeftOut
from elastream.spark.worker.table_lookup import TIMED_RECORDS
from elastream.spark.worker.walk import Walk, run_walk
from support.property_examples import examples
from support.walks import Under, in_use, walk_of

COLUMNS = {"n long": pa.schema([("n", pa.int64())]), "n long, m long": pa.schema([("n", pa.int64()), ("m", pa.int64())])}
NUMBERS = COLUMNS["n long"]


def thirds(n: int) -> int:
    """Raises on multiples of three."""
    if n % 3 == 0:
        raise ValueError(f"{n} is a multiple of three")
    return n


def stopping(n: int) -> int:
    """The same, as an iterator that has ended does."""
    return n if n % 3 else next(iter(()))


def halfway(n: int) -> Iterator[int]:
    """Raises on multiples of three when it has emitted them."""
    yield n
    thirds(n)


def misfitting(n: int) -> Any:
    """Gives a text for multiples of three."""
    return n if n % 3 else "three"


def in_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.equal(pc.subtract(batch["n"], pc.multiply(pc.divide(batch["n"], 3), 3)), 0)).as_py():
        raise ValueError("a multiple of three")
    return batch


def in_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    if (frame["n"] % 3 == 0).any():
        raise ValueError("a multiple of three")
    return frame


FORMS: dict[str, Callable[..., Stream]] = {
    "map": lambda s, **o: s.map(thirds, returns="n long", name="f", **o),
    "map, StopIteration": lambda s, **o: s.map(stopping, returns="n long", name="f", **o),
    "map, a value of another type": lambda s, **o: s.map(misfitting, returns="n long", name="f", **o),
    "map, two columns": lambda s, **o: (
        s.map(lambda n: {"n": n, "m": n}, returns="n long, m long", name="two")
        .map(lambda row: {"n": thirds(row["n"]), "m": 0}, returns="n long, m long", name="f", **o)
        .map(lambda row: row["n"], returns="n long", name="one")
    ),
    "flat map": lambda s, **o: s.flat_map(lambda n: [thirds(n)], returns="n long", name="f", **o),
    "flat map, in its generator": lambda s, **o: s.flat_map(halfway, returns="n long", name="f", **o),
    "flat map, a value of another type": lambda s, **o: s.flat_map(
        lambda n: [misfitting(n)], returns="n long", name="f", **o
    ),
    "filter": lambda s, **o: s.filter(lambda n: thirds(n) >= 0, name="f", **o),
    "arrow": lambda s, **o: s.map_arrow(in_arrow, returns="n long", name="f", **o),
    "pandas": lambda s, **o: s.map_pandas(in_pandas, returns="n long", name="f", **o),
    "on a pool": lambda s, **o: s.map(thirds, returns="n long", name="f", waits=True, **o),
    "flat map on a pool": lambda s, **o: s.flat_map(lambda n: [thirds(n)], returns="n long", name="f", waits=True, **o),
    "arrow on a pool": lambda s, **o: s.map_arrow(in_arrow, returns="n long", name="f", waits=True, **o),
}


def flowing(add: Callable[..., Stream], on_error: str) -> tuple[Walk, CompositionCodec]:
    flow = Dataflow("numbers")
    add(flow.source(None), on_error=on_error).sink(None)
    graph = flow.graph
    return walk_of(graph, (NUMBERS,), COLUMNS), CompositionCodec(graph)


def ran(walk: Walk, rows: list[int], folder: Path | None, *, each: int = 7, number: int = 3, task: int = 5, code: int = 0):
    batches = [pa.RecordBatch.from_pydict({"n": rows[at : at + each]}, schema=NUMBERS) for at in range(0, len(rows), each)]
    left = run_walk(walk, Under(fixed=code, left_out=folder), number, batches, lambda _: None, task=task)
    return [n for batch in left for n in batch.column("n").to_pylist()]


@pytest.mark.parametrize("form", FORMS)
@given(rows=st.lists(st.integers(1, 40), max_size=60), width=st.integers(1, 4))
@settings(max_examples=examples(30))
def test_failing_records_are_counted_and_do_not_affect_others(tmp_path_factory, form, rows, width):
    folder = tmp_path_factory.mktemp("left-out")
    walk, codec = flowing(FORMS[form], "dead_letter")
    code = codec.encode(Composition(1, parallelism={"f": width})) if codec.widths else 0
    good, bad = [n for n in rows if n % 3], [n for n in rows if n % 3 == 0]
    assert ran(walk, rows, folder, code=code) == good
    if not bad:
        assert not [*folder.iterdir()]
        return
    found = read_left_out("source", 3, folder / "3")
    assert found.counts == {"f": len(bad)}
    assert [each["record"] if isinstance(each["record"], int) else each["record"]["n"] for each in found.letters] == bad
    assert {(each["operator"], each["alternate"]) for each in found.letters} == {("f", "f")}
    assert all(each["error"] for each in found.letters)


def test_what_is_skipped_is_counted_and_not_kept(tmp_path):
    walk, _ = flowing(FORMS["map"], "skip")
    assert ran(walk, [1, 3, 6, 7], tmp_path) == [1, 7]
    found = read_left_out("source", 3, tmp_path / "3")
    assert (found.counts, found.letters) == ({"f": 2}, [])


@pytest.mark.parametrize("before", [0, TIMED_RECORDS], ids=["timed", "not timed"])
@pytest.mark.parametrize("add", ["map", "flat_map", "filter", "map_arrow"])
def test_with_a_key_table_each_alternate_leaves_out_its_own(tmp_path, before, add):
    good = {"map": lambda n: n, "flat_map": lambda n: [n], "filter": lambda n: True, "map_arrow": lambda batch: batch}[add]
    bad = {
        "map": thirds,
        "flat_map": lambda n: [thirds(n)],
        "filter": lambda n: thirds(n) > 0,
        "map_arrow": in_arrow,
    }[add]
    flow = Dataflow("choosing")
    returns = {} if add == "filter" else {"returns": "n long"}
    source = flow.source(None)
    getattr(source, add)({"good": good, "bad": bad}, name="f", select_by="n", on_error="dead_letter", **returns).sink(None)
    graph = flow.graph
    codec, walk = CompositionCodec(graph), walk_of(graph, (NUMBERS,), COLUMNS)
    tables = in_use(tmp_path, KeyTable("choosing", "f", ("n",), {(n,): "bad" for n in range(6, 20)}))
    rows = [1] * before + list(range(1, 13))
    code = codec.encode(Composition(1, tables={"f": 1}))
    batches = [pa.RecordBatch.from_pydict({"n": rows}, schema=NUMBERS)]
    carrier = Under(fixed=code, left_out=tmp_path / "left-out", tables=tables)
    counted: list[Any] = []
    found = [n for batch in run_walk(walk, carrier, 3, batches, counted.extend) for n in batch.column("n").to_pylist()]
    assert sorted(found) == [n for n in rows if n < 6 or n % 3]
    assert {row[9]: (row[4], row[5]) for row in counted if row[9]} == {"good": (5 + before, 5 + before), "bad": (7, 4)}
    letters = read_left_out("source", 3, tmp_path / "left-out" / "3").letters
    assert [(each["alternate"], each["record"]) for each in letters] == [("bad", n) for n in (6, 9, 12)]


def test_the_newest_attempt_of_a_task_counts_even_if_empty(tmp_path):
    first = LeftOut(tmp_path, 3, "source", 0, (7, False))
    first.add("f", "f", True, "no", [1, 2])
    again = LeftOut(tmp_path, 3, "source", 1, (8, False))
    again.add("f", "f", True, "no", [3])
    LeftOut(tmp_path, 3, "source", 1, (11, True))
    found = read_left_out("query", 3, tmp_path / "3")
    assert (found.counts, [each["record"] for each in found.letters]) == ({"f": 2}, [1, 2])


def test_a_task_keeps_so_many_letters_and_counts_the_others(tmp_path):
    left_out = LeftOut(tmp_path, 0, "a/b", 0)
    left_out.add("f", "f", True, "no", list(range(MAX_LETTERS + 50)))
    left_out.add("f", "f", True, ValueError("no\nand more"), [0])
    left_out.add("g", "g", True, "no", ["x" * 20_000, {"at": pd.Timestamp(0)}, {("a", 1): 2}], key=[1])
    found = read_left_out("query", 0, tmp_path / "0")
    assert found.counts == {"f": MAX_LETTERS + 51, "g": 3}
    assert len(found.letters) == MAX_LETTERS


def test_long_or_unserialisable_records_are_stored_as_text(tmp_path):
    left_out = LeftOut(tmp_path, 0, "a", 0)
    left_out.add(
        "g", "h", True, ValueError("no\nand more"), ["x" * 20_000, {"at": pd.Timestamp(0)}, {("a", 1): 2}], key=[1]
    )
    long, stamp, odd = read_left_out("query", 0, tmp_path / "0").letters
    assert len(long["record"]) == 10_000
    assert stamp == {
        "operator": "g",
        "alternate": "h",
        "error": "ValueError: no",
        "record": {"at": "Timestamp('1970-01-01 00:00:00')"},
        "key": [1],
    }
    assert odd["record"] == "{('a', 1): 2}"


def test_a_disk_that_is_full_fails_the_task(tmp_path):
    left_out = LeftOut(tmp_path, 0, "a", 0)
    left_out.add("f", "f", True, "no", [1])
    left_out._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        left_out.add("f", "f", True, "no", [1])


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda s: s.map_stream(lambda batches: batches, returns="n long", on_error="skip"), "pulls its records by itself"),
        (lambda s: s.key_by("n").count(on_error="skip"), "run in the JVM"),
        (lambda s: s.map(thirds, returns="n long", on_error="ignore"), "it is one of 'fail', 'skip', 'dead_letter'"),
    ],
)
def test_what_has_no_records_that_a_function_raises_on_is_refused(add, why):
    def built() -> Graph:
        flow = Dataflow("numbers")
        add(flow.source(None)).sink(None)
        return flow.graph

    with pytest.raises(DataflowError, match=why):
        built()
