"""The columns that a keyed operator needs, and those that it emits: keys, windows, joins, zips, states.

Raises DataflowError, with the field at fault, for what its records do not have.
"""

from collections.abc import Mapping, Sequence

from elastream.model.errors import DataflowError, about
from elastream.model.graph import Form, Operator
from elastream.model.key_table import KEYS
from elastream.model.schema import Columns, columns_of, kind_of
from elastream.model.sql import check_expressions
from elastream.model.windows import Pairs, WindowKind

__all__ = ["check_column", "grouped"]

TIMES = ("timestamp", "timestamp_ntz")
BOUNDS = {"window_start": "timestamp", "window_end": "timestamp"}
"""What an aggregate in a window of time emits behind its key."""


def grouped(operator: Operator, arriving: Sequence[Columns]) -> Columns:
    """Columns of what the keyed `operator` emits, of those that arrive at each of its ports."""
    at = ("operators", operator.name)
    forms = {alternate.form for alternate in operator.alternates}
    for side, columns in enumerate(arriving):
        _check_arriving(operator, _side(side, len(arriving)), columns, forms)
    if forms == {Form.ZIP}:
        return _zipped(operator, arriving)
    if forms == {Form.JOIN}:
        _check_joined(operator, arriving)
        pairs = operator.alternates[0].function
        if isinstance(pairs, Pairs) and not operator.returns:
            with about(*at, "join"):
                return pairs.columns(*arriving)
    if forms == {Form.STATE}:
        _check_states(operator)
    if forms <= {Form.STATE, Form.WINDOW, Form.JOIN} and len(forms) == 1:
        return columns_of(operator.returns, f"what operator {operator.name!r} returns", (*at, "returns"))
    if forms != {Form.AGGREGATE}:
        raise DataflowError(f"keyed operator {operator.name!r} cannot run as {' and '.join(sorted(forms))}", at)
    if len(operator.alternates) > 1:
        raise DataflowError(
            f"operator {operator.name!r} has alternates that are native aggregates, which Spark cannot change in a running "
            "query: write them as functions with state, with apply",
            (*at, "alternates"),
        )
    return _aggregated(operator, arriving[0])


def check_column(operator: str, columns: Columns, name: str, kinds: Sequence[str], what: str, *field: str) -> None:
    """Raise DataflowError unless `columns` have `name`, of one of `kinds` where its type is known; empty: of any."""
    at = ("operators", operator, *field)
    if name not in columns:
        raise DataflowError(f"{what} {name!r}, a column that its records do not have (they have: {', '.join(columns)})", at)
    if kinds and (kind := kind_of(columns[name])) is not None and kind.partition("(")[0].partition(" ")[0] not in kinds:
        raise DataflowError(f"{what} {name!r}, which is {kind} and must be {_or(kinds)}", at)


def _or(kinds: Sequence[str]) -> str:
    return f"{', '.join(kinds[:-1])} or {kinds[-1]}" if len(kinds) > 1 else kinds[0]


def _side(number: int, sides: int) -> str:
    return "" if sides == 1 else f" ({('left', 'right')[number]})" if sides == 2 else f" (input {number + 1})"


def _check_arriving(operator: Operator, side: str, columns: Columns, forms: set[Form]) -> None:
    name, window, timeout = operator.name, operator.window, operator.timeout
    field = "on" if Form.JOIN in forms else "group_by" if window is not None else "key_by"
    for column in operator.key:
        check_column(name, columns, column, (), f"operator {name!r}{side} is keyed by", field)
    for column in operator.selects:
        check_column(name, columns, column, KEYS, f"operator {name!r} selects by", "select_by")
    if window is not None and window.by:
        kinds = TIMES if window.kind is WindowKind.TIME else ()
        check_column(name, columns, window.by, kinds, f"the window of operator {name!r}{side} goes by", "window", "by")
    if window is not None and window.landmark is not None:
        what = f"the window of operator {name!r}{side} ends at"
        check_column(name, columns, window.landmark, ("boolean",), what, "window", "landmark")
    if timeout is not None and timeout.by:
        check_column(name, columns, timeout.by, TIMES, f"the timeout of operator {name!r}{side} goes by", "timeout", "by")


def _check_joined(operator: Operator, arriving: Sequence[Columns]) -> None:
    left, right = arriving
    for column in operator.key:
        a, b = kind_of(left[column]), kind_of(right[column])
        if a and b and a != b:
            raise DataflowError(
                f"operator {operator.name!r} joins on {column!r}, which is {a} on the left and {b} on the right: give both "
                "one type before it",
                ("operators", operator.name, "on"),
            )


def _zipped(operator: Operator, arriving: Sequence[Columns]) -> Columns:
    together: dict[str, str | None] = {}
    for columns in arriving:
        if twice := [name for name in columns if name in together]:
            raise DataflowError(
                f"two inputs of {operator.name!r} have a column {twice[0]!r}: rename one before it, with select or map",
                ("operators", operator.name, "zip"),
            )
        together.update(columns)
    return together


def _check_states(operator: Operator) -> None:
    at = ("operators", operator.name)
    for alternate in operator.alternates if operator.own_state else operator.alternates[:1]:
        of = f"{alternate.name!r} of operator {operator.name!r}" if operator.own_state else f"operator {operator.name!r}"
        field = ("alternates", alternate.name, "state") if alternate.state else ("state",)
        columns_of(operator.state_of(alternate) or "", f"the state of {of}", (*at, *field))


def _aggregated(operator: Operator, arriving: Columns) -> Columns:
    aggregates = operator.alternates[0].function
    assert isinstance(aggregates, Mapping)
    check_expressions(operator.name, aggregates, arriving, key=operator.key)
    bounds: Columns = {} if operator.window is None else BOUNDS
    for name in bounds:
        if name in operator.key or name in aggregates:
            raise DataflowError(
                f"operator {operator.name!r} emits {name!r} for its windows: call another column so",
                ("operators", operator.name, "aggregate"),
            )
    return {**{name: arriving[name] for name in operator.key}, **bounds, **dict.fromkeys(aggregates)}
