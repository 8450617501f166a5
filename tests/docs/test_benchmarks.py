"""What every benchmark writes and ends with, on a measurement that is made up."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def ran(monkeypatch, folder, *runs: float) -> tuple[int, dict]:
    """Exit status and figures of a benchmark that measured `runs`, of which the median is to reach 1."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from _common import Report, main

    def measure(arguments) -> Report:
        report = Report(figures={"runs": runs, "never came": float("nan")}, environment={"hosts": "none"})
        report.median_at_least("ratio", runs, 1.0, "a bar")
        return report

    monkeypatch.setattr(sys, "argv", ["made_up.py", "--quick", "--json", str(folder / "new" / "made_up.json")])
    with pytest.raises(SystemExit) as ended:
        main("made_up", "Nothing.", measure, lambda report: "one line")
    return ended.value.code, json.loads((folder / "new" / "made_up.json").read_text())


def test_a_benchmark_writes_figures_bars_and_where_they_are_from(monkeypatch, tmp_path):
    status, found = ran(monkeypatch, tmp_path, 1.0, 1.1, 1.2, 1.3, 1.4)
    assert status == 0
    assert found.keys() == {"figures", "paper", "checks", "summary", "environment"}
    assert found["checks"] == [{"name": "ratio", "value": 1.2, "bound": ">= 1", "verdict": "held", "source": "a bar"}]
    assert found["figures"]["never came"] is None
    assert found["summary"] == "one line"
    assert found["environment"]["command"] == "python benchmarks/made_up.py --quick"
    assert {"date", "cores", "load", "python", "pyspark", "hosts"} <= found["environment"].keys()


def test_a_missed_bar_ends_in_status_1_and_an_undecided_one_is_printed(monkeypatch, tmp_path, capsys):
    assert ran(monkeypatch, tmp_path, *[0.9] * 5)[0] == 1
    assert "missed: ratio 0.9 (>= 1)" in capsys.readouterr().out
    assert ran(monkeypatch, tmp_path, 0.9)[0] == 0
    assert "undecided: ratio 0.9 (>= 1)" in capsys.readouterr().out


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_a_benchmark_can_be_imported(file, monkeypatch):
    monkeypatch.syspath_prepend(file.parent)
    importlib.import_module(file.stem)
