"""The drawing of a dataflow has its operators, alternates, edges and queries, across and down."""

import re

from elastream.report.flow import Flow, Link, Node, flow_html, flow_of_run
from support.example_run import example_header


def places(html):
    """Places of operators: in the drawing across, and in that down."""
    return [
        {name: (float(x), float(y)) for x, y, name in re.findall(r'class="name" x="(\d+)" y="(\d+)">([^<]*)<', part)}
        for part in html.split("<svg")[1:]
    ]


def test_operators_follow_each_other_in_both_directions():
    across, down = places(flow_html(flow_of_run(example_header())))
    assert [*across] == [*down] == ["lines", "words", "count", "out"]
    assert [x for x, _ in across.values()] == sorted({x for x, _ in across.values()})
    assert [y for _, y in down.values()] == sorted({y for _, y in down.values()})


def test_alternates_durable_edges_choices_and_queries_are_named():
    nodes = (Node("a", "source", "q1"), Node("b", "fast | exact", "q1"), Node("c<", "sink", "q2"), Node("d", "sink", "q1"))
    links = (Link("a", "b"), Link("b", "c<", durable="kafka"), Link("b", "d", choice="way"))
    html = flow_html(Flow(nodes, links))
    assert {"fast | exact", "kafka", "way"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", html))
    assert html.count('class="edge durable"') == html.count('class="edge choice"') == 2
    assert [*re.findall(r'class="key k\d">([^<]*)<', html)] == ["query q1", "query q2"]
    assert "c<" not in html


def test_a_circle_of_queries_can_be_drawn():
    nodes = (Node("a", "source"), Node("b", "transform"), Node("c", "transform"))
    links = (Link("a", "b"), Link("b", "c", durable="kafka"), Link("c", "b", durable="kafka"))
    across, _ = places(flow_html(Flow(nodes, links)))
    assert [name for name, _ in sorted(across.items(), key=lambda each: each[1])] == ["a", "b", "c"]


def test_branches_do_not_overlap():
    nodes = tuple(Node(name, "transform") for name in "abcd")
    links = (Link("a", "b"), Link("a", "c"), Link("b", "d"), Link("c", "d"))
    for drawing in places(flow_html(Flow(nodes, links))):
        assert len(set(drawing.values())) == 4


def test_no_operators_are_no_drawing():
    assert "<svg" not in flow_html(Flow((), ()))
