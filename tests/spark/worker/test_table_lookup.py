"""Operators whose alternate a key table chooses, in the walk and without Spark, against plain Python."""

import datetime
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.runner import OperatorError, explain_failure
from elastream.spark.worker.table_lookup import TIMED_RECORDS, Lookup
from elastream.spark.worker.walk import run_walk
from support.property_examples import examples
from support.walks import Under, in_use, walk_of

RECORD = pa.schema([("key", pa.string()), ("group", pa.int64()), ("n", pa.int64())])
DDL = "key string, group long, n long"
SCHEMAS = {DDL: RECORD, "n long": pa.schema([("n", pa.int64())])}
Row = dict[str, Any]


def plus(amount: int):
    return lambda row: {**row, "n": row["n"] + amount}


def repeated(times: int):
    return lambda row: [row] * ((row["n"] + times) % 3)


def divisible(by: int):
    return lambda row: row["n"] % by == 0


def plus_arrow(amount: int):
    return lambda batch: batch.set_column(2, "n", pc.add(batch.column("n"), amount))


def odd_pandas(amount: int):
    return lambda frame: frame[(frame["n"] + amount) % 2 == 1].astype({"group": "Int64"})


FORMS: dict[str, tuple[Any, Any]] = {
    "map": (plus, lambda row, by: [plus(by)(row)]),
    "flat_map": (repeated, lambda row, by: repeated(by)(row)),
    "filter": (divisible, lambda row, by: [row] if divisible(by)(row) else []),
    "map_arrow": (plus_arrow, lambda row, by: [plus(by)(row)]),
    "map_pandas": (odd_pandas, lambda row, by: [row] if (row["n"] + by) % 2 == 1 else []),
}
"""How an alternate with a number is made, and what it gives for a record, by the form."""
ALTERNATES = {"one": 1, "two": 2, "three": 3}


def graph_of(form: str, select_by: str | Sequence[str]) -> Graph:
    flow = Dataflow("choosing")
    functions = {name: FORMS[form][0](number) for name, number in ALTERNATES.items()}
    returns = {} if form == "filter" else {"returns": DDL}
    stream = flow.source(None)
    getattr(stream, form)(functions, name="choose", select_by=select_by, **returns).sink(None)
    return flow.graph


def ran(graph: Graph, rows: Sequence[Row], composition: Composition, tables: Path | None, batch_rows: int = 7):
    """What one task makes of the rows, and what it meters."""
    code = CompositionCodec(graph).encode(composition)
    cuts = range(0, len(rows), batch_rows)
    batches = [pa.RecordBatch.from_pylist(list(rows[at : at + batch_rows]), schema=RECORD) for at in cuts]
    counted: list[Any] = []
    out = list(run_walk(walk_of(graph, [RECORD], SCHEMAS), Under(tables=tables, fixed=code), 3, batches, counted.extend))
    return [row for batch in out for row in batch.to_pylist()], counted


rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.one_of(st.none(), st.sampled_from("abcdef")),
            "group": st.one_of(st.none(), st.integers(0, 3)),
            "n": st.integers(-50, 50),
        }
    ),
    max_size=40,
)
choices = st.sampled_from(sorted(ALTERNATES))


@settings(max_examples=examples(150), deadline=None)
@given(
    form=st.sampled_from(sorted(FORMS)),
    rows=rows_of,
    otherwise=choices,
    batch_rows=st.integers(1, 20),
    times=st.sampled_from([1, 1, TIMED_RECORDS]),
    data=st.data(),
)
def test_each_record_meets_the_alternate_of_its_key(tmp_path_factory, form, rows, otherwise, batch_rows, times, data):
    rows, batch_rows = (rows[:3] if times > 1 else rows) * times, batch_rows * times  # of many, some are not timed
    columns = data.draw(st.sampled_from([("key",), ("group",), ("key", "group")]))
    keys = {"key": st.sampled_from("abcdef"), "group": st.integers(0, 3)}
    table = data.draw(st.dictionaries(st.tuples(*(keys[name] for name in columns)), choices, max_size=10))
    graph = graph_of(form, columns)
    tables = in_use(tmp_path_factory.mktemp("tables"), KeyTable("choosing", "choose", columns, table))
    composition = Composition(1, {"choose": otherwise}, tables={"choose": 1})
    found, counted = ran(graph, rows, composition, tables, batch_rows)

    def alternate(row: Row) -> str:
        return table.get(tuple(row[name] for name in columns), otherwise)

    expected = [made for row in rows for made in FORMS[form][1](row, ALTERNATES[alternate(row)])]
    if form in ("map", "flat_map", "filter"):
        assert found == expected
    else:
        assert Counter(tuple(sorted(row.items(), key=str)) for row in found) == Counter(
            tuple(sorted(row.items(), key=str)) for row in expected
        )
    taken = {row[9]: row[4] for row in counted if row[9]}
    assert taken == dict(Counter(map(alternate, rows)))
    emitted = {row[9]: row[5] for row in counted if row[9]}
    assert sum(emitted.values()) == len(expected)


def test_two_versions_in_use_do_not_mix(tmp_path):
    graph, rows = graph_of("map", "key"), [{"key": "a", "group": 1, "n": 0}]
    for version, alternate in ((1, "one"), (2, "two"), (256, "three")):
        tables = in_use(tmp_path, KeyTable("choosing", "choose", ("key",), {("a",): alternate}), version)
    # Version 256 has the digit of version 1, which it has replaced: only one of the two can be in use.
    for version, expected in ((2, 2), (256, 3), (1, 3)):
        found, _ = ran(graph, rows, Composition(1, tables={"choose": version}), tables)
        assert found[0]["n"] == expected


