"""`elastream pause RUN` and `unpause RUN`: stop a controller from applying its plans, and allow it again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.errors import ElastreamError, InputError

if TYPE_CHECKING:
    from elastream.recording.directory import RunDirectory

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of an Autopilot.")]


def pause(run: Run) -> None:
    """Pause the controller of a run. It plans and records, but applies nothing. Queries continue."""
    already = "" if run_directory(run).pause() else " already"
    ended = f". {ending}: only what goes on with it is paused" if (ending := _ended(run)) else ""
    typer.echo(f"{run} is paused{already}; elastream unpause {run} ends that{ended}")


def unpause(run: Run) -> None:
    """Let the controller of a paused run apply its plans again."""
    if not run_directory(run).unpause():
        typer.echo(f"{run} was not paused")
    elif ended := _ended(run):
        typer.echo(f"{run} is not paused any more. {ended}")
    else:
        typer.echo(f"{run} goes on")


def _ended(run: Path) -> str:
    from elastream.core.wording import clock
    from elastream.recording.recorder import Recording

    try:
        ending = Recording.outline(run).ending
    except ElastreamError:  # nothing is recorded yet
        return ""
    return "" if ending is None else f"It has {ending.status} at {clock(ending.time)}"


def run_directory(run: Path) -> "RunDirectory":
    from elastream.recording.directory import RunDirectory

    directory = RunDirectory(run)
    if not directory.manifest.is_file():
        raise InputError(f"{run} is not the folder of a run: it has no {directory.manifest.name}")
    return directory
