"""Comparison of policies in simulation, on one dataflow, load and price list."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from elastream.core.composition import consistency_of
from elastream.core.fitting import check_service_levels
from elastream.core.plant import Policy
from elastream.core.wording import counted
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import selection_of
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import links_from, speeds_from
from elastream.errors import ElastreamError, InputError
from elastream.evaluation.bound import Problem, lower_bound, problem_of
from elastream.evaluation.comparison import (
    BEST_CONSTANT,
    STATIC_PEAK_SIMULATED,
    Bound,
    Comparison,
    Gap,
    Peak,
    Trial,
    cheaper,
)
from elastream.evaluation.trials import Scene, cores, run_beside, tried
from elastream.evaluation.worth import goal_of
from elastream.guards.document import load_guards
from elastream.loads import LinkTrace, SpeedTrace, load_from
from elastream.loads.pattern import Pattern
from elastream.policies.common.provision import declared_cores, provision_for_cores, rates_of
from elastream.policies.common.reach import beyond_partitions
from elastream.policies.horizon.policy import Horizon
from elastream.policies.static import Static
from elastream.settings import SimulateSettings
from elastream.simulator import Settings, Travel
from elastream.units import format_duration

Trace = TypeVar("Trace", SpeedTrace, LinkTrace)

# seconds between observations and between plans, for chained stages: those of a run on Spark
FUSED = (1.0, 2.0)
# likewise for unchained stages: those of VISP
APART = (15.0, 60.0)
# records; larger loads are simulated as cohorts, not as single items
SINGLE_UP_TO = 2_000_000

# state partitions for this multiple of the peak's hosts suffice for any policy
BEYOND_PEAK = 2


def compare(
    graph: Graph,
    policies: Mapping[str, Policy],
    settings: SimulateSettings,
    *,
    constants: Settings | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Comparison:
    """Run every policy on one load and seed.

    Raises:
        InputError: The load has neither end nor limit, or the plant refuses something.
    """
    scene, peak = scene_of(graph, policies, settings, constants)
    length = scene.seconds
    trials = run_beside(
        lambda named, tell: tried(scene, *named, tell),
        _checked(scene, policies),
        cores(),
        lambda fractions, done: progress(_how_far(tuple(policies), fractions, done, length), sum(done), len(done)),
    )
    clocks = (each.begins for each in scene.loads.values() if isinstance(each, Pattern))
    begins = next((each for each in clocks if each is not None), None)
    result = Comparison(graph, length, scene.records, settings.target, tuple(trials), peak, settings.latency, begins=begins)
    if settings.bound:
        progress("bound", len(trials), len(trials))
        peak = _best_constant(scene, result, peak) if result.promised else peak
        return _bounded(scene, replace(result, peak=peak), policies)
    return replace(result, peak=_tried_if_better(scene, result, peak))


def scene_of(
    graph: Graph, policies: Mapping[str, Policy], settings: SimulateSettings, constants: Settings | None = None
) -> tuple[Scene, Peak | str]:
    if not policies:
        raise InputError("there is no policy to compare")
    consistency = consistency_of(settings.consistency, simulated=True)
    guards = None if settings.guards is None else load_guards(Path(settings.guards), graph)
    speeds = None if settings.speeds is None else speeds_from(settings.speeds)
    links = None if settings.links is None else links_from(settings.links)
    load = load_from(settings.load) if isinstance(settings.load, str | Path) else settings.load
    patterns = {source.name: load or source.load for source in graph.sources}
    loads = {name: pattern for name, pattern in patterns.items() if pattern is not None}
    whole = max((pattern.seconds for pattern in loads.values()), default=0.0)
    length = whole if settings.limit is None else float(settings.limit)
    if not 0 < length < math.inf:
        raise _no_length(graph, patterns, load, length)
    records = sum(pattern.count(length) for pattern in loads.values())
    if not records:
        raise InputError(f"the load has no record in {format_duration(length)}: give another load, or a longer limit")
    fused = bool(settings.fused)
    monitor, period = FUSED if fused else APART
    period = period if settings.period is None else float(settings.period)
    base = constants or Settings(monitor=monitor, travel=Travel.COHORTS if records > SINGLE_UP_TO else Travel.SINGLE)
    base = replace(
        base,
        consistency=consistency,
        replicas=settings.replicas,
        state_partitions=settings.state_partitions or base.state_partitions,
    )
    if speeds is not None:
        base = replace(base, speed_trace=_a(SpeedTrace, speeds.over(length), speeds))
    if links is not None:
        base = replace(base, link_trace=_a(LinkTrace, links.over(length), links))
    for table in settings.tables:
        table.check(selection_of(graph, table.operator))
    layout = lay_out(graph, chained=fused)
    check_service_levels(layout, settings.types, settings.latency)
    goal = goal_of(graph, policies.values(), length)
    scene = Scene(layout, loads, length, records, base, settings, period, guards, goal)
    fixed = None if constants is None and settings.state_partitions is None else base.state_partitions
    peak = _static_peak(scene, fixed)
    if fixed is None:
        widest = scene.max_hosts if isinstance(peak, str) else min(scene.max_hosts, BEYOND_PEAK * peak.hosts)
        scene = replace(scene, partitions_for=widest)
    return scene, peak


def _a(kind: type[Trace], trace: object, source: object) -> Trace:
    if isinstance(trace, kind):
        return trace
    raise InputError(f"{type(source).__name__}.over returned a {type(trace).__name__}, not a {kind.__name__}")


def _checked(scene: Scene, policies: Mapping[str, Policy]) -> list[tuple[str, Policy]]:
    for number, policy in enumerate(policies.values()):
        plant, _ = scene.set_up(policy)
        if number == 0:
            plant.advance(scene.constants.monitor)  # loads the compiled loops, which workers inherit
    return list(policies.items())


def _how_far(names: Sequence[str], times: Sequence[float], done: Sequence[bool], length: float) -> str:
    left = [(name, far) for name, far, over in zip(names, times, done, strict=True) if not over]
    going = [f"{name} {format_duration(far)}" for name, far in left if far > 0]
    waiting = len(left) - len(going)
    parts = [f"{', '.join(going)} of {format_duration(length)}"] if going else []
    return ", ".join([*parts, *([f"{waiting} to begin"] if waiting else [])]) or "done"


def _no_length(
    graph: Graph, patterns: Mapping[str, ArrivalPattern | None], load: ArrivalPattern | None, length: float
) -> InputError:
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


def _tried_if_better(scene: Scene, result: Comparison, peak: Peak | str) -> Peak | str:
    if isinstance(peak, str) or peak.bound or peak.hosts > scene.max_hosts:
        return peak
    if result.winner is not None and not cheaper(peak.cost, result.winner.cost):
        return peak
    static = Static(peak.hosts, host_type=peak.type)
    return replace(peak, trial=tried(scene, STATIC_PEAK_SIMULATED, static, lambda _: None))


def _best_constant(scene: Scene, result: Comparison, peak: Peak | str) -> Peak | str:
    guess = 1 if isinstance(peak, str) else peak.hosts
    fleets = [each for each in (_smallest(scene, result, type.name, guess) for type in scene.settings.types) if each]
    if fleets:
        return min(fleets, key=lambda each: each.cost)
    return f"no constant fleet of at most {counted(scene.max_hosts, 'host')} meets the target"


def _smallest(scene: Scene, result: Comparison, type: str, guess: int) -> Peak | None:
    """Return the smallest fleet of `type` that meets the target, or None."""
    trials: dict[int, Trial] = {}

    def meets(hosts: int) -> bool:
        trials[hosts] = tried(scene, BEST_CONSTANT, Static(hosts, host_type=type), lambda _: None)
        return result.meets(trials[hosts])

    below, hosts = scene.min_hosts - 1, max(scene.min_hosts, min(guess, scene.max_hosts))
    while not meets(hosts):
        if hosts == scene.max_hosts:
            return None
        below, hosts = hosts, min(2 * hosts, scene.max_hosts)
    while hosts - below > 1:
        middle = (below + hosts) // 2
        below, hosts = (below, middle) if meets(middle) else (middle, hosts)
    return Peak(hosts, type, trials[hosts].cost, trial=trials[hosts], in_hindsight=True)


def _bounded(scene: Scene, result: Comparison, policies: Mapping[str, Policy]) -> Comparison:
    try:
        problem = problem_of(scene, result.target)
        bound = lower_bound(problem)
        missed = [trial for trial in result.trials if not result.meets(trial)]
        reached = {trial.name: lower_bound(problem_of(scene, trial.compliance or 0.0), whole=False) for trial in missed}
    except InputError as error:
        return replace(result, bound=str(error))
    result = replace(result, bound=bound, bounds=reached)
    with suppress(InputError):  # the parts are worth less than the trials
        return replace(result, gap=_gap(scene, result, problem, bound, policies))
    return result


def _gap(scene: Scene, result: Comparison, problem: Problem, bound: Bound, policies: Mapping[str, Policy]) -> Gap | None:
    for trial, policy in zip(result.trials, policies.values(), strict=True):
        if isinstance(policy, Horizon) and not policy.perfect and result.meets(trial):
            leases = tuple(replace(each, start=0.0) for each in problem.leases)
            by_second = tuple(replace(each, unit=1.0, first=1.0) for each in leases)
            work = lower_bound(replace(problem, leases=by_second, min_hosts=0), whole=False).cost
            at_once = lower_bound(replace(problem, leases=leases), whole=bound.whole).cost
            perfect = tried(scene, trial.name, replace(policy, perfect=True), lambda _: None).cost
            work, at_once = min(work, at_once, bound.cost), min(at_once, bound.cost)  # each is solved to its own accuracy
            parts = np.diff([0.0, work, at_once, bound.cost, perfect, trial.cost])
            return Gap(trial.name, *parts.tolist())
    return None


def _static_peak(scene: Scene, partitions: int | None) -> Peak | str:
    layout, costs, latency = scene.layout, scene.costs, scene.settings.latency
    try:
        rates = rates_of(layout.graph, scene.loads, "peak", seconds=scene.seconds, window=latency, costs=costs)
        work = declared_cores(layout.graph, rates, costs)
    except ElastreamError as error:
        return str(error)
    peaks, why = [], ""
    for type in scene.settings.types:
        try:
            provision = provision_for_cores(layout, type, work)
        except ElastreamError as error:
            why = str(error)
        else:
            bound = "" if partitions is None else beyond_partitions(layout, work, type.slot, partitions)
            peaks.append(Peak(provision.hosts, type.name, provision.cost(type, scene.seconds), bound))
    return min(peaks, key=lambda peak: peak.cost) if peaks else why
