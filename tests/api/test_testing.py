"""`elastream.testing`: records in, rows out."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from elastream import Alternate, Dataflow
from elastream.errors import ElastreamError, InputError
from elastream.io import files, parquet, text_files
from elastream.testing import run_records


def exact(word):
    return word


def loud(word):
    return word.upper()


def refuse(word):
    if word == "poison":
        raise ValueError("bad apple")
    return word


@pytest.fixture(scope="module", autouse=True)
def room_for_later_sessions():
    """End the session that `elastream.testing` leaves open for the next call: there is room for one."""
    yield
    if (session := SparkSession.getActiveSession()) is not None:
        session.stop()


@pytest.fixture
def words():
    flow = Dataflow("words")
    lines = flow.source(text_files("books/"), name="lines")
    said = lines.flat_map(str.split, name="split", returns="word string")
    cased = said.map((Alternate("exact", exact), Alternate("loud", loud)), name="case", returns="word string")
    cased.key_by("word").count(name="counts").sink(parquet("out"), name="counted")
    return flow


def test_an_unknown_source_is_named(words):
    with pytest.raises(InputError, match=r"there is no source 'line', did you mean 'lines'\?"):
        run_records(words, {"line": []})


def test_a_source_without_records_is_named(words):
    with pytest.raises(InputError, match="source 'lines' has no records"):
        run_records(words, {})


def test_an_unknown_alternate_is_named(words):
    with pytest.raises(InputError, match=r"operator 'case' has no alternate 'louder', did you mean 'loud'\?"):
        run_records(words, {"lines": []}, alternates={"case": "louder"})
    with pytest.raises(InputError, match="there is no operator with alternates 'cases', did you mean 'case'"):
        run_records(words, {"lines": []}, alternates={"cases": "loud"})


@pytest.mark.spark
def test_records_become_rows_with_the_alternate_that_is_named(words):
    records = {"lines": [{"value": "to be or"}, {"value": "not to be"}]}
    first = run_records(words, records)["counted"]
    assert {row["word"]: row["count"] for row in first} == {"to": 2, "be": 2, "or": 1, "not": 1}
    second = run_records(words, records, alternates={"case": "loud"})["counted"]
    assert {row["word"]: row["count"] for row in second} == {"TO": 2, "BE": 2, "OR": 1, "NOT": 1}


@pytest.mark.spark
def test_a_source_may_give_no_records(words):
    assert run_records(words, {"lines": []}) == {"counted": []}


@pytest.mark.spark
def test_windows_follow_the_times_in_the_records():
    flow = Dataflow("sums")
    columns = "place string, time timestamp, level double"
    readings = flow.source(files("readings/", columns), name="readings")
    minutes = readings.window(seconds=60, by="time").group_by("place")
    minutes.aggregate({"level": "sum(level)"}, name="total").sink(parquet("out"), name="sums")
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    records = [
        {"place": "a", "time": begin + timedelta(seconds=10), "level": 1.0},
        {"place": "a", "time": begin + timedelta(seconds=50), "level": 2.0},
        {"place": "a", "time": begin + timedelta(hours=1), "level": 4.0},
    ]
    (row,) = run_records(flow, {"readings": records})["sums"]
    assert (row["place"], row["level"], row["window_start"]) == ("a", 3.0, begin)


@pytest.mark.spark
def test_a_record_on_which_an_operator_fails_is_named():
    flow = Dataflow("words")
    lines = flow.source(text_files("books/"), name="lines")
    lines.map(refuse, name="check", returns="word string").sink(parquet("out"), name="out")
    with pytest.raises(ElastreamError, match="operator 'check' failed on the record 'poison': ValueError: bad apple"):
        run_records(flow, {"lines": [{"value": "poison"}]})
