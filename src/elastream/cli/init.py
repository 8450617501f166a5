"""`elastream init FOLDER`: writes a small project: a dataflow, its load and a test."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from elastream.errors import InputError

# Templates beside this module, and the files that they become.
FILES = {"words.txt": "words.py", "load.csv": "load.csv", "test_words.txt": "test_words.py"}

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to create.")]


def init(folder: Folder) -> None:
    """Create a project in FOLDER: a dataflow, its load and a test."""
    from elastream.recording.directory import write_text

    if present := [name for name in FILES.values() if (folder / name).exists()]:
        raise InputError(f"{folder / present[0]} exists already: name another folder")
    templates = files("elastream.cli") / "project"
    for template, name in FILES.items():
        typer.echo(str(write_text(folder / name, (templates / template).read_text("utf-8"), "file")))
    typer.echo(f"next: cd {folder}; pytest; elastream simulate words.py; elastream run words.py")
