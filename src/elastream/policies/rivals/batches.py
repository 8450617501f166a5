"""Micro-batches and their tasks, for rivals that were made for Spark."""

import math

import numpy as np

from elastream.core.action import Action, SetParallelism
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.policies.rivals.groups import Group

# Spark's default number of tasks after a shuffle (`spark.sql.shuffle.partitions`).
SHUFFLE_PARTITIONS = 200


def due_seconds(group: Group, observation: Observation, interval: float) -> float:
    """Return the duration of a batch of all records that wait, at least those of `interval` seconds; NaN without a batch.

    Elastream limits a batch and starts the next one at once. These rivals expect batches of all that is due at a trigger,
    so records beyond the last batch count at the true processing rate.
    """
    if not observation.batches:
        return math.nan
    last = max(observation.batches, key=lambda each: each.seconds)
    more = float(np.fmax(group.rate * interval, group.backlog)) - last.records
    return last.seconds + more / group.capacity if group.capacity > 0 and (more > 0 or interval > 0) else last.seconds


def widest(observation: Observation) -> int:
    """Return the tasks of the widest stage with state; Spark's default if there is none."""
    keyed = [stage.name for stage in observation.context.layout.stages if stage.keyed]
    tasks = [observation.operators.value(name, Metric.PARALLELISM) for name in keyed]
    return round(max((each for each in tasks if each > 0), default=SHUFFLE_PARTITIONS))


def fixed_tasks(observation: Observation) -> list[Action]:
    """Return changes that give each stateless stage as many tasks as the widest one: Spark's number is fixed."""
    context, tasks = observation.context, widest(observation)
    return [
        SetParallelism(name, tasks, why="a fixed number of tasks")
        for name in sorted(context.scalable)
        if not context.graph.by_name[name].waits and observation.composition.parallelism.get(name) != tasks
    ]