@pytest.mark.parametrize("before", [0, TIMED_RECORDS], ids=["timed", "not timed"])
def test_a_failure_names_the_alternate_of_the_key_and_the_record(tmp_path, before):
    flow = Dataflow("choosing")

    def breaks(row: Row) -> Row:
        raise ValueError("no such customer")

    alternates = {"good": plus(1), "bad": breaks, "wrong": lambda row: {**row, "n": "many"}}
    flow.source(None).map(alternates, returns=DDL, name="choose", select_by="key").sink(None)
    rows = [{"key": key, "group": 1, "n": n} for n, key in enumerate("a" * before + "abc")]
    for name, sentence in (("bad", "no such customer"), ("wrong", "'n': 'many'}, which is not a dict of key")):
        tables = in_use(tmp_path, KeyTable("choosing", "choose", ("key",), {("b",): name}))
        with pytest.raises(OperatorError) as failed:
            ran(flow.graph, rows, Composition(1, tables={"choose": 1}), tables, len(rows))
        said = explain_failure(failed.value)
        assert f"(alternate '{name}')" in said
        assert sentence in said
        assert "'key': 'b'" in said


def test_the_time_of_untimed_records_is_divided_by_what_timed_ones_cost(tmp_path, monkeypatch):
    clock, flow = [0.0], Dataflow("choosing")
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])

    def of_cost(seconds: float):
        def alternate(row: Row) -> Row:
            clock[0] += seconds
            return row

        return alternate

    alternates = {"cheap": of_cost(0.001), "dear": of_cost(0.05)}
    flow.source(None).map(alternates, returns=DDL, name="choose", select_by="key").sink(None)
    tables = in_use(tmp_path, KeyTable("choosing", "choose", ("key",), {("b",): "dear"}))
    rows = [{"key": key, "group": 1, "n": 0} for key in "ab" * TIMED_RECORDS]
    _, counted = ran(flow.graph, rows, Composition(1, tables={"choose": 1}), tables, batch_rows=len(rows))
    busy = {row[9]: row[6] for row in counted if row[9]}
    assert busy == pytest.approx({"cheap": 0.001 * TIMED_RECORDS, "dear": 0.05 * TIMED_RECORDS})


def test_waiting_operators_have_their_pool_for_each_alternate(tmp_path):
    flow = Dataflow("choosing")
    functions = {name: plus(number) for name, number in ALTERNATES.items()}
    flow.source(None).map(functions, returns=DDL, name="choose", select_by="key", waits=True).sink(None)
    tables = in_use(tmp_path, KeyTable("choosing", "choose", ("key",), {("b",): "two"}))
    rows = [{"key": key, "group": 1, "n": 0} for key in "abab"]
    found, counted = ran(flow.graph, rows, Composition(1, parallelism={"choose": 3}, tables={"choose": 1}), tables)
    assert [row["n"] for row in found] == [1, 2, 1, 2]
    assert {row[9]: row[4] for row in counted if row[9]} == {"one": 2, "two": 2}


def test_a_record_of_one_column_is_its_own_key(tmp_path):
    flow = Dataflow("choosing")
    numbers: Mapping[str, Any] = {"same": lambda n: n, "negative": lambda n: -n}
    doubled = flow.source(None).map(lambda row: row["n"], returns="n long", name="only")
    doubled.map(numbers, returns="n long", name="choose", select_by="n").sink(None)
    tables = in_use(tmp_path, KeyTable("choosing", "choose", ("n",), {(2,): "negative"}))
    rows = [{"key": "", "group": 0, "n": n} for n in range(4)]
    found, _ = ran(flow.graph, rows, Composition(1, tables={"choose": 1}), tables)
    assert [row["n"] for row in found] == [0, 1, -2, 3]


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize(
    ("kind", "keys", "other"),
    [
        (pa.int8(), [1, -2, 3], 4),
        (pa.int64(), [1, 2**62, -5], 0),
        (pa.int64(), [1, 7, 4], 2**63 - 1),
        (pa.int32(), [-3, -4], -(2**31)),
        (pa.string(), ["a", "ä", ""], "b"),
        (pa.bool_(), [True], False),
        (pa.date32(), [datetime.date(2026, 1, 2), datetime.date(1969, 12, 31)], datetime.date(2026, 1, 3)),
    ],
    ids=str,
)
def test_keys_of_every_type_are_found_in_batches_in_values_and_in_calls(kind, keys, other, rows):
    names = ["one", "two"]
    found = Lookup(["k"], {(key,): names[n % 2] for n, key in enumerate(keys)}, names)
    values = [*keys, other, None] * rows
    expected = [*(n % 2 for n in range(len(keys))), -1, -1] * rows
    assert found.of_batch(pa.record_batch({"k": pa.array(values, kind)})).tolist() == expected
    assert found.of_values(values, ["k"]).tolist() == expected
    assert [found.of_key([value]) for value in values] == expected
    assert Lookup(["k"], {}, names).of_batch(pa.record_batch({"k": pa.array(values, kind)})).tolist() == [-1] * len(values)
