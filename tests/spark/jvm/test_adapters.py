"""One table says what older releases of Spark spell another way; nothing else of the package asks for the release."""

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, MapType, StringType, StructType, TimestampNTZType, TimestampType

from elastream.spark.jvm import arrow_schemas
from elastream.spark.jvm.arrow_schemas import arrow_schema, in_zone
from elastream.spark.jvm.driver_side import HERE
from elastream.spark.jvm.jars import COPIES
from elastream.spark.jvm.releases import NEWEST, OLDEST, SPELLINGS, for_release, further_arguments
from elastream.spark.jvm.session import FILES_OF_CHECKPOINTS

WRITTEN = "\n".join(each.read_text() for each in (*HERE.glob("*.java"), *COPIES.glob("*.java"))) + FILES_OF_CHECKPOINTS


@pytest.mark.parametrize("change", SPELLINGS, ids=lambda change: change.now)
def test_each_row_is_used_and_speaks_of_a_release_that_is_covered(change):
    assert change.now in WRITTEN
    assert OLDEST < change.since <= NEWEST


@pytest.mark.parametrize("change", SPELLINGS, ids=lambda change: change.now)
def test_an_older_release_meets_no_spelling_that_came_later(change):
    major, minor = change.since
    assert change.now not in for_release(WRITTEN, f"{major}.{minor - 1}.9")


@pytest.mark.parametrize(
    ("version", "arguments"), [("4.0.5", ()), ("4.2.9", ()), ("4.3.0", (False,)), ("4.10.0", (False,))]
)
def test_a_constructor_takes_what_its_release_added(version, arguments):
    assert further_arguments("LocalTableScanExec", version) == arguments
    assert further_arguments("anything else", version) == ()


TIME = TimestampType()
TIMES = (
    StructType()
    .add("at", TIME)
    .add("plain", TimestampNTZType())
    .add("all", ArrayType(TIME))
    .add("by", MapType(StringType(), TIME))
    .add("both", StructType().add("a", TIME).add("b", IntegerType()))
)


def types_of(schema: pa.Schema) -> list[pa.DataType]:
    """Types, without the names that containers give to their elements."""
    return [pa.list_(each.value_type) if pa.types.is_list(each) else each for each in schema.types]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Vienna"])
def test_a_release_that_knows_utc_only_gives_the_same_schema(zone, monkeypatch):
    def utc_only(schema, **options):
        assert "timezone" not in options
        return newest(schema, timezone="UTC")

    newest = arrow_schemas.to_arrow_schema
    expected = arrow_schema(TIMES, zone)
    monkeypatch.setattr(arrow_schemas, "to_arrow_schema", utc_only)
    assert types_of(arrow_schema(TIMES, zone, zoned=False)) == types_of(expected)
    assert arrow_schema(TIMES, zone, zoned=False).names == expected.names


def test_times_may_leave_their_zone_unsaid():
    found = in_zone(arrow_schema(TIMES), None)
    assert found.field("at").type == found.field("plain").type == pa.timestamp("us")
    assert found.field("both").type == pa.struct([("a", pa.timestamp("us")), ("b", pa.int32())])
