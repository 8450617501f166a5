"""Self-contained HTML page of text, tables and Plotly plots, in order."""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

# distinguishable on white and with common colour deficiencies
PALETTE = ("#3b7dd8", "#d9822b", "#2e9e7b", "#a663cc", "#c94f6d", "#5c6f82")


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Prose:
    """Paragraph of plain text."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header. `good` colours rows: True, False or None (neutral)."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    good: tuple[bool | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves (from `line`); those with `axis` 2 use the right-hand axis."""

    caption: str
    x: str
    y: str
    lines: tuple[dict[str, Any], ...]
    y2: str = ""


Block: TypeAlias = Heading | Prose | Table | Plot


@dataclass(frozen=True, slots=True)
class Page:
    """Title and blocks."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(block for block in self.blocks if isinstance(block, Table))


def line(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    colour: int = 0,
    axis: int = 1,
    steps: bool = False,
    dash: str = "solid",
    fill: bool = False,
) -> dict[str, Any]:
    """Return a curve for Plotly; NaN is a gap, `steps` holds values."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": [None if math.isnan(value) else value for value in y],
        "yaxis": "y" if axis == 1 else "y2",
        "fill": "tozeroy" if fill else "none",
        "line": {"color": PALETTE[colour % len(PALETTE)], "width": 1.6, "dash": dash, "shape": "hv" if steps else "linear"},
    }


def load_line(name: str, x: Sequence[float], y: Sequence[float], *, steps: bool = False) -> dict[str, Any]:
    """Return the offered load for Plotly: dotted, filled, right-hand axis."""
    return line(name, x, y, colour=5, axis=2, steps=steps, fill=True, dash="dot")


def hosts_plot(
    caption: str,
    x: str,
    times: Sequence[float],
    load: dict[str, Any],
    unit: str,
    instances: Sequence[float],
    hosts: Sequence[float],
    what: str = "replicas",
) -> Plot:
    """Return instances and hosts over the offered load."""
    lines = (load, line(what, times, instances, steps=True), line("hosts", times, hosts, colour=1, steps=True))
    return Plot(caption, x, f"{what}, hosts", lines, unit)


STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;color:#1c2530;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #d6dce3}
table{border-collapse:collapse;margin:1rem 0;font-size:13px;display:block;overflow-x:auto}
caption,figcaption{text-align:left;color:#4a5868;font-size:13px;padding:.2rem 0}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #e4e8ed;font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}tr.good td:first-child{box-shadow:inset 3px 0 #2e9e7b}
tr.bad td:first-child{box-shadow:inset 3px 0 #c94f6d}figure{margin:1rem 0}
"""


def render(page: Page) -> str:
    from plotly.offline import get_plotlyjs

    plots = any(isinstance(block, Plot) for block in page.blocks)
    script = f"<script>{get_plotlyjs()}</script>" if plots else ""
    body = "\n".join(_block(block, number) for number, block in enumerate(page.blocks))
    title = html.escape(page.title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style>{script}</head>\n<body><h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _block(block: Block, number: int) -> str:
    match block:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Prose(text):
            return f"<p>{html.escape(text)}</p>"
        case Table():
            return table_html(block)
        case Plot():
            return _plot(block, number)


def table_html(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    marks = table.good or (None,) * len(table.rows)
    rows = "".join(
        f"<tr{'' if good is None else ' class=good' if good else ' class=bad'}>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row, good in zip(table.rows, marks, strict=True)
    )
    return f"<table><caption>{html.escape(table.caption)}</caption><tr>{head}</tr>{rows}</table>"


def _plot(plot: Plot, number: int) -> str:
    layout: dict[str, Any] = {
        "height": 320,
        "margin": {"l": 60, "r": 60, "t": 10, "b": 45},
        "xaxis": {"title": {"text": plot.x}},
        "yaxis": {"title": {"text": plot.y}, "rangemode": "tozero"},
        "legend": {"orientation": "h", "y": 1.15},
        "hovermode": "x unified",
    }
    if plot.y2:
        layout["yaxis2"] = {"title": {"text": plot.y2}, "overlaying": "y", "side": "right", "rangemode": "tozero"}
    # "</" would end the script element inside a string.
    data = json.dumps([plot.lines, layout], allow_nan=False).replace("</", "<\\/")
    return (
        f'<figure><figcaption>{html.escape(plot.caption)}</figcaption><div id="plot{number}"></div>'
        f'<script>Plotly.newPlot("plot{number}",...{data},{{responsive:true}})</script></figure>'
    )
