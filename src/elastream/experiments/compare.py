"""Compares policies in simulation, on one dataflow, load and price list. What comes of it is `comparison`'s."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from elastream.experiments.comparison import Comparison, Peak, Trial
from elastream.experiments.simulated import simulated
from elastream.model.cloud import HostType
from elastream.model.endpoints import ArrivalPattern
from elastream.model.errors import ElastreamError, InputError
from elastream.model.fitting import refuse_unreachable
from elastream.model.graph import Graph
from elastream.model.plant import Policy, refuse_unfit
from elastream.model.stages import Layout, lay_out
from elastream.model.units import format_duration
from elastream.planning.policies.static import sized
from elastream.planning.provision import Costs, declared
from elastream.simulation import Result, Settings, Travel, make_plant

__all__ = ["compare"]

SINGLE_UP_TO = 2_000_000
"""Most records of a load that are simulated as single items; larger loads are simulated as cohorts."""


def compare(
    graph: Graph,
    policies: Mapping[str, Policy],
    host_types: Sequence[HostType],
    *,
    load: ArrivalPattern | None = None,
    seconds: float | None = None,
    target: float = 0.95,
    target_latency: float | None = None,
    max_hosts: int = 1_000,
    monitor: float = 15.0,
    period: float = 60.0,
    seed: int = 1,
    fused: bool = False,
    settings: Settings | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Comparison:
    """Run every policy on the same load and seed.

    load: for every source, in place of what the sources declare. seconds: how long; the longest load where not given.
    target: fraction of records that must be in time. monitor, period: seconds between observations and between plans.
    fused: whether stages are scaled as on Spark, or (False) every operator by itself. Raises InputError for a load that
    never ends without `seconds`, and whatever the simulated plant refuses.
    """
    if not policies:
        raise InputError("there is no policy to compare")
    if not 0 <= target <= 1:
        raise InputError(f"a target of {target:g} is no fraction between 0 and 1")
    patterns = {source.name: load or source.load for source in graph.sources}
    known = [pattern for pattern in patterns.values() if pattern is not None]
    length = seconds if seconds is not None else max((pattern.seconds for pattern in known), default=0.0)
    if not 0 < length < math.inf:
        raise _no_length(graph, patterns, load, length)
    records = sum(pattern.count(length) for pattern in known)
    if not records:
        raise InputError(f"the load has no record in {format_duration(length)}: give another load, or a longer limit")
    base = settings or Settings(monitor=monitor, travel=Travel.COHORTS if records > SINGLE_UP_TO else Travel.SINGLE)
    layout = lay_out(graph, fused=fused)
    refuse_unreachable(layout, host_types, target_latency)
    loads = {source: pattern for source, pattern in patterns.items() if pattern is not None}
    costs = {operator: (each.cost, each.selectivity) for operator, each in base.services.items()}
    trials = []
    for number, (name, policy) in enumerate(policies.items()):
        progress(name, number, len(policies))
        policy = sized(policy, layout, host_types, loads, seconds=length, window=target_latency, costs=costs)
        plant = make_plant(
            layout,
            host_types=host_types,
            loads=loads,
            seed=seed,
            settings=base,
            max_hosts=max_hosts,
            target_latency=target_latency,
            seconds=length,
        )
        refuse_unfit(policy, plant.context)
        run = simulated(plant, policy, period=period, until=length)
        waiting = sum(operator.queued for operator in run.result.operators.values())
        late = _overdue(layout, run.result, loads, length, records, target_latency)
        kept = _compliance(run.result, target_latency, late)
        trials.append(Trial(name, run.result.cost, kept, run.result, waiting, run.refused, run.lacked, late))
        progress(name, number + 1, len(policies))
    peak = _static_peak(layout, host_types, loads, length, target_latency, costs)
    return Comparison(graph, length, records, target, tuple(trials), peak, target_latency)


def _no_length(
    graph: Graph, patterns: Mapping[str, ArrivalPattern | None], load: ArrivalPattern | None, length: float
) -> InputError:
    """Why there is no length to simulate: a load without an end, or no load."""
    bare = [name for name, pattern in patterns.items() if pattern is None]
    if not length:
        lacking = f": source {', '.join(map(repr, bare))} declares none" if bare else ""
        at = ("operators", bare[0], "load") if bare else ()
        return InputError(
            f"there is no load to simulate{lacking}; give one with --load, such as --load 50/s --limit 1h", at
        )
    how = "say how long to simulate with --limit, such as --limit 1h, or give the load an end (`lasting`)"
    if load is not None:
        return InputError(f"--load: the load never ends: {how}")
    name = next(source.name for source in graph.sources if source.load is not None and math.isinf(source.load.seconds))
    return InputError(f"the load of source {name!r} never ends: {how}", ("operators", name, "load"))


def _static_peak(
    layout: Layout,
    host_types: Sequence[HostType],
    loads: Mapping[str, ArrivalPattern],
    length: float,
    target_latency: float | None,
    costs: Costs,
) -> Peak | str:
    """The cheapest provision that the load's peak fills, leased for all of it; why it is not known where it is not."""
    found, why = [], ""
    for type in host_types:
        try:
            provision = declared(layout, type, loads, seconds=length, window=target_latency, costs=costs)
        except ElastreamError as error:
            why = str(error)
        else:
            found.append(Peak(provision.hosts, type.name, provision.cost(type, length)))
    return min(found, key=lambda peak: peak.cost) if found else why


def _overdue(
    layout: Layout,
    result: Result,
    loads: Mapping[str, ArrivalPattern],
    length: float,
    records: int,
    target_latency: float | None,
) -> float:
    """Fraction of the records that have not reached a sink at the end, and were due so early that they are late."""
    graph = layout.graph
    done: dict[str, float] = {}
    for name in graph.order:
        part = min((done[edge.source] for edge in graph.inputs[name]), default=1.0)
        if (operator := result.operators.get(name)) is not None:
            arrived = max(operator.arrived, operator.done + operator.queued + operator.in_service)
            part *= 1 - (operator.queued + operator.in_service) / arrived if arrived > 0 else 1.0
        done[name] = part
    if target_latency is None and not any(operator.max_duration is not None for operator in graph.operators):
        return 0.0
    levels = sum(operator.max_duration or 0.0 for operator in graph.operators)
    grace = levels if target_latency is None else target_latency
    young = sum(load.count(length) - load.count(max(0.0, length - grace)) for load in loads.values())
    return max(0.0, 1 - min(done[sink.name] for sink in graph.sinks) - young / records)


def _compliance(result: Result, target_latency: float | None, overdue: float) -> float | None:
    """Fraction of records in time: end to end where a target latency is given, else of operators' service levels.

    overdue: fraction that still waits and is late by now; those are not in time. None where nothing is promised.
    """
    if target_latency is None:
        if not any(operator.within for operator in result.operators.values()):
            return None
        found = result.compliance(1.0)
        return 0.0 if math.isnan(found) else found * (1 - overdue)
    kept, offered = result.series[:, 5], result.series[:, 1]
    seen = ~np.isnan(kept) & (offered > 0)
    return float(np.average(kept[seen], weights=offered[seen])) * (1 - overdue) if seen.any() else 0.0
