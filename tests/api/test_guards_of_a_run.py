"""Guards of a run on Spark that goes on: a switch by hand, another version, a broken one; and no query is restarted."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from elastream.recording.frames import Frames
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Recording
from support.waiting import ended, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMMAND = Path(sys.executable).with_name("elastream")
PROGRAM = """
from elastream import Dataflow, HostType, Local, run
from elastream.io import collect, records
from elastream.loads import constant
from elastream.policies import HighestValue, Static

flow = Dataflow("guarded")
rows = [{"value": f"w{n}"} for n in range(50)]
lines = flow.source(records(rows, "value string"), load=constant("100/s", "3min"))
how = {"fast": lambda v: {"word": v, "how": "fast"}, "exact": lambda v: {"word": v, "how": "exact"}}
tagged = lines.map(how, returns="word string, how string", name="tag")
tagged.choice("keep").nothing()
tagged.choice("keep").filter(lambda row: True, name="kept").sink(collect("kept"))
tiny = HostType("tiny", cores=1.0, slots=1, memory=1000.0)
policy = HighestValue(sizing=Static(1))
result = run(flow, policy=policy, cloud=Local(tiny, max_hosts=1), target_latency="3s", guards="by_hand.yaml")
print("KEPT", sorted(set(result.collected["kept"]["how"])))
"""
BY_HAND = """
signals: {manual: {kind: truth, from: {file: manual.txt}}}
guards: {tag: {fast: {when: "!manual"}, exact: {when: manual}}}
"""
AWAKE = "guards: {tag: {fast: {value: 0.5}, exact: {value: 1}}, keep: {kept: {when: 'cost >= 0.0', value: 1}}}"
BROKEN = "guards: {tag: {fast: {when: nosuch > 1}}}"


def elastream(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_other_guards_switch_a_live_query_and_broken_ones_do_no_harm(tmp_path: Path) -> None:
    for name, text in (("by_hand", BY_HAND), ("awake", AWAKE), ("broken", BROKEN)):
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "guarded.py").write_text(textwrap.dedent(PROGRAM))
    (tmp_path / "manual.txt").write_text("false")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    process = subprocess.Popen([COMMAND, "run", "guarded.py", "--no-live", "--limit", "100s"], **options)  # type: ignore[call-overload]

    def seen() -> Recording:
        assert process.poll() is None, process.communicate()
        return Recording.read(next((tmp_path / "runs").iterdir()))

    def runs(element: str, query: str = "source") -> str | None:
        found = seen().compositions_at(float("inf")).get(query)
        return None if found is None else found.running(element)

    def begun() -> bool:
        assert process.poll() is None, process.communicate()
        return bool(list(tmp_path.glob("runs/*/checkpoint/*/commits/1")))

    wait_until(begun, otherwise=lambda: "no batch was committed")
    wait_until(lambda: runs("tag") == "fast")
    (tmp_path / "manual.txt").write_text("true")
    wait_until(lambda: runs("tag") == "exact", otherwise=lambda: "the switch by hand is not in effect")
    (folder,) = (tmp_path / "runs").iterdir()
    broken = elastream(tmp_path, "guards", "set", str(folder), "broken.yaml")
    assert (broken.returncode, broken.stderr.count("\n"), "broken.yaml:1:29: " in broken.stderr) == (2, 1, True)
    given = elastream(tmp_path, "guards", "set", str(folder), "awake.yaml")
    assert given.returncode == 0, given.stderr
    wait_until(lambda: runs("keep") == "kept", otherwise=lambda: "the new version is not in effect")
    process.send_signal(2)
    out, err = ended(process)
    assert "KEPT ['exact']" in out, err
    recording = Recording.read(folder)
    assert [version.by for version in GuardLog(folder / "guards.jsonl").versions] == ["run", "elastream guards set"]
    assert recording.ending is not None
    assert recording.ending.facts["query runs"] == 1
    assert not recording.alarms
    frames = Frames(recording)
    changes = frames.compositions.reset_index().query("element == 'keep' and runs == 'kept'")
    wanted, effective = (float(changes[changes["query"] == query]["time"].min()) for query in ("", "source"))
    later = frames.batches[(frames.batches["start"] > wanted - 1.0) & (frames.batches["start"] < effective)]
    assert len(later) <= 2, "in effect within two batches of the request"
