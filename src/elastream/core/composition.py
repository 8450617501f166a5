"""Succession of compositions: all switches of a plan make one new version (thesis, p. 50)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from elastream.core.action import Switch
from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import Layout
from elastream.errors import DataflowError, InputError

# Key of the setting in a document.
AT = ("consistency",)


class Consistency(StrEnum):
    """Composition of a record that passes several queries during a change."""

    # each query switches with its next batch: no batch mixes versions, a record may meet both
    BATCH = "batch"
    # a record keeps its first version; queries after a durable edge switch with the new version's first records
    WAVE = "wave"
    # sources pause until all records are processed; then every query switches
    DRAIN = "drain"
    # every operator switches at once (simulation only: on Spark no batch mixes versions)
    REWIRED = "rewired"


def consistency_of(name: str, *, simulated: bool = False) -> Consistency:
    """Return the mode called `name`, or raise InputError."""
    modes = [mode for mode in Consistency if simulated or mode is not Consistency.REWIRED]
    if name not in modes:
        raise InputError(f"consistency {name!r} is none of {', '.join(modes)}", AT)
    return Consistency(name)


def switched(now: Composition, switches: Sequence[Switch]) -> Composition:
    """Return the next version of `now` with `switches`; `now` itself if nothing differs."""
    after = now
    for switch in switches:
        after = switch.onto_composition(after)
    return now if after == now else replace(after, version=now.version + 1)


def changed_operators(graph: Graph, before: Composition, after: Composition) -> frozenset[str]:
    """Return the operators whose alternate, code, key table or branch differs."""
    changed = {
        operator.name
        for operator in graph.operators
        if before.alternates.get(operator.name) != after.alternates.get(operator.name)
        or before.tables.get(operator.name, 0) != after.tables.get(operator.name, 0)
        or before.code.get(operator.name, 0) != after.code.get(operator.name, 0)
    }
    changed |= {
        edge.source
        for edge in graph.edges
        if edge.choice is not None and before.choices.get(edge.choice) != after.choices.get(edge.choice)
    }
    return frozenset(changed)


def check_consistency(layout: Layout, consistency: Consistency) -> None:
    """Raise DataflowError if Spark cannot run this dataflow with `consistency`."""
    graph = layout.graph
    if consistency is Consistency.REWIRED:
        raise DataflowError("consistency 'rewired' is simulated only: on Spark no micro-batch mixes two compositions", AT)
    if consistency is Consistency.BATCH or len(layout.segments) == 1:
        return
    for edge in graph.edges:
        if edge.durable == "kafka":
            raise DataflowError(
                f"dataflow {graph.name!r}: consistency {str(consistency)!r} needs durable edges of files, and the edge "
                f"{edge.source} -> {edge.target} is a Kafka topic, whose records carry no version: make it "
                "'parquet', or use 'batch'",
                AT,
            )
    for source in graph.sources:
        if consistency is Consistency.DRAIN and source.load is None:
            raise DataflowError(
                f"dataflow {graph.name!r}: consistency 'drain' stops sources, and the source {source.name!r} has no "
                "declared load, so Spark keeps reading it; use 'wave' or 'batch'",
                AT,
            )
    if consistency is Consistency.WAVE:
        _check_merges(layout)


def _check_merges(layout: Layout) -> None:
    """Reject a merge that waits for an edge from a source that cannot announce a version."""
    graph, tells = layout.graph, dict[str, bool]()
    for segment in layout.segments:
        upstream = {edge: layout.stage_of[edge.source].segment for edge in segment.inputs}
        mute = [edge for edge, name in upstream.items() if not tells.get(name)]
        if mute and len(upstream) > 1:
            raise DataflowError(
                f"dataflow {graph.name!r}: consistency 'wave' cannot merge {mute[0].source!r} with others over durable "
                "edges: it comes from a source without a declared load, which forwards no version while it has no records, "
                "and the others would wait for it; use 'batch'",
                AT,
            )
        loads = [name for name in segment.operators if name in graph.loads]
        tells[segment.name] = not mute if upstream else bool(loads)


@dataclass(frozen=True, slots=True)
class Update:
    """Change of the composition while records are under way."""

    version: int
    requested: float
    in_force: float = math.nan  # time of the last affected query's commit under it; NaN before
    until: float = math.nan  # last commit under an older version, or NaN
    mixed: float = 0.0  # records that passed changed elements under both versions

    @property
    def latency(self) -> float:
        """Return the time from request to the end of older versions (seconds); NaN while unknown."""
        if math.isnan(self.in_force):
            return math.nan
        return 0.0 if math.isnan(self.until) else max(0.0, self.until - self.requested)


def update_figures(updates: Sequence[Update]) -> Mapping[str, float]:
    if not updates:
        return {}
    latencies = sorted(update.latency for update in updates if not math.isnan(update.latency))
    times = {"update latency": latencies[len(latencies) // 2], "longest update": latencies[-1]} if latencies else {}
    return {"updates": len(updates), **times, "mixed records": sum(update.mixed for update in updates)}
