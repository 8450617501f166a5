"""Cost and selectivity of each operator under a composition, by alternates and key shares."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from elastream.core.action import SetKeyTable, Switch, SwitchAlternate, UpdateCode
from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTables, selection_of
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.errors import DataflowError
from elastream.simulator.settings import Settings

# Fraction of an operator's records by alternate; alternates without records are left out.
Shares: TypeAlias = Mapping[str, Mapping[str, float]]


class Cost(NamedTuple):
    """Core-seconds of speed 1, and records out, of a record at an operator."""

    work: float
    selectivity: float


def own_cost(operator: Operator, alternate: Alternate, settings: Settings) -> Cost | None:
    """Return the cost of a record under `alternate`, or None if unknown.

    Its own measurement comes first. Then its declaration precedes the operator's measurement only if some alternate is
    measured.
    """
    measured = settings.service(operator.name)
    of_all, declared = (measured.cost, measured.selectivity), (alternate.cost, alternate.selectivity)
    sources = (declared, of_all) if measured.alternates else (of_all, declared)
    candidates = (measured.alternates.get(alternate.name, (None, None)), *sources)
    cost = next((each for each, _ in candidates if each is not None), None)
    selectivity = next((each for _, each in candidates if each is not None), None)
    return None if cost is None else Cost(cost, 1.0 if selectivity is None else selectivity)


def shares_in(graph: Graph, settings: Settings, composition: Composition, tables: KeyTables) -> Shares:
    """Return the alternates' shares for each operator between sources and sinks.

    Without weights, the table's keys are equally frequent and the only ones. Raises DataflowError for a missing table
    version.
    """
    shares: dict[str, Mapping[str, float]] = {}
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            active = composition.alternate(operator).name
            version = composition.tables.get(operator.name, 0)
            shares[operator.name] = _by_key(operator.name, active, version, settings, tables) if version else {active: 1.0}
    return shares


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
    """Return the mean cost of a record by operator.

    Raises DataflowError for a running alternate without a cost.
    """
    costs = {}
    for name, parts in shares.items():
        operator = graph.by_name[name]
        work = selectivity = 0.0
        for alternate, share in parts.items():
            own = own_cost(operator, operator.alternate(alternate), settings)
            if own is None:
                raise DataflowError(_without_cost(name, alternate))
            work, selectivity = work + share * own.work, selectivity + share * own.selectivity
        costs[name] = Cost(work, selectivity)
    return costs


def _without_cost(operator: str, alternate: str) -> str:
    return (
        f"operator {operator!r} has no cost for alternate {alternate!r}; the simulation needs core-seconds per record: "
        "declare `cost`, or calibrate with a recorded run"
    )


def unsimulated(graph: Graph, switch: Switch, settings: Settings, tables: KeyTables) -> str:
    """Return why `switch` cannot be simulated; empty if it can."""
    match switch:
        case SwitchAlternate(operator, alternate):
            needed = {alternate}
        case SetKeyTable(operator, version) if version:
            try:
                table = tables.find(operator, version).check(selection_of(graph, operator))
            except DataflowError as error:
                return str(error)
            needed = set(table.rows.values())
        case UpdateCode():
            return "a simulation runs no code of operators: simulate the new file"
        case _:
            return ""
    chosen = graph.by_name[operator]
    missing = [a.name for a in chosen.alternates if a.name in needed and own_cost(chosen, a, settings) is None]
    return _without_cost(operator, missing[0]) if missing else ""


def greatest_selectivity(graph: Graph, settings: Settings) -> dict[str, float]:
    """Return the largest known selectivity by operator."""
    greatest = {}
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            costs = [own_cost(operator, alternate, settings) for alternate in operator.alternates]
            greatest[operator.name] = max((each.selectivity for each in costs if each is not None), default=1.0)
    return greatest


class Demand(NamedTuple):
    """Demand of a record that a query takes, under one composition.

    Attributes:
        results: Records that reach a sink other than a signal.
        runs: Operators that receive records, with running alternates.
    """

    epoch: int
    composition: Composition
    work: Mapping[str, float]
    volume: Mapping[str, float]
    out: Mapping[Edge, float]
    results: float
    signals: tuple[str, ...]
    runs: tuple[tuple[str, str], ...]
