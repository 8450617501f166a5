"""`elastream check FILE`: validates the dataflow of a program or document without running it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.cli.declared import declared

if TYPE_CHECKING:
    from elastream.model.graph import Graph
    from elastream.model.plant import Policy

__all__ = ["check"]


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Python program or a YAML document.")],
) -> None:
    """Check the dataflow of a program or document without running it, and whether its policy will know what it needs."""
    given = declared(file)
    _show(file, given.graph)
    for sentence in unknown_to(given.policy, given.graph, given.target_latency):
        typer.echo(sentence)


def unknown_to(policy: "Policy | None", graph: "Graph", target_latency: float | None) -> "list[str]":
    """Metrics that `policy` needs and that `graph` will not have on Spark; a sentence each, with what is missing."""
    from elastream.model.metrics import Needs
    from elastream.model.promises import PlantKind, Rows
    from elastream.model.stages import lay_out

    needs: Needs = getattr(policy, "needs", frozenset())
    layout, found = lay_out(graph), []
    for rows, metric in sorted(needs):
        promised = [
            (each, [given for given in each.given if given.holds(layout, target_latency, operator) is False])
            for operator in (graph.operators if rows is Rows.OPERATOR else (None,))
            for each in metric.promised(rows, PlantKind.DATAFLOW, operator)
        ]
        if all(missing for _, missing in promised):
            conditions = sorted({given.value for _, missing in promised for given in missing})
            why = f"it would be with: {'; '.join(conditions)}" if conditions else "no plant on Spark measures it"
            found.append(f"policy {policy.name}: {metric} of the {rows} will be unknown; {why}")  # type: ignore[union-attr]
    return found


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
