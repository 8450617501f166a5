"""What a composition makes of a record: cost and selectivity of each operator, by its alternates and by shares of keys.

Where a key table chooses the alternate, each runs for the part of the records whose keys the table gives it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from elastream.model.action import SetKeyTable, Switch, SwitchAlternate
from elastream.model.errors import DataflowError
from elastream.model.graph import Alternate, Edge, Graph, Kind, Operator
from elastream.model.observation import Composition
from elastream.simulation.settings import Settings

TableShares: TypeAlias = Callable[[str, int], Mapping[str, float] | None]
"""Of an operator and a version of its key table, the part of the records by alternate; None where there is no such table.
What is missing to 1 is of keys that the table does not name."""


class Cost(NamedTuple):
    """Of a record at an operator: core-seconds on a core of speed 1, and records out."""

    work: float
    selectivity: float


def no_tables(operator: str, version: int) -> Mapping[str, float] | None:
    """The tables of a plant that has none."""
    return None


def own_cost(operator: Operator, alternate: Alternate, settings: Settings) -> Cost | None:
    """Of a record that `alternate` processes: as measured, else as declared; None where its cost is neither."""
    measured = settings.service(operator.name)
    cost, selectivity = measured.alternates.get(alternate.name, (measured.cost, measured.selectivity))
    cost = alternate.cost if cost is None else cost
    selectivity = alternate.selectivity if selectivity is None else selectivity
    return None if cost is None else Cost(cost, 1.0 if selectivity is None else selectivity)


def shares_of(operator: Operator, composition: Composition, tables: TableShares) -> dict[str, float]:
    """Part of its records that each alternate of `operator` processes, those that process none left out."""
    active = composition.alternate(operator).name
    version = composition.tables.get(operator.name, 0)
    chosen = dict(tables(operator.name, version) or {}) if version else {}
    rest = 1.0 - sum(chosen.values())
    chosen[active] = chosen.get(active, 0.0) + max(0.0, rest)
    return {name: share for name, share in chosen.items() if share > 0}


def costs_of(
    graph: Graph, settings: Settings, composition: Composition, tables: TableShares = no_tables
) -> dict[str, Cost]:
    """Of a record at every operator that is neither source nor sink, on average, under `composition`.

    Raises DataflowError for an alternate that would run and whose cost is not known.
    """
    found = {}
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            work = selectivity = 0.0
            for name, share in shares_of(operator, composition, tables).items():
                own = own_cost(operator, operator.alternate(name), settings)
                if own is None:
                    raise DataflowError(without_cost(operator.name, name))
                work, selectivity = work + share * own.work, selectivity + share * own.selectivity
            found[operator.name] = Cost(work, selectivity)
    return found


def without_cost(operator: str, alternate: str) -> str:
    """That `alternate` cannot be simulated, in one sentence."""
    return (
        f"operator {operator!r} has no cost for alternate {alternate!r}; the simulation needs core-seconds per record: "
        "declare `cost`, or calibrate with a recorded run"
    )


def unsimulated(graph: Graph, switch: Switch, settings: Settings, tables: TableShares) -> str:
    """Why what `switch` chooses cannot be simulated; empty where it can. It names what is in `graph`."""
    match switch:
        case SwitchAlternate(operator, alternate):
            needed = [alternate]
        case SetKeyTable(operator, version):
            shares = tables(operator, version) if version else {}
            if shares is None:
                return f"operator {operator!r} has no key table of version {version}"
            needed = [name for name, share in shares.items() if share > 0]
        case _:
            return ""
    chosen = graph.by_name[operator]
    missing = [name for name in needed if own_cost(chosen, chosen.alternate(name), settings) is None]
    return without_cost(operator, missing[0]) if missing else ""


def greatest_selectivity(graph: Graph, settings: Settings) -> dict[str, float]:
    """By operator, the most records out per record in of any of its alternates whose cost is known."""
    found = {}
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            known = [own_cost(operator, alternate, settings) for alternate in operator.alternates]
            found[operator.name] = max((each.selectivity for each in known if each is not None), default=1.0)
    return found


class Demand(NamedTuple):
    """What a record that a query takes comes to under one composition.

    epoch: number of the composition, which grows with every switch. work: core-seconds of speed 1, by stage. volume:
    records that reach each stage. out: records sent over each durable edge. results: records that reach a sink that is no
    signal. signals: those that get records. runs: operators that get records, each with every alternate that runs.
    """

    epoch: int
    composition: Composition
    work: Mapping[str, float]
    volume: Mapping[str, float]
    out: Mapping[Edge, float]
    results: float
    signals: tuple[str, ...]
    runs: tuple[tuple[str, str], ...]
