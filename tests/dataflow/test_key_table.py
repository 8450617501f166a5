"""Key tables as values: what they say, and what is refused."""

import datetime

import pytest

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, KeyTableBook, selection_of, selections_of
from elastream.errors import DataflowError


def forecasting(select_by: str | tuple[str, ...] = "customer", returns: str = "customer long, region string") -> Graph:
    flow = Dataflow("forecasting")
    readings = flow.source(None).map(dict, returns=returns, name="parse")
    predicted = readings.map({"mean": dict, "arima": dict}, returns=returns, name="predict", select_by=select_by)
    predicted.sink(None)
    return flow.graph


def table(rows, columns=("customer",), dataflow="forecasting", operator="predict") -> KeyTable:
    return KeyTable(dataflow, operator, columns, rows)


def test_a_table_that_fits_passes_and_answers_for_its_keys_only():
    found = table({(1,): "arima", (2,): "mean"}).check(selection_of(forecasting(), "predict"))
    assert (found.alternate((1,)), found.alternate((3,))) == ("arima", None)
    assert found.shares([(1,), (2,), (3,), (4,)], otherwise="mean") == {"arima": 0.25, "mean": 0.75}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (table({}, dataflow="other"), "of dataflow 'other'"),
        (table({}, operator="parse"), "given for operator 'predict'"),
        (table({}, columns=("region",)), "selects by customer"),
        (table({(1,): "naive"}), "names the alternate 'naive' for 1; it has: mean, arima"),
        (table({("1",): "mean"}), "column 'customer' is bigint"),
        (table({(True,): "mean"}), "column 'customer' is bigint"),
        (table({(2**63,): "mean"}), "column 'customer' is bigint"),
        (table({(None,): "mean"}), "column 'customer' is bigint"),
        (table({(1, 2): "mean"}), "for the columns customer"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_one_sentence(given, sentence):
    with pytest.raises(DataflowError) as refused:
        given.check(selection_of(forecasting(), "predict"))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("rows", "columns", "sentence"),
    [
        ({("a",): "mean"}, "customer", r"has the columns 'customer': list them, as \('customer',\)"),
        ({"a": "mean"}, ("customer",), r"has the key 'a': write it as the tuple \('a',\)"),
    ],
)
def test_columns_and_keys_that_are_no_tuples_are_refused_in_place(rows, columns, sentence):
    with pytest.raises(DataflowError, match=f"the key table of operator 'predict' {sentence}"):
        table(rows, columns)


def test_a_key_of_several_columns_is_checked_column_by_column():
    selection = selection_of(forecasting(("customer", "region")), "predict")
    table({(1, "east"): "mean"}, ("customer", "region")).check(selection)
    with pytest.raises(DataflowError, match="column 'region' is string"):
        table({(1, 2): "mean"}, ("customer", "region")).check(selection)


def test_types_that_only_spark_knows_take_any_key_but_one_type_for_all():
    flow = Dataflow("forecasting")
    selected = flow.source(None).select({"customer": "cast(value as bigint)"})
    selected.map({"mean": dict, "arima": dict}, returns="n long", name="predict", select_by="customer").sink(None)
    selection = selection_of(flow.graph, "predict")
    assert selection.columns == {"customer": None}
    table({(1,): "mean", (2,): "arima"}).check(selection)
    table({(datetime.date(2026, 1, 1),): "mean"}).check(selection)
    for rows in ({(1,): "mean", ("2",): "mean"}, {(1.5,): "mean"}, {(None,): "mean"}):
        with pytest.raises(DataflowError):
            table(rows).check(selection)


def test_a_filter_passes_on_the_types_of_what_comes_before_it():
    flow = Dataflow("forecasting")
    parsed = flow.source(None).map(dict, returns="customer int", name="parse").filter(bool, name="some")
    parsed.map({"mean": dict, "arima": dict}, returns="n long", name="predict", select_by="customer").sink(None)
    assert selections_of(flow.graph)["predict"].columns == {"customer": "int"}


def test_fractions_cannot_be_keys():
    with pytest.raises(DataflowError, match="type double, which cannot be a key"):
        selection_of(forecasting("load", "load double"), "predict")


def test_an_operator_that_selects_by_no_key_takes_no_table():
    with pytest.raises(DataflowError, match="does not choose its alternate by key"):
        selection_of(forecasting(), "parse")


def test_versions_count_from_one_and_none_is_an_error():
    book = KeyTableBook(table({(1,): "mean"}))
    assert book.append(table({(1,): "arima"})) == 2
    assert book.newest() == {"predict": 2}
    assert book.find("predict", 1).alternate((1,)) == "mean"
    for version in (0, 3):
        with pytest.raises(DataflowError, match="no key table of version"):
            book.find("predict", version)
