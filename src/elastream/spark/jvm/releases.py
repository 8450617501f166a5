"""Supported Spark releases, and the differences between them. Does not import PySpark.

Java sources and settings are written for the newest release; on an older one, names are replaced before use, and mechanisms
without their calls are disabled.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

# Tested releases. Later ones of the same major version are tried: each mechanism is probed.
OLDEST, NEWEST = (4, 0), (4, 3)


def release_of(version: str) -> tuple[int, int]:
    """Return the release of a version: (4, 3) for `4.3.0-SNAPSHOT`."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def installed() -> str:
    """Return the version of the PySpark that would be imported; empty if unreadable without importing it."""
    if (loaded := sys.modules.get("pyspark")) is not None:
        return str(loaded.__version__)
    try:
        place = find_spec("pyspark")
        text = Path(str(place and place.origin)).with_name("version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):  # in an archive
        return ""
    match = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", text)
    return match[1] if match else ""


def refusal(version: str) -> str:
    """Return why nothing here works with PySpark `version`, and what would; empty if it is to be tried."""
    release = release_of(version)
    if release >= OLDEST and release[0] == NEWEST[0]:
        return ""
    first, last = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    needed = f"Elastream needs Spark {NEWEST[0]} ({first} to {last} are tested), and this is PySpark {version}"
    return f"{needed}: pip install 'pyspark>={first},<{NEWEST[0] + 1}'"


class Spelling(NamedTuple):
    """A spelling `now`, valid since release `since`; earlier releases have `before`."""

    since: tuple[int, int]
    now: str
    before: str
    what: str


STREAMING = "org.apache.spark.sql.execution.streaming"

STORES_BEFORE = (
    '(plan.nodeName().equals("StreamingSymmetricHashJoin") ? "left-keyToNumValues,left-keyWithIndexToValue,'
    'right-keyToNumValues,right-keyWithIndexToValue" : "default")'
)

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
    Spelling((4, 1), 'writer.stateStoreNames().mkString(",")', STORES_BEFORE, "the stores of an operator"),
)


# The first release with standby replicas: 4.0 constructs and loads RocksDB in another way.
STANDBY_SINCE = (4, 1)


def for_release(text: str, version: str) -> str:
    release = release_of(version)
    for change in SPELLINGS:
        if release < change.since:
            text = text.replace(change.now, change.before)
    return text


# Last arguments of Spark's constructors, by the release since which they are present, in their order.
FURTHER_ARGUMENTS: tuple[tuple[tuple[int, int], str, bool], ...] = (
    ((4, 3), "LocalTableScanExec", False),  # whether the table is to be scanned as a stream's source
)


def further_arguments(call: str, version: str) -> tuple[bool, ...]:
    return tuple(value for since, name, value in FURTHER_ARGUMENTS if name == call and release_of(version) >= since)
