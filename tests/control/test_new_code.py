"""What the loop proposes when new code is given to a run."""

from pathlib import Path

import pytest

from elastream.control.extension import CODE, CodeExtension
from elastream.core.action import UpdateCode
from elastream.core.alarm import Alarms
from elastream.core.frames import Frame
from elastream.core.observation import Composition, Context, Observation
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import lay_out
from elastream.recording.code_log import CodeLog, CodeVersion
from elastream.recording.directory import RunDirectory


@pytest.fixture
def log(tmp_path: Path) -> CodeLog:
    log = CodeLog(RunDirectory(tmp_path))
    log.begin(b"start", CodeVersion(0, "", {"one": {"a": "1"}, "other": {"a": "1"}}))
    return log


def requested(code: dict[str, int]) -> Observation:
    flow = Dataflow("flow")
    flow.source(None).map(dict, returns="n long", name="one").map(dict, returns="n long", name="other").sink(None)
    return Observation(0.0, Context(lay_out(flow.graph)), Frame(), composition=Composition(1, code=code))


def test_the_newest_code_is_proposed_at_once_until_it_is_requested(log, tmp_path):
    extension, alarms = CodeExtension(log), Alarms(lambda: 0.0)
    extension.observed(requested({}), alarms)
    assert (extension.urgent(requested({})), extension.proposals(requested({}), (), alarms)) == (False, ())
    other = CodeLog(RunDirectory(tmp_path))
    for version, changed in ((1, "one"), (2, "other")):
        other.append(b"code", CodeVersion(version, "", {"one": {}, "other": {}}, (changed,)))
    extension.observed(requested({}), alarms)
    assert extension.urgent(requested({}))
    (proposal,) = extension.proposals(requested({}), (), alarms)
    assert (proposal.action, proposal.by) == (UpdateCode(2, ("one", "other")), CODE)
    (proposal,) = extension.proposals(requested({"one": 1}), (), alarms)
    assert proposal.action == UpdateCode(2, ("other",))
    assert not extension.urgent(requested({"other": 2}))
    assert extension.proposals(requested({"other": 2}), (), alarms) == ()


def test_code_that_is_not_taken_is_urgent_once_and_proposed_in_each_round(log, tmp_path):
    extension, alarms = CodeExtension(log), Alarms(lambda: 0.0)
    log.append(b"code", CodeVersion(1, "", {"one": {}, "other": {}}, ("one",)))
    extension.observed(requested({}), alarms)
    assert extension.urgent(requested({}))
    for _ in range(2):
        assert extension.proposals(requested({}), (), alarms)
        assert not extension.urgent(requested({}))


def test_a_damaged_log_of_code_sounds_an_alarm_and_proposes_nothing(log, tmp_path):
    directory = RunDirectory(tmp_path)
    with directory.code_log.open("a") as file:
        file.write("no version\n")
    alarms, extension = Alarms(lambda: 0.0), CodeExtension(log)
    extension.observed(requested({}), alarms)
    assert "code.jsonl, line 2: not a version of the code" in alarms.active[0].said
    assert extension.proposals(requested({}), (), alarms) == ()
