"""Dynamic elements and patterns as YAML: the graph that Python gives, and every mistake named with file, line and field."""

import re
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from elastream.dataflow.builder import Dataflow, timeout
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import Trace, collect, records
from elastream.dataflow.functions import Loop, Receiver
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import lay_out
from elastream.documents.dataflow import OperatorKeys, load_document
from elastream.errors import DataflowError, ElastreamError
from support.property_examples import examples

EVERYTHING = """\
dataflow: grid
operators:
  meters:
    source: {records: [{customer: a, load: 1.0}], schema: "customer string, load double, at timestamp, last boolean"}
    sequential: true
  weather: {source: {records: [], schema: "temperature double"}, sequential: true}
  cleaned: {from: meters, map_stream: "builtins:iter", returns: "customer string, load double, at timestamp, last boolean"}
  forecast:
    from: cleaned
    select_by: customer
    returns: customer string, predicted double
    alternates:
      arima: {map: "builtins:abs", value: 1.0, cost: 2ms}
      tree: {map: "builtins:bool", value: 0.75, returns: "customer string, predicted double"}
  running:
    from: {operator: cleaned, durable: parquet}
    key_by: customer
    returns: customer string, total double
    timeout: {seconds: 10 min, by: at, late: 5s, emits: "builtins:min"}
    alternates:
      exact: {apply: "builtins:sum", state: total double}
      rough: {apply: "builtins:max", state: n long}
  shared:
    from: {operator: cleaned, durable: parquet}
    key_by: customer
    state: n long
    returns: n long
    timeout: 90s
    alternates:
      a: {apply: "builtins:sum"}
      b: {apply: "builtins:max"}
  means:
    from: {operator: cleaned, durable: parquet}
    window: {seconds: 30s, every: 10s, by: at, late: 5s}
    group_by: customer
    aggregate: {mean: avg(load)}
  runs:
    from: {operator: cleaned, durable: parquet}
    window: {landmark: last, by: at}
    group_by: [customer]
    apply: "builtins:len"
    returns: n int
    timeout: 1 min
  error:
    from: {operator: cleaned, durable: parquet}
    join: {operator: forecast, durable: parquet}
    on: customer
    window: {count: 4, every: 2}
  worst:
    from: {operator: cleaned, durable: parquet}
    join: {operator: forecast, durable: parquet}
    on: customer
    window: {count: 4}
    apply: "builtins:max"
    returns: error double
  both: {from: {operator: meters, durable: parquet}, zip: {operator: weather, durable: parquet}}
  refined: {from: means, map_arrow: "builtins:list", returns: x int, unrolled: 3}
  forecast_error: {from: worst, signal: mean(error)}
  way:
    from: {operator: cleaned, durable: parquet}
    ports: {hot: 0.25, cold: 0.75}
    alternates: {exact: {switch: "builtins:str", cost: 1ms}, rough: {switch: "builtins:repr"}}
  cooled:
    from: {operator: way, port: hot}
    map_arrow: "builtins:list"
    returns: customer string, load double, at timestamp, last boolean
    until: "builtins:all"
    at_most: 9
    message: {limit: 3}
  kinds: {from: [{operator: way, port: cold}, cooled], switch: "builtins:ascii", ports: [one, two], message: 1.5}
  peak: {from: worst, signal: {aggregate: any(error), name: peak_alert, stale: 5 min, trace: {0s: false, 1 min: true}}}
  asleep: {from: {operator: worst, choice: curtail, value: 0.5}, sink: nothing}
  curtailed: {from: {operator: worst, choice: curtail}, filter: "builtins:bool"}
  out_1: {from: running, sink: {collect: a}}
  out_2: {from: shared, sink: {collect: b}}
  out_3: {from: refined, sink: {collect: c}}
  out_4: {from: runs, sink: {collect: d}}
  out_5: {from: error, sink: {collect: e}}
  out_6: {from: both, sink: {collect: f}}
  out_7: {from: curtailed, sink: {collect: g}}
  out_8: {from: {operator: kinds, port: two, durable: parquet}, sink: {collect: h}}
"""


