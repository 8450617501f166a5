"""How compositions follow one another: all switches of a plan make one new version, and how strictly records keep to one.

Both plants compose by these functions. When a version comes into force is the plant's business, and shows in
`Observation.effective`. Consistency and update latency: thesis, p. 50.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from elastream.core.action import Switch
from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import Layout
from elastream.errors import DataflowError, InputError

AT = ("consistency",)
"""Where a document or a program says it."""


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
        raise InputError(f"consistency {name!r} is none of {', '.join(modes)}", AT)
    return Consistency(name)


def switched(now: Composition, switches: Sequence[Switch]) -> Composition:
    """Return `now` after all of `switches`, one version on; `now` itself if nothing differs."""
    after = now
    for switch in switches:
        after = switch.onto_composition(after)
    return now if after == now else replace(after, version=now.version + 1)


def changed_operators(graph: Graph, before: Composition, after: Composition) -> frozenset[str]:
    """Operators that process records in another way: by another alternate or key table, or choosing another branch."""
    found = {
        operator.name
        for operator in graph.operators
        if before.alternates.get(operator.name) != after.alternates.get(operator.name)
        or before.tables.get(operator.name, 0) != after.tables.get(operator.name, 0)
    }
    found |= {
        edge.source
        for edge in graph.edges
        if edge.choice is not None and before.choices.get(edge.choice) != after.choices.get(edge.choice)
    }
    return frozenset(found)


def refuse_inconsistent(layout: Layout, consistency: Consistency) -> None:
    """Raise DataflowError where Spark cannot keep to `consistency` with this dataflow. One query keeps to each of them."""
    graph = layout.graph
    if consistency is Consistency.REWIRED:
        raise DataflowError("consistency 'rewired' is simulated only: on Spark no micro-batch mixes two compositions", AT)
    if consistency is Consistency.BATCH or len(layout.segments) == 1:
        return
    for edge in graph.edges:
        if edge.durable == "kafka":
            raise DataflowError(
                f"dataflow {graph.name!r}: consistency {str(consistency)!r} needs durable edges of files, and the edge "
                f"{edge.source} -> {edge.target} is a Kafka topic, whose records do not tell their version: make it "
                "'parquet', or use 'batch'",
                AT,
            )
    for source in graph.sources:
        if consistency is Consistency.DRAIN and source.load is None:
            raise DataflowError(
                f"dataflow {graph.name!r}: consistency 'drain' holds sources back, and the source {source.name!r} has no "
                "load of ours: Spark reads it on; use 'wave' or 'batch'",
                AT,
            )
    if consistency is Consistency.WAVE:
        _refuse_mute(layout)


def _refuse_mute(layout: Layout) -> None:
    """Refuse a query that waits for what nobody can tell it: that no record of an older version comes over an edge.

    A source that Spark reads itself has no batch without records, so that nothing behind it hears of a version meanwhile.
    """
    graph, tells = layout.graph, dict[str, bool]()
    for segment in layout.segments:
        upstream = {edge: layout.stage_of[edge.source].segment for edge in segment.inputs}
        mute = [edge for edge, name in upstream.items() if not tells.get(name)]
        if mute and len(upstream) > 1:
            raise DataflowError(
                f"dataflow {graph.name!r}: consistency 'wave' cannot merge {mute[0].source!r} with others over durable "
                "edges: it comes from a source without a load of ours, which passes on no version while it has no records, "
                "and the others would wait for it; use 'batch'",
                AT,
            )
        loads = [name for name in segment.operators if name in graph.loads]
        tells[segment.name] = not mute if upstream else bool(loads)


@dataclass(frozen=True, slots=True)
class Update:
    """A change of the composition while records are under way (update latency and consistency: thesis, p. 50).

    version: the new one. requested: seconds on the clock of the run. in_force: when the last query with a changed element
    committed a batch under it; NaN while one has not. until: when the last batch was committed that ran in one of them
    under an older version; NaN if there was none. mixed: records that passed one changed element under an older version and
    another one under this or a later one.
    """

    version: int
    requested: float
    in_force: float = math.nan
    until: float = math.nan
    mixed: float = 0.0

    @property
    def latency(self) -> float:
        """Seconds from the request until nothing ran under an older version any more; NaN while that is not known."""
        if math.isnan(self.in_force):
            return math.nan
        return 0.0 if math.isnan(self.until) else max(0.0, self.until - self.requested)


def update_figures(updates: Sequence[Update]) -> Mapping[str, float]:
    """What the updates of a run came to, for its ending: their number, latencies of those in force, records mixed.

    Nothing where there were none.
    """
    if not updates:
        return {}
    known = sorted(update.latency for update in updates if not math.isnan(update.latency))
    latencies = {"update latency": known[len(known) // 2], "longest update": known[-1]} if known else {}
    return {"updates": len(updates), **latencies, "mixed records": sum(update.mixed for update in updates)}
