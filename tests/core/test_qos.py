import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.frames import Floats
from elastream.core.observation import Composition
from elastream.core.qos import (
    BreakEven,
    FlowNetwork,
    application_value,
    erlang_c,
    flow_limits,
    flows,
    off_target,
    offered_rates,
    waiting_time,
    worst_interval,
)
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream_papers.thesis.plain_flows import plainly
from support.property_examples import examples


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


def test_servers_wait_as_the_textbook_says():
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert waiting_time(0.5, 1.0, 1) == pytest.approx(1.0)
    assert waiting_time(0.5, 1.0, 1, variation=0.0) == pytest.approx(0.5)


def test_an_overloaded_queue_has_no_bound():
    assert waiting_time(2.0, 1.0, 2) == math.inf


@given(st.integers(1, 30), st.floats(0.0, 1.0, exclude_max=True))
def test_the_chance_to_wait_is_a_probability(servers, utilisation):
    assert 0 <= erlang_c(servers, utilisation * servers) <= 1


LOOP = st.integers(0, 10_000)


def drawn(seed: int) -> tuple[FlowNetwork, dict[str, Any]]:
    """A random dataflow of up to 9 operators with rates, costs, capacities and queues over up to 12 instants."""
    rng = np.random.default_rng(seed)
    count, instants = int(rng.integers(2, 10)), int(rng.integers(1, 13))
    edges = [(a, b) for b in range(1, count) for a in range(b) if rng.random() < 0.4]
    into, sends = {b for _, b in edges}, {a for a, _ in edges}
    sources = [row for row in range(count) if row not in into]
    outputs = [row for row in range(count) if row not in sends]
    parts = [float(rng.choice([1.0, 0.5])) for _ in edges]
    rows = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return FlowNetwork(count, rows, np.array(parts), np.array(sources), np.array(outputs)), {
        "rates": rng.uniform(0.0, 100.0, (instants, len(sources))) * (rng.random((instants, len(sources))) < 0.8),
        "costs": rng.uniform(0.0, 0.1, count) * (rng.random(count) < 0.8),
        "selectivities": rng.uniform(0.0, 2.0, count) * (rng.random(count) < 0.9),
        "capacity": rng.uniform(0.0, 5.0, (instants, count)) * (rng.random((instants, count)) < 0.9),
        "queues": rng.uniform(0.0, 1000.0, count) * (rng.random(count) < 0.5),
        "seconds": float(rng.uniform(1.0, 300.0)),
    }


@settings(max_examples=examples(100), deadline=None)
@given(LOOP)
def test_flows_are_those_of_a_plain_loop_over_instants_and_operators(seed):
    network, given_ = drawn(seed)
    found = flows(network, **given_)
    lists = {name: each.tolist() if isinstance(each, np.ndarray) else each for name, each in given_.items()}
    plain = plainly(
        network.edges.tolist(), network.parts.tolist(), network.sources.tolist(), network.outputs.tolist(), **lists
    )
    # What is a rounding error of the longest queue is nothing of which a part could be taken.
    assert found.processed == pytest.approx(np.array(plain.processed), rel=1e-6, abs=1e-6)
    counts = np.array(plain.processed) + found.waiting[:-1] / given_["seconds"] > 1e-5
    assert found.relative[counts] == pytest.approx(np.array(plain.relative)[counts], abs=1e-5)
    assert found.application == pytest.approx(np.array(plain.application), abs=1e-4)
    assert found.fresh == pytest.approx(np.array(plain.fresh), abs=1e-4)


@settings(max_examples=examples(50), deadline=None)
@given(LOOP)
def test_throughput_is_a_fraction_and_records_are_neither_lost_nor_made(seed):
    network, given_ = drawn(seed)
    found = flows(network, **given_)
    for each in (found.relative, found.application, found.fresh):
        assert ((each >= 0) & (each <= 1)).all()
    came = found.arriving.sum(axis=0) * given_["seconds"] + given_["queues"]
    gone = found.processed.sum(axis=0) * given_["seconds"] + found.waiting[-1]
    assert gone == pytest.approx(came, rel=1e-9, abs=1e-6)


def line_of(*costs: float) -> tuple[FlowNetwork, Floats]:
    """A source, operators of these costs one after another, and a sink; and all costs."""
    count = len(costs) + 2
    edges = np.array(list(pairwise(range(count))))
    return FlowNetwork(count, edges, np.ones(len(edges)), np.array([0]), np.array([count - 1])), np.array(
        [0.0, *costs, 0.0]
    )