def everything() -> Graph:
    """The same dataflow in Python."""
    schema = "customer string, load double, at timestamp, last boolean"
    flow = Dataflow("grid")
    meters = flow.source(records([{"customer": "a", "load": 1.0}], schema), name="meters").sequential()
    weather = flow.source(records([], "temperature double"), name="weather").sequential()
    cleaned = meters.map_stream(iter, returns=schema, name="cleaned")
    predicted = "customer string, predicted double"
    methods = [Alternate("arima", abs, cost=0.002), Alternate("tree", bool, value=0.75, returns=predicted)]
    forecast = cleaned.map(methods, returns=predicted, name="forecast", select_by="customer")
    apart = cleaned.durable()
    running = apart.key_by("customer").apply(
        {"exact": sum, "rough": max},
        returns="customer string, total double",
        state={"exact": "total double", "rough": "n long"},
        timeout=timeout("10 min", by="at", late="5s", emits=min),
        name="running",
    )
    both = {"a": sum, "b": max}
    shared = apart.key_by("customer").apply(both, returns="n long", state="n long", timeout="90s", name="shared")
    sliding = apart.window(seconds="30s", every="10s", by="at", late="5s")
    means = sliding.group_by("customer").aggregate({"mean": "avg(load)"}, name="means")
    marked = apart.window(landmark="last", by="at").group_by("customer")
    runs = marked.apply(len, returns="n int", timeout="1 min", name="runs")
    error = apart.window(count=4, every=2).join(forecast.durable(), on="customer", name="error")
    fours = apart.window(count=4)
    worst = fours.join(forecast.durable(), on="customer", function=max, returns="error double", name="worst")
    pairs = meters.durable().zip(weather.durable(), name="both")
    names = ["refined_1", "refined_2", "refined"]
    refined = means.unrolled(lambda s, n: s.map_arrow(list, returns="x int", name=names[n - 1]), 3)
    ways = [Alternate("exact", str, cost=0.001), Alternate("rough", repr)]
    way = apart.switch(ways, {"hot": 0.25, "cold": 0.75}, name="way")
    looped = Loop(Receiver(list, {"limit": 3}), all, 9)
    cooled = way["hot"].map_arrow(looped, returns=schema, name="cooled")
    kinds = way["cold"].merge(cooled).switch(Receiver(ascii, 1.5), ["one", "two"], name="kinds")
    worst.signal("forecast_error", "mean(error)")
    worst.signal("peak_alert", "any(error)", stale="5 min", trace=Trace((0.0, 60.0), (False, True)))
    worst.choice("curtail", value=0.5).nothing(name="asleep")
    curtailed = worst.choice("curtail").filter(bool, name="curtailed")
    kept = (running, shared, refined, runs, error, pairs, curtailed, kinds["two"].durable())
    for number, stream in enumerate(kept, 1):
        stream.sink(collect("abcdefgh"[number - 1]), name=f"out_{number}")
    return flow.graph


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str) -> Graph:
    Path("flow.yaml").write_text(textwrap.dedent(text))
    return load_document("flow.yaml").graph


def test_every_pattern_gives_the_graph_that_python_gives(folder: Path) -> None:
    written, built = load(EVERYTHING), everything()
    renamed = {"signal(forecast_error)": "forecast_error", "signal(peak_alert)": "peak"}
    for operator in built.operators:
        assert written.operator(renamed.get(operator.name, operator.name)).alternates == operator.alternates
    assert {(e.source, e.target, e.port, e.choice, e.value, e.durable) for e in written.edges} == {
        (e.source, renamed.get(e.target, e.target), e.port, e.choice, e.value, e.durable) for e in built.edges
    }
    for operator in built.operators:
        there = written.operator(renamed.get(operator.name, operator.name))
        for field in [
            "kind",
            "key",
            "returns",
            "state",
            "own_state",
            "selects",
            "window",
            "timeout",
            "sequential",
            "writes",
        ]:
            assert getattr(there, field) == getattr(operator, field), (operator.name, field)


