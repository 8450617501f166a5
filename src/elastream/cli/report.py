"""`elastream report RUN`: writes the HTML report of a recorded run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from elastream.cli.options import Recorded
from elastream.cli.output import AsJson, print_json

Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write; default: next to the recording.")
]


Open = Annotated[bool, typer.Option("--open", help="Open the report in the browser.")]


def report(run: Recorded, output: Output = None, open_it: Open = False, as_json: AsJson = False) -> None:
    """Write the HTML report of a recorded run, and print its summary."""
    from elastream.dashboard.console import make_console
    from elastream.dashboard.summary import print_summary
    from elastream.recording.recorder import Recording
    from elastream.report.page import write_report
    from elastream.report.summary import summarise

    recording = Recording.read(run)
    beside = run / "report.html" if run.is_dir() else run.with_suffix(".html")
    summary = summarise(recording)
    path = write_report(recording, output or beside, summary)
    if as_json:
        print_json({**asdict(summary), "report": path})
    else:
        print_summary(recording, make_console(), path, summary)
    if open_it:
        typer.launch(path.resolve().as_uri())