def test_an_output_is_held_up_by_what_holds_up_any_operator_before_it():
    network, costs = line_of(0.02, 0.01)
    found = flows(network, np.array([[100.0]]), costs, np.ones(4), np.array([np.inf, 1.0, 1.0, np.inf]), np.zeros(4), 60.0)
    assert found.relative[0] == pytest.approx([1, 0.5, 1, 1])  # 4.4: of what reaches each
    assert found.application == pytest.approx([0.5])  # 4.7: of what came to the sources
    assert found.waiting[-1] == pytest.approx([0, 50 * 60, 0, 0])


def test_what_waits_counts_for_the_plan_and_not_for_the_report():
    network, costs = line_of(0.01)
    rates, room, waits = np.full((2, 1), 80.0), np.array([np.inf, 1.0, np.inf]), np.array([0.0, 6000.0, 0.0])
    found = flows(network, rates, costs, np.ones(3), room, waits, 60.0)
    assert found.application == pytest.approx([100 / 180, 100 / 160])
    assert found.fresh == pytest.approx([1, 1])


def test_shared_cores_give_each_operator_its_part_of_the_work():
    network, costs = line_of(0.02, 0.01)
    found = flows(network, np.array([[100.0]]), costs, np.ones(4), np.full(4, 2.0), np.zeros(4), 60.0, shared=True)
    assert found.application == pytest.approx([2 / 3])
    assert found.relative[0] == pytest.approx([1, 2 / 3, 1, 1])


def test_a_link_limits_what_crosses_between_hosts_only():
    here, there, all_in = np.array([[1, 1], [0, 1]]), np.array([[1, 0], [1, 0], [0, 1], [0, 1]]), ["a"] * 4
    bandwidth, sizes = np.full((1, 4, 4), 1000.0), np.array([10.0, 10.0])
    edges = np.array([[0, 1]])
    assert flow_limits(edges, here, bandwidth, sizes, all_in[:2]) == pytest.approx(np.array([[200.0]]))  # half of it stays
    assert flow_limits(edges, there, bandwidth, sizes, all_in) == pytest.approx(np.array([[200.0]]))  # two hosts take
    assert np.isinf(flow_limits(edges, here[:1], bandwidth, sizes, all_in[:1])).all()
    assert np.isinf(flow_limits(edges, there, bandwidth, np.full(2, np.nan), all_in)).all()
    network = FlowNetwork(2, edges, np.ones(1), np.array([0]), np.array([1]))
    free, limits = np.full(2, np.inf), np.array([[200.0]])
    found = flows(network, np.array([[500.0]]), np.zeros(2), np.ones(2), free, np.zeros(2), 1.0, limits=limits)
    assert found.application == pytest.approx([0.4])


def test_a_plan_breaks_even_on_the_line_between_both_costs():
    line = BreakEven(0.55, 1.0, 300.0, 600.0)
    assert line.sigma == pytest.approx(0.45 / 300)
    assert line.profit(1.0, 600.0) == line.profit(0.55, 300.0) == pytest.approx(0)
    assert line.profit(0.55, 600.0) == pytest.approx(-0.45)


@pytest.mark.parametrize(("values", "limit"), [([0.5, 0.6], 0.9), ([0.5, 0.6, *[1.0] * 6], 0.225)])
def test_no_profit_of_linear_road_passes_what_its_break_even_costs_allow(values, limit):
    """The thesis prints 0.67, so that 4.3 can only be over the two dynamic operators of the eight."""
    line = BreakEven(application_value(values), 1.0, 0.5, 1.0)
    assert line.profit(1.0, 0.0) == pytest.approx(limit)


def test_where_all_values_are_equal_money_counts_in_full():
    line = BreakEven(1.0, 1.0, 5.0, 10.0)
    assert (line.profit(1.0, 10.0), line.profit(1.0, 5.0)) == (0.0, 0.5)
    worthless = BreakEven(0.0, 0.0, 5.0, 10.0)
    assert worthless.profit(0.0, 5.0) > worthless.profit(0.0, 10.0)


def test_stability_counts_the_instants_off_target_in_each_interval():
    throughput = [0.8, 0.9, 0.6, 0.7, 0.8]
    assert worst_interval(throughput, 2) == pytest.approx(0.65)
    assert worst_interval(throughput, 5) == pytest.approx(0.76)
    assert math.isnan(worst_interval([], 2))
    assert off_target(throughput, 0.8, 0.05) == 3
