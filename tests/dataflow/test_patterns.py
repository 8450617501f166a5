"""Patterns and dynamic elements: what the Python API makes of them, and what is refused, with the way out."""

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.fitting import check_signal_names
from elastream.dataflow.builder import Dataflow, Stream, timeout
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import DomainSignal, Fold, Nothing, Trace, collect, records
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import GROUPED, Alternate, Edge, Form, Kind, Operator
from elastream.dataflow.signals import SignalKind
from elastream.dataflow.stages import lay_out
from elastream.dataflow.windows import Pairs, Timeout, Window, WindowKind
from elastream.errors import DataflowError, ElastreamError
from support.property_examples import examples

SCHEMA = "customer string, load double, time timestamp, last boolean"
ROWS = records([{"customer": "a", "load": 1.0, "time": 0, "last": False}], SCHEMA)


def started(name: str = "source", flow: Dataflow | None = None) -> Stream:
    return (flow or Dataflow("grid")).source(ROWS, name=name)


def of(stream: Stream) -> Graph:
    """The graph of the dataflow of `stream`, whose records are kept."""
    stream.sink(collect("out"))
    return stream._flow.graph


def rows_of(key: object, rows: object) -> object:
    return rows


def stateful(key: object, rows: object, state: object) -> object:
    return rows, state


# -- what there is -----------------------------------------------------------------------------------------------------


def test_a_branch_has_a_value_and_may_be_empty() -> None:
    loads = started()
    loads.choice("peak", value=0.25).nothing()
    built = of(loads.choice("peak").map(float, returns="load double", name="curtailed"))
    assert {edge.target: edge.value for edge in built.edges if edge.choice} == {"nothing(peak)": 0.25, "curtailed": 1.0}
    assert isinstance(built.operator("nothing(peak)").writes, Nothing)
    assert built.choices == {"peak": ("nothing(peak)", "curtailed")}
    assert [name for name in built.by_name if built.empty(name)] == ["nothing(peak)"]


def test_a_function_that_pulls_is_a_form_of_its_own() -> None:
    built = of(started().map_stream({"a": iter, "b": list}, returns="n long", name="pull"))
    assert {alternate.form for alternate in built.operator("pull").alternates} == {Form.STREAM}


def test_keyed_alternates_share_a_state_or_have_one_each() -> None:
    keyed = started().key_by("customer")
    shared = of(keyed.apply({"a": stateful, "b": stateful}, returns="n int", state="n long", name="k")).operator("k")
    assert (shared.own_state, [shared.state_of(each) for each in shared.alternates]) == (False, ["n long"] * 2)
    keyed = started().key_by("customer")
    same = of(keyed.apply({"a": stateful, "b": stateful}, returns="n int", state="n long", own_state=True, name="k"))
    assert same.operator("k").own_state
    states = {"a": "n long", "b": "x double"}
    keyed = started().key_by("customer")
    own = of(keyed.apply({"a": stateful, "b": stateful}, returns="n int", state=states, name="k")).operator("k")
    assert own.own_state
    assert [own.state_of(each) for each in own.alternates] == ["n long", "x double"]


def test_the_state_of_a_key_ends_where_a_timeout_says_so() -> None:
    closing = timeout("10 min", by="time", late="5s", emits=rows_of)
    assert closing == Timeout(600.0, "time", 5.0, rows_of)
    keyed = started().key_by("customer")
    built = of(keyed.apply(stateful, returns="n int", state="n long", timeout="90s", name="k"))
    assert built.operator("k").timeout == Timeout(90.0)


def test_windows_are_grouped_by_key_and_joined() -> None:
    flow = Dataflow("grid")
    left, right = started("left", flow), started("right", flow)
    sliding = left.window(seconds="30s", every="10s", by="time", late="5s")
    assert sliding._window == Window(seconds=30.0, every=10.0, by="time", late=5.0)
    grouped = left.window(count=4, every=2).group_by("customer").apply(rows_of, returns="n int", timeout="1 min", name="g")
    grouped.sink(collect("grouped"))
    left.window(landmark="last").join(right, on="customer", name="j").sink(collect("joined"))
    built = flow.graph
    assert built.operator("g").window == Window(count=4, every=2)
    assert built.operator("g").timeout == Timeout(60.0)
    assert {alternate.form for alternate in built.operator("g").alternates} == {Form.WINDOW}
    assert {edge.source: edge.port for edge in built.inputs["j"]} == {"left": 0, "right": 1}
    assert built.operator("j").alternates == (Alternate("j", Pairs(("customer",)), Form.JOIN),)
    assert built.operator("j").key == ("customer",)


