"""Runs whose files are on a file system that is not mounted: over a mount table, and on a real HDFS."""

import json
import os
import signal
import subprocess
import sys

import pytest

from elastream.recording.paths import RemotePath, names_in
from support.clusters import PROGRAMS, hdfs
from support.commands import invoke
from support.waiting import wait_until

PROGRAM = PROGRAMS / "counts_with_remote_files.py"
ELASTREAM = [sys.executable, "-c", "from elastream.cli.app import app; app()"]


def started(folder, *words, **environment):
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*ELASTREAM, "run", *map(str, words), "--no-live"],
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.spark
def test_executors_with_remote_files_count_exactly(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    settings = {"spark.hadoop.fs.viewfs.mounttable.t.link./runs": there.as_uri()}
    process = started(tmp_path / "here", PROGRAM, RUNS="viewfs://t/runs", SETTINGS=json.dumps(settings))
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert "every count is exact" in said
    (run,) = (tmp_path / "here" / "runs").iterdir()
    (files,) = there.iterdir()
    assert files.name == run.name
    assert not list((run / "checkpoint").iterdir())
    assert {each.name for each in (files / "checkpoint").iterdir()} == {"source", "count"}
    assert (files / "driver" / "report.html").read_bytes() == (run / "report.html").read_bytes()
    assert not (files / "driver.json").exists()  # nobody holds it any more


@pytest.mark.hdfs
@pytest.mark.spark
@pytest.mark.slow
def test_a_killed_run_on_hdfs_resumes_in_another_folder(tmp_path):
    with hdfs(tmp_path / "hdfs") as address:
        process = started(tmp_path / "first", PROGRAM, RUNS=f"{address}/runs", LASTS="30s")
        files = wait_until(lambda: begun(RemotePath(f"{address}/runs")))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        (tmp_path / "first").rename(tmp_path / "gone")
        process = started(tmp_path / "second", "--resume", files)
        said, _ = process.communicate()
        assert process.returncode == 0, said
        assert "resumed at" in said
        assert "every count is exact" in said


def begun(runs):
    """The folder of the run once each query has committed five batches."""
    try:
        (name,) = names_in(runs)
        counts = [len(names_in(runs / name / "checkpoint" / query / "commits")) for query in ("source", "count")]
    except (FileNotFoundError, ValueError):
        return None
    return runs / name if min(counts) >= 5 else None


@pytest.mark.parametrize("words", [[PROGRAM], ["--resume", "hdfs://127.0.0.1:1/runs/one"]])
def test_a_file_system_that_does_not_answer_is_one_sentence_and_status_2(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNS", "hdfs://127.0.0.1:1/runs")
    monkeypatch.setenv("SETTINGS", json.dumps({"spark.hadoop.dfs.namenode.http-address": "127.0.0.1:1"}))
    result = invoke("run", *words, "--no-live")
    assert result.exit_code == 2, result.output
    assert "no name node of hdfs://127.0.0.1:1 answers on WebHDFS" in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not any(tmp_path.iterdir())
