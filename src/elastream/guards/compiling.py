"""Compiles trees to Python functions of a list of slots, in the three-valued logic of CEL's unknown.

A slot holds a signal's newest value or what a window, a persistence or an order came to; None is unknown. Code is built as
Python's own syntax tree from node types and numbers of slots, never from text of the user's.
"""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from elastream.dataflow.signals import SignalValue
from elastream.guards.language import OVERLOADS
from elastream.guards.tree import Call, Literal, Node, Read

Slots: TypeAlias = Sequence[SignalValue | None]
Compiled: TypeAlias = Callable[[Slots], Any]

WHOLE = 2**63
"""Whole numbers of CEL are below it and at least its negative; a result outside is an error: unknown."""

COMPARED: Mapping[str, type[ast.cmpop]] = {
    "_<_": ast.Lt, "_<=_": ast.LtE, "_>_": ast.Gt, "_>=_": ast.GtE, "_==_": ast.Eq, "_!=_": ast.NotEq,
}  # fmt: skip
_COMPUTED: Mapping[str, type[ast.operator]] = {"_+_": ast.Add, "_-_": ast.Sub, "_*_": ast.Mult}


def _divided(left: float, right: float) -> float:
    """IEEE 754's division, as CEL has it for doubles."""
    if right:
        return left / right
    return math.nan if not left or left != left else math.copysign(math.inf, left) * math.copysign(1.0, right)


def _quotient(left: int, right: int) -> int | None:
    """Division towards zero; unknown by zero."""
    if not right:
        return None
    quotient = abs(left) // abs(right)
    return _whole(quotient if (left < 0) == (right < 0) else -quotient)


def _remainder(left: int, right: int) -> int | None:
    """With the sign of the dividend; unknown by zero."""
    return None if not right else int(math.copysign(1, left)) * (abs(left) % abs(right))


def _whole(number: int) -> int | None:
    return number if -WHOLE <= number < WHOLE else None


_GLOBALS: dict[str, Any] = {
    "__builtins__": {}, "divided": _divided, "quotient": _quotient, "remainder": _remainder, "whole": _whole, "real": float,
    "starts": str.startswith, "ends": str.endswith, "has": str.__contains__,
}  # fmt: skip
"""All that compiled guards can call."""


def compiled(tree: Node, slots: Mapping[Node, int]) -> Compiled:
    """The function of the slots that `tree` is. slots: number by signal read, and by window, persistence or order."""
    body = _Writer(slots).written(tree)
    given = ast.arguments(posonlyargs=[], args=[ast.arg("v")], kwonlyargs=[], kw_defaults=[], defaults=[])
    code = ast.fix_missing_locations(ast.Expression(ast.Lambda(given, body)))
    function: Compiled = eval(compile(code, "<guard>", "eval"), _GLOBALS)
    return function


UNKNOWN = (TypeError, KeyError)
"""What a `quick` function raises where it meets an unknown operand."""
_TRUTHS = {True: True, False: False}


def quick(tree: Node, slots: Mapping[Node, int]) -> Compiled | None:
    """The same in two-valued logic, twice as fast: for known operands, it raises UNKNOWN where it meets another. None if
    `tree` has a part with which an unknown operand would go unnoticed."""
    body = _quick(tree, slots)
    if body is None:
        return None
    given = ast.arguments(posonlyargs=[], args=[ast.arg("v")], kwonlyargs=[], kw_defaults=[], defaults=[])
    code = ast.fix_missing_locations(ast.Expression(ast.Lambda(given, body)))
    function: Compiled = eval(compile(code, "<guard>", "eval"), {"__builtins__": {}, "truths": _TRUTHS})
    return function


def _quick(tree: Node, slots: Mapping[Node, int]) -> ast.expr | None:
    """A truth value: `||`, `&&` and `!` of order comparisons of numbers, and of switches."""
    if (slot := slots.get(tree)) is not None:
        return ast.Subscript(_load("truths"), ast.Subscript(_load("v"), ast.Constant(slot), ast.Load()), ast.Load())
    if not isinstance(tree, Call):
        return ast.Constant(tree.value) if isinstance(tree, Literal) else None
    function = OVERLOADS[tree.overload].function
    parts = [_quick(arg, slots) if function in _LOGIC else _quick_number(arg, slots) for arg in tree.args]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    match function:
        case "_||_":
            return ast.BoolOp(ast.Or(), known)
        case "_&&_":
            return ast.BoolOp(ast.And(), known)
        case "!_":
            return ast.UnaryOp(ast.Not(), known[0])
        case "_<_" | "_<=_" | "_>_" | "_>=_":
            return ast.Compare(known[0], [COMPARED[function]()], [known[1]])
    return None


_LOGIC = frozenset({"_||_", "_&&_", "!_"})


