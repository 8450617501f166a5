"""`elastream check` on dynamic dataflows: what it shows of them, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from support.commands import invoke

GRID = """\
dataflow: grid
operators:
  meters: {source: {records: [{load: 1.0}], schema: load double}, load: 10/s}
  forecast:
    from: meters
    returns: load double
    alternates:
      exact: {map: "builtins:float"}
      rough: {map: "builtins:abs", value: 0.5}
  mean_load: {from: forecast, signal: mean(load)}
  asleep: {from: {operator: forecast, choice: curtail}, sink: nothing}
  awake: {from: {operator: forecast, choice: curtail}, sink: {collect: awake}}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def checked(text: str) -> Result:
    Path("grid.yaml").write_text(text)
    return invoke("check", "grid.yaml")


def test_it_shows_alternates_branches_and_signals() -> None:
    found = checked(GRID)
    assert found.exit_code == 0, found.output
    rows = [line.split() for line in found.stdout.splitlines()]
    shown = {row[0]: row[1:] for row in rows if row}
    assert shown["forecast"][-3:] == ["exact,", "rough", "–"]
    assert shown["mean_load"][:2] == ["signal", "forecast"]
    assert shown["asleep"][:3] == ["nothing", "forecast", "(curtail)"]
    assert shown["awake"][:3] == ["sink", "forecast", "(curtail)"]


def test_json_has_operators_and_warnings() -> None:
    Path("grid.yaml").write_text(GRID)
    found = json.loads(invoke("check", "grid.yaml", "--json").stdout)
    assert (found["file"], found["dataflow"]) == ("grid.yaml", "grid")
    rows = {row["operator"]: row for row in found["operators"]}
    assert rows["forecast"]["alternates"] == ["exact", "rough"]
    assert rows["awake"]["from"] == ["forecast (curtail)"]
    assert any(sentence.startswith("to simulate it, give") for sentence in found["warnings"])


KEPT = """\
dataflow: words
state_partitions: 2
replicas: 1
operators:
  lines: {source: {records: [{word: a}], schema: word string}, load: 10/s}
  count: {from: lines, key_by: word, aggregate: {count: count(*)}, cost: 3us}
  out: {from: count, sink: {collect: counts}}
policy: ring
cloud: {local: {max_hosts: 4}}
"""


def test_check_warns_of_copies_and_partitions_that_help_little() -> None:
    found = checked(KEPT)
    assert found.exit_code == 0, found.output
    said = " ".join(found.stdout.split())
    assert "1 fault zone (local) for state and 1 copy: where a whole zone fails, state is read from the checkpoint" in said
    assert "2 state partitions for up to 4 hosts (max_hosts): hosts beyond 2 hold no state" in said
