"""Dynamic elements and their guards (thesis, 3.2), as declared.

An element is an operator with several alternates or a choice with several branches. Each of its guards is two patterns,
to activate and to deactivate (p. 49, step 4), a value, or both.
"""

from dataclasses import dataclass, field

from elastream.guards.tree import Call, Literal, Node


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of one alternate or branch.

    activate: condition under which it becomes active, None: it always is. deactivate: under which it ceases to be; None:
    where `activate` is false. value: a number in [0, 1], or an expression whose values are set in relation to the best.
    text: its conditions as they were written, for people.
    """

    alternate: str
    activate: Node | None = None
    deactivate: Node | None = None
    value: Node | float = 1.0
    text: str = field(default="", compare=False)


def guard_of(
    alternate: str,
    *,
    when: Node | None = None,
    on: Node | None = None,
    off: Node | None = None,
    for_: float = 0.0,
    value: Node | float = 1.0,
    text: str = "",
) -> Guard:
    """A guard in its two patterns: `when` alone, or `on` and `off` with bounds of their own; `for_`: seconds for which the
    condition must have held without a break before it activates."""
    begins = when if on is None else on
    if begins is None or not for_:
        return Guard(alternate, begins, off, value, text)
    held = Call("held", (begins, Literal("string", f"{for_!r} s")), begins.at)
    return Guard(alternate, held, off, value, text)


@dataclass(frozen=True, slots=True)
class Element:
    """A dynamic element. name: of the operator or the choice. guards: of its alternates or targets, in their order."""

    name: str
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class GuardSet:
    """All guards of a dataflow that are in force at one time."""

    elements: tuple[Element, ...]
