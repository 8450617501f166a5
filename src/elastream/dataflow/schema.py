"""Schemas without a JVM: a parser of Spark DDL (`"word string, n long"`), which normalises types; DDL of Python classes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from elastream.errors import DataflowError

# Spark type by column; None for the type of a SQL expression.
Columns: TypeAlias = Mapping[str, str | None]

# A schema as users give it: DDL, a StructType, or a dataclass or pydantic model whose fields are the columns.
Schema: TypeAlias = Any


class OpenColumns(Mapping[str, str | None]):
    """Columns that only Spark knows: any name may be one."""

    def __getitem__(self, name: str) -> None:
        return None

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|(\w+)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([<>(),:])|(\S))", re.DOTALL)

_SAME = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float", "dec": "decimal",
    "numeric": "decimal", "character": "char", "timestamp_ltz": "timestamp",
}  # fmt: skip
# Types without parts in Spark's grammar. Some take numbers in brackets.
_PLAIN = {
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "timestamp_ntz", "time",
    "string", "binary", "decimal", "void", "variant", "geometry", "geography",
}  # fmt: skip
_NUMBERED = {"decimal", "time", "timestamp", "char", "varchar", "geometry", "geography"}
_INTERVAL = {"year", "month", "day", "hour", "minute", "second"}


def columns_of(ddl: object, what: str, at: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the types by column of a schema in Spark DDL, or raise DataflowError."""
    try:
        return _Reader(str(ddl)).schema()
    except _SchemaSyntaxError as wrong:
        why = f": {wrong}" if str(wrong) else ""
        raise DataflowError(f"{what} is not a schema: {ddl!r}{why} (write it like 'word string, n long')", at) from None


def ddl_of(schema: Schema, what: str) -> str:
    """Return DDL, a StructType of PySpark, a dataclass or a pydantic model as Spark DDL.

    Raises:
        DataflowError: `schema` is none of these, or a field has a type without a column type.
    """
    if isinstance(schema, str):
        return schema
    if isinstance(schema, type) and _is_record(schema):
        return ", ".join(f"`{name}` {kind}" for name, kind in _fields_of(schema, what))
    if type(schema).__name__ == "StructType" and hasattr(schema, "fields"):
        null = {True: "", False: " NOT NULL"}
        return ", ".join(f"`{each.name}` {each.dataType.simpleString()}{null[each.nullable]}" for each in schema.fields)
    raise DataflowError(
        f"{what} is {schema!r}: write DDL, such as 'word string, n long', a StructType, a dataclass or a pydantic model"
    )


# Column type by Python type. A bool is an int, too.
_OF_PYTHON: Mapping[type, str] = {
    str: "string", bool: "boolean", int: "bigint", float: "double", bytes: "binary", datetime: "timestamp", date: "date",
    Decimal: "decimal(38,18)", timedelta: "interval day to second",
}  # fmt: skip


def _is_record(kind: object) -> bool:
    return is_dataclass(kind) or hasattr(kind, "model_fields")


def _fields_of(record: type, what: str) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(record, include_extras=True)
    names: Any = getattr(record, "model_fields", None) or getattr(record, "__dataclass_fields__", {})
    for name in names:
        yield name, _column_type(hints[name], f"{what}: the field {name!r} of {record.__name__}")


def _column_type(hint: Any, what: str) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _column_type(parts[0], what)
    if origin in (Union, UnionType) and len(some := [part for part in parts if part is not NoneType]) == 1:
        return _column_type(some[0], what)
    if origin in (list, set, frozenset, Sequence) or (origin is tuple and parts[1:] == (...,)):
        return f"array<{_column_type(parts[0], what)}>"
    if origin in (dict, Mapping):
        return f"map<{_column_type(parts[0], what)}, {_column_type(parts[1], what)}>"
    if isinstance(hint, type) and _is_record(hint):
        return f"struct<{', '.join(f'`{name}`: {kind}' for name, kind in _fields_of(hint, what))}>"
    if hint in _OF_PYTHON:
        return _OF_PYTHON[hint]
    raise DataflowError(f"{what} is {hint!r}, which is not a column type: write the schema as DDL")


def check_known(columns: Columns, name: str, what: str) -> str | None:
    """Return the type of the column `name`, or raise DataflowError; `what` begins the message."""
    if name in columns:
        return columns[name]
    same = [each for each in columns if each.lower() == name.lower()]
    if not same:
        raise DataflowError(f"{what} {name!r}, a column that its records do not have (they have: {', '.join(columns)})")
    return columns[same[0]]


_NAMED = re.compile(r"(?:.*\s[aA][sS]\s+)?`?(\w+)`?\s*", re.DOTALL)


def selected_name(expression: object) -> str:
    """Return the name of the column that the SQL text `expression` selects; empty if only Spark knows it."""
    match = _NAMED.fullmatch(expression) if isinstance(expression, str) else None
    return match[1] if match else ""


def kind_of(kind: str | None) -> str | None:
    """Return a type without its nullability; None if it is unknown."""
    return None if kind is None else kind.removesuffix(" not null")


def in_words(columns: Mapping[str, str | None]) -> str:
    """Return columns as DDL, without unknown types."""
    return ", ".join(f"{name} {kind}" if kind else name for name, kind in columns.items())


class _SchemaSyntaxError(Exception):
    """Syntax error of a schema; empty for an unexpected token."""


