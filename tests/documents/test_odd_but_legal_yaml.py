"""YAML as people write it: words for truth, anchors, units of Kubernetes, decimal commas."""

from pathlib import Path

import pytest

from elastream.documents.dataflow import Document, load_document
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import DataflowError, InputError
from elastream.loads import pattern_from

SHOP = """\
dataflow: shop
target_latency: 20s
operators:
  orders: {source: simulated, load: {ramp: {from: 10/s, to: 100/s, over: 60s}, then_back: true}}
  price: {from: orders, cost: 1ms, cores: 0.5}
  out: {from: price, sink: simulated}
host_types: {one: {cores: 1, memory: 2 GB, price: 0.04/h, btu: 1h}}
"""


@pytest.fixture
def shop(tmp_path: Path):
    def read(*changes: tuple[str, str], before: str = "") -> Document:
        text = SHOP
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        (tmp_path / "shop.yaml").write_text(before + text)
        return load_document(tmp_path / "shop.yaml")

    return read


@pytest.mark.parametrize(
    ("word", "records"),
    [("no", 3300), ("off", 3300), ("'false'", 3300), ("false", 3300), ("No", 3300), ("yes", 6600), ("on", 6600)],
)
def test_then_back_is_read_as_its_word_says(shop, word, records):
    (load,) = shop(("then_back: true", f"then_back: {word}")).graph.loads.values()
    assert load.count(1e9) == records


@pytest.mark.parametrize("word", ["maybe", "2", "[]", "0.5"])
def test_then_back_without_a_truth_is_refused(shop, word):
    with pytest.raises(DataflowError, match="neither true nor false"):
        shop(("then_back: true", f"then_back: {word}"))


@pytest.mark.parametrize("word", ["no", "off", "false", "'false'"])
def test_every_truth_of_an_operator_may_be_a_word(shop, word):
    document = shop(("cost: 1ms", f"cost: 1ms, sequential: {word}, waits: {word}"))
    price = document.graph.operator("price")
    assert (price.sequential, price.waits) == (False, False)


@pytest.mark.parametrize(("word", "truth"), [("no", False), ("false", False), ("off", False), ("yes", True), ("1", True)])
def test_a_truth_among_a_policys_parameters_may_be_a_word(word, truth):
    policy = made(POLICY, *named_in(f"btu:partial_release={word}", POLICY), References(Path()))
    assert policy.partial_release is truth


def test_a_parameter_without_a_truth_is_refused():
    with pytest.raises(InputError, match="'maybe' is neither true nor false"):
        made(POLICY, "btu", {"partial_release": "maybe"}, References(Path()))


@pytest.mark.parametrize(("word", "seconds"), [("no", 1), ("false", 1), (False, 1), (3, 3), ("yes", float("inf"))])
def test_repeated_is_a_number_or_a_truth(word, seconds):
    assert pattern_from({"constant": {"rate": 1, "lasts": 1}, "repeated": word}).seconds == seconds


@pytest.mark.parametrize("change", ["scaled", "faster"])
def test_a_truth_is_no_factor(change):
    with pytest.raises(DataflowError, match=f"cannot be changed by {change}: True"):
        pattern_from({"constant": 1, change: True})


def test_own_keys_with_anchors_are_allowed_everywhere(shop):
    document = shop(
        ("{from: orders, cost: 1ms, cores: 0.5}", "{<<: *small, from: orders, x-why: cheap}"),
        ("{ramp:", "{x-note: a ramp, ramp:"),
        before="x-defaults: &small {cost: 1ms, cores: 0.5}\n",
    )
    assert document.graph.operator("price").cores == 0.5
    assert document.graph.loads["orders"].count(1e9) == 6600


def test_an_operator_may_have_a_name_that_begins_with_x(shop):
    assert "x-price" in shop(("price: {", "x-price: {"), ("from: price", "from: x-price")).graph.by_name


def test_anchors_and_merged_mappings_are_read(shop):
    one = "{cores: 1, memory: 2 GB, price: 0.04/h, btu: 1h}"
    two = f"\n  one: &host {one}\n  two:\n    <<: *host\n    cores: 2\n"
    types = shop((f"{{one: {one}}}", two)).host_types
    assert {name: each.cores for name, each in types.items()} == {"one": 1, "two": 2}


def test_units_of_kubernetes_are_read(shop):
    document = shop(("cores: 1, memory: 2 GB", "cores: 1500m, memory: 2Gi"), ("cores: 0.5", "cores: 500m, memory: 512Mi"))
    kind, price = document.host_types["one"], document.graph.operator("price")
    assert (kind.cores, kind.memory) == (1.5, pytest.approx(2147.483648))
    assert (price.cores, price.memory) == (0.5, pytest.approx(536.870912))


def test_cores_of_a_cloud_may_be_thousandths(shop):
    document = shop(before="cloud: {kubernetes: {cores: 500m, memory: 2Gi, namespace: etl, image: etl}}\n")
    assert document.cloud is not None
    assert document.cloud.build().types[0].cores == 0.5


def test_compound_durations_are_read(shop):
    assert shop(("20s", "1m30s")).settings["target_latency"] == 90


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("20s", "'1,5s'"),
        ("2 GB", "'2,5 GB'"),
        ("0.04/h", "'0,04/h'"),
        ("0.04/h", "'0,040/h'"),
        ("cores: 1,", "cores: '1,5',"),
        ("cores: 0.5", "cores: '0,5'"),
        ("10/s", "'10,5/s'"),
        ("1ms", "'1,5ms'"),
        ("host_types", "scaling: {budget: '2,5/h'}\nhost_types"),
        ("host_types", "scaling: {tolerance: '0,1'}\nhost_types"),
    ],
)
def test_a_decimal_comma_is_refused_with_its_line(shop, old, new):
    with pytest.raises(DataflowError, match=r"shop\.yaml:\d+: .*is not a"):
        shop((old, new))
