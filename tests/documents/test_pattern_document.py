"""Dynamic elements and patterns as YAML: the graph that Python gives, and every mistake named with file, line and field."""

import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from elastream.dataflow.builder import Dataflow, Stream, timeout
from elastream.dataflow.endpoints import Trace, collect, records
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate
from elastream.documents.dataflow import load_document
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
    worst.signal("forecast_error", "mean(error)")
    worst.signal("peak_alert", "any(error)", stale="5 min", trace=Trace((0.0, 60.0), (False, True)))
    worst.choice("curtail", value=0.5).nothing(name="asleep")
    curtailed = worst.choice("curtail").filter(bool, name="curtailed")
    for number, stream in enumerate((running, shared, refined, runs, error, pairs, curtailed), 1):
        stream.sink(collect("abcdefg"[number - 1]), name=f"out_{number}")
    return flow.graph


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str) -> Graph:
    Path("flow.yaml").write_text(textwrap.dedent(text))
    return load_document("flow.yaml").graph


def test_every_dynamic_element_and_pattern_gives_the_graph_that_python_gives(folder: Path) -> None:
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

MISTAKES = {
    "groups without a window": (
        "from: a\ngroup_by: k\naggregate: {n: count(*)}",
        (
            "flow.yaml:4: operators.b: 'group_by' needs a 'window', such as {count: 10}: without one no group is ever "
            "complete; "
            "functions with state and running aggregates go with 'key_by'"
        ),
    ),
    "a join without a window": (
        "from: a\njoin: a\non: k",
        (
            "flow.yaml:4: operators.b: 'join' needs a 'window', such as {count: 10}: without one no group is ever "
            "complete; functions with state and running aggregates go with 'key_by'"
        ),
    ),
    "a window by key": (
        "from: a\nkey_by: k\nwindow: {count: 2}\naggregate: {n: count(*)}",
        "flow.yaml:4: operators.b: 'window' goes with 'group_by' or 'join'",
    ),
    "two groupings": (
        "from: a\nkey_by: k\ngroup_by: k\nwindow: {count: 2}\naggregate: {n: count(*)}",
        "flow.yaml:4: operators.b: 'key_by' and 'group_by' exclude each other: this is one operator",
    ),
    "a join on nothing": (
        "from: a\njoin: a\nwindow: {count: 2}",
        "flow.yaml:4: operators.b: 'on' is missing: the columns in which a left and a right record are equal",
    ),
    "a join with itself": (
        "from: a\njoin: a\non: k\nwindow: {count: 2}",
        (
            "flow.yaml:6: operators.b.join: 'a' is on both sides of 'b': give one of them an operator of its own, such as "
            "one with 'select' and other names for its columns"
        ),
    ),
    "a join with nobody": (
        "from: a\njoin: c\non: k\nwindow: {count: 2}",
        "flow.yaml:6: operators.b.join: there is no operator 'c' (there is: a, b, out)",
    ),
    "a window of nothing": (
        "from: a\nwindow: {by: at}\ngroup_by: k\naggregate: {n: count(*)}",
        "flow.yaml:6: operators.b.window: a window is of seconds, count or landmark, exactly one (it has none)",
    ),
    "a window without times": (
        "from: a\nwindow: {seconds: 30s}\ngroup_by: k\naggregate: {n: count(*)}",
        "flow.yaml:6: operators.b.window: a window of time goes by the timestamps in a column: name it, as in by='time'",
    ),
    "a window of a bad length": (
        "from: a\nwindow: {seconds: 30 parsecs, by: at}\ngroup_by: k\naggregate: {n: count(*)}",
        (
            "flow.yaml:6: operators.b.window.seconds: '30 parsecs' is not a duration: 'parsecs' is not one of us, ms, s, "
            "min, h, d"
        ),
    ),
    "records counted in seconds": (
        "from: a\nwindow: {count: 3, every: 2s}\ngroup_by: k\napply: builtins:len\nreturns: n int",
        "flow.yaml:6: operators.b.window.every: '2s' is not a whole number of records, as those that 'count' counts",
    ),
    "an unknown key of a window": (
        "from: a\nwindow: {cuont: 3}\ngroup_by: k\naggregate: {n: count(*)}",
        "flow.yaml:6: operators.b.window.cuont: there is no such key, did you mean 'count'?",
    ),
    "native aggregates over a count": (
        "from: a\nwindow: {count: 3}\ngroup_by: k\naggregate: {n: count(*)}",
        (
            "flow.yaml:8: operators.b.aggregate: dataflow 'grid': operator 'b' has native aggregates in windows of count, "
            "and Spark "
            "has them in windows of time only: write it as a function, (key, rows) -> rows, with apply"
        ),
    ),
    "a state in a window": (
        "from: a\nwindow: {count: 3}\ngroup_by: k\napply: builtins:len\nstate: n int\nreturns: n int",
        "flow.yaml:4: operators.b: 'state' goes with 'key_by': with 'group_by' a function is (key, rows) -> rows",
    ),
    "a group without a schema": (
        "from: a\nwindow: {count: 3}\ngroup_by: k\napply: builtins:len",
        "flow.yaml:4: operators.b: 'returns' is missing: 'apply' needs the schema of what it gives",
    ),
    "an aggregate as an alternate": (
        "from: a\nkey_by: k\nalternates:\n  one: {aggregate: {n: count(*)}}",
        (
            "flow.yaml:8: operators.b.alternates.one: native aggregates cannot be alternates, because Spark cannot change "
            "them in a "
            "running query: write functions with state, with 'apply'"
        ),
    ),
    "alternates of both kinds": (
        "from: a\nkey_by: k\nreturns: n int\nalternates:\n  one: {apply: builtins:len}\n  two: {map: builtins:len}",
        "flow.yaml:4: operators.b: its alternates have 'apply' and 'map': functions by key or of single records, not both",
    ),
    "keyed alternates without a key": (
        "from: a\nreturns: n int\nalternates:\n  one: {apply: builtins:len}",
        "flow.yaml:4: operators.b: 'key_by' is missing: the columns of the key",
    ),
    "keyed alternates without a state": (
        (
            "from: a\nkey_by: k\nreturns: n int\nalternates:\n  one: {apply: builtins:len, state: n int}\n  two: {apply: "
            "builtins:len}"
        ),
        "flow.yaml:4: operators.b: 'state' is missing: 'apply' needs a schema for both",
    ),
    "single records by key": (
        "from: a\nkey_by: k\nreturns: n int\nalternates:\n  one: {map: builtins:len}",
        "flow.yaml:4: operators.b: 'key_by' is for 'aggregate' and 'apply'; this operator has 'map'",
    ),
    "an alternate with another schema": (
        "from: a\nreturns: n int\nalternates:\n  one: {map: builtins:len}\n  two: {map: builtins:len, returns: n long}",
        (
            "flow.yaml:9: operators.b.alternates.two.returns: dataflow 'grid': alternate 'two' of operator 'b' returns n "
            "bigint, where "
            "the operator returns n int: alternates of one operator have one schema, others are branches of a choice"
        ),
    ),
    "a value above the best": (
        "from: a\nreturns: n int\nalternates:\n  one: {map: builtins:len, value: 1.5}",
        "flow.yaml:8: operators.b.alternates.one.value: 1.5 is out of range: it must be at most 1",
    ),
    "a branch of a bad value": (
        "from: {operator: a, choice: way, value: -1}\nmap: builtins:len\nreturns: n int",
        "flow.yaml:5: operators.b.from.value: -1 is out of range: it must be at least 0",
    ),
    "a value of no branch": (
        "from: {operator: a, value: 0.5}\nmap: builtins:len\nreturns: n int",
        "flow.yaml:5: operators.b.from: a value is that of a branch: name its 'choice'",
    ),
    "a choice of one": (
        "from: {operator: a, choice: way}\nmap: builtins:len\nreturns: n int",
        (
            "flow.yaml:5: operators.b.from: dataflow 'grid': choice 'way' has one branch, 'b', and needs two: add "
            "another, which may "
            "be empty (`nothing`), or leave the choice out"
        ),
    ),
    "a timeout of nothing": (
        "from: a\nkey_by: k\napply: builtins:len\nstate: n int\nreturns: n int\ntimeout: 0s",
        "flow.yaml:10: operators.b.timeout: a timeout of 0 s ends nothing: it must be above 0, and end",
    ),
    "a timeout of single records": (
        "from: a\nmap: builtins:len\nreturns: n int\ntimeout: 10s",
        "flow.yaml:4: operators.b: 'timeout' does not go with 'map' (only with alternates, apply, join, cost)",
    ),
    "a zip with nobody": (
        "from: a\nzip: c",
        "flow.yaml:6: operators.b.zip: there is no operator 'c' (there is: a, b, out)",
    ),
    "order of a sink": (
        "from: a\nsink: {collect: x}\nsequential: true",
        (
            "flow.yaml:4: operators.b: 'sequential' does not go with 'sink' (only with source, cost, map, flat_map, "
            "filter, map_arrow, "
            "map_pandas, map_stream, select, where, sql, transform, alternates)"
        ),
    ),
    "a loop of no rounds": (
        "from: a\nmap: builtins:len\nreturns: n int\nunrolled: 0",
        "flow.yaml:8: operators.b.unrolled: 0 is out of range: it must be at least 1",
    ),
    "a loop": (
        "from: [a, b]\nmap: builtins:len\nreturns: n int",
        (
            "flow.yaml:5: operators.b.from: dataflow 'grid': it has a cycle, b -> b, and loops and supersteps must be "
            "bounded: write their k rounds one behind the other, as unrolled(step, k) does"
        ),
    ),
    "a signal of no aggregate": (
        "from: a\nsignal: median(x)",
        (
            "flow.yaml:6: operators.b.signal: the signal 'b' cannot be 'median(x)': it is count(), or sum, mean, min, "
            "max, any or all of "
            "a column, such as 'mean(error)'"
        ),
    ),
    "a selection among one": (
        "from: a\nmap: builtins:len\nreturns: n int\nselect_by: k",
        "flow.yaml:4: operators.b: 'select_by' does not go with 'map' (only with alternates)",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_named_with_file_line_and_field(folder: Path, case: str) -> None:
    written, sentence = MISTAKES[case]
    with pytest.raises(DataflowError) as refused:
        load(HEAD + textwrap.indent(written, "    ") + "\n" + TAIL)
    assert str(refused.value) == sentence


# -- whatever is written -----------------------------------------------------------------------------------------------

SCHEMA = "k string, x double, at timestamp, last boolean"


@st.composite
def dataflows(draw: st.DrawFn) -> tuple[dict[str, object], Dataflow]:
    """The same random dataflow of patterns twice: as a YAML mapping and through the Python API."""
    flow = Dataflow("random")
    source = flow.source(records([], SCHEMA), name="source")
    operators: dict[str, object] = {"source": {"source": {"records": [], "schema": SCHEMA}}}
    for number in range(draw(st.integers(1, 4))):
        name = f"op{number}"
        window, keys = draw(
            st.sampled_from(
                [
                    (lambda s: s.window(count=4, every=2), {"count": 4, "every": 2}),
                    (lambda s: s.window(seconds=60, by="at", late="5s"), {"seconds": "1 min", "by": "at", "late": "5s"}),
                    (lambda s: s.window(landmark="last", by="at"), {"landmark": "last", "by": "at"}),
                ]
            )
        )
        names = draw(st.lists(st.sampled_from(["p", "q", "r"]), min_size=1, unique=True))
        values = {label: draw(st.sampled_from([0.0, 0.25, 1.0])) for label in names}
        alternates = [Alternate(label, len, value=values[label]) for label in names]
        written = {label: {"value": values[label]} for label in names}
        edge = {"operator": "source", "durable": "parquet"}
        stream = built = source.durable()
        match draw(st.sampled_from(["apply", "own", "group", "join", "pull"])):
            case "apply":
                built = stream.key_by("k").apply(alternates, returns="n int", state="n int", name=name, timeout=60)
                operators[name] = {
                    "from": edge, "key_by": "k", "returns": "n int", "state": "n int", "timeout": "1 min",
                    "alternates": {label: {**each, "apply": "builtins:len"} for label, each in written.items()},
                }  # fmt: skip
            case "own":
                states = {label: f"{label} double" for label in names}
                built = stream.key_by("k").apply(alternates, returns="n int", state=states, name=name)
                own = {label: {**each, "apply": "builtins:len", "state": states[label]} for label, each in written.items()}
                operators[name] = {"from": edge, "key_by": "k", "returns": "n int", "alternates": own}
            case "group":
                built = window(stream).group_by("k", "last").apply(alternates, returns="n int", name=name)
                operators[name] = {
                    "from": edge, "group_by": ["k", "last"], "window": keys, "returns": "n int",
                    "alternates": {label: {**each, "apply": "builtins:len"} for label, each in written.items()},
                }  # fmt: skip
            case "join":
                other = flow.source(records([], SCHEMA), name=f"{name}_right")
                built = window(stream).join(other.durable(), on="k", name=name)
                operators[f"{name}_right"] = {"source": {"records": [], "schema": SCHEMA}}
                operators[name] = {
                    "from": edge, "join": {"operator": f"{name}_right", "durable": "parquet"}, "on": "k", "window": keys,
                }  # fmt: skip
            case "pull":
                built = stream.map_stream(alternates, returns="n int", name=name)
                operators[name] = {
                    "from": edge, "returns": "n int",
                    "alternates": {label: {**each, "map_stream": "builtins:len"} for label, each in written.items()},
                }  # fmt: skip
        _end(draw, flow, operators, name, built)
    return {"dataflow": "random", "operators": operators}, flow


def _end(draw: st.DrawFn, flow: Dataflow, operators: dict[str, object], name: str, stream: Stream) -> None:
    """A sink behind the operator `name`, on a branch that may be asleep."""
    if draw(st.booleans()):
        value = draw(st.sampled_from([0.5, 1.0]))
        stream.choice(f"way_{name}", value=value).nothing(name=f"asleep_{name}")
        operators[f"asleep_{name}"] = {
            "from": {"operator": name, "choice": f"way_{name}", "value": value}, "sink": "nothing",
        }  # fmt: skip
        stream.choice(f"way_{name}").sink(collect(name), name=f"sink_{name}")
        operators[f"sink_{name}"] = {"from": {"operator": name, "choice": f"way_{name}"}, "sink": {"collect": name}}
    else:
        stream.sink(collect(name), name=f"sink_{name}")
        operators[f"sink_{name}"] = {"from": name, "sink": {"collect": name}}


@settings(max_examples=examples(40))
@given(dataflows())
def test_a_graph_of_patterns_written_as_yaml_equals_the_one_built_in_python(
    tmp_path_factory: pytest.TempPathFactory, both: tuple[dict[str, object], Dataflow]
) -> None:
    written, flow = both
    path = tmp_path_factory.mktemp("random") / "flow.yaml"
    with path.open("w") as file:
        YAML().dump(written, file)
    assert load_document(path).graph == flow.graph


WORDS = st.sampled_from(["a", "b", "k", "10s", "builtins:len", "x int"])
SCRAPS = st.one_of(st.none(), st.booleans(), st.integers(-2, 5), st.floats(-2, 5), WORDS)
INNER = st.sampled_from(["count", "by", "a"])
NESTED = st.recursive(SCRAPS, lambda each: st.lists(each, max_size=2) | st.dictionaries(INNER, each, max_size=2))
FIELDS = st.sampled_from(
    [
        "from",
        "source",
        "sink",
        "signal",
        "alternates",
        "key_by",
        "group_by",
        "join",
        "on",
        "zip",
        "window",
        "aggregate",
        "apply",
        "state",
        "own_state",
        "timeout",
        "select_by",
        "sequential",
        "unrolled",
        "returns",
        "map_stream",
        "cost",
        "map",
        "Window",
    ]
)


@settings(max_examples=examples(200))
@given(st.dictionaries(FIELDS, NESTED, max_size=5))
def test_whatever_an_operator_says_is_a_graph_or_one_sentence_with_a_line(
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
        load_document(path)
    except ElastreamError as error:
        said = str(error)
        assert "\n" not in said
        assert said.startswith(f"{path}:")
