"""`elastream autopilot --freshness ... spark-pipelines run`: flows of a pipeline commit new files and sleep between."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elastream.freshness.wakes import entries_of, runs_of
from elastream.recording.directory import RunDirectory
from support.waiting import ended, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
SPARK = ["--master", "local-cluster[1,1,700]", "--conf", "spark.executor.memory=700m", "--conf", "spark.ui.enabled=false"]
COMMAND = Path(sys.executable).with_name("elastream")
FLOWS = """
from pyspark import pipelines as dp

dp.create_sink("sold", format="json", options={{"path": "{folder}/out"}})


@dp.append_flow(target="sold")
def orders():
    return spark.readStream.schema("id long").json("{folder}/in")
"""
SPECIFICATION = """
name: shop
storage: file://{folder}/storage
libraries:
  - glob:
      include: flows.py
"""


def sold(folder: Path) -> list[int]:
    return sorted(json.loads(line)["id"] for part in (folder / "out").glob("*.json") for line in part.open())


def deliver(folder: Path, numbers: range) -> None:
    hidden = folder / f".{numbers.start}"
    hidden.write_text("".join(json.dumps({"id": number}) + "\n" for number in numbers))
    hidden.rename(folder / "in" / f"{numbers.start}.json")


def test_pipeline_commits_each_delivery_once_and_sleeps_between(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "flows.py").write_text(FLOWS.format(folder=tmp_path))
    (tmp_path / "spark-pipeline.yaml").write_text(SPECIFICATION.format(folder=tmp_path))
    deliver(tmp_path, range(40))
    options = ["--freshness", "20s", "--folder", str(tmp_path / "run"), "--max-hosts", "1"]
    with (tmp_path / "log").open("a") as log:
        process = subprocess.Popen(
            [COMMAND, "autopilot", *options, "spark-pipelines", *SPARK, "run"], cwd=tmp_path, stdout=log, stderr=log
        )
    directory = RunDirectory(tmp_path / "run")

    def asleep(runs: int) -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        return len(runs_of(entries_of(directory))) >= runs

    try:
        wait_until(lambda: asleep(1))
        assert sold(tmp_path) == list(range(40))
        deliver(tmp_path, range(40, 70))
        wait_until(lambda: asleep(2))
        assert sold(tmp_path) == list(range(70))
        assert [run.records for run in runs_of(entries_of(directory))] == [40, 30]
        subprocess.run([COMMAND, "stop", str(directory.root)], check=True, capture_output=True)
        assert process.wait() == 0
    finally:
        process.terminate()
        ended(process)
