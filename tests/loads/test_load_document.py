"""Loads as YAML documents and the command line write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from elastream.errors import ElastreamError, InputError
from elastream.loads import Pattern, constant, load_from, pattern_from, ramp, random_walk, sine, steps


@pytest.mark.parametrize(
    ("document", "pattern"),
    [
        ("5/s", constant("5/s")),
        (5, constant(5)),
        ({"constant": "5/s"}, constant("5/s")),
        ({"constant": {"rate": "5/s", "lasts": "1min"}}, constant(5, 60)),
        ({"ramp": {"from": "5/s", "to": "550/s", "over": "60s"}}, ramp(5, 550, 60)),
        (
            {"ramp": {"from": 5, "to": 550, "over": "60s"}, "hold": "20s", "then_back": True},
            ramp(5, 550, 60).hold(20).then_back(),
        ),
        ({"steps": {"levels": [1, "2/s"], "every": "4min"}, "repeated": 2}, steps(1, 2, every=240).repeated(2)),
        ({"steps": [[1, "1s"], ["2/s", "3s"]], "repeated": True}, steps((1, 1), (2, 3)).repeated()),
        ({"sine": {"low": 1, "high": 9, "period": "1min"}, "lasting": "2min"}, sine(1, 9, 60).lasting(120)),
        (
            {"random_walk": {"start": 4, "step": 1, "low": 1, "high": 8, "every": 1, "lasts": 9, "seed": 1}, "scaled": 2},
            random_walk(4, 1, low=1, high=8, every=1, lasts=9, seed=1).scaled(2),
        ),
        (
            [{"constant": {"rate": 1, "lasts": 2}}, {"constant": {"rate": 3, "lasts": 4}}],
            constant(1, 2).then(constant(3, 4)),
        ),
    ],
)
def test_a_document_describes_the_same_load_as_python(document: Any, pattern: Pattern) -> None:
    assert pattern_from(document) == pattern


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("fast", "'fast' is not a rate"),
        ("orders.csv", "is a file, not a rate: write {trace: orders.csv}"),
        (None, "None is not a load"),
        (True, "True is not a load"),
        ({}, "is not a load"),
        ([], "empty list"),
        ({"rampe": 1}, "'rampe' is not a load (there are: constant"),
        ({"ramp": {"from": 1, "to": 2}}, "load 'ramp' lacks 'over'"),
        ({"ramp": {"to": 2, "over": 1}}, "load 'ramp' lacks 'from'"),
        ({"ramp": {"from": 1, "to": 2, "over": 1, "under": 2}}, "load 'ramp' has no field 'under'"),
        ({"constant": 1, "then": 2}, "cannot be changed by 'then' (it can by: hold"),
        ({"constant": {"rate": 1, "lasts": 1}, "scaled": "a bit"}, "cannot be changed by scaled: 'a bit'"),
        ({"steps": 3}, "load 'steps'"),
    ],
)
def test_a_wrong_document_is_refused_naming_the_field(document: Any, says: str) -> None:
    with pytest.raises(ElastreamError) as refused:
        pattern_from(document)
    assert says in str(refused.value)


def test_the_path_of_a_trace_is_relative_to_its_document(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("3\n7\n")
    document = {"trace": {"path": "counts.csv", "interval": "1s"}}
    assert pattern_from(document, tmp_path).count(2) == 10
    (tmp_path / "load.json").write_text(json.dumps(document))
    assert load_from(tmp_path / "load.json").count(2) == 10


def test_a_load_is_a_csv_file_a_document_or_written_out(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("time,count\n0,3\n60,7\n")
    (tmp_path / "load.yaml").write_text("ramp: {from: 5/s, to: 550/s, over: 60s}\nthen_back: true\n")
    assert load_from(tmp_path / "counts.csv").count(120) == 10
    assert load_from(str(tmp_path / "load.yaml")) == ramp(5, 550, 60).then_back()
    assert load_from("{ramp: {from: 5/s, to: 550/s, over: 60s}}") == ramp(5, 550, 60)
    assert load_from("550/s") == constant(550)


@pytest.mark.parametrize(
    "text", ['{"constant": "5/s", "constant": "6/s"}', "{constant: 5/s, constant: 6/s}", "[" * 3000 + "]" * 3000]
)
def test_keys_given_twice_and_bottomless_lists_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"the load: found duplicate key .constant|the load is nested too deeply"):
        load_from(text)


@pytest.mark.parametrize(
    "document",
    [
        {"steps": {"levels": [1, 2], "every": 1}, "repeated": 10**9},
        {"random_walk": {"start": 4, "step": 1, "low": 1, "high": 8, "every": "1ms", "lasts": "30d", "seed": 1}},
        {"sine": {"low": 1, "high": 2, "period": "1s"}, "lasting": "30d"},
        {"sine": {"low": 1, "high": 2, "period": "1s"}, "lasting": float("inf")},
    ],
)
def test_a_load_that_would_fill_the_memory_is_refused(document: Any) -> None:
    with pytest.raises(ElastreamError, match=r"at most 10,000,000 can be|cannot be cut to inf s"):
        pattern_from(document)


def test_a_constant_load_of_a_year_is_one_piece() -> None:
    load = pattern_from({"constant": "5/s", "lasting": "365d"})
    assert (len(load.pieces), load.count(1e9)) == (1, 157_680_000)


@pytest.mark.parametrize("text", ["nowhere.txt", "nowhere.yaml", "nowhere.csv", "{ramp: ", "{rampe: 1}"])
def test_what_is_no_load_is_refused_as_input(text: str) -> None:
    with pytest.raises(InputError, match=r"nowhere|load"):
        load_from(text)


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "load.yaml").write_text("ramp: {from: 5/s}\n")
    with pytest.raises(InputError, match=r"load\.yaml: load 'ramp' lacks"):
        load_from(tmp_path / "load.yaml")
