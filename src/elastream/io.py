"""Sources and sinks of a dataflow."""

from typing import TYPE_CHECKING

from elastream._lazy import lazy_names

if TYPE_CHECKING:
    from elastream.dataflow.endpoints import Trace as Trace
    from elastream.dataflow.endpoints import collect as collect
    from elastream.dataflow.endpoints import files as files
    from elastream.dataflow.endpoints import kafka as kafka
    from elastream.dataflow.endpoints import parquet as parquet
    from elastream.dataflow.endpoints import records as records
    from elastream.dataflow.endpoints import text_files as text_files
    from elastream.spark.dataflow.sinks import latest as latest

__getattr__, __dir__, __all__ = lazy_names(
    "elastream.io",
    {
        "elastream.dataflow.endpoints": ("Trace", "collect", "files", "kafka", "parquet", "records", "text_files"),
        "elastream.spark.dataflow.sinks": ("latest",),
    },
)
