"""Finds the stateful operators of a running query, their stores, and which of them share a task.

Any classic query has them in the plan of its last batch: aggregations, deduplications, stream-stream joins, functions with
state. Operators without a shuffle between them run in one task, so that their partitions can only move together: such a
group is one `StatefulStage`, which policies see as one operator. Read-only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from elastream.spark.jvm.driver_side import DriverSide
from elastream.spark.jvm.gateway import Java


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """One stateful operator. id: its number in Spark's plan, as in the checkpoint. kind: such as `"StateStoreSave"`.

    stores: `("default",)` for most, four with `left-` and `right-` names for a stream-stream join. rank: its position among
    the query's stateful operators by age of their plan nodes, which also appears in the stages of every batch.
    """

    id: int
    kind: str = ""
    stores: tuple[str, ...] = ("default",)
    rank: int = 0


@dataclass(frozen=True, slots=True)
class StatefulStage:
    """Stateful operators that run in one task per partition. name: unique in its query. root: folder of the state."""

    name: str
    partitions: int
    root: str
    operators: tuple[StatefulOperator, ...]


def stateful_stages(driver: DriverSide, execution: Java) -> tuple[StatefulStage, ...] | None:
    """The stages with state of the query of `execution` (Spark's StreamExecution), upstream first.

    None if unknown: no batch has a plan yet.
    """
    answer = driver.ask("stateful", driver.context, execution)
    if not answer:
        return None
    rows = answer[1:]
    ages = sorted(int(row[3]) for row in rows)
    found = []
    for _, members in groupby(sorted(rows, key=lambda row: (int(row[0]), int(row[1]))), key=itemgetter(0)):
        group = list(members)
        operators = tuple(
            StatefulOperator(int(each[1]), each[4], tuple(each[6].split(",")), ages.index(int(each[3]))) for each in group
        )
        name = "+".join(f"{_word(operator.kind)}{operator.id}" for operator in operators)
        found.append(StatefulStage(name, int(group[0][2]), group[0][5], operators))
    return tuple(found[::-1])


def ranked_kinds(stages: Sequence[StatefulStage]) -> str:
    """Kinds of all stateful operators of a query by rank, in the form of `DriverSide.tasks`."""
    return ",".join(each.kind for each in sorted((o for s in stages for o in s.operators), key=lambda o: o.rank))


def _word(kind: str) -> str:
    """A common word for an operator: `"join"` for `"StreamingSymmetricHashJoin"`."""
    known = {
        "StateStoreSave": "aggregate",
        "StreamingSymmetricHashJoin": "join",
        "StreamingDeduplicate": "deduplicate",
        "SessionWindowStateStoreSave": "session",
        "FlatMapGroupsInPandasWithState": "apply-in-pandas-with-state",
        "TransformWithStateInPySpark": "transform-with-state",
    }
    return known.get(kind) or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()
