"""`elastream check FILE`: validates the dataflow of a program or document without running it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.cli.declared import declared

if TYPE_CHECKING:
    from elastream.model.graph import Graph

__all__ = ["check"]


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python program or a YAML document.")],
) -> None:
    """Check the dataflow of a program or document without running it."""
    _show(file, declared(file).graph)


def _show(file: Path, graph: "Graph") -> None:
    from rich.console import Console
    from rich.table import Table

    from elastream.model.stages import lay_out
    from elastream.model.wording import duration_text

    layout, console = lay_out(graph), Console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("operator", "kind", "from", "stage", "alternates", "level"):
        table.add_column(column, overflow="fold")
    for name in graph.order:
        operator = graph.by_name[name]
        alternates = ", ".join(alternate.name for alternate in operator.alternates if len(operator.alternates) > 1)
        sources = ", ".join(edge.source for edge in graph.inputs[name])
        stage = layout.stage_of[name].name
        table.add_row(name, operator.kind.value, sources, stage, alternates, duration_text(operator.max_duration))
    console.print(table)
    counted = ", ".join(
        f"{count} {one if count == 1 else many}"
        for count, one, many in (
            (len(graph.operators), "operator", "operators"),
            (len(layout.stages), "stage", "stages"),
            (len(layout.segments), "query", "queries"),
        )
    )
    console.print(f"{file}: dataflow {graph.name!r} is valid: {counted}", markup=False, highlight=False, soft_wrap=True)
