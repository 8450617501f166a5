"""`elastream report RUN`: writes the HTML report of a recorded run."""

from pathlib import Path
from typing import Annotated

import typer

from elastream.cli.options import Recorded

Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write; default: next to the recording.")
]


def report(run: Recorded, output: Output = None) -> None:
    """Write the HTML report of a recorded run, and print its summary."""
    from rich.console import Console

    from elastream.dashboard.summary import print_summary
    from elastream.recording.recorder import Recording
    from elastream.report.page import write_report
    from elastream.report.summary import summarise

    recording = Recording.read(run)
    beside = run / "report.html" if run.is_dir() else run.with_suffix(".html")
    summary = summarise(recording)
    path = write_report(recording, output or beside, summary)
    print_summary(recording, Console(), path, summary)
