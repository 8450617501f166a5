"""`elastream update RUN FILE` and `send RUN OPERATOR MESSAGE`: give a running run new code, and messages."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastream.cli.pause import Run, run_directory
from elastream.errors import InputError

if TYPE_CHECKING:
    from elastream.recording.directory import RunDirectory


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


def _when(directory: "RunDirectory", *, repairs: bool) -> str:
    later = "its resumption begins" if repairs else "the run is unpaused" if directory.is_paused else ""
    return f"once {later}" if later else "from one of its next batches on"
