"""Kinds of option that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from elastream.model.errors import ElastreamError
from elastream.model.units import duration

__all__ = ["Recorded", "as_seconds"]


def as_seconds(text: str) -> float:
    """Seconds of a duration as people write it; a usage error where it is none."""
    try:
        return duration(text)
    except ElastreamError as error:
        raise typer.BadParameter(str(error)) from None


Recorded = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a recording.")]
"""A run that was recorded."""
