"""Proves, where that is simple, that activation guards are not exclusive: sum of g not 1 (thesis, 3.2.4).

Guards that compare each of a few signals with constants divide the signals' values into cells in which nothing changes; one
value of each cell is tried. What is not of that form is neither proved nor refused.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, product

from elastream.guards.compiling import compiled
from elastream.guards.elements import Guard
from elastream.guards.language import OF_SIGNALS, OVERLOADS
from elastream.guards.tree import Call, Literal, Node, Read, nodes

MOST_CELLS = 4_096

_LOGIC = frozenset({"_||_", "_&&_", "!_"})
_COMPARED = frozenset({"_<_", "_<=_", "_>_", "_>=_", "_==_", "_!=_"})


class _Beyond(Exception):
    """A guard is not of the form."""


def not_exclusive(guards: Sequence[Guard]) -> str:
    """A sentence with values of the signals under which not exactly one of `guards` is active; empty if none is found."""
    trees = [guard.activate for guard in guards]
    if any(tree is not None and _remembers(tree) for tree in trees) or any(guard.deactivate for guard in guards):
        return ""
    constants: dict[Node, set[float | str]] = {}
    truths: dict[Node, None] = {}
    try:
        for tree in trees:
            if tree is not None:
                _gather(tree, constants, truths)
    except _Beyond:
        return ""
    terms = [*truths, *constants]
    signals = [node.signal for term in terms for node in nodes(term) if isinstance(node, Read)]
    if len(set(signals)) != len(terms):
        return ""  # what depends on one signal in two ways is not independent
    samples: list[Sequence[float | bool | str]] = [[False, True] for _ in truths]
    samples += [_representatives(each) for each in constants.values()]
    size = 1
    for each in samples:
        size *= len(each)
    if size > MOST_CELLS:
        return ""
    slots: Mapping[Node, int] = {term: n for n, term in enumerate(terms)}
    functions = [None if tree is None else compiled(tree, slots) for tree in trees]
    for cell in product(*samples):
        active = [g.alternate for g, f in zip(guards, functions, strict=True) if f is None or f(cell) is True]
        if len(active) != 1:
            where = ", ".join(f"{_named(term)} = {_shown(value)}" for term, value in zip(terms, cell, strict=True))
            said = " and ".join(active) + " are" if active else "none is"
            return f"exactly one guard must be active, and {said} {f'where {where}' if where else 'always'}"
    return ""


def _remembers(tree: Node) -> bool:
    return any(isinstance(node, Call) and node.overload in ("held", "then") for node in nodes(tree))


def _is_term(node: Node) -> bool:
    return isinstance(node, Read) or (isinstance(node, Call) and node.overload in OF_SIGNALS)


def _gather(tree: Node, constants: dict[Node, set[float | str]], truths: dict[Node, None]) -> None:
    match tree:
        case Literal():
            return
        case Read():
            truths[tree] = None
            return
        case Call(overload, args) if OVERLOADS[overload].function in _LOGIC:
            for each in args:
                _gather(each, constants, truths)
            return
        case Call(overload, (left, right)) if OVERLOADS[overload].function in _COMPARED:
            term, constant = (left, right) if _is_term(left) else (right, left)
            if _is_term(term) and isinstance(constant, Literal) and constant.kind != "bool":
                constants.setdefault(term, set()).add(constant.value)
                return
    raise _Beyond


def _representatives(constants: set[float | str]) -> list[float | str]:
    """The constants and a value of each interval between them."""
    numbers = sorted(each for each in constants if not isinstance(each, str))
    if not numbers:
        texts = sorted(str(each) for each in constants)
        return [*texts, "".join(texts) + "."]
    between = [(left + right) / 2 for left, right in pairwise(numbers)]
    return [numbers[0] - 1, *numbers, *between, numbers[-1] + 1]


def _named(term: Node) -> str:
    if isinstance(term, Call):
        arguments = ", ".join(_named(arg) if not isinstance(arg, Literal) else repr(arg.value) for arg in term.args)
        return f"{OVERLOADS[term.overload].function}({arguments})"
    return term.signal if isinstance(term, Read) else repr(term.value)


def _shown(value: float | bool | str) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else f"{value:g}"
