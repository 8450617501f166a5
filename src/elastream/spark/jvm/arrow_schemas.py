"""Arrow schemas of Spark schemas, on all releases of PySpark that Elastream runs on."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

# Since 4.2 PySpark's function takes a time zone; before, times are in UTC.
ZONED = "timezone" in inspect.signature(to_arrow_schema).parameters


def arrow_schema(schema: StructType, zone: str = "UTC", *, zoned: bool = ZONED) -> pa.Schema:
    """Return `schema` as Arrow, with its zoned times in the time zone `zone`; zoned: True if PySpark takes a zone."""
    if zoned:
        return to_arrow_schema(schema, timezone=zone)
    return to_arrow_schema(schema) if zone == "UTC" else in_zone(to_arrow_schema(schema), zone)


def in_zone(schema: pa.Schema, zone: str | None) -> pa.Schema:
    """Return `schema` with its zoned times in `zone`, or without a zone for None, and each field nullable."""
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
