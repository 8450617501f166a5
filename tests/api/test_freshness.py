"""`run(flow, freshness=...)`: what cannot sleep is refused; killed runs go on, and every record counts once."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from elastream import Dataflow, run
from elastream.dataflow.endpoints import FrameSource
from elastream.errors import ElastreamError
from elastream.freshness.wakes import State, entries_of
from elastream.io import collect, kafka, parquet, records, text_files
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.recording.lease_log import LeaseLog
from elastream.recording.recorder import Recording
from elastream.recording.run_state import driver_of, state_of
from elastream.spark.dataflow.sinks import latest
from support.waiting import ended, wait_until

COMMAND = Path(sys.executable).with_name("elastream")
PROGRAM = """
from elastream import Dataflow, HostType, Local, run
from elastream.io import parquet, text_files

flow = Dataflow("drops")
lines = flow.source(text_files("in"))
lines.key_by("value").count().sink(parquet())
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
run(flow, cloud=Local(tiny, max_hosts=1), state_partitions=2, freshness="20s")
"""


def flow_of(source, sink=None, load=None):
    flow = Dataflow("small")
    flow.source(source, load=load).sink(sink or parquet())
    return flow


@pytest.mark.parametrize(
    ("source", "sink", "load", "sentence"),
    [
        (FrameSource(None, "value string"), None, None, "only files and Kafka topics can"),
        (records([{"value": "a"}], "value string"), None, constant("1/s"), "only files and Kafka topics can"),
        (text_files(__file__), None, constant("1/s"), "a declared load arrives only while a run generates it"),
        (text_files("s3a://bucket/in"), None, None, "only files of this machine can be listed"),
        (text_files(__file__), collect("rows"), None, "collects rows in memory"),
    ],
)
def test_dataflow_that_cannot_sleep_is_refused_in_one_sentence(source, sink, load, sentence, tmp_path):
    with pytest.raises(ElastreamError, match=sentence):
        run(flow_of(source, sink, load), freshness="10min", runs=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"target_latency": "2s"}, "two service levels"),
        ({"page": True}, "page needs a continuous run"),
        ({"freshness": "0s"}, "must be more than 0"),
        ({"runs": "hdfs://name/runs"}, "must be on this machine"),
    ],
)
def test_setting_that_needs_a_run_that_stays_is_refused(setting, sentence, tmp_path):
    with pytest.raises(ElastreamError, match=sentence):
        run(flow_of(kafka("topic")), **{"freshness": "10min", "runs": tmp_path, **setting})


def drop(folder: Path, number: int, counted: Counter) -> None:
    lines = [f"w{(number + n) % 5}" for n in range(50)]
    counted.update(lines)
    (folder / f".{number}").write_text("\n".join(lines) + "\n")
    (folder / f".{number}").rename(folder / "in" / f"{number}.txt")


def start(folder: Path, *arguments: str) -> subprocess.Popen:
    log = (folder / "log").open("a")
    return subprocess.Popen([COMMAND, "run", *arguments], cwd=folder, stdout=log, stderr=log, start_new_session=True)


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("state", "victims"),
    [(State.LEASING, "controller"), (State.RUNNING, "run"), (State.RUNNING, "both"), (State.RELEASING, "both")],
)
def test_sleeping_job_that_is_killed_goes_on_exactly(state, victims, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "drops.py").write_text(textwrap.dedent(PROGRAM))
    counted: Counter = Counter()
    drop(tmp_path, 0, counted)
    process = start(tmp_path, "drops.py")

    def directory() -> RunDirectory:
        (root,) = (tmp_path / "runs").glob("drops-*")
        return RunDirectory(root)

    def reached(states, run: int) -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        return bool(list((tmp_path / "runs").glob("drops-*"))) and any(
            entry["state"] in states and entry["run"] >= run for entry in entries_of(directory())
        )

    try:
        wait_until(lambda: reached({State.ASLEEP}, 1))
        assert state_of(directory()).state == "asleep"
        drop(tmp_path, 1, counted)
        wait_until(lambda: reached({state, State.ASLEEP}, 2))
        mine = driver_of(directory())
        if victims in ("run", "both") and mine not in (None, process.pid):
            os.kill(mine, signal.SIGKILL)
        if victims in ("controller", "both"):
            process.kill()
            process.wait()
            process = start(tmp_path, "--resume", str(directory().root))
        drop(tmp_path, 2, counted)

        def caught_up() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            results = list((directory().root / "results").glob("*"))
            return bool(results) and dict(latest(results[0]).itertuples(index=False)) == counted

        wait_until(caught_up)
        wait_until(lambda: state_of(directory()).state == "asleep")
        assert not [lease for lease in LeaseLog(directory().leases).earlier.values() if lease.active]
        subprocess.run([COMMAND, "stop", str(directory().root)], check=True, capture_output=True)
        process.wait()
        assert Recording.read(directory().root).ending is not None
    finally:
        process.terminate()
        ended(process)
