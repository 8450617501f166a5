"""`elastream simulate` and `elastream experiment` on the command line: what they print, write and exit with."""

import gzip
import json
from pathlib import Path

import pytest

from elastream.evaluation.comparison import ExpectedError
from elastream.simulator import Drift
from support import commands

RECORDING = Path(__file__).parent.parent / "simulator" / "data" / "word_count.jsonl.gz"
DOCUMENT = """
dataflow: shop
operators:
  requests: {source: simulated}
  answer: {from: requests, alternates: {full: {cost: 50ms}}, max_duration: 1s, cores: 1, memory: 500 MB}
  out: {from: answer, sink: simulated}
host_types:
  small: {cores: 2, memory: 4 GB, price: 1, btu: 10min}
"""

SHORT = ("--policy", "btu", "--load", "5/s", "--limit", "1min")


@pytest.fixture
def document(tmp_path):
    path = tmp_path / "shop.yaml"
    path.write_text(DOCUMENT, encoding="utf-8")
    return path


def invoke(*words):
    return commands.invoke(*words, columns=200)


def told(path):
    return json.loads(path.read_text(encoding="utf-8"))["figures"]


def test_policies_are_compared_and_the_figures_written(document, tmp_path):
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    load = tmp_path / "load.csv"
    load.write_text("time,count\n" + "".join(f"{60 * k},{300 + k}\n" for k in range(4)), encoding="utf-8")
    found = invoke(
        "simulate", document, "--policy", "btu", "--policy", "queue_threshold:upper=30", "--consistency", "wave",
        "--load", load, "--html", page, "--json", figures,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "simulated" in found.output
    data = json.loads(figures.read_text(encoding="utf-8"))
    assert set(data["figures"]["policies"]) == {"btu", "queue_threshold:upper=30"}
    assert data["figures"]["winner"] in found.output
    assert (data["figures"]["seconds"], data["figures"]["records"]) == (240, 300 + 301 + 302 + 303)
    assert "expect no better" not in found.output, "no run was calibrated with"
    assert page.read_text(encoding="utf-8").count('<figure class="plot two">') == 4


FUSED = """
dataflow: shop
cloud: {local: {min_hosts: 3, max_hosts: 4}}
target_latency: 5s
operators:
  requests: {source: simulated, load: 5/s}
  answer: {from: requests, cost: 2ms}
  out: {from: answer, sink: simulated}
host_types:
  half: {cores: 0.5, memory: 4 GB, price: 1, btu: 10min}
"""


def test_a_document_with_a_cloud_is_simulated_as_it_runs(tmp_path):
    path = tmp_path / "shop.yaml"
    path.write_text(FUSED, encoding="utf-8")
    checked = invoke("check", path)
    assert checked.exit_code == 0, checked.output
    figures = tmp_path / "figures.json"
    found = invoke("simulate", path, "--policy", "threshold", "--policy", "static:1", "--limit", "9min", "--json", figures)
    assert found.exit_code == 0, found.output  # apart, an instance would need a whole core
    tried = told(figures)["policies"]
    assert {name: policy["cost"] for name, policy in tried.items()} == {"threshold": 3.0, "static:1": 3.0}
    few = invoke("simulate", path, "--max-hosts", "2", "--limit", "9min")
    assert few.exit_code == 2
    assert "min_hosts is 3: at least 1, and at most 2 (max_hosts)" in few.output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--policy", "nonsense"), "there is no policy 'nonsense'"),
        (("--policy", "btu:window"), "not key=value"),
        (("--policy", "btu:colour=3"), "colour"),
        (("--policy", "btu", "--consistency", "often"), "'often' is none of batch, wave, drain, rewired"),
        ((), "no load"),
        (("--policy", "btu"), "no load"),
        (("--policy", "btu", "--load", "5/s"), "--load: the load never ends: say how long to simulate with --limit"),
        (
            ("--policy", "btu", "--load", "5/s", "--limit", "1min", "--host", "huge"),
            "--host huge: the dataflow declares no",
        ),
        (("--policy", "btu", "--load", "5/s", "--limit", "1min", "--region", "x"), "--region applies to a price list"),
        (("--policy", "btu", "--load", "5/s", "--limit", "0s"), "'0s' is not a duration"),
        (("--policy", "btu", "--load", "5/s", "--limit", "1min", "--period", "0s"), "'0s' is not a duration"),
        (("--policy", "btu", "--load", "5/s", "--limit", "1min", "--max-hosts", "-3"), "invalid value for '--max-hosts'"),
        (("--policy", "btu", "--load", "5/s", "--limit", "1min", "--target", "1.5"), "invalid value for '--target'"),
        (("--policy", "btu", "--load", "5/s", "--limit", "1e999s"), "is too large"),
        ((*SHORT, "--speeds", "wlk"), "wlk: there is no trace of host speeds 'wlk', did you mean 'walk'?"),
        ((*SHORT, "--speeds", "walk:step=2"), "a step of 2 is wider than a walk of mean 0.85 up to 1"),
        ((*SHORT, "--speeds", "walk:color=2"), "walk:color=2: color: there is no such parameter"),
        ((*SHORT, "--speeds", "none.csv"), "there is no file none.csv"),
        ((*SHORT, "--links", "walk"), "there is no trace of links 'walk'"),
        ((*SHORT, "--links", "ec2", "--fused"), "micro-batches of fused stages take no time on links"),
        (("--policy", "btu", "--load", "0/s", "--limit", "1min"), "the load has no record in 60.0 s"),
        ((*SHORT, "--billing", "1h"), "--billing applies to a price list: give one with --prices"),
        ((*SHORT, "--minimum", "1h"), "--minimum applies to a price list: give one with --prices"),
        ((*SHORT, "--scaling", "most=3"), "--scaling most=3: there is no rule 'most'"),
        ((*SHORT, "--scaling", "budget=5/h"), "budget: 1 host of type 'small' for 6.00"),
    ],
)
def test_what_a_user_can_put_right_is_one_sentence(document, words, sentence):
    found = invoke("simulate", document, *words)
    assert found.exit_code == 2
    assert sentence in found.output
    assert "Traceback" not in found.output


