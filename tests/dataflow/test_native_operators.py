"""Native operators as they are declared and checked, without Spark."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import Constant, collect, files, records
from elastream.dataflow.natives import Drop
from elastream.dataflow.operators import Alternate, Form
from elastream.dataflow.schema import columns_of, ddl_of
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError
from elastream.loads import constant


def same(frame: object) -> object:
    return frame


def checked(write: Callable[[Stream], Stream]) -> Dataflow:
    """A dataflow of `write`, whose columns are followed to the sink."""
    flow = Dataflow("natives")
    write(flow.source(records([{"id": 1, "tags": ["a"]}], "id long, tags array<string>"), load="10/s")).sink(collect("x"))
    plan_queries(lay_out(flow.graph))
    return flow


ACCEPTED: dict[str, Callable[[Stream], Stream]] = {
    "filter by text": lambda s: s.filter("id > 5"),
    "columns one behind the other": lambda s: s.with_column("n", "id + 1").where("n > 1").with_columns({"m": "n * id"}),
    "a dropped column is not needed": lambda s: s.drop("tags").select({"n": "id"}),
    "an exploded array": lambda s: s.explode("tags").filter("tags = 'a'").explode("split(tags, ',')", into="part"),
    "columns that only Spark knows": lambda s: s.transform(same).where("whatever > 1").key_by("anything").count(),
    "a query": lambda s: s.sql("SELECT id + 1 AS n FROM {stream}").map(dict, returns="n long").where("n > 1"),
    "native behind a keyed operator": lambda s: s.key_by("id").count().where("count > 1").with_column("twice", "2 * count"),
    "natives on both sides of a function": lambda s: s.where("id > 0").map(dict, returns="n long").where("n > 1"),
    "alternates of expressions": lambda s: s.filter({"strict": "id > 5", "loose": "id > 3"}),
    "alternates of columns": lambda s: s.transform([Alternate("a", same), Alternate("b", same, cost=1e-6)], name="t"),
    "a union": lambda s: s.where("id > 0").union(s.where("id < 0")).with_column("n", "id").where("n <> 3"),
    "a static table": lambda s: s.join(lambda spark: spark, on="id", how="left").select("id", "city"),
    "duplicates": lambda s: s.with_column("at", "current_timestamp()").drop_duplicates(
        "id", within_watermark="1m", by="at"
    ),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_native_operators_are_accepted_without_spark(case: str) -> None:
    checked(ACCEPTED[case])


REFUSED: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "a missing column": (
        lambda s: s.filter("a > 5"),
        "operator 'filter': 'a > 5', .* names 'a', a column",
    ),
    "text that is no SQL": (lambda s: s.where("id >"), "operator 'where': 'id >', .* cannot be read"),
    "a dropped column": (lambda s: s.drop("tags").where("tags IS NULL"), "names 'tags', a column that its records do not"),
    "a drop of what is missing": (lambda s: s.drop("city"), "operator 'drop' drops 'city', a column"),
    "a drop of everything": (lambda s: s.drop("id", "tags"), "operator 'drop' drops all columns"),
    "a number as a condition": (lambda s: s.where(5), "operator 'where': 5 is neither SQL text, such as 'n > 5', nor"),
    "a number as an alternate": (
        lambda s: s.map({"fast": 5}, returns="k string", name="m"),
        "operator 'm': alternate 'fast' is 5, which is not a function",
    ),
    "a number as a function": (lambda s: s.filter(5), "operator 'filter': 5 is not a function"),
    "text as a function": (
        lambda s: s.transform("id > 5"),
        "operator 'transform': 'id > 5' is neither a function nor a list",
    ),
    "functions beside text": (
        lambda s: s.filter({"a": "id > 1", "b": same}),
        "alternates of filter are functions",
    ),
    "Python beside DataFrame code": (
        lambda s: s.transform([Alternate("a", same), Alternate("b", same, Form.MAP)], name="t", returns="id long"),
        r"operator 't' has alternates in Python \(map\) and in the JVM: write all as",
    ),
    "duplicates beside a key": (
        lambda s: s.drop_duplicates("id").key_by("id").count(),
        "'drop_duplicates' keeps the duplicates that it drops, and 'count' keeps state in the same query: put a durable",
    ),
    "a watermark without a column": (lambda s: s.drop_duplicates("id", within_watermark="1m"), "and by go together"),
    "a join of two streams": (lambda s: s.join(s, on="id"), "join needs a window"),
    "a join with nothing": (lambda s: s.join(3, on="id"), "operator 'join' joins 3: give a DataFrame"),
    "a join on what is missing": (lambda s: s.join(same, on="city"), "operator 'join' joins on 'city', a column"),
    "a query of something else": (lambda s: s.sql("SELECT 1"), r"'SELECT 1' does not read \{stream\}"),
    "records left out": (
        lambda s: s.transform(same, on_error="skip"),
        "on_error 'skip' says nothing of 'same': its DataFrame code runs in the JVM",
    ),
    "a key table": (
        lambda s: s.filter({"a": "id > 1", "b": "id > 2"}, select_by="id"),
        "operator 'filter' selects by key, but DataFrame code meets the records of all keys",
    ),
    "alternates with other columns": (
        lambda s: s.transform([Alternate("a", Drop(("id",)), Form.FRAME), Alternate("b", Drop(("tags",)), Form.FRAME)]),
        "the alternates of operator 'transform' return different columns: 'a' tags array<string>, 'b' id bigint",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_native_operators_are_refused_in_one_sentence(case: str) -> None:
    write, sentence = REFUSED[case]
    with pytest.raises(DataflowError, match=sentence):
        checked(write)


def test_costs_are_text_or_numbers() -> None:
    flow = checked(lambda s: s.filter("id > 5", cost="4us", selectivity=0.5).transform([Alternate("t", same, cost="2ms")]))
    costs = [(a.cost, a.selectivity) for o in flow.graph.operators for a in o.alternates]
    assert costs == [(4e-6, 0.5), (2e-3, None)]
    with pytest.raises(DataflowError, match="filter 'filter': cost is an alternate's"):
        checked(lambda s: s.filter(bool, cost="4us"))


@given(st.floats(0.001, 1e6), st.integers(0, 10**6))
def test_a_rate_as_a_load_is_a_constant_load(rate: float, number: int) -> None:
    load, same_load = Constant(rate), constant(rate)
    due = load.due(number)
    assert load.count(due) > number >= load.count(due * (1 - 1e-12))
    assert load.rate(due) == same_load.rate(due)
    assert abs(load.count(due) - same_load.count(due)) <= 1


class Place(BaseModel):
    city: str
    code: int | None = None


class Order(BaseModel):
    id: int
    prices: list[float]
    places: dict[str, Place]
    at: datetime


@dataclass
class Line:
    word: str
    ok: bool | None
    day: date
    total: Decimal


def test_schemas_are_ddl_of_pyspark_pydantic_and_dataclasses() -> None:
    struct = StructType([StructField("a b", LongType(), False), StructField("c", ArrayType(StringType()))])
    assert columns_of(ddl_of(struct, "it"), "it") == {"a b": "bigint not null", "c": "array<string>"}
    assert columns_of(ddl_of(Order, "it"), "it") == {
        "id": "bigint",
        "prices": "array<double>",
        "places": "map<string, struct<city: string, code: bigint>>",
        "at": "timestamp",
    }
    assert columns_of(ddl_of(Line, "it"), "it") == {
        "word": "string",
        "ok": "boolean",
        "day": "date",
        "total": "decimal(38,18)",
    }
    assert files("x", Line).schema == records([], Line).schema == ddl_of(Line, "it")


def test_schemas_of_keyed_operators_are_classes_too() -> None:
    flow = checked(lambda s: s.key_by("id").apply(same, returns=Line, state=Line).where("ok"))
    operator = flow.graph.by_name["same"]
    assert operator.state == operator.returns == ddl_of(Line, "it")


def test_a_class_that_is_no_schema_is_refused() -> None:
    with pytest.raises(DataflowError, match="what operator 'dict' returns is <class 'int'>: write DDL"):
        checked(lambda s: s.map(dict, returns=int))

    @dataclass
    class Odd:
        value: complex

    with pytest.raises(DataflowError, match="the field 'value' of Odd is <class 'complex'>, which is not a column type"):
        ddl_of(Odd, "it")
