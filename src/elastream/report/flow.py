"""A dataflow as a graph: operators with their alternates, edges, and the queries that run them, as inline SVG.

The style sheet shows one of two drawings: across, or down for phones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape

from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from elastream.recording.observer import Header
from elastream.report.plots import COLOURS

# Pixels: height of an operator, space between two, width of a letter, most letters of a line.
BOX, GAP, LETTER, LETTERS = 44, 22, 8.4, 26
# Space between operators in the direction of the stream, which holds the names of edges.
AHEAD = 74
# Letters for which an operator with figures has room.
FIGURES = 22


@dataclass(frozen=True, slots=True)
class Node:
    """An operator; `query` is empty if there is only one."""

    name: str
    note: str  # alternates, or its kind
    query: str = ""
    figures: str = ""  # of a live run
    bound: bool = False  # True if it bounds the others


@dataclass(frozen=True, slots=True)
class Link:
    """An edge; `durable` is its channel between two queries, `choice` the set of branches to which it belongs."""

    source: str
    target: str
    durable: str = ""
    choice: str = ""


@dataclass(frozen=True, slots=True)
class Flow:
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    def with_figures(self, figures: Mapping[str, str], bottleneck: str, running: Mapping[str, str]) -> "Flow":
        nodes = (
            replace(n, figures=figures.get(n.name, ""), bound=n.name == bottleneck, note=running.get(n.name, n.note))
            for n in self.nodes
        )
        return replace(self, nodes=tuple(nodes))

    @property
    def queries(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.query for node in self.nodes if node.query))


def flow_of_run(header: Header) -> Flow:
    query_of = {name: stage["segment"] for stage in header.stages for name in stage["operators"]}
    operators = [(each["name"], each["kind"], each["alternates"]) for each in header.operators]
    links = tuple(
        Link(each["source"], each["target"], each.get("durable") or "", each.get("choice") or "") for each in header.edges
    )
    return _flow(operators, links, query_of)


def flow_of_graph(graph: Graph) -> Flow:
    query_of = {name: stage.segment for stage in lay_out(graph).stages for name in stage.operators}
    operators = [(each.name, each.kind.value, [a.name for a in each.alternates]) for each in graph.operators]
    links = tuple(Link(each.source, each.target, each.durable or "", each.choice or "") for each in graph.edges)
    return _flow(operators, links, query_of)


def _flow(
    operators: Sequence[tuple[str, str, Sequence[str]]], links: tuple[Link, ...], query_of: Mapping[str, str]
) -> Flow:
    several = len(set(query_of.values())) > 1
    nodes = tuple(
        Node(name, " | ".join(alternates) if len(alternates) > 1 else kind, query_of.get(name, "") if several else "")
        for name, kind, alternates in operators
    )
    return Flow(nodes, links)


def flow_html(flow: Flow) -> str:
    """Return the drawing of a dataflow, and the colours of its queries if there are several."""
    names = [f'<span class="key k{n % COLOURS}">query {escape(query)}</span>' for n, query in enumerate(flow.queries)]
    legend = f"<div>{' '.join(names)}</div>" if names else ""
    return f'<figure class="flow">{legend}<div class="wide">{_svg(flow, down=False)}{_svg(flow, down=True)}</div></figure>'


def _layers(flow: Flow) -> list[list[Node]]:  # noqa: C901
    """Return operators by the length of the longest path to them; ignores edges that close a cycle."""
    ahead: dict[str, list[str]] = {node.name: [] for node in flow.nodes}
    for link in flow.links:
        ahead[link.source].append(link.target)
    depth, path = dict.fromkeys(ahead, 0), set[str]()
    order: list[str] = []

    def visit(name: str) -> None:
        path.add(name)
        for target in list(ahead[name]):
            if target in path:
                ahead[name].remove(target)
            elif target not in order:
                visit(target)
        path.remove(name)
        order.append(name)

    for name in ahead:
        if name not in order:
            visit(name)
    for name in reversed(order):
        for target in ahead[name]:
            depth[target] = max(depth[target], depth[name] + 1)
    layers: list[list[Node]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in flow.nodes:
        layers[depth[node.name]].append(node)
    return layers


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _width(node: Node) -> int:
    # Figures change but the drawing must not, so each gets room for most values.
    least = FIGURES if node.figures else 0
    small = max(least, *(len(_short(text)) for text in (node.note, node.figures)))
    return round(max(len(_short(node.name)), 0.85 * small) * LETTER) + 26


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float


def _boxes(layers: Sequence[Sequence[Node]], down: bool) -> tuple[dict[str, _Box], float, float]:
    boxes: dict[str, _Box] = {}
    if down:
        rows = [sum(map(_width, layer)) + GAP * (len(layer) - 1) for layer in layers]
        for number, (layer, used) in enumerate(zip(layers, rows, strict=True)):
            x = (max(rows) - used) / 2
            for node in layer:
                boxes[node.name] = _Box(x, number * (BOX + AHEAD / 2), _width(node))
                x += _width(node) + GAP
        return boxes, max(rows), len(layers) * (BOX + AHEAD / 2) - AHEAD / 2
    height, x = max(map(len, layers)) * (BOX + GAP) - GAP, 0.0
    for layer in layers:
        width = max(map(_width, layer), default=0)
        y = (height - len(layer) * (BOX + GAP) + GAP) / 2
        for node in layer:
            boxes[node.name] = _Box(x, y, width)
            y += BOX + GAP
        x += width + AHEAD
    return boxes, x - AHEAD, height


def _svg(flow: Flow, down: bool) -> str:
    if not flow.nodes:
        return ""
    boxes, width, height = _boxes(_layers(flow), down)
    numbers = {query: number % COLOURS for number, query in enumerate(flow.queries)}
    arrow = "down" if down else "across"
    parts = [_link(link, boxes[link.source], boxes[link.target], down) for link in flow.links]
    parts += [_node(node, boxes[node.name], numbers.get(node.query)) for node in flow.nodes]
    head = f'<marker id="{arrow}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return (
        f'<svg class="{arrow}" width="{width + 4:.0f}" height="{height + 4:.0f}" '
        f'viewBox="-2 -2 {width + 4:.0f} {height + 4:.0f}" role="img" aria-label="The dataflow">'
        f'<defs>{head}<path d="M0 0L8 4L0 8Z"/></marker></defs>{"".join(parts)}</svg>'
    )


def _node(node: Node, box: _Box, colour: int | None) -> str:
    place = f'x="{box.x:.0f}" y="{box.y:.0f}"'
    bar = "" if colour is None else f'<rect class="query k{colour}" {place} width="5" height="{BOX}"/>'
    text, second = (f"{node.name}: {node.note}", node.note) if not node.figures else (node.note, node.figures)
    if node.bound:
        text = f"{text}; it bounds the others"
    return (
        f"<g><title>{escape(text)}</title>"
        f'<rect class="box{" bound" * node.bound}" {place} width="{box.width:.0f}" height="{BOX}" rx="4"/>{bar}'
        f'<text class="name" x="{box.x + 13:.0f}" y="{box.y + 18:.0f}">{escape(_short(node.name))}</text>'
        f'<text x="{box.x + 13:.0f}" y="{box.y + 34:.0f}">{escape(_short(second))}</text></g>'
    )


def _link(link: Link, source: _Box, target: _Box, down: bool) -> str:
    if down:
        begin = source.x + source.width / 2, source.y + BOX
        end = target.x + target.width / 2, target.y
        middle = (begin[1] + end[1]) / 2
        bends = f"{begin[0]:.0f} {middle:.0f} {end[0]:.0f} {middle:.0f}"
    else:
        begin = source.x + source.width, source.y + BOX / 2
        end = target.x, target.y + BOX / 2
        middle = (begin[0] + end[0]) / 2
        bends = f"{middle:.0f} {begin[1]:.0f} {middle:.0f} {end[1]:.0f}"
    kind = " durable" if link.durable else " choice" if link.choice else ""
    path = f"M{begin[0]:.0f} {begin[1]:.0f}C{bends} {end[0]:.0f} {end[1]:.0f}"
    # The name stands before the target: further back, other operators may cover it.
    x, y = (end[0] + 6, end[1] - AHEAD / 4 + 4) if down else (end[0] - AHEAD / 2, end[1] - 6)
    anchor = "start" if down else "middle"
    place, name = f'x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"', escape(_short(link.durable or link.choice))
    text = f'<text class="halo" {place}>{name}</text>' if kind else ""
    return f'<path class="edge{kind}" d="{path}" marker-end="url(#{"down" if down else "across"})"/>{text}'
