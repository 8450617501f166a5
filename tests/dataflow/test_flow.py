"""Dataflows as they are written in Python: what is refused where it is written down."""

import pytest

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, parquet, records
from elastream.errors import DataflowError, ElastreamError


def words() -> tuple[Dataflow, object]:
    flow = Dataflow("words")
    return flow, flow.source(records([{"value": "a"}], "value string"))


def test_a_selected_column_may_have_any_name_also_that_of_a_parameter():
    flow, stream = words()
    stream.select({"columns": "value", "name": "upper(value)", "returns": "1"}).sink(collect("out"))
    (alternate,) = flow.graph.by_name["select"].alternates
    assert alternate.function == {"columns": "value", "name": "upper(value)", "returns": "1"}


def test_columns_other_than_sql_text_by_name_are_refused_in_place():
    for columns in ({}, {"word": {"n": "1"}}, {"n": 1}, 5, {"columns": {"word": "value"}}):
        for write in (words()[1].select, words()[1].key_by("value").aggregate):
            with pytest.raises(DataflowError, match="is not SQL text by column name, such as"):
                write(columns)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"cost": 0.1}, r"an operator has no 'cost'; it is an alternate's: \[Alternate\('...', function, cost=...\)\]"),
        ({"core": 1}, "an operator has no 'core'; known: max_duration, cores, "),
    ],
)
def test_what_operators_do_not_take_is_a_sentence(given, sentence):
    source = Dataflow("typo").source(None)
    with pytest.raises(DataflowError, match=sentence):
        source.map(str.lower, returns="word string", **given)
    with pytest.raises(DataflowError, match=sentence):
        source.key_by("word").apply(str.lower, returns="word string", state="n long", **given)


def test_a_function_of_micro_batches_is_a_sink():
    flow, batches = Dataflow("words"), []
    flow.source(records([{"n": 1}], "n long")).sink(lambda rows, batch: batches.append((rows, batch)))
    flow.graph.sinks[0].writes.write("rows", 7)
    assert batches == [("rows", 7)]


class Streaming:
    isStreaming, schema = True, "n long"


@pytest.mark.parametrize(
    ("reads", "sentence"),
    [("rates.csv", "source 'source': 'rates.csv' is not a source: take one of elastream.io"),
     (Streaming(), r"is not a source: use flow.from_dataframe\(...\)")],
)  # fmt: skip
def test_other_objects_are_no_source(reads, sentence):
    with pytest.raises(DataflowError, match=sentence):
        Dataflow("words").source(reads)


def test_function_that_makes_a_sink_must_be_called():
    with pytest.raises(DataflowError, match=r"sink 'sink': parquet makes a sink; call it: sink\(parquet\(...\)\)"):
        Dataflow("words").source(records([{"n": 1}], "n long")).sink(parquet)


def test_other_objects_are_no_sink():
    with pytest.raises(DataflowError, match=r"sink 'sink': 'counts' is not a sink: take one of elastream.io"):
        Dataflow("words").source(records([{"n": 1}], "n long")).sink("counts")


@pytest.mark.parametrize(
    ("rows", "shown"),
    [("a b", "'a'"), (None, "None"), ({"value": "a"}, "'value'"), ([{"value": "a"}, "b"], "'b'")],
)
def test_records_other_than_dicts_are_refused_in_place(rows, shown):
    with pytest.raises(DataflowError, match=f"^records are dicts by column, and {shown} is none$"):
        records(rows, "value string")


def test_load_of_a_source_is_a_pattern_or_text():
    flow, rows = Dataflow("words"), records([{"value": "a"}], "value string")
    with pytest.raises(
        DataflowError, match=r"source 'lines': 10 is not a load: write '10/s', or take one of elastream\.loads"
    ):
        flow.source(rows, load=10, name="lines")
    flow.source(rows, load="10/s").sink(collect("out"))
    assert flow.graph.sources[0].reads.load.rate(0.0) == 10.0


def test_cores_are_read_as_in_a_document():
    _, stream = words()
    with pytest.raises(ElastreamError, match="'many' is not a number of cores such as 2 or '500m'"):
        stream.map(str.upper, returns="value string", cores="many")
    flow, stream = words()
    stream.map(str.upper, returns="value string", cores="500m", name="upper").sink(collect("out"))
    assert flow.graph.by_name["upper"].cores == 0.5


def test_name_of_an_operator_is_text():
    flow, stream = words()
    stream.map(str.upper, returns="value string", name=3).sink(collect("out"))
    with pytest.raises(DataflowError, match="an operator is called 3: names are text"):
        _ = flow.graph
