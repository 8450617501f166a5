"""Guards written at random, and their meaning said once more, slowly: from all readings since the start."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from elastream.dataflow.signals import Signal, SignalKind
from elastream.guards.language import OVERLOADS, seconds_of
from elastream.guards.tree import Literal, Node, Read

SIGNALS = (Signal("error"), Signal("rate_in"), Signal("alert", SignalKind.TRUTH), Signal("tariff", SignalKind.TEXT))

_CONSTANTS = ("-1.5", "0.0", "0.3", "1.0")
_DURATIONS = ("1s", "2s", "5s")
_AGGREGATES = ("avg", "min", "max", "sum", "count", "stddev", "rate")


@st.composite
def texts(draw: Any, *, memory: bool = True, depth: int = 3) -> str:
    """A condition on SIGNALS; memory: with windows, persistence and order."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return str(draw(_atoms(memory)))
    below = texts(memory=memory, depth=depth - 1)
    forms = ["({} && {})", "({} || {})", "!({})", "({} ? {} : {})"]
    forms += ["held({}, '" + draw(st.sampled_from(_DURATIONS)) + "')"] if memory else []
    forms += ["then({}, {}, '" + draw(st.sampled_from(_DURATIONS)) + "')"] if memory else []
    form = draw(st.sampled_from(forms))
    return str(form.format(*(draw(below) for _ in range(form.count("{}")))))


@st.composite
def _atoms(draw: Any, memory: bool) -> str:
    signal, constant = draw(st.sampled_from(["error", "rate_in"])), draw(st.sampled_from(_CONSTANTS))
    number = draw(st.sampled_from([signal, f"({signal} - 0.3)", f"{signal} * 2.0", f"-{signal}", f"{signal} / rate_in"]))
    if memory and draw(st.booleans()):
        number = f"{draw(st.sampled_from(_AGGREGATES))}({signal}, '{draw(st.sampled_from(_DURATIONS))}')"
        number = draw(st.sampled_from([number, number, f"age({signal})"]))
    operator = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
    return str(
        draw(
            st.sampled_from(
                [f"{number} {operator} {constant}"] * 3
                + ["alert", "!alert", "tariff == 'high'", "tariff in ['low', 'high']", "tariff.startsWith('h')"]
            )
        )
    )


Row = tuple[float, dict[str, Any]]
"""A round: its time, and the value of each signal with a new sample, None where that is unknown."""


def by_hand(tree: Node, rows: Sequence[Row]) -> Any:
    """What `tree` comes to in the last of `rows`, computed anew from all of them."""
    now = rows[-1][0]
    match tree:
        case Literal(_, value):
            return value
        case Read(name):
            return _samples(rows, name)[-1][1]
    function, args = OVERLOADS[tree.overload].function, tree.args
    if function == "held":
        return _held([(rows[n][0], by_hand(args[0], rows[: n + 1])) for n in range(len(rows))], _seconds(args[1]))
    if function == "then":
        told = [(rows[n][0], *(by_hand(arg, rows[: n + 1]) for arg in args[:2])) for n in range(len(rows))]
        return _then(told, _seconds(args[2]))
    if function == "age":
        at, value = _samples(rows, args[0].signal)[-1]
        return None if value is None else now - at
    if isinstance(args[0], Read) and function in _AGGREGATES:
        return _aggregate(function, _samples(rows, args[0].signal), now, _seconds(args[1]))
    values = [by_hand(arg, rows) for arg in args]
    match function:
        case "_||_":
            return True if True in values else None if None in values else False
        case "_&&_":
            return False if False in values else None if None in values else True
        case "_?_:_":
            return None if values[0] is None else values[1] if values[0] else values[2]
    return None if None in values else _strict(function, values)


def _samples(rows: Sequence[Row], name: str) -> list[tuple[float, Any]]:
    return [(time, told[name]) for time, told in rows if name in told] or [(-math.inf, None)]


def _seconds(node: Node) -> float:
    assert isinstance(node, Literal)
    return seconds_of(node)


def _strict(function: str, values: list[Any]) -> Any:
    left, right = values[0], values[-1]
    match function:
        case "_/_":
            return left / right if right else math.nan if left == 0 else math.copysign(math.inf, left)
        case "@in":
            return left in values[1:]
    return {
        "!_": lambda: not left, "-_": lambda: -left, "_-_": lambda: left - right, "_*_": lambda: left * right,
        "_<_": lambda: left < right, "_<=_": lambda: left <= right, "_>_": lambda: left > right,
        "_>=_": lambda: left >= right, "_==_": lambda: left == right, "_!=_": lambda: left != right,
        "startsWith": lambda: left.startswith(right),
    }[function]()  # fmt: skip


def _aggregate(function: str, samples: list[tuple[float, Any]], now: float, seconds: float) -> float | None:
    known = [(at, value) for at, value in samples if value is not None]
    inside = [(at, value) for at, value in known if at + seconds > now]
    values = [value for _, value in inside]
    if function == "count":
        return float(len(values))
    if function == "rate":
        if len(inside) < 2:
            return None
        rises = [later - earlier if later >= earlier else later for earlier, later in pairwise(values)]
        return max(0.0, math.fsum(rises) / (inside[-1][0] - inside[0][0]))
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return {"avg": mean, "sum": math.fsum(values), "min": min(values), "max": max(values), "stddev": deviation}[function]


def _held(told: list[tuple[float, bool | None]], seconds: float) -> bool | None:
    """By every way in which unknown answers may have come out."""

    def certain(unknown: bool) -> bool:
        since = None
        for at, answer in told:
            holds = unknown if answer is None else answer
            since = None if not holds else at if since is None else since
        return since is not None and since + seconds <= told[-1][0]

    low, high = certain(False), certain(True)
    return low if low == high else None


def _then(told: list[tuple[float, bool | None, bool | None]], seconds: float) -> bool | None:
    answers = {(False, False, -math.inf, False)}  # (first, second, until when the first held, in order)
    for at, first, second in told:
        following = set()
        for was_first, was_second, held, ordered in answers:
            until = at if was_first else held
            for one in (first,) if first is not None else (True, False):
                for two in (second,) if second is not None else (True, False):
                    order = ordered if was_second else until + seconds >= at
                    following.add((one, two, until, two and order))
        answers = following
    said = {ordered for *_, ordered in answers}
    return said.pop() if len(said) == 1 else None
