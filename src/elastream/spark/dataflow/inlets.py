"""What enters a region, as frames: native column expressions are applied, and several inlets become one stream."""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from elastream.dataflow.chains import Inlet
from elastream.spark.dataflow.channels import selected
from elastream.spark.worker.fused import ENTRY


def entering(frame: DataFrame, inlet: Inlet, lane: str | None) -> DataFrame:
    """`frame` after the native part of `inlet`. lane: as for `together`."""
    found = selected(frame, inlet.natives, [])
    return found if lane is None else found.coalesce(1)


def together(frames: Sequence[DataFrame], lanes: Sequence[str | None]) -> DataFrame:
    """Several inlets as one frame: rows say which they came by, and carry their columns in a struct of that inlet's.

    lanes: of each inlet the stage that it leads to, where that runs in one task; None: in as many as the inlet has.
    """
    schemas = [frame.schema for frame in frames]
    tagged: dict[str | int, DataFrame] = {}
    for number, frame in enumerate(frames):
        columns = [F.lit(number).alias(ENTRY)]
        for other, schema in enumerate(schemas):
            empty = F.lit(None).cast(schema)
            columns.append((F.struct(*schema.names) if other == number else empty).alias(f"_{other}"))
        lane, rows = lanes[number] or number, frame.select(*columns)
        tagged[lane] = tagged[lane].unionAll(rows).coalesce(1) if lane in tagged else rows
    return reduce(lambda left, right: left.unionAll(right), tagged.values())
