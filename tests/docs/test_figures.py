"""The page of figures and the README's are what the committed files give, and the files have the form that is agreed on."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs/figures").glob("*.json"))
SCRIPT = runpy.run_path(str(ROOT / "scripts/figures.py"))


def test_the_pages_and_the_readme_are_what_the_files_give():
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"](), "run make figures"
    assert SCRIPT["README"].read_text(encoding="utf-8") == SCRIPT["readme"](), "run make figures"
    pages = SCRIPT["pages"]()
    assert pages
    for file, text in pages.items():
        assert file.read_text(encoding="utf-8") == text, "run make figures"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_of_figures_has_the_form_that_commands_write(file):
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found.keys() == {"figures", "paper", "checks", "summary", "environment"}
    assert {"date", "command", "cores"} <= found["environment"].keys()
    for check in found["checks"]:
        assert check.keys() == {"name", "value", "bound", "verdict", "source"}
        assert check["verdict"] in ("held", "missed", "undecided")


def test_the_commands_that_measure_are_those_that_the_docs_list():
    listed = (ROOT / "docs/how-to/benchmarks.md").read_text(encoding="utf-8")
    commands = SCRIPT["commands"](())
    assert len(commands) > 15
    for command in commands:
        assert f"`{command.partition(' --json')[0]}`" in listed
    assert SCRIPT["commands"](["overhead"]) == ["python benchmarks/overhead.py --json docs/figures/overhead.json"]


def test_a_missed_bar_and_an_earlier_measurement_are_marked():
    source = SCRIPT["SOURCES"][0]
    check = {"name": "ratio", "value": 0.912345, "bound": ">= 1", "verdict": "missed", "source": "a bar"}
    found = {
        "figures": {"runs_seconds": 12345.6, "ratio": {"median": 0.9, "runs": [0.8, 0.9, 1.0]}, "nested": {"a": 1}},
        "checks": [check],
        "summary": "0.9 of it",
        "environment": {"date": "2026-11-21", "cores": 2, "load": 0.5, "earlier": "yes", "command": "python x.py --quick"},
    }
    text = "\n".join(SCRIPT["section"](source, found))
    assert "| ratio | 0.9123 | >= 1 | **missed** | a bar |" in text
    assert "*Earlier measurement*, 2026-11-21; 2 cores, load 0.5 at the start." in text
    assert "| runs seconds | 12,346 |" in text
    assert "| ratio | 0.9 (3 runs, 0.8 to 1) |" in text
    assert "nested" not in text
    assert "    python x.py --quick" in text
    assert "0.9 of it." in text


def test_of_several_cases_of_a_bar_the_readme_shows_the_worst():
    worst = SCRIPT["badness"]
    cases = [("held", 0.991), ("held", 0.999), ("undecided", 1.0)]
    bars = [{"verdict": verdict, "value": value, "bound": ">= 0.99"} for verdict, value in cases]
    assert min(bars, key=worst)["verdict"] == "undecided"
    assert min(bars[:2], key=worst)["value"] == 0.991
    costs = [{"verdict": "missed", "value": value, "bound": "<= 1"} for value in (1.1, 1.7)]
    assert min(costs, key=worst)["value"] == 1.7


def test_every_bar_of_the_readme_is_of_a_file_that_the_page_knows_measured_or_not():
    assert {headline.file for headline in SCRIPT["HEADLINES"]} <= {source.file for source in SCRIPT["SOURCES"]}


def test_each_file_of_figures_has_one_source():
    files = [source.file for source in SCRIPT["SOURCES"]]
    assert sorted(files) == sorted(set(files))
