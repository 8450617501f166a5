"""Guard file: signals and guards of a dataflow, as YAML.

    dataflow: demand_response
    signals:
      forecast_error: number
      peak_alert: {kind: truth, stale: 5 min, from: {file: alert.txt, every: 1s}}
    guards:
      forecast:
        arima: {when: "avg(forecast_error, '5m') < 0.3", for: 2m}
        tree: {on: forecast_error >= 0.3, off: forecast_error < 0.25, value: 0.75}

Every error names file, line and column.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from ruamel.yaml.scalarstring import FoldedScalarString, LiteralScalarString

from elastream.core.wording import counted
from elastream.dataflow.graph import Graph
from elastream.dataflow.signals import Feed, Signal, SignalKind
from elastream.documents.located import Loc, Located, parse_yaml, text_of
from elastream.documents.schema import Duration, Keys
from elastream.documents.user_code import near
from elastream.errors import DataflowError
from elastream.guards.evaluator import Element, Guard, held_for
from elastream.guards.interpreter import not_exclusive
from elastream.guards.language import MAX_WINDOW_S, GuardError, Language, check_name, is_name
from elastream.guards.subject import Subject, system_signals
from elastream.guards.tree import Node, signals_of
from elastream.units import format_duration

MAX_GUARDS = 100_000  # of a file: aliases of YAML write many in few words
FEEDS = ("file", "http", "kafka")
SERVERS = "127.0.0.1:9092"
# default of `stale` for a polled signal, in polls without success
STALE_POLLS = 3
FORM = "a guard file is a mapping with the keys 'signals' and 'guards'"


def _kind_alone(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class FeedKeys(Keys):
    file: str | None = None
    http: str | None = None
    kafka: str | None = None
    servers: str | None = None
    every: Annotated[Duration, Field(gt=0)] = 1.0
    field: str = ""

    @model_validator(mode="after")
    def _one_place(self) -> "FeedKeys":
        kinds = [kind for kind in FEEDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"a signal comes from one of {', '.join(FEEDS)}, and {len(kinds)} are given")
        if self.servers is not None and self.kafka is None:
            raise ValueError("'servers' goes with 'kafka' alone")
        return self

    def built(self, folder: Path) -> Feed:
        kind = next(kind for kind in FEEDS if getattr(self, kind) is not None)
        place = str(folder / self.file) if self.file is not None else str(getattr(self, kind))
        return Feed(kind, place, self.every, self.field, (self.servers or SERVERS) if kind == "kafka" else "")


class SignalKeys(Keys):
    """Signal: type, time until it is unknown, and source if external."""

    kind: Literal["number", "truth", "text"] = "number"
    stale: Annotated[Duration, Field(gt=0)] | None = None
    from_: FeedKeys | None = Field(None, alias="from")

    def built(self, name: str, folder: Path) -> Signal:
        feed = None if self.from_ is None else self.from_.built(folder)
        # A topic's value stands until the next message: how often one comes is not known here.
        lasts = math.inf if feed is None or feed.kind == "kafka" else STALE_POLLS * feed.every
        return Signal(name, SignalKind(self.kind), lasts if self.stale is None else self.stale, feed)


class GuardKeys(Keys):
    """Guard of one alternate: `when`, or `on` and `off`; a value; or both."""

    when: str | None = None
    on: str | None = None
    off: str | None = None
    for_: Annotated[Duration, Field(ge=0, le=MAX_WINDOW_S, alias="for")] = 0.0
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

    @property
    def text(self) -> str:
        conditions = {"when": self.when, "on": self.on, "off": self.off}
        text = ", ".join(f"{key} {' '.join(each.split())}" for key, each in conditions.items() if each is not None)
        return f"{text}, for {format_duration(self.for_)}" if text and self.for_ else text or "always"


class GuardFileKeys(Keys):
    dataflow: str | None = None
    signals: dict[str, Annotated[SignalKeys, BeforeValidator(_kind_alone)]] = Field(default_factory=dict)
    guards: dict[str, Annotated[dict[str, GuardKeys], Field(min_length=1)]] = Field(min_length=1)


@dataclass(frozen=True)
class GuardDocument:
    path: Path
    signals: tuple[Signal, ...]
    system: tuple[str, ...]  # names of the system's signals
    elements: tuple[Element, ...]
    text: str = ""

    @property
    def size(self) -> str:
        guards = sum(len(element.guards) for element in self.elements)
        return f"{counted(guards, 'guard')} of {counted(len(self.elements), 'element')}"


def load_guards(path: Path, about: Graph | Subject | None = None) -> GuardDocument:
    """Read and check a guard file, also against `about` if given.

    Raises:
        InputError: The file is unreadable.
        DataflowError: Anything else, with file, line and column.
    """
    return parse_guards(text_of(path), path, about)


def parse_guards(text: str, path: Path, about: Graph | Subject | None = None) -> GuardDocument:
    """Check a guard file's text; `path` serves errors and relative paths."""
    subject = Subject.of(about) if isinstance(about, Graph) else about
    file = parse_yaml(text, path, FORM, columns=True)
    _check_size(file)
    keys: GuardFileKeys = file.validate(GuardFileKeys)
    if subject is not None and keys.dataflow not in (None, subject.flow):
        raise file.error(("dataflow",), f"these are guards of {keys.dataflow!r}; the dataflow is {subject.flow!r}")
    domain = {} if subject is None else {name: each for name, each in subject.signals.items() if is_name(name)}
    system = {signal.name: signal for signal in system_signals(subject) if signal.name not in domain}
    declared = _declared(file, keys, domain, system)
    signals = {**system, **domain, **declared}
    language = Language(signals.values())
    elements = tuple(_element(file, language, name, each, subject) for name, each in keys.guards.items())
    guards = [guard for element in elements for guard in element.guards]
    used = {name for guard in guards for name in signals_of(guard.activate, guard.deactivate, guard.value)}
    read = tuple(signal for signal in signals.values() if signal.name in used or signal.name in declared)
    return GuardDocument(path, read, tuple(signal.name for signal in read if signal.name in system), elements, text)


