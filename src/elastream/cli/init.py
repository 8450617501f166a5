"""`elastream init FOLDER` and `elastream monitoring FOLDER`: write files to begin with."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from elastream.errors import InputError

# Templates beside this module, and the files that they become.
FILES = {"words.txt": "words.py", "load.csv": "load.csv", "test_words.txt": "test_words.py"}


def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create.")]) -> None:
    """Create a project in FOLDER: a dataflow, its load and a test."""
    from elastream.recording.directory import write_text

    if present := [name for name in FILES.values() if (folder / name).exists()]:
        raise InputError(f"{folder / present[0]} exists already: name another folder")
    templates = files("elastream.cli") / "project"
    for template, name in FILES.items():
        typer.echo(str(write_text(folder / name, (templates / template).read_text("utf-8"), "file")))
    typer.echo(f"next: cd {folder}; pytest; elastream simulate words.py; elastream run words.py")


def monitoring(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write the files to.")]) -> None:
    """Write files for Prometheus and Grafana: dashboard.json, alerts.yaml, prometheus.yaml."""
    from elastream.observability.monitoring import write_files

    for path in write_files(folder):
        typer.echo(str(path))
