"""Assumptions of experiments: values that a paper does not give, with unit and reason, to be halved and doubled."""

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from elastream.core.wording import percent
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.page import Table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

A = TypeVar("A", bound="DataclassInstance")

FACTORS = (0.5, 2.0)
"""Factors by which each assumption is multiplied in turn."""
DRAWS, FEWER_DRAWS = 20, 2
"""Sets of assumptions that are drawn: twenty give a share to within 0.22, twice its standard error at most."""
AROUND = 0.5
"""Part of its value within which each assumption is drawn, where all are drawn at once."""


def assumed(default: float, unit: str, why: str, *, most: float | None = None) -> Any:
    """A field of a dataclass of assumptions. most: largest meaningful value; None: unbounded."""
    return field(default=default, metadata={"unit": unit, "why": why, "most": most})


def scaled(assumptions: A, name: str, factor: float) -> A:
    """`assumptions` with the one named `name` multiplied by `factor`, limited to its largest meaningful value."""
    (mine,) = (each for each in fields(assumptions) if each.name == name)
    value, most = getattr(assumptions, name) * factor, mine.metadata["most"]
    return replace(assumptions, **{name: value if most is None else min(most, value)})


def values(assumptions: "DataclassInstance") -> dict[str, float]:
    return {each.name: getattr(assumptions, each.name) for each in fields(assumptions)}


def variations(assumptions: A) -> Mapping[tuple[str, float], A]:
    """`assumptions` with each one halved and doubled in turn; keys: (name, factor)."""
    return {(name, factor): scaled(assumptions, name, factor) for name in values(assumptions) for factor in FACTORS}


def labelled(assumptions: A) -> Mapping[str, A]:
    """The `variations`, by labels such as "work x 2"."""
    return {f"{name} x {factor:g}": varied for (name, factor), varied in variations(assumptions).items()}


def drawn(assumptions: A, seed: int) -> A:
    """`assumptions` with each one drawn anew, evenly within `AROUND` of its value; equal for equal seeds.

    Groups of assumptions are drawn from seeds of their own.
    """
    groups = [each.name for each in fields(assumptions) if is_dataclass(getattr(assumptions, each.name))]
    if groups:
        seeds = {name: len(groups) * seed + number for number, name in enumerate(groups)}
        return replace(assumptions, **{name: drawn(getattr(assumptions, name), seeds[name]) for name in groups})
    rng = np.random.default_rng(seed)
    for name in values(assumptions):
        assumptions = scaled(assumptions, name, rng.uniform(1 - AROUND, 1 + AROUND))
    return assumptions


def draws_of(assumptions: A, options: ExperimentOptions, number: int = DRAWS) -> list[A]:
    """Draws of all assumptions: `number`, or `FEWER_DRAWS` in the quick form; none without `sensitivity`."""
    seeds = range(1, (FEWER_DRAWS if options.quick else number) + 1) if options.sensitivity else ()
    return [drawn(assumptions, seed) for seed in seeds]


def assumption_table(assumptions: "DataclassInstance") -> Table:
    rows = tuple(
        (each.name, f"{getattr(assumptions, each.name):g}", each.metadata["unit"], each.metadata["why"])
        for each in fields(assumptions)
    )
    return Table("Assumptions", ("assumption", "value", "unit", "why"), rows)


def share_table(shares: Mapping[str, float], draws: int) -> list[Table]:
    """In which part of `draws` draws of all assumptions each bar holds; nothing without any."""
    rows = tuple((name, percent(share)) for name, share in shares.items())
    title = f"Part of {draws} draws of all assumptions, each within +-{AROUND:.0%}"
    return [Table(title, ("bar", "holds"), rows)] if draws else []