@pytest.mark.parametrize(
    ("window", "kind", "step"),
    [
        (Window(seconds=30, by="t"), WindowKind.TIME, 30),
        (Window(seconds=30, every=10, by="t"), WindowKind.TIME, 10),
        (Window(count=5), WindowKind.COUNT, 5),
        (Window(count=5, every=2), WindowKind.COUNT, 2),
        (Window(landmark="last"), WindowKind.LANDMARK, 0),
    ],
)
def test_a_window_knows_what_ends_it_and_how_far_apart_windows_begin(window: Window, kind: WindowKind, step: float) -> None:
    assert (window.kind, window.step) == (kind, step)


def test_streams_in_order_are_zipped_record_by_record() -> None:
    flow = Dataflow("grid")
    left, right = started("left", flow).sequential(), started("right", flow).filter(bool, name="f").sequential()
    built = of(left.zip(right, name="both"))
    assert [built.operator(name).sequential for name in ("left", "right", "f")] == [True, False, True]
    assert built.operator("both").kind is Kind.KEYED
    assert {edge.source: edge.port for edge in built.inputs["both"]} == {"left": 0, "f": 1}


def test_a_stage_that_keeps_the_order_of_records_cannot_be_scaled() -> None:
    built = of(started().map(float, returns="n double", name="a").sequential())
    layout = lay_out(built)
    assert layout.single == {"source"}
    assert [unit.scalable for unit in layout.units({"source"})] == [False]
    assert not lay_out(of(started().map(float, returns="n double"))).single


def test_a_bounded_loop_is_unrolled() -> None:
    seen = []

    def step(stream: Stream, number: int) -> Stream:
        seen.append(number)
        return stream.map(float, returns="n double", name=f"round_{number}")

    assert of(started().unrolled(step, 3)).order == ("source", "round_1", "round_2", "round_3", "sink")
    assert seen == [1, 2, 3]


def test_a_diagnostic_branch_gives_a_signal() -> None:
    loads = started()
    loads.signal("mean_load", "mean( load )", stale="5 min", trace=Trace((0.0, 10.0), (1.0, 2.0)))
    loads.signal("any_last", "any(last)")
    built = of(loads)
    assert {name: (each.kind, each.stale) for name, each in built.signals.items()} == {
        "mean_load": (SignalKind.NUMBER, 300.0),
        "any_last": (SignalKind.TRUTH, math.inf),
    }
    assert [sink.name for sink in built.sinks] == ["signal(mean_load)", "signal(any_last)", "sink"]
    writes = built.operator("signal(mean_load)").writes
    assert isinstance(writes, DomainSignal)
    assert (writes.fold, writes.column) == (Fold.MEAN, "load")
    assert writes.trace is not None
    assert [writes.trace(time) for time in (-1.0, 0.0, 9.9, 10.0, 99.0)] == [None, 1.0, 1.0, 2.0, 2.0]


def test_alternates_may_be_chosen_by_key() -> None:
    built = of(started().map({"a": float, "b": float}, returns="n double", name="f", select_by="customer"))
    assert built.operator("f").selects == ("customer",)


def test_a_pair_has_the_columns_of_both_sides_and_the_key_once() -> None:
    pandas = pytest.importorskip("pandas")
    pairs = Pairs(("customer",))
    left = pandas.DataFrame({"load": [1.0, 2.0], "customer": ["a", "a"], "time": [5, 6]})
    right = pandas.DataFrame({"customer": ["a"], "time": [7], "forecast": [1.5]})
    joined = pairs(("a",), left, right)
    known = pairs.columns(dict.fromkeys(left, "l"), dict.fromkeys(right, "r"))
    assert list(joined) == list(known) == ["customer", "load", "time", "time_right", "forecast"]
    assert joined.to_numpy().tolist() == [["a", 1.0, 5, 7, 1.5], ["a", 2.0, 6, 7, 1.5]]
    assert list(pairs(("a",), left, right[:0])) == list(joined)
    assert pairs(("a",), left[:0], right).empty


