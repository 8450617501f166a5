import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Form, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError

ROWS = records([{"value": "a"}], "value string")


def source(name="source"):
    return Operator(name, Kind.SOURCE, returns="value string", reads=ROWS)


def sink(name="sink"):
    return Operator(name, Kind.SINK, writes=collect("out"))


def step(name, function=len, **fields):
    return Operator(name, Kind.TRANSFORM, (Alternate(name, function, Form.MAP),), **fields)


def graph(*operators, edges):
    return Graph("flow", operators, tuple(Edge(*edge.split(">")) for edge in edges.split()))


FAULTS = [
    (
        lambda: graph(source("s"), step("a"), step("b"), sink("t"), edges="s>a a>b b>a b>t"),
        "dataflow 'flow': it has a cycle, ",
    ),
    (lambda: graph(source("s"), sink("t"), edges="s>t s>nobody"), "the edge s -> nobody names the unknown operator"),
    (lambda: graph(source("s"), step("a", function=None), sink("t"), edges="s>a a>t"), "operator 'a' has no function"),
    (lambda: graph(source("s"), step("a"), step("a"), sink("t"), edges="s>a a>t"), "two operators are called 'a'"),
    (lambda: graph(sink("t"), edges=""), "it has no source"),
    (lambda: graph(source("s"), edges=""), "it has no sink"),
    (lambda: graph(source("s"), step("a"), sink("t"), edges="s>a s>t"), "the output of operator 'a' goes nowhere"),
    (lambda: graph(source("s"), step("a"), sink("t"), edges="a>t s>t"), "operator 'a' has no input"),
    (lambda: graph(source("s"), sink("t"), edges="s>t s>t"), "the edge s -> t is declared twice"),
    (
        lambda: graph(
            source("s"),
            Operator("k", Kind.KEYED, (Alternate("k", {"n": "count(*)"}, Form.AGGREGATE),)),
            sink("t"),
            edges="s>k k>t",
        ),
        "keyed operator 'k' has no key",
    ),
    (
        lambda: graph(source("s"), step("a", max_duration=0.0), sink("t"), edges="s>a a>t"),
        "operator 'a' has a maximum duration of 0.0 s",
    ),
    (lambda: Graph("flow", (source("s"), sink("t")), (Edge("s", "t", durable="pigeon"),)), "durable as 'pigeon'"),
]


@pytest.mark.parametrize(("build", "sentence"), FAULTS)
def test_a_fault_in_a_dataflow_is_named_in_one_sentence(build, sentence):
    with pytest.raises(DataflowError) as refused:
        build()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_operator_that_is_not_there_is_named():
    with pytest.raises(DataflowError, match="no operator 'x'"):
        graph(source("s"), sink("t"), edges="s>t").operator("x")


def test_an_alternate_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(DataflowError, match=r"no alternate 'fast' \(it has: a\)"):
        step("a").alternate("fast")


def word_count():
    flow = Dataflow("words")
    lines = flow.source(ROWS)
    words = lines.flat_map(str.split, returns="word string", name="split", max_duration="50ms", cores=0.25)
    words.key_by("word").count().sink(collect("out"))
    return flow


def test_the_builder_says_what_the_issue_says():
    built = word_count().graph
    assert built.order == ("source", "split", "count", "sink")
    assert built.operator("split").max_duration == pytest.approx(0.05)
    assert built.operator("split").cores == 0.25
    assert built.inputs["count"][0].delivery is Delivery.KEYED


def test_a_keyed_operator_starts_a_stage_and_everything_else_is_fused():
    layout = lay_out(word_count().graph)
    assert [stage.operators for stage in layout.stages] == [("source", "split"), ("count", "sink")]
    assert [stage.keyed for stage in layout.stages] == [False, True]
    assert len(layout.segments) == 1


def test_a_durable_edge_starts_a_segment():
    flow = Dataflow("cut")
    flow.source(ROWS).map(len, returns="n int", name="a").durable().map(abs, returns="n int", name="b").sink(collect("out"))
    layout = lay_out(flow.graph)
    assert [segment.name for segment in layout.segments] == ["source", "b"]
    assert layout.segments[0].outputs == layout.segments[1].inputs


def test_unfused_every_operator_is_a_stage():
    built = word_count().graph
    assert [stage.operators for stage in lay_out(built, chained=False).stages] == [(name,) for name in built.order]


def test_only_a_layout_requested_unchained_is_unchained():
    built = Graph(
        "alone",
        (Operator("source", Kind.SOURCE), Operator("sink", Kind.SINK)),
        (Edge("source", "sink", durable="parquet"),),
    )
    assert len(lay_out(built).stages) == 2
    assert not lay_out(built).unchained
    assert lay_out(built, chained=False).unchained


@st.composite
def layered_graphs(draw):
    """Random connected acyclic dataflows: operators in a row, each reading from one or more before it."""
    count = draw(st.integers(1, 8))
    names = [f"o{n}" for n in range(count)]
    edges, operators = [], [source("s")]
    for position, name in enumerate(names):
        before = ["s", *names[:position]]
        operators.append(step(name))
        origins = draw(st.sets(st.sampled_from(before), min_size=1))
        edges += [Edge(origin, name, durable=draw(st.sampled_from([None, None, "parquet"]))) for origin in origins]
    origins = {edge.source for edge in edges}
    ends = [name for name in names if name not in origins]
    operators.append(sink("t"))
    edges += [Edge(name, "t") for name in ends]
    return Graph("random", tuple(operators), tuple(edges))


@given(layered_graphs())
def test_every_operator_is_in_exactly_one_stage_and_segment(built):
    layout = lay_out(built)
    placed = [name for stage in layout.stages for name in stage.operators]
    assert sorted(placed) == sorted(built.by_name)
    assert [name for segment in layout.segments for name in segment.operators] == placed
