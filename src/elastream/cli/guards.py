"""`elastream guards check|set|show`: validates a guard file, sets it for a running run, shows its effect."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.cli.options import Recorded
from elastream.cli.output import AsJson, print_json, time_of_day
from elastream.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from elastream.recording.recorder import Recording

guards = typer.Typer(
    name="guards", no_args_is_help=True, help="Guards: rules for which alternates and branches of a dataflow may run."
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file of guards.")]


@guards.command()
def check(
    file: File,
    dataflow: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The program or document that declares the dataflow.")
    ] = None,
) -> None:
    """Check the guards in FILE: syntax, types and signals, and with a dataflow its operators and choices.

    The exit status of an error is 2.
    """
    from elastream.cli.program import declared
    from elastream.dashboard.console import make_console, plain_table
    from elastream.guards.document import load_guards
    from elastream.guards.tree import signals_of

    document = load_guards(file, None if dataflow is None else declared(dataflow).graph)
    console, table = make_console(), plain_table("element", "alternate", "active by", "value", "signals")
    for element in document.elements:
        for guard in element.guards:
            by = "always" if guard.activate is None else "when" if guard.deactivate is None else "on, off"
            value = f"{guard.value:g}" if isinstance(guard.value, float | int) else "signals"
            read = signals_of(guard.activate, guard.deactivate, guard.value)
            table.add_row(element.name, guard.alternate, by, value, ", ".join(read))
    console.print(table)
    console.print(f"{file}: the guards are valid: {document.size}", markup=False, highlight=False, soft_wrap=True)


@guards.command("set")
def give(run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a running run.")], file: File) -> None:
    """Set the guards in FILE for RUN, from its next round on.

    They are checked against the running dataflow first. After an error, with exit status 2, the run is unchanged.
    """
    from elastream.guards.document import load_guards
    from elastream.guards.subject import Subject
    from elastream.recording.directory import RunDirectory
    from elastream.recording.guard_log import GuardLog
    from elastream.recording.recorder import Recording, check_live

    recording = Recording.outline(run)
    check_live(run, recording, "guards")
    try:
        subject = Subject.recorded(recording.header)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{run} does not describe its dataflow: {error!r}") from None
    document = load_guards(file, subject)
    version = GuardLog(RunDirectory(run).guards).append(document.text, file, "elastream guards set")
    typer.echo(f"{file}: version {version.number} of the guards of {run}, in force from its next round on: "
               f"{document.size}")  # fmt: skip


@guards.command()
def show(run: Recorded, as_json: AsJson = False) -> None:
    """Show the guards of RUN: their versions, what they allow, what runs, and the signals with their ages."""
    from elastream.core.wording import clock
    from elastream.dashboard.console import make_console, plain_table
    from elastream.recording.directory import RunDirectory
    from elastream.recording.guard_log import GuardLog
    from elastream.recording.recorder import Recording

    recording, console = Recording.read(run), make_console()
    versions = GuardLog(RunDirectory(run).guards).versions if run.is_dir() else ()
    if not versions and not recording.series.guards:
        raise InputError(f"{run} has no guards: give it some with 'elastream guards set {run} FILE'")
    begun = {version: recording.series.times[number] for number, version in reversed(recording.series.guards)}
    if as_json:
        at = float(recording.times[-1]) if len(recording.times) else math.nan
        standings = recording.standings_at(at)
        print_json(
            {
                "versions": [{**asdict(each), "from": begun.get(each.number)} for each in versions],
                "at": at,
                "running": {element: recording.compositions_at(at)[""].running(element) for element in standings},
                "guards": standings,
                "signals": recording.signals_at(at),
            }
        )
        return
    table = plain_table("version", "given", "by", "from", "in force")
    last = recording.series.guards[-1][1] if recording.series.guards else 0
    for each in versions:
        begins = begun.get(each.number)
        since = f"from {clock(begins)}" if begins is not None else "refused" if each.number < last else "not yet"
        table.add_row(str(each.number), time_of_day(each.time), each.by, each.file, since)
    console.print(table)
    if len(recording.times):
        _show_standings(recording, console)
        _show_signals(recording, console)


def _show_standings(recording: "Recording", console: "Console") -> None:
    from elastream.core.wording import clock
    from elastream.dashboard.console import plain_table

    at = float(recording.times[-1])
    composition = recording.compositions_at(at)[""]
    table = plain_table("element", "runs", "alternate", "may run", "value", "guard")
    for element, standing in recording.standings_at(at).items():
        runs = composition.running(element) or ""
        for number, (alternate, text) in enumerate(standing.texts.items()):
            value = standing.values[alternate]
            unknown = f"; unknown: {', '.join(standing.unknown[alternate])}" if alternate in standing.unknown else ""
            table.add_row(
                *((element, runs) if not number else ("", "")),
                alternate,
                "yes" if alternate in standing.allowed else "",
                "unknown" if value != value else f"{value:.3g}",
                f"{text}{unknown}",
            )
    console.print(f"\nat {clock(at)}:", highlight=False)
    console.print(table)


def _show_signals(recording: "Recording", console: "Console") -> None:
    from elastream.core.wording import duration_text, signal_text
    from elastream.dashboard.console import plain_table

    at = float(recording.times[-1])
    table = plain_table("signal", "value", "age")
    for name, reading in sorted(recording.signals_at(at).items()):
        table.add_row(name, signal_text(reading.value), duration_text(max(0.0, at - reading.time)))
    console.print(table)
