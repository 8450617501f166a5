"""Dataflows as they are written in Python: what is refused where it is written down."""

import pytest

from elastream.model.endpoints import collect, records
from elastream.model.errors import DataflowError
from elastream.model.flow import Dataflow


def words() -> tuple[Dataflow, object]:
    flow = Dataflow("words")
    return flow, flow.source(records([{"value": "a"}], "value string"))


def test_a_selected_column_may_have_any_name_also_that_of_a_parameter():
    flow, stream = words()
    stream.select({"columns": "value", "name": "upper(value)", "returns": "1"}).sink(collect("out"))
    (alternate,) = flow.graph.by_name["select"].alternates
    assert alternate.function == {"columns": "value", "name": "upper(value)", "returns": "1"}


def test_columns_that_are_not_sql_text_by_name_are_refused_where_they_are_written():
    for columns in ({}, {"word": {"n": "1"}}, {"n": 1}, "upper(value)", {"columns": {"word": "value"}}):
        for write in (words()[1].select, words()[1].key_by("value").aggregate):
            with pytest.raises(DataflowError, match="is not SQL text by column name, such as"):
                write(columns)
