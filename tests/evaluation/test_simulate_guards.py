"""`elastream simulate` with guards: from a document, from the command line, with an external signal."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from support.commands import invoke

DOCUMENT = """
dataflow: grid
operators:
  meters: {source: simulated, load: {constant: 50/s}}
  forecast: {from: meters, alternates: {tree: {cost: 1ms, value: 0.5}, arima: {cost: 100ms}}}
  out: {from: forecast, sink: simulated}
host_types: {vm: {cores: 2, price: 1, btu: 60s}}
policy: POLICY
guards: guards.yaml
"""
GUARDS = """
signals:
  manual: {kind: truth, from: {file: manual.txt}}
guards:
  forecast:
    tree: {when: "!manual"}
    arima: {when: manual}
"""


def simulated(
    folder: Path,
    *options: str,
    policy: str = "{static: {hosts: 1}}",
    guards: str = GUARDS,
    document: str = DOCUMENT,
) -> Result:
    """Two minutes of the document in `folder` beside its guards."""
    (folder / "grid.yaml").write_text(document.replace("POLICY", policy))
    (folder / "guards.yaml").write_text(guards)
    found = folder / "found.json"
    return invoke("simulate", folder / "grid.yaml", "--limit", "2min", "--period", "2s", "--json", found, *options)


def waiting(folder: Path) -> float:
    """Records that the one policy left waiting: many where the costly alternate ran."""
    (figures,) = json.loads((folder / "found.json").read_text())["figures"]["policies"].values()
    return float(figures["left waiting"])


@pytest.mark.parametrize(("manual", "overloaded"), [("true", True), ("false", False)])
@pytest.mark.parametrize("way", ["--fused", "--apart"])
def test_the_guards_of_a_document_are_followed_in_simulation(
    tmp_path: Path, manual: str, overloaded: bool, way: str
) -> None:
    (tmp_path / "manual.txt").write_text(manual)
    result = simulated(tmp_path, way)
    assert result.exit_code == 0, result.output
    assert (waiting(tmp_path) > 1_000) is overloaded


@pytest.mark.parametrize("way", ["--fused", "--apart"])
def test_the_key_tables_of_a_document_are_in_force_in_its_simulation(tmp_path: Path, way: str) -> None:
    document = DOCUMENT.replace("alternates:", "select_by: [customer], alternates:")
    document = document.replace("guards: guards.yaml", "tables: {forecast: tables.csv}")
    for alternate, overloaded in (("arima", True), ("tree", False)):
        (tmp_path / "tables.csv").write_text(f"customer,alternate\n1,{alternate}\n")
        result = simulated(tmp_path, way, document=document)
        assert result.exit_code == 0, result.output
        assert (waiting(tmp_path) > 1_000) is overloaded


def test_guards_of_the_command_line_replace_the_documents(tmp_path: Path) -> None:
    (tmp_path / "manual.txt").write_text("false")
    other = tmp_path / "other.yaml"
    other.write_text("guards: {forecast: {arima: {when: 'latency_p99 >= 0.0 || !(latency_p99 >= 0.0)', value: 1}}}")
    assert simulated(tmp_path, "--guards", str(other), "--fused").exit_code == 0
    assert waiting(tmp_path) > 1_000
    both = "guards: {forecast: {arima: {value: 1}, tree: {value: 0.5}}}"
    named = "{highest_value: {sizing: {static: {hosts: 1}}}}"
    assert simulated(tmp_path, "--fused", policy=named, guards=both).exit_code == 0
    assert waiting(tmp_path) < 1_000, "the costly one is not carried"


@pytest.mark.parametrize(
    ("guards", "said"),
    [
        (GUARDS, "signal 'manual': file FOLDER/manual.txt cannot be read: No such file or directory"),
        (
            GUARDS.replace("!manual", "!manuel"),
            "FOLDER/guards.yaml:6:20: guards.forecast.tree.when: there is no signal or function",
        ),
        (
            GUARDS.replace("forecast:", "forecst:"),
            "FOLDER/guards.yaml:5:3: guards.forecst: dataflow 'grid' has no operator or choice",
        ),
    ],
)
def test_guards_that_cannot_be_followed_are_one_sentence(tmp_path: Path, guards: str, said: str) -> None:
    result = simulated(tmp_path, "--fused", guards=guards)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"elastream: {said.replace('FOLDER', str(tmp_path))}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("manual", "value"), [("true", 1.0), ("false", 0.5)])
@pytest.mark.parametrize(("way", "policy"), [("--fused", "ce"), ("--apart", "sh")])
def test_value_is_weighed_against_cost_among_what_guards_allow(
    tmp_path: Path, manual: str, value: float, way: str, policy: str
) -> None:
    """Of the two alternates either is forbidden: the policy leases hosts for the costly one, or runs the poor one."""
    (tmp_path / "manual.txt").write_text(manual)
    result = simulated(tmp_path, way, policy=policy)
    assert result.exit_code == 0, result.output
    (figures,) = json.loads((tmp_path / "found.json").read_text())["figures"]["policies"].values()
    assert figures["value"] == pytest.approx(value, abs=0.05)
    assert (figures["cost"] >= 3) is (manual == "true"), "five cores are three hosts"
    assert figures["left waiting"] < 3_000, "on one host 3,600 would wait"
