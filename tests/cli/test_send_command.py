"""`elastream send`, on the folder of a run that goes on: what it gives an operator, and what it refuses."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from elastream.cli.program import declared
from elastream.recording.code_log import CodeLog
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import Ending
from elastream.recording.recorder import Recorder
from elastream.spark.queries.updating import loaded
from support.begun_run import begun_run
from support.commands import invoke

DOCUMENT = """
dataflow: gate
operators:
  numbers: {source: {records: [{n: 1}], schema: n long}, load: 1/s}
  below: {from: numbers, filter: "steps.py:below", message: {limit: 3}}
  plain: {from: below, map: "steps.py:same", returns: n long}
  out: {from: plain, sink: {collect: out}}
"""
STEPS = """
def below(n, message):
    return n < message["limit"]

def same(n):
    return n
"""


def send(run: Path, operator: str, message: str) -> tuple[int, str]:
    result = invoke("send", run, operator, message)
    return result.exit_code, re.sub(r"[ \n]+", " ", result.output).replace(str(run), "run").strip()


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """Of a run of the document in `tmp_path / "run"` that goes on, begun by another process."""
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "gate.yaml").write_text(textwrap.dedent(DOCUMENT))
    return begun_run(declared(tmp_path / "gate.yaml").graph, tmp_path / "run")


def test_a_message_is_a_version_of_the_code_that_names_its_sender(tmp_path, recorder):
    run = tmp_path / "run"
    said = 'message {"limit": 9} to below of run, as version 1 of its code, from one of its next batches on'
    assert send(run, "below", '{"limit": 9}') == (0, said)
    log = CodeLog(RunDirectory(run))
    assert (log.versions[1].changed, log.versions[1].who) == (("below",), 'elastream send below {"limit": 9}')
    assert [loaded(log, version)["below"][0].function(5) for version in (0, 1)] == [False, True]
    assert loaded(log, 1)["plain"][0].function(5) == 5


@pytest.mark.slow
def test_a_process_that_has_not_the_functions_can_send_and_load(tmp_path, recorder):
    (tmp_path / "steps.py").unlink()
    main = "from elastream.cli import main; main()"
    call = [sys.executable, "-c", main, "send", str(tmp_path / "run"), "below", '{"limit": 9}']
    for expected in (0, 2):  # the second time it has the message
        assert subprocess.run(call, cwd="/", capture_output=True, text=True).returncode == expected
    assert loaded(CodeLog(RunDirectory(tmp_path / "run")), 1)["below"][0].function(5)


@pytest.mark.parametrize(
    ("operator", "message", "said"),
    [
        ("below", "{limit: 3}", "the message '{limit: 3}' is not JSON: Expecting property name"),
        ("below", '{"limits": 3}', "does not take the message {'limits': 3}: it has a field 'limits', and the operator"),
        ("below", '{"limit": "3"}', "of field 'limit', it is a text, and the operator takes a number, such as 3"),
        ("plain", "-3", "operator 'plain' of run takes no messages (these do: below)"),
        ("plain", "3", "operator 'plain' of run takes no messages (these do: below)"),
        ("belo", "3", "operator 'belo' of run takes no messages (these do: below)"),
    ],
)
def test_a_message_that_cannot_be_sent_is_one_sentence(tmp_path, recorder, operator, message, said):
    status, text = send(tmp_path / "run", operator, message)
    assert (status, said in text) == (2, True), text
    assert len(CodeLog(RunDirectory(tmp_path / "run")).versions) == 1


def test_a_failed_run_takes_a_message_and_a_folder_of_none_does_not(tmp_path, recorder):
    recorder.ended(Ending("failed", 2.0, "it raised"))
    status, text = send(tmp_path / "run", "below", '{"limit": 9}')
    assert (status, text.endswith("once it is resumed")) == (0, True), text
    assert CodeLog(RunDirectory(tmp_path / "run")).versions[-1].repairs
    status, text = send(tmp_path, "below", "3")
    assert (status, "is not the folder of a run" in text) == (2, True), text
