"""Patterns and dynamic elements: what the Python API makes of them, and what is refused, with the way out."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.fitting import check_signal_names
from elastream.dataflow.builder import Dataflow, Stream, timeout
from elastream.dataflow.endpoints import DomainSignal, Fold, Nothing, Trace, collect, records
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Form, Kind, Operator
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


REFUSED = [
    (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP, 1.5), Alternate("b", float, Form.MAP))),
        "alternate 'a' of operator 'f' has the value 1.5: values are relative to the best alternate, in [0, 1]",
        "f.alternates.a.value",
    ),
    (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP, cost=-1.0),)),
        "operator 'f' has a cost of -1 for 'a': it must be 0 or more",
        "f.alternates.a.cost",
    ),
    (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP, returns="n long"),)),
        "alternate 'a' of operator 'f' returns n bigint, where the operator returns n int: alternates of one operator",
        "f.alternates.a.returns",
    ),
    (
        lambda: Graph("grid", (Operator("s", Kind.SOURCE), Operator("t", Kind.SINK)), (Edge("s", "t", value=0.5),)),
        "the edge s -> t has a value but is not a branch: name its choice",
        "t.from",
    ),
    (one_branch, "choice 'way' has one branch, 'only', and needs two: add another, which may be empty", "only.from"),
    (branches_of_two, "the branches of choice 'way' leave 'a' and 'b', and a choice is one", "nothing(way).from"),
    (two_empty, "choice 'way' has two empty branches", "nothing(way)_2.from"),
    (named_alike, "a choice and an operator with alternates are both called 'way'", "nothing(way).from"),
    (empty_without_choice, "'nothing()' is empty but no branch: name the choice that it belongs to", "nothing().from"),
    (durably_empty, "the empty branch 'nothing(way)' is durable: no record goes there", "nothing(way).from"),
    (two_of_a_signal, "'signal(load)' and 'signal(load)_2' both give the signal 'load'", "signal(load)_2.signal"),
    (joined_with_itself, "'source' is on both sides of 'join': give one of them an operator of its own, such as", "join"),
    (only_a_signal, "it has no sink for results: signals and empty branches are none", "signal(load)"),
    (lambda: signal_called("mean load"), "a signal cannot be called 'mean load': guards name", "signal(mean load).signal"),
    (lambda: with_operator(alternates=(Alternate("a", stateful, Form.STATE),)), "operator 'f' has a function of the", "f"),
    (lambda: keyed(Form.MAP), "keyed operator 'f' has a function of the form map, which sees single records", "f"),
    (lambda: keyed(Form.STATE, Form.AGGREGATE), "the alternates of keyed operator 'f' are of different forms:", "f"),
    (lambda: keyed(Form.WINDOW), "operator 'f' groups records without a window, so that none could ever be", "f"),
    (lambda: keyed(Form.STATE, window=Window(count=2)), "operator 'f' has a window and a function with state", "f.window"),
    (lambda: keyed(Form.AGGREGATE, window=Window(count=2)), "operator 'f' has native aggregates in", "f.aggregate"),
    (
        lambda: keyed(Form.WINDOW, window=Window(seconds=2, by="time"), timeout=Timeout(1.0)),
        "operator 'f' has a timeout, but windows of time end anyway",
        "f.timeout",
    ),
    (lambda: keyed(Form.AGGREGATE, timeout=Timeout(1.0)), "operator 'f' has a timeout, but no function with", "f.timeout"),
    (
        lambda: keyed(Form.WINDOW, window=Window(count=2), timeout=Timeout(1.0, function=rows_of)),
        "the timeout of operator 'f' emits through a function, but a window that ends is emitted as it is",
        "f.timeout",
    ),
    (lambda: with_operator(own_state=True), "operator 'f' has alternates with states of their own, but is not", "f"),
    (
        lambda: keyed(alternates=(Alternate("a", stateful, Form.STATE, state="n long"),), state="n long"),
        "alternate 'a' of operator 'f' declares a state, but all share one",
        "f.alternates.a.state",
    ),
    (
        lambda: with_operator(alternates=(Alternate("a", float, Form.MAP),), selects=("customer",)),
        "operator 'f' selects by key but has no alternates to select from",
        "f.select_by",
    ),
    (lambda: keyed(Form.STATE, Form.STATE, selects=("load",)), "keyed operator 'f' selects by 'load',", "f.select_by"),
    (
        lambda: with_operator(alternates=tuple(Alternate(name, iter, Form.STREAM) for name in "ab"), selects=("customer",)),
        "operator 'f' selects by key, but a function that pulls meets the records of all keys: write it as map_arrow",
        "f.select_by",
    ),
    (lambda: zipped(left=True), "'zip' puts n-th records together, but 'right' emits in no certain order:", "zip.zip"),
    (lambda: of(started().sequential().zip()), "the zip 'zip' needs two inputs or more", "zip.zip"),
    (behind_a_shuffle, "operator 'f' cannot be sequential: the shuffle before 'count' has lost the order", "f.sequential"),
    (behind_parallel_tasks, "operator 'f' cannot be sequential: 'source' writes the durable edge before", "f.sequential"),
    (
        lambda: of(started().map(float, returns="n int", name="f", waits=True).sequential()),
        "operator 'f' is sequential, its calls cannot overlap: leave out `waits`",
        "f.sequential",
    ),
    (
        lambda: of(started().map_stream(list, returns="n int", name="f", waits=True)),
        "operator 'f' pulls, its calls cannot overlap: leave out `waits`, or write it as map_arrow",
        "f.waits",
    ),
]


@pytest.mark.parametrize(("build", "sentence", "at"), REFUSED)
def test_what_no_plant_could_run_is_refused_with_its_field(build: Callable[[], object], sentence: str, at: str) -> None:
    with pytest.raises(DataflowError) as refused:
        build()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.at == ("operators", *at.split("."))


WRITTEN_WRONG = [
    (lambda s: s.join(s, on="customer"), "join needs a window"),
    (lambda s: s.window(), "a window is of seconds, count or landmark"),
    (lambda s: s.window(count=2, seconds=3, by="t"), "exactly one (it has seconds and count)"),
    (lambda s: s.window(count=0), "a window of 0 records holds nothing"),
    (lambda s: s.window(count=2.5), "it must be a whole number"),
    (lambda s: s.window(seconds="30s"), "a window of time goes by the timestamps"),
    (lambda s: s.window(count=2, every=3), "would miss records between them"),
    (lambda s: s.window(seconds="1d", every="1s", by="t"), "hold each record more than 1,000 times"),
    (lambda s: s.window(count=9, every="3s"), "begin every so many records"),
    (lambda s: timeout(0), "a timeout of 0 s ends nothing"),
    (lambda s: timeout(5, late=2), "`late` is for timeouts by the timestamps"),
    (lambda s: s.unrolled(lambda each, _: each, 0), "a loop is unrolled in 1 round or more, not in 0"),
    (lambda s: s.signal("x", "median(load)"), "the signal 'x' cannot be 'median(load)'"),
    (lambda s: Trace((0.0, 1.0), (1.0,)), "it needs one for each"),
    (lambda s: Trace((1.0, 0.0), (1.0, 2.0)), "the times of a trace must increase"),
    (lambda s: s.signal("x", "mean(load)", trace=Trace((0.0,), (True,))), "the trace of the signal 'x' has the value"),
    (
        lambda s: s.key_by("customer").aggregate({"a": {"n": "sum(n)"}}),
        "those of DataFrame code go into transform",
    ),
    (
        lambda s: s.key_by("customer").apply({"a": stateful}, returns="n int", state={"b": "n long"}),
        "has no alternate 'b' to have a state (it has: a)",
    ),
]


@pytest.mark.parametrize(("write", "sentence"), WRITTEN_WRONG)
def test_what_cannot_be_meant_is_refused_where_it_is_written(write: Callable[[Stream], object], sentence: str) -> None:
    with pytest.raises(ElastreamError) as refused:
        write(started())
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


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


def test_signal_named_like_a_metric_is_refused():
    with pytest.raises(DataflowError, match="'backlog': that is a metric of the whole dataflow") as refusal:
        check_signal_names(signal_called("backlog"))
    assert refusal.value.at == ("operators", "signal(backlog)", "signal")
