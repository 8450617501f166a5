"""Looks into column expressions, SQL text that Spark evaluates, before there is a JVM: do their columns exist?

What can only be known of types is left to Spark. sqlglot parses Spark's dialect; an expression that it cannot read is none
that Spark can.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from elastream.model.errors import DataflowError

__all__ = ["check_expressions"]

_UNITS = {
    part + plural
    for part in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
    for plural in ("", "s")
}
"""Words that functions of time take where others take a column: `timestampdiff(HOUR, a, b)`."""


def check_expressions(
    operator: str,
    expressions: Mapping[str, str],
    columns: Iterable[str],
    *,
    key: Iterable[str] | None = None,
) -> None:
    """Raise DataflowError for an expression over `columns` that cannot be read, or names a column that is not there.

    key: of an aggregation, whose expressions must aggregate what is no part of the key; None: expressions of single
    records, which must not.
    """
    known, keys = {name.lower() for name in columns}, {name.lower() for name in key or ()}
    field = "select" if key is None else "aggregate"
    for name, text in expressions.items():
        at = ("operators", operator, field, name)
        where = f"operator {operator!r}: {text!r}, the expression of {name!r},"
        used, aggregates, unsure, wrong = _read(text)
        if wrong:
            raise DataflowError(f"{where} cannot be read: {wrong}", at)
        if missing := [column for column in used if column.lower() not in known and not column.startswith("_metadata")]:
            has = ", ".join(columns)
            raise DataflowError(
                f"{where} names {missing[0]!r}, a column that its records do not have (they have: {has})", at
            )
        if key is None and aggregates:
            raise DataflowError(f"{where} aggregates records: use 'key_by' with 'aggregate' for it", at)
        if key is not None and not aggregates and not unsure and any(column.lower() not in keys for column in used):
            raise DataflowError(f"{where} aggregates nothing: write it as 'max({text})', say, or add it to the key", at)


@lru_cache(maxsize=1024)
def _read(text: str) -> tuple[tuple[str, ...], bool, bool, str]:
    """(columns named; whether it aggregates; whether a function in it is unknown here; why it cannot be read, or "")."""
    import sqlglot
    from sqlglot import exp

    try:
        tree: Any = sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        return (), False, False, _plain(error)
    if not isinstance(tree, exp.Expression) or isinstance(tree, exp.Command | exp.DDL | exp.DML):
        return (), False, False, "it is no expression"
    if tree.find(exp.Query):
        return (), False, True, ""  # a query in it has columns of its own
    windowed = {id(node) for window in tree.find_all(exp.Window) for node in window.walk()}
    aggregates = any(id(node) not in windowed for node in tree.find_all(exp.AggFunc))
    used = [_first(column) for column in tree.find_all(exp.Column)]
    used = [column for column in used if column.lower() not in _UNITS]
    return tuple(dict.fromkeys(used)), aggregates, tree.find(exp.Anonymous, exp.Any) is not None, ""


def _first(column: Any) -> str:
    """The column of a path such as `a.b.c`."""
    return str(column.parts[0].name)


def _plain(error: Exception) -> str:
    """The first sentence of a parser's message, without the escape codes that mark the place."""
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip().splitlines()
    said = re.sub(r"<class '[\w.]*\.(\w+)'>", r"\1", text[0]) if text else "it is empty"
    said = re.sub(r"\.? Line \d+, Col: (\d+)\.?", r" at character \1", said)
    return said[:1].lower() + said[1:]
