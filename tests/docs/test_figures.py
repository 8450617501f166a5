"""The page of figures and the README's table follow from the committed files, which have the agreed form."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs/figures").glob("*.json"))
SCRIPT = runpy.run_path(str(ROOT / "scripts/figures.py"))


def test_page_and_readme_are_what_the_files_give():
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"](), "run make figures"
    assert SCRIPT["README"].read_text(encoding="utf-8") == SCRIPT["readme"](), "run make figures"


def test_page_has_at_most_3000_words():
    assert len(SCRIPT["PAGE"].read_text(encoding="utf-8").split()) <= 3000


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_of_figures_has_the_agreed_form(file):
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found.keys() == {"figures", "paper", "checks", "summary", "environment"}
    assert {"date", "command", "cores"} <= found["environment"].keys()
    for check in found["checks"]:
        assert check.keys() == {"name", "value", "bound", "verdict", "source"}
        assert check["verdict"] in ("held", "missed", "undecided", "refuted")


def test_docs_list_the_commands_that_measure():
    listed = (ROOT / "docs/how-to/benchmarks.md").read_text(encoding="utf-8")
    commands = SCRIPT["commands"](())
    assert len(commands) > 15
    for command in commands:
        assert f"`{command.partition(' --json')[0]}`" in listed
    assert SCRIPT["commands"](["overhead"]) == ["python benchmarks/overhead.py --json docs/figures/overhead.json"]


def files(*checks: dict, **environment) -> dict:
    """Return one file of figures, named `demo`, with these checks."""
    about = {"date": "2026-11-21", "cores": 2, "command": "python x.py --quick", **environment}
    return {"demo": {"figures": {"cost": {"runs": [1, 2, 3]}}, "checks": list(checks), "environment": about}}


def check(name: str, value, bound: str, verdict: str = "held", source: str = "the project's bar") -> dict:
    return {"name": name, "value": value, "bound": bound, "verdict": verdict, "source": source}


def row(*checks: dict, **fields) -> str:
    """Return the row that shows these checks."""
    measured = files(*checks)
    shown = SCRIPT["Row"]("demo", "ratio", runs=("figures", "cost", "runs"), **fields)
    return SCRIPT["cells"](shown, SCRIPT["checks_of"](shown, measured), measured)


def test_row_shows_target_source_value_verdict_and_runs():
    missed = check("a", 0.912345, ">= 1", "missed", "our bar; paper, section 5: 55 %")
    assert row(missed, reason="it rained") == "`demo`: ratio | ≥1; §5: 55% | 0.9123 | **missed** (it rained) | 3"


def test_reason_shows_only_while_a_check_is_missed():
    assert row(check("a", 1.0, ">= 1"), reason="it rained") == "`demo`: ratio | ≥1 | 1 | held | 3"


def test_few_checks_show_one_by_one_and_many_as_a_range():
    few = row(check("a", 1, "<= 2"), check("b", 3, "<= 2", "undecided"))
    assert few == "`demo`: ratio | ≤2 | 1; 3 | held; **undecided** | 3"
    many = row(*(check(str(n), n, "<= 3", "held" if n < 4 else "missed") for n in range(5)))
    assert many == "`demo`: ratio | ≤3 | 0–4 | 1 **missed**; 4 held | 3"


def test_conditions_name_day_load_and_old_measurements():
    demo = SCRIPT["Area"]("", "", (SCRIPT["Row"]("demo", "ratio"),))
    assert SCRIPT["conditions"](demo, files(load=2.5)) == "2026-11-21 `demo` (quick, 2.5)."
    assert SCRIPT["conditions"](demo, files(load=0.5)) == "2026-11-21 `demo` (quick)."
    assert SCRIPT["conditions"](demo, files(earlier="yes")) == "2026-11-21 `demo` (quick, old)."


def test_check_without_a_row_is_refused(monkeypatch):
    measured = SCRIPT["measured"]()
    measured["demo"]["checks"].append(check("a new bar", 1, ">= 2", "missed"))
    monkeypatch.setitem(SCRIPT["page"].__globals__, "measured", lambda: measured)
    with pytest.raises(SystemExit, match="no row shows"):
        SCRIPT["page"]()


def test_rows_name_files_that_commands_measure():
    stems = {stem for area in SCRIPT["AREAS"] for each in area.rows for stem in each.files.split()}
    assert stems <= SCRIPT["COMMANDS"].keys()
