"""Key tables in the folder of a run."""

import datetime
import multiprocessing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.key_table import KeyTable, Selection
from elastream.errors import DataflowError, InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog, read_rows, written_rows
from support.property_examples import examples

SELECTION = Selection("forecasting", "predict", {"customer": "bigint"}, ("mean", "arima"))


def log_in(root) -> KeyTableLog:
    return KeyTableLog(RunDirectory(root), {"predict": SELECTION})


def table(rows) -> KeyTable:
    return KeyTable("forecasting", "predict", ("customer",), rows)


def test_versions_are_there_for_who_opens_the_folder_later(tmp_path):
    first = log_in(tmp_path)
    assert first.newest() == {}
    assert first.append(table({(1,): "mean"}), "a test") == 1
    other = log_in(tmp_path)
    assert other.append(table({(1,): "arima", (2,): "mean"})) == 2
    assert first.newest() == other.newest() == {"predict": 2}
    assert dict(first.find("predict", 2).rows) == {(1,): "arima", (2,): "mean"}
    assert [(each.version, each.keys, each.who) for each in first.versions()] == [(1, 1, "a test"), (2, 2, "")]


def test_file_is_named_by_its_hash_and_a_changed_one_is_no_table(tmp_path):
    log = log_in(tmp_path)
    log.append(table({(1,): "mean"}))
    entry, file = log.entry("predict", 1), log.file("predict", 1)
    assert entry.sha256.startswith(file.stem.partition("-")[2])
    file.write_bytes(written_rows(table({(1,): "arima"})))
    with pytest.raises(InputError, match="another hash"):
        log.find("predict", 1)


def test_a_table_that_does_not_fit_leaves_nothing_behind(tmp_path):
    log = log_in(tmp_path)
    with pytest.raises(DataflowError, match="names the alternate 'naive'"):
        log.append(table({(1,): "naive"}))
    with pytest.raises(DataflowError, match="does not choose its alternate by key"):
        log.append(KeyTable("forecasting", "parse", (), {}))
    assert list(tmp_path.iterdir()) == []


def test_half_a_line_is_not_a_version_and_is_overwritten(tmp_path):
    log = log_in(tmp_path)
    log.append(table({(1,): "mean"}))
    with RunDirectory(tmp_path).key_table_log.open("ab") as file:
        file.write(b'{"operator": "predict", "ver')
    again = log_in(tmp_path)
    assert again.newest() == {"predict": 1}
    assert again.append(table({(1,): "arima"})) == 2
    assert log.newest() == log_in(tmp_path).newest() == {"predict": 2}


def test_a_damaged_line_is_named(tmp_path):
    log_in(tmp_path).append(table({}))
    with RunDirectory(tmp_path).key_table_log.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(InputError, match="line 2"):
        log_in(tmp_path).newest()


def append_some(root, count: int) -> None:
    log = log_in(root)
    for _ in range(count):
        log.append(table({(1,): "mean"}))


def test_processes_that_append_at_once_lose_no_version(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=append_some, args=(tmp_path, 5)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    log = log_in(tmp_path)
    assert log.newest() == {"predict": 15}
    assert all(len(log.find("predict", version)) == 1 for version in range(1, 16))


KEYS = st.one_of(
    st.dictionaries(st.tuples(st.integers(-(2**63), 2**63 - 1)), st.sampled_from(["mean", "arima"])),
    st.dictionaries(st.tuples(st.text(), st.booleans()), st.sampled_from(["mean", "arima"])),
    st.dictionaries(st.tuples(st.dates(datetime.date(1, 1, 1))), st.sampled_from(["mean", "arima"])),
)


@settings(max_examples=examples(100))
@given(rows=KEYS)
def test_rows_are_read_back_and_equal_rows_are_equal_bytes(rows):
    columns = tuple(f"c{n}" for n in range(len(next(iter(rows), (1,)))))
    content = written_rows(KeyTable("f", "o", columns, rows))
    assert read_rows(content) == (columns, rows)
    turned = dict(reversed(rows.items()))
    assert written_rows(KeyTable("f", "o", columns, turned)) == content
