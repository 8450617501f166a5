"""Orders to a live run: `elastream pause`, `unpause`, `update`, `send` and `stop`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.errors import ElastreamError, InputError

if TYPE_CHECKING:
    from elastream.recording.directory import RunDirectory

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of an Autopilot.")]

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")]
WAIT_STEP_S = 0.2


def pause(run: Run) -> None:
    """Pause the controller of a run. It plans and records, but applies nothing. Queries continue."""
    already = "" if run_directory(run).pause() else " already"
    ended = f". {ending}: only its resumption is paused" if (ending := _ended(run)) else ""
    typer.echo(f"{run} is paused{already}; elastream unpause {run} ends that{ended}")


def unpause(run: Run) -> None:
    """Let the controller of a paused run apply its plans again."""
    if not run_directory(run).unpause():
        typer.echo(f"{run} was not paused")
    elif ended := _ended(run):
        typer.echo(f"{run} is no longer paused. {ended}")
    else:
        typer.echo(f"{run} continues")


def update(
    run: Run, file: Annotated[Path, typer.Argument(metavar="FILE", help="The changed program or document.")]
) -> None:
    """Run the alternates of FILE in RUN from one of its next batches on, without a restart.

    After an error, with exit status 2, the run is unchanged.
    """
    from elastream.api.updating import update_run
    from elastream.cli.program import declared

    directory = run_directory(run)
    version, texts = update_run(directory, declared(file).graph, f"elastream update {file}")
    when = _when(directory, repairs=version.repairs)
    typer.echo(f"{file}: version {version.version} of the code of {run}, {when}: {'; '.join(texts)}")


def send(
    run: Run,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="An operator that receives messages.")],
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="JSON, such as 3 or '{\"limit\": 3}'.")],
) -> None:
    """Send a message to all tasks of an operator of RUN, from one of its next batches on.

    After an error, with exit status 2, the run is unchanged.
    """
    from elastream.api.updating import send_message

    directory = run_directory(run)
    try:
        value = json.loads(message)
    except ValueError as error:
        raise InputError(f"the message {message!r} is not JSON: {error}") from None
    version = send_message(directory, operator, value, f"elastream send {operator} {message}")
    when = _when(directory, repairs=version.repairs)
    typer.echo(f"message {message} to {operator} of {run}, as version {version.version} of its code, {when}")


def stop(run: Run, wait: Wait = True) -> None:
    """End a live run cleanly, once it has started. An Autopilot ends alone; its queries continue.

    `elastream run --resume RUN` continues a stopped run.
    """
    from elastream.recording.run_state import driver_of, state_of

    directory = run_directory(run)
    state = state_of(directory)
    if not state.live:
        raise InputError(f"{run} is not live: it is {state.state}")
    directory.request_stop()
    typer.echo(f"{run} (process {state.driver}) is stopping")
    if not wait:
        return
    while driver_of(directory) is not None:
        time.sleep(WAIT_STEP_S)
    typer.echo(f"{run} {state_of(directory).state}")


def _when(directory: "RunDirectory", *, repairs: bool) -> str:
    later = "it is resumed" if repairs else "the run is unpaused" if directory.is_paused else ""
    return f"once {later}" if later else "from one of its next batches on"


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
