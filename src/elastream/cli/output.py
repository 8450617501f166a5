"""JSON output of commands, and times of day."""

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def print_json(value: object) -> None:
    """Print `value` as JSON; NaN and infinity become null, data classes objects."""
    typer.echo(json.dumps(_plain(value), indent=1, allow_nan=False))


def time_of_day(seconds: float | None) -> str:
    """Return the local date and time of a Unix time; nothing for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else ""


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Iterable) and not isinstance(value, Path):
        return [_plain(each) for each in value]
    return str(value)
