"""Dataflows as YAML: the same graph as the Python API, and every mistake named with file, line and field."""

import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from elastream.clouds.local.local import Local
from elastream.clouds.local.network import Link
from elastream.core.hosts import Billing, HostType
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, kafka, parquet, records, text_files
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Form
from elastream.documents.dataflow import load_document
from elastream.documents.registry import CLOUD, PARTS, POLICY
from elastream.errors import DataflowError, InputError
from elastream.loads import ramp
from elastream.policies.threshold import Threshold

GOOD = """\
dataflow: word_count
target_latency: 2s
operators:
  lines:
    source:
      text_files: books/
  words:
    from: lines
    flat_map: "words.py:split"
    returns: word string
    max_duration: 50ms
    cores: 0.25
  count:
    from: words
    key_by: word
    aggregate:
      count: count(*)
  out:
    from: count
    sink:
      parquet: out/
policy:
  threshold:
    scale_out: 0.7
cloud:
  local:
    host_type: small
    max_hosts: 6
host_types:
  small:
    cores: 0.5
    price: 0.02
    btu: 10 min
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with functions in it, and the working directory, so that errors name short paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.py").write_text("def split(line):\n    return line.split()\n\nlimit = 3\n")
    return tmp_path


def load(text: str) -> Graph:
    Path("flow.yaml").write_text(textwrap.dedent(text))
    return load_document("flow.yaml").graph


def test_a_document_holds_the_dataflow_and_how_to_run_it(folder: Path) -> None:
    Path("flow.yaml").write_text(GOOD)
    document = load_document("flow.yaml")
    assert document.flow.name == "word_count"
    assert document.settings["target_latency"] == 2.0
    assert document.policy is not None
    assert (document.policy.name, document.policy.parameters) == ("threshold", {"scale_out": 0.7})
    small = HostType("small", cores=0.5, price=0.02, billing=Billing(600))
    assert document.host_types == {"small": small}
    assert document.cloud is not None
    assert (document.cloud.name, document.cloud.parameters) == ("local", {"host_type": small, "max_hosts": 6})
    words = document.graph.operator("words")
    assert (words.max_duration, words.cores, words.returns) == (0.05, 0.25, "word string")
    assert words.alternates[0].function("a b") == ["a", "b"]  # type: ignore[operator]


def test_paths_are_relative_to_the_document_and_addresses_are_left_alone(folder: Path) -> None:
    (folder / "below").mkdir()
    text = GOOD.replace("words.py", "../words.py").replace("parquet: out/", "parquet: s3a://bucket/out")
    (folder / "below" / "flow.yaml").write_text(text)
    graph = load_document("below/flow.yaml").graph
    assert graph.operator("lines").reads == text_files("below/books")
    assert graph.operator("out").writes == parquet("s3a://bucket/out")


def test_functions_of_one_file_come_from_one_execution_of_it(folder: Path) -> None:
    Path("pair.py").write_text("shared = object()\ndef first(x): return shared\ndef second(x): return shared\n")
    graph = load("""\
        dataflow: f
        operators:
          a: {source: simulated}
          b: {from: a, map: "pair.py:first", returns: x int}
          c: {from: b, map: "pair.py:second", returns: x int}
          d: {from: c, sink: simulated}
        """)
    first, second = (graph.operator(name).alternates[0].function for name in "bc")
    assert first(0) is second(0)  # type: ignore[operator, misc]


def test_every_form_of_operator_and_edge_gives_the_graph_that_python_gives(folder: Path) -> None:
    Path("flow.yaml").write_text(
        textwrap.dedent("""\
        dataflow: everything
        operators:
          plays: {source: {text_files: /books}, cores: 0.5}
          orders: {source: {kafka: orders, servers: "broker:9092", options: {startingOffsets: earliest}, group: app}}
          given: {source: {records: [{value: a}, {value: b}], schema: value string}}
          merged: {from: [plays, given], map: "builtins:str", returns: value string}
          light:
            from: {operator: merged, delivery: round_robin}
            map_arrow: "builtins:list"
            returns: value string
            memory: 1 GB
          heavy:
            from: {operator: merged, delivery: round_robin, durable: kafka}
            map_pandas: "builtins:list"
            returns: value string
            image: 200 MB
            waits: true
          kept: {from: [light, heavy], filter: "builtins:bool"}
          chosen_a: {from: {operator: kept, choice: path}, select: {word: lower(value)}}
          chosen_b:
            from: {operator: kept, choice: path}
            returns: word string
            alternates:
              fine: {flat_map: "builtins:list", value: 1.0, cost: 20ms, selectivity: 2}
              coarse: {select: {word: upper(value)}, value: 0.5}
          few: {from: chosen_a, where: length(word) > 1}
          fewer: {from: few, sql: "SELECT word FROM {stream}"}
          same: {from: fewer, transform: "builtins:id"}
          total: {from: [same, chosen_b], key_by: [word], aggregate: {n: count(*)}}
          running: {from: orders, key_by: key, apply: "builtins:max", returns: n long, state: n long, max_duration: 1s}
          out: {from: total, sink: {collect: totals}}
          sent: {from: running, sink: {kafka: sums}}
        """)
    )
    flow = Dataflow("everything")
    plays = flow.source(text_files("/books"), name="plays", cores=0.5)
    orders = flow.source(kafka("orders", "broker:9092", group="app", startingOffsets="earliest"), name="orders")
    given = flow.source(records([{"value": "a"}, {"value": "b"}], "value string"), name="given")
    merged = plays.merge(given).map(str, returns="value string", name="merged").deal()
    light = merged.map_arrow(list, returns="value string", name="light", memory="1 GB")
    heavy = merged.durable("kafka").map_pandas(list, returns="value string", name="heavy", image="200 MB", waits=True)
    kept = light.merge(heavy).filter(bool, name="kept").choice("path")
    first = kept.select({"word": "lower(value)"}, name="chosen_a")
    fine = Alternate("fine", list, Form.FLAT_MAP, 1.0, cost=0.02, selectivity=2)
    coarse = Alternate("coarse", {"word": "upper(value)"}, Form.COLUMNS, 0.5)
    second = kept.map([fine, coarse], returns="word string", name="chosen_b")
    few = first.where("length(word) > 1", name="few").sql("SELECT word FROM {stream}", name="fewer")
    first = few.transform(id, name="same")
    total = first.merge(second).key_by("word").aggregate({"n": "count(*)"}, name="total")
    running = orders.key_by("key").apply(max, returns="n long", state="n long", name="running", max_duration=1)
    total.sink(collect("totals"), name="out")
    running.sink(kafka("sums"), name="sent")
    assert load_document("flow.yaml").graph == flow.graph


MISTAKES = [
    ("max_duration: 50ms", "max_duration: 50 parsecs", "11: operators.words.max_duration: '50 parsecs' is not a"),
    ("max_duration: 50ms", "max_duration: 0s", "11: operators.words.max_duration: '0s' is out of range: it must be"),
    ("max_duration: 50ms", "max_durration: 50ms", "11: operators.words.max_durration: there is no such key, did you"),
    ("target_latency: 2s", "consistency: often", "2: consistency: 'often' is not one of batch, wave, drain, rewired"),
    ("target_latency: 2s", "replicas: -1", "2: replicas: -1 is out of range: it must be at least 0"),
    ("target_latency: 2s", "replicas: true", "2: replicas: True is not a whole number"),
    ("cores: 0.25", "cores: -1", "12: operators.words.cores: -1 is out of range: it must be at least 0"),
    ("dataflow: word_count\n", "", "1: dataflow: is missing"),
    ("    cores: 0.25", "    cores: 0.25\n    cores: 0.5", "13: the key 'cores' is given twice"),
    ("    source:\n", "    source: {\n", "7: this is not YAML: while parsing a flow mapping expected ',' or '}', but"),
    ("from: words", "from: word", "14: operators.count.from: there is no operator 'word', did you mean 'words'?"),
    ("from: lines", "from: out", "8: operators.words.from: 'out' is a sink: nothing comes out of it"),
    ("from: lines", "from: [lines, lines]", "8: operators.words.from.1: 'lines' is listed twice"),
    ("    from: lines\n", "", "7: operators.words: 'from' is missing: it names the operator (or operators) whose"),
    ("from: lines", "from: [lines, count]", "14: operators.count.from: dataflow 'word_count': it has a cycle, count"),
    ("from: count", "from: lines", "13: operators.count: dataflow 'word_count': the output of operator 'count' goes"),
    (
        "    returns: word string",
        "    returns: word string\n    map: words.py:split",
        "7: operators.words: 'map' and 'flat_map' exclude each other: this is one operator",
    ),
    ('    flat_map: "words.py:split"\n', "", "7: operators.words: this operator needs one of source, sink, signal,"),
    ("words.py:split", "words.py:spilt", "9: operators.words.flat_map: words.py has no function 'spilt', did you"),
    ("words.py:split", "words.py:limit", "9: operators.words.flat_map: 'limit' of words.py is not a function but int"),
    ("words.py:split", "wordz:split", "9: operators.words.flat_map: there is no module 'wordz'"),
    ("words.py:split", "split", "9: operators.words.flat_map: 'split' names no function: write 'module:function' or"),
    (
        "    returns: word string",
        "    returns: word string\n    key_by: word",
        "7: operators.words: 'key_by' is for 'aggregate' and 'apply'; this operator has 'flat_map'",
    ),
    ("    key_by: word\n", "", "13: operators.count: 'key_by' is missing: the columns of the key"),
    (
        "      text_files: books/",
        "      text_files: books/\n      kafka: books",
        "5: operators.lines.source: 'text_files' and 'kafka' exclude each other: this is one source",
    ),
    ("text_files: books/", "files: books/", "5: operators.lines.source: a source of files needs a schema, such as"),
    ("    source:\n", "    from: count\n    source:\n", "4: operators.lines: a source has no 'from': records arrive"),
    (
        "    flat_map:",
        "    load: {constant: {rate: 5/s}}\n    flat_map:",
        "7: operators.words: 'load' does not go with 'flat_map' (only with source)",
    ),
    (
        "from: lines",
        "from: {operator: lines, delivery: random}",
        "8: operators.words.from.delivery: 'random' is not one of duplicate, round_robin",
    ),
    (
        "  threshold:\n    scale_out: 0.7",
        "  treshold:\n    scale_out: 0.7",
        "23: policy.treshold: there is no policy 'treshold', did you mean 'threshold'?",
    ),
    ("policy:\n", "policy:\n  static:\n", "22: policy: 2 names are given; exactly one is needed, with its parameters"),
    ("    cores: 0.5", "    cores: 0", "30: host_types.small: host type 'small' has no core (cores: 0); it must be"),
    ("price: 0.02", "price: -1", "32: host_types.small.price: -1 is not a price: it is negative"),
    ("price: 0.02", "price: 0.02/unit", "32: host_types.small.price: '0.02/unit' is not a price: write it per s,"),
    ("btu: 10 min", "btu: 0", "30: host_types.small: a billing time unit of 0 s: it must be above 0"),
    ("    source:\n      text_files: books/", "    source: [1]", "5: operators.lines.source: a list is not a mapping"),
    ("    aggregate:\n      count: count(*)", "    aggregate: {}", "16: operators.count.aggregate: it is empty"),
    (
        'flat_map: "words.py:split"',
        "flat_map: {a: 1}",
        "9: operators.words.flat_map: a mapping is not the name of a function, such",
    ),
    (
        "returns: word string",
        "returns: [word]",
        "10: operators.words.returns: a list is not a schema, such as 'word string, n",
    ),
    ("    sink:\n      parquet: out/", "    sink:", "18: operators.out: 'sink' has no value"),
    ("parquet: out/", "parquet:", "20: operators.out.sink: 'parquet' has no value"),
]


@pytest.mark.parametrize(("written", "instead", "said"), MISTAKES)
def test_a_mistake_is_named_with_file_line_and_field(folder: Path, written: str, instead: str, said: str) -> None:
    assert written in GOOD
    with pytest.raises(DataflowError) as caught:
        load(GOOD.replace(written, instead, 1))
    assert str(caught.value).startswith(f"flow.yaml:{said}")
    assert "\n" not in str(caught.value)


def test_a_module_that_fails_to_import_another_is_named_with_its_own_line(folder: Path) -> None:
    Path("mine_of_document_test.py").write_text("\nimport nowhere_to_be_found\n")
    with pytest.raises(DataflowError) as caught:
        load(GOOD.replace("words.py:split", "mine_of_document_test:split"))
    expected = "mine_of_document_test.py:2: ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    assert str(caught.value) == f"flow.yaml:9: operators.words.flat_map: {expected}"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"dataflow: \xff", "flow.yaml is not UTF-8 text: byte 10 is not"),
        (None, "flow.yaml cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder: Path, content: bytes | None, sentence: str) -> None:
    if content is not None:
        Path("flow.yaml").write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_document("flow.yaml")
    assert str(caught.value) == sentence


@pytest.mark.parametrize("text", ["", "- 1\n", "just text\n"])
def test_a_document_that_is_no_mapping_says_what_it_should_be(folder: Path, text: str) -> None:
    with pytest.raises(DataflowError, match=r"^flow\.yaml:1: a dataflow is a mapping with the keys"):
        load(text)


def settings_of(text: str) -> tuple[object, object]:
    Path("flow.yaml").write_text(text)
    document = load_document("flow.yaml")
    assert document.policy is not None
    assert document.cloud is not None
    return document.policy.build(), document.cloud.build()


def test_policy_and_cloud_are_built_with_their_parameters(folder: Path) -> None:
    text = GOOD.replace("cores: 0.5\n", "cores: 0.5\n    memory: 2 GB\n")
    policy, cloud = settings_of(text.replace("scale_out: 0.7", "scale_out: 0.8\n    cool_down: 1 min"))
    assert policy == Threshold(scale_out=0.8, cool_down=60.0)
    assert cloud == Local(HostType("small", 0.5, memory=2000, price=0.02, billing=Billing(600)), max_hosts=6)


def test_a_name_alone_has_defaults_and_the_network_of_hosts_is_a_mapping(folder: Path) -> None:
    head = GOOD.partition("policy:")[0] + "policy: threshold\n"
    assert settings_of(head + "cloud:\n  local:\n") == (Threshold(), Local())
    _, cloud = settings_of(head + "cloud: {local: {network: {delay: 20ms}}}\n")
    assert cloud == Local(network=Link(delay="20ms"))


def test_a_price_pays_a_billing_time_unit_or_says_for_how_long(folder: Path) -> None:
    for written, price in (("0.02", 0.02), ("0.06/h", 0.01), ("0.06 / min", 0.6)):
        Path("flow.yaml").write_text(GOOD.replace("price: 0.02", f"price: {written}"))
        document = load_document("flow.yaml")
        assert document.host_types["small"].price == pytest.approx(price)


def test_host_types_and_latency_between_regions_are_as_in_python(folder: Path) -> None:
    head = GOOD.partition("policy:")[0]
    text = """\