def _quick_number(tree: Node, slots: Mapping[Node, int]) -> ast.expr | None:
    """A number as it stands in a slot or in the text."""
    if (slot := slots.get(tree)) is not None:
        return ast.Subscript(_load("v"), ast.Constant(slot), ast.Load())
    return ast.Constant(tree.value) if isinstance(tree, Literal) else None


class _Writer:
    """Writes one expression; temporaries are numbered."""

    def __init__(self, slots: Mapping[Node, int]) -> None:
        self.slots = slots
        self.used = 0

    def written(self, node: Node) -> ast.expr:
        """`node` as an expression of Python, whose value is None where unknown."""
        if (slot := self.slots.get(node)) is not None:
            return ast.Subscript(_load("v"), ast.Constant(slot), ast.Load())
        match node:
            case Literal(_, value):
                return ast.Constant(value)
            case Read(signal):
                raise KeyError(signal)
            case Call(overload, (Read() as read,)) if OVERLOADS[overload].function == "known":
                return ast.Compare(self.written(read), [ast.IsNot()], [_NONE])
            case Call("logical_or" | "logical_and" as name, (left, right)):
                return self._connected(name == "logical_or", left, right)
            case Call(_, (condition, yes, no)) if OVERLOADS[node.overload].function == "_?_:_":
                test, tested = self._kept(condition)
                chosen = ast.IfExp(tested, self.written(yes), self.written(no))
                return ast.IfExp(_is_none(test), _NONE, chosen)
        return self._strict(node)

    def _connected(self, either: bool, left: Node, right: Node) -> ast.expr:
        """CEL's `||` and `&&`: the side that decides does, even if the other is unknown."""
        first, one = self._kept(left)
        second, other = self._kept(right)
        if either:
            decided: ast.expr = ast.BoolOp(ast.Or(), [first, second])
        else:
            decided = ast.BoolOp(ast.Or(), [_is(first, ast.Constant(False)), _is(second, ast.Constant(False))])
        open_ = ast.BoolOp(ast.Or(), [_is_none(one), _is_none(other)])
        return ast.IfExp(decided, ast.Constant(either), ast.IfExp(open_, _NONE, ast.Constant(not either)))

    def _strict(self, node: Call) -> ast.expr:
        """Unknown where an operand is."""
        tests, values = [], []
        for operand in node.args:
            if isinstance(operand, Literal):
                values.append(self.written(operand))
            else:
                test, value = self._kept(operand)
                tests.append(_is_none(test))
                values.append(value)
        result = _applied(node.overload, values)
        if not tests:
            return result
        return ast.IfExp(tests[0] if len(tests) == 1 else ast.BoolOp(ast.Or(), tests), _NONE, result)

    def _kept(self, node: Node) -> tuple[ast.expr, ast.expr]:
        """`node` to be evaluated, and what yields its value afterwards."""
        if node in self.slots or isinstance(node, Literal):
            return self.written(node), self.written(node)
        written = self.written(node)
        self.used += 1
        name = f"t{self.used}"
        return ast.NamedExpr(ast.Name(name, ast.Store()), written), _load(name)


_NONE = ast.Constant(None)


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _is(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.Compare(left, [ast.Is()], [right])


def _is_none(value: ast.expr) -> ast.expr:
    return _is(value, _NONE)


def _called(name: str, *values: ast.expr) -> ast.expr:
    return ast.Call(_load(name), list(values), [])


def _applied(overload: str, values: list[ast.expr]) -> ast.expr:
    """An operator or function on known operands."""
    entry = OVERLOADS[overload]
    function, whole = entry.function, entry.result == "int"
    if function in COMPARED:
        return ast.Compare(values[0], [COMPARED[function]()], [values[1]])
    if function in _COMPUTED:
        if "int" in entry.operands and not whole:
            values = [
                _called("real", value) if kind == "int" else value
                for value, kind in zip(values, entry.operands, strict=True)
            ]
        result: ast.expr = ast.BinOp(values[0], _COMPUTED[function](), values[1])
        return _called("whole", result) if whole else result
    match function:
        case "_/_":
            return _called("quotient" if whole else "divided", *values)
        case "_%_":
            return _called("remainder", *values)
        case "!_":
            return ast.UnaryOp(ast.Not(), values[0])
        case "-_":
            negative = ast.UnaryOp(ast.USub(), values[0])
            return _called("whole", negative) if whole else negative
        case "@in":
            return ast.Compare(values[0], [ast.In()], [ast.Tuple(values[1:], ast.Load())])
        case "startsWith" | "endsWith" | "contains":
            return _called({"startsWith": "starts", "endsWith": "ends", "contains": "has"}[function], *values)
    raise AssertionError(f"{overload} is not compiled: it has a slot of its own")
