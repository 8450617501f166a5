"""Updates of code without Spark: what each state of an update leads to, and which code a batch and its replay run."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.action import SetKeyTable, Status, SwitchAlternate, UpdateCode
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, selections_of
from elastream.dataflow.operators import Alternate, Form
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError, EnvironmentProblem, InputError
from elastream.loads import constant
from elastream.recording.code_log import CodeLog
from elastream.recording.directory import RunDirectory
from elastream.recording.key_table_log import KeyTableLog
from elastream.spark.dataflow.table_activation import table_publisher
from elastream.spark.queries.segments import RunningSegment, composition_left, newest_version, widths_of
from elastream.spark.queries.switching import Switching
from elastream.spark.queries.updating import RunningCode, ask_update, begin_code, with_first_code, with_newest_code
from elastream.spark.telemetry.batches import Batch, SourceProgress
from elastream.spark.worker.code import CodeInUse, later_code
from elastream.spark.worker.composition import (
    MAX_CODE_VERSIONS,
    CompositionRequest,
    code_in_offsets,
    latest_batch,
    read_request,
    write_request,
)
from support.failing_requests import break_next_request
from support.property_examples import examples

OPERATORS = ("first", "last")
START = {"first": ("a", "b", "c"), "last": ("a",)}


def saying(text: str) -> Callable[[Any], str]:
    return lambda row: text


def two_queries(names: Mapping[str, Sequence[str]] = START, version: int = 0, returns: str = "said string") -> Graph:
    """Source -> first -> a durable edge -> last -> sink, whose functions say operator, alternate and version."""
    flow, code = Dataflow("two"), {}
    for operator, alternates in names.items():
        code[operator] = {name: saying(f"{operator}.{name}.{version}") for name in alternates}
    stream = flow.source(None, load=constant(1)).map(code["first"], returns=returns, name="first").durable()
    stream.map(code["last"], returns=returns, name="last").sink(None, name="out")
    return flow.graph


def anything(graph: Graph) -> None:
    """Refuse no dataflow."""


class Life:
    """The run in `folder`. The test writes what Spark would write; `again` is another driver after a kill."""

    def __init__(self, folder: Path, graph: Graph | None = None) -> None:
        self.directory = RunDirectory.create(folder, "two")
        self.program = graph or two_queries()
        self.again()

    def again(self) -> None:
        graph = with_first_code(self.program, self.directory)
        begin_code(graph, self.directory)
        self.code, self.layout = RunningCode(graph, self.directory), lay_out(graph)
        began = composition_left(self.layout, self.directory, Composition.default(graph, {"source": 1}), self.code.codec)
        if any(latest_batch(self.directory.checkpoint(each.name)) >= 0 for each in self.layout.segments):
            version = max(began.version, newest_version(self.layout, self.directory) + 1)
            began = Composition(version, began.alternates, began.choices, began.parallelism, began.tables, began.code)
        self.graph = graph
        request = CompositionRequest(began.version, self.code.codec.encode(began), widths_of(self.layout, began))
        write_request(self.directory.composition_request, request)
        self.running = tuple(self._segment(each, began) for each in self.layout.segments)
        self.switching = Switching(self.layout, self.running, code=self.code)

    def _segment(self, segment: Any, began: Composition) -> RunningSegment:
        about = {
            "segment": segment, "checkpoint": self.directory.checkpoint(segment.name), "own_source": True, "began": began,
            "inputs": self.directory.inputs(segment.name), "composition_file": self.directory.composition_request,
            "codec": self.code.codec,
        }  # fmt: skip
        others = {"query": None, "keyed": (), "meter": None, "sources": {}, "edges": {}, "reads": ("source",), "places": {}}
        return RunningSegment(**about, **others, interval=0.1)  # type: ignore[arg-type]

    def ask(self, names: Mapping[str, Sequence[str]], version: int | None = None, **more: Any) -> int:
        number = len(CodeLog(self.directory).versions) if version is None else version
        return ask_update(two_queries(names, number), self.directory, anything, "test", **more).version

    def propose(self) -> Status | None:
        """The loop proposes the newest version."""
        newest, now = len(CodeLog(self.directory).versions) - 1, self.switching.composition.code_version
        if newest <= now:
            return None
        (outcome,) = self.switching.apply([UpdateCode(newest, CodeLog(self.directory).since(now))])
        return outcome.status

    def plan(self, number: int) -> int:
        checkpoint = self.running[number].checkpoint
        (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        batch, asked = latest_batch(checkpoint) + 1, read_request(self.directory.composition_request)
        offset = {"n": batch + 1, "version": asked.version, "code": asked.code}
        (checkpoint / "offsets" / str(batch)).write_text("v1\n{}\n" + json.dumps(offset))
        return batch

    def run(self, number: int, batch: int) -> str:
        """Return what a task of a batch says: its workers have the queries' own walk and the run's folder."""
        name = OPERATORS[number]
        code = code_in_offsets(self.running[number].checkpoint, batch)
        assert code is not None
        assert self.code.codec.version is not None
        later = later_code(CodeInUse(self.directory.code_in_use, self.code.codec.version), name, code)
        alternates = self.graph.operator(name).alternates if later is None else later.alternates
        pick = self.code.codec.alternates.get(name) if later is None else later.pick
        chosen = alternates[pick.of(code) if pick else 0]
        said: str = chosen.function(None)  # type: ignore[operator, misc]
        return said

    def commit(self, number: int, batch: int) -> None:
        each = self.running[number]
        (each.checkpoint / "commits").mkdir(parents=True, exist_ok=True)
        (each.checkpoint / "commits" / str(batch)).touch()
        end = json.loads((each.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
        progress = (SourceProgress(end=end, rows=1),)
        self.switching.add_batches([Batch(each.segment.name, batch, 0.0, 1.0, 1, sources=progress)])

    def batch(self, number: int) -> str:
        batch = self.plan(number)
        said = self.run(number, batch)
        self.commit(number, batch)
        return said

    @property
    def copies(self) -> list[str]:
        folder = Path(str(self.directory.code_in_use))
        return sorted(path.stem.lstrip("0") for path in folder.glob("*")) if folder.is_dir() else []


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def test_an_update_changes_adds_and_removes_alternates_between_batches(life):
    assert [life.batch(0), life.batch(1)] == ["first.a.0", "last.a.0"]
    life.ask({"first": "bc", "last": "a"})
    assert life.batch(0) == "first.a.0"  # asked, and no loop has seen it
    assert life.propose() is Status.ACCEPTED
    assert life.switching.composition.alternates["first"] == "b"  # that of before is gone
    assert [each.name for each in life.switching.layout.graph.operator("first").alternates] == ["b", "c"]
    assert [life.batch(0), life.batch(1)] == ["first.b.1", "last.a.1"]
    assert life.switching.apply([SwitchAlternate("first", "a")])[0].status is Status.REFUSED
    assert life.switching.apply([SwitchAlternate("first", "c")])[0].status is Status.ACCEPTED
    assert life.batch(0) == "first.c.1"


def test_a_batch_replays_with_the_code_that_it_was_planned_with(life):
    life.commit(1, life.plan(1))
    before = life.plan(0)
    life.ask(START)
    life.propose()
    assert life.run(0, before) == "first.a.0"
    life.again()  # killed before its commit
    assert life.run(0, before) == "first.a.0"
    life.commit(0, before)
    under_way = life.plan(0)
    life.ask({"first": "c", "last": "a"})
    life.propose()
    life.again()
    assert life.run(0, under_way) == "first.a.1"
    life.commit(0, under_way)
    assert life.batch(0) == "first.c.2"


def test_a_copy_goes_once_every_query_has_committed_under_a_later_one(life):
    for _ in range(2):
        life.ask(START)
        life.propose()
        life.batch(0)
        assert "1" in life.copies  # the other query may still plan, or replay, a batch under it
    life.batch(1)
    assert life.copies == ["2"]


def test_a_resumed_run_goes_on_with_the_code_in_force(life):
    life.batch(0)
    life.ask({"first": "cd", "last": "xy"})
    life.propose()
    life.switching.apply([SwitchAlternate("first", "d"), SwitchAlternate("last", "y")])
    life.program = two_queries({"first": "z", "last": "z"}, 99)
    life.again()
    assert life.switching.composition.alternates == {"first": "d", "last": "y"}
    assert [life.batch(0), life.batch(1)] == ["first.d.1", "last.y.1"]
    assert life.propose() is None


def test_a_version_that_was_asked_before_a_kill_is_proposed_after_it(life):
    life.batch(0)
    life.ask(START)
    life.again()
    assert life.batch(0) == "first.a.0"
    assert life.propose() is Status.ACCEPTED
    assert life.batch(0) == "first.a.1"


def test_a_resumed_run_without_updates_takes_the_code_of_its_program(life):
    life.batch(0)
    life.program = two_queries(START, 7)
    life.again()
    assert life.batch(0) == "first.a.7"


def test_guards_of_a_resumed_run_may_name_what_an_update_added(life):
    assert with_newest_code(life.program, life.directory) is life.program
    life.ask({"first": "bd", "last": "a"})
    assert CodeLog(life.directory).versions[1].changed == ("first", "last")
    newest = with_newest_code(life.program, life.directory)
    assert [each.name for each in newest.operator("first").alternates] == ["b", "d"]


def test_an_update_that_cannot_be_requested_leaves_the_code_in_force(life, monkeypatch):
    life.batch(0)
    life.batch(1)
    life.ask({"first": "c", "last": "a"})
    break_next_request(monkeypatch)
    with pytest.raises(EnvironmentProblem):
        life.propose()
    assert life.batch(0) == "first.a.0"
    assert life.switching.layout.graph.operator("first").alternates[0].name == "a"
    assert life.propose() is Status.ACCEPTED
    assert life.batch(0) == "first.c.1"


def test_an_update_is_done_once_its_queries_have_committed_under_it(life):
    life.ask(START)
    assert life.propose() is Status.ACCEPTED
    update = UpdateCode(1, ("first", "last"))
    life.batch(0)
    assert life.switching.apply([update])[0].status is Status.ACCEPTED
    life.batch(1)
    assert life.switching.apply([update])[0].status is Status.DONE
    assert life.switching.composition.version == 1


def test_no_batch_has_a_key_table_that_names_an_alternate_which_its_code_has_not(tmp_path):
    def selecting(*names: str) -> Graph:
        flow = Dataflow("two")
        stream = flow.source(None, load=constant(1)).map(dict, returns="n long", name="parse")
        stream.map({each: saying(each) for each in names}, returns="said string", name="first", select_by="n").sink(None)
        return flow.graph

    life = Life(tmp_path, selecting("a", "b"))
    log = KeyTableLog(life.directory, selections_of(life.program))
    for alternate in "bab":
        log.append(KeyTable("two", "first", ("n",), {(1,): alternate}))
    life.switching = Switching(
        life.layout, life.running, code=life.code, tables=table_publisher(life.program, life.directory)
    )
    ask_update(selecting("a", "c"), life.directory, anything, "test")
    update = UpdateCode(1, ("first",))
    refused, accepted = Status.REFUSED, Status.ACCEPTED
    assert life.switching.apply([SetKeyTable("first", 1)])[0].status is accepted
    outcomes = life.switching.apply([update, SetKeyTable("first", 2)])  # until then table 1 names "b"
    assert [each.status for each in outcomes] == [refused, accepted]
    outcomes = life.switching.apply([SetKeyTable("first", 3), update])
    assert [each.status for each in outcomes] == [refused, accepted]
    assert "key table 3 of 'first' names the alternate 'b'" in outcomes[0].reason
    assert life.switching.composition.tables == {"first": 2}


def test_code_that_cannot_be_loaded_is_refused_and_the_run_goes_on(life):
    life.ask(START)
    CodeLog(life.directory).file(1).write_bytes(b"damaged")
    assert life.propose() is Status.REFUSED
    assert life.batch(0) == "first.a.0"


def test_a_repair_replaces_the_functions_of_the_batch_that_failed(life):
    life.batch(0)
    life.ask(START)
    life.propose()
    failed = life.plan(0)
    life.ask({"first": "a", "last": "a"}, repairs=True)
    life.again()
    assert life.run(0, failed) == "first.a.2"
    life.commit(0, failed)
    assert life.propose() is Status.ACCEPTED
    assert life.batch(0) == "first.a.2"


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (two_queries(), "nothing to update"),
        (two_queries(version=1, returns="said string, n long"), "the schema of operator 'first' was said string and is"),
    ],
)
def test_what_is_no_update_of_code_is_refused_and_writes_nothing(life, graph, said):
    with pytest.raises(InputError, match=said):
        ask_update(graph, life.directory, anything, "test")
    assert len(CodeLog(life.directory).versions) == 1
    assert [path.name for path in life.directory.code_versions.iterdir()] == ["000000.pickle"]


def test_costs_of_changed_alternates_are_forgotten_until_they_have_run():
    from elastream.core.metrics import Metric
    from elastream.spark.queries.compiled_frames import AlternateCosts
    from elastream.spark.worker.composition import Digit

    def row(alternate: str, version: int, busy: float) -> Any:
        about = {"operator": "first", "alternate": alternate, "code": 1 + 6 * version}
        return SimpleNamespace(**about, rows_in=1, rows_out=1, busy=busy)

    costs = AlternateCosts()
    rows = [(1.0, row("a", 0, 5.0)), (1.0, row("b", 0, 7.0))]
    costs.add_rows(rows)
    costs.forget(1, Digit(6, 10), {"first": ["a"]})
    costs.add_rows(rows)  # still in the window
    assert costs.frame(2.0).ids == ("first.b",)
    costs.add_rows([*rows, (2.0, row("a", 1, 3.0))])
    assert costs.frame(2.0).value("first.a", Metric.SERVICE_TIME) == 3.0


NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True)
UPDATES = st.fixed_dictionaries({"first": NAMES, "last": NAMES}).map(lambda names: ("update", names))
SWITCHES = st.tuples(st.just("switch"), st.sampled_from(OPERATORS), st.sampled_from("abcd"))
STEPS = (
    UPDATES
    | SWITCHES
    | st.sampled_from(
        [("propose",), ("plan", 0), ("plan", 1), ("commit", 0), ("commit", 1), ("fail", 0), ("fail", 1), ("kill",)]
    )
)


def happen(life: Life, step: tuple[Any, ...]) -> None:
    match step:
        case ("update", names):
            life.ask(names)
        case ("propose",):
            assert life.propose() in (None, Status.ACCEPTED, Status.DONE)
        case ("switch", operator, alternate):
            life.switching.apply([SwitchAlternate(operator, alternate)])
        case ("kill",):
            before = life.switching.composition
            life.again()
            assert life.switching.composition.alternates == before.alternates
            assert life.switching.composition.code_version == before.code_version


@settings(max_examples=examples(100))
@given(steps=st.lists(STEPS, max_size=40))
def test_no_batch_mixes_versions_and_no_replay_runs_other_code(tmp_path_factory, steps):
    life = Life(tmp_path_factory.mktemp("life"))
    under_way: dict[int, tuple[int, str]] = {}
    for step in steps:
        match step:
            case ("plan", number) if number not in under_way:
                now, name = life.switching.composition, OPERATORS[number]
                batch = life.plan(number)
                under_way[number] = batch, f"{name}.{now.alternates[name]}.{now.code.get(name, 0)}"
            case ("commit", number) if number in under_way:
                life.commit(number, under_way.pop(number)[0])
            case _:
                happen(life, step)
        for number, (batch, expected) in under_way.items():  # any task of it, at any time, also of another driver
            assert life.run(number, batch) == expected
    wanted = life.switching.composition
    for number, (batch, _) in under_way.items():
        life.commit(number, batch)
    for number, name in enumerate(OPERATORS):
        assert life.batch(number) == f"{name}.{wanted.alternates[name]}.{wanted.code.get(name, 0)}"
    assert life.copies == ([str(wanted.code_version)] if wanted.code_version else [])


def test_a_form_may_change_and_natives_may_not():
    from elastream.dataflow.code import has_code, with_code

    graph = two_queries()
    arrow = Alternate("a", lambda batch: batch, Form.ARROW)
    assert with_code(graph, {"last": (arrow,)}).operator("last").alternates == (arrow,)
    flow = Dataflow("native")
    flow.source(None, load=constant(1)).select("1 AS n", name="columns").sink(None)
    assert not has_code(flow.graph.operator("columns"))


def test_a_version_that_no_batch_could_carry_is_refused(life):
    names = dict.fromkeys(START, "abcd")
    life.code.codec.learn(MAX_CODE_VERSIONS - 1, {}, names)
    with pytest.raises(DataflowError, match=r"more than the 9.2e.18 that one batch can carry"):
        life.code.codec.learn(MAX_CODE_VERSIONS, {}, names)
    with pytest.raises(DataflowError, match=r"more than the 9.2e.18 that one batch can carry"):
        life.code.codec.learn(1, {}, {f"o{number}": "abcd" for number in range(40)})
