"""What hosts and links do while a simulation lasts, as an argument says it: a file, a generator by name, or an object."""

from pathlib import Path
from typing import Any

from elastream.documents.registry import LINKS, SPEEDS, Registry, made, named_in
from elastream.documents.user_code import References
from elastream.errors import ElastreamError, InputError
from elastream.loads import LinkSource, SpeedSource, recorded_links, recorded_speeds


def speeds_from(given: SpeedSource | str | Path) -> SpeedSource:
    """Speeds of hosts: a CSV file (`.gz` too), or `NAME[:key=value,...]` such as `walk:seed=3`; anything else is returned.

    Raises InputError with file and line for a file, else with what was given before its sentence.
    """
    if isinstance(given, str | Path):
        found: SpeedSource = recorded_speeds(given) if _is_file(given) else _named(str(given), SPEEDS)
        return found
    return given


def links_from(given: LinkSource | str | Path) -> LinkSource:
    """Links between hosts, as `speeds_from` takes speeds."""
    if isinstance(given, str | Path):
        found: LinkSource = recorded_links(given) if _is_file(given) else _named(str(given), LINKS)
        return found
    return given


def _is_file(given: str | Path) -> bool:
    return isinstance(given, Path) or given.endswith((".csv", ".csv.gz"))


def _named(text: str, registry: Registry) -> Any:
    name, parameters = named_in(text, registry)
    try:
        return made(registry, name, parameters, References(Path()))
    except ElastreamError as error:
        raise InputError(f"{text}: {error}") from error
