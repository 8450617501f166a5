"""What one query is made of where signals, windows and sequences are in it."""

from typing import Any

import pytest

from elastream.dataflow.builder import Dataflow, Stream
from elastream.dataflow.chains import SegmentPlan, plan_segment
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import lay_out
from elastream.errors import DataflowError


def started() -> tuple[Dataflow, Stream]:
    flow = Dataflow("planned")
    return flow, flow.source(records([{"k": "a", "n": 1, "end": True}], "k string, n long, end boolean"))


def plan(flow: Dataflow) -> SegmentPlan:
    """That of the only query."""
    (segment,) = lay_out(flow.graph).segments
    return plan_segment(flow.graph, segment)


def rows_of(_: tuple[Any, ...], rows: Any) -> Any:
    return rows


def test_a_signal_beside_a_keyed_operator_needs_no_query_of_its_own():
    flow, stream = started()
    stream.signal("seen", "count()")
    stream.key_by("k").count().sink(collect("counts"))
    found = plan(flow)
    assert [outlet.name for outlet in found.before.outlets] == ["signal(seen)", "count"]
    assert [outlet.name for outlet in found.before.written] == ["count"]
    assert not found.before.plain
    assert found.updates == ("k",)


def test_a_sink_alone_needs_no_walk_and_a_signal_alone_does():
    flow, stream = started()
    stream.sink(collect("all"))
    assert plan(flow).before.plain
    stream.durable().signal("seen", "count()")
    (_, told) = lay_out(flow.graph).segments
    assert not plan_segment(flow.graph, told).before.plain


def test_column_expressions_before_a_signal_are_refused_with_advice():
    flow, stream = started()
    mapped = stream.map(dict, returns="k string, n long, end boolean", name="same")
    mapped.select({"m": "n * 2"}).signal("twice", "max(m)")
    mapped.sink(collect("all"))
    with pytest.raises(DataflowError, match=r"'select' are between a function and the signal 'twice', .*: use map_arrow"):
        plan(flow)


def test_what_windows_and_zips_emit_is_final():
    flow, stream = started()
    stream.window(landmark="end").group_by("k").apply(rows_of, returns="k string, n long, end boolean").sink(collect("all"))
    found = plan(flow)
    assert found.updates == ()
    assert not found.before.plain  # records are numbered in a walk, for their order


def test_the_ports_of_a_join_are_told_apart_in_their_order():
    flow, left = started()
    right = flow.source(records([{"k": "a", "m": 1}], "k string, m long"), name="right")
    left.window(count=2).join(right, "k").sink(collect("pairs"))
    assert [(outlet.name, outlet.port) for outlet in plan(flow).before.written] == [("join", 0), ("join", 1)]
