"""What waits for an operator and how long it may, for policies that add instances where records wait: VISP's.

Apart every operator has a queue. Fused, all that a query's sources and durable edges bring waits for the next micro-batch,
and with it for every stage of the query: which of them holds it up, its queue does not tell.
"""

import math

from elastream.core.frames import known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.dataflow.operators import Kind
from elastream.dataflow.stages import Segment, Unit
from elastream.policies.common.measures import total_of

NO_INSTANCE = "no instance can be added where records wait"
"""How a policy says that what waits is beyond it."""

TRANSIT = 0.05
"""Seconds within which records are on their way and do not wait: at thousands a second, a look at a queue finds some."""


def segment_of(context: Context, unit: Unit) -> Segment:
    """The query that a unit is part of."""
    name = context.layout.stage_of[unit.operators[0]].segment
    return next(each for each in context.layout.segments if each.name == name)


def measured_at(context: Context, unit: Unit) -> tuple[str, ...]:
    """Operators whose durations are a unit's: its own; fused, also the one that its query is named after."""
    if context.layout.unchained:
        return unit.operators
    return tuple(dict.fromkeys((*unit.operators, segment_of(context, unit).name)))


def waiting(observation: Observation, unit: Unit) -> float:
    """Records that wait for a unit; NaN if unknown.

    Without those that are on their way, or came during a micro-batch: these wait for the next in any case.
    """
    context, frame = observation.context, observation.operators
    if context.layout.unchained:
        names, during = unit.operators, TRANSIT
    else:
        names = segment_of(context, unit).operators
        during = observation.latency(Metric.BATCH_DURATION).value or 0.0
    queue = known_sum([frame.value(name, Metric.BACKLOG) for name in names])
    rate = total_of(frame, Metric.ARRIVAL_RATE, entries(context, unit))
    if math.isnan(queue) or not rate * during >= 1:  # records are whole: where few come, each counts
        return queue
    return max(0.0, queue - rate * during)


def entries(context: Context, unit: Unit) -> tuple[str, ...]:
    """Operators at which the records arrive that wait for a unit: its own first; fused, those that its query takes from."""
    if context.layout.unchained:
        return unit.operators[:1]
    segment, by_name = segment_of(context, unit), context.graph.by_name
    own = [name for name in segment.operators if by_name[name].kind is Kind.SOURCE]
    return tuple(dict.fromkeys([*own, *(edge.target for edge in segment.inputs)]))


def service_levels(context: Context) -> dict[str, float]:
    """Seconds allowed to each operator, by name; operators that nothing is promised of are left out.

    An operator has the level that it declares. The first of a stage, which has the queue, has the sum of those that its
    stage declares - that of a query whose first stage only reads, of those that the query does; where none is declared, an
    equal part of the target latency: the longest way through the dataflow leads through so many queues.
    """
    layout, graph = context.layout, context.graph
    declares = {o.name: o.max_duration for o in graph.operators if o.max_duration is not None}
    found = dict(declares)
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
        if stage.name not in found and declared:
            found[stage.name] = math.fsum(declared)
        elif stage.name not in found and context.target_latency is not None and longest:
            found[stage.name] = context.target_latency / longest
    return found


def fixed_queue(context: Context) -> str:
    """Why adding instances where records wait does nothing, as no query can have more; empty where it does for some."""
    if not context.scalable:
        return "no operator of the dataflow can have more instances, and it adds nothing else"
    if context.layout.unchained or len(fixed := _fixed(context)) < len(context.layout.segments):
        return ""
    return (
        f"it adds instances where records wait, and those that wait for {fixed[0].name!r} wait for tasks with state, or "
        "for those that its source gives it, which have a fixed number"
    )


def fixed_waits(observation: Observation, above: float) -> tuple[str, ...]:
    """A sentence for each query for which more than `above` records wait, and of which no stage can have more instances."""
    context = observation.context
    found = []
    for segment in () if context.layout.unchained else _fixed(context):
        unit = next(each for each in context.units if each.operators[0] in segment.operators)
        if (queue := waiting(observation, unit)) > above:
            found.append(
                f"{NO_INSTANCE}: {queue:,.0f} wait for {segment.name!r}, for tasks with state, or those that its source "
                "gives it, which have a fixed number"
            )
    return tuple(found)


def widened_queries(context: Context) -> frozenset[str]:
    """Names of the queries of which a stage can have more instances."""
    widens = {name for unit in context.units if unit.scalable for name in unit.operators}
    return frozenset(each.name for each in context.layout.segments if widens & set(each.operators))


def _fixed(context: Context) -> tuple[Segment, ...]:
    """The other queries."""
    widened = widened_queries(context)
    return tuple(each for each in context.layout.segments if each.name not in widened)
