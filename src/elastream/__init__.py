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
    from elastream.experiments.prices import read_prices
    from elastream.experiments.simulate import simulate
    from elastream.model.building import timeout
    from elastream.model.cloud import Billing, HostType
    from elastream.model.endpoints import Trace, collect, files, kafka, parquet, records, text_files
    from elastream.model.errors import ElastreamError
    from elastream.model.flow import Dataflow
    from elastream.model.graph import Alternate, Graph
    from elastream.model.key_table import KeyTable
    from elastream.model.prices import PriceList
    from elastream.model.scaling import ScalingRules
    from elastream.planning.policies.btu import Btu
    from elastream.planning.policies.by_load import ByLoad
    from elastream.planning.policies.e2df import E2df
    from elastream.planning.policies.elastic_allocator import ElasticAllocator
    from elastream.planning.policies.highest_value import HighestValue
    from elastream.planning.policies.otd import Otd
    from elastream.planning.policies.queue_threshold import QueueThreshold
    from elastream.planning.policies.ring import RingBalance
    from elastream.planning.policies.static import Static
    from elastream.planning.policies.threshold import Threshold
    from elastream.spark.dataflow.sinks import latest
    from elastream.spark.jvm.copies_jar import copies_settings
    from elastream.workload import constant, ramp, random_walk, sine, steps, trace

__version__ = "0.1.0"

_HOMES = {
    "elastream.api.autopilot": ("Autopilot",),
    "elastream.api.key_tables": ("key_tables",),
    "elastream.api.result": ("RunResult",),
    "elastream.api.run": ("run",),
    "elastream.experiments.prices": ("read_prices",),
    "elastream.experiments.simulate": ("simulate",),
    "elastream.model.cloud": ("Billing", "HostType"),
    "elastream.model.building": ("timeout",),
    "elastream.model.endpoints": ("Trace", "collect", "files", "kafka", "parquet", "records", "text_files"),
    "elastream.model.errors": ("ElastreamError",),
    "elastream.model.flow": ("Dataflow",),
    "elastream.model.graph": ("Alternate", "Graph"),
    "elastream.model.key_table": ("KeyTable",),
    "elastream.model.prices": ("PriceList",),
    "elastream.model.scaling": ("ScalingRules",),
    "elastream.planning.policies.by_load": ("ByLoad",),
    "elastream.planning.policies.btu": ("Btu",),
    "elastream.planning.policies.e2df": ("E2df",),
    "elastream.planning.policies.elastic_allocator": ("ElasticAllocator",),
    "elastream.planning.policies.highest_value": ("HighestValue",),
    "elastream.planning.policies.otd": ("Otd",),
    "elastream.planning.policies.queue_threshold": ("QueueThreshold",),
    "elastream.planning.policies.ring": ("RingBalance",),
    "elastream.planning.policies.static": ("Static",),
    "elastream.planning.policies.threshold": ("Threshold",),
    "elastream.clouds.local.local": ("Local",),
    "elastream.clouds.local.network": ("Link",),
    "elastream.clouds.pool": ("Pool",),
    "elastream.clouds.standalone": ("Standalone",),
    "elastream.clouds.yarn": ("Yarn",),
    "elastream.clouds.kubernetes": ("Kubernetes",),
    "elastream.spark.dataflow.sinks": ("latest",),
    "elastream.spark.jvm.copies_jar": ("copies_settings",),
    "elastream.workload": ("constant", "ramp", "random_walk", "sine", "steps", "trace"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'elastream' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        from elastream.model.extras import missing

        if said := missing(error, name):
            raise ImportError(said, name=error.name) from error
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
