"""Wanted and effective composition, without Spark: what each state of a dynamic element leads to, in every mode."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import SetKeyTable, SetParallelism, Status, SwitchAlternate, SwitchEdge
from elastream.core.composition import Consistency, switched
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import EnvironmentProblem
from elastream.loads import constant
from elastream.recording.directory import RunDirectory
from elastream.spark.dataflow.sources import HELD
from elastream.spark.queries import switching
from elastream.spark.queries.segments import RunningSegment, log_of, newest_version
from elastream.spark.queries.switching import Switching
from elastream.spark.telemetry.batches import Batch, SourceProgress
from elastream.spark.worker.composition import CompositionCodec, CompositionRequest, read_request, write_request
from support.failing_requests import break_next_request
from support.property_examples import examples


def two_queries() -> Layout:
    """Source -> first (two alternates) -> a durable edge -> last (two alternates) -> a choice of two sinks."""
    flow = Dataflow("two")
    stream = flow.source(None, load=constant(1)).map({"a": len, "b": len}, returns="n long", name="first").durable()
    ways = stream.map({"c": len, "d": len}, returns="n long", name="last").choice("way")
    ways.sink(None, name="left")
    ways.sink(None, name="right")
    return lay_out(flow.graph)


class Queries:
    """Both queries as folders; what Spark would write there is written by the test."""

    def __init__(self, folder: Path, consistency: Consistency = Consistency.BATCH, own: bool = True, **more: Any) -> None:
        self.layout = two_queries()
        self.codec = CompositionCodec(self.layout.graph)
        self.wanted = folder / "wanted.json"
        (edge,) = self.layout.segments[1].inputs
        self.edge = folder / "edge"
        began = Composition.default(self.layout.graph)
        self.running = tuple(
            RunningSegment(
                segment=segment,
                query=None,  # type: ignore[arg-type]
                checkpoint=folder / segment.name,
                inputs=folder / "control" / segment.name,
                composition_file=self.wanted,
                own_source=own,
                began=began,
                keyed=(),
                meter=None,  # type: ignore[arg-type]
                codec=self.codec,
                sources={} if number else {"source": folder / "control" / segment.name},
                edges={edge: self.edge} if number else {},
                reads=(edge,) if number else ("source",),
                places={},
                interval=0.1,
            )
            for number, segment in enumerate(self.layout.segments)
        )
        self.switching = Switching(self.layout, self.running, consistency, **more)
        self.rows = [0, 0]

    @property
    def asked(self) -> CompositionRequest:
        return read_request(self.wanted)

    def plan(self, number: int, **offset: Any) -> int:
        """A batch of a query is planned; its number."""
        offsets = self.running[number].checkpoint / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        batch = len(list(offsets.iterdir()))
        self.rows[number] += 1
        said = {"n": self.rows[number], "version": self.asked.version, "code": self.asked.code, **offset}
        (offsets / str(batch)).write_text("v1\n{}\n" + json.dumps(said))
        return batch

    def commit(self, number: int, batch: int) -> None:
        """It is committed, and seen to be."""
        each = self.running[number]
        (each.checkpoint / "commits").mkdir(parents=True, exist_ok=True)
        (each.checkpoint / "commits" / str(batch)).touch()
        end: Mapping[str, Any] = json.loads((each.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
        sources = (SourceProgress(end=end, rows=1),)
        self.switching.add_batches([Batch(each.segment.name, batch, 0.0, 1.0, 1, sources=sources)])

    def alternates(self, number: int) -> tuple[str, str]:
        found = self.switching.effective[self.layout.segments[number].name]
        return found.alternates["first"], found.alternates["last"]


@pytest.fixture
def queries(tmp_path: Path) -> Queries:
    return Queries(tmp_path)


def test_all_switches_of_a_plan_are_one_version_and_one_write(queries, monkeypatch):
    written = []
    monkeypatch.setattr(switching, "write_request", lambda path, wanted: written.append(wanted))
    plan = [
        SwitchAlternate("first", "b"),
        SwitchEdge("way", "up"),
        SwitchEdge("way", "right"),
        SwitchAlternate("last", "d"),
    ]
    outcomes = queries.switching.apply(plan)
    assert [outcome.action for outcome in outcomes] == plan
    assert [outcome.status for outcome in outcomes] == [
        Status.ACCEPTED, Status.REFUSED, Status.ACCEPTED, Status.ACCEPTED,
    ]  # fmt: skip
    assert "has no target 'up'" in outcomes[1].reason
    (wanted,) = written
    assert wanted.version == 1
    assert queries.codec.decode(wanted.code).alternates == {"first": "b", "last": "d"}
    assert queries.codec.decode(wanted.code).choices == {"way": "right"}


def test_a_switch_is_accepted_until_its_query_commits_a_batch_under_it(queries):
    old = [queries.plan(number) for number in (0, 1)]
    (outcome,) = queries.switching.apply([SwitchAlternate("last", "d")])
    assert outcome.status is Status.ACCEPTED
    assert queries.switching.effective == {}
    for number in (0, 1):
        queries.commit(number, old[number])
    assert queries.alternates(1) == ("a", "c")
    queries.commit(0, queries.plan(0))  # another query has it: that is not the one
    assert queries.alternates(0) == ("a", "d")
    assert queries.switching.apply([SwitchAlternate("last", "d")])[0].status is Status.ACCEPTED
    queries.commit(1, queries.plan(1))
    assert queries.switching.apply([SwitchAlternate("last", "d")])[0].status is Status.DONE
    assert queries.switching.composition.version == 1


def test_a_switch_that_cannot_be_written_fails_and_leaves_what_was_there(queries, monkeypatch):
    queries.switching.apply([SwitchAlternate("first", "b")])
    break_next_request(monkeypatch)
    with pytest.raises(EnvironmentProblem):
        queries.switching.apply([SwitchAlternate("last", "d")])
    assert queries.codec.decode(queries.asked.code).alternates == {"first": "b", "last": "c"}
    assert queries.switching.composition.alternates == {"first": "b", "last": "c"}
    assert queries.switching.composition.version == queries.asked.version == 3  # 2 may have been planned already
    queries.switching.apply([SwitchAlternate("last", "d")])
    assert queries.asked.version == 4


def test_a_foreign_query_tells_by_its_log_what_a_batch_ran_under(tmp_path):
    queries = Queries(tmp_path, own=False)
    first = queries.plan(0)
    queries.switching.apply([SwitchAlternate("first", "b")])
    second, third = queries.plan(0), queries.plan(0)
    found = []
    for batch in (first, second, third):
        each = queries.running[0]
        queries.switching.add_batches([Batch(each.segment.name, batch, 0.0, 1.0, 1, sources=(SourceProgress(rows=1),))])
        found.append(queries.alternates(0)[0])
    assert found == ["a", "a", "b"]  # two batches after the newest one planned


def test_key_tables_are_brought_into_use_before_they_are_requested(tmp_path):
    flow = Dataflow("tables")
    stream = flow.source(None, load=constant(1))
    stream.map({"a": len, "b": len}, returns="n long", name="first", select_by="n").sink(None)
    asked = []

    def use(operator: str, version: int, live: Any, names: Any) -> str:
        asked.append((operator, version, [each.version for each in live]))
        return "" if version < 3 else f"there is no version {version}"

    queries = Queries(tmp_path)
    queries.layout = lay_out(flow.graph)
    (segment,) = queries.layout.segments
    began = Composition.default(flow.graph)
    fields = {"segment": segment, "began": began, "codec": CompositionCodec(flow.graph), "edges": {}, "reads": ("source",)}
    running = [type(queries.running[0])(**{**vars(queries.running[0]), **fields})]
    found = Switching(queries.layout, running, tables=use)
    statuses = [each.status for each in found.apply([SetKeyTable("first", 2), SwitchAlternate("first", "b")])]
    assert statuses == [Status.ACCEPTED, Status.ACCEPTED]
    assert found.composition.tables == {"first": 2}
    (refused,) = found.apply([SetKeyTable("first", 3)])
    assert (refused.status, refused.reason) == (Status.REFUSED, "there is no version 3")
    assert found.apply([SetKeyTable("first", 0)])[0].status is Status.ACCEPTED
    assert asked == [("first", 2, [0]), ("first", 3, [0, 1])]
    (none,) = Switching(queries.layout, running).apply([SetKeyTable("first", 1)])
    assert "no key tables" in none.reason


def edge_written(queries: Queries, batch: int, rows: int) -> None:
    place = queries.edge / f"batch={batch}"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"n": pa.array([0] * rows, pa.int64())}), place / "part-0.parquet")


def test_a_drain_holds_the_sources_until_all_edges_are_committed(tmp_path):
    queries = Queries(tmp_path, Consistency.DRAIN)
    edge = {"edge": "first-last"}
    queries.commit(0, queries.plan(0))
    edge_written(queries, 0, 2)
    under_way = queries.plan(0)
    assert not queries.switching.settle()
    (outcome,) = queries.switching.apply([SwitchAlternate("first", "b"), SwitchAlternate("last", "d")])[:1]
    assert outcome.status is Status.ACCEPTED
    assert (queries.asked.version, queries.asked.code, queries.asked.paused) == (0, 0, True)
    assert queries.switching.settle()  # the source has not said that it takes no more
    edge_written(queries, 1, 1)
    queries.commit(0, under_way)
    (queries.running[0].inputs).mkdir(parents=True)
    (queries.running[0].inputs / HELD).write_text("0")
    assert queries.switching.settle()  # three records on the edge
    part = queries.plan(1, **edge, n=2)
    queries.commit(1, part)
    queries.switching.apply([SwitchEdge("way", "right")])  # comes with those that wait
    assert queries.asked.paused
    assert queries.switching.widen(SetParallelism("source", 2))  # as does this
    rest = queries.plan(1, **edge, n=3)
    assert queries.switching.settle()  # planned, not committed
    queries.commit(1, rest)
    assert queries.alternates(1) == ("a", "c")
    assert not queries.switching.settle()
    asked = queries.asked
    assert (asked.version, asked.paused, asked.partitions["source"]) == (2, False, 2)
    assert queries.codec.decode(asked.code).alternates == {"first": "b", "last": "d"}
    assert queries.codec.decode(asked.code).choices == {"way": "right"}
    assert not queries.switching.settle()


def test_what_a_source_said_of_an_earlier_drain_does_not_count(tmp_path):
    queries = Queries(tmp_path, Consistency.DRAIN)
    for number in (0, 1):
        queries.commit(number, queries.plan(number, **({"edge": "first-last", "n": 0} if number else {})))
    queries.running[0].inputs.mkdir(parents=True)
    for version in (0, 1):
        queries.switching.apply([SwitchAlternate("first", "ba"[version])])
        assert queries.asked.paused
        assert queries.switching.settle()
        (queries.running[0].inputs / HELD).write_text(str(version))
        assert not queries.switching.settle()
        assert (queries.asked.version, queries.asked.paused) == (version + 1, False)


SWITCHES = (
    SwitchAlternate("first", "a"),
    SwitchAlternate("first", "b"),
    SwitchAlternate("last", "c"),
    SwitchAlternate("last", "d"),
    SwitchEdge("way", "left"),
    SwitchEdge("way", "right"),
)


@settings(max_examples=examples(40))
@given(
    steps=st.lists(
        st.lists(st.sampled_from(SWITCHES), min_size=1, max_size=3) | st.sampled_from(["plan", "commit"]), max_size=25
    ),
    numbers=st.randoms(use_true_random=False),
)
def test_a_wanted_composition_is_effective_after_one_more_batch_each(tmp_path_factory, steps, numbers):
    queries = Queries(tmp_path_factory.mktemp("queries"))
    found, under_way = queries.switching, dict[int, int]()

    def advance(number: int, what: str) -> None:
        if what == "plan" and number not in under_way:
            under_way[number] = queries.plan(number)
        elif what == "commit" and number in under_way:
            queries.commit(number, under_way.pop(number))

    versions = [0]
    for step in steps:
        if isinstance(step, str):
            advance(numbers.randint(0, 1), step)
            continue
        for outcome in found.apply(step):
            assert outcome.status in (Status.ACCEPTED, Status.DONE)
            if outcome.status is Status.DONE and step.count(outcome.action) == len(step):
                (query,) = outcome.action.segments(queries.layout)
                ran = found.effective[query]
                assert switched(ran, [outcome.action]) is ran
        versions.append(found.composition.version)
        assert versions[-1] - versions[-2] in (0, 1)
        assert queries.asked.code == queries.codec.encode(found.composition)
    for number in (0, 1):
        advance(number, "commit")
        advance(number, "plan")
        advance(number, "commit")
    assert all(each == found.composition for each in found.effective.values())
    now = found.composition
    wanted = [switch for switch in SWITCHES if switched(now, [switch]) is now]
    assert {outcome.status for outcome in found.apply(wanted)} == {Status.DONE}


@pytest.mark.parametrize(("wanted", "planned", "logged"), [(5, 2, 2), (2, 5, 2), (2, 2, 5)])
def test_versions_go_on_from_whatever_a_copy_of_the_drivers_files_lacks(wanted, planned, logged, tmp_path):
    """Where a run goes on elsewhere, what was wanted comes from a copy, and batches were planned under a later version."""
    layout, directory = two_queries(), RunDirectory.create(tmp_path, "two")
    assert newest_version(layout, directory) == 0
    write_request(directory.composition_request, CompositionRequest(wanted, 0))
    first, last = layout.segments
    offsets = directory.checkpoint(first.name) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "3").write_text("v1\n{}\n" + json.dumps({"n": 1, "version": planned, "code": 0}))
    log_of(directory.inputs(last.name)).append(4, logged, 0)
    assert newest_version(layout, directory) == 5
