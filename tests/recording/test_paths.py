"""Paths on file systems that are not mounted behave as local ones do: on a disk, in fsspec's memory, and on a real HDFS.

An object store, where nothing is renamed, is fsspec's memory with that taken away.
"""

import itertools
import json
import os
import pickle
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastream.errors import EnvironmentProblem, InputError
from elastream.recording.file_systems import FILES_REACHED_BY, _name_nodes, reached_by, resolved
from elastream.recording.paths import (
    RemotePath,
    is_address,
    mark_whole,
    modified_at,
    names_in,
    path_of,
    readable,
    remove_tree,
    scanned,
    stamp_of,
    tree,
    write_whole,
)
from elastream.spark.dataflow.change_log import newest_rows, tidy
from elastream.spark.dataflow.edge_log import EdgeLog, note_composition
from elastream.spark.dataflow.sinks import _batch_folder, begin_results, latest, replace_results, skip_batch
from elastream.spark.worker.composition import (
    BatchComposition,
    CompositionLog,
    CompositionRequest,
    latest_batch,
    read_request,
    write_request,
)
from elastream.spark.worker.left_out import LeftOut
from support.clusters import hdfs

NUMBER = itertools.count()
KINDS = ("disk", "memory", "object store", "mounted", pytest.param("hdfs", marks=[pytest.mark.hdfs, pytest.mark.slow]))


@pytest.fixture(scope="module")
def real_hdfs(tmp_path_factory):
    with hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture(params=KINDS)
def root(request, tmp_path, monkeypatch):
    if request.param == "disk":
        return tmp_path / "root"
    if request.param == "hdfs":
        return path_of(f"{request.getfixturevalue('real_hdfs')}/root{next(NUMBER)}")
    if request.param == "mounted":
        monkeypatch.setenv(FILES_REACHED_BY, json.dumps({"fs.viewfs.mounttable.t.link./runs": tmp_path.as_uri()}))
        return path_of("viewfs://t/runs/root")
    if request.param == "object store":
        monkeypatch.setattr(RemotePath, "renames", property(lambda self: False))
    return path_of(f"memory://bucket/root{next(NUMBER)}")


def test_a_file_is_written_as_a_whole_and_over_what_was_there(root):
    place = root / "a" / "file.json"
    for text in ("one", "two"):
        write_whole(place, text.encode())
        assert place.read_text() == text
    assert names_in(root / "a") == ["file.json"]
    assert place.is_file()
    assert not place.is_dir()
    assert (root / "a").is_dir()
    assert abs(modified_at(place) - time.time()) < 3600
    assert stamp_of(place) == stamp_of(place)


def test_what_is_not_there_is_said_as_of_local_files(root):
    assert not (root / "none").exists()
    assert list((root / "none").glob("*")) == []
    remove_tree(root / "none")
    (root / "none").unlink(missing_ok=True)
    for ask in (
        lambda: names_in(root / "none"),
        lambda: scanned(root / "none"),
        (root / "none").read_text,
        (root / "none").read_bytes,
        (root / "none").unlink,
        lambda: modified_at(root / "none"),
        lambda: stamp_of(root / "none"),
    ):
        with pytest.raises(FileNotFoundError):
            ask()


def test_a_folder_is_listed_with_sizes_and_removed_with_all_that_is_in_it(root):
    write_whole(root / "x" / "y" / "deep", b"1")
    write_whole(root / "x" / "file", b"12345")
    found = {entry.name: entry for entry in scanned(root / "x")}
    assert {name: entry.is_folder for name, entry in found.items()} == {"y": True, "file": False}
    assert found["file"].bytes == 5
    assert [each.name for each in (root / "x").glob("f*")] == ["file"]
    remove_tree(root / "x")
    assert not (root / "x" / "y" / "deep").exists()


def test_tree_holds_every_file_by_its_name_below_the_folder(root):
    names = {"file", "x/y/deep", "x/a, b/50%", "x/Ü/#1"}
    for name in names:
        write_whole(root / "c #1" / name, name.encode())
    assert {each.name: each.bytes for each in tree(root / "c #1")} == {name: len(name.encode()) for name in names}
    assert {(root / "c #1" / name).read_text() for name in names} == names
    assert next(iter(tree(root / "c #1" / "x" / "y"))).name == "deep"


