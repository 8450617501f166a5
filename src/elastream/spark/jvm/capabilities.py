"""Probe of what Autopilot can do in an existing session. It leaves no trace there."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from elastream.clouds.provider import UNLIMITED, lacks_as_provider
from elastream.errors import EnvironmentProblem, in_one_line
from elastream.spark.jvm.cluster_manager import NO_LIMIT, SessionLimit, cluster_limit
from elastream.spark.jvm.driver_side import DriverSide, TaskLoads, java_context, jvm_of
from elastream.spark.jvm.executor_memory import ExecutorMemory
from elastream.spark.jvm.executor_use import ExecutorUse
from elastream.spark.jvm.executors import Executors
from elastream.spark.jvm.recovery import Recovery
from elastream.spark.jvm.releases import release_of
from elastream.spark.jvm.session import session_stopped
from elastream.units import duration

T = TypeVar("T")

# Spark checks since then that files which a late snapshot shares are still there (SPARK-55892).
LATE_SNAPSHOTS_SINCE = (4, 2)

NEEDS_CLASSIC_SESSION = (
    "it needs a classic session, whose driver is in its own process, and this one is Spark Connect: make the session with "
    "SparkSession.builder.master(...) in place of remote(...), and without spark.api.mode=connect or SPARK_REMOTE"
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Available capabilities, with a sentence in `lacking` for each missing one."""

    driver: DriverSide | None  # needed to observe or do anything
    task_loads: TaskLoads | None = None  # needed to move partitions
    recovery: Recovery | None = None  # moves partitions of a lost executor; None: Spark does
    use: ExecutorUse | None = None  # reads what uses an executor; needed to release one
    memory: ExecutorMemory | None = None  # reads the memory of executors
    asks: bool = False  # True if executors can be requested and released
    leases: bool = False  # True if the provider can be used
    slots: int = 0  # concurrent tasks of an executor, 0 if unknown
    allowed: int = UNLIMITED  # executors that Spark may have now
    limit: SessionLimit = NO_LIMIT  # that of the session or its cluster manager
    least_interval: Callable[[], float] = lambda: 0.0  # seconds from batch to batch from which state may move
    lacking: tuple[str, ...] = ()


def probe(spark: SparkSession, provider: object | None = None) -> Capabilities:
    lacking: list[str] = []
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is None:
        why = NEEDS_CLASSIC_SESSION if hasattr(type(spark), "builder") else f"{spark!r} is not a SparkSession"
        return Capabilities(None, lacking=(f"autopilot does nothing: {why}",))
    if session_stopped(spark):
        return Capabilities(None, lacking=("autopilot does nothing: the session has been stopped: give it one that runs",))
    try:
        driver = DriverSide(spark)
        session.streams().stateStoreCoordinator()
    except (EnvironmentProblem, Py4JError, TypeError, OSError) as error:
        return Capabilities(None, lacking=(f"autopilot does nothing: {in_one_line(error)}",))

    def tried(kind: Callable[[SparkSession], T], without: str) -> T | None:
        try:
            return kind(spark)
        except EnvironmentProblem as error:
            lacking.append(f"{without}: {error}")
            return None

    several = has_executors(spark)
    task_loads = tried(TaskLoads, "state partitions are not moved")
    recovery = tried(Recovery, "state partitions of a lost executor are left to Spark") if several else None
    use = tried(ExecutorUse, "executors are not requested or released") if several else None
    memory = tried(ExecutorMemory, "memory is not watched")
    if _seconds(_conf(spark, "spark.locality.wait") or "3s") == 0:  # Spark's default
        lacking.append("spark.locality.wait is 0: tasks do not wait for the executor that holds their state, so that"
                       " partitions do not stay where they are put")  # fmt: skip
    asks = _can_request(spark, lacking) and use is not None
    lacks = "" if provider is None else lacks_as_provider(provider)
    leases = provider is not None and not lacks
    if lacks:
        lacking.append(f"hosts cannot be leased: {lacks}")
    slots = int(_conf(spark, "spark.executor.cores") or 0)
    limit = _limit(spark, driver) if use is not None else NO_LIMIT

    def least() -> float:  # settings may change after this
        return least_interval(pyspark.__version__, lambda name, default: spark.conf.get(name, default) or default)

    return Capabilities(
        driver, task_loads, recovery, use, memory, asks, leases, slots, _allowed(spark), limit, least, tuple(lacking)
    )


def least_interval(version: str, setting: Callable[[str, str], str]) -> float:
    """Return the seconds from batch to batch from which state may move."""
    store = "spark.sql.streaming.stateStore"
    logs = setting(f"{store}.rocksdb.changelogCheckpointing.enabled", "false").lower() == "true"
    if release_of(version) >= LATE_SNAPSHOTS_SINCE or not logs or "RocksDB" not in setting(f"{store}.providerClass", ""):
        return 0.0
    late = _seconds(setting(f"{store}.maintenanceInterval", "60s"))
    return late / int(setting("spark.sql.streaming.minBatchesToRetain", "100"))


def _seconds(time: str) -> float:
    return duration(float(time) / 1e3 if time.isdigit() else time)


def _can_request(spark: SparkSession, lacking: list[str]) -> bool:
    if not has_executors(spark):
        lacking.append(f"{spark.sparkContext.master} has a single executor, the driver: there is nothing to balance")
        return False
    for setting in ("spark.dynamicAllocation.enabled", "spark.streaming.dynamicAllocation.enabled"):
        if (_conf(spark, setting) or "").lower() == "true":
            lacking.append(
                f"{setting} is on: Spark requests and releases executors itself, and autopilot only balances state"
                f" partitions over them; for autopilot to do both, which is better as Spark does not know state, start the"
                f" session with {setting}=false, spark.executor.instances executors, and give autopilot max_hosts"
            )
            return False
    return True


def _limit(spark: SparkSession, driver: DriverSide) -> SessionLimit:
    registered = Executors(driver).look().values()
    slots = int(_conf(spark, "spark.executor.cores") or max((each.slots for each in registered), default=0))
    limits = session_limits(str(spark.sparkContext.master), lambda name: _conf(spark, name), slots)
    return min([*limits, cluster_limit(spark, slots)], key=lambda limit: limit.executors)


def session_limits(master: str, setting: Callable[[str], str | None], slots: int) -> list[SessionLimit]:
    """Return the limits that a session's master and settings declare.

    Args:
        slots: Cores of an executor; 0 if unknown.
    """
    limits, cores = [], setting("spark.cores.max")
    if cores and slots and master.startswith(("spark://", "local-cluster")):
        limits.append(SessionLimit(int(cores) // slots, f"spark.cores.max={cores}"))
    if most := setting("spark.dynamicAllocation.maxExecutors"):
        limits.append(SessionLimit(int(most), f"spark.dynamicAllocation.maxExecutors={most}"))
    if small := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]", master):
        workers, each = int(small[1]), int(small[2])
        limits.append(SessionLimit(workers * max(1, each // max(1, slots or each)), master))
    return limits or [NO_LIMIT]


def has_executors(spark: SparkSession) -> bool:
    client = jvm_of(spark).java.lang.Class.forName("org.apache.spark.ExecutorAllocationClient")
    return bool(client.isInstance(java_context(spark).schedulerBackend()))


def _allowed(spark: SparkSession) -> int:
    if str(spark.sparkContext.master).startswith(("spark://", "local-cluster")):
        return UNLIMITED
    return int(_conf(spark, "spark.executor.instances") or 2)  # Spark's default


def _conf(spark: SparkSession, name: str) -> str | None:
    value: str | None = spark.sparkContext.getConf().get(name)
    return value
