"""Keeps PySpark streaming pipelines inside their service level at the lowest cost, without restarting a query.

    from elastream import Dataflow, Local, Threshold, parquet, ramp, run, text_files

Names are imported when first used: a program that only simulates never loads Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastream.api.autopilot import Autopilot
    from elastream.api.key_tables import key_tables
    from elastream.api.result import RunResult
    from elastream.api.run import run
    from elastream.clouds.kubernetes import Kubernetes
    from elastream.clouds.local.local import Local
    from elastream.clouds.local.network import Link
    from elastream.clouds.pool import Pool
    from elastream.clouds.standalone import Standalone
    from elastream.clouds.yarn import Yarn
    from elastream.core.hosts import Billing, HostType, PriceList
    from elastream.core.scaling import ScalingRules
    from elastream.dataflow.builder import Dataflow, timeout
    from elastream.dataflow.endpoints import Trace, collect, files, kafka, parquet, records, text_files
    from elastream.dataflow.graph import Graph
    from elastream.dataflow.key_table import KeyTable
    from elastream.dataflow.operators import Alternate
    from elastream.errors import ElastreamError
    from elastream.experiments.prices import read_prices
    from elastream.experiments.simulate import simulate
    from elastream.loads import constant, ramp, random_walk, sine, steps, trace
    from elastream.policies.btu import Btu
    from elastream.policies.by_load import ByLoad
    from elastream.policies.e2df.policy import E2df
    from elastream.policies.elastic_allocator.policy import ElasticAllocator
    from elastream.policies.highest_value import HighestValue
    from elastream.policies.otd import Otd
    from elastream.policies.queue_threshold import QueueThreshold
    from elastream.policies.ring.policy import RingBalance
    from elastream.policies.static import Static
    from elastream.policies.threshold import Threshold
    from elastream.spark.dataflow.sinks import latest
    from elastream.spark.jvm.copies_jar import copies_settings

__version__ = "0.1.0"

_HOMES = {
    "elastream.api.autopilot": ("Autopilot",),
    "elastream.api.key_tables": ("key_tables",),
    "elastream.api.result": ("RunResult",),
    "elastream.api.run": ("run",),
    "elastream.experiments.prices": ("read_prices",),
    "elastream.experiments.simulate": ("simulate",),
    "elastream.core.hosts": ("Billing", "HostType"),
    "elastream.dataflow.builder": ("timeout",),
    "elastream.dataflow.endpoints": ("Trace", "collect", "files", "kafka", "parquet", "records", "text_files"),
    "elastream.errors": ("ElastreamError",),
    "elastream.dataflow.builder": ("Dataflow",),
    "elastream.dataflow.graph": ("Alternate", "Graph"),
    "elastream.dataflow.key_table": ("KeyTable",),
    "elastream.core.hosts": ("PriceList",),
    "elastream.core.scaling": ("ScalingRules",),
    "elastream.policies.by_load": ("ByLoad",),
    "elastream.policies.btu": ("Btu",),
    "elastream.policies.e2df.policy": ("E2df",),
    "elastream.policies.elastic_allocator.policy": ("ElasticAllocator",),
    "elastream.policies.highest_value": ("HighestValue",),
    "elastream.policies.otd": ("Otd",),
    "elastream.policies.queue_threshold": ("QueueThreshold",),
    "elastream.policies.ring.policy": ("RingBalance",),
    "elastream.policies.static": ("Static",),
    "elastream.policies.threshold": ("Threshold",),
    "elastream.clouds.local.local": ("Local",),
    "elastream.clouds.local.network": ("Link",),
    "elastream.clouds.pool": ("Pool",),
    "elastream.clouds.standalone": ("Standalone",),
    "elastream.clouds.yarn": ("Yarn",),
    "elastream.clouds.kubernetes": ("Kubernetes",),
    "elastream.spark.dataflow.sinks": ("latest",),
    "elastream.spark.jvm.copies_jar": ("copies_settings",),
    "elastream.loads": ("constant", "ramp", "random_walk", "sine", "steps", "trace"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'elastream' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        from elastream.errors import missing

        if said := missing(error, name):
            raise ImportError(said, name=error.name) from error
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
