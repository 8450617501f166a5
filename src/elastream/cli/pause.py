"""`elastream pause RUN` and `unpause RUN`: whether a running controller applies what it plans."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.model.errors import ElastreamError, InputError

if TYPE_CHECKING:
    from elastream.recording.directory import RunDirectory

__all__ = ["pause", "unpause"]

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of an Autopilot.")]


def pause(run: Run) -> None:
    """Pause the controller of a run: it goes on to plan and to record, and applies nothing. Queries run on."""
    already = "" if _directory(run).pause() else " already"
    typer.echo(f"{run} is paused{already}; elastream unpause {run} ends that{_ended(run)}")


def unpause(run: Run) -> None:
    """Let the controller of a paused run apply what it plans."""
    typer.echo(f"{run} goes on" if _directory(run).unpause() else f"{run} was not paused")


def _ended(run: Path) -> str:
    """A remark on a run that has ended, of which nothing is left to pause; empty for one that goes on."""
    from elastream.model.wording import clock
    from elastream.recording.recorder import Recording

    try:
        ending = Recording.outline(run).ending
    except ElastreamError:  # nothing is recorded yet
        return ""
    if ending is None:
        return ""
    return f". It has {ending.status} at {clock(ending.time)}: only a run that resumes it is paused"


def _directory(run: Path) -> "RunDirectory":
    from elastream.recording.directory import RunDirectory

    directory = RunDirectory(run)
    if not directory.manifest.is_file():
        raise InputError(f"{run} is not the folder of a run: it has no {directory.manifest.name}")
    return directory
