"""`elastream tables set` and `show`, on the folder of a run that goes on."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from elastream import KeyTable, key_tables
from elastream.core.frames import Frame
from elastream.core.observation import Composition, Context, Observation
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import Ending, describe_run
from elastream.recording.recorder import Recorder
from support.commands import invoke


def text(result: Result) -> str:
    """What was printed, each run of blanks as one."""
    return re.sub(r"[ \n]+", " ", result.output)


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """Of a run in `tmp_path / "run"` that goes on."""
    flow = Dataflow("forecasting")
    parsed = flow.source(None).map(dict, returns="customer long", name="parse")
    predicted = parsed.map({"mean": dict, "trend": dict}, returns="n long", name="predict", select_by="customer")
    predicted.sink(None)
    context = Context(lay_out(flow.graph))
    made = Recorder(RunDirectory(tmp_path / "run").recording)
    made.started(describe_run(context, policy="idle", plant="spark", started=0.0))
    composition = Composition.default(flow.graph)
    made.observed(Observation(0.0, context, Frame(tuple(flow.graph.by_name)), composition=composition))
    second = replace(composition, version=1, tables={"predict": 1})
    seen = Observation(
        1.0, context, Frame(tuple(flow.graph.by_name)), composition=second, effective={"source": composition}
    )
    made.observed(seen)
    return made


def test_a_table_is_appended_and_shown(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    file, run = tmp_path / "tables.csv", tmp_path / "run"
    file.write_text("customer,alternate\n1,trend\n2,mean\n")
    assert "has no key tables" in text(invoke("tables", "show", run))
    result = invoke("tables", "set", run, "predict", file)
    assert (result.exit_code, text(result).strip()) == (0, f"{file}: version 1 of the key table of 'predict', 2 keys")
    assert key_tables(run).append(KeyTable("forecasting", "predict", ("customer",), {}), "a program") == 2
    shown = text(invoke("tables", "show", run))
    rows = json.loads(invoke("tables", "show", run, "--json").output)
    assert [(row["version"], row["keys"], row["state"]) for row in rows] == [(1, 2, "requested"), (2, 0, "")]
    assert re.search(r"predict 1 2 \S+ \S+ elastream tables set \S+ requested predict 2 0 \S+ \S+ a program", shown)


def test_what_does_not_fit_the_run_is_refused_and_nothing_is_written(tmp_path: Path, recorder: Recorder) -> None:
    file, run = tmp_path / "tables.csv", tmp_path / "run"
    file.write_text("customer,alternate\n1,naive\n")
    before = sorted(run.iterdir())
    result = invoke("tables", "set", run, "predict", file)
    assert result.exit_code == 2
    assert "line 2: operator 'predict' has no alternate 'naive'" in text(result)
    assert sorted(run.iterdir()) == before


def test_a_run_that_has_ended_gets_no_table(tmp_path: Path, recorder: Recorder) -> None:
    recorder.ended(Ending("finished", 2.0))
    file = tmp_path / "tables.csv"
    file.write_text("customer,alternate\n1,trend\n")
    result = invoke("tables", "set", tmp_path / "run", "predict", file)
    assert (result.exit_code, "has finished" in text(result)) == (2, True)
    with pytest.raises(InputError, match="there is no recording"):
        key_tables(tmp_path)
