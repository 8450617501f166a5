"""What differs in Spark's internals between the releases that Elastream runs on: one table.

Java sources and settings are written for the newest release. On an older one, each name that it spells another way is
replaced before the source is compiled or the setting is made; nothing else in the package asks for the release. What no
spelling brings back (a call that an older release lacks) is left to the probe: that mechanism is missing there and says so.
What calls from Python take is here, too: `further` of Spark's constructors, `arrow_schema` of PySpark's functions.
"""

import inspect
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from elastream.spark.jvm.releases import release_of


class Spelling(NamedTuple):
    """A spelling that came with release `since`. now: in that one and later; before: in earlier ones; what: it is."""

    since: tuple[int, int]
    now: str
    before: str
    what: str


STREAMING = "org.apache.spark.sql.execution.streaming"

JOIN = 'plan.nodeName().equals("StreamingSymmetricHashJoin")'
FOUR = '"left-keyToNumValues,left-keyWithIndexToValue,right-keyToNumValues,right-keyWithIndexToValue"'
ONE = '"default"'

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
    # Scopes carry the number of their plan node since; before, they are numbered as the plan is executed, from the top
    # down, which is how operators with state are.
    Spelling((4, 2), "append(plan.id())", "append(info.operatorId())", "the order of plan nodes"),
    Spelling((4, 2), 'scope.id().startsWith("spark_plan_")', 'scope.id().matches("[0-9]+")', "scopes of plan nodes"),
    Spelling((4, 2), "scope.id().substring(11)", "scope.id()", "the same"),
    Spelling((4, 1), 'writer.stateStoreNames().mkString(",")', f"({JOIN} ? {FOUR} : {ONE})", "the stores of an operator"),
)
"""Each row is one difference; rows apply in this order."""


COPIES = (4, 1)
"""The first release with which copies of state are kept: in 4.0 what they extend, RocksDB, is made and loaded otherwise."""


def for_release(text: str, version: str) -> str:
    """`text`, written for the newest release, as Spark `version` spells it."""
    release = release_of(version)
    for change in SPELLINGS:
        if release < change.since:
            text = text.replace(change.now, change.before)
    return text


class Further(NamedTuple):
    """A last argument of `call`, the constructor of a class of Spark, that is there since release `since`."""

    since: tuple[int, int]
    call: str
    value: bool
    what: str


FURTHER: tuple[Further, ...] = (
    Further((4, 3), "LocalTableScanExec", False, "whether the table is to be scanned as a stream's source"),
)
"""Each row is one argument; those of one call in their order."""


def further(call: str, version: str) -> tuple[bool, ...]:
    """What `call` takes on Spark `version` beyond the arguments that it has on all releases."""
    return tuple(each.value for each in FURTHER if each.call == call and release_of(version) >= each.since)


ZONED = "timezone" in inspect.signature(to_arrow_schema).parameters
"""Whether PySpark's Arrow schemas take a time zone, since 4.2; before, times are in UTC."""


def arrow_schema(schema: StructType, zone: str = "UTC") -> pa.Schema:
    """`schema` as Arrow, with times (not those without a zone) in the time zone `zone`."""
    if ZONED:
        return to_arrow_schema(schema, timezone=zone)
    return to_arrow_schema(schema) if zone == "UTC" else in_zone(to_arrow_schema(schema), zone)


def in_zone(schema: pa.Schema, zone: str | None) -> pa.Schema:
    """`schema` with all times that have a time zone in `zone`; None: without saying which. Any field may be null then."""
    return pa.schema([pa.field(each.name, _type_in_zone(each.type, zone)) for each in schema])


def _type_in_zone(kind: pa.DataType, zone: str | None) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, zone) if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _type_in_zone(each.type, zone)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_type_in_zone(kind.value_type, zone))
    if pa.types.is_map(kind):
        return pa.map_(_type_in_zone(kind.key_type, zone), _type_in_zone(kind.item_type, zone))
    return kind