def test_a_truth_may_follow_a_clock_in_a_function(folder: Path) -> None:
    Path("clock.py").write_text("def at_noon(time):\n    return time >= 43200\n")
    built = load("""\
        dataflow: grid
        operators:
          a: {source: simulated}
          noon: {from: a, signal: {aggregate: any(x), trace: "clock.py:at_noon"}}
          b: {from: a, sink: simulated}
        """)
    trace = built.operator("noon").writes.trace  # type: ignore[union-attr]
    assert [trace(time) for time in (0.0, 50_000.0)] == [False, True]


HEAD = """\
dataflow: grid
operators:
  a: {source: {records: [], schema: "k string, x double, at timestamp"}}
  b:
"""
TAIL = """\
  out: {from: b, sink: simulated}
"""

# What operator b says besides `from: a`, and the line, the field below it and the begin of the sentence.
MISTAKES = [
    ("group_by: k\naggregate: {n: count(*)}", "4: 'group_by' needs a 'window', such as {count:"),
    ("key_by: k\ngroup_by: k\nwindow: {count: 2}\naggregate: {n: count(*)}", "4: 'key_by' and 'group_by' exclude each"),
    ("join: a\nwindow: {count: 2}", "4: 'on' is missing: the columns in which a left and a"),
    ("join: a\non: k\nwindow: {count: 2}", "6.join: 'a' is on both sides of 'b': give one of"),
    ("window: {seconds: 30s}\ngroup_by: k\naggregate: {n: count(*)}", "6.window: a window of time goes by the"),
    ("window: {count: 3, every: 2s}\ngroup_by: k\napply: builtins:len\nreturns: n int", "6.window.every: '2s' is not a"),
    ("window: {count: 3}\ngroup_by: k\naggregate: {n: count(*)}", "8.aggregate: dataflow 'grid': operator 'b' has"),
    ("window: {count: 3}\ngroup_by: k\napply: builtins:len\nstate: n int\nreturns: n int", "4: 'state' goes with"),
    ("key_by: k\nalternates:\n  one: {aggregate: {n: count(*)}}", "8.alternates.one: native aggregates cannot be"),
    (
        "key_by: k\nreturns: n int\nalternates:\n  one: {apply: builtins:len}\n  two: {map: builtins:len}",
        "4: its alternates have 'apply' and 'map': functions by key or of single records, not both",
    ),
    (
        "key_by: k\nreturns: n int\nalternates:\n  one: {apply: builtins:len, state: n int}\n  two: {apply: builtins:len}",
        "4: 'state' is missing: 'apply' needs a schema for both",
    ),
    (
        "returns: n int\nalternates:\n  one: {map: builtins:len}\n  two: {map: builtins:len, returns: n long}",
        "9.alternates.two.returns: dataflow 'grid': alternate 'two' of operator 'b' returns n bigint, where the",
    ),
    ("from: {operator: a, choice: way, value: -1}\nmap: builtins:len\nreturns: n int", "5.from.value: -1 is out of"),
    ("from: {operator: a, value: 0.5}\nmap: builtins:len\nreturns: n int", "5.from: a value is that of a branch: name"),
    ("from: {operator: a, choice: way}\nmap: builtins:len\nreturns: n int", "5.from: dataflow 'grid': choice 'way' has"),
    ("map: builtins:len\nreturns: n int\ntimeout: 10s", "4: 'timeout' does not go with 'map' (only with alternates,"),
    ("sink: {collect: x}\nsequential: true", "4: 'sequential' does not go with 'sink' (only"),
    ("from: [a, b]\nmap: builtins:len\nreturns: n int", "5.from: dataflow 'grid': it has a cycle, b ->"),
    ("switch: builtins:str", "4: 'ports' is missing: the names that 'switch' returns"),
    ("switch: builtins:str\nports: high", "7.ports: switch 'b' has the ports 'high': list their names"),
    ("switch: builtins:str\nports: {a: 0.5, b: 0.4}", "7.ports: the fractions of the ports of switch 'b' add up to 0.9"),
    ("map: builtins:str\nports: [a]", "4: 'ports' does not go with 'map' (only with switch, alternates)"),
    ("alternates: {one: {map: builtins:str}}\nports: [a]\nreturns: n int", "4: 'ports' goes with 'switch' alone"),
    ("from: {operator: a, port: high}\nmap: builtins:len\nreturns: n int", "5.from: 'a' is not a switch and has no port"),
    ("map: builtins:len\nreturns: n int\nuntil: builtins:bool", "4: 'at_most' is missing: the largest number of rounds"),
    ("map: builtins:len\nreturns: n int\nat_most: 3", "4: 'at_most' goes with 'until' alone"),
    ("filter: builtins:len\nuntil: builtins:bool\nat_most: 3", "4: 'at_most' does not go with 'filter' (only with map,"),
    ("map: builtins:len\nreturns: n int\nuntil: builtins:bool\nat_most: 0", "9.at_most: 0 is out of range"),
    ("map: builtins:len\nreturns: n int\nuntil: builtins:boo\nat_most: 3", "8.until: "),
    ("select: {n: x}\nmessage: 3", "4: 'message' does not go with 'select' (only with map,"),
    ("cost: 3ms\nmessage: 3", "4: 'message' does not go with 'cost' (only with map,"),
    ("signal: median(x)", "6.signal: the signal 'b' cannot be 'median(x)': it is count(), or"),
]


