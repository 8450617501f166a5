"""What the streams of a dataflow under construction are made of: taps, needs, alternates, expressions.

`elastream.model.flow` has the streams themselves, `elastream.model.keyed_streams` those that are grouped.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypedDict, TypeVar

from elastream.model.errors import DataflowError
from elastream.model.graph import Alternate, Delivery, Form, OnError, Operator
from elastream.model.units import duration, memory
from elastream.model.windows import Timeout

__all__ = ["Builder", "Function", "Functions", "Needs", "Tap", "alternates_of", "expressions_of", "fields_of", "timeout"]

Function = Callable[..., Any]
Functions = Function | Sequence[Alternate] | Mapping[str, Function]
"""One function; functions by the name of the alternate; or alternates with values, costs and selectivities."""


class Needs(TypedDict, total=False):
    """Service level and resource needs of an operator: keyword arguments of the methods that add one.

    select_by: columns of the key by which a key table may choose the alternate.
    on_error: `"fail"`, `"skip"` or `"dead_letter"`: what becomes of a record on which a function raises
    (`elastream.model.operators.OnError`).
    """

    max_duration: float | str
    cores: float
    memory: float | str
    image: float | str
    waits: bool
    record_bytes: float
    select_by: str | Sequence[str]
    on_error: str


@dataclass(frozen=True, slots=True)
class Tap:
    """An operator's output that later operators attach to, with the properties of the edges to be added."""

    operator: str
    delivery: Delivery = Delivery.DUPLICATE
    durable: str | None = None
    choice: str | None = None
    value: float = 1.0
    port: int = 0


S_co = TypeVar("S_co", covariant=True)


class Builder(Protocol[S_co]):
    """A dataflow under construction, to which operators are added; each gives a stream of its output."""

    name: str

    def add(self, operator: Operator, taps: Sequence[Tap], delivery: Delivery | None = None) -> S_co:
        """Add `operator` downstream of `taps`."""
        ...

    def free_name(self, wanted: str) -> str:
        """`wanted`, with a number appended if an operator has that name already."""
        ...


def timeout(
    seconds: float | str, *, by: str = "", late: float | str = 0.0, emits: Callable[..., Any] | None = None
) -> Timeout:
    """When the state of a key ends: `seconds` after its last record, by the clock or by the timestamps in column `by`.

    late: seconds by which records may come late. emits: `(key, state) -> rows`, called once as the state ends.
    """
    return Timeout(duration(seconds), by, duration(late), emits)


def alternates_of(
    flow: Builder[Any], function: Functions, form: Form, name: str | None
) -> tuple[str, tuple[Alternate, ...]]:
    """Name of the operator and its alternates, from one function, functions by name, or `Alternate` objects."""
    if isinstance(function, Mapping):
        chosen = name or flow.free_name(next(iter(function), form.value))
        return chosen, tuple(Alternate(label, each, form) for label, each in function.items())
    if isinstance(function, Sequence):
        chosen = name or flow.free_name(function[0].name if function else form.value)
        return chosen, tuple(replace(each, form=form) if each.form is Form.NONE else each for each in function)
    label = getattr(function, "__name__", form.value)
    chosen = name or flow.free_name(form.value if label == "<lambda>" else label)
    return chosen, (Alternate(chosen, function, form),)


def expressions_of(operator: str, columns: Mapping[str, str]) -> dict[str, str]:
    """`columns` as they are kept; raises DataflowError where they are not SQL texts by the name of a column."""
    texts = isinstance(columns, Mapping) and all(isinstance(text, str) for pair in columns.items() for text in pair)
    if not (texts and columns):
        nested = isinstance(columns, Mapping) and any(isinstance(each, Mapping) for each in columns.values())
        more = (
            ": native expressions have no alternates, because Spark cannot change them in a running query: write "
            "functions, with map_arrow, or with apply behind key_by"
            if nested
            else ""
        )
        raise DataflowError(
            f"operator {operator!r}: {columns!r} is not SQL text by column name, such as {{'word': 'lower(value)'}}{more}"
        )
    return dict(columns)


def fields_of(needs: Needs) -> dict[str, Any]:
    """Fields of an operator for its `needs`. Raises DataflowError for one that there is none of."""
    for name in needs:
        if name not in Needs.__annotations__:
            raise DataflowError(f"an operator has no {name!r}; {_where(name)}")
    found: dict[str, Any] = dict(needs)
    if (longest := needs.get("max_duration")) is not None:
        found["max_duration"] = duration(longest)
    for amount in ("memory", "image"):
        if amount in found:
            found[amount] = memory(found[amount])
    if (columns := found.pop("select_by", None)) is not None:
        found["selects"] = (columns,) if isinstance(columns, str) else tuple(columns)
    if "on_error" in needs:
        found["on_error"] = _on_error(needs["on_error"])
    return found


def _where(name: str) -> str:
    """Where what operators do not take belongs."""
    if name in (each.name for each in fields(Alternate)):
        return f"it is an alternate's: [Alternate('...', function, {name}=...)]"
    return f"known: {', '.join(Needs.__annotations__)}"


def _on_error(given: str) -> OnError:
    try:
        return OnError(given)
    except ValueError:
        known = ", ".join(repr(each.value) for each in OnError)
        raise DataflowError(f"on_error is {given!r}; it is one of {known}") from None
