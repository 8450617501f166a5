"""What every benchmark writes and ends with, on a measurement that is made up."""

import json
import runpy
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
        main("made_up", "Nothing.", measure)
    return ended.value.code, json.loads((folder / "new" / "made_up.json").read_text())


def test_a_benchmark_writes_figures_bars_and_where_they_are_from(monkeypatch, tmp_path):
    status, found = ran(monkeypatch, tmp_path, 1.0, 1.1, 1.2, 1.3, 1.4)
    assert status == 0
    assert found.keys() == {"figures", "paper", "checks", "summary", "environment"}
    assert found["checks"] == [{"name": "ratio", "value": 1.2, "bound": ">= 1", "verdict": "held", "source": "a bar"}]
    assert found["figures"]["never came"] is None
    assert found["summary"] == "1 of 1 bars are held"
    assert found["environment"]["command"] == "python benchmarks/made_up.py --quick"
    assert {"date", "cores", "load", "python", "pyspark", "hosts", "minutes"} <= found["environment"].keys()


def test_a_missed_bar_ends_in_status_1_and_an_undecided_one_is_printed(monkeypatch, tmp_path, capsys):
    assert ran(monkeypatch, tmp_path, *[0.9] * 5)[0] == 1
    assert "missed: ratio 0.9 (>= 1)" in capsys.readouterr().out
    assert ran(monkeypatch, tmp_path, 0.9)[0] == 0
    assert "undecided: ratio 0.9 (>= 1)" in capsys.readouterr().out


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("[!_]*.py")), ids=lambda file: file.stem)
def test_a_benchmark_explains_its_command_line(file, monkeypatch, capsys):
    monkeypatch.syspath_prepend(file.parent)
    monkeypatch.setattr(sys, "argv", [file.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(file), run_name="__main__")
    assert ended.value.code == 0
    assert f"usage: python benchmarks/{file.name}" in capsys.readouterr().out


def test_reaction_ends_with_steady_latency(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from reaction import recovered

    kept = [(11.0, True), (12.0, False), (13.0, True), (14.0, False), (20.0, True), (26.0, True)]
    assert recovered(kept, step=10.0) == 20.0
    assert recovered(kept[:1], step=10.0) == 10.0


def test_the_comparison_with_spark_is_judged_round_by_round(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import argparse

    import against_spark
    from against_spark import Result

    from elastream.bench.service import Service

    gave = {"fixed, 4 hosts": (0.995, 440.0), "fixed, 3 hosts": (0.5, 330.0), "dynamic allocation": (0.9, 400.0),
            "Autopilot, threshold": (0.8, 300.0), "dataflow, horizon": (0.985, 280.0)}  # fmt: skip

    def way(name: str) -> Result:
        in_time, held = gave[name]
        return Result(name, Service(1000, 110.0, in_time), held, held / 10, 4, True)

    monkeypatch.setattr(against_spark, "OURS", {name: None for name in gave if "," in name and "fixed" not in name})
    monkeypatch.setattr(against_spark, "ways_of", lambda job, load: {name: lambda n=name: way(n) for name in gave})
    asked = argparse.Namespace(job="visitors", quick=False, rounds=3, only=None, peak=1000.0, cycles=1)
    report = against_spark.measure(asked)
    found = {check.name: (check.value, check.verdict) for check in report.checks}
    assert found["dataflow, horizon: in time"] == (0.985, "undecided")
    assert found["dataflow, horizon: host time over the fixed peak's"] == (0.6364, "undecided")
    assert found["Autopilot, threshold: points in time above dynamic allocation"] == (-10.0, "undecided")
    assert report.figures["best constant fleet"] == "fixed, 4 hosts"
    assert found["results exact, in every round of every way"] == (1.0, "held")
    assert report.figures["dataflow, horizon: in time"] == {"median": 0.985, "runs": [0.985] * 3}
    json.dumps(report.figures)
