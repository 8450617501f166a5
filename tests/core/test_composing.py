"""Compositions after switches: all switches of a plan are one version, whatever their number and order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.action import SetKeyTable, SwitchAlternate, SwitchEdge
from elastream.core.composition import Consistency, changed_operators, check_consistency, consistency_of, switched
from elastream.core.observation import Composition
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import KafkaTopic
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Form, Kind, Operator
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import DataflowError, InputError
from elastream.loads import constant


def by_customer() -> Graph:
    """Source -> forecast (three alternates, chosen by customer) -> a durable choice of one of two sinks."""
    forecast = tuple(Alternate(name, len, Form.MAP) for name in "abc")
    return Graph(
        "customers",
        (
            Operator("source", Kind.SOURCE),
            Operator("forecast", alternates=forecast, selects=("customer",)),
            Operator("left", Kind.SINK),
            Operator("right", Kind.SINK),
        ),
        (
            Edge("source", "forecast"),
            Edge("forecast", "left", choice="way", durable="parquet"),
            Edge("forecast", "right", choice="way", durable="parquet"),
        ),
    )


switches = st.lists(
    st.one_of(
        st.builds(SwitchAlternate, st.just("forecast"), st.sampled_from("abc")),
        st.builds(SwitchEdge, st.just("way"), st.sampled_from(["left", "right"])),
        st.builds(SetKeyTable, st.just("forecast"), st.integers(0, 3)),
    ),
    max_size=5,
)


@given(before=switches, plan=switches)
def test_a_plans_switches_are_one_version_and_repeating_it_adds_none(before, plan):
    now = switched(Composition.default(by_customer()), before)
    after = switched(now, plan)
    assert after.version - now.version in (0, 1)
    assert (after.version == now.version) == (after is now)
    assert switched(after, plan) is after or len({type(each) for each in plan}) < len(plan)
    for kind, found in (
        (SwitchAlternate, after.alternates["forecast"]),
        (SwitchEdge, after.choices["way"]),
        (SetKeyTable, after.tables.get("forecast", 0)),
    ):
        if last := [each for each in plan if isinstance(each, kind)][-1:]:
            assert found in (
                getattr(last[0], "alternate", None),
                getattr(last[0], "target", None),
                getattr(last[0], "table", -1),
            )


@pytest.mark.parametrize(
    ("switch", "sentence"),
    [
        (SwitchAlternate("nobody", "a"), "there is no operator 'nobody'"),
        (SwitchAlternate("forecast", "d"), "operator 'forecast' has no alternate 'd' (it has: a, b, c)"),
        (SwitchAlternate("left", "a"), "operator 'left' has no alternate 'a' (it has: none)"),
        (SwitchEdge("path", "left"), "there is no choice 'path' (there are: way)"),
        (SwitchEdge("way", "up"), "choice 'way' has no target 'up' (it has: left, right)"),
        (SetKeyTable("nobody", 1), "there is no operator 'nobody'"),
        (SetKeyTable("left", 1), "operator 'left' does not choose its alternate by key"),
        (SetKeyTable("forecast", -1), "there is no version -1 of a key table; 0 is none"),
        (SwitchAlternate("forecast", "b"), ""),
        (SwitchEdge("way", "right"), ""),
        (SetKeyTable("forecast", 7), ""),
    ],
)
def test_what_a_dataflow_cannot_choose_is_refused_in_one_sentence(switch, sentence):
    assert switch.refusal(by_customer()) == sentence


def test_a_switch_shows_in_the_query_of_its_operator_or_choice():
    layout = lay_out(by_customer())
    assert SwitchAlternate("forecast", "b").segments(layout) == {"source"}
    assert SwitchEdge("way", "right").segments(layout) == {"source"}
    assert len(layout.segments) == 3


def test_a_mode_of_consistency_is_found_by_its_name():
    assert consistency_of("wave") is Consistency.WAVE
    assert consistency_of("rewired", simulated=True) is Consistency.REWIRED
    with pytest.raises(InputError, match="consistency 'rewired' is none of batch, wave, drain"):
        consistency_of("rewired")


def over(durable: str | None, source: KafkaTopic | None = None) -> Layout:
    flow = Dataflow("over")
    stream = flow.source(source, load=constant(1) if source is None else None)
    (stream if durable is None else stream.durable(durable)).map(len, returns="n long", name="last").sink(None)
    return lay_out(flow.graph)


def merged(source: KafkaTopic | None) -> Layout:
    """Two sources, each behind an edge of its own, and one of them behind two, meet in one query."""
    flow = Dataflow("merged")
    left = flow.source(source, load=constant(1) if source is None else None, name="left").durable()
    left = left.map(len, returns="n long", name="passing").durable()
    right = flow.source(None, load=constant(1), name="right").durable()
    left.merge(right).map(len, returns="n long", name="last").sink(None)
    return lay_out(flow.graph)


@pytest.mark.parametrize(
    ("layout", "mode", "says"),
    [
        (over("parquet"), "rewired", "'rewired' is simulated only"),
        (over("kafka"), "wave", "the edge source -> last is a Kafka topic, whose records carry no version"),
        (over("kafka"), "drain", "make it 'parquet', or use 'batch'"),
        (over("parquet", KafkaTopic("t", "h:1")), "drain", "the source 'source' has no declared load"),
        (merged(KafkaTopic("t", "h:1")), "wave", "cannot merge 'passing' with others over durable edges"),
        (merged(None), "wave", ""),
        (over("kafka"), "batch", ""),
        (over(None, KafkaTopic("t", "h:1")), "drain", ""),
        (over("parquet", KafkaTopic("t", "h:1")), "wave", ""),
    ],
)
def test_a_dataflow_that_cannot_keep_to_a_mode_is_refused_with_the_way_out(layout, mode, says):
    if not says:
        check_consistency(layout, Consistency(mode))
        return
    with pytest.raises(DataflowError, match=says) as refused:
        check_consistency(layout, Consistency(mode))
    assert refused.value.at == ("consistency",)


def test_operators_change_with_alternate_table_and_choice():
    graph = by_customer()
    before = Composition.default(graph)
    for switch in (SwitchAlternate("forecast", "b"), SetKeyTable("forecast", 1), SwitchEdge("way", "right")):
        assert changed_operators(graph, before, switched(before, [switch])) == {"forecast"}
    assert changed_operators(graph, before, before) == frozenset()
