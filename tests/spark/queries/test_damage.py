"""What a run goes on from is looked at before hosts are started: each file that is missing or torn is one sentence."""

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastream import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import InputError
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.spark.queries.damage import check_not_damaged
from elastream.spark.worker.composition import CompositionRequest, write_request

READ = 30
"""Records of ten a batch that the second query has read, of 40 that were written."""


@pytest.fixture
def layout() -> Layout:
    flow = Dataflow("two")
    words = (
        flow.source(records([{"value": "a"}], "value string"), load=constant("10/s"))
        .map(lambda row: row, returns="value string")
        .durable()
    )
    words.key_by("value").count().sink(collect("counts"))
    return lay_out(flow.graph)


@pytest.fixture
def run(tmp_path: Path, layout: Layout) -> RunDirectory:
    """A run of two queries, the first of which committed four batches and the second three of them."""
    directory = RunDirectory(tmp_path / "run")
    (first, second), (edge,) = layout.segments, layout.segments[1].inputs
    for query, batches, offset in (
        (first.name, 4, {"n": 40}),
        (second.name, 3, {"edge": f"{edge.source}-{edge.target}", "n": READ}),
    ):
        checkpoint = directory.checkpoint(query)
        for kind in ("offsets", "commits"):
            (checkpoint / kind).mkdir(parents=True)
            for number in range(batches):
                (checkpoint / kind / str(number)).write_text(f"v1\n{{}}\n{json.dumps(offset)}\n")
        (checkpoint / "metadata").write_text("{}")
    for number in range(4):
        folder = directory.edge(edge.source, edge.target) / f"batch={number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"value": ["a"] * 10}), folder / "part.parquet")
    directory.composition_request.parent.mkdir(parents=True, exist_ok=True)
    write_request(directory.composition_request, CompositionRequest())
    return directory


def test_a_retired_edge_resumes_even_with_its_first_batch_left(run, layout) -> None:
    (edge,) = (run.root / "edges").iterdir()
    (edge / "_first.json").write_text(json.dumps({"format": 1, "batch": 2, "records": 20}))
    shutil.rmtree(edge / "batch=1")
    check_not_damaged(layout, run)
    shutil.rmtree(edge / "batch=0")
    check_not_damaged(layout, run)


def test_a_driver_killed_before_a_commit_leaves_a_whole_folder(run, layout) -> None:
    first = layout.segments[0].name
    (run.root / "checkpoint" / first / "commits" / "3").unlink()
    check_not_damaged(layout, run)


DAMAGES = {
    "edges": ("remove", "edges", r"edges/\S+ has 0 records of the 30 that '{second}' has read"),
    "newest batch of an edge": ("remove", "edges/*/batch=3", r"edges/\S+ has no batch=3, which '{first}' wrote"),
    "read batch of an edge": ("remove", "edges/*/batch=1", r"edges/\S+ has 10 records of the 30 that '{second}' has read"),
    "a file of an edge": ("cut", "edges/*/batch=2/part.parquet", r"edges/\S+ cannot be read \("),
    "offsets": ("remove", "checkpoint/{first}/offsets/3", r"checkpoint/{first}/offsets/3 is missing"),
    "torn offsets": ("cut", "checkpoint/{second}/offsets/2", r"checkpoint/{second}/offsets/2 is cut off"),
    "offsets cut in a line": ('v1\n{{}}\n{{"edge": "x', "checkpoint/{second}/offsets/2", r"{second}/offsets/2 is cut off"),
    "offsets without a number": (
        'v1\n{{}}\n{{"edge": "x"}}', "checkpoint/{second}/offsets/2", r"the offsets of \S+{second} cannot be read \(Key",
    ),
    "commits": ("", "checkpoint/{first}/commits/3", r"checkpoint/{first}/commits/3 is cut off"),
    "planned": ("", "checkpoint/{first}/offsets/4", r"checkpoint/{first}/offsets/4 is cut off"),
    "empty metadata": ("", "checkpoint/{first}/metadata", r"checkpoint/{first}/metadata is cut off"),
    "metadata": ("remove", "checkpoint/{first}/metadata", r"checkpoint/{first}/metadata is missing"),
    "checkpoint of the writer": (
        "remove", "checkpoint/{first}", r"edges/\S+ has 4 batches, and the checkpoint of '{first}' knows of 0",
    ),
    "wanted composition": ("cut", "control/wanted.json", r"control/wanted\.json is damaged"),
}  # fmt: skip
"""What is done to which files, and what is said of them."""


