"""Key tables: the alternate of an operator for each key (thesis, p. 53).

A table is immutable. The composition names its version, so that a batch never mixes two and a replay uses the same. Other
keys run the composition's alternate.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Form, Operator
from elastream.dataflow.schema import columns_of
from elastream.errors import DataflowError

# Values of the columns of a key, in their order; never null.
Key: TypeAlias = tuple[Any, ...]

# Bits of Spark's whole numbers.
_WHOLE: Mapping[str, int] = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
# Python types by Spark type. Fractions have no reliable equality, and timestamps depend on the time zone: no keys.
_KINDS: Mapping[str, type] = {"string": str, "boolean": bool, "date": datetime.date}
# Spark types of columns that a key table can use.
KEYS = (*_KINDS, *_WHOLE)
ANY = "text, a whole number, a truth value or a date"


@dataclass(frozen=True, slots=True)
class Selection:
    """Requirements on the key tables of an operator. A dict of it is JSON-ready.

    Attributes:
        columns: Spark type of each key column; None if only Spark knows it.
    """

    dataflow: str
    operator: str
    columns: Mapping[str, str | None]
    alternates: tuple[str, ...]


@dataclass(frozen=True)
class KeyTable:
    """Alternate of an operator by key.

    Attributes:
        columns: Columns of the key.
        rows: Alternate by key.
    """

    dataflow: str
    operator: str
    columns: tuple[str, ...]
    rows: Mapping[Key, str] = field(repr=False)

    def __post_init__(self) -> None:
        at = f"the key table of operator {self.operator!r}"
        if isinstance(self.columns, str):
            raise DataflowError(f"{at} has the columns {self.columns!r}: list them, as ({self.columns!r},)")
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", MappingProxyType(dict(self.rows)))
        if (single := next((key for key in self.rows if not isinstance(key, tuple)), None)) is not None:
            raise DataflowError(f"{at} has the key {single!r}: write it as the tuple ({single!r},)")

    def __len__(self) -> int:
        return len(self.rows)

    def alternate(self, key: Key) -> str | None:
        """Return the alternate for `key`; None if the composition decides."""
        return self.rows.get(key)

    def shares(self, keys: Iterable[Key], otherwise: str) -> Mapping[str, float]:
        """Return the share of `keys` for each alternate; `otherwise` runs keys without a row."""
        counts = Counter(self.rows.get(key, otherwise) for key in keys)
        total = counts.total()
        return {name: count / total for name, count in counts.items()}

    def check(self, selection: Selection) -> "KeyTable":
        if self.dataflow != selection.dataflow:
            raise DataflowError(f"the key table is of dataflow {self.dataflow!r}, this run is of {selection.dataflow!r}")
        at = f"the key table of operator {self.operator!r}"
        if self.operator != selection.operator:
            raise DataflowError(f"{at} was given for operator {selection.operator!r}")
        if self.columns != tuple(selection.columns):
            raise DataflowError(
                f"{at} has the key {', '.join(self.columns) or 'of no columns'}; the operator selects by "
                f"{', '.join(selection.columns)}"
            )
        alternates = set(selection.alternates)
        for key, alternate in self.rows.items():
            if alternate not in alternates:
                raise DataflowError(
                    f"{at} names the alternate {alternate!r} for {_shown(key)}; it has: {', '.join(selection.alternates)}"
                )
            if len(key) != len(self.columns):
                raise DataflowError(f"{at} has the key {_shown(key)} for the columns {', '.join(self.columns)}")
        for number, name in enumerate(self.columns):
            kind = selection.columns[name]
            wrong = next((key for key in self.rows if not _is_of(kind, key[number])), None)
            if wrong is not None:
                raise DataflowError(f"{at} has the key {_shown(wrong)}: column {name!r} is {kind or ANY}")
            if len({type(key[number]) for key in self.rows}) > 1:
                raise DataflowError(f"{at} has keys of several types in column {name!r}")
        return self


class KeyTables(Protocol):
    """Store of a run's key tables. Versions of an operator count from 1; version 0 means no table."""

    def append(self, table: KeyTable, who: str = "") -> int:
        """Store `table`, by the author `who`, as the next version of its operator; return the version."""
        ...

    def newest(self) -> Mapping[str, int]: ...

    def find(self, operator: str, version: int) -> KeyTable:
        """Return the table of a version, or raise DataflowError."""
        ...


class KeyTableBook:
    """Key tables in memory, for simulated runs and tests."""

    def __init__(self, *tables: KeyTable) -> None:
        self._tables: dict[str, list[KeyTable]] = {}
        for table in tables:
            self.append(table)

    def append(self, table: KeyTable, who: str = "") -> int:
        versions = self._tables.setdefault(table.operator, [])
        versions.append(table)
        return len(versions)

    def newest(self) -> Mapping[str, int]:
        return {operator: len(versions) for operator, versions in self._tables.items()}

    def find(self, operator: str, version: int) -> KeyTable:
        versions = self._tables.get(operator, [])
        if not 1 <= version <= len(versions):
            raise DataflowError(f"operator {operator!r} has no key table of version {version}")
        return versions[version - 1]


def selection_of(graph: Graph, name: str) -> Selection:
    """Return the requirements on key tables of the operator `name`, or raise DataflowError."""
    operator = graph.operator(name)
    if not operator.selects:
        raise DataflowError(f"operator {name!r} does not choose its alternate by key: declare `select_by` for it")
    columns = key_columns(graph, operator)
    for column, kind in columns.items():
        if kind is not None and _plain(kind) not in KEYS:
            raise DataflowError(f"operator {name!r} selects by {column!r}, a column of type {kind}, which cannot be a key")
    return Selection(graph.name, name, columns, tuple(alternate.name for alternate in operator.alternates))


def selections_of(graph: Graph) -> Mapping[str, Selection]:
    return {operator.name: selection_of(graph, operator.name) for operator in graph.operators if operator.selects}


def key_columns(graph: Graph, operator: Operator) -> dict[str, str | None]:
    """Return the types of the key columns of `operator`; None for types that only Spark knows."""
    types = _arriving(graph, operator) if operator.selects else {}
    return {column: types.get(column) for column in operator.selects}


def _arriving(graph: Graph, operator: Operator) -> Mapping[str, str]:
    types: dict[str, str] = {}
    for edge in graph.inputs[operator.name]:
        types |= _emitted(graph, graph.operator(edge.source))
    return types


def _emitted(graph: Graph, operator: Operator) -> Mapping[str, str]:
    if operator.returns:
        return columns_of(operator.returns, f"what operator {operator.name!r} returns")
    forms = {alternate.form for alternate in operator.alternates}
    if forms <= {Form.FILTER, Form.SWITCH, Form.PORT}:
        return _arriving(graph, operator)
    if forms == {Form.AGGREGATE}:
        types = _arriving(graph, operator)
        return {name: types[name] for name in operator.key if name in types}
    return {}


def _plain(kind: str) -> str:
    return kind.partition("(")[0].partition(" ")[0]


def _is_of(kind: str | None, value: Any) -> bool:
    if kind is None:
        return isinstance(value, str | int | datetime.date) and not isinstance(value, datetime.datetime)
    name = _plain(kind)
    if (bits := _WHOLE.get(name)) is not None:
        return isinstance(value, int) and not isinstance(value, bool) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    if name == "date" and isinstance(value, datetime.datetime):
        return False
    return isinstance(value, _KINDS[name])


def _shown(key: Key) -> str:
    return ", ".join(map(repr, key)) or "no value"
