"""YAML with source positions, so that an error names file, line and field in one sentence."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError

from elastream.documents.user_code import near
from elastream.errors import DataflowError, ElastreamError, InputError, first_line, in_one_line

# Path of a value in a document: keys and list positions from the top.
Loc: TypeAlias = tuple[str | int, ...]


# Faults of a value by the type of pydantic's error.
_FAULTS: Mapping[str, str] = {
    "string_type": "is not a text",
    **dict.fromkeys(("bool_type", "bool_parsing"), "is neither true nor false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "is not a mapping"),
    **dict.fromkeys(("list_type", "tuple_type"), "is not a list"),
}


@dataclass(frozen=True)
class Located:
    """A parsed YAML file."""

    path: Path
    data: Mapping[str, Any]  # the top mapping, as ruamel objects with line numbers
    text: str = ""
    columns: bool = False  # True if errors name a column beside the line

    def error(self, loc: Loc, sentence: str) -> DataflowError:
        """Return the error `file:line: field: sentence`, or `file:line:column: ...`."""
        field = ".".join(str(step) for step in loc)
        line, column = self.place(loc)
        place = f"{line}:{column}" if self.columns else f"{line}"
        return DataflowError(f"{self.path}:{place}: {field + ': ' if field else ''}{sentence}")

    @contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        try:
            yield
        except ElastreamError as error:
            raise self.error(loc, str(error)) from error

    def written(self, loc: Loc) -> Loc:
        """Return the steps of `loc` that exist in the file; normalised values have further ones."""
        return tuple(step for step, _ in self._walk(loc))

    def place(self, loc: Loc) -> tuple[int, int]:
        """Return line and column (from 1) of the value at `loc`, or of the nearest enclosing one."""
        line, column = ([(0, 0)] + [place for _, place in self._walk(loc)])[-1]
        return line + 1, column + 1

    def _walk(self, loc: Loc) -> Iterator[tuple[str | int, tuple[int, int]]]:
        node: Any = self.data
        for step in loc:
            there = range(len(node)) if isinstance(node, list) else node if isinstance(node, Mapping) else ()
            if step in there:
                yield step, _begin(node, step)
            elif isinstance(step, int):
                continue  # a single value written in place of a list
            else:
                return
            node = node[step]

    def validate(self, schema: type[BaseModel]) -> Any:
        try:
            return schema.model_validate(self.data)
        except ValidationError as problem:
            errors = sorted(problem.errors(), key=lambda error: self.place(error["loc"])[0])
            raise self._explained(errors[0], schema) from None

    def _explained(self, error: ErrorDetails, schema: type[BaseModel]) -> DataflowError:
        loc, value = error["loc"], shown(error["input"])
        match error["type"]:
            case "missing":
                return self.error(loc, "is missing")
            case "extra_forbidden":
                siblings = _fields(schema, loc[:-1])
                return self.error(loc, f"there is no such key{near(str(loc[-1]), siblings)}")
            case "value_error":
                return self.error(self.written(loc), str(error["ctx"]["error"]))
            case "float_type" | "float_parsing" | "int_type" | "int_parsing" | "int_from_float":
                sentence = f"{value} is not a {'whole ' if error['type'].startswith('int') else ''}number"
            case "greater_than" | "greater_than_equal" | "less_than_equal":
                ((_, bound),) = error["ctx"].items()
                relation = {"greater_than": "above", "greater_than_equal": "at least", "less_than_equal": "at most"}
                sentence = f"{value} is out of range: it must be {relation[error['type']]} {bound:g}"
            case "literal_error":
                sentence = f"{value} is not one of {error['ctx']['expected'].replace(' or ', ', ').replace(chr(39), '')}"
            case "too_short":
                sentence = "it is empty"
            case kind if kind in _FAULTS:
                sentence = f"{value} {_FAULTS[kind]}"
            case _:
                sentence = f"{value}: {error['msg'][:1].lower()}{error['msg'][1:]}"
        return self.error(self.written(loc), sentence)


def _begin(node: Any, step: str | int) -> tuple[int, int]:
    """Return line and column (from 0) of a key or item of `node`; of `node` itself for a merged key."""
    lines = node.lc
    try:
        position: tuple[int, int] | None = lines.item(step) if isinstance(node, list) else lines.key(step)
    except (KeyError, TypeError):
        position = None
    return position or (lines.line, lines.col)


def read_yaml(path: Path, form: str = "a dataflow is a mapping with the keys 'dataflow' and 'operators'") -> Located:
    """Read the mapping in the YAML file `path`. `form` describes a valid document, for errors.

    Raises:
        InputError: The file cannot be read.
        DataflowError: It is no valid YAML, or no mapping.
    """
    return parse_yaml(text_of(path), path, form)


def text_of(path: Path) -> str:
    """Return the text of the file `path`. Raises InputError if it cannot be read or is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: byte {error.start} is not") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


# The reader takes seconds for thousands of levels, and then fails.
MAX_DEPTH = 200


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = max(0, depth + (1 if bracket in "[{" else -1))
        deepest = max(deepest, depth)
    return max(deepest, max(map(len, re.findall(r"^[ -]+", text, re.MULTILINE)), default=0) // 2)


def parse_yaml(text: str, path: Path, form: str, *, columns: bool = False) -> Located:
    """Parse `text`, which was read from `path`. Arguments and errors are those of `read_yaml` and `Located`."""
    if _depth(text) > MAX_DEPTH:
        raise DataflowError(f"{path}{':1:1' if columns else ''}: this is nested more than {MAX_DEPTH} levels deep")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)
            data = YAML(typ="rt").load(text)
    except DuplicateKeyError as error:
        first = next((part for part in str(error.problem).split('"')[1:2]), "")
        raise DataflowError(f"{path}:{_mark(error, columns)}: the key {first!r} is given twice") from None
    except MarkedYAMLError as error:
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise DataflowError(f"{path}:{_mark(error, columns)}: this is not YAML: {problem}") from None
    except YAMLError as error:
        at = text[: getattr(error, "position", 0) or 0]
        place = f":{at.count(chr(10)) + 1}:{len(at) - at.rfind(chr(10))}" if columns else ""
        raise DataflowError(f"{path}{place}: this is not YAML: {first_line(error)}") from None
    except Exception as error:  # odd texts, such as keys that are lists, make the reader raise other errors
        place = ":1:1" if columns else ""
        raise DataflowError(f"{path}{place}: this cannot be read as YAML: {in_one_line(error)}") from error
    if not isinstance(data, Mapping):
        raise DataflowError(f"{path}:{'1:1' if columns else 1}: {form}")
    return Located(path, data, text, columns)


def _mark(error: MarkedYAMLError, columns: bool) -> str:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return f"{line}:{column}" if columns else f"{line}"


def shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return repr(value)


def _fields(schema: Any, loc: Loc) -> list[str]:
    models = [schema]
    for step in loc:
        inner = [f.annotation for m in models for n, f in m.model_fields.items() if step in (n, f.alias)]
        models = [model for annotation in inner for model in _models(annotation)] or models
    return [field.alias or name for model in models[:1] for name, field in model.model_fields.items()]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)
