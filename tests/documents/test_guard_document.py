"""Guard files: what they may say, and where a fault in one is."""

import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.endpoints import DomainSignal, Fold, Simulated
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.signals import Feed, Signal, SignalKind
from elastream.errors import ElastreamError
from elastream.guards.document import load_guards, parse_guards
from support.commands import invoke
from support.property_examples import examples

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
        ("guards: {split: {out: {when: '!peak'}, alarm: {when: peak && forecast.utilisation < 2, value: 1}}}", ""),
        # what cannot be proved is not refused
        ("guards: {forecast: {arima: {when: error * 2 > 5}, tree: {when: \"min(error, '5m') <= 1\"}}}", ""),
        ("guards: {}", "2:1: guards: it is empty"),
        ("guards: {forcast: {arima: {}}}", "2:10: guards.forcast: dataflow 'grid' has no operator or choice 'forcast',"),
        ("guards: {out: {arima: {}}}", "2:10: guards.out: operator 'out' has one alternate: there is nothing to guard"),
        ("guards:\n  forecast:\n    rima: {}", "4:5: guards.forecast.rima: 'forecast' has no alternate or branch 'rima',"),
        ("dataflow: word_count\nguards: {forecast: {arima: {}}}", "2:1: dataflow: these are guards of 'word_count'; the"),
        ("guards: {forecast: {arima: {when: peak, on: peak, off: peak}}}", "2:21: guards.forecast.arima: a guard has"),
        ("guards: {forecast: {arima: {on: peak}}}", "2:21: guards.forecast.arima: 'off' is missing: bounds of their own"),
        ("guards: {forecast: {arima: {for: 2m}}}", "2:21: guards.forecast.arima: 'for' needs a condition: 'when', or 'on'"),
        ("guards: {forecast: {arima: {value: 1.5}}}", "2:21: guards.forecast.arima: the value 1.5 is outside [0, 1]"),
        ("guards: {forecast: {arima: {whenn: peak}}}", "2:29: guards.forecast.arima.whenn: there is no such key, did you"),
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
        ("guards: {forecast: {arima: {value: 1.0 - tariff}}}", "2:40: guards.forecast.arima.value: '-' does not take"),
        ("guards: {forecast: {arima: {when: error > 1}, tree: {when: error < 1}}}", f"2:10: {ONE} none is where error = 1"),
        (
            "guards: {forecast: {arima: {when: peak}, tree: {when: error > 1 || !peak}}}",
            f"2:10: {ONE} arima and tree are where peak = true, error = 2",
        ),
        ("guards: {forecast: {arima: {}, tree: {}}}", f"2:10: {ONE} arima and tree are always"),
        (
            "guards: {forecast: {arima: {when: tariff == 'high'}, tree: {when: tariff == 'low'}}}",
            f"2:10: {ONE} none is where tariff = 'highlow.'",
        ),
    ],
)
def test_a_guard_file_is_sound_or_its_fault_is_named(tmp_path: Path, guards: str, said: str) -> None:
    found = checked(tmp_path, guards)
    assert (found.startswith(said), bool(found)) == (True, bool(said)), found


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ("signals: {cost: number}", "1:11: signals.cost: 'cost' is a signal of the system"),
        ("signals: {in: number}", "1:11: signals.in: a signal cannot be called 'in': letters, digits and _, parts joined"),
        ("signals: {error: complex}", "1:11: signals.error: 'complex' is not one of number, truth, text"),
        ("signals: {error: {kind: number, stale: 0}}", "1:33: signals.error.stale: 0 is out of range: it must be above 0"),
    ],
)
def test_a_signal_has_a_name_of_its_own_and_a_type(tmp_path: Path, signals: str, said: str) -> None:
    assert checked(tmp_path, "guards: {forecast: {arima: {}}}", signals + "\n").startswith(said)


def test_the_command_lists_guards_or_ends_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "guards.yaml"
    file.write_text(SIGNALS + "guards: {forecast: {arima: {when: error > 1, value: 0.5}}}\n")
    sound = invoke("guards", "check", file)
    assert (sound.exit_code, "arima" in sound.stdout, "1 guard of 1 element" in sound.stdout) == (0, True, True)
    file.write_text(SIGNALS + "guards: {forecast: {arima: {when: error >}}}\n")
    broken = invoke("guards", "check", file)
    assert (broken.exit_code, broken.stderr.count("\n")) == (2, 1)
    assert f"{file}:2:42: guards.forecast.arima.when: syntax error: the expression ends too early" in broken.stderr


DOMAIN = Graph(
    "grid",
    (*GRAPH.operators, Operator("measured", Kind.SINK, writes=DomainSignal("error", Fold.MEAN, "error"))),
    (*GRAPH.edges, Edge("meters", "measured")),
)
READS_ERROR = "guards: {forecast: {arima: {when: error > 1, value: 1}, tree: {}}}"


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ("", ""),
        ("signals: {error: {stale: 1 min}}\n", ""),
        ("signals: {error: truth}\n", "1:11: signals.error: 'error' is a number in the dataflow, not a truth"),
        ("signals: {error: {from: {file: e.txt}}}\n", "1:19: signals.error.from: 'error' is a signal of the dataflow: it"),
    ],
)
def test_signals_of_the_dataflow_need_no_declaration(tmp_path: Path, signals: str, said: str) -> None:
    file = tmp_path / "guards.yaml"
    file.write_text(signals + READS_ERROR)
    with pytest.raises(ElastreamError) if said else nullcontext() as raised:
        (error,) = load_guards(file, DOMAIN).signals
        assert error.stale == (60.0 if signals else math.inf)
    assert not said or str(raised.value).startswith(f"{file}:{said}")


