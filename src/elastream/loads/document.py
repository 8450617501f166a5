"""Loads from YAML or JSON values and from the argument of `--load`."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os.path import isfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from elastream.errors import DataflowError, ElastreamError, InputError
from elastream.loads.pattern import Pattern, chain, constant, ramp, random_walk, sine, steps
from elastream.loads.tables import SUFFIXES, is_of_prometheus, kind_of
from elastream.loads.traces import trace
from elastream.units import truth


def _steps(levels: Sequence[Any], every: Any = None) -> Pattern:
    return steps(*(tuple(level) if isinstance(level, list | tuple) else level for level in levels), every=every)


# Parameters of `trace` beside the path; those that may be several are repeated on the command line.
OPTIONS = ("interval", "gaps", "count", "rate", "time", "series", "time_zone")
SEVERAL = ("count", "rate", "series")
_KINDS = "|".join(map(re.escape, SUFFIXES))
_RECORDED = re.compile(rf"([^\[{{].*?(?:{_KINDS})(?:\.gz)?)(?::(.*))?", re.DOTALL | re.IGNORECASE)
_NEXT_OPTION = re.compile(rf",(?=(?:{'|'.join(OPTIONS)})=)")

# shape in a document -> (constructor, {field in the document: parameter})
SHAPES: Mapping[str, tuple[Callable[..., Pattern], Mapping[str, str]]] = {
    "constant": (constant, {"rate": "rate", "lasts": "lasts"}),
    "steps": (_steps, {"levels": "levels", "every": "every"}),
    "ramp": (ramp, {"from": "start", "to": "end", "over": "over"}),
    "sine": (sine, {"low": "low", "high": "high", "period": "period"}),
    "random_walk": (random_walk, {n: n for n in ("start", "step", "low", "high", "every", "lasts", "seed")}),
    "trace": (trace, {name: name for name in ("path", *OPTIONS)}),
}


def _repeated(pattern: Pattern, times: object) -> Pattern:
    if isinstance(times, int) and not isinstance(times, bool):
        return pattern.repeated(times)
    return pattern.repeated() if truth(times) else pattern


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


# modifiers after the shape, applied in document order
CHANGES: Mapping[str, Callable[[Pattern, Any], Pattern]] = {
    "hold": Pattern.hold,
    "then_back": lambda pattern, enabled: pattern.then_back() if truth(enabled) else pattern,
    "scaled": lambda pattern, factor: pattern.scaled(_number(factor)),
    "faster": lambda pattern, factor: pattern.faster(_number(factor)),
    "lasting": Pattern.lasting,
    "repeated": lambda pattern, times: _repeated(pattern, times),
}


def pattern_from(document: Any, folder: Path | None = None) -> Pattern:
    """Return the load that a document value describes; relative paths of traces are below `folder`.

    A rate (`550`, `"550/s"`) is a constant load, a list a sequence of loads, and a mapping one shape with modifiers in
    order: `{"ramp": {"from": "5/s", "to": "550/s", "over": "60s"}, "hold": "20s", "then_back": True}`.

    Raises:
        ElastreamError: The value is invalid; names the field.
    """
    match document:
        case str() if Path(document).suffix[1:].isalpha():
            raise DataflowError(f"{document!r} is a file, not a rate: write {{trace: {document}}}")
        case int() | float() | str() if not isinstance(document, bool):
            return constant(document)
        case []:
            raise DataflowError("a load is an empty list; it needs at least one part")
        case list() | tuple():
            return chain([pattern_from(part, folder) for part in document])
        case Mapping() if any(not str(key).startswith("x-") for key in document):
            (shape, fields), *changes = (each for each in document.items() if not str(each[0]).startswith("x-"))
            pattern = _shape(shape, fields, folder)
            for name, value in changes:
                pattern = _apply_change(pattern, name, value)
            return pattern
    raise DataflowError(f"{document!r} is not a load: write a rate such as '550/s', or one of {', '.join(SHAPES)}")


def load_from(text: str | Path) -> Pattern:
    """Return the load in the argument of `--load`: a recorded load, a YAML or JSON file, or an inline value.

    A recorded load may have the parameters of `trace` behind its name: `load.csv:rate=QPS,gaps=hold`.

    Raises:
        InputError: It is none of these.
    """
    path, options = Path(text), ""
    if not isfile(path) and (match := _RECORDED.fullmatch(str(text))):
        path, options = Path(match.group(1)), match.group(2) or ""
    if options or kind_of(path) in (".csv", ".tsv", ".parquet"):
        return trace(path, **_options(options, str(text)))
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        try:
            value = _parse(path.read_text(encoding="utf-8"), str(path))
            return trace(path) if is_of_prometheus(value) else pattern_from(value, path.parent)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the load {path}: {getattr(error, 'strerror', None) or error}") from None
        except InputError:
            raise
        except ElastreamError as error:
            raise InputError(f"{path}: {error}") from None
    if isfile(path):
        raise InputError(f"the load {path} is a file of another kind than {', '.join(SUFFIXES)} and .yaml")
    value = _parse(str(text), "the load")
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise InputError(f"the load {str(text)!r} has no unit: write a rate such as '{text}/s' or '{text}k/h'")
    try:
        return pattern_from(value)
    except ElastreamError as error:
        raise InputError(f"{str(text)!r} is neither a file of counts nor a load: {error}") from None


def _options(text: str, whole: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in _NEXT_OPTION.split(text) if text else ():
        key, equals, value = part.partition("=")
        if not equals or key not in OPTIONS or (key in options and key not in SEVERAL):
            raise InputError(f"{part!r} in {whole!r} is not key=value with one of {', '.join(OPTIONS)}")
        options[key] = [*options.get(key, []), value] if key in SEVERAL else value
    return options


def _parse(text: str, name: str) -> Any:
    try:
        with suppress(json.JSONDecodeError):
            return json.loads(text, object_pairs_hook=_once)  # YAML takes minutes for what a query returns
        return YAML(typ="safe", pure=True).load(text)
    except (DataflowError, DuplicateKeyError) as error:
        problem = error.problem if isinstance(error, DuplicateKeyError) else error
        raise InputError(f"{name}: {problem}") from None
    except YAMLError as error:
        raise InputError(f"{name} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{name} is nested too deeply") from None


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of `pairs`; JSON itself lets the last of equal keys win."""
    keys = [key for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise DataflowError(f"found duplicate key {twice[0]!r}")
    return dict(pairs)


def _shape(name: str, fields: Any, folder: Path | None) -> Pattern:
    if name not in SHAPES:
        raise DataflowError(f"{name!r} is not a load (there are: {', '.join(SHAPES)})")
    build, parameters = SHAPES[name]
    if not isinstance(fields, Mapping):
        fields = {next(iter(parameters)): fields}
    if unknown := [field for field in fields if field not in parameters]:
        raise DataflowError(f"load {name!r} has no field {unknown[0]!r} (it has: {', '.join(parameters)})")
    arguments = {parameters[field]: value for field, value in fields.items()}
    if name == "trace" and folder is not None and "path" in arguments:
        arguments["path"] = folder / str(arguments["path"])
    try:
        return build(**arguments)
    except TypeError as error:
        missing = [field for field, parameter in parameters.items() if f"'{parameter}'" in str(error)]
        raise DataflowError(f"load {name!r} lacks {missing[0]!r}" if missing else f"load {name!r}: {error}") from None


def _apply_change(pattern: Pattern, name: str, value: Any) -> Pattern:
    if name not in CHANGES:
        raise DataflowError(f"a load cannot be changed by {name!r} (it can by: {', '.join(CHANGES)})")
    try:
        return CHANGES[name](pattern, value)
    except TypeError:
        raise DataflowError(f"a load cannot be changed by {name}: {value!r}") from None
