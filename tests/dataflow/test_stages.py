"""Which operators become queries of their own, and what follows from how many of them come one after the other."""

import pytest

from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.spark.start import pace_of


def chain(edges):
    """A dataflow of as many durable edges in a row, and a branch of one query beside them."""
    flow = Dataflow("chain")
    source = flow.source(records([], "value long"), name="source")
    source.filter(bool, name="beside").sink(collect("beside"))
    stream = source
    for number in range(edges):
        stream = stream.durable().filter(bool, name=f"step{number}")
    stream.sink(collect("out"))
    return lay_out(flow.graph)


@pytest.mark.parametrize("edges", [0, 1, 3])
def test_each_durable_edge_in_a_row_adds_a_query_to_what_a_record_passes(edges):
    assert chain(edges).in_a_row == edges + 1


def test_queries_in_a_row_share_the_time_that_a_record_may_take():
    assert pace_of(15.0, chain(2)) == pytest.approx(pace_of(15.0, chain(0)) / 3)


def test_queries_that_feed_each_other_in_a_circle_count_once_each():
    steps = [Operator(name, Kind.TRANSFORM, (Alternate("a", cost=0.001),)) for name in "abc"]
    operators = (Operator("s", Kind.SOURCE), *steps, Operator("sink", Kind.SINK))
    edges = (
        Edge("s", "a"),
        Edge("a", "b", durable="parquet"),
        Edge("b", "c", durable="parquet"),
        Edge("a", "sink"),
        Edge("c", "sink"),
    )
    layout = lay_out(Graph("circle", operators, edges))
    assert layout.circular
    assert layout.in_a_row == 2