@pytest.mark.parametrize(
    ("written", "feed", "stale"),
    [
        ("{file: alert.txt}", Feed("file", "FOLDER/alert.txt"), 3.0),
        ("{file: /run/alert.txt, every: 10s}", Feed("file", "/run/alert.txt", 10.0), 30.0),
        ("{http: 'http://grid/peak', field: now.peak}", Feed("http", "http://grid/peak", 1.0, "now.peak"), 3.0),
        ("{kafka: peaks, servers: 'b:9092'}", Feed("kafka", "peaks", 1.0, "", "b:9092"), math.inf),
        ("{kafka: peaks}", Feed("kafka", "peaks", 1.0, "", "127.0.0.1:9092"), math.inf),
    ],
)
def test_external_signal_says_where_it_is_polled_and_ages_with_polls(
    tmp_path: Path, written: str, feed: Feed, stale: float
) -> None:
    file = tmp_path / "guards.yaml"
    guards = "guards: {split: {out: {when: '!peak', value: 1}}}"
    file.write_text(f"signals: {{peak: {{kind: truth, from: {written}}}}}\n{guards}")
    (signal,) = load_guards(file, GRAPH).signals
    assert signal == Signal(
        "peak", SignalKind.TRUTH, stale, replace(feed, place=feed.place.replace("FOLDER", str(tmp_path)))
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{}", "1:31: signals.peak.from: a signal comes from one of file, http, kafka, and 0 are given"),
        ("{file: a, http: b}", "1:31: signals.peak.from: a signal comes from one of file, http, kafka, and 2 are given"),
        ("{file: a, servers: b}", "1:31: signals.peak.from: 'servers' goes with 'kafka' alone"),
        ("{file: a, every: 0}", "1:47: signals.peak.from.every: 0 is out of range: it must be above 0"),
        ("{flie: a}", "1:38: signals.peak.from.flie: there is no such key, did you mean 'file'?"),
    ],
)
def test_what_is_wrong_with_a_feed_is_named(tmp_path: Path, written: str, said: str) -> None:
    signals = f"signals: {{peak: {{kind: truth, from: {written}}}}}\n"
    assert checked(tmp_path, "guards: {split: {out: {when: '!peak', value: 1}}}", signals).startswith(said)


def test_value_of_a_guard_replaces_that_of_its_alternate(tmp_path: Path) -> None:
    forecast = Operator("forecast", alternates=(Alternate("arima", value=0.4), Alternate("tree", value=0.8)))
    operators = tuple(forecast if each.name == "forecast" else each for each in GRAPH.operators)
    file = tmp_path / "guards.yaml"
    file.write_text("guards: {forecast: {arima: {value: 1.0}, tree: {when: 'backlog > 1.0 || backlog <= 1.0'}}}")
    (element,) = load_guards(file, Graph("grid", operators, GRAPH.edges)).elements
    assert [guard.value for guard in element.guards] == [1.0, 0.8]


def test_too_many_guards_by_aliases_are_refused_unread(tmp_path: Path) -> None:
    one = "a0: &a {" + ", ".join(f"x{n}: {{}}" for n in range(1_000)) + "}"
    aliases = ", ".join(f"a{n}: *a" for n in range(1, 200))
    said = checked(tmp_path, f"guards: {{{one}, {aliases}}}")
    assert said == "2:1: guards: 200,000 guards are more than 100,000"


def sound_or_one_sentence(text: str) -> None:
    """`text` is guards, or refused with file, line and column."""
    said = "g.yaml:1:1: "
    try:
        parse_guards(text, Path("g.yaml"), GRAPH)
    except ElastreamError as error:
        said = str(error)
    assert re.match(r"g\.yaml:\d+:\d+: ", said), said
    assert "\n" not in said


@given(st.data())
@settings(deadline=None, max_examples=examples(200))
def test_damaged_file_is_guards_or_one_sentence(data: st.DataObject) -> None:
    text = (
        "signals: {error: {kind: number, stale: 5 min, from: {file: e.txt, every: 1s}}, peak: truth}\nguards:\n"
        "  forecast:\n    arima: {when: \"avg(error, '5m') < 0.3\", for: 2m, value: 1.0}\n"
        "    tree: {on: error >= 0.3 || peak, off: error < 0.25}\n"
        "  split:\n    out: {when: >\n        !peak}\n    alarm:\n      when: peak\n"
    )
    at = data.draw(st.integers(0, len(text)))
    until = data.draw(st.integers(at, min(len(text), at + 8)))
    put = data.draw(st.text(st.sampled_from("{}[]:,\n \"'>|&*!%@`#-?~\t0e.x\x00\ufeff"), max_size=4))
    sound_or_one_sentence(text[:at] + put + text[until:])
