"""`elastream guards check FILE`: validates a guard file without a run."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["guards"]

guards = typer.Typer(
    name="guards", no_args_is_help=True, help="Guards: what says which alternates and branches of a dataflow may run."
)


@guards.callback()
def _group() -> None:
    """Guards: what says which alternates and branches of a dataflow may run."""


@guards.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file of guards.")],
    dataflow: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The program or document that declares the dataflow.")
    ] = None,
) -> None:
    """Check the guards in FILE, starting nothing: syntax, types, signals; with a dataflow its operators and choices, too.

    Exit status 2, with one sentence, for what is wrong.
    """
    from rich.console import Console
    from rich.table import Table

    from elastream.cli.declared import declared
    from elastream.documents.guards import load_guards
    from elastream.model.wording import counted

    found = load_guards(file, None if dataflow is None else declared(dataflow).graph)
    console, program = Console(), found.program
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("element", "alternate", "active by", "value", "signals"):
        table.add_column(column, overflow="fold")
    for name, rules in zip(program.elements, program.rules, strict=True):
        for rule in rules:
            formulas = [number for number in (rule.activate, rule.deactivate, rule.value) if number >= 0]
            read = dict.fromkeys(signal for number in formulas for signal in program.signals_of[number])
            by = "always" if rule.activate < 0 else "when" if rule.deactivate < 0 else "on, off"
            table.add_row(name, rule.alternate, by, "signals" if rule.value >= 0 else f"{rule.fixed:g}", ", ".join(read))
    console.print(table)
    size = f"{counted(sum(map(len, program.rules)), 'guard')} of {counted(len(program.elements), 'element')}"
    console.print(f"{file}: the guards are valid: {size}", markup=False, highlight=False, soft_wrap=True)
