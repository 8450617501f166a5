"""Switches, loops and receivers of messages as parts of a graph, and what is refused of them."""

from collections.abc import Callable
from typing import Any

import pytest

from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.functions import Loop, Port, Receiver, Switch, misfit, receiver_of, with_message
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import selection_of
from elastream.dataflow.operators import Alternate, Edge, Form, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError

ROWS = records([{"n": 1, "word": "a"}], "n long, word string")
PORTS = ["high", "low"]


def by_size(record: dict[str, Any]) -> str:
    return "high" if record["n"] > 5 else "low"


def started(flow: Dataflow | None = None) -> Stream:
    return (flow or Dataflow("flow")).source(ROWS)


def planned(stream: Stream) -> Graph:
    """Return the graph of the dataflow of `stream`, whose records are kept, if Spark can run it."""
    stream.sink(collect("out"))
    graph = stream._flow.graph
    plan_queries(lay_out(graph))
    return graph


def test_a_switch_is_one_operator_with_a_filter_for_each_port_in_use() -> None:
    ports = started().switch(by_size, PORTS, name="way")
    graph = planned(ports["high"].map(len, returns="n int", name="alarm").merge(ports["high"].map(len, returns="n int")))
    assert list(graph.by_name) == ["source", "way", "way_high", "alarm", "len", "sink"]
    (way,), (port,) = graph.operator("way").alternates, graph.operator("way_high").alternates
    assert (way.form, way.function) == (Form.SWITCH, Switch(by_size, ("high", "low")))
    assert (port.form, port.function, port.selectivity, port.cost) == (Form.PORT, Port("high"), 0.5, 0.0)


def test_ports_keep_the_columns_and_have_fractions_for_simulations() -> None:
    ports = started().switch({"exact": by_size, "rough": by_size}, {"high": 0.2, "low": 0.8}, name="way", select_by="word")
    ports["low"].select("n", name="numbers").sink(collect("numbers"))
    graph = planned(ports["high"].filter(bool).with_column("word", "upper(word)"))
    assert [graph.operator(f"way_{port}").alternates[0].selectivity for port in PORTS] == [0.2, 0.8]
    assert selection_of(graph, "way").columns == {"word": "string"}


def test_a_name_that_is_no_port_is_an_error_of_the_record() -> None:
    assert Switch(lambda n: "high", ("high",))(1) == "high"
    with pytest.raises(ValueError, match=r"it names the port None \(there are: high, low\)"):
        Switch(lambda n: None, ("high", "low"))(1)


def test_a_loop_takes_what_it_returns() -> None:
    schema = "word string, n bigint"
    graph = planned(started().map({"fast": Loop(dict, bool, 3), "slow": Loop(dict, bool, 9)}, returns=schema, name="loop"))
    assert [alternate.function for alternate in graph.operator("loop").alternates] == [
        Loop(dict, bool, 3),
        Loop(dict, bool, 9),
    ]
    assert planned(started().map(Loop(by_size, bool, 3), returns=schema)).operator("by_size")


def test_finished_records_leave_an_unrolled_loop_early() -> None:
    def step(stream: Stream, number: int) -> Stream:
        return stream.map(by_size, returns="n long, word string", name=f"round_{number}")

    graph = planned(started().unrolled(step, 3, until=bool))
    assert [edge.source for edge in graph.inputs["sink"]] == ["round_3", "until_1_done", "until_2_done"]
    assert [edge.source for edge in graph.inputs["round_2"]] == ["until_1_again"]
    assert [graph.operator("until_1").alternates[0].function(each) for each in (0, 1)] == ["again", "done"]  # type: ignore[misc, operator]


def test_a_message_reaches_the_receiver_in_a_loop_or_switch() -> None:
    def scaled(value: float, message: dict[str, float]) -> float:
        return value * message["factor"]

    receiver = Receiver(scaled, {"factor": 2})
    assert receiver(3) == 6
    for function in (receiver, Loop(receiver, bool, 3), Switch(receiver, ("a",))):
        assert receiver_of(function) == receiver
        assert receiver_of(with_message(function, {"factor": 5})) == Receiver(scaled, {"factor": 2}, sent=({"factor": 5},))
    assert receiver_of(scaled) is None
    assert with_message(scaled, 1) is scaled


@pytest.mark.parametrize(
    ("first", "message", "why"),
    [
        (None, [1], ""),
        (1, 2.5, ""),
        ("a", "b", ""),
        ({"limit": 1, "names": []}, {"names": ["a"], "limit": 2}, ""),
        (1, "2", "it is a text, and the operator takes a number, such as 1"),
        (1, True, "it is a truth, and the operator takes a number"),
        (1, None, "it is null, and the operator takes a number"),
        ({"limit": 1}, 3, "it is a number, and the operator takes an object"),
        ({"limit": 1}, {"limits": 1}, "it has a field 'limits', and the operator takes limit"),
        ({"limit": 1, "by": "n"}, {"limit": 1}, "its field 'by' is missing"),
        ({"limit": {"n": 1}}, {"limit": {"n": "1"}}, "of field 'limit', of field 'n', it is a text"),
    ],
)
def test_a_message_is_of_the_kind_of_the_first(first: object, message: object, why: str) -> None:
    assert misfit(message, first).startswith(why)
    assert bool(misfit(message, first)) == bool(why)


