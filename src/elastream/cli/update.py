"""`elastream update RUN FILE`: gives a running run the operators' code of a changed program or document."""

from pathlib import Path
from typing import Annotated

import typer

from elastream.cli.pause import Run, run_directory


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
    later = "its resumption begins" if version.repairs else "the run is unpaused" if directory.is_paused else ""
    when = f"once {later}" if later else "from one of its next batches on"
    typer.echo(f"{file}: version {version.version} of the code of {run}, {when}: {'; '.join(texts)}")