def test_arrow_reads_what_it_wrote(root):
    out = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1, 2, 3]}), out)
    write_whole(root / "part.parquet", out.getvalue().to_pybytes())
    assert pq.read_metadata(readable(root / "part.parquet")).num_rows == 3
    assert pq.ParquetFile(readable(root / "part.parquet")).read().to_pylist() == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_records_of_an_edge_have_equal_numbers_in_every_process(root):
    rows = itertools.count()
    for batch in range(120):
        folder, written = _batch_folder(root, batch)
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": [next(rows) for _ in range(2)]}), out)
        write_whole(written / "part-0.parquet", out.getvalue().to_pybytes())
        note_composition(written, BatchComposition(batch // 10, batch))
        mark_whole(written, folder)
    skip_batch(root, 120, BatchComposition(12, 120))
    log, other = EdgeLog(root, versions=True), EdgeLog(root, versions=True)
    assert log.refresh() == other.refresh() == 240
    pieces = log.pieces(5, 9)
    read = [n for p in pieces for n in pq.ParquetFile(readable(p.path)).read().column("n").to_pylist()[p.first :][: p.rows]]
    assert read == [5, 6, 7, 8]
    assert pickle.loads(pickle.dumps(pieces)) == pieces
    assert log.composition(21) == BatchComposition(1, 10)
    log.retire(230, time.time() + 3600)
    assert not (root / "batch=0").exists()
    anew = EdgeLog(root)
    assert anew.refresh() == 240


def test_compositions_and_what_is_wanted_are_read_back(root):
    write_request(root / "wanted.json", CompositionRequest(3, 7, {"source": 2}))
    assert read_request(root / "wanted.json") == CompositionRequest(3, 7, {"source": 2})
    assert read_request(root / "other.json") == CompositionRequest()
    log = CompositionLog(root / "composition")
    assert log.newest() == BatchComposition()
    log.append(5, 1, 42)
    log.append(9, 2, 43)
    assert [log.at(batch) for batch in (4, 5, 8, 9)] == [
        BatchComposition(),
        BatchComposition(1, 42),
        BatchComposition(1, 42),
        BatchComposition(2, 43),
    ]
    assert latest_batch(root / "checkpoint") == -1
    write_whole(root / "checkpoint" / "offsets" / "12", b"v1")
    assert latest_batch(root / "checkpoint") == 12


def test_tidying_a_change_log_keeps_its_newest_rows(root):
    begin_results(root, ["word"], run="one")
    for batch in range(230):
        out = pa.BufferOutputStream()
        pq.write_table(pa.table({"word": [f"w{batch % 7}"], "count": [batch]}), out)
        write_whole(root / f"batch={batch}" / "changes.parquet", out.getvalue().to_pybytes())
    before = newest_rows(root, ["word"])
    for batch in (110, 229):
        tidy(root, batch, ["word"], time.time() + 3600)
    pd.testing.assert_frame_equal(newest_rows(root, ["word"]), before)
    pd.testing.assert_frame_equal(latest(str(root)), before)
    assert sum(name.startswith("batch=") for name in names_in(root)) < 230
    with pytest.raises(EnvironmentProblem, match="results of an earlier run"):
        begin_results(root, ["word"], run="two")


def test_results_of_an_earlier_run_are_replaced(root):
    from elastream.dataflow.endpoints import ParquetSink

    begin_results(root, ["word"], run="one")
    write_whole(root / "batch=0" / "changes.parquet", b"x")
    write_whole(root / "mine.txt", b"x")
    replace_results([ParquetSink(str(root))])
    assert names_in(root) == ["mine.txt"]


def test_what_a_task_leaves_out_is_there_when_it_says_so(root):
    left = LeftOut(root, 3, "lower", 1, (7, False))
    left.flush()
    left.add("lower", "a", True, ValueError("no"), ["BAD", "WORSE"])
    left.add("lower", "a", True, ValueError("no"), ["WORST"])
    left.flush()
    lines = [json.loads(line) for line in (root / "3" / "lower-1.7").read_text().splitlines()]
    assert [line["count"] for line in lines if "count" in line] == [3]
    assert [line["record"] for line in lines if "record" in line] == ["BAD", "WORSE", "WORST"]
    again = LeftOut(root, 3, "lower", 1, (8, True))
    again.flush()
    assert (root / "3" / "lower-1.8").read_text() == ""


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("hdfs://name:8020/runs/", RemotePath("hdfs://name:8020/runs")),
        (Path("s3a://bucket/runs"), RemotePath("s3a://bucket/runs")),  # pathlib keeps one slash of two
        ("file:///runs/a", Path("/runs/a")),
        ("runs/a: b", Path("runs/a: b")),
        ("C:/runs", Path("C:/runs")),
        (Path("/runs"), Path("/runs")),
    ],
)
def test_an_address_is_told_from_a_path(given, found):
    assert path_of(given) == found
    assert is_address(given) == isinstance(found, RemotePath)
    assert path_of(found) == found
    if isinstance(found, RemotePath):
        with pytest.raises(TypeError):
            os.stat(found)  # type: ignore[arg-type]  # no function of `os` takes it for a path of this machine