def _check_size(file: Located) -> None:
    written = file.data.get("guards")
    each = [len(of) for of in written.values() if isinstance(of, Mapping)] if isinstance(written, Mapping) else []
    if (count := sum(each)) > MAX_GUARDS:
        raise file.error(("guards",), f"{count:,} guards are more than {MAX_GUARDS:,}")


def _declared(
    file: Located, keys: GuardFileKeys, domain: Mapping[str, Signal], system: Mapping[str, Signal]
) -> dict[str, Signal]:
    """Return the file's signals; those of the dataflow may only change `stale`."""
    declared = {}
    for name, each in keys.signals.items():
        signal = each.built(name, file.path.parent)
        if name in system:
            raise file.error(("signals", name), f"{name!r} is a signal of the system")
        if name in domain and signal.feed is not None:
            raise file.error(("signals", name, "from"), f"{name!r} is a signal of the dataflow: it comes from there")
        if name in domain and signal.kind is not domain[name].kind:
            raise file.error(("signals", name), f"{name!r} is a {domain[name].kind} in the dataflow, not a {signal.kind}")
        with file.at(("signals", name)):
            check_name(name)
        declared[name] = signal
    return declared


def _element(file: Located, language: Language, name: str, keys: Mapping[str, GuardKeys], about: Subject | None) -> Element:
    loc: Loc = ("guards", name)
    if about is not None:
        _check_names(file, loc, keys, about)
    values = {} if about is None else about.elements[name]
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
        fixed = each.value if isinstance(each.value, float) else values.get(alternate, 1.0)
        begins = trees.get("when") or trees.get("on")
        activate = None if begins is None else held_for(begins, each.for_)
        guards.append(Guard(alternate, activate, trees.get("off"), trees.get("value", fixed), each.text))
    plain = all(each.value is None and each.off is None for each in keys.values())
    if plain and (problem := not_exclusive({guard.alternate: guard.activate for guard in guards})):
        raise file.error(loc, problem)
    return Element(name, tuple(guards))


def _check_names(file: Located, loc: Loc, keys: Mapping[str, Any], about: Subject) -> None:
    name, elements = str(loc[-1]), about.elements
    if name in about.both:
        raise file.error(loc, f"{name!r} is both an operator with alternates and a choice: rename one")
    if name not in elements:
        plain = name in about.operators
        raise file.error(
            loc,
            f"operator {name!r} has one alternate: there is nothing to guard" if plain
            else f"dataflow {about.flow!r} has no operator or choice {name!r}{near(name, elements)}",
        )  # fmt: skip
    for alternate in keys:
        if alternate not in elements[name]:
            hint = near(alternate, elements[name])
            raise file.error((*loc, alternate), f"{name!r} has no alternate or branch {alternate!r}{hint}")


def _checked(file: Located, loc: Loc, check: Callable[[str], Node], text: str) -> Node:
    try:
        return check(text)
    except GuardError as error:
        line, column = _position(file, loc, error.line, error.column)
        raise DataflowError(f"{file.path}:{line}:{column}: {'.'.join(map(str, loc))}: {error}") from None


def _position(file: Located, loc: Loc, line: int, column: int) -> tuple[int, int]:
    node: Any = file.data
    for step in loc[:-1]:
        node = node[step]
    value = node[loc[-1]]
    try:
        first, start = node.lc.value(loc[-1])
    except (KeyError, TypeError):  # merged from another mapping: use the nearest known position
        return file.place(loc)
    rows = file.text.splitlines()
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
    while column > (length := len(rows[row].rstrip()) - start) + 1 and row + 1 < len(rows):
        column -= length + 1
        row += 1
        start = len(rows[row]) - len(rows[row].lstrip())
    return row + 1, start + column