# -- what is refused ---------------------------------------------------------------------------------------------------


def with_operator(**fields: object) -> Graph:
    """Source -> f -> sink, where f has two alternates and `fields`."""
    stream = started()
    alternates = (Alternate("a", float, Form.MAP), Alternate("b", float, Form.MAP))
    given = {"alternates": alternates, "returns": "n int"} | fields
    return of(stream._flow.add(Operator("f", **given), stream.taps))  # type: ignore[arg-type]


def keyed(*forms: Form, **fields: object) -> Graph:
    """Source -> f -> sink, where f is keyed, with an alternate for each form."""
    alternates = tuple(Alternate(f"a{number}", stateful, form) for number, form in enumerate(forms))
    return with_operator(**{"kind": Kind.KEYED, "key": ("customer",), "alternates": alternates} | fields)


def one_branch() -> Graph:
    return of(started().choice("way").map(float, returns="n int", name="only"))


def branches_of_two() -> Graph:
    flow = Dataflow("grid")
    both = started("a", flow).merge(started("b", flow)).choice("way")
    both.nothing()
    return of(both.map(float, returns="n int", name="f"))


def two_empty() -> Graph:
    stream = started()
    for _ in range(2):
        stream.choice("way").nothing()
    return of(stream)


def named_alike() -> Graph:
    stream = started().map({"a": float, "b": float}, returns="n int", name="way")
    stream.choice("way").nothing()
    return of(stream.choice("way").map(float, returns="n int"))


def empty_without_choice() -> Graph:
    stream = started()
    stream.nothing()
    return of(stream)


def durably_empty() -> Graph:
    stream = started()
    stream.choice("way").durable().nothing()
    return of(stream.choice("way").map(float, returns="n int"))


def two_of_a_signal() -> Graph:
    stream = started()
    stream.signal("load", "mean(load)")
    stream.signal("load", "max(load)")
    return of(stream)


def only_a_signal() -> Graph:
    stream = started()
    stream.signal("load", "mean(load)")
    return stream._flow.graph


def signal_called(name: str) -> Graph:
    stream = started()
    stream.signal(name, "mean(load)")
    return of(stream)


def joined_with_itself() -> Graph:
    stream = started()
    return of(stream.window(seconds="30s", by="time").join(stream, "customer"))


def zipped(**ordered: bool) -> Graph:
    flow = Dataflow("grid")
    left, right = started("left", flow), started("right", flow)
    for name, stream in (("left", left), ("right", right)):
        if ordered.get(name):
            stream.sequential()
    return of(left.zip(right))


def behind_a_shuffle() -> Graph:
    return of(started().key_by("customer").count().map(float, returns="n int", name="f").sequential())


def behind_parallel_tasks() -> Graph:
    return of(started().durable().map(float, returns="n int", name="f").sequential())


