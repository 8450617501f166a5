"""Self-contained HTML page of text, tables, plots and dataflows, in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from elastream.report.flow import Flow
from elastream.report.plots import Curve, Plot, Values
from elastream.report.template import rendered

# Longer cells are text, which is aligned to the left.
MAX_FIGURE = 30


@dataclass(frozen=True, slots=True)
class Heading:
    text: str


@dataclass(frozen=True, slots=True)
class Prose:
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header. `good` marks rows: True, False or None (neutral)."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    good: tuple[bool | None, ...] = ()

    @property
    def texts(self) -> frozenset[int]:
        """Columns of text: the first one, and those with long cells."""
        columns = enumerate(zip(*self.rows, strict=True))
        return frozenset({0, *(number for number, column in columns if max(map(len, column)) > MAX_FIGURE)})


Block: TypeAlias = Heading | Prose | Table | Plot | Flow


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    blocks: tuple[Block, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(block for block in self.blocks if isinstance(block, Table))


def load_curve(name: str, x: Values, y: Values, *, steps: bool = False) -> Curve:
    return Curve(name, x, y, 5, axis=2, steps=steps, fill=True, dash="dot")


def hosts_plot(
    caption: str,
    x: str,
    times: Sequence[float],
    load: Curve,
    unit: str,
    instances: Sequence[float],
    hosts: Sequence[float],
    what: str = "replicas",
) -> Plot:
    lines = (load, Curve(what, times, instances, steps=True), Curve("hosts", times, hosts, 1, steps=True))
    return Plot(caption, x, f"{what}, hosts", lines, unit)


def render(page: Page) -> str:
    return rendered("blocks.html.j2", title=page.title, blocks=[(type(block).__name__, block) for block in page.blocks])


def table_html(table: Table) -> str:
    return rendered("table.html.j2", table=table)
