"""A guard file: the signals and the guards of a dataflow, as YAML beside it and never inside it.

    dataflow: demand_response
    signals:
      forecast_error: number
      peak_alert: {kind: truth, stale: 5 min}
    guards:
      forecast:
        arima: {when: "avg(forecast_error, '5m') < 0.3", for: 2m}
        tree: {on: forecast_error >= 0.3, off: forecast_error < 0.25, value: 0.75}

Every error names file, line and, inside an expression, column.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from ruamel.yaml.scalarstring import FoldedScalarString, LiteralScalarString

from elastream.documents.located import Loc, Located, read_yaml
from elastream.documents.schema import Duration, Keys
from elastream.documents.user_code import near
from elastream.guards.elements import Element, GuardSet, guard_of
from elastream.guards.language import LONGEST_WINDOW, GuardError, Language
from elastream.guards.program import Program, program_of
from elastream.guards.proving import not_exclusive
from elastream.guards.system import system_signals
from elastream.guards.tree import Node, Read, nodes
from elastream.model.errors import DataflowError
from elastream.model.graph import Graph
from elastream.model.signals import Signal, SignalKind

__all__ = ["GuardDocument", "load_guards"]

MOST_GUARDS = 100_000
"""Guards of a file: ten times as many as a round is measured with."""


def _kind_alone(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class SignalKeys(Keys):
    """A signal: its type, and after how long a value counts as unknown."""

    kind: Literal["number", "truth", "text"] = "number"
    stale: Annotated[Duration, Field(gt=0)] = math.inf


class GuardKeys(Keys):
    """The guard of one alternate: `when`, or `on` and `off`; a value; or both."""

    when: str | None = None
    on: str | None = None
    off: str | None = None
    for_: Annotated[Duration, Field(ge=0, le=LONGEST_WINDOW, alias="for")] = 0.0
    value: float | str | None = None

    @model_validator(mode="after")
    def _two_patterns(self) -> "GuardKeys":
        if self.when is not None and (self.on is not None or self.off is not None):
            raise ValueError("a guard has 'when', or 'on' and 'off', not both")
        if (self.on is None) != (self.off is None):
            raise ValueError(f"{'off' if self.off is None else 'on'!r} is missing: bounds of their own need both")
        if "for_" in self.model_fields_set and self.when is None and self.on is None:
            raise ValueError("'for' needs a condition: 'when', or 'on' and 'off'")
        if isinstance(self.value, float) and not 0 <= self.value <= 1:
            raise ValueError(f"the value {self.value:g} is outside [0, 1]")
        return self


class GuardFileKeys(Keys):
    """A whole guard file."""

    dataflow: str | None = None
    signals: dict[str, Annotated[SignalKeys, BeforeValidator(_kind_alone)]] = Field(default_factory=dict)
    guards: dict[str, Annotated[dict[str, GuardKeys], Field(min_length=1)]] = Field(min_length=1)


@dataclass(frozen=True)
class GuardDocument:
    """A guard file that was checked. signals: declared ones and those of the system; program: compiled."""

    path: Path
    signals: tuple[Signal, ...]
    guards: GuardSet
    program: Program


def load_guards(path: Path, graph: Graph | None = None) -> GuardDocument:
    """Read, check and compile the guard file `path`, against `graph` where that is given.

    Raises InputError for an unreadable file, DataflowError with file, line and column for everything else.
    """
    file = read_yaml(path, "a guard file is a mapping with the keys 'signals' and 'guards'")
    keys: GuardFileKeys = file.validate(GuardFileKeys)
    if graph is not None and keys.dataflow not in (None, graph.name):
        raise file.error(("dataflow",), f"these are guards of {keys.dataflow!r}; the dataflow is {graph.name!r}")
    if (count := sum(map(len, keys.guards.values()))) > MOST_GUARDS:
        raise file.error(("guards",), f"{count:,} guards are more than {MOST_GUARDS:,}")
    system = tuple(system_signals(graph))
    taken = {signal.name for signal in system}
    for name in keys.signals:
        if name in taken:
            raise file.error(("signals", name), f"{name!r} is a signal of the system")
    declared = tuple(Signal(name, SignalKind(each.kind), each.stale) for name, each in keys.signals.items())
    for signal in declared:
        with file.at(("signals", signal.name)):
            Language([signal])
    language = Language([*system, *declared])
    elements = tuple(_element(file, language, name, each, graph) for name, each in keys.guards.items())
    used = _read_by(elements)
    signals = tuple(signal for signal in (*system, *declared) if signal.name in used or signal in declared)
    guards = GuardSet(elements)
    return GuardDocument(path, signals, guards, program_of(guards, signals))


def _element(file: Located, language: Language, name: str, keys: Mapping[str, GuardKeys], graph: Graph | None) -> Element:
    loc: Loc = ("guards", name)
    if graph is not None:
        _check_names(file, loc, keys, graph)
    guards = []
    for alternate, each in keys.items():
        texts = {"when": each.when, "on": each.on, "off": each.off, "value": each.value}
        trees = {
            field: _checked(
                file, (*loc, alternate, field), language.number if field == "value" else language.condition, text
            )
            for field, text in texts.items()
            if isinstance(text, str)
        }
        fixed = each.value if isinstance(each.value, float) else 1.0
        guards.append(
            guard_of(
                alternate,
                when=trees.get("when"),
                on=trees.get("on"),
                off=trees.get("off"),
                for_=each.for_,
                value=trees.get("value", fixed),
            )
        )
    if all(each.value is None for each in keys.values()) and (problem := not_exclusive(guards)):
        raise file.error(loc, problem)
    return Element(name, tuple(guards))


def _check_names(file: Located, loc: Loc, keys: Mapping[str, Any], graph: Graph) -> None:
    """Refuse an element that the dataflow does not have, and alternates that it has not or that have no guard."""
    name = str(loc[-1])
    elements = {o.name: tuple(a.name for a in o.alternates) for o in graph.operators if len(o.alternates) > 1}
    for choice, targets in graph.choices.items():
        if choice in elements:
            raise file.error(loc, f"{name!r} is both an operator with alternates and a choice: rename one")
        elements[choice] = targets
    if name not in elements:
        plain = name in graph.by_name
        raise file.error(
            loc,
            f"operator {name!r} has one alternate: there is nothing to guard" if plain
            else f"dataflow {graph.name!r} has no operator or choice {name!r}{near(name, elements)}",
        )  # fmt: skip
    for alternate in keys:
        if alternate not in elements[name]:
            hint = near(alternate, elements[name])
            raise file.error((*loc, alternate), f"{name!r} has no alternate or branch {alternate!r}{hint}")


def _checked(file: Located, loc: Loc, check: Callable[[str], Node], text: str) -> Node:
    """`check(text)`, an error in it with file, line and column."""
    try:
        return check(text)
    except GuardError as error:
        line, column = _position(file, loc, error.line, error.column)
        raise DataflowError(f"{file.path}:{line}:{column}: {'.'.join(map(str, loc))}: {error}") from None


def _position(file: Located, loc: Loc, line: int, column: int) -> tuple[int, int]:
    """Line and column in the file, from 1, of a place in the text at `loc`."""
    node: Any = file.data
    for step in loc[:-1]:
        node = node[step]
    first, start = node.lc.value(loc[-1])
    rows = file.path.read_text(encoding="utf-8").splitlines()
    value = node[loc[-1]]
    if isinstance(value, LiteralScalarString | FoldedScalarString):
        block = rows[first + 1 :]
        indent = next((len(row) - len(row.lstrip()) for row in block if row.strip()), 0)
        if isinstance(value, LiteralScalarString):
            return first + 1 + line, indent + column
        return _folded(rows, first + 1, indent, column)
    if rows[first][start : start + 1] in ("'", '"'):
        start += 1
    return _folded(rows, first, start, column)


def _folded(rows: list[str], row: int, start: int, column: int) -> tuple[int, int]:
    """Row and column of character `column` of a text from `start` of `row` on whose line breaks became spaces."""
    while column > (length := len(rows[row].rstrip()) - start) + 1 and row + 1 < len(rows):
        column -= length + 1
        row += 1
        start = len(rows[row]) - len(rows[row].lstrip())
    return row + 1, start + column


def _read_by(elements: tuple[Element, ...]) -> set[str]:
    return {
        node.signal
        for element in elements
        for guard in element.guards
        for tree in (guard.activate, guard.deactivate, guard.value)
        if tree is not None and not isinstance(tree, float | int)
        for node in nodes(tree)
        if isinstance(node, Read)
    }