class _Reader:
    """Recursive-descent parser of one schema."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def schema(self) -> dict[str, str]:
        if self._next.lower() == "struct" and self._peek(1) == "<":
            columns = self._fields_in_brackets()
        else:
            columns = self._fields(end="")
        if self._next:
            raise _SchemaSyntaxError
        return columns

    @property
    def _next(self) -> str:
        return self._peek(0)

    def _peek(self, by: int) -> str:
        return self._tokens[self._at + by] if self._at + by < len(self._tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else ""

    def _skip(self, token: str) -> bool:
        if self._next.lower() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._skip(token):
            raise _SchemaSyntaxError

    def _fields_in_brackets(self) -> dict[str, str]:
        self._take()
        self._expect("<")
        fields = {} if self._next == ">" else self._fields(end=">")
        self._expect(">")
        return fields

    def _fields(self, end: str) -> dict[str, str]:
        fields: dict[str, str] = {}
        while True:
            name = self._name()
            self._skip(":")
            if not self._next or self._next in ",>":
                raise _SchemaSyntaxError(f"{name!r} has no type")
            kind = self._type()
            if self._skip("not"):
                self._expect("null")
                kind += " not null"
            if self._skip("comment") and not self._take().startswith(("'", '"')):
                raise _SchemaSyntaxError
            if name.lower() in map(str.lower, fields):
                raise _SchemaSyntaxError(f"the column {name!r} is in it twice")
            fields[name] = kind
            if not self._skip(","):
                break
        if self._next != end:
            raise _SchemaSyntaxError
        return fields

    def _name(self) -> str:
        token = self._take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not re.fullmatch(r"\w+", token):
            raise _SchemaSyntaxError
        return token

    def _type(self) -> str:
        word = self._next.lower()
        if word == "struct":
            return f"struct<{', '.join(f'{name}: {kind}' for name, kind in self._fields_in_brackets().items())}>"
        self._take()
        if word in ("array", "map"):
            self._expect("<")
            parts = [self._type()]
            if word == "map":
                self._expect(",")
                parts.append(self._type())
            self._expect(">")
            return f"{word}<{', '.join(parts)}>"
        kind = _SAME.get(word, word)
        if kind == "interval":
            return self._interval()
        if kind not in _PLAIN | {"char", "varchar"}:
            raise _SchemaSyntaxError(f"there is no type {word!r}" if re.fullmatch(r"\w+", word) else "")
        if kind == "string" and self._skip("collate"):
            return f"string collate {self._name().lower()}"
        if self._next == "(" and kind in _NUMBERED:
            return kind + self._numbers()
        if kind in ("char", "varchar"):
            raise _SchemaSyntaxError(f"{kind} needs a length, such as {kind}(20)")
        return "decimal(10,0)" if kind == "decimal" else kind

    def _interval(self) -> str:
        words = ["interval"]
        if self._next.lower() in _INTERVAL:
            words.append(self._take().lower())
            if self._skip("to"):
                if self._next.lower() not in _INTERVAL:
                    raise _SchemaSyntaxError
                words += ["to", self._take().lower()]
        return " ".join(words)

    def _numbers(self) -> str:
        self._expect("(")
        numbers = [self._take()]
        while self._skip(","):
            numbers.append(self._take())
        self._expect(")")
        if not all(each.isalnum() for each in numbers):
            raise _SchemaSyntaxError
        return f"({','.join(numbers)})"


def _tokens(text: str) -> Iterator[str]:
    for match in _TOKEN.finditer(text):
        yield next(part for part in match.groups() if part is not None)


# Whole types, with the first number that is too large.
WHOLE: Mapping[str, int] = {"tinyint": 1 << 7, "smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}
# Python types of the values of a column, by its type.
FITTING: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    **dict.fromkeys(WHOLE, (int, float)),
    "float": (int, float),
    "double": (int, float),
    "date": (date,),
    "timestamp": (datetime, int),
    "timestamp_ntz": (datetime, int),
}
# Values that are checked here. Spark checks those of other classes, such as NumPy's or pandas'.
PLAIN = (str, bool, int, float, date, list, tuple, dict, NoneType)
HINTS: Mapping[str, str] = {
    "string": "text is written in quotes",
    "timestamp": "a time, in YAML without quotes: 2026-03-02 09:14:07",
    "timestamp_ntz": "a time, in YAML without quotes: 2026-03-02 09:14:07",
    "date": "a date, in YAML without quotes: 2026-03-02",
}


def check_rows(name: str, rows: Sequence[Mapping[str, object]], columns: Columns, at: tuple[str, ...]) -> None:
    """Raise DataflowError, at the keys `at`, for the first of `rows` of source `name` that does not fit `columns`."""
    for number, row in enumerate(rows, start=1):
        for column, value in row.items():
            if column not in columns:
                raise DataflowError(
                    f"record {number} of source {name!r} has a column {column!r}, which is not in its schema "
                    f"({in_words(columns)})", at,
                )  # fmt: skip
            kind = kind_of(declared := columns[column]) or ""
            if (value is None and kind == declared) or _fits(value, kind):
                continue
            hint = f": {HINTS[kind]}" if kind in HINTS and value is not None else ""
            raise DataflowError(
                f"record {number} of source {name!r} has {value!r} as {column!r}, which is {kind}{hint}", at
            )


def _fits(value: object, kind: str) -> bool:
    types = FITTING.get(kind)
    if types is None or not isinstance(value, PLAIN):
        return True
    if isinstance(value, bool) or not isinstance(value, types):
        return isinstance(value, bool) and kind == "boolean"
    if isinstance(value, int | float) and kind in WHOLE:
        return (isinstance(value, int) or value.is_integer()) and -WHOLE[kind] <= value < WHOLE[kind]
    return True
