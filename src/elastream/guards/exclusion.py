"""Search for readings that activate not exactly one guard (thesis, 3.2.4).

Comparisons with constants divide values into cells, and one value of each is tried. Other guards pass untested.
"""

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod

from elastream.guards.evaluator import Guard
from elastream.guards.interpreter import evaluate
from elastream.guards.language import OF_SIGNALS, OVERLOADS
from elastream.guards.tree import Call, Literal, Node, Read, signals_of, substitute

MAX_CELLS = 4_096

_LOGIC = frozenset({"_||_", "_&&_", "!_"})
_COMPARISONS = frozenset({"_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"})


class _OtherForm(Exception):
    """Guard with more than comparisons with constants."""


def not_exclusive(guards: Sequence[Guard]) -> str:
    """Return readings, in a sentence, under which not exactly one of `guards` is active, or ""."""
    trees = [guard.activate for guard in guards]
    if any(guard.deactivate for guard in guards):
        return ""
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
    if prod(map(len, samples)) > MAX_CELLS:
        return ""
    names = {term: _name(term) for term in terms}
    conditions = [None if tree is None else substitute(tree, names) for tree in trees]
    for cell in product(*samples):
        values = dict(zip(names.values(), cell, strict=True))
        active = [
            guard.alternate
            for guard, condition in zip(guards, conditions, strict=True)
            if condition is None or evaluate(condition, values) is True
        ]
        if len(active) != 1:
            where = ", ".join(f"{name} = {_shown(value)}" for name, value in values.items())
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
        case Call(overload, args) if OVERLOADS[overload].function in _LOGIC:
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


def _shown(value: float | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else f"{value:g}"