@pytest.mark.parametrize("given", ["hdfs://", "s3a:", Path("hdfs://"), "file:///"])
def test_a_scheme_alone_is_no_folder(given):
    with pytest.raises(
        InputError, match=r"^(hdfs|s3a|file):// is the address of no folder: a host or a bucket is missing$"
    ):
        path_of(given)


def test_settings_by_which_a_file_system_is_reached_have_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.namenode.http-address</name><value>one:1</value></property>"
        "<property><name>dfs.replication</name><value>3</value></property></configuration>"
    )
    given = {
        "spark.hadoop.dfs.namenode.http-address": "two:2",
        "spark.hadoop.fs.s3a.endpoint": "store:9000",
        "spark.hadoop.fs.s3a.secret.key": "hidden",
        "spark.executor.memory": "1g",
    }
    assert json.loads(reached_by(given)) == {"dfs.namenode.http-address": "two:2", "fs.s3a.endpoint": "store:9000"}
    assert json.loads(reached_by({})) == {"dfs.namenode.http-address": "one:1"}
    (tmp_path / "core-site.xml").write_text("<configuration>")
    with pytest.raises(InputError, match=r"core-site.xml cannot be read: "):
        reached_by({})


@pytest.mark.parametrize(
    ("authority", "settings", "found"),
    [
        ("name:8020", {}, [("name", 9870)]),
        ("name", {"dfs.namenode.http-address": "0.0.0.0:50070"}, [("name", 50070)]),
        ("name:8020", {"dfs.namenode.http-address": "web:1"}, [("web", 1)]),
        (
            "service",
            {
                "dfs.ha.namenodes.service": "a, b",
                "dfs.namenode.http-address.service.a": "one:1",
                "dfs.namenode.http-address.service.b": "two:2",
            },
            [("one", 1), ("two", 2)],
        ),
    ],
)
def test_name_nodes_of_a_name_service(authority, settings, found):
    assert list(_name_nodes(authority, settings, https=False)) == found


def test_a_file_system_that_does_not_answer_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setenv(FILES_REACHED_BY, json.dumps({"dfs.namenode.http-address": "127.0.0.1:1"}))
    with pytest.raises(OSError, match=r"no name node of hdfs://127.0.0.1:1 answers on WebHDFS \(127.0.0.1:1\)"):
        RemotePath("hdfs://127.0.0.1:1/runs").exists()


def test_error_of_a_client_names_the_file(monkeypatch):
    class Unauthenticated(Exception):  # as clients of object stores have
        pass

    def cat(self, path, **more):
        raise Unauthenticated("token expired")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.cat_file", cat)
    with pytest.raises(OSError, match=r"Unauthenticated: token expired: 'memory://bucket/a'"):
        path_of("memory://bucket/a").read_bytes()


def test_links_of_a_mount_table_are_followed():
    links = {"/a": "hdfs://one:1/x", "/a/b": "hdfs://two:2/", "/": "s3a://rest"}
    reached = json.dumps({f"fs.viewfs.mounttable.t.link.{link}": to for link, to in links.items()})
    found = [resolved(f"viewfs://t{path}", reached) for path in ("/a", "/a/c", "/a/b/c", "/ab")]
    assert found == ["hdfs://one:1/x", "hdfs://one:1/x/c", "hdfs://two:2/c", "s3a://rest/ab"]
    with pytest.raises(EnvironmentProblem, match="no link of the mount table 'other' leads to viewfs://other/a"):
        resolved("viewfs://other/a", reached)
