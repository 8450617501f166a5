"""What Spark cannot run is known from the dataflow alone, and said with the field at fault."""

from collections.abc import Callable
from typing import Any

import pytest

from elastream.dataflow.builder import Dataflow, Stream, timeout
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import collect, kafka, parquet, records
from elastream.dataflow.operators import Alternate, Form, Kind, Operator
from elastream.dataflow.schema import columns_of
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError
from elastream.loads import constant


def numbered(flow: Dataflow, name: str = "source", load: bool = False) -> Stream:
    rows = records([{"n": 1, "word": "a"}], "n long, word string")
    return flow.source(rows, name=name, load=constant("1/s") if load else None)


def plain(rows: Any) -> Any:
    return rows


def beside(flow: Dataflow) -> None:
    stream = numbered(flow)
    stream.sink(collect("x"), name="raw")
    stream.key_by("n").count().sink(collect("y"), name="table")


def around(flow: Dataflow) -> None:
    stream = numbered(flow)
    stream.key_by("n").count().select({"n": "n"}).merge(stream).sink(collect("x"))


def merging(flow: Dataflow) -> None:
    stream = numbered(flow)
    stream.map(plain, returns="n long", name="a").merge(stream.map(plain, returns="n int", name="b")).sink(collect("x"))


def simulated(flow: Dataflow) -> None:
    flow.add(Operator("model", alternates=(Alternate("model", cost=0.1),)), numbered(flow).taps).sink(collect("x"))


def to_one_folder(flow: Dataflow) -> None:
    stream = numbered(flow)
    stream.sink(parquet("out"), name="a")
    stream.sink(parquet("out"), name="b")


def half_durable(flow: Dataflow) -> None:
    stream = numbered(flow)
    stream.durable().filter(bool, name="f").merge(stream).sink(collect("x"))


def timed(flow: Dataflow, name: str = "source") -> Stream:
    rows = records([{"n": 1, "word": "a", "at": 0, "last": True}], "n long, word string, at timestamp, last boolean")
    return flow.source(rows, name=name)


def joined(flow: Dataflow, on: str = "word", *, word: str = "word string", **window: Any) -> Stream:
    other = flow.source(records([{"n_right": 1}], f"{word}, at timestamp, n_right long"), name="right")
    return timed(flow, "left").window(**(window or {"count": 2})).join(other, on=on)


def chosen_by(flow: Dataflow, column: str) -> Stream:
    both = {"a": plain, "b": plain}
    return numbered(flow).map(both, returns="n long", name="f", select_by=column)


def signalling(flow: Dataflow, aggregate: str) -> None:
    stream = numbered(flow)
    stream.signal("seen", aggregate)
    stream.sink(collect("x"))


def in_a_circle(flow: Dataflow) -> None:
    left, right = numbered(flow, "left"), numbered(flow, "right")
    ahead = left.filter(bool, name="ahead")
    back = ahead.durable().filter(bool, name="back").merge(right).filter(bool, name="both")
    back.durable().filter(bool, name="again").merge(left).sink(collect("x"))
    right.sink(collect("y"), name="other")


