"""`elastream simulate` and `elastream experiment` on the command line: what they print, write and exit with."""

import json

import pytest
from typer.testing import CliRunner

from elastream.cli.app import app

DOCUMENT = """
dataflow: shop
operators:
  requests: {source: simulated}
  answer: {from: requests, alternates: {full: {cost: 50ms}}, max_duration: 1s, cores: 1, memory: 500 MB}
  out: {from: answer, sink: simulated}
host_types:
  small: {cores: 2, memory: 4 GB, price: 1, btu: 10min}
"""


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "shop.yaml"
    path.write_text(DOCUMENT, encoding="utf-8")
    return path


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_policies_are_compared_and_the_figures_written(document, tmp_path):
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    found = invoke(
        "simulate", document, "--policy", "btu", "--policy", "queue_threshold:upper=30", "--limit", "5min",
        "--load", "5/s", "--html", page, "--json", figures,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "simulated" in found.output
    data = json.loads(figures.read_text(encoding="utf-8"))
    assert set(data["figures"]["policies"]) == {"btu", "queue_threshold:upper=30"}
    assert data["figures"]["winner"] in found.output
    assert "Plotly.newPlot(" in page.read_text(encoding="utf-8")


def test_a_load_in_a_file_replaces_that_of_the_document(document, tmp_path):
    load = tmp_path / "load.csv"
    load.write_text("time,count\n" + "".join(f"{60 * k},{30 + k}\n" for k in range(4)), encoding="utf-8")
    figures = tmp_path / "figures.json"
    assert invoke("simulate", document, "--policy", "btu", "--load", load, "--json", figures).exit_code == 0
    data = json.loads(figures.read_text(encoding="utf-8"))
    assert (data["figures"]["seconds"], data["figures"]["records"]) == (240, 30 + 31 + 32 + 33)


def test_missing_the_target_is_exit_status_1(document):
    found = invoke("simulate", document, "--policy", "btu", "--load", "50/s", "--limit", "3min", "--max-hosts", 1)
    assert found.exit_code == 1
    assert "No policy meets the target" in found.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--policy", "nonsense"), "there is no policy 'nonsense'"),
        (("--policy", "btu:window"), "not key=value"),
        (("--policy", "btu:colour=3"), "colour"),
        ((), "names no policy"),
        (("--policy", "btu"), "no load"),
        (("--policy", "btu", "--load", "5/s"), "never ends"),
        (("--policy", "btu", "--load", "5/s", "--limit", "1min", "--host", "huge"), "'huge'"),
    ],
)
def test_what_a_user_can_put_right_is_one_sentence_and_exit_status_2(document, words, sentence):
    found = invoke("simulate", document, *words)
    assert found.exit_code == 2
    assert sentence in " ".join(found.output.replace("│", " ").split())
    assert "Traceback" not in found.output


def test_an_unknown_experiment_is_refused():
    found = invoke("experiment", "nonsense")
    assert found.exit_code == 2
    assert "visp, e2df" in found.output
