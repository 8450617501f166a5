"""Queries of a job must end by themselves."""

from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from elastream.api.bounded_job import JobQueries, spec_of
from elastream.errors import InputError


@pytest.fixture
def queries(monkeypatch):
    monkeypatch.setattr(DataStreamWriter, "trigger", lambda writer, **options: writer)
    for name in ("start", "toTable"):
        monkeypatch.setattr(DataStreamWriter, name, lambda writer, *arguments: SimpleNamespace())
    queries = JobQueries(None)
    queries._check = lambda query: None
    queries.follow()
    return queries


class Some:
    def __init__(self, value):
        self._value = value

    def isDefined(self):  # noqa: N802
        return self._value is not None

    def get(self):
        return self._value


def writer(conf=None):
    made = DataStreamWriter.__new__(DataStreamWriter)
    made._spark = SimpleNamespace(conf=SimpleNamespace(set=({} if conf is None else conf).__setitem__))
    return made


def test_relative_path_of_a_file_source_is_on_this_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    options = SimpleNamespace(get=lambda name: Some("in") if name == "path" else Some(None))
    source = SimpleNamespace(className=lambda: "json", options=lambda: options)
    relation = SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: "StreamingRelation"), dataSource=lambda: source
    )
    assert spec_of(relation, "/c", 0).place == str(tmp_path / "in")


def test_progress_of_all_batches_is_kept(queries):
    conf = {}
    writer(conf).trigger(availableNow=True).start()
    assert int(conf["spark.sql.streaming.numRecentProgressUpdates"]) > 10_000


def test_query_without_the_trigger_is_refused_after_one_that_has_it(queries):
    for each in [writer() for _ in range(50)]:
        each.trigger(availableNow=True).start()
    del each
    for each in [writer() for _ in range(50)]:  # some take the places in memory of those that are gone
        with pytest.raises(InputError, match="no trigger"):
            each.start()
