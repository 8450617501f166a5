"""Guard files: what they may say, and where a fault in one is."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastream.cli.app import app
from elastream.documents.guards import load_guards
from elastream.model.endpoints import Simulated
from elastream.model.errors import ElastreamError
from elastream.model.graph import Alternate, Edge, Graph, Kind, Operator

GRAPH = Graph(
    "grid",
    (
        Operator("meters", Kind.SOURCE, reads=Simulated(None)),
        Operator("forecast", alternates=(Alternate("arima"), Alternate("tree"))),
        Operator("out", Kind.SINK),
        Operator("alarm", Kind.SINK),
    ),
    (
        Edge("meters", "forecast"),
        Edge("forecast", "out", choice="split"),
        Edge("forecast", "alarm", choice="split"),
    ),
)
EROR = "there is no signal or function 'eror', did you mean 'error'?"
ONE = "guards.forecast: exactly one guard must be active, and"
SIGNALS = "signals: {error: number, peak: truth, tariff: text}\n"


def checked(tmp_path: Path, guards: str, signals: str = SIGNALS) -> str:
    """What is said of a guard file; its name and folder are left out."""
    file = tmp_path / "guards.yaml"
    file.write_text(signals + guards)
    try:
        load_guards(file, GRAPH)
    except ElastreamError as error:
        return str(error).removeprefix(f"{file}:")
    return ""


@pytest.mark.parametrize(
    ("guards", "said"),
    [
        ("guards: {forecast: {arima: {when: error > 1}, tree: {when: error <= 1}}}", ""),
        ("guards: {forecast: {arima: {when: 'held(peak, ''2m'')', value: 1}, tree: {}}}", ""),
        (
            "guards: {split: {out: {when: '!peak'}, alarm: {when: peak && forecast.utilisation < 2, value: 1}}}",
            "",
        ),
        ("guards: {}", "2: guards: it is empty"),
        (
            "guards: {forcast: {arima: {}}}",
            "2: guards.forcast: dataflow 'grid' has no operator or choice 'forcast', did you mean 'forecast'?",
        ),
        ("guards: {out: {arima: {}}}", "2: guards.out: operator 'out' has one alternate: there is nothing to guard"),
        (
            "guards:\n  forecast:\n    rima: {}",
            "4: guards.forecast.rima: 'forecast' has no alternate or branch 'rima', did you mean 'arima'?",
        ),
        (
            "dataflow: word_count\nguards: {forecast: {arima: {}}}",
            "2: dataflow: these are guards of 'word_count'; the dataflow is 'grid'",
        ),
        (
            "guards: {forecast: {arima: {when: peak, on: peak, off: peak}}}",
            "2: guards.forecast.arima: a guard has 'when', or 'on' and 'off', not both",
        ),
        (
            "guards: {forecast: {arima: {on: peak}}}",
            "2: guards.forecast.arima: 'off' is missing: bounds of their own need both",
        ),
        (
            "guards: {forecast: {arima: {for: 2m}}}",
            "2: guards.forecast.arima: 'for' needs a condition: 'when', or 'on' and 'off'",
        ),
        ("guards: {forecast: {arima: {value: 1.5}}}", "2: guards.forecast.arima: the value 1.5 is outside [0, 1]"),
        (
            "guards: {forecast: {arima: {whenn: peak}}}",
            "2: guards.forecast.arima.whenn: there is no such key, did you mean 'when'?",
        ),
        # line and column of what is wrong in an expression, however it is written
        ("guards:\n  forecast:\n    arima: {when: eror > 1}", "4:19: guards.forecast.arima.when: " + EROR),
        ('guards: {forecast: {arima: {when: "peak && eror > 1"}}}', "2:44: guards.forecast.arima.when: " + EROR),
        (
            "guards:\n  forecast:\n    arima:\n      when: |\n        peak ||\n          eror > 1\n",
            "7:11: guards.forecast.arima.when: " + EROR,
        ),
        (
            "guards:\n  forecast:\n    arima:\n      when: >\n        peak ||\n        eror > 1\n",
            "7:9: guards.forecast.arima.when: " + EROR,
        ),
        (
            "guards:\n  forecast:\n    arima:\n      when: peak ||\n        eror > 1\n",
            "6:9: guards.forecast.arima.when: " + EROR,
        ),
        (
            "guards: {forecast: {arima: {value: 1.0 - tariff}}}",
            "2:40: guards.forecast.arima.value: '-' does not take (number, text)",
        ),
        # activation guards: exactly one is to be active
        ("guards: {forecast: {arima: {when: error > 1}, tree: {when: error < 1}}}", f"2: {ONE} none is where error = 1"),
        (
            "guards: {forecast: {arima: {when: peak}, tree: {when: error > 1 || !peak}}}",
            f"2: {ONE} arima and tree are where peak = true, error = 2",
        ),
        ("guards: {forecast: {arima: {}, tree: {}}}", f"2: {ONE} arima and tree are always"),
        (
            "guards: {forecast: {arima: {when: tariff == 'high'}, tree: {when: tariff == 'low'}}}",
            f"2: {ONE} none is where tariff = 'highlow.'",
        ),
    ],
)
def test_a_guard_file_is_sound_or_its_fault_is_named(tmp_path: Path, guards: str, said: str) -> None:
    assert checked(tmp_path, guards) == said


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ("signals: {cost: number}", "1: signals.cost: 'cost' is a signal of the system"),
        (
            "signals: {in: number}",
            "1: signals.in: a signal cannot be called 'in': letters, digits and _, parts joined with '.'",
        ),
        ("signals: {error: complex}", "1: signals.error: 'complex' is not one of number, truth, text"),
        ("signals: {error: {kind: number, stale: 0}}", "1: signals.error.stale: 0 is out of range: it must be above 0"),
    ],
)
def test_a_signal_has_a_name_of_its_own_and_a_type(tmp_path: Path, signals: str, said: str) -> None:
    assert checked(tmp_path, "guards: {forecast: {arima: {}}}", signals + "\n") == said


def test_what_cannot_be_proved_is_not_refused(tmp_path: Path) -> None:
    guards = "guards: {forecast: {arima: {when: error > 1 || error * 2 > 5}, tree: {when: \"min(error, '5m') <= 1\"}}}"
    assert checked(tmp_path, guards) == ""


def test_the_command_lists_guards_or_ends_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "guards.yaml"
    file.write_text(SIGNALS + "guards: {forecast: {arima: {when: error > 1, value: 0.5}}}\n")
    sound = CliRunner().invoke(app, ["guards", "check", str(file)])
    assert (sound.exit_code, "arima" in sound.stdout, "1 guard of 1 element" in sound.stdout) == (0, True, True)
    file.write_text(SIGNALS + "guards: {forecast: {arima: {when: error >}}}\n")
    broken = CliRunner().invoke(app, ["guards", "check", str(file)])
    assert (broken.exit_code, broken.stderr.count("\n")) == (2, 1)
    assert f"{file}:2:42: guards.forecast.arima.when: syntax error: the expression ends too early" in broken.stderr
