"""Differences between the supported Spark releases, in one table.

Java sources and settings are written for the newest release; on an older one, names are replaced before use. Calls that an
older release lacks disable their mechanism.
"""

from typing import NamedTuple

from elastream.spark.jvm.releases import release_of


class Spelling(NamedTuple):
    """A spelling `now`, valid since release `since`; earlier releases have `before`."""

    since: tuple[int, int]
    now: str
    before: str
    what: str


STREAMING = "org.apache.spark.sql.execution.streaming"

IS_JOIN = 'plan.nodeName().equals("StreamingSymmetricHashJoin")'
JOIN_STORES = '"left-keyToNumValues,left-keyWithIndexToValue,right-keyToNumValues,right-keyWithIndexToValue"'
ONE_STORE = '"default"'

# Rows apply in this order.
SPELLINGS: tuple[Spelling, ...] = (
    Spelling((4, 1), f"{STREAMING}.runtime.", f"{STREAMING}.", "the execution of a query, and of its batches"),
    Spelling((4, 1), f"{STREAMING}.operators.stateful.", f"{STREAMING}.", "operators with state"),
    Spelling((4, 1), f"{STREAMING}.checkpointing.", f"{STREAMING}.", "how files of a checkpoint come into being"),
    Spelling((4, 2), ", boolean reading, boolean empty)", ", boolean reading)", "RocksDB.load: whether it begins empty"),
    Spelling((4, 2), "(version, id, reading, empty)", "(version, id, reading)", "the same"),
    Spelling((4, 2), "(version, scala.Option.empty(), true, false)", "(version, scala.Option.empty(), true)", "the same"),
    Spelling((4, 2), " && !empty", "", "the same"),
    Spelling((4, 2), "scala.Option id, boolean snapshot, boolean empty)", "scala.Option id)", "getStore: how it begins"),
    Spelling((4, 2), "(version, id, snapshot, empty)", "(version, id)", "the same"),
    Spelling((4, 2), 'SCALA + "HDFSBackedStateStoreProvider$$loadedMaps"', '"loadedMaps"', "private before"),
    Spelling((4, 2), 'SCALA + "RocksDB$$rocksDBFileMapping"', '"rocksDBFileMapping"', "the same"),
    Spelling((4, 2), 'SCALA + "RocksDB$$lastSnapshotVersion_$eq"', '"lastSnapshotVersion_$eq"', "the same"),
    # Scopes have carried plan node numbers since; before, they were numbered top down, like stateful operators.
    Spelling((4, 2), "append(plan.id())", "append(info.operatorId())", "the order of plan nodes"),
    Spelling((4, 2), 'scope.id().startsWith("spark_plan_")', 'scope.id().matches("[0-9]+")', "scopes of plan nodes"),
    Spelling((4, 2), "scope.id().substring(11)", "scope.id()", "the same"),
    Spelling(
        (4, 1),
        'writer.stateStoreNames().mkString(",")',
        f"({IS_JOIN} ? {JOIN_STORES} : {ONE_STORE})",
        "the stores of an operator",
    ),
)


# The first release with standby replicas: 4.0 constructs and loads RocksDB in another way.
STANDBY_SINCE = (4, 1)


def for_release(text: str, version: str) -> str:
    """Return `text`, written for the newest release, in the spelling of Spark `version`."""
    release = release_of(version)
    for change in SPELLINGS:
        if release < change.since:
            text = text.replace(change.now, change.before)
    return text


class Further(NamedTuple):
    """A last argument of the Spark constructor `call`, present since release `since`."""

    since: tuple[int, int]
    call: str
    value: bool
    what: str


# Arguments of one call stand in their order.
FURTHER_ARGUMENTS: tuple[Further, ...] = (
    Further((4, 3), "LocalTableScanExec", False, "whether the table is to be scanned as a stream's source"),
)


def further_arguments(call: str, version: str) -> tuple[bool, ...]:
    """Return the arguments that `call` takes on Spark `version` beyond those of all releases."""
    return tuple(each.value for each in FURTHER_ARGUMENTS if each.call == call and release_of(version) >= each.since)
