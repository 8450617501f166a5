"""Assumptions of experiments: values missing in a paper, with unit and reason, and curves of the bars over them."""

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

FACTORS = (0.5, 2.0)  # each assumption is multiplied by these in turn
DRAWS, FEWER_DRAWS = 20, 2  # twenty give a share to within 0.22, twice its standard error
AROUND = 0.5  # relative half-width of the interval to draw from


def assumed(default: float, unit: str, why: str, *, most: float | None = None) -> Any:
    """Return a dataclass field for an assumed constant.

    Args:
        most: Largest meaningful value. None means unbounded.
    """
    return field(default=default, metadata={"unit": unit, "why": why, "most": most})


def scaled(assumptions: A, name: str, factor: float) -> A:
    """Return `assumptions` with `name` multiplied by `factor`, limited to its largest value."""
    (mine,) = (each for each in fields(assumptions) if each.name == name)
    value, most = getattr(assumptions, name) * factor, mine.metadata["most"]
    return replace(assumptions, **{name: value if most is None else min(most, value)})


def values(assumptions: "DataclassInstance") -> dict[str, float]:
    return {each.name: getattr(assumptions, each.name) for each in fields(assumptions)}


def variations(assumptions: A) -> Mapping[tuple[str, float], A]:
    """Return `assumptions` with each one multiplied by `FACTORS` in turn, by (name, factor)."""
    return {(name, factor): scaled(assumptions, name, factor) for name in values(assumptions) for factor in FACTORS}


def labelled(assumptions: A) -> Mapping[str, A]:
    """Return the `variations` by labels such as "work x 2"."""
    return {f"{name} x {factor:g}": varied for (name, factor), varied in variations(assumptions).items()}


def drawn(assumptions: A, seed: int) -> A:
    """Return `assumptions` with values drawn evenly within `AROUND` of theirs. Equal seeds give equal values."""
    groups = [each.name for each in fields(assumptions) if is_dataclass(getattr(assumptions, each.name))]
    if groups:
        seeds = {name: len(groups) * seed + number for number, name in enumerate(groups)}
        return replace(assumptions, **{name: drawn(getattr(assumptions, name), seeds[name]) for name in groups})
    rng = np.random.default_rng(seed)
    for name in values(assumptions):
        assumptions = scaled(assumptions, name, rng.uniform(1 - AROUND, 1 + AROUND))
    return assumptions


def draws_of(assumptions: A, options: ExperimentOptions, number: int = DRAWS) -> list[A]:
    """Return `number` draws of all assumptions (`FEWER_DRAWS` if quick); none without `sensitivity`."""
    seeds = range(1, (FEWER_DRAWS if options.quick else number) + 1) if options.sensitivity else ()
    return [drawn(assumptions, seed) for seed in seeds]


def assumption_table(assumptions: "DataclassInstance") -> Table:
    rows = tuple(
        (each.name, f"{getattr(assumptions, each.name):g}", each.metadata["unit"], each.metadata["why"])
        for each in fields(assumptions)
    )
    return Table("Assumptions", ("assumption", "value", "unit", "why"), rows)


def share_table(shares: Mapping[str, float], draws: int) -> list[Table]:
    """Return a table of the share of `draws` in which each bar holds; empty without draws."""
    rows = tuple((name, percent(share)) for name, share in shares.items())
    title = f"Part of {draws} draws of all assumptions, each within +-{AROUND:.0%}"
    return [Table(title, ("bar", "holds"), rows)] if draws else []
