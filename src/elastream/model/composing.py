"""How compositions follow one another: all switches of a plan make one new version, and how strictly records keep to one.

Both plants compose by these functions. When a version comes into force is the plant's business, and shows in
`Observation.effective`. Consistency and update latency: thesis, p. 50.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from elastream.model.action import SetKeyTable, Switch, SwitchAlternate, SwitchEdge
from elastream.model.errors import InputError
from elastream.model.graph import Graph
from elastream.model.observation import Composition
from elastream.model.stages import Layout

__all__ = ["Consistency", "consistency_of", "holder", "refusal", "switched"]


class Consistency(StrEnum):
    """What a record that is on its way through several queries meets when the composition changes."""

    BATCH = "batch"
    """Each query takes the new version with its next batch: no batch mixes two, a record may meet both on its way."""
    WAVE = "wave"
    """A record keeps the version that it entered under, through all queries: those behind a durable edge change when the
    first records of the new version reach them."""
    DRAIN = "drain"
    """Sources wait until all records have been processed, then every query takes the new version, then they go on."""
    REWIRED = "rewired"
    """Every operator changes at once, whatever is under way (simulation only: Spark never mixes two in a batch)."""


def consistency_of(name: str, *, simulated: bool = False) -> Consistency:
    """The mode called `name`. Raises InputError that names the modes there are."""
    modes = [mode for mode in Consistency if simulated or mode is not Consistency.REWIRED]
    if name not in modes:
        raise InputError(f"consistency {name!r} is none of {', '.join(modes)}", ("consistency",))
    return Consistency(name)


def refusal(graph: Graph, switch: Switch) -> str:
    """Why `graph` has nothing that `switch` could choose; empty where it has. Which key tables exist the plant knows."""
    match switch:
        case SwitchAlternate(operator) | SetKeyTable(operator) if operator not in graph.by_name:
            return f"there is no operator {operator!r}"
        case SwitchAlternate(operator, alternate):
            if alternate in (names := [each.name for each in graph.by_name[operator].alternates]):
                return ""
            return f"operator {operator!r} has no alternate {alternate!r} (it has: {', '.join(names) or 'none'})"
        case SwitchEdge(choice, target):
            if choice not in graph.choices:
                return f"there is no choice {choice!r} (there are: {', '.join(graph.choices) or 'none'})"
            targets = graph.choices[choice]
            return "" if target in targets else f"choice {choice!r} has no target {target!r} (it has: {', '.join(targets)})"
        case SetKeyTable(operator, table):
            if not graph.by_name[operator].selects:
                return f"operator {operator!r} does not choose its alternate by key"
            return "" if table >= 0 else f"there is no version {table} of a key table; 0 is none"


def switched(now: Composition, switches: Sequence[Switch]) -> Composition:
    """`now` after all of `switches`, one version on; `now` itself if nothing differs. Of two on one element, the last."""
    after = now
    for switch in switches:
        match switch:
            case SwitchAlternate(operator, alternate):
                after = replace(after, alternates={**after.alternates, operator: alternate})
            case SwitchEdge(choice, target):
                after = replace(after, choices={**after.choices, choice: target})
            case SetKeyTable(operator, table) if after.tables.get(operator, 0) != table:
                after = replace(after, tables={**after.tables, operator: table})
            case SetKeyTable():
                pass  # none at all and version 0 are the same
    return now if after == now else replace(after, version=now.version + 1)


def holder(layout: Layout, switch: Switch) -> str:
    """The query (segment) in which `switch` shows: the one that runs the operator, or the one that emits to the choice."""
    if isinstance(switch, SwitchEdge):
        return next(layout.stage_of[edge.source].segment for edge in layout.graph.edges if edge.choice == switch.choice)
    return layout.stage_of[switch.operator].segment
