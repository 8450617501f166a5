"""Evaluation of checked trees in CEL's three-valued logic: None is unknown."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, TypeAlias

from elastream.dataflow.signals import SignalValue
from elastream.guards.language import OF_SIGNALS, OVERLOADS, Overload
from elastream.guards.tree import Call, Literal, Node, Read, signals_of, substitute

Values: TypeAlias = Mapping[str, SignalValue | None]
_Rule: TypeAlias = Callable[[tuple[Node, ...], Values], Any]

# CEL's whole numbers are in [-INT64, INT64); a result outside is unknown
INT64 = 2**63
# most cells that `not_exclusive` tries
MAX_CELLS = 4_096

_CONNECTIVES = frozenset({"_||_", "_&&_", "!_"})
_COMPARISONS = frozenset({"_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"})


def evaluate(tree: Node, values: Values) -> Any:
    """Return the value of `tree` without functions of time, None if unknown."""
    if isinstance(tree, Read):
        return values[tree.signal]
    if isinstance(tree, Literal):
        return tree.value
    return _RULES[tree.overload](tree.args, values)


def _either(args: tuple[Node, ...], values: Values) -> bool | None:
    """One true side decides."""
    if (left := evaluate(args[0], values)) is True or (right := evaluate(args[1], values)) is True:
        return True
    return None if left is None or right is None else False


def _both(args: tuple[Node, ...], values: Values) -> bool | None:
    """One false side decides."""
    if (left := evaluate(args[0], values)) is False or (right := evaluate(args[1], values)) is False:
        return False
    return None if left is None or right is None else True


def _conditional(args: tuple[Node, ...], values: Values) -> Any:
    condition = evaluate(args[0], values)
    return None if condition is None else evaluate(args[1 if condition else 2], values)


def _is_known(args: tuple[Node, ...], values: Values) -> bool:
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
    return None if not right else abs(left) % abs(right) * (-1 if left < 0 else 1)


_LOGIC: Mapping[str, _Rule] = {"_||_": _either, "_&&_": _both, "_?_:_": _conditional, "known": _is_known}
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


class _OtherForm(Exception):
    """Guard with more than comparisons with constants."""


def not_exclusive(conditions: Mapping[str, Node | None]) -> str:
    """Return readings under which not exactly one alternate is active, or "" (thesis, 3.2.4).

    Comparisons with constants divide values into cells, and one value of each is tried. Other guards pass untested.

    Args:
        conditions: Condition of each alternate; None is always active.
    """
    trees = conditions.values()
    constants: dict[Node, set[float | str]] = {}
    truths: dict[Node, None] = {}
    try:
        for tree in trees:
            if tree is not None:
                _collect(tree, constants, truths)
    except _OtherForm:
        return ""
    terms = [*truths, *constants]
    if len(signals_of(*terms)) != len(terms):
        return ""  # two terms of one signal are not independent
    samples: list[Sequence[float | bool | str]] = [[False, True] for _ in truths]
    samples += [_representatives(each) for each in constants.values()]
    if math.prod(map(len, samples)) > MAX_CELLS:
        return ""
    names = {term: _name(term) for term in terms}
    by_name = {alternate: None if tree is None else substitute(tree, names) for alternate, tree in conditions.items()}
    for cell in product(*samples):
        values = dict(zip(names.values(), cell, strict=True))
        active = [name for name, tree in by_name.items() if tree is None or evaluate(tree, values) is True]
        if len(active) != 1:
            where = ", ".join(f"{name} = {_literal(value)}" for name, value in values.items())
            number = " and ".join(active) + " are" if active else "none is"
            return f"exactly one guard must be active, and {number} {f'where {where}' if where else 'always'}"
    return ""


def _is_term(node: Node) -> bool:
    return isinstance(node, Read) or (isinstance(node, Call) and OVERLOADS[node.overload].function in OF_SIGNALS)


def _collect(tree: Node, constants: dict[Node, set[float | str]], truths: dict[Node, None]) -> None:
    match tree:
        case Literal():
            return
        case Read():
            truths[tree] = None
            return
        case Call(overload, args) if OVERLOADS[overload].function in _CONNECTIVES:
            for each in args:
                _collect(each, constants, truths)
            return
        case Call(overload, (left, right)) if OVERLOADS[overload].function in _COMPARISONS:
            term, constant = (left, right) if _is_term(left) else (right, left)
            if _is_term(term) and isinstance(constant, Literal) and constant.kind != "bool":
                constants.setdefault(term, set()).add(constant.value)
                return
    raise _OtherForm


def _representatives(constants: set[float | str]) -> list[float | str]:
    numbers = sorted(each for each in constants if not isinstance(each, str))
    if not numbers:
        texts = sorted(str(each) for each in constants)
        return [*texts, "".join(texts) + "."]
    between = [(left + right) / 2 for left, right in pairwise(numbers)]
    return [numbers[0] - 1, *numbers, *between, numbers[-1] + 1]


def _name(term: Node) -> str:
    if isinstance(term, Call):
        return f"{OVERLOADS[term.overload].function}({', '.join(map(_name, term.args))})"
    return term.signal if isinstance(term, Read) else repr(term.value)


def _literal(value: float | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else f"{value:g}"
