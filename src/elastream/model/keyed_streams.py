"""Streams whose records are grouped: by key, for functions with state, and by key and window.

`group_by` and `join` are defined on windows only (thesis, p. 42); `key_by` groups without one, for functions that keep a
state of their own and say themselves what they emit and when.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, Unpack

from elastream.model.building import Builder, Functions, Needs, Tap, alternates_of, expressions_of, fields_of
from elastream.model.errors import DataflowError
from elastream.model.graph import Alternate, Delivery, Form, Kind, Operator
from elastream.model.units import duration
from elastream.model.windows import Pairs, Timeout, Window

__all__ = ["KeyedStream", "WindowedGroups", "WindowedStream"]

S = TypeVar("S")


class _Tapped(Protocol):
    @property
    def taps(self) -> tuple[Tap, ...]: ...


class _Groups(Generic[S]):
    """Records grouped by `key`, and by window if there is one."""

    def __init__(self, flow: Builder[S], taps: tuple[Tap, ...], key: tuple[str, ...], window: Window | None = None) -> None:
        self._flow, self._taps, self._key, self._window = flow, taps, key, window

    def count(
        self, *, name: str = "count", cost: float | None = None, selectivity: float | None = None, **needs: Unpack[Needs]
    ) -> S:
        """Add a native Spark count of records per key, in a column `count`. cost, selectivity: as of an `Alternate`."""
        return self.aggregate({"count": "count(*)"}, name=name, cost=cost, selectivity=selectivity, **needs)

    def aggregate(
        self,
        columns: Mapping[str, str],
        *,
        name: str = "aggregate",
        cost: float | None = None,
        selectivity: float | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add native Spark aggregates, SQL text by name of the new column: `aggregate({"total": "sum(n)"})`.

        In windows of time the rows have `window_start` and `window_end` behind the key. cost, selectivity: as of an
        `Alternate`, which an aggregate is not.
        """
        chosen = self._flow.free_name(name)
        made = Alternate(chosen, expressions_of(chosen, columns), Form.AGGREGATE, cost=cost, selectivity=selectivity)
        return self._keyed(chosen, (made,), needs)

    def _keyed(self, name: str, alternates: tuple[Alternate, ...], needs: Needs, **fields: Any) -> S:
        operator = Operator(name, Kind.KEYED, alternates, key=self._key, window=self._window, **fields, **fields_of(needs))
        return self._flow.add(operator, self._taps, Delivery.KEYED)


class KeyedStream(_Groups[S]):
    """Records grouped by key, to which operators with state are attached."""

    def apply(
        self,
        function: Functions,
        *,
        returns: str,
        state: str | Mapping[str, str],
        own_state: bool = False,
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add a function with state: `(key, rows, state) -> (rows, state)`, or several as alternates.

        key: a tuple. rows: a pandas DataFrame of this micro-batch's records of the key. state: a tuple in the schema
        `state`, None at first. It returns a DataFrame in the schema `returns` and the new state.

        Alternates share one state, whichever runs; with `own_state`, or with a schema for each by name, each has its own,
        which stays as it was left while another runs. timeout: how long after its last record the state of a key ends, or
        `elastream.timeout(...)`; None: never.
        """
        chosen, alternates = alternates_of(self._flow, function, Form.STATE, name)
        schemas = {} if isinstance(state, str) else dict(state)
        if unknown := [each for each in schemas if each not in {alternate.name for alternate in alternates}]:
            raise DataflowError(
                f"operator {chosen!r} has no alternate {unknown[0]!r} to have a state (it has: "
                f"{', '.join(alternate.name for alternate in alternates)})"
            )
        alternates = tuple(replace(each, state=schemas.get(each.name, each.state)) for each in alternates)
        fields: dict[str, Any] = {"own_state": own_state or bool(schemas) or any(each.state for each in alternates)}
        fields["state"] = state if isinstance(state, str) else None
        return self._keyed(chosen, alternates, needs, returns=returns, timeout=_timeout(timeout), **fields)


class WindowedGroups(_Groups[S]):
    """Records grouped by key and window."""

    def apply(
        self,
        function: Functions,
        *,
        returns: str,
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Add a function `(key, rows) -> rows`, or several as alternates, called once for each complete window of a key.

        rows: a pandas DataFrame of its records. It returns one in the schema `returns`. timeout: after how long without a
        record of its key an incomplete window of count or landmark is emitted as it is; None: never.
        """
        chosen, alternates = alternates_of(self._flow, function, Form.WINDOW, name)
        return self._keyed(chosen, alternates, needs, returns=returns, timeout=_timeout(timeout))


class WindowedStream(Generic[S]):
    """Records in windows, still to be grouped or joined: `stream.window(seconds="30s", by="time").group_by("customer")`."""

    def __init__(self, flow: Builder[S], taps: tuple[Tap, ...], window: Window) -> None:
        self._flow, self._taps, self._window = flow, taps, window

    def group_by(self, *columns: str) -> WindowedGroups[S]:
        """Group the records of a window by key."""
        return WindowedGroups(self._flow, self._taps, columns, self._window)

    def join(
        self,
        other: _Tapped,
        on: str | Sequence[str],
        function: Functions | None = None,
        *,
        returns: str = "",
        timeout: float | str | Timeout | None = None,
        name: str | None = None,
        **needs: Unpack[Needs],
    ) -> S:
        """Join with the stream `other`, window by window, on equal values in the columns `on`.

        Without a function it emits every pair of a left and a right record: the columns `on`, then the left's, then the
        right's. Else `(key, left, right) -> rows` of pandas DataFrames, or several as alternates, in the schema `returns`.
        """
        key = (on,) if isinstance(on, str) else tuple(on)
        wanted = name or ("join" if function is None else None)
        chosen, alternates = alternates_of(self._flow, Pairs(key) if function is None else function, Form.JOIN, wanted)
        taps = (*self._taps, *(replace(tap, port=1) for tap in other.taps))
        groups = _Groups(self._flow, taps, key, self._window)
        return groups._keyed(chosen, alternates, needs, returns=returns, timeout=_timeout(timeout))


def _timeout(given: float | str | Timeout | None) -> Timeout | None:
    return given if given is None or isinstance(given, Timeout) else Timeout(duration(given))
