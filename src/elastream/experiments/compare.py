"""Compares policies in simulation, on one dataflow, load and price list. What comes of it is `comparison`'s."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from elastream.core.composition import Consistency
from elastream.core.fitting import refuse_unreachable
from elastream.core.hosts import HostType
from elastream.core.plant import Policy
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, selection_of
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import ElastreamError, InputError
from elastream.experiments.cases import cores, run_beside
from elastream.experiments.comparison import Comparison, Peak
from elastream.experiments.trials import Scene, tried
from elastream.experiments.worth import goal_of
from elastream.guards.document import GuardDocument
from elastream.loads import LinkSource, LinkTrace, SpeedSource, SpeedTrace
from elastream.policies.common.provision import Costs, declared_cores, for_cores, rates_of
from elastream.policies.common.reach import beyond_partitions
from elastream.simulator import Settings, Travel
from elastream.units import format_duration

Trace = TypeVar("Trace", SpeedTrace, LinkTrace)

SINGLE_UP_TO = 2_000_000
"""Most records of a load that are simulated as single items; larger loads are simulated as cohorts."""

BEYOND_PEAK = 2
"""Times the hosts that the load's peak fills: state partitions for these suffice whatever a policy leases."""


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
    min_hosts: int = 1,
    monitor: float = 15.0,
    period: float = 60.0,
    seed: int = 1,
    fused: bool = False,
    settings: Settings | None = None,
    guards: GuardDocument | None = None,
    tables: Sequence[KeyTable] = (),
    consistency: Consistency | None = None,
    replicas: int | None = None,
    state_partitions: int | None = None,
    speeds: SpeedSource | None = None,
    links: LinkSource | None = None,
    scaling: ScalingRules = NO_RULES,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Comparison:
    """Run every policy on the same load and seed.

    load: for every source, in place of what the sources declare. seconds: how long; the longest load where not given.
    target: fraction of records that must be in time. max_hosts, min_hosts: of hosts at once, also
    at the start. monitor, period: seconds between observations and between plans.
    fused: whether stages are scaled as on Spark, or (False) every operator by itself. guards, tables: in force all along.
    consistency, replicas, state_partitions: in place of those of `settings`; without these, a policy has as many state
    partitions as in a run on twice the hosts that the load's peak fills, or on the most that there may be. speeds, links:
    what hosts and links do meanwhile, as factors on what is declared, in place of the traces of `settings`. scaling: rules
    for the number of hosts. Raises
    InputError for a load that never ends without `seconds`, and what the simulated plant refuses.
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
    if consistency is not None:
        base = replace(base, consistency=consistency)
    if replicas is not None:
        base = replace(base, replicas=replicas)
    if state_partitions is not None:
        base = replace(base, state_partitions=state_partitions)
    base = replace(
        base,
        speed_trace=base.speed_trace if speeds is None else _a(SpeedTrace, speeds.over(length), speeds),
        link_trace=base.link_trace if links is None else _a(LinkTrace, links.over(length), links),
    )
    for table in tables:
        table.check(selection_of(graph, table.operator))
    layout = lay_out(graph, fused=fused)
    refuse_unreachable(layout, host_types, target_latency)
    loads = {source: pattern for source, pattern in patterns.items() if pattern is not None}
    goal = goal_of(graph, policies.values(), length)
    scene = Scene(
        layout, host_types, loads, length, records, base, target_latency, max_hosts, period, seed, guards, tables, goal,
        min_hosts=min_hosts,
    )  # fmt: skip
    fixed = None if settings is None and state_partitions is None else base.state_partitions
    peak = _static_peak(layout, host_types, loads, length, target_latency, scene.costs, fixed)
    if fixed is None:
        widest = max_hosts if isinstance(peak, str) else min(max_hosts, BEYOND_PEAK * peak.hosts)
        scene = replace(scene, partitions_for=widest)
    scene = replace(scene, scaling=scaling)
    trials = run_beside(
        lambda named, tell: tried(scene, *named, tell),
        _checked(scene, policies),
        cores(),
        lambda told, done: progress(_how_far(tuple(policies), told, done, length), sum(done), len(done)),
    )
    return Comparison(graph, length, records, target, tuple(trials), peak, target_latency)


def _a(kind: type[Trace], found: object, source: object) -> Trace:
    """`found`, which `source` gave for a run, maybe a class of the user's; raises InputError where it is no such trace."""
    if isinstance(found, kind):
        return found
    raise InputError(f"{type(source).__name__}.over returned a {type(found).__name__}, not a {kind.__name__}")


def _checked(scene: Scene, policies: Mapping[str, Policy]) -> list[tuple[str, Policy]]:
    """The policies by name, each of which the plant takes: what is refused is refused before anything is simulated."""
    for number, policy in enumerate(policies.values()):
        plant, _ = scene.set_up(policy)
        if number == 0:
            plant.advance(scene.settings.monitor)  # loads the compiled loops, which workers inherit
    return list(policies.items())


def _how_far(names: Sequence[str], told: Sequence[float], done: Sequence[bool], length: float) -> str:
    """A text such as "threshold 1 h, btu 30 min of 3 h, 2 to begin"; policies that are done are left out."""
    left = [(name, far) for name, far, over in zip(names, told, done, strict=True) if not over]
    going = [f"{name} {format_duration(far)}" for name, far in left if far > 0]
    waiting = len(left) - len(going)
    said = [f"{', '.join(going)} of {format_duration(length)}"] if going else []
    return ", ".join([*said, *([f"{waiting} to begin"] if waiting else [])]) or "done"


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
    partitions: int | None,
) -> Peak | str:
    """The cheapest provision that the load's peak fills, leased for all of it; why it is not known where it is not.

    partitions: state partitions of each keyed operator; None: enough.
    """
    try:
        rates = rates_of(layout.graph, loads, "peak", seconds=length, window=target_latency, costs=costs)
        work = declared_cores(layout.graph, rates, costs)
    except ElastreamError as error:
        return str(error)
    found, why = [], ""
    for type in host_types:
        try:
            provision = for_cores(layout, type, work)
        except ElastreamError as error:
            why = str(error)
        else:
            bound = "" if partitions is None else beyond_partitions(layout, work, type.slot, partitions)
            found.append(Peak(provision.hosts, type.name, provision.cost(type, length), bound))
    return min(found, key=lambda peak: peak.cost) if found else why
