"""The composition of a batch: its code, the file our sources read, and the log that foreign sources need."""

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Form, Kind, Operator
from elastream.errors import DataflowError, EnvironmentProblem
from elastream.spark.worker.composition import (
    LARGEST_CODE,
    MAX_LIVE_TABLES,
    MAX_POOL_THREADS,
    BatchComposition,
    CompositionCodec,
    CompositionLog,
    code_in_offsets,
    composition_in_offsets,
    latest_batch,
    table_digit,
)


def a_chain(alternates: list[int], waits: list[bool], targets: int = 1, selects: tuple[str, ...] = ()) -> Graph:
    """Source -> op0 -> op1 ... -> one of `targets` sinks, the operators with that many alternates each."""
    operators = [Operator("source", Kind.SOURCE)]
    for number, (count, waiting) in enumerate(zip(alternates, waits, strict=True)):
        functions = tuple(Alternate(f"a{n}", len, Form.MAP) for n in range(count))
        operators.append(Operator(f"op{number}", alternates=functions, waits=waiting, selects=selects if count > 1 else ()))
    edges = [Edge(a.name, b.name) for a, b in itertools.pairwise(operators)]
    edges += [Edge(operators[-1].name, f"sink{n}", choice="way" if targets > 1 else None) for n in range(targets)]
    sinks = [Operator(f"sink{n}", Kind.SINK) for n in range(targets)]
    return Graph("chain", (*operators, *sinks), tuple(edges))


shapes = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=6)


@given(shape=shapes, targets=st.integers(1, 4), by_key=st.booleans(), data=st.data())
def test_every_composition_survives_the_way_through_its_code(shape, targets, by_key, data):
    shape = shape[: 4 if by_key else 6]
    selects = ("customer",) if by_key else ()
    tables = sum(count > 1 for count, _ in shape) if by_key else 0
    pools = sum(waiting for _, waiting in shape)
    ways = math.prod(count for count, _ in shape) * targets * MAX_POOL_THREADS**pools * (MAX_LIVE_TABLES + 1) ** tables
    assume(ways <= LARGEST_CODE)  # what is more is refused: a test of its own
    graph = a_chain([count for count, _ in shape], [waiting for _, waiting in shape], targets, selects)
    codec = CompositionCodec(graph)
    assert codec.size == ways
    transforms = [o for o in graph.operators if o.alternates]
    composition = Composition(
        data.draw(st.integers(0, 1000)),
        {o.name: data.draw(st.sampled_from([a.name for a in o.alternates])) for o in transforms},
        {name: data.draw(st.sampled_from(among)) for name, among in graph.choices.items()},
        {o.name: data.draw(st.integers(1, 64)) for o in transforms if o.waits} | {"source": 3},
        {o.name: table for o in transforms if o.selects and (table := data.draw(st.integers(0, 255)))},
    )
    code = codec.encode(composition)
    assert 0 <= code < codec.size
    assert codec.decode(code, composition.version, {"source": 3}) == composition


def test_the_default_composition_is_code_zero():
    graph = a_chain([3, 2], [True, False], targets=2)
    assert CompositionCodec(graph).encode(Composition.default(graph)) == 0


def test_more_combinations_than_a_code_can_carry_are_refused():
    with pytest.raises(DataflowError, match=r"dataflow 'chain'.* combine in .* ways"):
        CompositionCodec(a_chain([2] * 11, [True] * 11))


@given(version=st.integers(1, 10**9), further=st.integers(1, 254))
def test_nearby_versions_of_a_key_table_have_different_digits(version, further):
    assert table_digit(0) == 0
    assert 1 <= table_digit(version) <= 255
    assert table_digit(version) != table_digit(version + further)


@pytest.mark.parametrize(
    ("composition", "sentence"),
    [
        (Composition(alternates={"op0": "best"}), "operator 'op0' has no alternate 'best'"),
        (Composition(choices={"way": "cellar"}), "choice 'way' has no target 'cellar'"),
        (Composition(parallelism={"op0": 65}), "operator 'op0' has a pool of 65"),
        (Composition(parallelism={"op0": 0}), "operator 'op0' has a pool of 0"),
    ],
    ids=["alternate", "target", "too wide", "no width"],
)
def test_a_composition_outside_the_graph_is_refused_by_name(composition, sentence):
    codec = CompositionCodec(a_chain([2], [True], targets=2))
    with pytest.raises(DataflowError, match=sentence):
        codec.encode(composition)


@given(gaps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**63 - 1)), max_size=8), probe=st.integers(0, 45))
def test_a_batch_runs_under_the_last_entry_that_reaches_it(tmp_path_factory, gaps, probe):
    log = CompositionLog(tmp_path_factory.mktemp("log"))
    batch, expected = 0, BatchComposition()
    for version, (gap, code) in enumerate(gaps):
        batch += gap
        log.append(batch, version, code)
        if batch <= probe:
            expected = BatchComposition(version, code)
    assert log.at(probe) == expected


def planned(checkpoint: Path, batch: int, *offsets: str) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", json.dumps({"batchTimestampMs": 0}), *offsets]))


def test_a_switch_begins_two_batches_after_the_newest_one_planned(tmp_path: Path):
    planned(tmp_path, 9, "{}")
    planned(tmp_path, 10, "{}")
    (tmp_path / "offsets" / ".11.tmp").touch()
    log = CompositionLog(tmp_path / "log")
    assert latest_batch(tmp_path) == 10
    assert log.switch(tmp_path, version=1, code=3) == 12
    assert [log.at(batch) for batch in (11, 12)] == [BatchComposition(0, 0), BatchComposition(1, 3)]
    assert log.newest() == BatchComposition(1, 3)


def test_entries_that_no_replay_can_need_are_deleted(tmp_path: Path):
    log = CompositionLog(tmp_path / "log")
    for version in range(1, 401):
        planned(tmp_path, version, "{}")
        log.switch(tmp_path, version, code=version % 7)
    assert len(list((tmp_path / "log").iterdir())) < 250
    assert [log.at(batch).version for batch in (250, 300, 402)] == [248, 298, 400]


def test_a_switch_that_the_query_overtook_is_not_called_done(tmp_path: Path):
    class Overtaken(CompositionLog):
        def append(self, batch: int, version: int, code: int) -> None:
            super().append(batch, version, code)
            planned(tmp_path, batch, "{}")

    planned(tmp_path, 0, "{}")
    with pytest.raises(EnvironmentProblem, match=r"batch 2 .* was planned while"):
        Overtaken(tmp_path / "log").switch(tmp_path, version=1, code=3)


def test_the_offset_log_tells_the_code_of_a_batch(tmp_path: Path):
    ours = json.dumps({"n": 10, "version": 2, "code": 6, "partitions": 2})
    planned(tmp_path, 0, "-", json.dumps({"logOffset": 4}), ours, json.dumps({"n": 9, "version": 3, "code": 7}))
    planned(tmp_path, 1, json.dumps({"logOffset": 5}))
    assert code_in_offsets(tmp_path, 0) == 7  # the newest: a source that has nothing new keeps its old offset
    assert code_in_offsets(tmp_path, 1) is None
    assert composition_in_offsets(tmp_path, 0) == BatchComposition(3, 7)
    with pytest.raises(FileNotFoundError):  # not the default composition: it may have been another
        code_in_offsets(tmp_path, 2)
