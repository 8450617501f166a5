"""Queues and allowed waiting times of operators, for VISP's policies.

Unchained, every operator has a queue. Chained, all records of a query wait for its next micro-batch: its queue does not
show which stage is slow.
"""

import math

from elastream.core.frames import known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.dataflow.operators import Kind
from elastream.dataflow.stages import Segment, Unit
from elastream.policies.common.measures import total_of

# Beginning of the remark if no instance can be added where records wait.
NO_INSTANCE = "no instance can be added where records wait"

# Seconds for which records are in transit and do not count as waiting.
TRANSIT_S = 0.05


def segment_of(context: Context, unit: Unit) -> Segment:
    name = context.layout.stage_of[unit.operators[0]].segment
    return next(each for each in context.layout.segments if each.name == name)


def measured_at(context: Context, unit: Unit) -> tuple[str, ...]:
    """Return the operators whose durations count for a unit.

    Unchained, its own. Chained, also the operator that names its query, where the query's durations are recorded.
    """
    if context.layout.unchained:
        return unit.operators
    return tuple(dict.fromkeys((*unit.operators, segment_of(context, unit).name)))


def waiting(observation: Observation, unit: Unit) -> float:
    """Return the records that wait for a unit, less those in transit or in one micro-batch."""
    context, frame = observation.context, observation.operators
    if context.layout.unchained:
        names, during = unit.operators, TRANSIT_S
    else:
        names = segment_of(context, unit).operators
        during = observation.latency(Metric.BATCH_DURATION).value or 0.0
    queue = known_sum([frame.value(name, Metric.BACKLOG) for name in names])
    rate = total_of(frame, Metric.ARRIVAL_RATE, entries(context, unit))
    if math.isnan(queue) or not rate * during >= 1:  # records are whole: where few come, each counts
        return queue
    return max(0.0, queue - rate * during)


def entries(context: Context, unit: Unit) -> tuple[str, ...]:
    """Return the operators where a unit's records arrive; chained, where its query reads."""
    if context.layout.unchained:
        return unit.operators[:1]
    segment, by_name = segment_of(context, unit), context.graph.by_name
    own = [name for name in segment.operators if by_name[name].kind is Kind.SOURCE]
    return tuple(dict.fromkeys([*own, *(edge.target for edge in segment.inputs)]))


def service_levels(context: Context) -> dict[str, float]:
    """Return the seconds allowed to each operator with a promise.

    An operator has its declared level. The first operator of a stage has the queue, and gets the sum of the stage's levels.
    Without declared levels it gets the target latency over the number of queues on the longest path.
    """
    layout, graph = context.layout, context.graph
    declares = {o.name: o.max_duration for o in graph.operators if o.max_duration is not None}
    levels = dict(declares)
    queues: dict[str, int] = {}
    for name in graph.order:
        working = graph.by_name[name].kind in (Kind.TRANSFORM, Kind.KEYED)
        leads = layout.stage_of[name].name == name and (working or len(layout.stage_of[name].operators) > 1)
        queues[name] = leads + max((queues[edge.source] for edge in graph.inputs[name]), default=0)
    longest = max(queues.values(), default=0)
    for stage in layout.stages:
        members = stage.operators
        if all(graph.by_name[name].kind in (Kind.SOURCE, Kind.SINK) for name in members):
            if layout.unchained or stage.name != stage.segment:
                continue
            members = next(each.operators for each in layout.segments if each.name == stage.segment)
        declared = [declares[name] for name in members if name in declares]
        if stage.name not in levels and declared:
            levels[stage.name] = math.fsum(declared)
        elif stage.name not in levels and context.target_latency is not None and longest:
            levels[stage.name] = context.target_latency / longest
    return levels


def fixed_queue(context: Context) -> str:
    """Return why more instances would help no query with waiting records; empty if they help one."""
    if not context.scalable:
        return "no operator of the dataflow can have more instances, and it adds nothing else"
    if context.layout.unchained or len(fixed := _fixed_queries(context)) < len(context.layout.segments):
        return ""
    return (
        f"it adds instances where records wait, and those that wait for {fixed[0].name!r} wait for tasks with state, or "
        "for those that its source gives it, which have a fixed number"
    )


def fixed_waits(observation: Observation, above: float) -> tuple[str, ...]:
    """Return a remark for each query with more than `above` waiting records that no further instance would help."""
    context = observation.context
    remarks = []
    for segment in () if context.layout.unchained else _fixed_queries(context):
        unit = next(each for each in context.units if each.operators[0] in segment.operators)
        if (queue := waiting(observation, unit)) > above:
            remarks.append(
                f"{NO_INSTANCE}: {queue:,.0f} wait for {segment.name!r}, for tasks with state, or those that its source "
                "gives it, which have a fixed number"
            )
    return tuple(remarks)


def widened_queries(context: Context) -> frozenset[str]:
    """Return the queries of which a stage can have more instances."""
    widens = {name for unit in context.units if unit.scalable for name in unit.operators}
    return frozenset(each.name for each in context.layout.segments if widens & set(each.operators))


def _fixed_queries(context: Context) -> tuple[Segment, ...]:
    widened = widened_queries(context)
    return tuple(each for each in context.layout.segments if each.name not in widened)