REFUSED: dict[str, tuple[Callable[[Dataflow], object], str, tuple[str, ...]]] = {
    "two keyed operators": (
        lambda flow: numbered(flow).key_by("n").count().key_by("n").count().sink(collect("x")),
        "the keyed operators 'count' and 'count_2' are in one query",
        ("operators", "count_2", "from"),
    ),
    "a keyed operator and a sink beside it": (
        beside,
        "one query would feed 'raw' besides the keyed 'count': put a durable edge before 'count'",
        ("operators", "count", "from"),
    ),
    "records that go around a keyed operator": (
        around,
        "records go around the keyed operator 'count' and meet its results",
        ("operators", "source", "from"),
    ),
    "column expressions between functions": (
        lambda flow: (
            numbered(flow)
            .map(plain, returns="n long", name="first")
            .select({"n": "n * 2"}, name="between")
            .map(plain, returns="n long", name="last")
            .sink(collect("x"))
        ),
        "the column expressions of 'between' are between functions",
        ("operators", "between", "select"),
    ),
    "a key that is not there": (
        lambda flow: numbered(flow).key_by("m").count().sink(collect("x")),
        r"operator 'count' is keyed by 'm', a column that its records do not have \(they have: n, word\)",
        ("operators", "count", "key_by"),
    ),
    "a key that a function dropped": (
        lambda flow: numbered(flow).map(plain, returns="v int", name="f").key_by("n").count().sink(collect("x")),
        r"keyed by 'n', a column that its records do not have \(they have: v\)",
        ("operators", "count", "key_by"),
    ),
    "an aggregate of a column that is not there": (
        lambda flow: numbered(flow).key_by("n").aggregate({"x": "sum(m)"}).sink(collect("x")),
        r"'sum\(m\)', the expression of 'x', names 'm', a column that its records do not have",
        ("operators", "aggregate", "aggregate", "x"),
    ),
    "an aggregate that aggregates nothing": (
        lambda flow: numbered(flow).key_by("n").aggregate({"x": "word"}).sink(collect("x")),
        r"aggregates nothing: write it as 'max\(word\)'",
        ("operators", "aggregate", "aggregate", "x"),
    ),
    "an expression that is cut off": (
        lambda flow: numbered(flow).select({"x": "lower(word"}).sink(collect("x")),
        r"'lower\(word', the expression of 'x', cannot be read: expecting \) at character 10",
        ("operators", "select", "select", "x"),
    ),
    "an expression over a column that is not there": (
        lambda flow: numbered(flow).select({"x": "m + 1"}).sink(collect("x")),
        "names 'm', a column that its records do not have",
        ("operators", "select", "select", "x"),
    ),
    "an expression that aggregates without a key": (
        lambda flow: numbered(flow).select({"x": "count(*)"}).sink(collect("x")),
        "aggregates records: use 'key_by'",
        ("operators", "select", "select", "x"),
    ),
    "a wrong schema": (
        lambda flow: numbered(flow).map(plain, returns="word strang", name="f").sink(collect("x")),
        "what operator 'f' returns is not a schema: 'word strang': there is no type 'strang'",
        ("operators", "f", "returns"),
    ),
    "a wrong schema of a source": (
        lambda flow: flow.source(records([{"n": 1}], "n")).sink(collect("x")),
        "the schema of source 'source' is not a schema: 'n': 'n' has no type",
        ("operators", "source", "source", "schema"),
    ),
    "no schema": (
        lambda flow: numbered(flow).map(plain, returns="", name="f").sink(collect("x")),
        "operator 'f' needs `returns`",
        ("operators", "f"),
    ),
    "streams of different columns": (
        merging,
        "'sink' merges streams with different columns: 'a' has n bigint, 'b' has n int",
        ("operators", "sink", "from"),
    ),
    "an operator for simulation only": (
        simulated,
        "operator 'model' has no function to run on Spark; it can only be simulated",
        ("operators", "model"),
    ),
    "a source that reads nothing": (
        lambda flow: flow.source(None).sink(collect("x")),
        "source 'source' reads nothing; it can only be simulated",
        ("operators", "source", "source"),
    ),
    "a sink that writes nothing": (
        lambda flow: numbered(flow).sink(None),
        "sink 'sink' writes nothing; it can only be simulated",
        ("operators", "sink", "sink"),
    ),
    "a kafka edge without servers": (
        lambda flow: numbered(flow).durable("kafka").filter(bool, name="f").sink(collect("x")),
        "durable as kafka, but the dataflow has no Kafka source or sink",
        ("operators", "f", "from"),
    ),
    "a durable edge that records go around": (
        half_durable,
        "the edge source -> f is durable, but records also get from one side of it to the other",
        ("operators", "f", "from"),
    ),
    "queries that wait for each other": (
        in_a_circle,
        "the edge both -> again is durable, and its two queries each read what the other writes",
        ("operators", "again", "from"),
    ),
    "a window by a column that is not there": (
        lambda flow: timed(flow).window(seconds=5, by="time").group_by("word").count().sink(collect("x")),
        "the window of operator 'count' goes by 'time', a column that its records do not have",
        ("operators", "count", "window", "by"),
    ),
    "a window by a column of no times": (
        lambda flow: timed(flow).window(seconds=5, by="n").group_by("word").count().sink(collect("x")),
        "the window of operator 'count' goes by 'n', which is bigint and must be timestamp or timestamp_ntz",
        ("operators", "count", "window", "by"),
    ),
    "a landmark that is no truth": (
        lambda flow: (
            timed(flow).window(landmark="n").group_by("word").apply(plain, returns="n int", name="g").sink(collect("x"))
        ),
        "the window of operator 'g' ends at 'n', which is bigint and must be boolean",
        ("operators", "g", "window", "landmark"),
    ),
    "a timeout by a column that is not there": (
        lambda flow: (
            numbered(flow)
            .key_by("n")
            .apply(plain, returns="n int", state="n int", name="k", timeout=timeout(5, by="at"))
            .sink(collect("x"))
        ),
        "the timeout of operator 'k' goes by 'at', a column that its records do not have",
        ("operators", "k", "timeout", "by"),
    ),
    "a group by what is not there": (
        lambda flow: timed(flow).window(seconds=5, by="at").group_by("m").count().sink(collect("x")),
        "operator 'count' is keyed by 'm', a column that its records do not have",
        ("operators", "count", "group_by"),
    ),
    "a bound of a window as an aggregate": (
        lambda flow: (
            timed(flow).window(seconds=5, by="at").group_by("word").aggregate({"window_end": "max(at)"}).sink(collect("x"))
        ),
        "operator 'aggregate' emits 'window_end' for its windows: call another column so",
        ("operators", "aggregate", "aggregate"),
    ),
    "a join on what one side lacks": (
        lambda flow: joined(flow, on="n").sink(collect("x")),
        (
            r"operator 'join' \(right\) is keyed by 'n', a column that its records do not have \(they have: word, at, "
            r"n_right\)"
        ),
        ("operators", "join", "on"),
    ),
    "a join on columns of two types": (
        lambda flow: joined(flow, word="word int").sink(collect("x")),
        "operator 'join' joins on 'word', which is string on the left and int on the right: give both one type before it",
        ("operators", "join", "on"),
    ),
    "a join whose columns cannot be told apart": (
        lambda flow: (
            timed(flow, "left")
            .window(count=2)
            .join(flow.source(records([], "word string, n long, at_right int, at int"), name="right"), on="word")
            .sink(collect("x"))
        ),
        "both sides of the join have a column 'at_right': rename one before it",
        ("operators", "join", "join"),
    ),
    "a zip of equal columns": (
        lambda flow: timed(flow).sequential().zip(numbered(flow, "other").sequential()).sink(collect("x")),
        "two inputs of 'zip' have a column 'n': rename one before it, with select or map",
        ("operators", "zip", "zip"),
    ),
    "a choice by what is not there": (
        lambda flow: chosen_by(flow, "m").sink(collect("x")),
        r"operator 'f' selects by 'm', a column that its records do not have \(they have: n, word\)",
        ("operators", "f", "select_by"),
    ),
    "a state of its own that is none": (
        lambda flow: (
            numbered(flow)
            .key_by("n")
            .apply({"a": plain, "b": plain}, returns="n int", state={"a": "n int"}, name="k")
            .sink(collect("x"))
        ),
        "the state of 'b' of operator 'k' is not a schema",
        ("operators", "k", "state"),
    ),
    "alternates of native aggregates": (
        lambda flow: flow.add(
            Operator(
                "k",
                Kind.KEYED,
                tuple(Alternate(name, {"n": "count(*)"}, Form.AGGREGATE) for name in "ab"),
                key=("n",),
            ),
            numbered(flow).taps,
        ).sink(collect("x")),
        "operator 'k' has alternates that are native aggregates, .*: write them as functions with state, with apply",
        ("operators", "k", "alternates"),
    ),
    "alternates in Python and in the JVM": (
        lambda flow: (
            numbered(flow)
            .map([Alternate("a", {"n": "n"}, Form.COLUMNS), Alternate("b", plain)], returns="n long", name="f")
            .sink(collect("x"))
        ),
        r"operator 'f' has alternates in Python \(map\) and in the JVM: write all as functions of records, or all as",
        ("operators", "f", "alternates"),
    ),
    "a signal of what is not there": (
        lambda flow: signalling(flow, "mean(m)"),
        "the signal 'seen' is of 'm', a column that its records do not have",
        ("operators", "signal(seen)", "signal"),
    ),
    "a signal of no number": (
        lambda flow: signalling(flow, "mean(word)"),
        "the signal 'seen' is of 'word', which is string and must be tinyint, .* or decimal",
        ("operators", "signal(seen)", "signal"),
    ),
    "a truth of no truth": (
        lambda flow: signalling(flow, "any(n)"),
        "the signal 'seen' is of 'n', which is bigint and must be boolean",
        ("operators", "signal(seen)", "signal"),
    ),
    "two sinks in one folder": (
        to_one_folder,
        "the sinks 'a' and 'b' write to one folder, out",
        ("operators", "b", "sink"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_spark_cannot_run_is_refused_with_the_field_at_fault(case: str) -> None:
    write, sentence, at = REFUSED[case]
    flow = Dataflow("wrong")
    write(flow)
    with pytest.raises(DataflowError, match=sentence) as caught:
        plan_queries(lay_out(flow.graph))
    assert "\n" not in str(caught.value)
    assert caught.value.at == at


def test_columns_are_followed_through_functions_keys_and_durable_edges() -> None:
    flow = Dataflow("long")
    words = flow.source(kafka("in")).select({"word": "lower(value)", "day": "date(timestamp)"}, name="cut")
    words.sink(collect("raw"))
    counts = words.durable().key_by("word").aggregate({"n": "count(*)", "last": "max(`day`)", "shown": "concat(word, '!')"})
    late = counts.select({"n": "N + 1", "w": "shown"}, name="shown")
    late.durable("kafka").filter(bool, name="f").select({"n": "n"}, name="end").sink(collect("x"))
    assert list(plan_queries(lay_out(flow.graph))) == ["source", "aggregate", "f"]


def test_columns_are_followed_through_windows_joins_and_zips() -> None:
    flow = Dataflow("windows")
    sums = timed(flow, "a").window(seconds="5s", every="1s", by="at").group_by("word").aggregate({"n": "sum(n)"})
    sums.select({"length": "window_end - window_start", "n": "n", "word": "word"}, name="lengths").sink(collect("sums"))
    pairs = joined(flow)
    pairs.select({"m": "n + n_right", "late": "at_right - at"}, name="pairs").sink(collect("pairs"))
    ordered = flow.source(records([], "x int"), name="x").sequential()
    zipped = ordered.zip(flow.source(records([], "y int"), name="y").sequential())
    zipped.select({"z": "x + y"}, name="both").sink(collect("both"))
    plan_queries(lay_out(flow.graph))


def test_a_join_reads_its_two_sides_from_two_durable_edges() -> None:
    flow = Dataflow("far")
    other = flow.source(records([], "word string, forecast double"), name="right").durable()
    joined = timed(flow, "left").durable().window(count=2).join(other, on="word")
    joined.select({"error": "forecast - n"}).sink(collect("x"))
    plans = plan_queries(lay_out(flow.graph))
    assert [outlet.port for outlet in plans["join"].before.outlets] == [0, 1]


def test_a_query_is_planned_after_those_whose_edges_it_reads() -> None:
    flow = Dataflow("late")
    left, right = numbered(flow, "left"), numbered(flow, "right")
    left.merge(right.durable()).filter(bool, name="both").sink(collect("x"))
    right.sink(collect("y"), name="other")
    assert list(plan_queries(lay_out(flow.graph))) == ["right", "left"]


def test_expressions_that_spark_can_read_are_not_refused() -> None:
    good = {
        "a": "transform(array(n), x -> x + n)[0]",
        "b": "case when n > 1 then word end",
        "c": "from_json(word, 'x int').x",
        "d": "extract(year from current_timestamp()) + timestampdiff(HOUR, current_date, now())",
        "e": "aggregate(array(n), 0L, (acc, x) -> acc + x)",
        "f": "word rlike '[a-z]+' and n not in (1, 2) or word is distinct from 'x'",
        "g": "`word`",
        "h": "struct(*)",
        "i": "_metadata.file_path",
    }
    flow = Dataflow("good")
    numbered(flow).select(good).sink(collect("x"))
    plan_queries(lay_out(flow.graph))
    flow = Dataflow("good")
    more = {"a": "sum(n) / count(1)", "b": "max_by(word, n)", "c": "count(distinct word) filter (where n > 1)", "d": "1"}
    numbered(flow).key_by("n").aggregate(more).sink(collect("x"))
    plan_queries(lay_out(flow.graph))


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("word string, n long", {"word": "string", "n": "bigint"}),
        ("a: INT, b array<struct<x: int>>", {"a": "int", "b": "array<struct<x: int>>"}),
        ("`b c` decimal(10, 2) NOT NULL COMMENT 'it, is'", {"b c": "decimal(10,2) not null"}),
        ("struct<a: map<string, byte>>", {"a": "map<string, tinyint>"}),
        ("t timestamp_ntz, d interval day to second", {"t": "timestamp_ntz", "d": "interval day to second"}),
    ],
)
def test_a_schema_is_read_as_spark_reads_it(ddl: str, columns: dict[str, str]) -> None:
    assert columns_of(ddl, "it") == columns


@pytest.mark.parametrize(
    "ddl",
    ["", "word", "int", "a int,", "a int b", "a array<int", "a strng", "x-y int", "a int, A int", "a varchar", "a int)"],
)
def test_what_is_no_schema_is_refused(ddl: str) -> None:
    with pytest.raises(DataflowError, match="it is not a schema"):
        columns_of(ddl, "it")
