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


REFUSED = [
    (lambda flow: numbered(flow).key_by("n").count().key_by("n").count(), "the keyed operators 'count'", "count_2.from"),
    (beside, "one query would feed 'raw' besides the keyed 'count': put a durable edge before 'count'", "count.from"),
    (around, "records go around the keyed operator 'count' and meet its results", "source.from"),
    (
        lambda flow: (
            numbered(flow)
            .map(plain, returns="n long", name="first")
            .select({"n": "n * 2"}, name="between")
            .map(plain, returns="n long", name="last")
        ),
        "the column expressions of 'between' are between functions",
        "between.select",
    ),
    (lambda flow: numbered(flow).key_by("m").count(), "operator 'count' is keyed by", "count.key_by"),
    (
        lambda flow: numbered(flow).key_by("n").aggregate({"x": "sum(m)"}),
        r"'sum\(m\)', the expression of 'x', names 'm', a column that its records do not have",
        "aggregate.aggregate.x",
    ),
    (
        lambda flow: numbered(flow).key_by("n").aggregate({"x": "word"}),
        r"aggregates nothing: write it as 'max\(word\)'",
        "aggregate.aggregate.x",
    ),
    (
        lambda flow: numbered(flow).select({"x": "lower(word"}),
        r"'lower\(word', the expression of 'x', cannot be read: expecting \) at character 10",
        "select.select.x",
    ),
    (lambda flow: numbered(flow).select({"x": "count(*)"}), "aggregates records: use 'key_by'", "select.select.x"),
    (lambda flow: numbered(flow).map(plain, returns="word strang", name="f"), "what operator 'f' returns is", "f.returns"),
    (lambda flow: numbered(flow).map(plain, returns="", name="f"), "operator 'f' needs `returns`", "f"),
    (merging, "'sink' merges streams with different columns: 'a' has n bigint, 'b' has n int", "sink.from"),
    (simulated, "operator 'model' has no function to run on Spark; it can only be simulated", "model"),
    (lambda flow: numbered(flow).sink(None), "sink 'sink' writes nothing; it can only be simulated", "sink.sink"),
    (lambda flow: numbered(flow).durable("kafka").filter(bool, name="f"), "durable as kafka, but the dataflow", "f.from"),
    (half_durable, "the edge source -> f is durable, but records also get from one side of it to the other", "f.from"),
    (in_a_circle, "the edge both -> again is durable, and its two queries each read what the other writes", "again.from"),
    (
        lambda flow: timed(flow).window(seconds=5, by="time").group_by("word").count(),
        "the window of operator 'count' goes by 'time', a column that its records do not have",
        "count.window.by",
    ),
    (
        lambda flow: timed(flow).window(seconds=5, by="n").group_by("word").count(),
        "the window of operator 'count' goes by 'n', which is bigint and must be timestamp or timestamp_ntz",
        "count.window.by",
    ),
    (
        lambda flow: (
            numbered(flow).key_by("n").apply(plain, returns="n int", state="n int", name="k", timeout=timeout(5, by="at"))
        ),
        "the timeout of operator 'k' goes by 'at', a column that its records do not have",
        "k.timeout.by",
    ),
    (
        lambda flow: timed(flow).window(seconds=5, by="at").group_by("word").aggregate({"window_end": "max(at)"}),
        "operator 'aggregate' emits 'window_end' for its windows: call another column so",
        "aggregate.aggregate",
    ),
    (lambda flow: joined(flow, on="n"), r"operator 'join' \(right\) is keyed by 'n', a", "join.on"),
    (lambda flow: joined(flow, word="word int"), "operator 'join' joins on 'word', which", "join.on"),
    (
        lambda flow: (
            timed(flow, "left")
            .window(count=2)
            .join(flow.source(records([], "word string, n long, at_right int, at int"), name="right"), on="word")
        ),
        "both sides of the join have a column 'at_right': rename one before it",
        "join.join",
    ),
    (
        lambda flow: timed(flow).sequential().zip(numbered(flow, "other").sequential()),
        "two inputs of 'zip' have a column 'n': rename one before it, with select or map",
        "zip.zip",
    ),
    (lambda flow: chosen_by(flow, "m"), "operator 'f' selects by 'm', a column that", "f.select_by"),
    (
        lambda flow: (
            numbered(flow).key_by("n").apply({"a": plain, "b": plain}, returns="n int", state={"a": "n int"}, name="k")
        ),
        "the state of 'b' of operator 'k' is not a schema",
        "k.state",
    ),
    (
        lambda flow: flow.add(
            Operator(
                "k", Kind.KEYED, tuple(Alternate(name, {"n": "count(*)"}, Form.AGGREGATE) for name in "ab"), key=("n",)
            ),
            numbered(flow).taps,
        ),
        "operator 'k' has alternates that are native aggregates, .*: write them as functions with state, with apply",
        "k.alternates",
    ),
    (
        lambda flow: numbered(flow).map(
            [Alternate("a", {"n": "n"}, Form.COLUMNS), Alternate("b", plain)], returns="n long", name="f"
        ),
        r"operator 'f' has alternates in Python \(map\) and in the JVM: write all as functions of records, or all as",
        "f.alternates",
    ),
    (lambda flow: signalling(flow, "mean(m)"), "the signal 'seen' is of 'm', a column that its", "signal(seen).signal"),
    (lambda flow: signalling(flow, "mean(word)"), "the signal 'seen' is of 'word', which is", "signal(seen).signal"),
    (to_one_folder, "the sinks 'a' and 'b' write to one folder, out", "b.sink"),
]


@pytest.mark.parametrize(("write", "sentence", "at"), REFUSED)
def test_what_spark_cannot_run_names_its_field(write: Callable[[Dataflow], object], sentence: str, at: str) -> None:
    flow = Dataflow("wrong")
    if isinstance(stream := write(flow), Stream):
        stream.sink(collect("x"))
    with pytest.raises(DataflowError, match=sentence) as caught:
        plan_queries(lay_out(flow.graph))
    assert "\n" not in str(caught.value)
    assert caught.value.at == ("operators", *at.split("."))


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