PROGRAM = """
from elastream import Alternate, Dataflow, Local, run
from elastream.io import collect, records
from elastream.loads import constant
from elastream.policies import Static

flow = Dataflow("shop")
requests = flow.source(records([{"value": "a"}], "value string"), load=constant("5/s", lasts="1min"))
answers = requests.map([Alternate("full", str.upper, cost=0.05)], returns="value string", name="answer", max_duration="2s")
answers.sink(collect("answers"))
run(flow, policy=Static(hosts=2), cloud=Local(host_type="small", max_hosts=3), target_latency="2s")
raise AssertionError("a simulated program ends at its run(...)")
"""


def test_a_program_is_simulated_with_its_policy_and_hosts(tmp_path):
    program, figures = tmp_path / "shop.py", tmp_path / "figures.json"
    program.write_text(PROGRAM, encoding="utf-8")
    found = invoke("simulate", program, "--json", figures)
    assert found.exit_code == 0, found.output
    data = told(figures)
    assert (data["records"], data["seconds"], set(data["policies"])) == (300, 60, {"static"})
    assert data["policies"]["static"]["hosts peak"] == 2


def test_an_operator_without_a_cost_is_named(document, tmp_path):
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM.replace('[Alternate("full", str.upper, cost=0.05)]', "str.upper"), encoding="utf-8")
    found = invoke("simulate", program)
    assert found.exit_code == 2
    assert "'answer' has no cost" in " ".join(found.output.split())
    in_place = 'map: "builtins:str", returns: v string, cost: 50ms'
    document.write_text(DOCUMENT.replace("alternates: {full: {cost: 50ms}}", in_place), encoding="utf-8")
    assert invoke("simulate", document, *SHORT).exit_code == 0, "a cost may stand at the operator"


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder with the recording of a run on Spark."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "recording.jsonl").write_bytes(gzip.decompress(RECORDING.read_bytes()))
    return folder


def test_a_recorded_run_is_replayed_and_its_drift_reported(measured, tmp_path):
    page, figures = tmp_path / "page.html", tmp_path / "figures.json"
    found = invoke("simulate", "--calibrate", measured, "--html", page, "--json", figures)
    assert found.exit_code in (0, 1), found.output
    data = json.loads(figures.read_text(encoding="utf-8"))
    assert found.exit_code == (0 if all(check["verdict"] == "held" for check in data["checks"]) else 1)
    assert set(data["figures"]["drift"]) == {"the recorded decisions", "threshold decides"}
    host_time = data["figures"]["drift"]["the recorded decisions"]["host time"]
    assert host_time["simulated"] == pytest.approx(host_time["measured"], rel=0.02)
    assert data["figures"]["constants"]["a small host starts within"]["from"] == "median of 3 leases"
    assert data["environment"]["plant"] == "simulated"
    text = page.read_text(encoding="utf-8")
    assert text.count('<figure class="plot">') == 3
    assert "measured on Spark" in text
    assert "latency p50" in found.output