REFUSED: dict[str, tuple[Callable[[], object], str, tuple[str, ...]]] = {
    "an alternate of too high a value": (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP, 1.5), Alternate("b", float, Form.MAP))),
        "alternate 'a' of operator 'f' has the value 1.5: values are relative to the best alternate, in [0, 1]",
        ("operators", "f", "alternates", "a", "value"),
    ),
    "an alternate whose value is no number": (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP, math.nan),)),
        "alternate 'a' of operator 'f' has the value nan",
        ("operators", "f", "alternates", "a", "value"),
    ),
    "a negative cost": (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP, cost=-1.0),)),
        "operator 'f' has a cost of -1 for 'a': it must be 0 or more",
        ("operators", "f", "alternates", "a", "cost"),
    ),
    "an alternate with another schema": (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP, returns="n long"),)),
        "alternate 'a' of operator 'f' returns n bigint, where the operator returns n int: alternates of one operator have",
        ("operators", "f", "alternates", "a", "returns"),
    ),
    "a branch of a negative value": (
        lambda: of(started().choice("way", value=-0.5).map(float, returns="n int", name="f")),
        "the branch source -> f has the value -0.5: values are relative to the best branch, in [0, 1]",
        ("operators", "f", "from"),
    ),
    "a value of no branch": (
        lambda: Graph("grid", (Operator("s", Kind.SOURCE), Operator("t", Kind.SINK)), (Edge("s", "t", value=0.5),)),
        "the edge s -> t has a value but is no branch: name its choice",
        ("operators", "t", "from"),
    ),
    "a choice of one": (
        one_branch,
        "choice 'way' has one branch, 'only', and needs two: add another, which may be empty (`nothing`)",
        ("operators", "only", "from"),
    ),
    "a choice of two operators": (
        branches_of_two,
        "the branches of choice 'way' leave 'a' and 'b', and a choice is one operator's: put an operator behind both",
        ("operators", "nothing(way)", "from"),
    ),
    "two empty branches": (two_empty, "choice 'way' has two empty branches", ("operators", "nothing(way)_2", "from")),
    "a choice called as an operator": (
        named_alike,
        "a choice and an operator with alternates are both called 'way'",
        ("operators", "nothing(way)", "from"),
    ),
    "an empty branch of no choice": (
        empty_without_choice,
        "'nothing()' is empty but no branch: name the choice that it belongs to",
        ("operators", "nothing()", "from"),
    ),
    "a durable empty branch": (
        durably_empty,
        "the empty branch 'nothing(way)' is durable: no record goes there",
        ("operators", "nothing(way)", "from"),
    ),
    "two signals of one name": (
        two_of_a_signal,
        "'signal(load)' and 'signal(load)_2' both give the signal 'load'",
        ("operators", "signal(load)_2", "signal"),
    ),
    "a stream joined with itself": (
        joined_with_itself,
        "'source' is on both sides of 'join': give one of them an operator of its own, such as select(...)",
        ("operators", "join"),
    ),
    "signals alone": (
        only_a_signal,
        "it has no sink for results: signals and empty branches are none",
        ("operators", "signal(load)"),
    ),
    "a signal that no guard could name": (
        lambda: signal_called("mean load"),
        "a signal cannot be called 'mean load': guards name it",
        ("operators", "signal(mean load)", "signal"),
    ),
    "a keyed function without a key": (
        lambda: with_operator(alternates=(Alternate("a", stateful, Form.STATE),)),
        "operator 'f' has a function of the form state but no key",
        ("operators", "f"),
    ),
    "a function of single records by key": (
        lambda: keyed(Form.MAP),
        "keyed operator 'f' has a function of the form map, which sees single records",
        ("operators", "f"),
    ),
    "alternates of different forms by key": (
        lambda: keyed(Form.STATE, Form.AGGREGATE),
        "the alternates of keyed operator 'f' are of different forms: aggregate, state",
        ("operators", "f"),
    ),
    "a group without a window": (
        lambda: keyed(Form.WINDOW),
        "operator 'f' groups records without a window, so that none could ever be complete: give it one, such as",
        ("operators", "f"),
    ),
    "a function with state in a window": (
        lambda: keyed(Form.STATE, window=Window(count=2)),
        "operator 'f' has a window and a function with state",
        ("operators", "f", "window"),
    ),
    "native aggregates in a window of records": (
        lambda: keyed(Form.AGGREGATE, window=Window(count=2)),
        "operator 'f' has native aggregates in windows of count, and Spark has them in windows of time only",
        ("operators", "f", "aggregate"),
    ),
    "a window without a key": (
        lambda: with_operator(window=Window(count=2)),
        "operator 'f' has a window but no key",
        ("operators", "f", "window"),
    ),
    "a timeout of a window of time": (
        lambda: keyed(Form.WINDOW, window=Window(seconds=2, by="time"), timeout=Timeout(1.0)),
        "operator 'f' has a timeout, but windows of time end anyway",
        ("operators", "f", "timeout"),
    ),
    "a timeout of running aggregates": (
        lambda: keyed(Form.AGGREGATE, timeout=Timeout(1.0)),
        "operator 'f' has a timeout, but no function with state and no window that could end",
        ("operators", "f", "timeout"),
    ),
    "a timeout of single records": (
        lambda: with_operator(timeout=Timeout(1.0)),
        "operator 'f' has a timeout, but no function with state",
        ("operators", "f", "timeout"),
    ),
    "a window that ends through a function": (
        lambda: keyed(Form.WINDOW, window=Window(count=2), timeout=Timeout(1.0, function=rows_of)),
        "the timeout of operator 'f' emits through a function, but a window that ends is emitted as it is",
        ("operators", "f", "timeout"),
    ),
    "states of their own without state": (
        lambda: with_operator(own_state=True),
        "operator 'f' has alternates with states of their own, but is no function with state",
        ("operators", "f"),
    ),
    "a state beside a shared one": (
        lambda: keyed(alternates=(Alternate("a", stateful, Form.STATE, state="n long"),), state="n long"),
        "alternate 'a' of operator 'f' declares a state, but all share one",
        ("operators", "f", "alternates", "a", "state"),
    ),
    "a selection among one": (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP),), selects=("customer",)),
        "operator 'f' selects by key but has no alternates to select from",
        ("operators", "f", "select_by"),
    ),
    "a selection by what is not of the key": (
        lambda: keyed(Form.STATE, Form.STATE, selects=("load",)),
        "keyed operator 'f' selects by 'load', which is not of its key (customer)",
        ("operators", "f", "select_by"),
    ),
    "a selection among functions that pull": (
        lambda: with_operator(alternates=tuple(Alternate(name, iter, Form.STREAM) for name in "ab"), selects=("customer",)),
        "operator 'f' selects by key, but a function that pulls meets the records of all keys: write it as map_arrow",
        ("operators", "f", "select_by"),
    ),
    "a zip of streams in no order": (
        lambda: zipped(left=True),
        "'zip' puts n-th records together, but 'right' emits in no certain order: make it sequential",
        ("operators", "zip", "zip"),
    ),
    "a zip of one": (
        lambda: of(started().sequential().zip()),
        "the zip 'zip' needs two inputs or more",
        ("operators", "zip", "zip"),
    ),
    "order behind a shuffle": (
        behind_a_shuffle,
        "operator 'f' cannot be sequential: the shuffle before 'count' has lost the order of records",
        ("operators", "f", "sequential"),
    ),
    "order behind parallel tasks": (
        behind_parallel_tasks,
        "operator 'f' cannot be sequential: 'source' writes the durable edge before it from several tasks",
        ("operators", "f", "sequential"),
    ),
    "order of calls that overlap": (
        lambda: of(started().map(float, returns="n int", name="f", waits=True).sequential()),
        "operator 'f' is sequential, its calls cannot overlap: leave out `waits`",
        ("operators", "f", "sequential"),
    ),
    "a pull that waits": (
        lambda: of(started().map_stream(list, returns="n int", name="f", waits=True)),
        "operator 'f' pulls, its calls cannot overlap: leave out `waits`, or write it as map_arrow",
        ("operators", "f", "waits"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_plant_could_run_is_refused_with_the_field_at_fault(case: str) -> None:
    build, sentence, at = REFUSED[case]
    with pytest.raises(DataflowError) as refused:
        build()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.at == at


WRITTEN_WRONG: dict[str, tuple[Callable[[Stream], object], str]] = {
    "a group without a window": (lambda s: s.group_by("customer"), "group_by needs a window, such as window(count=10)"),
    "a join without a window": (lambda s: s.join(s, on="customer"), "join needs a window"),
    "a window of nothing": (lambda s: s.window(), "a window is of seconds, count or landmark"),
    "a window of two kinds": (lambda s: s.window(count=2, seconds=3, by="t"), "exactly one (it has seconds and count)"),
    "a window of no length": (lambda s: s.window(count=0), "a window of 0 records holds nothing"),
    "a window of half a record": (lambda s: s.window(count=2.5), "it must be a whole number"),  # type: ignore[arg-type]
    "a window of time without times": (lambda s: s.window(seconds="30s"), "a window of time goes by the timestamps"),
    "windows with gaps": (lambda s: s.window(count=2, every=3), "would miss records between them"),
    "windows without number": (
        lambda s: s.window(seconds="1d", every="1s", by="t"),
        "hold each record more than 1,000 times",
    ),
    "records counted in seconds": (lambda s: s.window(count=9, every="3s"), "begin every so many records"),
    "sliding landmarks": (lambda s: s.window(landmark="last", every=2), "`every` is for windows of time and count"),
    "late records of a count": (lambda s: s.window(count=2, late="1s"), "`late` is for windows of time"),
    "a timeout of nothing": (lambda s: timeout(0), "a timeout of 0 s ends nothing"),
    "a late timeout of no column": (lambda s: timeout(5, late=2), "`late` is for timeouts by the timestamps"),
    "an endless loop": (lambda s: s.unrolled(lambda each, _: each, 0), "a loop is unrolled in 1 round or more, not in 0"),
    "a signal of no aggregate": (lambda s: s.signal("x", "median(load)"), "the signal 'x' cannot be 'median(load)'"),
    "a mean of nothing": (
        lambda s: s.signal("x", "mean()"),
        "it is count(), or sum, mean, min, max, any or all of a column",
    ),
    "a count of something": (lambda s: s.signal("x", "count(load)"), "the signal 'x' cannot be 'count(load)'"),
    "a trace without values": (lambda s: Trace((0.0, 1.0), (1.0,)), "it needs one for each"),
    "a trace that goes back": (lambda s: Trace((1.0, 0.0), (1.0, 2.0)), "the times of a trace must increase"),
    "a trace of another type": (
        lambda s: s.signal("x", "mean(load)", trace=Trace((0.0,), (True,))),
        "the trace of the signal 'x' has the value True, and mean(load) is a number",
    ),
    "alternates of aggregates": (
        lambda s: s.key_by("customer").aggregate({"a": {"n": "sum(n)"}}),  # type: ignore[dict-item]
        "it has no alternates; those of DataFrame code go into transform, those by key into apply behind key_by",
    ),
    "a state of nobody": (
        lambda s: s.key_by("customer").apply({"a": stateful}, returns="n int", state={"b": "n long"}),
        "has no alternate 'b' to have a state (it has: a)",
    ),
}


@pytest.mark.parametrize("case", WRITTEN_WRONG)
def test_what_cannot_be_meant_is_refused_where_it_is_written(case: str) -> None:
    write, sentence = WRITTEN_WRONG[case]
    with pytest.raises(ElastreamError) as refused:
        write(started())
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_loops_are_refused_with_their_bounded_form() -> None:
    step = Alternate("a", float, Form.MAP)
    operators = (Operator("s", Kind.SOURCE), Operator("a", alternates=(step,)), Operator("t", Kind.SINK))
    with pytest.raises(DataflowError, match=r"it has a cycle, a -> a, and loops .* as unrolled\(step, k\) does"):
        Graph("grid", operators, (Edge("s", "a"), Edge("a", "a"), Edge("a", "t")))


LENGTHS = st.one_of(st.none(), st.floats(), st.integers(-5, 5000))


@settings(max_examples=examples(200))
@given(
    LENGTHS,
    LENGTHS,
    st.sampled_from([None, "", "last"]),
    LENGTHS,
    st.sampled_from(["", "t"]),
    st.one_of(st.just(0.0), st.floats()),
)
def test_a_valid_window_holds_each_record_a_bounded_number_of_times(
    seconds: float | None, count: float | None, landmark: str | None, every: float | None, by: str, late: float
) -> None:
    try:
        window = Window(seconds, count, landmark, every, by, late)  # type: ignore[arg-type]
    except DataflowError:
        return
    length = window.seconds or window.count
    assert (length is None) == (window.kind is WindowKind.LANDMARK)
    assert window.late >= 0.0
    assert length is None or 1 <= length / window.step <= 1000


FUNCTIONS = {Form.COLUMNS: {"n": "load"}, Form.AGGREGATE: {"n": "count(*)"}, Form.NONE: None, Form.ZIP: None}


def rarely(usual: object, *others: object) -> st.SearchStrategy:
    """Mostly `usual`, so that what is drawn is not refused for the first of many reasons."""
    return st.sampled_from([usual] * 4 + list(others))


@st.composite
def assembled(draw: st.DrawFn) -> tuple[tuple[Operator, ...], tuple[Edge, ...]]:
    """Operators and edges of every kind, put together at random."""
    operators = [Operator("s", Kind.SOURCE, reads=ROWS, sequential=draw(st.booleans()))]
    for name in "abc"[: draw(st.integers(1, 3))]:
        form = draw(st.sampled_from(list(Form)))
        keyed = draw(rarely(form in GROUPED, form not in GROUPED))
        function = Pairs(("customer",)) if form is Form.JOIN else FUNCTIONS.get(form, stateful)
        state, own = draw(rarely(None, "n int")), draw(rarely(False, True))
        windows = [Window(count=2), Window(seconds=2, by="time"), Window(landmark="last"), Window(seconds=2, by="load")]
        windowed = form in (Form.WINDOW, Form.JOIN)
        operators.append(
            Operator(
                name,
                Kind.KEYED if keyed else Kind.TRANSFORM,
                tuple(Alternate(label, function, form, state=state) for label in draw(rarely("x", "xy", "xyz"))),
                draw(rarely(SCHEMA, "n int", "", "customer string, load double")),
                draw(rarely(("customer",), (), ("load", "n"))) if keyed else (),
                state=draw(rarely("n int" if form is Form.STATE else None, None, "n int")),
                own_state=own,
                selects=draw(rarely((), ("customer",), ("n",))),
                window=draw(st.sampled_from(windows)) if draw(rarely(windowed, not windowed)) else None,
                timeout=draw(rarely(None, Timeout(1.0), Timeout(1.0, "time"))),
                sequential=draw(rarely(False, True)),
                waits=draw(rarely(False, True)),
            )
        )
    writes = [collect("y"), collect("z"), Nothing(), DomainSignal("m", Fold.MEAN, "load")]
    operators += [
        Operator("t", Kind.SINK, writes=collect("x")),
        Operator("u", Kind.SINK, writes=draw(st.sampled_from(writes))),
    ]
    names = [operator.name for operator in operators]
    pairs = {(before, after) for before, after in itertools.pairwise(names) if before != "t"}
    pairs |= {(draw(st.sampled_from(names[:-2])), "u")}
    for before, after in draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=3)):
        if names.index(before) < names.index(after) or draw(rarely(False, True)):
            pairs.add((before, after))
    dynamic = draw(st.sampled_from([None, *names[:-2]]))
    durable = st.sampled_from([None, "parquet"])
    edges = [
        Edge(before, after, durable=draw(durable), choice="way" if before == dynamic else None, port=draw(rarely(0, 1)))
        for before, after in sorted(pairs)
    ]
    return tuple(operators), tuple(edges)


@settings(max_examples=examples(300))
@given(assembled())
def test_whatever_is_put_together_is_a_graph_or_one_sentence(parts: tuple[tuple[Operator, ...], tuple[Edge, ...]]) -> None:
    operators, edges = parts
    try:
        built = Graph("random", operators, edges)
        plan_queries(lay_out(built))
    except ElastreamError as error:
        said = str(error)
    else:
        said = "valid"
        for targets in built.choices.values():
            assert len(targets) > 1
            assert sum(map(built.empty, targets)) < 2
        grouped = [each for each in operators if {a.form for a in each.alternates} & {Form.WINDOW, Form.JOIN}]
        assert all(operator.window is not None for operator in grouped)
    assert said
    assert "\n" not in said


def test_signal_named_like_a_metric_is_refused():
    with pytest.raises(DataflowError, match="'backlog': that is a metric of the whole dataflow") as refusal:
        check_signal_names(signal_called("backlog"))
    assert refusal.value.at == ("operators", "signal(backlog)", "signal")
