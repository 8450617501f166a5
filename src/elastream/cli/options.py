"""Arguments and parsers that several commands share."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from elastream.errors import ElastreamError, InputError
from elastream.units import duration


def as_seconds(text: str) -> float:
    """Parse a duration such as `90s` to seconds. Raises a usage error for other text."""
    try:
        return duration(text)
    except ElastreamError as error:
        raise typer.BadParameter(str(error)) from None


def as_some_seconds(text: str) -> float:
    """Parse a duration above 0, as `as_seconds` does."""
    if not (seconds := as_seconds(text)) > 0:
        raise typer.BadParameter(f"{text!r} is no time: it must be above 0")
    return seconds


def named_by(text: str, what: Literal["policy", "cloud"], file: Path | None = None) -> Any:
    """The policy or cloud that `NAME[:key=value,...]` names: a short name, `module:Class` or `file.py:Class`.

    Files are sought in the working directory, then beside `file`. Raises ElastreamError, with `text` before its sentence.
    """
    from elastream.documents.registry import CLOUD, POLICY, made, named_in
    from elastream.documents.user_code import References

    registry = {"policy": POLICY, "cloud": CLOUD}[what]
    name, parameters = named_in(text, registry)
    references = References(Path(), *([] if file is None else [file.parent]))
    try:
        return made(registry, name, parameters, references)
    except ElastreamError as error:
        raise InputError(f"--{what} {text}: {error}") from error


Scaling = Annotated[
    list[str] | None,
    typer.Option(
        "--scaling",
        metavar="KEY=VALUE",
        help="Rule for the number of hosts, such as max_scale_up=1, in place of the file's; an empty value takes it away; "
        "repeatable.",
    ),
]
"""Option that sets rules of `ScalingRules`."""

Recorded = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a recording.")]
"""Argument that names a recorded run."""