def test_the_constants_of_a_run_serve_to_compare_policies(measured, tmp_path):
    program = tmp_path / "words.py"
    program.write_text(WORDS, encoding="utf-8")
    words = ("--policy", "static:hosts=1", "--policy", "static:hosts=4", "--target", 0.5, "--json", tmp_path / "found.json")
    found = invoke("simulate", program, "--calibrate", measured, *words)
    assert found.exit_code == 0, found.output
    assert "static:hosts=4" in found.output
    # What to expect of it is said: how far the simulator is off the run whose constants it used.
    figures = told(tmp_path / "found.json")
    assert set(figures["expected error"]) == {"latency p50", "latency p99", "backlog, mean", "host time"}
    assert "expect no better of another load" in figures["verdict"]
    assert f"latency p50 {figures['expected error']['latency p50']:+.1%}" in figures["verdict"]


def test_constants_of_batches_of_one_size_are_said_to_be_weak():
    drift = Drift("latency p50", "s", 2.0, 2.5)
    assert str(ExpectedError("runs/x", (drift,), separable=True)).endswith(
        "latency p50 +25.0%: expect no better of another load."
    )
    assert "all of about one size" in str(ExpectedError("runs/x", (drift,), separable=False))


WORDS = """
from elastream import Dataflow, Local, run
from elastream.io import collect, records
from elastream.loads import constant
from elastream.policies import Threshold

flow = Dataflow("words")
lines = flow.source(records([{"value": "a"}], "value string"), load=constant("20k/s", lasts="1min"))
lines.flat_map(str.split, returns="word string", name="split_words").key_by("word").count().sink(collect("counts"))
run(flow, policy=Threshold(), cloud=Local(host_type="small", max_hosts=4), target_latency="3s")
"""


def changed(measured, folder, **header):
    """The recording with another header, and without its batches where `batches` is False."""
    keep = header.pop("batches", True)
    lines = []
    for line in (measured / "recording.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] == "start":
            entry |= header
        if not keep:
            entry.pop("batches", None)
        lines.append(json.dumps(entry))
    (folder / "recording.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def durable(measured):
    """The edges of the dataflow, one of them durable."""
    header = json.loads((measured / "recording.jsonl").read_text(encoding="utf-8").splitlines()[0])
    return [edge | {"durable": "parquet" if edge["target"] == "count" else None} for edge in header["edges"]]


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ({"plant": "simulated"}, "is a simulated run: calibration needs a run on Spark"),
        ({"batches": False}, "has no micro-batches"),
        ({"edges": "durable"}, "ran as 2 queries"),
        ({"operators": []}, "does not describe a valid dataflow"),
    ],
)
def test_a_run_that_calibrates_nothing_is_one_sentence(measured, tmp_path, header, sentence):
    if header.get("edges"):
        header = {"edges": durable(measured)}
    found = invoke("simulate", "--calibrate", changed(measured, tmp_path, **header))
    assert found.exit_code == 2
    said = " ".join(found.output.split())
    assert sentence in said
    assert said.startswith("elastream: ")
    assert said.count("elastream: ") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--calibrate", "DOCUMENT"), "not an entry of a recording"),
        (("--calibrate", "none"), "there is no recording at"),
        (("DOCUMENT", "--calibrate", "RUN", *SHORT), "has no operator 'answer'"),
        ((), "give a FILE, or --calibrate RUN"),
    ],
)
def test_what_cannot_be_calibrated_with_is_one_sentence(measured, document, words, sentence):
    found = invoke("simulate", *({"DOCUMENT": document, "RUN": measured}.get(word, word) for word in words))
    assert found.exit_code == 2
    assert sentence in " ".join(found.output.split())


def test_an_unknown_experiment_is_refused():
    found = invoke("experiment", "nonsense")
    assert found.exit_code == 2
    assert "there is no experiment 'nonsense'" in found.output
    assert "e2df" in found.output
    assert "visp" in found.output


