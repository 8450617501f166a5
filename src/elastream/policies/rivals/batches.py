"""Micro-batches and their tasks, for rivals that were made for Spark."""

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from elastream.core.action import Action, SetParallelism
from elastream.core.frames import known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.policies.common.measures import total_of
from elastream.policies.common.queues import entries

# Spark's default number of tasks after a shuffle (`spark.sql.shuffle.partitions`).
SHUFFLE_PARTITIONS = 200
# Batches of a query that count, and the least ratio of their sizes that shows what a record costs.
REMEMBERED, APART = 30, 1.1

# By query, (records a core, seconds) of its last batches.
Batches: TypeAlias = Mapping[str, tuple[tuple[float, float], ...]]


def with_new(before: Batches, observation: Observation) -> Batches:
    """Return `before` with the batches committed since the last observation."""
    cores = math.fsum(observation.leases[host].type.cores for host in observation.working)
    batches = dict(before)
    for each in observation.batches if cores else ():
        pairs = (*batches.get(each.segment, ()), (each.records / cores, each.seconds))
        batches[each.segment] = pairs[-REMEMBERED:]
    return batches


def due_seconds(observation: Observation, batches: Batches, interval: float) -> float:
    """Return the duration of a batch of all records that wait, at least those of `interval` seconds; NaN if unknown.

    Elastream limits a batch and starts the next one at once. These rivals know batches that take all that is due at a
    trigger, so theirs is predicted by a line through the last ones. The slowest query counts.
    """
    cores = math.fsum(observation.leases[host].type.cores for host in observation.usable)
    durations = [math.nan]
    for segment in observation.context.layout.segments:
        pairs = batches.get(segment.name, ())
        unit = next(each for each in observation.context.units if each.operators[0] in segment.operators)
        rate = total_of(observation.operators, Metric.ARRIVAL_RATE, entries(observation.context, unit))
        waiting = known_sum([observation.operators.value(name, Metric.BACKLOG) for name in segment.operators])
        due = np.fmax(rate * interval, waiting) / cores if cores else math.nan
        if pairs and not math.isnan(due):
            durations.append(_duration(pairs, float(due)))
    return float(np.fmax.reduce(durations))


def _duration(pairs: tuple[tuple[float, float], ...], due: float) -> float:
    """Return the duration of a batch of `due` records a core, or of the last batch if all have one size."""
    sizes, seconds = np.array(pairs, dtype=np.float64).T
    if not sizes.max() > APART * sizes.min():
        return float(seconds[-1])
    slope = float(np.cov(sizes, seconds)[0, 1] / np.var(sizes, ddof=1))
    fixed = max(0.0, float(seconds.mean()) - slope * float(sizes.mean()))
    return fixed + slope * due if slope > 0 else float(seconds[-1])


def widest(observation: Observation) -> int:
    """Return the tasks of the widest stage with state; Spark's default if there is none."""
    keyed = [stage.name for stage in observation.context.layout.stages if stage.keyed]
    tasks = [observation.operators.value(name, Metric.PARALLELISM) for name in keyed]
    return round(max((each for each in tasks if each > 0), default=SHUFFLE_PARTITIONS))


def fixed_tasks(observation: Observation) -> list[Action]:
    """Return changes that give each stateless stage as many tasks as the widest one: Spark's do not follow the hosts."""
    context, tasks = observation.context, widest(observation)
    return [
        SetParallelism(name, tasks, why="a fixed number of tasks")
        for name in sorted(context.scalable)
        if not context.graph.by_name[name].waits and observation.composition.parallelism.get(name) != tasks
    ]
