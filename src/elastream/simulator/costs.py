"""What a composition makes of a record: cost and selectivity of each operator, by its alternates and by shares of keys.

Where a key table chooses the alternate, each runs for the part of the records whose keys the table gives it.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from elastream.core.action import SetKeyTable, Switch, SwitchAlternate
from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTables, selection_of
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.errors import DataflowError
from elastream.simulator.settings import Settings

Shares: TypeAlias = Mapping[str, Mapping[str, float]]
"""By operator, the part of its records that each alternate processes; those that process none are left out."""


class Cost(NamedTuple):
    """Of a record at an operator: core-seconds on a core of speed 1, and records out."""

    work: float
    selectivity: float


def own_cost(operator: Operator, alternate: Alternate, settings: Settings) -> Cost | None:
    """Of a record that `alternate` processes; None where its cost is unknown.

    As measured of it; else, where others were measured apart from it, as declared; else as measured of the operator.
    """
    measured = settings.service(operator.name)
    of_all, declared = (measured.cost, measured.selectivity), (alternate.cost, alternate.selectivity)
    sources = (declared, of_all) if measured.alternates else (of_all, declared)
    told = (measured.alternates.get(alternate.name, (None, None)), *sources)
    cost = next((each for each, _ in told if each is not None), None)
    selectivity = next((each for _, each in told if each is not None), None)
    return None if cost is None else Cost(cost, 1.0 if selectivity is None else selectivity)


def shares_in(graph: Graph, settings: Settings, composition: Composition, tables: KeyTables) -> Shares:
    """Shares of the alternates of every operator that is neither source nor sink, under `composition`.

    Keys have the weights of the settings; else those that a table names are taken as equally frequent, and as all.
    Raises DataflowError for a version of a key table that does not exist.
    """
    found: dict[str, Mapping[str, float]] = {}
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            active = composition.alternate(operator).name
            version = composition.tables.get(operator.name, 0)
            found[operator.name] = _by_key(operator.name, active, version, settings, tables) if version else {active: 1.0}
    return found


def _by_key(operator: str, active: str, version: int, settings: Settings, tables: KeyTables) -> Mapping[str, float]:
    table, weights = tables.find(operator, version), settings.key_weights.get(operator, {})
    if not weights:
        return table.shares(table.rows, active) if len(table) else {active: 1.0}
    total, shares = sum(weights.values()), dict[str, float]()
    for key, weight in weights.items():
        alternate = table.alternate(key) or active
        shares[alternate] = shares.get(alternate, 0.0) + weight / total
    return {name: share for name, share in shares.items() if share > 0}


def costs_of(graph: Graph, settings: Settings, shares: Shares) -> dict[str, Cost]:
    """Of a record at every operator of `shares`, on average.

    Raises DataflowError for an alternate that runs and whose cost is not known.
    """
    found = {}
    for name, parts in shares.items():
        operator = graph.by_name[name]
        work = selectivity = 0.0
        for alternate, share in parts.items():
            own = own_cost(operator, operator.alternate(alternate), settings)
            if own is None:
                raise DataflowError(_without_cost(name, alternate))
            work, selectivity = work + share * own.work, selectivity + share * own.selectivity
        found[name] = Cost(work, selectivity)
    return found


def _without_cost(operator: str, alternate: str) -> str:
    return (
        f"operator {operator!r} has no cost for alternate {alternate!r}; the simulation needs core-seconds per record: "
        "declare `cost`, or calibrate with a recorded run"
    )


def unsimulated(graph: Graph, switch: Switch, settings: Settings, tables: KeyTables) -> str:
    """Why what `switch` chooses cannot be simulated; empty where it can. It names an element of `graph`."""
    match switch:
        case SwitchAlternate(operator, alternate):
            needed = {alternate}
        case SetKeyTable(operator, version) if version:
            try:
                table = tables.find(operator, version).check(selection_of(graph, operator))
            except DataflowError as error:
                return str(error)
            needed = set(table.rows.values())
        case _:
            return ""
    chosen = graph.by_name[operator]
    missing = [a.name for a in chosen.alternates if a.name in needed and own_cost(chosen, a, settings) is None]
    return _without_cost(operator, missing[0]) if missing else ""


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