@pytest.mark.parametrize(("written", "said"), MISTAKES)
def test_a_mistake_is_named_with_file_line_and_field(folder: Path, written: str, said: str) -> None:
    text = written if written.startswith("from: ") else f"from: a\n{written}"
    line, rest = re.fullmatch(r"(\d+)(.*)", said).groups()  # type: ignore[union-attr]
    with pytest.raises(DataflowError) as refused:
        load(HEAD + textwrap.indent(text, "    ") + "\n" + TAIL)
    assert str(refused.value).startswith(f"flow.yaml:{line}: operators.b{rest}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("way", "said"), [("b", "name one"), ("{operator: b, port: c}", "there is no 'c'")])
def test_what_stands_behind_a_switch_names_a_port(folder: Path, way: str, said: str) -> None:
    switch = "    {from: a, switch: builtins:str, ports: [high, low]}\n"
    with pytest.raises(DataflowError) as refused:
        load(HEAD + switch + f"  out: {{from: {way}, sink: simulated}}\n")
    assert re.fullmatch(
        rf"flow.yaml:6: operators.out.from(.operator)?: 'b' is a switch with the ports high, low: {said}",
        str(refused.value),
    )


WORDS = st.sampled_from(["a", "b", "k", "10s", "builtins:len", "x int"])
SCRAPS = st.one_of(st.none(), st.booleans(), st.integers(-2, 5), st.floats(-2, 5), WORDS)
INNER = st.sampled_from(["count", "by", "a"])
NESTED = st.recursive(SCRAPS, lambda each: st.lists(each, max_size=2) | st.dictionaries(INNER, each, max_size=2))
FIELDS = st.sampled_from(["Window", *(field.alias or name for name, field in OperatorKeys.model_fields.items())])


@settings(max_examples=examples(200))
@given(st.dictionaries(FIELDS, NESTED, max_size=5))
def test_any_operator_compiles_or_is_one_sentence_with_a_line(
    tmp_path_factory: pytest.TempPathFactory, operator: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    operators = {
        "a": {"source": {"records": [], "schema": "k string, x double, at timestamp"}}, "b": operator,
        "out": {"from": "b", "sink": {"collect": "x"}},
    }  # fmt: skip
    with path.open("w") as file:
        YAML().dump({"dataflow": "fuzzed", "operators": operators}, file)
    try:
        graph = load_document(path).graph
    except ElastreamError as error:
        said = str(error)
        assert said.startswith(f"{path}:")
        assert "\n" not in said
        return
    with suppress(ElastreamError):
        plan_queries(lay_out(graph))
