"""What a run goes on from is looked at before hosts are started: each file that is missing or torn is one sentence."""

import json
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
    directory.wanted.parent.mkdir(parents=True, exist_ok=True)
    write_request(directory.wanted, CompositionRequest())
    return directory


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5])


def retired(run: Path, second: str) -> None:
    """The reader has removed the first two batches, and its checkpoint is gone since."""
    (edge,) = (run / "edges").iterdir()
    (edge / "_first.json").write_text(json.dumps({"format": 1, "batch": 2, "records": 20}))
    for number in (0, 1):
        shutil.rmtree(edge / f"batch={number}")
    shutil.rmtree(run / "checkpoint" / second)


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


def test_a_whole_folder_is_gone_on_from(run: RunDirectory, layout: Layout) -> None:
    check_not_damaged(layout, run)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda run, first, second: shutil.rmtree(run / "edges"),
            r"edges/\S+ has 0 records of the 30 that '{second}' has read",
        ),
        (
            lambda run, first, second: shutil.rmtree(next((run / "edges").glob("*/batch=3"))),
            r"edges/\S+ has no batch=3, which '{first}' wrote",
        ),
        (
            lambda run, first, second: shutil.rmtree(next((run / "edges").glob("*/batch=1"))),
            r"edges/\S+ has 10 records of the 30 that '{second}' has read",
        ),
        (
            lambda run, first, second: (run / "checkpoint" / first / "offsets" / "3").unlink(),
            r"checkpoint/{first}/offsets/3 is missing",
        ),
        (
            lambda run, first, second: cut(run / "checkpoint" / second / "offsets" / "2"),
            r"checkpoint/{second}/offsets/2 is cut off",
        ),
        (
            lambda run, first, second: (run / "checkpoint" / first / "commits" / "3").write_text(""),
            r"checkpoint/{first}/commits/3 is cut off",
        ),
        (
            lambda run, first, second: (run / "checkpoint" / first / "metadata").write_text(""),
            r"checkpoint/{first}/metadata is cut off",
        ),
        (
            lambda run, first, second: (run / "checkpoint" / first / "offsets" / "4").write_text(""),
            r"checkpoint/{first}/offsets/4 is cut off",
        ),
        (
            lambda run, first, second: (run / "checkpoint" / second / "offsets" / "2").write_text('v1\n{}\n{"edge": "x'),
            r"checkpoint/{second}/offsets/2 is cut off",
        ),
        (
            lambda run, first, second: (run / "checkpoint" / second / "offsets" / "2").write_text('v1\n{}\n{"edge": "x"}'),
            r"the offsets of \S+checkpoint/{second} cannot be read \(KeyError: 'n'\)",
        ),
        (
            lambda run, first, second: cut(next((run / "edges").glob("*/batch=2/part.parquet"))),
            r"edges/\S+ cannot be read \(",
        ),
        (
            lambda run, first, second: shutil.rmtree(run / "checkpoint" / first),
            r"edges/\S+ has 4 batches, and the checkpoint of '{first}' knows of 0",
        ),
        (
            lambda run, first, second: retired(run, second),
            r"edges/\S+ has no records before number 20 any more, and the checkpoint of '{second}' is at 0",
        ),
        (
            lambda run, first, second: (run / "checkpoint" / first / "metadata").unlink(),
            r"checkpoint/{first}/metadata is missing",
        ),
    ],
    ids=[
        "edges",
        "newest batch of an edge",
        "read batch of an edge",
        "offsets",
        "torn offsets",
        "commits",
        "empty metadata",
        "planned",
        "offsets cut in a line",
        "offsets without a number",
        "a file of an edge",
        "checkpoint of the writer",
        "checkpoint of the reader of an edge that has retired",
        "metadata",
    ],
)
def test_what_is_damaged_is_named(run: RunDirectory, layout: Layout, damage, said) -> None:
    first, second = (segment.name for segment in layout.segments)
    damage(run.root, first, second)
    with pytest.raises(InputError, match=said.format(first=first, second=second)) as error:
        check_not_damaged(layout, run)
    assert str(error.value).startswith(f"the run in {run.root} cannot go on: ")
    assert str(error.value).endswith("; restore it, or start the run anew")


def test_a_torn_note_of_what_is_wanted_is_named(run: RunDirectory, layout: Layout) -> None:
    cut(run.wanted)
    with pytest.raises(InputError, match=r"control/wanted\.json is damaged"):
        check_not_damaged(layout, run)


def test_a_query_whose_checkpoint_is_gone_begins_anew_and_that_is_said(run: RunDirectory, layout: Layout, caplog) -> None:
    second = layout.segments[1].name
    shutil.rmtree(run.root / "checkpoint" / second)
    run.recording.write_text("")
    check_not_damaged(layout, run)
    assert [record.message for record in caplog.records] == [f"there is no checkpoint of {second!r}: it begins anew"]
