"""Evaluation of checked trees in CEL's three-valued logic: None is unknown."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from elastream.dataflow.signals import SignalValue
from elastream.guards.language import OVERLOADS, Overload
from elastream.guards.tree import Literal, Node, Read

Values: TypeAlias = Mapping[str, SignalValue | None]
_Rule: TypeAlias = Callable[[tuple[Node, ...], Values], Any]

# CEL's whole numbers are in [-INT64, INT64); a result outside is unknown
INT64 = 2**63


def evaluate(tree: Node, values: Values) -> Any:
    """Return the value of `tree` without functions of time, None if unknown."""
    if isinstance(tree, Read):
        return values[tree.signal]
    if isinstance(tree, Literal):
        return tree.value
    return _RULES[tree.overload](tree.args, values)


def _either(args: tuple[Node, ...], values: Values) -> bool | None:
    """Return the disjunction: one true side decides."""
    if (left := evaluate(args[0], values)) is True or (right := evaluate(args[1], values)) is True:
        return True
    return None if left is None or right is None else False


def _both(args: tuple[Node, ...], values: Values) -> bool | None:
    """Return the conjunction: one false side decides."""
    if (left := evaluate(args[0], values)) is False or (right := evaluate(args[1], values)) is False:
        return False
    return None if left is None or right is None else True


def _conditional(args: tuple[Node, ...], values: Values) -> Any:
    condition = evaluate(args[0], values)
    return None if condition is None else evaluate(args[1 if condition else 2], values)


def _known(args: tuple[Node, ...], values: Values) -> bool:
    return evaluate(args[0], values) is not None


def _divide(left: float, right: float) -> float:
    if right:
        return left / right
    return math.nan if not left or left != left else math.copysign(math.inf, left) * math.copysign(1.0, right)


def _quotient(left: int, right: int) -> int | None:
    if not right:
        return None
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: int, right: int) -> int | None:
    """Return the remainder with the dividend's sign."""
    return None if not right else abs(left) % abs(right) * (-1 if left < 0 else 1)


_LOGIC: Mapping[str, _Rule] = {"_||_": _either, "_&&_": _both, "_?_:_": _conditional, "known": _known}
_WHOLE: Mapping[str, Callable[..., int | None]] = {
    "_+_": operator.add, "_-_": operator.sub, "_*_": operator.mul, "_/_": _quotient, "_%_": _remainder,
    "-_": operator.neg,
}  # fmt: skip
_OPERATIONS: Mapping[str, Callable[..., SignalValue]] = {
    "_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge, "_==_": operator.eq,
    "_!=_": operator.ne, "_+_": operator.add, "_-_": operator.sub, "_*_": operator.mul, "_/_": _divide,
    "!_": operator.not_, "-_": operator.neg, "@in": lambda value, *constants: value in constants,
    "startsWith": str.startswith, "endsWith": str.endswith, "contains": str.__contains__,
}  # fmt: skip


def _strict(operation: Callable[..., Any]) -> _Rule:
    def rule(args: tuple[Node, ...], values: Values) -> Any:
        operands = [evaluate(arg, values) for arg in args]
        return None if None in operands else operation(*operands)

    return rule


def _within_int64(operation: Callable[..., int | None]) -> Callable[..., int | None]:
    def bounded(*operands: int) -> int | None:
        result = operation(*operands)
        return result if result is not None and -INT64 <= result < INT64 else None

    return bounded


def _rule_of(overload: Overload) -> _Rule | None:
    name = overload.function
    if name in _LOGIC:
        return _LOGIC[name]
    if overload.result == "int":
        return _strict(_within_int64(_WHOLE[name]))
    return _strict(_OPERATIONS[name]) if name in _OPERATIONS else None


_RULES: Mapping[str, _Rule] = {id: rule for id, overload in OVERLOADS.items() if (rule := _rule_of(overload)) is not None}