SLOW = """
dataflow: shop
operators:
  requests: {source: simulated}
  answer: {from: requests, alternates: {full: {cost: 50ms}}, cores: 1, memory: 500 MB}
  more: {from: answer, alternates: {full: {cost: 1us}}, cores: 1, memory: 500 MB}
  out: {from: more, sink: simulated}
target_latency: 5s
host_types:
  small: {cores: 2, memory: 4 GB, price: 1, btu: 10min}
"""


def test_records_that_still_wait_are_late(tmp_path):
    document, figures = tmp_path / "slow.yaml", tmp_path / "figures.json"
    document.write_text(SLOW, encoding="utf-8")
    words = ("--load", "200/s", "--limit", "5min", "--max-hosts", 1, "--json", figures)
    found = invoke("simulate", document, "--policy", "static:hosts=1", *words)
    assert found.exit_code == 1, found.output
    assert told(figures)["policies"]["static:hosts=1"]["compliance"] < 0.25
    assert "of the records still wait at the end, and are late" in " ".join(found.output.split())
    assert "static peak (not simulated)" in found.output
    assert told(figures)["static peak"]["hosts"] >= 7
    document.write_text(SLOW.replace("50ms", "4s"), encoding="utf-8")
    found = invoke("simulate", document, "--policy", "static:hosts=1", "--load", "1/s", "--limit", "3s", "--period", "1s")
    assert found.exit_code == 1, found.output
    assert "no record reached a sink" in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("50ms", "6s"), "slow.yaml:8: target_latency: a record of 'requests' takes 6.0 s even without waiting"),
        (
            ("memory: 500 MB}", "memory: 500 MB, max_duration: 10ms}"),
            "slow.yaml:5: operators.answer.max_duration: operator 'answer' needs 50 ms for a record",
        ),
        (
            ("cores: 1, memory: 500 MB}", "cores: 3, memory: 500 MB}"),
            "slow.yaml:5: operators.answer.cores: operator 'answer' needs 3 cores for an instance, and no host type has",
        ),
        (
            ("cores: 1, memory: 500 MB}", "cores: 1, memory: 50 GB}"),
            "slow.yaml:5: operators.answer.memory: operator 'answer' needs 50000 MB for an instance",
        ),
        (
            ("source: simulated}", "source: {records: [{v: 1}], schema: v int}, load: 5/s}"),
            "slow.yaml:4: operators.requests",
        ),
    ],
)
def test_what_no_hosts_can_do_is_refused_with_file_line_and_field(tmp_path, change, sentence):
    document = tmp_path / "slow.yaml"
    document.write_text(SLOW.replace(*change), encoding="utf-8")
    words = [] if "schema" in change[1] else ["--load", "5/s", "--limit", "1min"]
    found = invoke("simulate", document, "--policy", "static:hosts=1", *words)
    assert found.exit_code == 2, found.output
    assert sentence in found.output
    if words:
        assert sentence in invoke("check", document).output


def test_rules_hold_in_simulation_too(document, tmp_path):
    """A load that needs several hosts, on one: the rule is the document's, and the command's in its place."""
    document.write_text(DOCUMENT + "scaling: {max_hosts: 1}\n")
    common = ("simulate", document, "--policy", "threshold", "--fused", "--load", "80/s", "--limit", "5min")
    figures = {}
    for name, more in (("document", ()), ("command", ("--scaling", "max_hosts="))):
        found = invoke(*common, *more, "--json", tmp_path / name)
        assert found.exception is None or isinstance(found.exception, SystemExit), found.output
        assert (tmp_path / name).exists(), found.output
        figures[name] = told(tmp_path / name)["policies"]["threshold"]["cost"]
    assert figures["document"] < figures["command"]


def test_shipped_prices_are_listed_and_used(document):
    listed = invoke("prices")
    assert listed.exit_code == 0, listed.output
    assert "Amazon EC2, Linux, on demand; us-east-1; 2026-01-19" in listed.output
    assert "m5.large" in listed.output
    assert "0.0960" in listed.output
    kinds = {each["name"]: each for each in json.loads(invoke("prices", "--json").output)}
    assert kinds["m5.large"]["cores"] == 2
    used = invoke("simulate", document, *SHORT, "--prices", "ec2", "--host", "m5.large")
    assert used.exit_code == 0, used.output


def test_price_list_that_is_not_there_is_named():
    listed = invoke("prices", "nowhere.csv")
    assert (listed.exit_code, listed.stderr) == (2, "elastream: there is no file nowhere.csv\n")
