"""Dynamic elements and their guards (thesis, 3.2): what is declared, and what it comes to in a round.

An element is an operator with several alternates or a choice with several branches. Each of its guards is two patterns,
to activate and to deactivate (p. 49, step 4), a value, or both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from elastream.guards.tree import Call, Literal, Node

__all__ = ["Element", "Guard", "GuardSet", "Standing", "guard_of"]


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard of one alternate or branch.

    activate: condition under which it becomes active, None: it always is. deactivate: under which it ceases to be; None:
    where `activate` is false. value: a number in [0, 1], or an expression whose values are set in relation to the best.
    """

    alternate: str
    activate: Node | None = None
    deactivate: Node | None = None
    value: Node | float = 1.0


def guard_of(
    alternate: str,
    *,
    when: Node | None = None,
    on: Node | None = None,
    off: Node | None = None,
    for_: float = 0.0,
    value: Node | float = 1.0,
) -> Guard:
    """A guard in its two patterns: `when` alone, or `on` and `off` with bounds of their own; `for_`: seconds for which the
    condition must have held without a break before it activates."""
    begins = when if on is None else on
    if begins is None or not for_:
        return Guard(alternate, begins, off, value)
    held = Call("held", (begins, Literal("string", f"{for_!r} s")), begins.at)
    return Guard(alternate, held, off, value)


@dataclass(frozen=True, slots=True)
class Element:
    """A dynamic element. name: of the operator or the choice. guards: of its alternates or targets, in their order."""

    name: str
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class GuardSet:
    """All guards of a dataflow that are in force at one time."""

    elements: tuple[Element, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the guards of one element come to.

    allowed: alternates whose guards are active, in their order; empty: what runs stays. values: relative value of each
    alternate, in [0, 1], NaN where unknown. unknown: signals without which guards of it cannot be decided, by alternate.
    """

    element: str
    allowed: tuple[str, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """Why nothing is allowed or not all is known; empty where neither."""
        said = [f"the guard of {name} is unknown ({', '.join(missing)})" for name, missing in self.unknown.items()]
        if not self.allowed:
            said.insert(0, f"no guard of {self.element} is active: what runs stays")
        return "; ".join(said)

    def best(self, active: str) -> str:
        """The allowed alternate of the highest known value, of equals the active one, then the first; else `active`."""
        known = [name for name in self.allowed if not math.isnan(self.values.get(name, math.nan))]
        if not known:
            return active if active in self.allowed or not self.allowed else self.allowed[0]
        return max(known, key=lambda name: (self.values[name], name == active))
