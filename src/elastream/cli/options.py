"""Arguments and parsers of several commands, and the options that are run settings."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from elastream.errors import ElastreamError, InputError
from elastream.settings import (
    Choice,
    Flag,
    Fraction,
    Listen,
    PathOf,
    Rules,
    Seconds,
    Setting,
    SparkSettings,
    Text,
    Whole,
    settings_of,
)
from elastream.units import duration

T = TypeVar("T")
# How a policy or cloud is written.
NAME_FORM = "NAME[:key=value,...]"


def parsed(parse: Callable[[str], T], text: str) -> T:
    """Return what `parse` reads in `text`. Raises a usage error where it raises ElastreamError."""
    try:
        return parse(text)
    except ElastreamError as error:
        raise typer.BadParameter(str(error)) from None


def as_seconds(text: str) -> float:
    """Parse a duration such as `90s`. Raises a usage error for other text."""
    return parsed(duration, text)


def as_some_seconds(text: str) -> float:
    """Parse a positive duration."""
    if not (seconds := as_seconds(text)) > 0:
        raise typer.BadParameter(f"{text!r} is not a duration above 0")
    return seconds


def named_by(text: str, what: Literal["policy", "cloud"], file: Path | None = None) -> Any:
    """Make the policy or cloud `NAME[:key=value,...]`: a short name, `module:Class` or `file.py:Class`.

    It looks for files in the working directory, then beside `file`.

    Raises:
        ElastreamError: The error, after the option and its text.
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


@dataclass(frozen=True, slots=True)
class Verbosity:
    quiet: bool = False


def is_quiet(context: typer.Context) -> bool:
    verbosity = context.find_root().obj
    return isinstance(verbosity, Verbosity) and verbosity.quiet


Recorded = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or a recording.")]


def options_of(declaring: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the settings of `declaring` as options.

    The command receives those on the command line as `**settings`.
    """
    options = [_option(declaring, name, each) for name, each in settings_of(declaring).items() if each.group]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
        kinds = {name: each.kind for name, each in settings_of(declaring).items() if each.group}

        @wraps(command)
        def call(**arguments: Any) -> None:
            named = {name: each for name, each in arguments.items() if name not in kinds or each not in (None, [])}
            checked = {name for name in named.keys() & kinds if not isinstance(kinds[name], Rules)}
            command(**{name: kinds[name].read(name, each) if name in checked else each for name, each in named.items()})

        hints = get_type_hints(command, include_extras=True)
        vars(call)["__signature__"] = inspect.Signature(
            [each.replace(annotation=hints[each.name]) for each in own] + options
        )
        call.__annotations__ = {each.name: each.annotation for each in inspect.signature(call).parameters.values()}
        return call

    return decorate


def _option(declaring: type, name: str, setting: Setting) -> inspect.Parameter:
    """Return the option of a setting, with None for a value that is not on the command line."""
    default = vars(declaring).get(name)  # an inherited setting has the program's value by default
    shows = str(default) if isinstance(default, int | float) and not isinstance(default, bool) else False
    flag = "--setting" if name == "settings" else f"--{name.replace('_', '-')}"
    about: dict[str, Any] = {"help": setting.help, "show_default": shows, "rich_help_panel": setting.group or None}
    match setting.kind:
        case Whole(least=least):
            annotation: Any = Annotated[int | None, typer.Option(flag, min=least, metavar="NUMBER", **about)]
        case Fraction():
            annotation = Annotated[float | None, typer.Option(flag, min=0, max=1, metavar="FRACTION", **about)]
        case Seconds():
            annotation = Annotated[float | None, typer.Option(flag, parser=as_some_seconds, metavar="TIME", **about)]
        case Flag(switch=switch):
            annotation = Annotated[bool | None, typer.Option(switch or flag, **about)]
        case PathOf(metavar=metavar):
            annotation = Annotated[Path | None, typer.Option(flag, metavar=metavar, **about)]
        case Choice(metavar=metavar) | Text(metavar=metavar):
            annotation = Annotated[str | None, typer.Option(flag, metavar=metavar, **about)]
        case Listen():
            annotation = Annotated[str | None, typer.Option(flag, metavar="[HOST:]PORT", **about)]
        case Rules() | SparkSettings():
            annotation = Annotated[list[str] | None, typer.Option(flag, metavar="KEY=VALUE", **about)]
        case other:
            raise TypeError(f"no option has a value of the kind {type(other).__name__}")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
