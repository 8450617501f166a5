"""Scales PySpark streaming jobs with their load, without restarting a query.

    from elastream import Autopilot, Dataflow, run, simulate

Public namespaces: `elastream.clouds`, `elastream.io`, `elastream.loads`, `elastream.policies`, `elastream.actions`.
A name is imported when first used: a program that only simulates never loads Spark.
"""

import warnings
from typing import TYPE_CHECKING, Any

from elastream._lazy import lazy_names

if TYPE_CHECKING:
    from elastream import actions as actions
    from elastream import clouds as clouds
    from elastream import io as io
    from elastream import loads as loads
    from elastream import policies as policies
    from elastream.api.autopilot import Autopilot as Autopilot
    from elastream.api.result import RunResult as RunResult
    from elastream.api.run import run as run
    from elastream.clouds.local.local import Local as Local
    from elastream.core.hosts import HostType as HostType
    from elastream.core.observation import Observation as Observation
    from elastream.core.plant import Plan as Plan
    from elastream.core.plant import Policy as Policy
    from elastream.core.scaling import ScalingRules as ScalingRules
    from elastream.dataflow.builder import Dataflow as Dataflow
    from elastream.dataflow.builder import timeout as timeout
    from elastream.dataflow.functions import Loop as Loop
    from elastream.dataflow.functions import Receiver as Receiver
    from elastream.dataflow.key_table import KeyTable as KeyTable
    from elastream.dataflow.operators import Alternate as Alternate
    from elastream.errors import ElastreamError as ElastreamError
    from elastream.evaluation.simulate import simulate as simulate
    from elastream.recording.key_table_log import key_tables as key_tables
    from elastream.spark.jvm.jars import copies_settings as copies_settings

__version__ = "0.2.0"

_public, __dir__, __all__ = lazy_names(
    "elastream",
    {
        "elastream.actions": (),
        "elastream.clouds": (),
        "elastream.io": (),
        "elastream.loads": (),
        "elastream.policies": (),
        "elastream.api.autopilot": ("Autopilot",),
        "elastream.recording.key_table_log": ("key_tables",),
        "elastream.api.result": ("RunResult",),
        "elastream.api.run": ("run",),
        "elastream.clouds.local.local": ("Local",),
        "elastream.core.hosts": ("HostType",),
        "elastream.core.observation": ("Observation",),
        "elastream.core.plant": ("Plan", "Policy"),
        "elastream.core.scaling": ("ScalingRules",),
        "elastream.dataflow.builder": ("Dataflow", "timeout"),
        "elastream.dataflow.functions": ("Loop", "Receiver"),
        "elastream.dataflow.key_table": ("KeyTable",),
        "elastream.dataflow.operators": ("Alternate",),
        "elastream.errors": ("ElastreamError",),
        "elastream.evaluation.simulate": ("simulate",),
        "elastream.spark.jvm.jars": ("copies_settings",),
    },
)

_MOVED = {
    name: namespace
    for namespace, names in {
        "clouds": ("Billing", "Kubernetes", "Link", "Pool", "PriceList", "Standalone", "Yarn", "read_prices"),
        "io": ("Trace", "collect", "files", "kafka", "latest", "parquet", "records", "text_files"),
        "loads": ("constant", "ramp", "random_walk", "sine", "steps", "trace"),
        "policies": (
            "Btu",
            "ByLoad",
            "E2df",
            "ElasticAllocator",
            "HighestValue",
            "Otd",
            "QueueThreshold",
            "RingBalance",
            "Static",
            "Threshold",
        ),
        "dataflow.graph": ("Graph",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        return _public(name)
    home = f"elastream.{_MOVED[name]}"
    warnings.warn(f"elastream.{name} is now {home}.{name}; the old name goes with 0.3", DeprecationWarning, stacklevel=2)
    from importlib import import_module

    return getattr(import_module(home), name)
