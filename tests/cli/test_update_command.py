"""`elastream update`, on the folder of a run that goes on: what it gives the run, and what it refuses."""

import json
import re
import textwrap
from pathlib import Path

import pytest
from typer.testing import Result

from elastream.cli.program import declared
from elastream.dataflow.key_table import KeyTable, selections_of
from elastream.recording.code_log import CodeLog
from elastream.recording.directory import RunDirectory
from elastream.recording.guard_log import GuardLog
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.observer import Ending
from elastream.recording.recorder import Recorder
from support.begun_run import begun_run
from support.commands import invoke

PROGRAM = """
from elastream import Dataflow
from elastream.io import collect, records
from elastream.loads import constant

def trend(row):
    return row + 1

flow = Dataflow("forecasting")
numbers = flow.source(records([{"n": 1}], "n long"), load=constant(1)).select("n + 1 AS n", name="columns")
predicted = numbers.map({"mean": lambda row: row, "trend": trend}, returns="n long", name="predict", select_by="n")
keyed = predicted.key_by("n").apply(
    {"sum": lambda key, rows, state: (rows, state), "top": lambda key, rows, state: (rows, state)},
    returns="n long", state={"sum": "total long", "top": "top long"}, name="total",
)
keyed.sink(collect("out"))
"""


def update(run: Path, file: Path) -> tuple[int, str]:
    result: Result = invoke("update", run, file)
    return result.exit_code, re.sub(r"[ \n]+", " ", result.output).replace(str(file), "flow.py").replace(str(run), "run")


def program(folder: Path, *changes: tuple[str, str]) -> Path:
    text = PROGRAM
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    file = folder / "flow.py"
    file.write_text(textwrap.dedent(text))
    return file


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """Of a run in `tmp_path / "run"` that goes on."""
    return begun_run(declared(program(tmp_path)).graph, tmp_path / "run")


def test_an_update_names_what_changes_comes_and_goes(tmp_path, recorder):
    file = program(
        tmp_path,
        ("\ndef trend", "\n\n# later lines are no change\ndef trend"),
        ('{"mean": lambda row: row, "trend": trend}', '{"trend": trend, "mean": lambda row: row + 2, "naive": abs}'),
    )
    status, said = update(tmp_path / "run", file)
    assert status == 0, said
    assert "version 1 of the code of run, from one of its next batches on: predict: naive new, mean changed" in said
    assert update(tmp_path / "run", file) == (2, "elastream: run has this code already: nothing to update ")
    status, said = update(tmp_path / "run", program(tmp_path, ('"mean": lambda row: row, ', '"last": abs, ')))
    assert (status, said.strip().endswith("predict: last new, mean, naive removed")) == (0, True), said
    versions = CodeLog(RunDirectory(tmp_path / "run")).versions
    assert [[*each.changed] for each in versions] == [[], ["predict"], ["predict"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([('name="predict"', 'name="guess"')], "the operators was source, columns, predict"),
        ([("n + 1 AS n", "n + 2 AS n")], "the native code of alternate 'columns' of operator 'columns' was"),
        ([('"sum": lambda', '"mean": lambda'), ('"sum": "total', '"mean": "total')], "the alternates of operator 'total'"),
        ([('"total long"', '"total double"')], "the state of operator 'total' was"),
        ([('returns="n long", name="predict"', 'returns="n double", name="predict"')], "the schema of operator 'predict'"),
        ([('Dataflow("forecasting")', 'Dataflow("other")')], "run is a run of dataflow 'forecasting', not of 'other'"),
        ([('"trend": trend}', '"trend": 3}')], "operator 'predict': alternate 'trend' is 3, which is not a function"),
        ([('"mean": lambda row: row, ', "")], "has no alternates to select from"),
        ([("row + 1", "row +")], "SyntaxError"),
    ],
)
def test_more_than_code_is_refused_and_nothing_is_written(tmp_path, recorder, changes, said):
    run = tmp_path / "run"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, text = update(run, program(tmp_path, *changes))
    assert status == 2
    assert said in text
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_an_alternate_that_guards_or_a_key_table_name_is_not_removed(tmp_path, recorder):
    directory = RunDirectory(tmp_path / "run")
    without = program(tmp_path, (', "trend": trend}', ', "naive": abs}'))
    graph = declared(program(tmp_path)).graph
    without.write_text(PROGRAM.replace(', "trend": trend}', ', "naive": abs}'))
    log = KeyTableLog(directory, selections_of(graph))
    log.append(KeyTable("forecasting", "predict", ("n",), {(1,): "trend"}), "test")
    status, said = update(directory.root, without)
    assert (status, "key table 1 of operator 'predict' names the alternate 'trend'" in said) == (2, True), said
    log.append(KeyTable("forecasting", "predict", ("n",), {(1,): "mean"}), "test")
    GuardLog(directory.guards).append("guards:\n  predict:\n    trend: {value: 1.0}\n", "guards.yaml", "test")
    status, said = update(directory.root, without)
    assert (status, "'trend'" in said, len(CodeLog(directory).versions)) == (2, True, 1), said


def test_a_stopped_run_takes_no_code_and_a_failed_one_takes_a_repair(tmp_path, recorder):
    file = program(tmp_path, ("row + 1", "row + 3"))
    (tmp_path / "not a run").mkdir()
    assert update(tmp_path / "not a run", file)[0] == 2
    recorder.ended(Ending("failed", 2.0, "it raised"))
    status, said = update(tmp_path / "run", file)
    assert (status, "once it is resumed: predict: trend changed" in said) == (0, True), said
    assert CodeLog(RunDirectory(tmp_path / "run")).versions[-1].repairs
    lines = (tmp_path / "run" / "recording.jsonl").read_text().splitlines()
    stopped = {**json.loads(lines[-1]), "status": "stopped"}
    (tmp_path / "run" / "recording.jsonl").write_text("\n".join([*lines[:-1], json.dumps(stopped)]) + "\n")
    status, said = update(tmp_path / "run", program(tmp_path, ("row + 1", "row + 4")))
    assert (status, "has stopped" in said) == (2, True)


def test_an_update_of_a_paused_run_waits_until_it_goes_on(tmp_path, recorder):
    RunDirectory(tmp_path / "run").pause()
    _, said = update(tmp_path / "run", program(tmp_path, ("row + 1", "row + 3")))
    assert "once the run is unpaused: predict: trend changed" in said