WRITTEN_WRONG: list[tuple[Callable[[Stream], object], str]] = [
    (lambda s: s.switch(by_size, []), "switch 'by_size' has the ports []: list their names"),
    (lambda s: s.switch(by_size, "high"), "switch 'by_size' has the ports 'high': list their names"),
    (lambda s: s.switch(by_size, ["a", "a"]), "switch 'by_size' has two ports 'a'"),
    (lambda s: s.switch(by_size, ["a b"]), "switch 'by_size' cannot have a port 'a b': write letters"),
    (lambda s: s.switch(by_size, {"a": 0.5, "b": 0.6}), "add up to 1.1, not to 1"),
    (lambda s: s.switch(by_size, {"a": 2.0}), "switch 'by_size' sends 2.0 of its records to 'a': write a fraction"),
    (lambda s: s.switch(by_size, ["a", "b"])["c"], "switch 'by_size' has no port 'c' (it has: a, b)"),
    (lambda s: s.switch("n > 5", ["a"]), "operator 'switch': 'n > 5' is neither a function nor a list"),  # type: ignore[arg-type]
    (lambda s: Loop(by_size, bool, 0), "a loop has at most 0 rounds"),
    (lambda s: Loop(by_size, bool, True), "a loop has at most True rounds"),
    (lambda s: Loop(by_size, "done", 2), "a loop ends when 'done', which is not a function"),  # type: ignore[arg-type]
    (lambda s: Loop(Loop(by_size, bool, 2), bool, 2), "which is a loop"),
    (lambda s: Loop(by_size, Receiver(by_size, 1), 2), "only its step can be a receiver"),
    (lambda s: Receiver(Loop(by_size, bool, 2), 1), "a receiver of messages has a Loop: write Loop(Receiver("),
    (lambda s: Receiver("scaled"), "a receiver of messages has 'scaled', which is not a function"),  # type: ignore[arg-type]
    (lambda s: s.unrolled(lambda each, _: each, 2, until=3), "a loop ends when 3, which is not a function"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("write", "sentence"), WRITTEN_WRONG)
def test_what_cannot_be_meant_is_refused_in_one_sentence(write: Callable[[Stream], object], sentence: str) -> None:
    with pytest.raises(DataflowError) as refused:
        write(started())
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


REFUSED: list[tuple[Callable[[Stream], Stream], str]] = [
    (lambda s: s.filter(Loop(by_size, bool, 2)), "operator 'by_size' is a loop of the form filter: a loop goes with map"),
    (
        lambda s: s.map_stream(Loop(iter, bool, 2), returns="n long", name="pull"),
        "operator 'pull' is a loop of the form stream",
    ),
    (
        lambda s: s.map(Loop(by_size, bool, 2), returns="n long", name="loop"),
        "operator 'loop' is a loop, whose records go round: it returns n bigint, where n bigint, word string arrives",
    ),
    (
        lambda s: s.map(Loop(by_size, bool, 2), returns="n double, word string", name="loop"),
        "it returns n double, word string, where",
    ),
    (
        lambda s: s.select({"n": "n", "_port": "word"}).switch(by_size, PORTS, name="way")["low"],
        "switch 'way' takes records with a column '_port', its own: rename it",
    ),
    (lambda s: s.transform(Receiver(by_size), name="frame"), "operator 'frame' is DataFrame code, which is called once"),
]


@pytest.mark.parametrize(("attach", "sentence"), REFUSED)
def test_a_loop_or_receiver_out_of_place_is_refused(attach: Callable[[Stream], Stream], sentence: str) -> None:
    with pytest.raises(DataflowError) as refused:
        planned(attach(started()))
    assert sentence in str(refused.value)


def test_a_switch_feeds_ports_and_has_alternates_that_are_switches() -> None:
    source, sink = Operator("source", Kind.SOURCE, reads=ROWS), Operator("sink", Kind.SINK, writes=collect("out"))
    switch, plain = Alternate("a", Switch(by_size, ("x",)), Form.SWITCH), Alternate("b", by_size, Form.MAP)
    edges = (Edge("source", "way"), Edge("way", "sink"))
    with pytest.raises(DataflowError, match="'sink' takes records of switch 'way' without a port: name one"):
        Graph("flow", (source, Operator("way", alternates=(switch,)), sink), edges)
    with pytest.raises(DataflowError, match="operator 'way' is a switch and has an alternate that is none"):
        Graph("flow", (source, Operator("way", alternates=(switch, plain)), sink), edges)
