"""Traces of host speeds and links from an argument: a file, a generator by name, or an object."""

from pathlib import Path
from typing import Any

from elastream.documents.registry import LINKS, SPEEDS, Registry, made, named_in
from elastream.documents.user_code import References
from elastream.errors import ElastreamError, InputError
from elastream.loads import LinkSource, SpeedSource, recorded_links, recorded_speeds


def speeds_from(source: SpeedSource | str | Path) -> SpeedSource:
    """Return host speeds from a CSV file (also `.gz`) or from `NAME[:key=value,...]`, such as `walk:seed=3`.

    Other objects are returned unchanged. Raises InputError for a faulty file or name.
    """
    if isinstance(source, str | Path):
        trace: SpeedSource = recorded_speeds(source) if _is_file(source) else _named(str(source), SPEEDS)
        return trace
    return source


def links_from(source: LinkSource | str | Path) -> LinkSource:
    """Return links between hosts, from arguments as in `speeds_from`."""
    if isinstance(source, str | Path):
        trace: LinkSource = recorded_links(source) if _is_file(source) else _named(str(source), LINKS)
        return trace
    return source


def _is_file(source: str | Path) -> bool:
    return isinstance(source, Path) or source.endswith((".csv", ".csv.gz"))


def _named(text: str, registry: Registry) -> Any:
    name, parameters = named_in(text, registry)
    try:
        return made(registry, name, parameters, References(Path()))
    except ElastreamError as error:
        raise InputError(f"{text}: {error}") from error
