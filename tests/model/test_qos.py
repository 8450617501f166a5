import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.model.endpoints import collect, records
from elastream.model.flow import Dataflow
from elastream.model.observation import Composition
from elastream.model.qos import erlang_c, offered_rates, waiting_time


def test_rates_follow_selectivities_and_dealing():
    flow = Dataflow("f")
    lines = flow.source(records([{"value": "a"}], "value string"))
    lines.deal().map(len, returns="n int", name="left").merge(lines.deal().map(len, returns="n int", name="right")).sink(
        collect("o")
    )
    assert offered_rates(flow.graph, {"source": 10.0}, {"left": 3.0}) == {"source": 10, "left": 5, "right": 5, "sink": 20}


def test_of_a_choice_only_the_selected_edge_carries():
    flow = Dataflow("f")
    lines = flow.source(records([{"value": "a"}], "value string"))
    ways = [lines.choice("way").map(len, returns="n int", name=name) for name in ("a", "b")]
    ways[0].merge(ways[1]).sink(collect("o"))
    graph = flow.graph
    rates = offered_rates(graph, {"source": 4.0}, {}, Composition(choices={"way": "b"}))
    assert (rates["a"], rates["b"]) == (0.0, 4.0)


def test_one_server_waits_as_the_textbook_says():
    assert waiting_time(0.5, 1.0, 1) == pytest.approx(1.0)
    assert waiting_time(0.5, 1.0, 1, variation=0.0) == pytest.approx(0.5)


def test_two_servers_wait_as_the_textbook_says():
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)


def test_an_overloaded_queue_has_no_bound():
    assert waiting_time(2.0, 1.0, 2) == math.inf


@given(st.integers(1, 30), st.floats(0.0, 1.0, exclude_max=True))
def test_the_chance_to_wait_is_a_probability(servers, utilisation):
    assert 0 <= erlang_c(servers, utilisation * servers) <= 1
