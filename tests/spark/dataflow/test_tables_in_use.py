"""How key tables come to where workers find them."""

import pytest

from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, selections_of
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.spark.dataflow.table_activation import table_publisher
from elastream.spark.worker.table_lookup import lookup


def forecasting() -> Graph:
    flow = Dataflow("forecasting")
    parsed = flow.source(None).map(dict, returns="customer long", name="parse")
    parsed.map({"mean": dict, "trend": dict}, returns="n long", name="predict", select_by="customer").sink(None)
    return flow.graph


NAMES = ("mean", "trend")


def appended(tmp_path, times: int) -> KeyTableLog:
    log = KeyTableLog(RunDirectory(tmp_path), selections_of(forecasting()))
    for number in range(times):
        log.append(KeyTable("forecasting", "predict", ("customer",), {(1,): NAMES[number % 2]}))
    return log


def test_a_version_is_found_by_its_digit_once_it_is_in_use(tmp_path):
    appended(tmp_path, 2)
    bring = table_publisher(forecasting(), RunDirectory(tmp_path))
    assert bring is not None
    assert bring("predict", 2, (), NAMES) == ""
    folder = RunDirectory(tmp_path).tables_in_use
    assert lookup(folder, "predict", 2, NAMES).of_key([1]) == 1
    assert lookup(folder, "predict", 2, NAMES).of_key([2]) == -1
    with pytest.raises(FileNotFoundError):
        lookup(folder, "predict", 1, NAMES)


def test_a_missing_version_is_refused_and_a_changed_file_fails(tmp_path):
    log = appended(tmp_path, 1)
    bring = table_publisher(forecasting(), RunDirectory(tmp_path))
    assert bring is not None
    assert "no key table of version 2" in bring("predict", 2, (), NAMES)
    log.file("predict", 1).write_bytes(b"something else")
    with pytest.raises(InputError, match="another hash"):
        bring("predict", 1, (), NAMES)


def test_versions_with_one_digit_are_not_in_use_together(tmp_path):
    appended(tmp_path, 256)
    bring = table_publisher(forecasting(), RunDirectory(tmp_path))
    assert bring is not None
    assert bring("predict", 1, (), NAMES) == ""
    first, second = Composition(3, tables={"predict": 1}), Composition(4, tables={"predict": 2})
    assert "key table 1 of 'predict'" in bring("predict", 256, (first, second), NAMES)
    assert bring("predict", 256, (second,), NAMES) == ""
