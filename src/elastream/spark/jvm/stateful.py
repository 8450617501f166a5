"""Stateful operators of a running query, their stores, and which of them share a task.

Operators without a shuffle between them run in one task and move together: one `StatefulStage`, one operator to policies.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from elastream.spark.jvm.driver_side import DriverSide, Java


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """One stateful operator."""

    id: int  # its number in Spark's plan and checkpoint
    kind: str = ""  # such as `"StateStoreSave"`
    stores: tuple[str, ...] = ("default",)  # `("default",)` for most, four for a stream-stream join
    rank: int = 0  # position among the query's stateful operators by age of plan nodes


@dataclass(frozen=True, slots=True)
class StatefulStage:
    """Stateful operators that share a task per partition. `name` is unique in its query; `root` is the state's folder."""

    name: str
    partitions: int
    root: str
    operators: tuple[StatefulOperator, ...]


def stateful_stages(driver: DriverSide, execution: Java) -> tuple[StatefulStage, ...] | None:
    """Return the stateful stages of the query of `execution` (Spark's StreamExecution), upstream first.

    None if no batch has a plan yet.
    """
    answer = driver.ask("stateful", driver.context, execution)
    if not answer:
        return None
    rows = answer[1:]
    ages = sorted(int(row[3]) for row in rows)
    stages = []
    for _, members in groupby(sorted(rows, key=lambda row: (int(row[0]), int(row[1]))), key=itemgetter(0)):
        group = list(members)
        operators = tuple(
            StatefulOperator(int(each[1]), each[4], tuple(each[6].split(",")), ages.index(int(each[3]))) for each in group
        )
        name = "+".join(f"{_word(operator.kind)}{operator.id}" for operator in operators)
        stages.append(StatefulStage(name, int(group[0][2]), group[0][5], operators))
    return tuple(stages[::-1])


def ranked_kinds(stages: Sequence[StatefulStage]) -> str:
    """Return the kinds of all stateful operators of a query by rank, as `TaskLoads.java` takes them."""
    return ",".join(each.kind for each in sorted((o for s in stages for o in s.operators), key=lambda o: o.rank))


def _word(kind: str) -> str:
    words = {
        "StateStoreSave": "aggregate",
        "StreamingSymmetricHashJoin": "join",
        "StreamingDeduplicate": "deduplicate",
        "SessionWindowStateStoreSave": "session",
        "FlatMapGroupsInPandasWithState": "apply-in-pandas-with-state",
        "TransformWithStateInPySpark": "transform-with-state",
    }
    return words.get(kind) or re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()