policy: threshold
cloud:
  local:
    host_types: [edge-box, vm]
    latency: {edge: {cloud: 40ms}}
host_types:
  edge-box: {cores: 0.5, memory: 1GB, region: edge}
  vm: {cores: 1, memory: 2GB, region: cloud}
"""
    _, cloud = settings_of(head + text)
    assert isinstance(cloud, Local)
    assert [(type.name, type.region) for type in cloud.types] == [("edge-box", "edge"), ("vm", "cloud")]
    assert cloud.delays["cloud", "edge"] == 0.04


@pytest.mark.parametrize(
    ("written", "instead", "sentence"),
    [
        ("scale_out: 0.7", "scale_uot: 0.7", "flow.yaml:24: policy.threshold.scale_uot: there is no such parameter, did"),
        ("scale_out: 0.7", "spare: many", "flow.yaml:24: policy.threshold.spare: 'many' is not a whole number"),
        ("scale_out: 0.7", "settle: soon", "flow.yaml:24: policy.threshold.settle: 'soon' is neither a number nor a"),
        ("scale_out: 0.7", "scale_out: 1.5", "flow.yaml:24: policy.threshold.scale_out: scale_out is 1.5; it must be"),
        ("host_type: small", "host_type: smal", "flow.yaml:27: cloud.local.host_type: no host type is called 'smal' here;"),
    ],
)
def test_a_setting_that_does_not_fit_is_named_with_its_line(
    folder: Path, written: str, instead: str, sentence: str
) -> None:
    with pytest.raises(DataflowError) as caught:
        settings_of(GOOD.replace(written, instead))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("target", [*POLICY.known.values(), *CLOUD.known.values(), *PARTS.values()])
def test_every_registered_setting_exists(target: str) -> None:
    module, _, name = target.partition(":")
    assert hasattr(import_module(module), name)


def test_load_is_the_pattern_of_python_and_its_mistakes_have_a_line(folder: Path) -> None:
    loaded = "      text_files: books/\n    load:\n      {}: {{from: 5/s, to: 550/s, over: 60s}}\n      then_back: true"
    written = "      text_files: books/"
    Path("flow.yaml").write_text(GOOD.replace(written, loaded.format("ramp")))
    (source,) = load_document("flow.yaml").graph.sources
    assert source.load == ramp("5/s", "550/s", over="60s").then_back()
    with pytest.raises(DataflowError, match=r"^flow\.yaml:7: operators\.lines\.load: 'rampe' is not a load"):
        load(GOOD.replace(written, loaded.format("rampe")))


def test_an_operator_of_a_cost_alone_is_one_for_the_simulator(tmp_path):
    path = tmp_path / "planned.yaml"
    path.write_text(
        "dataflow: planned\noperators:\n  a: {source: simulated, load: 5/s}\n"
        "  b: {from: a, cost: 2ms, selectivity: 0.5}\n  c: {from: b, sink: simulated}\n"
    )
    (alternate,) = load_document(path).graph.operator("b").alternates
    assert (alternate.cost, alternate.selectivity, alternate.function) == (0.002, 0.5, None)
