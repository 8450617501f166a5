"""Key tables of a run on a real cluster: it begins with one, is given another by the command, and no query is restarted."""

import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastream.recording.recorder import Recording
from support.waiting import ended, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMAND = Path(sys.executable).with_name("elastream")
PROGRAM = """
from elastream import Dataflow, HostType, KeyTable, Local, run
from elastream.io import parquet, records
from elastream.loads import constant
from elastream.policies import Static

def tagged(name):
    return lambda row: {{**row, "tag": name}}

flow = Dataflow("tagging")
rows = [{{"key": key, "n": n}} for n in range(100) for key in "abc"]
source = flow.source(records(rows, "key string, n long"), load=constant("100/s", lasts="40s"))
tags = source.map({{name: tagged(name) for name in ("x", "y", "z")}}, returns="key string, n long, tag string", name="tag",
                  select_by="key")
tags.sink(parquet({out!r}))
table = KeyTable("tagging", "tag", ("key",), {{("a",): "y"}})
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
run(flow, policy=Static(hosts=1), cloud=Local(tiny, max_hosts=1), target_latency="2s", tables=[table])
"""


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Rows of a file; none while it is being written."""
    with contextlib.suppress(pa.ArrowInvalid):
        return list(pq.ParquetFile(file).read().to_pylist())
    return []


def test_a_table_that_is_set_takes_effect_between_two_batches(tmp_path):
    program, out = tmp_path / "tagging.py", tmp_path / "out"
    program.write_text(textwrap.dedent(PROGRAM).format(out=str(out)))
    command = [COMMAND, "run", str(program), "--no-live", "--runs", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    def tags_of(key: str) -> list[str]:
        return [row["tag"] for file in sorted(out.glob("*.parquet")) for row in rows_of(file) if row["key"] == key]

    def holds(key: str, tag: str) -> bool:
        assert process.poll() is None, process.communicate()
        return tag in tags_of(key)

    wait_until(lambda: holds("a", "y"))
    (folder,) = (tmp_path / "runs").iterdir()
    second = tmp_path / "second.csv"
    second.write_text("key,alternate\na,z\nb,y\n")
    subprocess.run([COMMAND, "tables", "set", str(folder), "tag", str(second)], check=True, timeout=120)
    wait_until(lambda: holds("b", "y"))
    _, err = ended(process)
    assert process.returncode == 0, err
    # What ran at first is the first alternate; a key that no table names runs it throughout.
    assert {"y", "z"} <= set(tags_of("a")) <= {"x", "y", "z"}
    assert (set(tags_of("b")), set(tags_of("c"))) == ({"x", "y"}, {"x"})
    recording = Recording.read(folder)
    assert recording.ending is not None
    assert recording.ending.facts["query runs"] == 1
    assert {composition.tables["tag"] for composition in recording.compositions_at(recording.end).values()} == {2}
    for file in out.glob("*.parquet"):  # a file is of one task of one batch
        rows = rows_of(file)
        assert len({(row["key"], row["tag"]) for row in rows}) == len({row["key"] for row in rows})
    shown = subprocess.run(
        [COMMAND, "tables", "show", str(folder)], check=True, capture_output=True, text=True, timeout=120
    )
    assert "in effect" in shown.stdout
