"""What a paper leaves open, as numbers with a unit and a reason, each of which can be halved and doubled.

An experiment keeps its own in a frozen dataclass whose fields are `assumed`; a page lists them and, where asked, says what
its bars come to under each of the `variations`.
"""

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from elastream.experiments.page import Table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["FACTORS", "assumed", "assumption_table", "scaled", "values", "variations"]

A = TypeVar("A", bound="DataclassInstance")

FACTORS = (0.5, 2.0)
"""By which every assumption is multiplied in turn."""


def assumed(default: float, unit: str, why: str, *, most: float | None = None) -> Any:
    """A field of a dataclass of assumptions. most: beyond which it means nothing."""
    return field(default=default, metadata={"unit": unit, "why": why, "most": most})


def scaled(assumptions: A, name: str, factor: float) -> A:
    """With one of them multiplied, as far as it goes."""
    (mine,) = (each for each in fields(assumptions) if each.name == name)
    value, most = getattr(assumptions, name) * factor, mine.metadata["most"]
    return replace(assumptions, **{name: value if most is None else min(most, value)})


def values(assumptions: "DataclassInstance") -> dict[str, float]:
    """Value of each, by its name."""
    return {each.name: getattr(assumptions, each.name) for each in fields(assumptions)}


def variations(assumptions: A) -> Mapping[tuple[str, float], A]:
    """All of them halved and doubled, one at a time; by its name and the factor."""
    return {(name, factor): scaled(assumptions, name, factor) for name in values(assumptions) for factor in FACTORS}


def assumption_table(assumptions: "DataclassInstance") -> Table:
    """Each with its value, unit and reason."""
    rows = tuple(
        (each.name, f"{getattr(assumptions, each.name):g}", each.metadata["unit"], each.metadata["why"])
        for each in fields(assumptions)
    )
    return Table("Assumptions", ("assumption", "value", "unit", "why"), rows)
