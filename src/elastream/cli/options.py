"""Arguments and parsers that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from elastream.model.errors import ElastreamError
from elastream.model.units import duration

__all__ = ["Recorded", "as_seconds"]


def as_seconds(text: str) -> float:
    """Parse a duration such as `90s` to seconds. Raises a usage error for other text."""
    try:
        return duration(text)
    except ElastreamError as error:
        raise typer.BadParameter(str(error)) from None


Recorded = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a recording.")]
"""Argument that names a recorded run."""
