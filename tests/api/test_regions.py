"""A dataflow on hosts of two regions that are 20 ms apart, on a real cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import ended

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMAND = Path(sys.executable).with_name("elastream")

PROGRAM = """
import json
from collections import Counter
from elastream import Dataflow, HostType, Local, run
from elastream.io import latest, parquet, records
from elastream.loads import constant
from elastream.policies import E2df

flow = Dataflow("far")
rows = [{"value": f"a{n % 7} b{n % 3}"} for n in range(100)]
lines = flow.source(records(rows, "value string"), load=constant("100/s", lasts="60s"))
words = lines.flat_map(str.split, returns="word string")
words.key_by("word").count().sink(parquet(OUT))
edge = HostType("edge-box", cores=1.0, slots=1, memory=1000.0, region="edge")
cloud = HostType("vm", cores=1.0, slots=1, memory=1000.0, region="cloud")
result = run(
    flow,
    policy=E2df(spare=1, initial=2, prefer=("cloud",), period=2.0, infrastructure_period=2.0),
    cloud=Local(host_types=[edge, cloud], max_hosts=2, latency={"edge": {"cloud": "20ms"}}),
    target_latency="3s",
    state_partitions=4,
)
counted = dict(latest(OUT).itertuples(index=False))
expected = Counter(word for line in result.replay("source") for word in line.split())
print("COUNTS", json.dumps({"equal": counted == expected, "words": expected.total()}))
"""


def test_keyed_dataflow_across_regions_counts_exactly_and_grows(tmp_path):
    program = tmp_path / "far.py"
    program.write_text(PROGRAM.replace("OUT", repr(str(tmp_path / "out"))))
    process = subprocess.Popen(
        [COMMAND, "run", str(program), "--no-live", "--runs", str(tmp_path / "runs")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    out, err = ended(process, patience=300)
    assert process.returncode == 0, err[-2000:]
    (folder,) = (tmp_path / "runs").iterdir()
    entries = [json.loads(line) for line in (folder / "recording.jsonl").read_text().splitlines()]
    told = entries[0]["environment"]["hosts"]
    if "as far apart" not in told:
        pytest.skip(told)
    (counts,) = (line for line in out.splitlines() if line.startswith("COUNTS"))
    assert json.loads(counts.removeprefix("COUNTS"))["equal"]
    assert entries[-1]["facts"]["query runs"] == 1
    # It grew, and not in the region where it began.
    assert [lease["type"] for lease in entries[-1]["ledger"]][:2] == ["edge-box", "vm"]
    seen = [entry for entry in entries if entry["kind"] == "observation"]
    holding = {entry["hosts"]["ids"][row] for entry in seen for row in entry["tasks"]["host"]}
    assert holding == {"h1", "h2"}
    seconds = [each for entry in seen for each in entry["links"]["values"].get("network_latency", [])]
    assert min(seconds) == pytest.approx(0.02, abs=0.005)