def refused(run: RunDirectory, layout: Layout) -> str:
    with pytest.raises(InputError) as error:
        check_not_damaged(layout, run)
    return str(error.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_named(run: RunDirectory, layout: Layout, damage: str) -> None:
    named = {"first": layout.segments[0].name, "second": layout.segments[1].name}
    how, where, said = (text.format(**named) for text in DAMAGES[damage])
    for path in list(run.root.glob(where)) or [run.root / where]:
        if how == "remove":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:5] if how == "cut" else how.encode())
    found = refused(run, layout)
    assert re.search(said, found), found
    if damage != "wanted composition":
        assert found.startswith(f"the run in {run.root} cannot go on: ")
        assert found.endswith("; restore it, or start the run anew")


def test_a_lost_checkpoint_of_the_reader_of_a_retired_edge_is_named(run: RunDirectory, layout: Layout) -> None:
    (edge,), second = (run.root / "edges").iterdir(), layout.segments[1].name
    (edge / "_first.json").write_text(json.dumps({"format": 1, "batch": 2, "records": 20}))
    for gone in (edge / "batch=0", edge / "batch=1", run.root / "checkpoint" / second):
        shutil.rmtree(gone)
    assert f"has no records before number 20 any more, and the checkpoint of '{second}' is at 0" in refused(run, layout)


def test_a_query_whose_checkpoint_is_gone_begins_anew_and_that_is_said(run: RunDirectory, layout: Layout, caplog) -> None:
    second = layout.segments[1].name
    shutil.rmtree(run.root / "checkpoint" / second)
    run.recording.write_text("")
    check_not_damaged(layout, run)
    assert [record.message for record in caplog.records] == [f"there is no checkpoint of {second!r}: it begins anew"]


def test_a_repartition_of_the_writer_leaves_no_gap_in_its_edge(run, layout) -> None:
    """A repartition is a batch without records, of which the sink hears nothing."""
    (edge,) = (run.root / "edges").iterdir()
    checkpoint = run.checkpoint(layout.segments[0].name)
    for number, width in ((3, "4"), (4, "8")):
        settings = json.dumps({"conf": {"spark.sql.shuffle.partitions": width}})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{settings}\n{json.dumps({'n': 40})}\n")
    (checkpoint / "commits" / "4").write_text("v1\n{}\n")
    check_not_damaged(layout, run)
    assert sorted(each.name for each in edge.iterdir())[-1] == "batch=4"


def test_a_batch_skipped_for_a_repartition_leaves_no_gap_either(run, layout) -> None:
    checkpoint = run.checkpoint(layout.segments[0].name)
    for number, width, read in ((3, "4", 40), (4, "4", 50), (5, "8", 40)):
        settings = json.dumps({"conf": {"spark.sql.shuffle.partitions": width}})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{settings}\n{json.dumps({'n': read})}\n")
    for number in (4, 5):
        (checkpoint / "commits" / str(number)).write_text("v1\n{}\n")
    check_not_damaged(layout, run)
    (edge,) = (run.root / "edges").iterdir()
    assert len(list(edge.iterdir())) == 6


def test_two_repartitions_before_a_resume_leave_no_gap(run, layout) -> None:
    checkpoint = run.checkpoint(layout.segments[0].name)
    for number, width in ((3, "4"), (4, "8"), (5, "16")):
        settings = json.dumps({"conf": {"spark.sql.shuffle.partitions": width}})
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{settings}\n{json.dumps({'n': 40})}\n")
        (checkpoint / "commits" / str(number)).write_text("v1\n{}\n")
    check_not_damaged(layout, run)
    (edge,) = (run.root / "edges").iterdir()
    assert len(list(edge.iterdir())) == 6


def test_the_empty_batch_of_an_undone_repartition_is_removed(run, layout) -> None:
    """The writer's next batch has its number, and records."""
    (edge,) = (run.root / "edges").iterdir()
    (edge / "batch=4").mkdir()
    check_not_damaged(layout, run)
    assert sorted(each.name for each in edge.iterdir())[-1] == "batch=3"
